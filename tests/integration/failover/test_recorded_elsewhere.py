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
from confluent_kafka import Producer
from mirrored_clusters import Mirrored
from written_query import Query

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
    from collections.abc import Callable

pytestmark = pytest.mark.integration

MARKERS, READ, WRITTEN = 4, 10, 18
"""On the source: markers before the checkpoint, checkpoint, log end. The mirror has no markers."""
OURS, PLAIN = "same-orders-etl", "same-orders-plain"


class Recorded(NamedTuple):
    """A topic and its groups on both clusters, and what was recorded on the source."""

    target: str
    ids: tuple[str, str]
    topic: str
    location: str
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
def recorded(mirrored: Mirrored, produce, tmp_path_factory) -> Recorded:
    """
    What a failover leaves: MirrorMaker has copied topic and groups.

    The query and its group are at 10 on the source; the same place is 6 on the mirror, where MirrorMaker has
    put the group.
    """
    directory = tmp_path_factory.mktemp("recorded")
    topic, half_an_hour_ago = mirrored.topic("same"), int((time.time() - 1_800) * 1_000)
    partition = TopicPartition(topic, 0)
    settings = {"bootstrap.servers": mirrored.source, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    for size in (2, 2, 1, 1):
        producer.begin_transaction()
        for _ in range(size):
            producer.produce(topic, b"x", partition=0, timestamp=half_an_hour_ago)
        producer.commit_transaction(30)
    query = Query(directory / "checkpoint")
    query.run(0, {topic: {0: 5}})
    query.run(1, {topic: {0: READ}})
    planned = int(time.time() * 1_000)
    run(mirrored.source, "group", "commit", OURS, "--checkpoint", query.location, "--execute")
    mirrored.on_source.commit(PLAIN, {partition: READ})
    window = plan_window(
        mirrored.on_source,
        GroupSelection.parse(OURS),
        Place.parse({topic: {"0": 5}}, "start"),
        Place.parse({topic: {"0": 8}}, "end"),
        now=datetime.now(tz=timezone.utc),
    )
    receipt = directory / "receipt.json"
    reset = ("group", "reset", OURS, "--topic", topic, "--to-current", "--execute", "--output", "json")
    receipt.write_text(run(mirrored.source, *reset))

    def at(group: str) -> int | None:
        commit = mirrored.on_target.committed(group, [partition])[partition]
        return commit and commit.offset

    mirrored.until(lambda: topic in mirrored.on_target.partitions([topic]), "the topic")
    mirrored.until(lambda: {at(OURS), at(PLAIN)} == {READ - MARKERS}, "the groups")
    later = [planned + 1_500 + number for number in range(WRITTEN - READ)]
    produce(topic, {0: len(later)}, {0: later}, on=mirrored.source)
    logs = mirrored.on_target.log_ranges
    mirrored.until(lambda: logs([partition])[partition].end == WRITTEN - MARKERS, "the records")
    ids = mirrored.on_source.cluster_id(), mirrored.on_target.cluster_id()
    return Recorded(mirrored.target, ids, topic, query.location, window, str(receipt))


@pytest.fixture
def target(mirrored: Mirrored) -> OffsetsClient:
    return mirrored.on_target


@pytest.fixture
def refused(recorded, cli, target) -> Callable[..., str]:
    """Runs a command against the mirror; returns why it was refused, after a look whether it wrote."""

    def move(*arguments: str) -> str:
        groups = (OURS, PLAIN, "new")
        before = {group: target.committed(group, [recorded.partition]) for group in groups}
        done = cli(*arguments, "--bootstrap-server", recorded.target)
        after = {group: target.committed(group, [recorded.partition]) for group in groups}
        assert after == before
        assert done.code == 1, done
        return done.err

    return move


def names_both(recorded: Recorded, text: object) -> bool:
    return all(each in str(text) for each in recorded.ids)


def test_a_commit_to_a_group_that_mirrormaker_copied_is_refused(recorded, refused):
    text = refused("group", "commit", OURS, "--checkpoint", recorded.location, "--execute")
    assert names_both(recorded, text)
    assert "allow_new_cluster" in text or "--allow-new-cluster" in text


@pytest.mark.parametrize("group", [PLAIN, "new"])
def test_where_no_cluster_was_recorded_the_record_before_the_position_betrays_it(recorded, refused, group):
    text = refused("group", "commit", group, "--checkpoint", recorded.location, "--execute")
    assert "newer" in text


def test_a_drift_check_is_refused(recorded, cli):
    done = cli("drift", recorded.location, OURS, "--bootstrap-server", recorded.target)
    assert done.code != 0
    assert names_both(recorded, done.err)
    assert "run the task" not in done.out + done.err


@pytest.mark.parametrize("group", [PLAIN, "new"])
def test_without_a_record_of_the_cluster_drift_says_that_the_log_is_another_one(recorded, cli, group):
    done = cli("drift", recorded.location, group, "--bootstrap-server", recorded.target)
    assert done.code == 1
    assert "topic recreated on 1 of 1 partitions" in done.out
    assert "the connection leads to another cluster" in done.out
    assert "run the task" not in done.out


def test_waits_for_the_group_are_refused(recorded, target):
    lag = LagWait(group_id=OURS, topics=[recorded.topic], max_lag=100)
    reached = ReachedWait(group_id=OURS, target={recorded.topic: {"0": 6}})
    for wait in (lag, reached):
        for client in (target, CachedReader(target)):
            with pytest.raises(KafkaOffsetsError) as refusal:
                wait.poll(client, None)
            assert names_both(recorded, refusal.value)


def test_a_target_from_a_receipt_of_the_source_is_refused(recorded, target):
    wait = ReachedWait(group_id=PLAIN, target=json.loads(Path(recorded.receipt).read_text()))
    with pytest.raises(KafkaOffsetsError) as refusal:
        wait.freeze(target, None)
    assert names_both(recorded, refusal.value)


def test_a_window_from_the_groups_position_is_refused(recorded, target):
    committed, latest = Place("committed"), Place("latest")
    now = datetime.now(tz=timezone.utc)
    with pytest.raises(KafkaOffsetsError) as refusal:
        plan_window(target, GroupSelection.parse(OURS), committed, latest, now=now)
    assert names_both(recorded, refusal.value)


def test_a_window_of_the_source_is_neither_read_nor_committed(recorded, target):
    with pytest.raises(KafkaOffsetsError) as refusal:
        check_window(target, recorded.window, GroupSelection.parse(PLAIN))
    assert names_both(recorded, refusal.value)
    named = GroupSelection.parse(PLAIN)
    (plan,) = plan_window_commits(target, recorded.window, window_targets(recorded.window, named), source={})
    assert any(names_both(recorded, each) for each in plan.refusals)
    config = {"bootstrap.servers": recorded.target}
    options = {"kafka.bootstrap.servers": recorded.target}
    for use in (
        lambda: read_window(None, recorded.window, options, client_config=config),
        lambda: commit_ranges(PLAIN, recorded.window, client_config=config),
    ):
        with pytest.raises(KafkaOffsetsError) as refusal:
            use()
        assert names_both(recorded, refusal.value)
