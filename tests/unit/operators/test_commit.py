"""Commits of a checkpoint or of given offsets: what is written, and what is refused."""

import json
import time
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from checkpoint_moves import apply_plan

from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    BrokerUnavailableError,
    KafkaOffsetsError,
    PlanRefusedError,
    SetupError,
)
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.moves import write
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.usefixtures("memory")


def commit(context, **parameters):
    return CommitOffsetsOperator(task_id="commit", **parameters).execute(context)


def test_a_checkpoint_behind_the_log_start_is_refused_with_what_moves_the_query_on(
    new_query, topic, new_group, context, delete_records
):
    delete_records(topic, {0: 4})
    orders = KafkaPipeline(group_id=new_group(), checkpoint_location=new_query({topic: {0: 3}}).location)

    with pytest.raises(AirflowFailException) as refused:
        commit(context, **orders)

    text = str(refused.value)
    assert "retention has deleted 1 record" in text
    assert "failOnDataLoss=false" in text
    assert "to_offset='committed' and on_out_of_range='clamp'" in text
    assert "set on_out_of_range" not in text

    ResetOffsetsOperator(
        task_id="reset", **orders, to_offset="committed", on_out_of_range="clamp", quiet_period=0
    ).execute(context)
    assert commit(context, **orders)["after"] == {topic: {"0": 4}}


def test_the_commit_says_which_run_and_query_made_it_where(new_query, topic, new_group, context, broker):
    group = new_group()
    receipt = commit(context, group_id=group, checkpoint_location=new_query({topic: {0: 10}}).location)
    assert (
        receipt["kafka_config_id"]
        == context["ti"].xcoms["return_value"]["kafka_config_id"]
        == "kafka_default"
    )
    assert "checkpoint_conn_id" not in receipt, "the checkpoint was read without a connection"
    logs = broker.log_ids([topic])
    assert receipt["logs"] == logs.as_json()
    (held,) = broker.committed(group, [TopicPartition(topic, 0)]).values()
    assert held
    assert held.metadata
    said = json.loads(held.metadata)
    assert len(said.pop("token")) == 12
    assert abs(said.pop("at") - time.time()) < 60
    assert said == {
        "dag": "flights",
        "run": "manual__1",
        "task": "commit",
        "query": "11111111-2222-3333-4444-555555555555",
        "batch": 1,
        "move": 0,
        "cluster": logs.cluster,
        "topic": logs.topics[topic],
    }


def test_committing_the_same_batch_again_changes_nothing_and_is_sent(
    new_query, topic, new_group, context, broker
):
    parameters = {"group_id": new_group(), "checkpoint_location": new_query({topic: {0: 10}}).location}
    commit(context, **parameters)
    context["ti"].run_id = "manual__2"
    assert commit(context, **parameters)["changed"] == 0
    (held,) = broker.committed(parameters["group_id"], [TopicPartition(topic, 0)]).values()
    assert held
    assert held.metadata
    assert json.loads(held.metadata)["run"] == "manual__2"


def test_two_queries_in_one_group_are_refused_unless_one_takes_over(
    new_query, topic, new_group, holds, context
):
    group = new_group()
    commit(context, group_id=group, checkpoint_location=new_query({topic: {0: 4}}).location)
    other = {
        "group_id": group,
        "checkpoint_location": new_query({topic: {0: 9}}, query_id="99999999-0").location,
    }
    with pytest.raises(AirflowFailException, match=r"run manual__1 of flights.commit .* allow_new_query"):
        commit(context, **other)
    assert holds(group) == {0: 4}
    began_at(other["checkpoint_location"], topic, 4)
    commit(context, **other, allow_new_query=True)
    assert holds(group) == {0: 9}
    # In its own group the query need not show where it began.
    (Path(other["checkpoint_location"]) / "sources" / "0" / "0").unlink()
    commit(context, **other, allow_new_query=True)


def began_at(location, topic, offset):
    """Write where a query began to read, as Spark does."""
    first = Path(location) / "sources" / "0" / "0"
    first.parent.mkdir(parents=True)
    first.write_text(f'\0v1\n{{"{topic}":{{"0":{offset}}}}}')


@pytest.mark.parametrize("reset", [False, True])
def test_a_query_that_takes_over_must_have_begun_where_the_other_query_ended(
    new_query, topic, new_group, holds, context, reset
):
    group = new_group()
    commit(context, group_id=group, checkpoint_location=new_query({topic: {0: 4}}).location)
    new = new_query({topic: {0: 9}}, query_id="99999999-0").location
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


