"""Offsets of another cluster, or of a topic that was created again, are not taken for those of now."""

import time
from functools import partial
from typing import Any, NamedTuple

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from memory_broker import MemoryBroker
from memory_clients import open_client
from memory_kafka import SERVERS
from written_query import Query

from airflow_kafka_offsets.checkpoint import apply_move
from airflow_kafka_offsets.errors import BrokerUnavailableError, PlanRefusedError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")

SECOND = 1_000


@pytest.fixture
def other_cluster():
    """Another cluster, without any topic."""
    found = MemoryBroker()
    found.cluster_id = "another-cluster"
    return found


@pytest.fixture
def other(other_cluster):
    """A client of the other cluster."""
    return open_client(other_cluster)


@pytest.fixture
def lead_to_other(other_cluster):
    """lead_to_other(): from now on all connections lead to the other cluster."""
    return partial(other_cluster.config, address=SERVERS)


@pytest.fixture
def lead_back(memory):
    """lead_back(): from now on all connections lead to the first cluster again."""
    return partial(memory.config, address=SERVERS)


@pytest.fixture
def mirrored(make_topic, produce, other_cluster):
    """A topic of both clusters: 14 records on this one, the last 10 of them on the other."""
    topic = make_topic(1)
    before = int(time.time() * SECOND) - 60 * SECOND
    produce(topic, {0: 14}, {0: [before] * 14})
    other_cluster.create(topic)
    other_cluster.append(topic, 0, [before] * 10)
    return topic


def at(client, group, topic):
    (found,) = client.committed(group, [TopicPartition(topic, 0)]).values()
    return found and found.offset


def copy_commit(broker, other, group, topic, offset):
    """Commit to the other cluster as MirrorMaker does: with the metadata of the commit that it translates."""
    (found,) = broker.committed(group, [TopicPartition(topic, 0)]).values()
    other.commit(group, {TopicPartition(topic, 0): offset}, found.metadata)


@pytest.fixture
def commit_checkpoint(context):
    def run(group, query, **parameters):
        operator = CommitOffsetsOperator(
            task_id="commit", group_id=group, checkpoint_location=query.location, **parameters
        )
        return operator.execute(context)

    return run


@pytest.fixture
def reset(context):
    def run(group, **parameters):
        return ResetOffsetsOperator(task_id="reset", group_id=group, **parameters).execute(context)

    return run


@pytest.fixture
def restore(context):
    def run(group, **parameters):
        operator = RestoreOffsetsOperator(
            task_id="restore", group_id=group, restore_when="always", **parameters
        )
        return operator.execute(context)

    return run


# Another cluster.


def test_a_checkpoint_is_not_committed_to_the_translated_group_of_a_mirrored_cluster(
    mirrored, new_query, new_group, commit_checkpoint, reset, lead_to_other, broker, other
):
    group, query = new_group(), new_query({mirrored: {0: 10}})
    commit_checkpoint(group, query)
    copy_commit(broker, other, group, mirrored, 6)
    lead_to_other()
    both = f"cluster {broker.cluster_id()}, .* cluster {other.cluster_id()}: .*allow_new_cluster=True"
    with pytest.raises(AirflowFailException, match=both):
        commit_checkpoint(group, query)
    for how in ({"shift_by": -1}, {"to_offset": "earliest"}):
        with pytest.raises(AirflowFailException, match=both):
            reset(group, topics=mirrored, **how)
    joint = {"checkpoint_location": query.location, "quiet_period": 0}
    files = query.files()
    with pytest.raises(AirflowFailException, match=both):
        reset(group, to_offset="earliest", **joint)
    assert (at(other, group, mirrored), query.files()) == (6, files)
    # As a new position of the pipeline: the same records are 4 lower here.
    reset(group, to_offset="committed", allow_new_cluster=True, **joint)
    assert (at(other, group, mirrored), query.stands()) == (6, {0: 6})
    query.run(2, {mirrored: {0: 6}})
    # From then on the group is of this cluster, and the checkpoint too.
    commit_checkpoint(group, query)
    assert at(other, group, mirrored) == 6


