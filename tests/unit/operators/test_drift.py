import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from drift_checks import LONG_AGO, check, verdicts
from fsspec.implementations.local import LocalFileSystem
from memory_clients import open_client

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import BrokerAuthenticationError, DriftError
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.operators import check_drift
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.readings.drift import pipeline_drift

pytestmark = pytest.mark.usefixtures("memory")


def test_a_group_where_its_checkpoint_is_has_not_drifted(checkpoint, topic, new_group, commit, context):
    orders = KafkaPipeline(group_id=new_group(), checkpoint_location=checkpoint({topic: {0: 10, 1: 5}}))
    commit(orders.group_id, topic, {0: 10, 1: 5})
    report = check(context, **orders)
    assert context["ti"].xcoms["return_value"] == report
    assert json.loads(json.dumps(report)) == report
    assert (report["version"], report["drifted"]) == (1, False)
    (pipeline,) = report["pipelines"]
    assert {name: pipeline[name] for name in orders} == dict(orders)
    assert pipeline["error"] is None
    (group,) = pipeline["groups"]
    assert (group["query_id"], group["batch_id"], group["pending_batch_id"]) == ("query-a", 0, None)
    assert group["verdicts"] == {"in step": 2}
    assert group["offsets_retention_minutes"] > 0
    assert group["last_commit_age_seconds"] is None


def test_each_verdict_is_named_with_its_partition(
    checkpoint, make_topic, produce, new_group, commit, context, delete_records, grow
):
    topic, group = make_topic(4), new_group()
    produce(topic, {0: 10, 1: 6, 2: 1, 3: 10})
    commit(group, topic, {0: 4, 1: 6, 3: 3})
    location = checkpoint({topic: {0: 10, 1: 5, 2: 0, 3: 3}})
    delete_records(topic, {3: 7})
    grow(topic, 5)
    with pytest.raises(AirflowFailException) as failed:
        check(context, group_id=group, checkpoint_location=location)
    expected = ("group behind", "group ahead", "no commit", "records lost", "partition added")
    assert verdicts(context) == dict(enumerate(expected))
    assert f"group behind on 1 of 5 partitions ({topic}-0)" in str(failed.value)
    assert f"group ahead on 1 of 5 partitions ({topic}-1)" in str(failed.value)
    assert f"records lost on 1 of 5 partitions ({topic}-3, 4 records)" in str(failed.value)
    assert "partition added on 1 of 5" in str(failed.value)
    assert "run the task that commits" in str(failed.value)


def test_a_batch_that_has_just_ended_need_not_have_been_committed(checkpoint, topic, new_group, context):
    names = {
        "group_id": new_group(),
        "checkpoint_location": checkpoint({topic: {0: 10}}, ended_at=time.time() - 60),
        "topics": f"{topic}:0",
    }
    report = check(context, **names, grace=timedelta(minutes=5))
    (group,) = report["pipelines"][0]["groups"]
    assert (group["drifted"], group["within_grace"], verdicts(context)) == (False, True, {0: "no commit"})
    with pytest.raises(AirflowFailException, match="no commit on 1 of 1"):
        check(context, **names, grace="PT30S")


@pytest.mark.parametrize(
    ("committed", "drifted"), [(6, False), (5, True), (None, True)], ids=["in-time", "late", "never"]
)
def test_a_query_that_never_pauses_does_not_hide_that_its_batches_are_not_committed(
    checkpoint, topic, new_group, commit, context, committed, drifted
):
    group, now = new_group(), time.time()
    for batch, minutes in enumerate((8, 6, 4, 2, 0)):
        location = checkpoint({topic: {0: 5 + batch}}, batch=batch, ended_at=now - 60 * minutes)
    if committed is not None:
        commit(group, topic, {0: committed})
    names = {"group_id": group, "checkpoint_location": location, "topics": f"{topic}:0"}
    report = check(context, **names, grace="5m", on_drift="warn")
    (found,) = report["pipelines"][0]["groups"]
    assert (found["drifted"], found["within_grace"]) == (drifted, not drifted)


