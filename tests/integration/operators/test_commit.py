from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from checkpoint_moves import apply_plan
from written_query import QUERY_ID, Query

from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def checkpoint(tmp_path):
    """Writes a checkpoint as Spark does: checkpoint({0: 5}, topic=..., batch=0, at=seconds since 1970)."""

    def write(offsets, topic, batch=0, query_id=QUERY_ID, at=None):
        query = Query(tmp_path / f"checkpoint-{query_id[:8]}", query_id)
        query.run(batch, {topic: offsets}, at=at)
        return query.location

    return write


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic()
    produce(name, {0: 10, 1: 6})
    return name


def commit(context, **parameters):
    return CommitOffsetsOperator(task_id="commit", **parameters).execute(context)


def test_a_checkpoints_batch_is_committed_whole_and_shown_by_kafkas_tool(
    checkpoint, topic, new_group, holds, context
):
    orders = KafkaPipeline(group_id=new_group(), checkpoint_location=checkpoint({0: 10, 1: 5, 2: 0}, topic))
    receipt = commit(context, **orders)
    assert holds(orders.group_id) == {0: 10, 1: 5, 2: 0}
    assert receipt["before"] == {topic: {"0": None, "1": None, "2": None}}
    assert receipt["after"] == {topic: {"0": 10, "1": 5, "2": 0}}
    assert (receipt["changed"], receipt["verified"]) == (3, True)
    assert receipt["source"]["batch_id"] == 0


def test_a_checkpoint_behind_the_log_start_is_refused_with_what_moves_the_query_on(
    checkpoint, topic, new_group, context, delete_records
):
    delete_records(topic, {0: 4})
    orders = KafkaPipeline(group_id=new_group(), checkpoint_location=checkpoint({0: 3}, topic))

    with pytest.raises(AirflowFailException) as refused:
        commit(context, **orders)

    text = str(refused.value)
    assert "retention has deleted 1 records" in text
    assert "failOnDataLoss=false" in text
    assert "reset to committed and on_out_of_range='clamp'" in text
    assert "set on_out_of_range='clamp'" not in text

    ResetOffsetsOperator(
        task_id="reset", **orders, to_offset="committed", on_out_of_range="clamp", quiet_period=0
    ).execute(context)
    assert commit(context, **orders)["after"] == {topic: {"0": 4}}


def test_the_receipt_names_the_connections_that_the_task_used(checkpoint, topic, new_group, context):
    orders = KafkaPipeline(group_id=new_group(), checkpoint_location=checkpoint({0: 10}, topic))

    receipt = commit(context, **orders)

    assert receipt["kafka_config_id"] == context["ti"].xcoms["return_value"]["kafka_config_id"]
    assert receipt["kafka_config_id"] == "kafka_default"
    assert "checkpoint_conn_id" not in receipt, "the checkpoint was read without a connection"


def test_the_commit_says_which_run_and_query_made_it(checkpoint, topic, new_group, context, broker):
    group = new_group()
    commit(context, group_id=group, checkpoint_location=checkpoint({0: 10}, topic))
    (held,) = broker.committed(group, [TopicPartition(topic, 0)]).values()
    assert held
    assert held.metadata
    said = json.loads(held.metadata)
    assert len(said.pop("token")) == 12
    assert abs(said.pop("at") - time.time()) < 60
    assert said.pop("cluster")
    assert said.pop("topic")
    assert said == {
        "dag": "flights",
        "run": "manual__1",
        "task": "commit",
        "query": "11111111-2222-3333-4444-555555555555",
        "batch": 0,
        "move": 0,
    }


def test_committing_the_same_batch_again_changes_nothing_and_is_sent(
    checkpoint, topic, new_group, context, broker
):
    parameters = {"group_id": new_group(), "checkpoint_location": checkpoint({0: 10}, topic)}
    commit(context, **parameters)
    context["ti"].run_id = "manual__2"
    assert commit(context, **parameters)["changed"] == 0
    (held,) = broker.committed(parameters["group_id"], [TopicPartition(topic, 0)]).values()
    assert held
    assert held.metadata
    assert json.loads(held.metadata)["run"] == "manual__2"


