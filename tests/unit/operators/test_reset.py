"""Resets of a group: the ways to say where to, retries, and what is refused."""

from contextlib import nullcontext
from datetime import datetime, timedelta, timezone

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from waiting import Store

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.usefixtures("memory")

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TIMES = [int((NOON + timedelta(minutes=minute)).timestamp() * 1000) for minute in range(10)]


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic(config={"retention.ms": "-1"})
    produce(name, {0: 10, 1: 4}, {0: TIMES, 1: TIMES})
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, {0: 5, 1: 2, 2: 0})
    return name


def reset(context, **parameters):
    return ResetOffsetsOperator(task_id="reset", **parameters).execute(context)


def test_a_new_group_needs_its_topics_and_is_made(topic, new_group, holds, context):
    group = new_group()
    with pytest.raises(AirflowFailException, match="has no committed offsets"):
        reset(context, group_id=group, to_offset="earliest")
    reset(context, group_id=group, topics=[topic], to_offset="earliest")
    assert holds(group) == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize(("policy", "after"), [("fail", 5), ("skip", 5), ("clamp", 3)])
def test_a_time_is_not_compared_with_deleted_records_as_long_as_the_first_one_does_not_come(
    policy, after, topic, group, delete_records, holds, context, monkeypatch
):
    delete_records(topic, {0: 3})
    where = {"group_id": group, "topics": f"{topic}:0", "on_out_of_range": policy}
    monkeypatch.setattr(OffsetsClient, "record_times", lambda *_, **__: {})
    with nullcontext() if policy == "clamp" else pytest.raises(BrokerUnavailableError, match="could not be"):
        reset(context, to_datetime=NOON, **where)
    assert holds(group)[0] == after


def test_a_time_that_does_not_come_does_not_hide_that_records_are_deleted_elsewhere(
    topic, group, delete_records, holds, context, monkeypatch
):
    delete_records(topic, {0: 3, 1: 2})
    read = OffsetsClient.record_times
    monkeypatch.setattr(
        OffsetsClient, "record_times", lambda self, at, **_: read(self, {tp: at[tp] for tp in [*at][:1]})
    )
    with pytest.raises(AirflowFailException, match=f"the log of {topic}-0 does not start before"):
        reset(context, to_datetime=NOON, group_id=group, topics=topic)
    with pytest.raises(BrokerUnavailableError, match=f"times of records in {topic}-1 could not be read"):
        reset(context, to_datetime=NOON, group_id=group, topics=topic, on_out_of_range="skip")
    assert holds(group)[0] == 5


@pytest.mark.parametrize(
    ("policy", "after", "says"),
    [("skip", {0: 5, 1: 0}, "left alone"), ("clamp", {0: 3, 1: 0}, "moved to the log start")],
)
def test_a_partition_whose_records_of_the_time_are_deleted_is_left_alone_or_moved_to_its_log_start(
    policy, after, says, topic, group, delete_records, holds, context, capsys
):
    delete_records(topic, {0: 3})
    reset(context, to_datetime=NOON, group_id=group, topics=f"{topic}:0,1", on_out_of_range=policy)
    assert holds(group) == after | {2: 0}
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(("filled", "shift"), [("", ""), ("1", "-1")])
def test_templates_fill_in_exactly_one_scenario(filled, shift, group, context):
    task = ResetOffsetsOperator(task_id="reset", group_id=group, to_offset="{{ to }}", shift_by="{{ by }}")
    task.render_template_fields({"to": filled, "by": shift})
    with pytest.raises(AirflowFailException, match="exactly one of to_offset, to_datetime, shift_by"):
        task.execute(context)


def test_a_file_that_is_not_there_or_names_another_group_is_refused(group, context, tmp_path):
    with pytest.raises(AirflowFailException, match=r"none\.csv: there is no such file"):
        reset(context, group_id=group, from_file=str(tmp_path / "none.csv"))
    (tmp_path / "other.csv").write_text("other,t,0,1\n")
    with pytest.raises(AirflowFailException, match="no line for group"):
        reset(context, group_id=group, from_file=str(tmp_path / "other.csv"))


@pytest.mark.parametrize("relative", [{"shift_by": -1}, {"to_offset": "latest"}, {"by_duration": "P20000D"}])
def test_a_retry_does_not_move_twice_and_shows_what_was_there_at_first(
    relative, topic, group, produce, holds, context
):
    context |= {"task_state_store": Store()}
    first = reset(context, group_id=group, topics=f"{topic}:0", **relative)
    produce(topic, {0: 3})
    again = reset(context, group_id=group, topics=f"{topic}:0", **relative)
    assert again["after"] == first["after"]
    assert again["before"] == first["before"] == {topic: {"0": 5}}
    assert holds(group)[0] == first["after"][topic]["0"]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"to_offset": 99, "on_out_of_range": "skip"}, "offset 99 of .*-0.* outside its log.*: left alone"),
        (
            {"to_datetime": "2999-01-01T00:00:00Z", "on_out_of_range": "skip"},
            "to_datetime='2999-01-01.* in the future.*left alone",
        ),
        ({"shift_by": -1, "partition": 2, "on_no_commit": "skip"}, "no committed offset, left alone: "),
    ],
)
def test_a_reset_that_skips_everything_is_refused(parameters, says, topic, new_group, commit, holds, context):
    group = new_group()
    commit(group, topic, {0: 5, 1: 2})
    names = {"group_id": group, "topics": f"{topic}:{parameters.get('partition', '0,1')}"}
    asked = {name: value for name, value in parameters.items() if name != "partition"}
    task = ResetOffsetsOperator(task_id="reset", **names, **asked)
    task.outlets = KafkaPipeline(group_id=group).assets
    with pytest.raises(AirflowFailException, match=f"nothing is left to write: {says}"):
        task.execute(context)
    assert holds(group) == {0: 5, 1: 2}
    assert task.outlets == []  # no event
    plan = ResetOffsetsOperator(task_id="plan", plan_only=True, **names, **asked)
    with pytest.raises(AirflowFailException, match=f"nothing is left to write: {says}"):
        plan.execute(context)


def test_a_window_that_is_committed_just_now_is_moved_from_where_it_ends(
    topic, group, holds, context, broker, monkeypatch
):
    settled = OffsetsClient.settled_groups

    def after_a_window(client, group_ids):
        broker.commit(group, {TopicPartition(topic, 0): 7})
        return settled(client, group_ids)

    monkeypatch.setattr(OffsetsClient, "settled_groups", after_a_window)
    receipt = reset(context, group_id=group, topics=f"{topic}:0", shift_by=-1)
    assert (receipt["before"], receipt["after"]) == ({topic: {"0": 7}}, {topic: {"0": 6}})
    assert holds(group)[0] == 6