def test_what_was_read_before_a_move_within_grace_is_not_overdue(
    checkpoint, topic, new_group, commit, context, broker
):
    group, now = new_group(), time.time()
    for batch, minutes in enumerate((8, 6, 4)):
        location = checkpoint({topic: {0: 5 + batch}}, batch=batch, ended_at=now - 60 * minutes)
    commit(group, topic, {0: 7})
    spark = SparkCheckpoint(location)
    selection, place = GroupSelection.parse(group, f"{topic}:0"), Place.parse(1, "to_offset")
    plan = plan_reset(broker, spark, selection, place, now=datetime.now(tz=timezone.utc))
    apply_pipeline(broker, plan, CommitMetadata(tool="group reset"), spark, 0)
    checkpoint({topic: {0: 9}}, batch=3, ended_at=now)
    (report,) = pipeline_drift(broker, spark, selection, grace=timedelta(minutes=5))
    assert (report.drifted, report.within_grace) == (False, True)


def test_warn_says_it_in_the_log_and_succeeds(checkpoint, topic, new_group, context, capsys, caplog):
    location = checkpoint({topic: {0: 10, 1: 5}})
    report = check(context, group_id=new_group(), checkpoint_location=location, on_drift="warn")
    assert report["drifted"]
    assert "no commit on 2 of 2" in capsys.readouterr().out + caplog.text


def test_all_pipelines_are_checked_before_one_that_cannot_be_fails_the_task(
    checkpoint, topic, new_group, commit, context, tmp_path
):
    fine, behind, broken = new_group(), new_group(), new_group()
    for group, offset in ((fine, 10), (behind, 4)):
        commit(group, topic, {0: offset})
    location = checkpoint({topic: {0: 10}})
    pipelines = [
        {"group_id": broken, "checkpoint_location": str(tmp_path / "nowhere")},
        KafkaPipeline(group_id=behind, checkpoint_location=location, topics=f"{topic}:0"),
        KafkaPipeline(
            group_id={topic: fine},
            checkpoint_location=location,
            topics=f"{topic}:0",
            kafka_config_id="nobody",
        ),
        {"group_id": {topic: fine}, "checkpoint_location": location, "topics": [f"{topic}:0"]},
    ]
    with pytest.raises(AirflowFailException) as failed:
        check(context, pipelines=pipelines)
    text = str(failed.value)
    assert "3 of 4 pipelines" in text
    assert f"group {broken!r} could not be checked" in text
    assert "nobody" in text
    assert f"group behind on 1 of 1 partitions ({topic}-0)" in text
    shown = context["ti"].xcoms["return_value"]["pipelines"]
    assert [bool(pipeline["error"]) for pipeline in shown] == [True, False, True, False]
    assert [pipeline["drifted"] for pipeline in shown] == [False, True, False, False]
    assert [pipeline["group_id"] for pipeline in shown] == [broken, behind, {topic: fine}, {topic: fine}]
    with pytest.raises(AirflowFailException, match="^1 of 2 pipelines failed the check: "):
        check(context, pipelines=[pipelines[0], pipelines[3]], on_drift="warn")


def test_an_error_that_nobody_expects_is_only_in_the_log_and_is_tried_again(
    checkpoint, topic, context, monkeypatch
):
    def fails(*_, **how):
        raise ValueError("password=secret")

    monkeypatch.setattr(check_drift, "pipeline_drift", fails)
    with pytest.raises(DriftError, match="could not be checked: ValueError, see the log") as failed:
        check(context, group_id="g", checkpoint_location=checkpoint({topic: {0: 10}}))
    assert failed.value.retriable
    assert "secret" not in str(failed.value)


def test_a_pipeline_in_a_list_is_rendered_whether_dict_or_not(checkpoint, topic, new_group, commit, context):
    group, location = new_group(), checkpoint({topic: {0: 10}})
    commit(group, topic, {0: 10})
    names: dict[str, Any] = {
        "group_id": "{{ group }}",
        "checkpoint_location": "{{ place }}",
        "topics": ["{{ topic }}:0"],
    }
    context |= {"group": group, "place": location, "topic": topic}
    for pipelines in ([KafkaPipeline(**names), names], json.dumps([names])):
        task = CheckOffsetDriftOperator(task_id="check", pipelines=pipelines, grace="{{ 0 }}")
        task.render_template_fields(context)
        report = task.execute(context)
        assert [one["group_id"] for one in report["pipelines"]] == [group] * len(report["pipelines"])
        assert not report["drifted"]