def test_an_older_batch_is_refused_and_committed_when_allowed(checkpoint, topic, new_group, holds, context):
    group = new_group()
    commit(context, group_id=group, checkpoint_location=checkpoint({0: 10}, topic, batch=0))
    older = {"group_id": group, "checkpoint_location": checkpoint({0: 4}, topic, batch=1)}
    with pytest.raises(AirflowFailException, match="nothing was changed: .* would go backwards"):
        commit(context, **older)
    assert holds(group) == {0: 10}
    commit(context, **older, allow_rewind=True)
    assert holds(group) == {0: 4}


def test_two_queries_in_one_group_are_refused_unless_one_takes_over(
    checkpoint, topic, new_group, holds, context
):
    group = new_group()
    commit(context, group_id=group, checkpoint_location=checkpoint({0: 4}, topic))
    other = {"group_id": group, "checkpoint_location": checkpoint({0: 9}, topic, query_id="99999999-0")}
    with pytest.raises(AirflowFailException, match=r"run manual__1 of flights.commit .* allow_new_query"):
        commit(context, **other)
    assert holds(group) == {0: 4}
    began_at(other["checkpoint_location"], topic, 4)
    commit(context, **other, allow_new_query=True)
    assert holds(group) == {0: 9}


def began_at(location, topic, offset):
    """Write where a query began to read, as Spark does."""
    first = Path(location) / "sources" / "0" / "0"
    first.parent.mkdir(parents=True)
    first.write_text(f'\0v1\n{{"{topic}":{{"0":{offset}}}}}')


@pytest.mark.parametrize("reset", [False, True])
def test_a_query_that_takes_over_must_have_begun_where_the_other_query_ended(
    checkpoint, topic, new_group, holds, context, reset
):
    group = new_group()
    commit(context, group_id=group, checkpoint_location=checkpoint({0: 4}, topic))
    new = checkpoint({0: 9}, topic, query_id="99999999-0")
    take_over = {"group_id": group, "checkpoint_location": new, "allow_new_query": True}
    with pytest.raises(AirflowFailException, match="sources/0/0: does not exist; .* the query has skipped"):
        commit(context, **take_over)
    began_at(new, topic, 7)
    with pytest.raises(
        AirflowFailException,
        match=r"the group is at 4, the query began at 7\), so neither .* has read 3 records: to read them, ",
    ):
        commit(context, **take_over)
    assert holds(group) == {0: 4}
    if reset:
        task = ResetOffsetsOperator(
            task_id="reset",
            group_id=group,
            checkpoint_location=new,
            to_offset="committed",
            quiet_period=0,
            idempotent_sink=True,
        )
        task.execute(context)
        assert SparkCheckpoint(new).read().kafka_offsets == {"0": {TopicPartition(topic, 0): 4}}
    else:
        commit(context, group_id=group, offsets={topic: {0: 7}})
        commit(context, **take_over)
        assert holds(group) == {0: 9}


def test_the_receipt_is_in_xcom_also_when_the_plan_is_refused(checkpoint, topic, new_group, context):
    with pytest.raises(AirflowFailException, match="outside its log, which holds 0 to 10"):
        commit(context, group_id=new_group(), checkpoint_location=checkpoint({0: 11}, topic))
    assert context["ti"].xcoms["return_value"]["after"] == {topic: {"0": 11}}
    assert context["ti"].xcoms["return_value"]["verified"] is False


def test_a_topic_that_the_broker_does_not_have_is_refused(checkpoint, new_group, context):
    with pytest.raises(AirflowFailException, match=r"event-hub-0 is not on the broker"):
        commit(context, group_id=new_group(), checkpoint_location=checkpoint({0: 11}, "event-hub"))


def test_a_checkpoint_that_has_read_a_topic_before_it_was_created_again_is_refused(
    checkpoint, make_topic, produce, recreate, new_group, holds, context
):
    topic, group = make_topic(2), new_group()
    now = int(time.time() * 1_000)
    produce(topic, {0: 5}, timestamps_ms={0: [now - 20_000] * 5})
    location = checkpoint({0: 5, 1: 0}, topic, at=now / 1_000 - 10)
    commit(context, group_id=group, checkpoint_location=location)
    recreate(topic, 2)
    produce(topic, {0: 9})
    with pytest.raises(
        AirflowFailException, match=f"first record of {topic}-0 is newer than the batch of .* up to offset 5"
    ):
        commit(context, group_id=group, checkpoint_location=location)
    # What somebody has looked at and knows better.
    commit(context, group_id=group, offsets={topic: {"0": 5, "1": 0}})
    commit(context, group_id=group, checkpoint_location=location)
    assert holds(group) == {0: 5, 1: 0}


