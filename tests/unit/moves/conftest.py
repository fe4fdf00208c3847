from datetime import datetime, timezone

import pytest
from killed_moves import killed  # noqa: F401
from memory_broker import filled_broker
from memory_clients import open_client
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_archive


@pytest.fixture
def broker():
    """A broker with the topic orders: two partitions of 100 records each."""
    return filled_broker(range(100), range(100))


@pytest.fixture
def client(broker):
    return open_client(broker)


class Pipeline:
    """
    A query and its groups, at 90.

    :param groups: the partitions that it reads, with the group of each.
    """

    def __init__(self, client, root, groups):
        self.client, self.query, self.groups = client, Query(root), groups
        self.group = GroupSelection.parse({tp.topic: group for tp, group in groups.items()})
        self.run(0, 10)
        self.run(1, 90)
        for tp, group in groups.items():
            client.commit(group, {tp: 90})
        self.checkpoint = SparkCheckpoint(self.query.location)

    def run(self, batch, offset):
        """Run a batch that ends at an offset."""
        ends: dict[str, dict[int, int]] = {tp.topic: {} for tp in self.groups}
        for tp in self.groups:
            ends[tp.topic][tp.partition] = offset
        self.query.run(batch, ends)

    def reset(self, to, by, parameter="to_offset", **how):
        """Move all to an offset, and return the receipt."""
        now, place = datetime(2026, 1, 5, tzinfo=timezone.utc), Place.parse(to, parameter)
        plan = plan_reset(self.client, self.checkpoint, self.group, place, now=now, metadata=by, **how)
        return apply_pipeline(self.client, plan, by, self.checkpoint, 0)

    def take_back(self, archive):
        """Take a move back as the command line does."""
        plan = plan_restore_archive(self.client, archive, self.checkpoint, self.group)
        apply_pipeline(self.client, plan, CommitMetadata(tool="group restore"), self.checkpoint, 0)

    def at(self):
        """Where the groups and the query are."""
        groups = [self.client.committed(group, [tp])[tp].offset for tp, group in self.groups.items()]
        (offsets,) = self.checkpoint.read().kafka_offsets.values()
        return [*groups, *offsets.values()]


@pytest.fixture
def pipeline(client, tmp_path):
    """A query of one topic with the group g."""
    return Pipeline(client, tmp_path / "checkpoint", {TopicPartition("orders", n): "g" for n in (0, 1)})


@pytest.fixture
def two_groups(client, broker, tmp_path):
    """A query of two topics, each with a group."""
    broker.create("refunds")
    broker.append("refunds", 0, range(100))
    groups = {TopicPartition("orders", 0): "a", TopicPartition("refunds", 0): "b"}
    return Pipeline(client, tmp_path / "checkpoint", groups)