def test_a_checkpoint_whose_first_batch_is_pending_has_nothing_to_be_in_step_with(
    checkpoint, topic, new_group, commit, context
):
    location = checkpoint({topic: {0: 10, 1: 6}}, done=False)
    report = check(context, group_id={topic: new_group()}, checkpoint_location=location)
    (group,) = report["pipelines"][0]["groups"]
    assert (group["batch_id"], group["pending_batch_id"], group["partitions"]) == (None, 0, [])
    former = new_group()
    commit(former, topic, {0: 4})
    with pytest.raises(
        AirflowFailException, match=r"no batch has finished; batch 0 is pending\): group ahead on 1 of 1"
    ):
        check(context, group_id=former, checkpoint_location=location)


def test_sources_with_groups_of_their_own_are_reported_apart(
    checkpoint, topic, make_topic, new_group, commit, context
):
    other, group, second = make_topic(1), new_group(), new_group()
    commit(group, topic, {0: 10, 1: 6})
    location = checkpoint({topic: {0: 10, 1: 6}, other: {0: 0}})
    report = check(
        context, group_id={topic: group, other: second}, checkpoint_location=location, on_drift="warn"
    )
    groups = {one["group_id"]: one["verdicts"] for one in report["pipelines"][0]["groups"]}
    assert groups == {group: {"in step": 2}, second: {"no commit": 1}}


def test_the_age_of_the_last_commit_is_shown_against_what_the_broker_keeps(
    checkpoint, topic, new_group, commit
):
    group, location = new_group(), checkpoint({topic: {0: 10, 1: 6}})
    now = int(time.time())
    commit(group, topic, {0: 10}, CommitMetadata(dag="orders", at=now - 6 * 86_400).text())
    commit(group, topic, {1: 6}, CommitMetadata(dag="orders", at=now - 5 * 86_400).text())
    report = KafkaOffsetsHook().check_drift(group, location)
    (shown,) = report["groups"]
    assert shown["last_commit_age_seconds"] - 5 * 86_400 in range(60)
    assert not report["drifted"]
    kept = shown["offsets_retention_minutes"]
    assert bool(shown["warnings"]) == (kept < 2 * 5 * 24 * 60)


def test_a_group_that_followed_a_running_query_meanwhile_is_not_taken_to_be_ahead(
    checkpoint, topic, new_group, commit, broker
):
    group = new_group()

    class Running(SparkCheckpoint):
        def read(self):
            """Read, and have the query finish one more batch, and commit it, before the answer is used."""
            state = super().read()
            checkpoint({topic: {0: 9, 1: 6}}, batch=1)
            commit(group, topic, {0: 9, 1: 6})
            return state

    running = Running(checkpoint({topic: {0: 4, 1: 6}}))
    (report,) = pipeline_drift(broker, running, GroupSelection(group))
    assert (report.batch.batch_id, report.drifted) == (1, False)


def test_where_the_storage_tells_no_time_a_batch_counts_from_when_it_was_planned(
    checkpoint, topic, new_group, broker
):
    class Timeless(LocalFileSystem):
        def modified(self, path):
            raise NotImplementedError

    location = checkpoint({topic: {0: 4}}, planned_at=LONG_AGO, ended_at=time.time())
    (report,) = pipeline_drift(
        broker,
        SparkCheckpoint(location, fs=Timeless()),
        GroupSelection.parse(new_group(), f"{topic}:0"),
        grace=timedelta(minutes=5),
    )
    assert report.batch.ended_at == datetime.fromtimestamp(LONG_AGO, tz=timezone.utc)
    assert report.drifted