def test_a_group_that_says_nothing_is_compared_with_the_checkpoints_last_move(
    mirrored, new_query, new_group, commit, commit_checkpoint, reset, lead_to_other, other
):
    group, query = new_group(), new_query({mirrored: {0: 12}})
    commit(group, mirrored, {0: 12})
    reset(group, to_offset=9, checkpoint_location=query.location, quiet_period=0)
    query.run(2, {mirrored: {0: 9}})
    lead_to_other()
    with pytest.raises(AirflowFailException, match=f"archive 0001-seek.* cluster {other.cluster_id()}"):
        commit_checkpoint(group, query)
    assert at(other, group, mirrored) is None
    commit_checkpoint(group, query, allow_new_cluster=True)
    commit_checkpoint(group, query)
    assert at(other, group, mirrored) == 9


def test_a_receipt_is_not_restored_on_another_cluster(
    mirrored,
    new_query,
    new_group,
    commit,
    reset,
    restore,
    lead_to_other,
    broker,
    other,
    cli,
    bootstrap_servers,
):
    group, query = new_group(), new_query({mirrored: {0: 9}})
    commit(group, mirrored, {0: 9})
    joint = {"checkpoint_location": query.location, "quiet_period": 0}
    receipt = reset(group, to_offset=2, **joint)
    lead_to_other()
    files = query.files()
    with pytest.raises(AirflowFailException, match=f"the receipt is of cluster {broker.cluster_id()}"):
        restore(group, receipt=receipt, **joint)
    arguments = ["--checkpoint", query.location, "--archive", "0001-seek", "--quiet-period", 0, "--execute"]
    done = cli("group", "restore", group, *arguments, "--bootstrap-server", bootstrap_servers)
    assert (done.code, f"archive 0001-seek is of cluster {broker.cluster_id()}" in done.err) == (1, True)
    assert (at(other, group, mirrored), query.files()) == (None, files)
    restore(group, receipt=receipt, allow_new_cluster=True, **joint)
    assert (at(other, group, mirrored), query.stands()) == (9, {0: 9})


def test_a_move_to_another_cluster_is_taken_back_to_the_cluster_that_it_left(
    mirrored,
    new_query,
    new_group,
    commit_checkpoint,
    reset,
    restore,
    lead_to_other,
    lead_back,
    context,
    cli,
    other,
):
    group, query = new_group(), new_query({mirrored: {0: 12}})
    joint = {"checkpoint_location": query.location, "quiet_period": 0}
    commit_checkpoint(group, query)
    reset(group, to_offset=9, **joint)

    def move(run):
        lead_to_other()
        context["ti"].run_id = run
        return reset(group, to_offset=5, allow_new_cluster=True, **joint)

    restore(group, receipt=move("manual__2"), **joint)
    assert (query.stands(), at(other, group, mirrored)) == ({0: 9}, 5)
    # Offset 9 is a record of the cluster that the move has left, and not of this one.
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="0003-restore.* is of cluster cluster-in-memory"):
            commit_checkpoint(group, query)
        # As in a commit of many partitions, which has no time.
        text = CommitMetadata(cluster="another-cluster").text()
        other.commit(group, {TopicPartition(mirrored, 0): 5}, text)
    assert at(other, group, mirrored) == 5
    lead_back()
    commit_checkpoint(group, query)

    move("manual__3")
    done = cli("checkpoint", "restore", query.location, "--quiet-period", 0, "--execute")
    assert (done.code, query.stands()) == (0, {0: 9})
    with pytest.raises(AirflowFailException, match="is of cluster cluster-in-memory"):
        commit_checkpoint(group, query)

    receipt = move("manual__4")
    query.run(2, {mirrored: {0: 6}})
    context["ti"].run_id = "manual__5"
    for take_back in (
        lambda: restore(group, receipt=receipt, allow_stale=True, **joint),
        lambda: reset(group, to_batch=0, **joint),
    ):
        with pytest.raises(AirflowFailException, match="0006-seek .* has moved the query to another cluster"):
            take_back()
    assert query.stands() == {0: 6}


