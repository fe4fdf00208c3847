"""A pipeline whose connection leads to a mirror of its cluster, where the same records have lower offsets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from breakable_kafka import BreakableKafka
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from deadlines import until
from mirror_maker import Clusters, mirroring
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.window_commit import plan_window_commits, window_targets
from airflow_kafka_offsets.readings.window import plan_window
from airflow_kafka_offsets.readings.window_checks import check_window
from airflow_kafka_offsets.spark.commit import commit_ranges
from airflow_kafka_offsets.spark.read import read_window
from airflow_kafka_offsets.waits.cached_reader import CachedReader
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.integration

DELETED, READ, WRITTEN = 4, 10, 18
"""On the source: log start, checkpoint and log end. On the mirror each lies :data:`DELETED` lower."""
OURS, PLAIN = "orders-etl", "orders-plain"
HALF_AN_HOUR = 1_800_000


class Mirrored(NamedTuple):
    """A topic and its groups on both clusters, and what was recorded on the source."""

    clusters: Clusters
    ids: tuple[str, str]
    topic: str
    location: str
    moved: str
    window: Any
    receipt: str

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)


def run(servers: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "airflow_kafka_offsets.cli", *arguments, "--bootstrap-server", servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="module")
def mirrored(kafka, make_topic, produce, tmp_path_factory) -> Iterator[Mirrored]:
    """
    What a failover leaves: MirrorMaker has copied topic and groups, and has ended.

    The query and its group are at 10 on the source; the same place is 6 on the mirror, where MirrorMaker has
    put the group.
    """
    directory = tmp_path_factory.mktemp("mirrored")
    topic, now = make_topic(1), int(time.time() * 1_000)
    partition = TopicPartition(topic, 0)
    produce(topic, {0: READ}, {0: [now - HALF_AN_HOUR] * READ})
    query, moved = Query(directory / "checkpoint"), Query(directory / "moved")
    for each in (query, moved):
        each.run(0, {topic: {0: 5}})
        each.run(1, {topic: {0: READ}})
    planned = int(time.time() * 1_000)
    with BreakableKafka() as mirror:
        clusters = Clusters(kafka.bootstrap_servers, mirror.bootstrap_servers)
        admin = AdminClient({"bootstrap.servers": clusters.source, "log_level": 0})
        admin.delete_records([ClientPartition(topic, 0, DELETED)])[ClientPartition(topic, 0)].result(30)
        run(clusters.source, "group", "commit", OURS, "--checkpoint", query.location, "--execute")
        with OffsetsClient({"bootstrap.servers": clusters.source}) as source:
            source.commit(PLAIN, {partition: READ})
            window = plan_window(
                source,
                GroupSelection.parse(OURS),
                Place.parse({topic: {"0": 5}}, "start"),
                Place.parse({topic: {"0": 8}}, "end"),
                now=datetime.now(tz=timezone.utc),
            )
        receipt = directory / "receipt.json"
        reset = ("group", "reset", OURS, "--topic", topic, "--to-current", "--execute", "--output", "json")
        receipt.write_text(run(clusters.source, *reset))
        move = ("group", "reset", "moved", "--checkpoint", moved.location, "--to-offset", "9", "--execute")
        run(clusters.source, *move, "--quiet-period", "0")
        with (
            OffsetsClient({"bootstrap.servers": clusters.target}) as target,
            mirroring(directory, clusters, [topic], [OURS, PLAIN]),
        ):

            def at(group: str) -> int | None:
                commit = target.committed(group, [partition])[partition]
                return commit and commit.offset

            until(lambda: topic in target.partitions(), "the topic")
            until(lambda: {at(OURS), at(PLAIN)} == {READ - DELETED}, "the groups")
            later = [planned + 1_500 + number for number in range(WRITTEN - READ)]
            produce(topic, {0: len(later)}, {0: later})
            ends = lambda: target.log_ranges([partition])[partition]  # noqa: E731
            until(lambda: ends().end == WRITTEN - DELETED, "the records")
        ids = [AdminClient({"bootstrap.servers": each}).list_topics().cluster_id for each in clusters]
        yield Mirrored(clusters, tuple(ids), topic, query.location, moved.location, window, str(receipt))


@pytest.fixture
def target(mirrored) -> Iterator[OffsetsClient]:
    with OffsetsClient({"bootstrap.servers": mirrored.clusters.target}) as client:
        yield client


@pytest.fixture
def refused(mirrored, cli, target) -> Callable[..., str]:
    """Runs a command against the mirror; returns why it was refused, after a look whether it wrote."""

    def move(*arguments: str) -> str:
        groups = (OURS, PLAIN, "new")
        before = {group: target.committed(group, [mirrored.partition]) for group in groups}
        done = cli(*arguments, "--bootstrap-server", mirrored.clusters.target)
        after = {group: target.committed(group, [mirrored.partition]) for group in groups}
        assert after == before
        assert done.code == 1, done
        return done.err

    return move


def names_both(mirrored: Mirrored, text: object) -> bool:
    return all(each in str(text) for each in mirrored.ids)


def test_a_commit_to_a_group_that_mirrormaker_copied_is_refused(mirrored, refused):
    text = refused("group", "commit", OURS, "--checkpoint", mirrored.location, "--execute")
    assert names_both(mirrored, text)
    assert "allow_new_cluster" in text or "--allow-new-cluster" in text


@pytest.mark.parametrize("group", [PLAIN, "new"])
def test_where_no_cluster_was_recorded_the_record_before_the_position_betrays_it(mirrored, refused, group):
    text = refused("group", "commit", group, "--checkpoint", mirrored.location, "--execute")
    assert "newer" in text


def test_a_reset_and_a_restore_are_refused(mirrored, refused):
    text = refused("group", "reset", OURS, "--topic", mirrored.topic, "--to-offset", "10", "--execute")
    assert names_both(mirrored, text)
    text = refused("group", "restore", OURS, "--receipt", mirrored.receipt, "--execute")
    assert names_both(mirrored, text)


def test_a_drift_check_is_refused(mirrored, cli):
    done = cli("drift", mirrored.location, OURS, "--bootstrap-server", mirrored.clusters.target)
    assert done.code != 0
    assert names_both(mirrored, done.err)
    assert "run the task" not in done.out + done.err


@pytest.mark.parametrize("group", [PLAIN, "new"])
def test_without_a_record_of_the_cluster_drift_says_that_the_log_is_another_one(mirrored, cli, group):
    done = cli("drift", mirrored.location, group, "--bootstrap-server", mirrored.clusters.target)
    assert done.code == 1
    assert "topic recreated on 1 of 1 partitions" in done.out
    assert "the connection leads to another cluster" in done.out
    assert "run the task" not in done.out


def test_waits_for_the_group_are_refused(mirrored, target):
    lag = LagWait(group_id=OURS, topics=[mirrored.topic], max_lag=100)
    reached = ReachedWait(group_id=OURS, target={mirrored.topic: {"0": 6}})
    for wait in (lag, reached):
        for client in (target, CachedReader(target)):
            with pytest.raises(KafkaOffsetsError) as refusal:
                wait.poll(client, None)
            assert names_both(mirrored, refusal.value)


def test_a_checkpoint_that_was_moved_on_the_source_is_refused(mirrored, target, cli):
    wait = LagWait(checkpoint_location=mirrored.moved, max_lag=100)
    with pytest.raises(KafkaOffsetsError) as refusal:
        wait.poll(target, SparkCheckpoint(mirrored.moved))
    assert names_both(mirrored, refusal.value)
    done = cli("drift", mirrored.moved, "new", "--bootstrap-server", mirrored.clusters.target)
    assert done.code != 0
    assert names_both(mirrored, done.err)


def test_a_target_from_a_receipt_of_the_source_is_refused(mirrored, target):
    wait = ReachedWait(group_id=PLAIN, target=json.loads(Path(mirrored.receipt).read_text()))
    with pytest.raises(KafkaOffsetsError) as refusal:
        wait.freeze(target, None)
    assert names_both(mirrored, refusal.value)


def test_a_window_from_the_groups_position_is_refused(mirrored, target):
    committed, latest = Place("committed"), Place("latest")
    now = datetime.now(tz=timezone.utc)
    with pytest.raises(KafkaOffsetsError) as refusal:
        plan_window(target, GroupSelection.parse(OURS), committed, latest, now=now)
    assert names_both(mirrored, refusal.value)


def test_a_window_of_the_source_is_neither_read_nor_committed(mirrored, target):
    with pytest.raises(KafkaOffsetsError) as refusal:
        check_window(target, mirrored.window, GroupSelection.parse(PLAIN))
    assert names_both(mirrored, refusal.value)
    named = GroupSelection.parse(PLAIN)
    (plan,) = plan_window_commits(target, mirrored.window, window_targets(mirrored.window, named), source={})
    assert any(names_both(mirrored, each) for each in plan.refusals)
    config = {"bootstrap.servers": mirrored.clusters.target}
    options = {"kafka.bootstrap.servers": mirrored.clusters.target}
    for use in (
        lambda: read_window(None, mirrored.window, options, client_config=config),
        lambda: commit_ranges(PLAIN, mirrored.window, client_config=config),
    ):
        with pytest.raises(KafkaOffsetsError) as refusal:
            use()
        assert names_both(mirrored, refusal.value)