def test_a_topic_that_was_deleted_does_not_hide_the_others(
    checkpoint, topic, make_topic, new_group, commit, context, memory
):
    other, group = make_topic(1), new_group()
    location = checkpoint({topic: {0: 10}, other: {0: 0}})
    commit(group, topic, {0: 10})
    commit(group, other, {0: 0})
    memory.delete_topic(topic)
    with pytest.raises(AirflowFailException, match="topic gone on 1 of 2"):
        check(context, group_id=group, checkpoint_location=location, topics=[f"{topic}:0", other])
    (shown,) = context["ti"].xcoms["return_value"]["pipelines"][0]["groups"]
    assert shown["verdicts"] == {"topic gone": 1, "in step": 1}


def test_a_topic_that_was_created_again_with_more_records_is_no_group_that_is_behind(
    checkpoint, topic, new_group, commit, context, recreate, produce
):
    group = new_group()
    location = checkpoint({topic: {0: 10, 1: 5}}, planned_at=time.time() - 5)
    commit(group, topic, {0: 10, 1: 5})
    recreate(topic, 2)
    produce(topic, {0: 30, 1: 30})
    commit(group, topic, {0: 10})
    with pytest.raises(AirflowFailException) as failure:
        check(context, group_id=group, checkpoint_location=location)
    assert set(verdicts(context).values()) == {"topic recreated"}
    assert "run the task that commits" not in str(failure.value)


def test_the_id_of_the_topic_tells_one_that_was_created_again(
    checkpoint, topic, new_group, commit, context, broker
):
    group, location = new_group(), checkpoint({topic: {0: 10, 1: 5}})
    ids = broker.log_ids([topic])
    same = CommitMetadata(query="query-a").texts([TopicPartition(topic, 0)], ids)[topic]
    commit(group, topic, {0: 10, 1: 5}, same)
    assert not check(context, group_id=group, checkpoint_location=location)["drifted"]
    commit(group, topic, {1: 5}, same.replace(ids.topics[topic], "another-one"))
    with pytest.raises(AirflowFailException):
        check(context, group_id=group, checkpoint_location=location)
    assert verdicts(context) == {0: "in step", 1: "topic recreated"}


def test_a_topic_that_the_query_no_longer_reads_is_drift_while_records_wait(
    checkpoint, topic, new_group, commit, context, make_topic, produce
):
    group, other = new_group(), make_topic(1)
    produce(other, {0: 7})
    names = {"group_id": group, "checkpoint_location": checkpoint({topic: {0: 10, 1: 6}})}
    commit(group, topic, {0: 10, 1: 6})
    commit(group, other, {0: 3})
    with pytest.raises(AirflowFailException, match=rf"not read on 1 of 3 partitions \({other}-0\)"):
        check(context, **names)
    assert not check(context, **names, topics=[topic])["drifted"]
    commit(group, other, {0: 7})
    report = check(context, **names)
    assert not report["drifted"]
    assert report["pipelines"][0]["groups"][0]["verdicts"] == {"in step": 2, "not read": 1}


def test_a_group_that_follows_another_query_is_not_in_step_where_the_offsets_are_equal(
    checkpoint, topic, new_group, commit, context
):
    group = new_group()
    commit(group, topic, {0: 10, 1: 6}, CommitMetadata(query="query-b").text())
    with pytest.raises(AirflowFailException, match="other query on 2 of 2 partitions"):
        check(context, group_id=group, checkpoint_location=checkpoint({topic: {0: 10, 1: 6}}))


def test_without_the_right_to_read_records_no_pipeline_has_headroom(
    memory, checkpoint, make_topic, produce, new_group
):
    topic, group = make_topic(1, {"retention.ms": "3600000"}), new_group()
    produce(topic, {0: 1})
    client = open_client(
        memory,
        [("topic", topic, "DescribeConfigs"), ("topic", topic, "Describe"), ("group", group, "Describe")],
    )
    query = SparkCheckpoint(checkpoint({topic: {0: 0}}))
    with pytest.raises(BrokerAuthenticationError, match="grant it Read on the topics"):
        pipeline_drift(client, query, GroupSelection(group), min_headroom=60)