@pytest.mark.parametrize("by", ["commit", "move"])
def test_a_move_back_is_to_the_cluster_that_a_commit_or_a_move_has_recorded(
    by,
    mirrored,
    new_query,
    new_group,
    commit_checkpoint,
    reset,
    lead_to_other,
    context,
    cli,
    bootstrap_servers,
    broker,
    other,
):
    group, query = new_group(), new_query({mirrored: {0: 10}})
    joint = {"checkpoint_location": query.location, "quiet_period": 0}
    commit_checkpoint(group, query)
    copy_commit(broker, other, group, mirrored, 6)
    if by == "move":
        reset(group, to_offset=9, **joint)
    lead_to_other()
    context["ti"].run_id = "manual__2"
    if by == "commit":
        reset(group, to_offset="committed", allow_new_cluster=True, **joint)
    else:
        how = ["--to-offset", 5, "--allow-new-cluster", "--bootstrap-server", bootstrap_servers]
        cli("checkpoint", "seek", query.location, *how, "--quiet-period", 0, "--execute")
        other.commit(group, {TopicPartition(mirrored, 0): 6})
    done = cli("checkpoint", "restore", query.location, "--quiet-period", 0, "--execute")
    assert (done.code, query.stands()) == (0, {0: 10 if by == "commit" else 9})
    context["ti"].run_id = "manual__3"
    with pytest.raises(AirflowFailException, match="-restore.* is of cluster cluster-in-memory"):
        commit_checkpoint(group, query)
    assert at(other, group, mirrored) == 6


def test_where_nothing_was_recorded_the_record_before_the_position_is_not_newer_than_the_batch(
    make_topic, produce, new_query, new_group, commit, commit_checkpoint, broker, monkeypatch
):
    topic, group, legacy = make_topic(1), new_group(), new_group()
    now = int(time.time() * SECOND)
    query = new_query({topic: {0: 3}})
    query.plan(1, {topic: {0: 3}}, at=now / SECOND - 30)
    written = [now - 90 * SECOND, now - 90 * SECOND, now - 3 * SECOND, now - 2 * SECOND]
    produce(topic, {0: 4}, {0: written})
    commit(legacy, topic, {0: 2})
    for each in (group, legacy):
        with pytest.raises(AirflowFailException, match=f"record before the offset on {topic}-0 .* is newer"):
            commit_checkpoint(each, query)
    with monkeypatch.context() as patch:
        # A broker that slows reads down does not send the record in time.
        patch.setattr(OffsetsClient, "record_times", lambda *_, **__: {})
        with pytest.raises(BrokerUnavailableError, match=f"times of records in {topic}-0 could not be read"):
            commit_checkpoint(group, query)
    assert (at(broker, group, topic), at(broker, legacy, topic)) == (None, 2)
    commit_checkpoint(group, query, allow_new_cluster=True)
    commit_checkpoint(group, query)
    assert at(broker, group, topic) == 3


# A topic that was created again.


class Recreated(NamedTuple):
    """A pipeline that was reset from 50 to 30 before its topic was created again, with more records."""

    topic: str
    group: str
    query: Query
    receipt: dict[str, Any]
    both: dict[str, Any]
    """The parameters that also name the checkpoint; empty if only the group was reset."""


@pytest.fixture(params=["the group", "group and checkpoint"])
def recreated(request, make_topic, produce, recreate, new_query, new_group, commit, reset):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 60})
    commit(group, topic, {0: 50})
    query = new_query({topic: {0: 50}})
    joint = request.param == "group and checkpoint"
    both = {"checkpoint_location": query.location, "quiet_period": 0} if joint else {}
    receipt = reset(group, to_offset=30, **(both or {"topics": topic}))
    recreate(topic, 1)
    produce(topic, {0: 200})
    return Recreated(topic, group, query, receipt, both)


