import pytest
from airflow_task import connect, context  # noqa: F401

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

STOPPED = {0: 3, 1: 2, 2: 1}
"""Where the checkpoint of a pipeline is; its log ends at twice that."""
COMMITTED = {0: 1, 1: 1, 2: 1}


@pytest.fixture(scope="session")
def admin(secured_cluster):
    with OffsetsClient(secured_cluster.admin) as client:
        yield client


@pytest.fixture(scope="module")
def topic(secured_cluster, make_topic, produce):
    name = make_topic(on=secured_cluster.plain)
    produce(name, {number: 2 * offset for number, offset in STOPPED.items()}, on=secured_cluster.plain)
    return name


class Pipeline:
    """A topic, the group that has read it, and a checkpoint that is further; and what they hold."""

    def __init__(self, topic, group, query, admin):
        self.topic, self.group, self.query = topic, group, query
        self._admin = admin
        self.move_group(COMMITTED)

    @property
    def names(self):
        return {"group_id": self.group, "topics": [self.topic]}

    @property
    def with_checkpoint(self):
        return {**self.names, "checkpoint_location": self.query.location}

    def committed(self):
        found = self._admin.committed(self.group, [TopicPartition(self.topic, number) for number in STOPPED])
        return {tp.partition: commit and (commit.offset, commit.metadata) for tp, commit in found.items()}

    def offsets(self):
        return {number: commit and commit[0] for number, commit in self.committed().items()}

    def move_group(self, offsets):
        self._admin.commit(self.group, {TopicPartition(self.topic, at): to for at, to in offsets.items()})

    def state(self):
        """All that a move can change: each file of the checkpoint, and each commit with its metadata."""
        return self.query.files(), self.committed()


@pytest.fixture
def pipeline(topic, new_group, new_query, admin):
    return Pipeline(topic, new_group(), new_query({topic: STOPPED}), admin)
