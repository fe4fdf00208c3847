"""
A pipeline whose connection leads to a mirror of its cluster, where the same records have lower offsets.

MirrorMaker has copied the topic, and the commits of the groups with their metadata.
"""

import json
import time
from datetime import datetime, timezone

import pytest
from memory_broker import filled_broker
from memory_clients import open_client
from written_query import Query

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.cached_reader import CachedReader
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.window_commit import plan_window_commits, window_targets
from airflow_kafka_offsets.readings.window import check_window, plan_window
from airflow_kafka_offsets.spark.commit import commit_ranges
from airflow_kafka_offsets.spark.read import read_window
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait

MARKERS, READ, WRITTEN = 4, 10, 18
"""On the source: markers before the checkpoint, checkpoint, log end. The mirror has no markers."""
OURS, PLAIN = "orders-etl", "orders-plain"
ORDERS = TopicPartition("orders", 0)
SOURCE, MIRROR = "source:9092", "mirror:9092"
BOTH = ("cluster-source", "cluster-mirror")


@pytest.fixture
def source():
    """A client of the cluster of the pipeline."""
    return cluster("source", range(WRITTEN))


@pytest.fixture
def mirror():
    """A client of the mirror."""
    return cluster("mirror", range(MARKERS, WRITTEN))


def cluster(name, offsets):
    now = int(time.time() * 1_000)
    times = [now - 60_000 if at < READ else now - 3_000 + at for at in offsets]
    broker = filled_broker(times, cluster_id=f"cluster-{name}")
    broker.config(address=f"{name}:9092")
    return open_client(broker)


@pytest.fixture
def location(tmp_path, source, mirror, cli):
    """The checkpoint: it and the groups are at 10 on the source, which is 6 on the mirror."""
    query = Query(tmp_path / "checkpoint")
    query.run(0, {"orders": {0: 5}})
    query.run(1, {"orders": {0: READ}}, at=time.time() - 30)
    commit = ("group", "commit", OURS, "--checkpoint", query.location, "--execute")
    assert cli(*commit, "--bootstrap-server", SOURCE).code == 0
    source.commit(PLAIN, {ORDERS: READ})
    for group in (OURS, PLAIN):
        found = source.committed(group, [ORDERS])[ORDERS]
        mirror.commit(group, {ORDERS: READ - MARKERS}, found.metadata)
    return query.location


@pytest.fixture
def commit(cli, mirror, location):
    """commit(group) on the mirror -> why it was refused; nothing was written."""

    def refused(group):
        before = mirror.committed(group, [ORDERS])
        arguments = ("group", "commit", group, "--checkpoint", location, "--execute")
        done = cli(*arguments, "--bootstrap-server", MIRROR)
        assert mirror.committed(group, [ORDERS]) == before
        assert done.code == 1, done
        return done.err

    return refused


def names_both(text):
    return all(each in str(text) for each in BOTH)


def test_a_commit_to_a_group_that_mirrormaker_copied_is_refused(commit):
    text = commit(OURS)
    assert names_both(text)
    assert "--allow-new-cluster" in text


@pytest.mark.parametrize("group", [PLAIN, "new"])
def test_where_no_cluster_was_recorded_the_record_before_the_position_betrays_it(commit, group):
    assert "newer" in commit(group)


def test_a_drift_check_is_refused(location, cli):
    done = cli("drift", location, OURS, "--bootstrap-server", MIRROR)
    assert done.code != 0
    assert names_both(done.err)
    assert "run the task" not in done.out + done.err


@pytest.mark.parametrize("group", [PLAIN, "new"])
def test_without_a_record_of_the_cluster_drift_says_that_the_log_is_another_one(location, cli, group):
    done = cli("drift", location, group, "--bootstrap-server", MIRROR)
    assert done.code == 1
    assert "topic recreated on 1 of 1 partitions" in done.out
    assert "the connection leads to another cluster" in done.out
    assert "run the task" not in done.out


@pytest.mark.usefixtures("location")
@pytest.mark.parametrize("reader", [lambda client: client, CachedReader], ids=["a client", "a cached reader"])
@pytest.mark.parametrize(
    "wait",
    [
        LagWait(group_id=OURS, topics=["orders"], max_lag=100),
        ReachedWait(group_id=OURS, target={"orders": {"0": 6}}),
    ],
    ids=["lag", "reached"],
)
def test_a_wait_for_the_group_is_refused(mirror, reader, wait):
    with pytest.raises(KafkaOffsetsError) as refusal:
        wait.poll(reader(mirror), None)
    assert names_both(refusal.value)


@pytest.mark.usefixtures("location")
def test_a_target_from_a_receipt_of_the_source_is_refused(mirror, cli):
    reset = ("group", "reset", OURS, "--topic", "orders", "--to-current", "--execute", "--output", "json")
    receipt = cli(*reset, "--bootstrap-server", SOURCE).out
    wait = ReachedWait(group_id=PLAIN, target=json.loads(receipt))
    with pytest.raises(KafkaOffsetsError) as refusal:
        wait.freeze(mirror, None)
    assert names_both(refusal.value)


@pytest.mark.usefixtures("location")
def test_a_window_from_the_groups_position_is_refused(mirror):
    now = datetime.now(tz=timezone.utc)
    with pytest.raises(KafkaOffsetsError) as refusal:
        plan_window(mirror, GroupSelection.parse(OURS), Place("committed"), Place("latest"), now=now)
    assert names_both(refusal.value)


WINDOW = OffsetWindow({ORDERS: OffsetRange(5, 8)}, source={"logs": {"cluster": BOTH[0]}})
BY_MIRROR = {"bootstrap.servers": MIRROR}


@pytest.mark.usefixtures("location")
@pytest.mark.parametrize(
    "use",
    [
        lambda client: check_window(client, WINDOW, GroupSelection.parse(PLAIN)),
        lambda _: read_window(None, WINDOW, {"kafka.bootstrap.servers": MIRROR}, client_config=BY_MIRROR),
        lambda _: commit_ranges(PLAIN, WINDOW, client_config=BY_MIRROR),
    ],
    ids=["checked", "read", "committed by a job"],
)
def test_a_window_of_the_source_is_not(mirror, use):
    with pytest.raises(KafkaOffsetsError) as refusal:
        use(mirror)
    assert names_both(refusal.value)


@pytest.mark.usefixtures("location")
def test_a_commit_of_a_window_of_the_source_is_not_planned(mirror):
    targets = window_targets(WINDOW, GroupSelection.parse(PLAIN))
    (plan,) = plan_window_commits(mirror, WINDOW, targets, source={})
    assert any(names_both(each) for each in plan.refusals)