def test_batches_that_spark_may_have_skipped_are_named_by_a_commit_and_a_drift_check(
    new_query, topic, new_group, context, caplog
):
    # As after a run on a copy that was made while the query ran, or after files of commits/ were removed.
    query, group = new_query({topic: {0: 2}}), new_group()
    query.plan(2, {topic: {0: 4}})
    query.plan(3, {topic: {0: 6}})
    query.run(4, {topic: {0: 10}})
    commit(context, group_id=group, checkpoint_location=query.location)
    text = "commits/ lacks batch 2, 3, before batch 4: a copy was incomplete, or files were removed"
    assert text in caplog.text
    (report,) = KafkaOffsetsHook().check_drift(group, query.location)["groups"]
    assert [text in warning for warning in report["warnings"]] == [True]


def test_a_batch_that_a_job_finished_after_a_restore_had_discarded_it_is_named_with_its_remedy(
    new_query, topic, new_group, context, caplog
):
    query, group = new_query({topic: {0: 4}}), new_group()
    query.finish(2)
    commit(context, group_id=group, checkpoint_location=query.location)
    text = "runs its last batch again, then fails: if a job ran during a move, stop it and remove commits/2"
    assert text in caplog.text
    (report,) = KafkaOffsetsHook().check_drift(group, query.location)["groups"]
    assert [text in warning for warning in report["warnings"]] == [True]


def test_the_receipt_is_in_xcom_also_when_the_plan_is_refused(new_query, topic, new_group, context):
    with pytest.raises(AirflowFailException, match="outside its log, which holds 0 to 10"):
        commit(context, group_id=new_group(), checkpoint_location=new_query({topic: {0: 11}}).location)
    assert context["ti"].xcoms["return_value"]["after"] == {topic: {"0": 11}}
    assert context["ti"].xcoms["return_value"]["verified"] is False


def test_a_first_commit_is_not_refused_for_times_that_lie_ahead(
    new_query, make_topic, produce, new_group, holds, context
):
    topic, group = make_topic(1), new_group()
    soon = int(time.time() * 1_000) + 1_800_000
    produce(topic, {0: 5}, timestamps_ms={0: [soon] * 5})
    commit(context, group_id=group, checkpoint_location=new_query({topic: {0: 5}}).location)
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


def test_a_checkpoint_without_a_finished_batch_is_no_success(new_query, topic, new_group, context):
    query = new_query({topic: {0: 1}})
    for batch in "01":
        (query.root / "commits" / batch).unlink()
    with pytest.raises(AirflowFailException, match=r"no batch has finished \(batch 1 was begun\)"):
        commit(context, group_id=new_group(), checkpoint_location=query.location)


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


@pytest.fixture
def left_topic(topic, make_topic, produce, broker, new_group):
    """A group with offsets of a topic that its pipeline no longer reads: group, left topic."""
    left, group = make_topic(1), new_group()
    produce(left, {0: 10})
    broker.commit(group, {TopicPartition(left, 0): 4, TopicPartition(topic, 0): 2})
    return group, left


def held(broker, group):
    return {tp.topic: commit.offset for tp, commit in broker.committed_everywhere(group).items()}


def test_nothing_is_committed_if_offsets_of_left_topics_cannot_be_deleted_here(
    topic, left_topic, broker, context, monkeypatch
):
    def cannot(*_):
        raise SetupError("kafka-python is missing")

    for name in ("check_offset_deletion", "delete_offsets"):
        monkeypatch.setattr(OffsetsClient, name, cannot, raising=False)
    group, left = left_topic
    with pytest.raises(AirflowFailException, match="kafka-python is missing"):
        commit(context, group_id=group, offsets={topic: {"0": 3}}, left_topics=left)
    assert held(broker, group) == {topic: 2, left: 4}
    # Nothing has to be deleted from a group without such offsets.
    commit(context, group_id=f"{group}-new", offsets={topic: {"0": 3}}, left_topics=left)


def test_given_offsets_do_not_delete_what_a_query_has_committed_to_a_left_topic(
    topic, left_topic, broker, context
):
    group, left = left_topic
    broker.commit(group, {TopicPartition(left, 0): 5}, CommitMetadata(query="of-another-pipeline").text())
    with pytest.raises(AirflowFailException, match="left_topics: the last commit of .* of-another-pipeline"):
        commit(context, group_id=group, offsets={topic: {"0": 3}}, left_topics=left)
    assert held(broker, group) == {topic: 2, left: 5}