def test_a_reset_is_not_taken_back_in_a_topic_that_was_created_again(recreated, reset, restore, broker):
    topic, group, query, receipt, both = recreated
    files, held = query.files(), at(broker, group, topic)
    before, now = receipt["logs"]["topics"][topic], broker.log_ids([topic]).topics[topic]
    with pytest.raises(AirflowFailException, match=f"created again: the receipt is of .*{before}.*{now}"):
        restore(group, receipt=receipt, **both)
    assert (query.files(), at(broker, group, topic)) == (files, held)
    # Places that are counted in the topic of now are right.
    reset(group, to_offset="earliest", **(both or {"topics": topic}))
    assert at(broker, group, topic) == 0
    restore(group, receipt=receipt, allow_new_cluster=True, **both)
    assert at(broker, group, topic) == 50


def test_a_topic_whose_id_is_not_answered_for_a_moment_is_not_taken_for_the_one_of_before(
    recreated, restore, broker, monkeypatch
):
    topic, group, query, receipt, both = recreated
    files, held = query.files(), at(broker, group, topic)

    def silent(*_):
        raise BrokerUnavailableError("no answer")

    monkeypatch.setattr(OffsetsClient, "log_ids", silent)
    with pytest.raises(BrokerUnavailableError):
        restore(group, receipt=receipt, **both)
    assert (query.files(), at(broker, group, topic)) == (files, held)


def test_a_group_on_another_topic_of_the_name_is_not_moved_from_where_it_is(
    make_topic, produce, new_group, reset, broker, context
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 60})
    made = CommitMetadata(cluster=broker.cluster_id(), topic="AnotherTopicsIdIsThis1").text()
    broker.commit(group, {TopicPartition(topic, 0): 50}, made)
    for how in ({"shift_by": -10}, {"to_offset": "committed"}):
        with pytest.raises(AirflowFailException, match="AnotherTopicsIdIsThis1"):
            reset(group, topics=topic, **how)
    with pytest.raises(AirflowFailException, match="AnotherTopicsIdIsThis1"):
        CommitOffsetsOperator(task_id="commit", group_id=group, offsets={topic: {"0": 55}}).execute({})
    assert at(broker, group, topic) == 50
    reset(group, topics=topic, to_offset="earliest")
    context["ti"].run_id = "manual__2"
    reset(group, topics=topic, shift_by=10)
    assert at(broker, group, topic) == 10


@pytest.mark.parametrize("happens", ["created again", "records deleted"])
def test_the_logs_are_looked_at_again_right_before_a_checkpoint_is_moved(
    happens,
    make_topic,
    produce,
    recreate,
    new_query,
    new_group,
    commit,
    reset,
    broker,
    delete_records,
    monkeypatch,
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 60})
    commit(group, topic, {0: 50})
    query = new_query({topic: {0: 50}})
    files = query.sparks_files()

    def meanwhile(*_):
        if happens == "created again":
            recreate(topic, 1)
            produce(topic, {0: 200})
        else:
            delete_records(topic, {0: 40})

    monkeypatch.setattr(apply_move, "wait_until_quiet", meanwhile)
    # What retention has moved is worth another try, and so no AirflowFailException.
    refused = AirflowFailException if happens == "created again" else PlanRefusedError
    with pytest.raises(refused, match="created again|the log holds 40 to 60 now"):
        reset(group, to_offset=30, checkpoint_location=query.location)
    assert query.sparks_files() == files
    assert at(broker, group, topic) in (50, None)


def test_a_partition_that_stays_where_it_is_may_have_lost_its_records(
    make_topic, produce, new_query, new_group, reset, delete_records
):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 9, 1: 9})
    query = new_query({topic: {0: 9, 1: 2}})
    delete_records(topic, {1: 5})
    reset(group, topics=f"{topic}:0", to_offset=4, checkpoint_location=query.location, quiet_period=0)
    assert query.stands() == {0: 4, 1: 2}