def test_a_first_commit_is_not_refused_for_times_that_lie_ahead(
    checkpoint, make_topic, produce, new_group, holds, context
):
    topic, group = make_topic(1), new_group()
    soon = int(time.time() * 1_000) + 1_800_000
    produce(topic, {0: 5}, timestamps_ms={0: [soon] * 5})
    commit(context, group_id=group, checkpoint_location=checkpoint({0: 5}, topic))
    assert holds(group) == {0: 5}


def test_topics_leaves_the_rest_out(topic, new_group, holds, context):
    group = new_group()
    commit(context, group_id=group, topics=f"{topic}:1", offsets={topic: {"0": 3, "1": 3}})
    assert holds(group) == {1: 3}


def test_a_topic_may_have_a_group_of_its_own(topic, make_topic, new_group, holds, context):
    other, group, second = make_topic(1), new_group(), new_group()
    receipt = commit(
        context, group_id={topic: group, other: second}, offsets={topic: {"0": 3}, other: {"0": 0}}
    )
    assert (holds(group), holds(second)) == ({0: 3}, {0: 0})
    assert {part["group_id"] for part in receipt["groups"]} == {group, second}


def test_offsets_may_come_as_text_from_a_template(topic, new_group, holds, context):
    group = new_group()
    commit(context, group_id=group, offsets=json.dumps({topic: {"0": 3}}))
    assert holds(group) == {0: 3}


@pytest.mark.parametrize(
    ("location", "says"),
    [("/nowhere/at/all", "/nowhere/at/all"), ("s3a://key:secret@bucket/x", "holds a password")],
)
def test_a_bad_location_from_a_template_fails_at_once_with_a_plain_sentence(
    location, says, new_group, context
):
    operator = CommitOffsetsOperator(
        task_id="commit", group_id=new_group(), checkpoint_location="{{ location }}"
    )
    operator.checkpoint_location = location
    with pytest.raises(AirflowFailException, match=says) as error:
        operator.execute(context)
    assert "secret" not in str(error.value)


def test_a_checkpoint_without_a_finished_batch_is_no_success(checkpoint, topic, new_group, context):
    location = checkpoint({0: 1}, topic)
    (Path(location) / "commits" / "0").unlink()
    with pytest.raises(AirflowFailException, match=r"no batch has finished \(batch 0 was begun\)"):
        commit(context, group_id=new_group(), checkpoint_location=location)


def test_a_dead_broker_is_an_error_that_airflow_retries(connect, monkeypatch, new_group, context):
    connect("127.0.0.1:1")
    monkeypatch.setattr("airflow_kafka_offsets.hooks.offsets.CALL_TIMEOUT", 3.0)
    with pytest.raises(BrokerUnavailableError, match="127.0.0.1:1"):
        commit(context, group_id=new_group(), offsets={"t": {"0": 1}})


def test_a_commit_that_skips_everything_is_refused(checkpoint, topic, new_group, broker, context):
    group = new_group()
    outside = {"group_id": group, "checkpoint_location": checkpoint({0: 99}, topic)}
    with pytest.raises(
        AirflowFailException, match="nothing is left to write: offset 99 of .* outside its log.*: left alone"
    ):
        commit(context, **outside, on_out_of_range="skip")
    assert broker.committed(group, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): None}


def test_a_commit_that_a_move_of_its_checkpoint_overtakes_is_made_again(
    make_topic, produce, new_group, new_query, holds, context, monkeypatch
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    query = new_query({topic: {0: 5}})
    commit(context, group_id=group, offsets={topic: {"0": 2}})
    client_commit, moves = OffsetsClient.commit, [lambda: apply_plan(query.root, to_seven(query))]

    def commit_and_move(self, *arguments, **how):
        client_commit(self, *arguments, **how)
        if moves:
            moves.pop()()

    def to_seven(query):
        return plan_seek(SparkCheckpoint(query.location), {"0": {TopicPartition(topic, 0): 7}})

    monkeypatch.setattr(OffsetsClient, "commit", commit_and_move)
    receipt = commit(context, group_id=group, checkpoint_location=query.location)

    assert (holds(group), moves) == ({0: 7}, [])
    assert receipt["after"] == {topic: {"0": 7}}
    assert receipt["before"] == {topic: {"0": 2}}, "5 is what the first attempt has written"