def test_a_commit_that_another_run_overtakes_with_a_later_batch_is_made_again(
    topic, new_group, new_query, holds, context, monkeypatch
):
    group, query = new_group(), new_query({topic: {0: 3}})
    orders = {"group_id": group, "checkpoint_location": query.location}
    log_ranges, others = OffsetsClient.log_ranges, [1]

    def finish_a_batch_that_is_committed(self, *arguments, **how):
        if others:
            others.pop()
            query.run(2, {topic: {0: 6}})
            commit({}, **orders)
        return log_ranges(self, *arguments, **how)

    # After the checkpoint was read, and before the group is.
    monkeypatch.setattr(OffsetsClient, "log_ranges", finish_a_batch_that_is_committed)
    receipt = commit(context, **orders)
    assert (holds(group), receipt["source"]["batch_id"], receipt["changed"]) == ({0: 6}, 2, 0)


def test_offsets_that_clamp_takes_behind_the_group_are_no_old_ones(topic, new_group, broker, context):
    group = new_group()
    broker.commit(group, {TopicPartition(topic, 0): 15})
    with pytest.raises(AirflowFailException, match="would go backwards"):
        commit(context, group_id=group, offsets={topic: {"0": 20}}, on_out_of_range="clamp")


def test_a_topic_that_only_this_task_leaves_out_is_not_one_that_the_query_has_left(
    topic, left_topic, new_query, broker, context
):
    group, other = left_topic
    query = new_query({topic: {0: 3}, other: {0: 5}})
    with pytest.raises(AirflowFailException, match=f"left_topics names {other}, which the pipeline reads"):
        commit(context, group_id=group, checkpoint_location=query.location, topics=topic, left_topics=other)
    assert held(broker, group) == {topic: 2, other: 4}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (PlanRefusedError("they have changed"), "and those of left_topics stay: they have changed"),
        ("no", r"committed, and group .* still has offsets of left_topics \(.*-0: no\)"),
        (BrokerUnavailableError("no answer"), "no answer; the new offsets are committed"),
    ],
)
def test_the_commit_stands_if_the_offsets_of_a_left_topic_cannot_be_deleted(
    topic, left_topic, broker, context, monkeypatch, answer, text
):
    def fail(client, name, offsets, *_):
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(offsets, answer)

    monkeypatch.setattr(OffsetsClient, "check_offset_deletion", lambda _: None, raising=False)
    monkeypatch.setattr(write, "delete_offsets", fail)
    group, left = left_topic
    with pytest.raises(KafkaOffsetsError, match=text) as failed:
        commit(context, group_id=group, offsets={topic: {"0": 3}}, left_topics=left)
    assert failed.value.retriable
    assert held(broker, group) == {topic: 3, left: 4}


def test_a_marker_before_the_position_is_not_taken_for_a_record_newer_than_the_batch(
    make_topic, produce, send_in_transaction, new_query, new_group, context
):
    topic, group = make_topic(1), new_group()
    now = int(time.time() * 1_000)
    old, later = now - 60_000, now - 2_000
    produce(topic, {0: 2}, timestamps_ms={0: [old, later]})
    partition = TopicPartition(topic, 0)
    send_in_transaction(partition, old)
    produce(topic, {0: 1}, timestamps_ms={0: [later]})
    query = new_query({topic: {0: 4}})
    query.plan(1, {topic: {0: 4}}, at=now / 1_000 - 30)
    assert commit(context, group_id=group, checkpoint_location=query.location)["after"] == {topic: {"0": 4}}


def test_an_older_batch_is_refused_and_committed_when_allowed(new_query, topic, new_group, holds, context):
    group = new_group()
    commit(context, group_id=group, checkpoint_location=new_query({topic: {0: 10}}).location)
    older = {"group_id": group, "checkpoint_location": new_query({topic: {0: 4}}).location}
    with pytest.raises(AirflowFailException, match="nothing was changed: .* would go backwards"):
        commit(context, **older)
    assert holds(group) == {0: 10}
    commit(context, **older, allow_rewind=True)
    assert holds(group) == {0: 4}


def test_a_checkpoint_that_has_read_a_topic_before_it_was_created_again_is_refused(
    new_query, make_topic, produce, recreate, new_group, holds, context
):
    topic, group = make_topic(2), new_group()
    now = int(time.time() * 1_000)
    produce(topic, {0: 5}, timestamps_ms={0: [now - 20_000] * 5})
    query = new_query({topic: {0: 5, 1: 0}})
    query.plan(1, {topic: {0: 5, 1: 0}}, at=now / 1_000 - 10)
    commit(context, group_id=group, checkpoint_location=query.location)
    recreate(topic, 2)
    produce(topic, {0: 9})
    with pytest.raises(
        AirflowFailException, match=f"first record of {topic}-0 is newer than the batch of .* up to offset 5"
    ):
        commit(context, group_id=group, checkpoint_location=query.location)
    # What somebody has looked at and knows better.
    commit(context, group_id=group, offsets={topic: {"0": 5, "1": 0}})
    commit(context, group_id=group, checkpoint_location=query.location)
    assert holds(group) == {0: 5, 1: 0}
