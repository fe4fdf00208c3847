"""Names that select nothing, or something that is not there, are an error and never a green task."""

import json
from typing import NamedTuple

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from waiting import TaskInstance, end_of

from airflow_kafka_offsets.errors import UnknownTopicPartitionError, UsageError
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor
from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger

pytestmark = pytest.mark.usefixtures("memory")


class Names(NamedTuple):
    """A group that has read its topic to the end, another topic, and a checkpoint that knows the first."""

    topic: str
    other: str
    group: str
    uri: str


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic(2)
    produce(name, {0: 5, 1: 5})
    return name


@pytest.fixture
def other(make_topic):
    return make_topic(1)


@pytest.fixture
def names(topic, other, new_group, new_query, commit):
    group = new_group()
    commit(group, topic, {0: 5, 1: 5})
    return Names(topic, other, group, new_query({topic: {0: 5, 1: 5}}).location)


@pytest.fixture
def commits(broker, names):
    """What the group holds: {"topic-0": 5}."""
    return lambda: {str(tp): commit.offset for tp, commit in broker.committed_everywhere(names.group).items()}


def run(operator, **parameters):
    return operator(task_id="t", **parameters).execute({"ti": TaskInstance()})


MISNAMED = {
    "a topic without a key": (
        lambda n: {"group_id": {n.topic: n.group}, "topics": "ordrs"},
        "topics names 'ordrs', but group_id has no such key",
    ),
    "one of two without a key": (
        lambda n: {"group_id": {n.topic: n.group}, "topics": [n.topic, "ordrs"]},
        "topics names 'ordrs', but group_id has no such key",
    ),
    "a topic that is nowhere": (
        lambda n: {"group_id": n.group, "topics": [n.topic, "ordrs"]},
        "topic ordrs is not on the broker",
    ),
    "a key that is nowhere": (
        lambda n: {"group_id": {n.topic: n.group, "ordrs": n.group}},
        "topic ordrs is not on the broker",
    ),
    "a partition that is nowhere": (
        lambda n: {"group_id": n.group, "topics": f"{n.topic}:0,9"},
        "-9 is not on",
    ),
    "a topic that the checkpoint does not have": (
        lambda n: {"group_id": n.group, "topics": [n.topic, n.other], "checkpoint_location": n.uri},
        "which the checkpoint does not have",
    ),
    "a key that the checkpoint does not have": (
        lambda n: {"group_id": {n.topic: n.group, n.other: n.group}, "checkpoint_location": n.uri},
        "which the checkpoint does not have",
    ),
}
ASKING = {
    "lag": lambda n, **asked: run(ConsumerGroupLagSensor, max_lag=0, **asked),
    "reached": lambda n, **asked: run(OffsetsReachedSensor, target="latest", **asked),
    "reset": lambda n, **asked: run(ResetOffsetsOperator, to_offset="earliest", **asked),
    "reset to offsets": lambda n, **asked: run(ResetOffsetsOperator, to_offset={n.topic: {"0": 1}}, **asked),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize(("asked", "says"), MISNAMED.values(), ids=MISNAMED)
def test_a_mistyped_name_is_an_error_that_says_it(ask, asked, says, names, commits):
    before = commits()
    with pytest.raises(AirflowFailException, match=says):
        ask(names, **asked(names))
    assert commits() == before


def test_a_deferred_wait_follows_the_same_rule(names):
    event = end_of(ConsumerGroupLagTrigger(group_id={names.topic: names.group}, topics="ordrs", max_lag=0))
    assert event["status"] == "failed"
    assert "topics names 'ordrs'" in event["message"]


def test_a_target_has_what_topics_names(names):
    target = {names.topic: {"0": 5}, names.other: {"0": 0}}
    with pytest.raises(AirflowFailException, match="topics names 'ordrs', which the target does not have"):
        run(OffsetsReachedSensor, group_id=names.group, topics=[names.topic, "ordrs"], target=target)
    with pytest.raises(AirflowFailException, match="-1, which the target does not have"):
        run(OffsetsReachedSensor, group_id=names.group, topics=f"{names.topic}:1", target=target)
    with pytest.raises(AirflowFailException, match=f"target names '{names.other}', but group_id has"):
        run(OffsetsReachedSensor, group_id={names.topic: names.group}, target=target)
    with pytest.raises(AirflowFailException, match="names 'orderz', which the checkpoint does not have"):
        run(OffsetsReachedSensor, checkpoint_location=names.uri, target={"orderz": {"0": 1}})
    reading = run(OffsetsReachedSensor, group_id=names.group, topics=names.topic, target=target)
    assert reading["target"] == {names.topic: {"0": 5}}


def test_a_topic_is_waited_for_only_if_it_is_there(names):
    with pytest.raises(AirflowFailException, match="topic ordrs is not on the broker"):
        run(TopicReachedSensor, topics=[names.topic, "ordrs"], target="2020-01-01T00:00:00Z")


@pytest.mark.parametrize("operator", [CommitOffsetsOperator, CheckOffsetDriftOperator])
def test_a_partition_that_the_checkpoint_does_not_have_is_not_left_out_silently(operator, names, commits):
    before = commits()
    with pytest.raises(AirflowFailException, match="-9, which the checkpoint does not have"):
        run(operator, group_id=names.group, checkpoint_location=names.uri, topics=f"{names.topic}:9")
    assert commits() == before


def test_before_the_first_batch_names_have_to_be_on_the_broker(names, new_query, new_group):
    query = new_query({names.topic: {0: 5}})
    for batch in ("offsets/0", "offsets/1", "commits/0", "commits/1"):
        (query.root / batch).unlink()
    begun = {"checkpoint_location": query.location}
    for asked in ({"topics": "ordrs"}, {"topics": f"{names.topic}:9"}):
        with pytest.raises(AirflowFailException, match="is not on the broker"):
            run(CheckOffsetDriftOperator, group_id=names.group, **begun, **asked)
    assert not run(CheckOffsetDriftOperator, group_id=new_group(), topics=names.topic, **begun)["drifted"]
    # Which topics a source has is known later.
    sensor = ConsumerGroupLagSensor(task_id="t", group_id={"source:0": names.group}, **begun, max_lag=0)
    assert sensor.poke({}).is_done is False
    sensor._close()


def test_a_checkpoint_that_will_have_no_kafka_offsets_is_not_waited_for(names, new_query):
    query = new_query({names.topic: {0: 5}})
    query.write("offsets/1", "v1\n{}\n7\n" + json.dumps({"logOffset": 0}))
    for asked in ({}, {"group_id": names.group}):
        with pytest.raises(
            AirflowFailException, match="batch 1 has no Kafka offsets; it has 2 sources of other"
        ):
            run(ConsumerGroupLagSensor, max_lag=0, checkpoint_location=query.location, **asked)
    # A source without an offset yet, or a pattern that no topic matches yet, may be Kafka's.
    for line in ("-", "{}"):
        query.write("offsets/1", f"v1\n{{}}\n7\n{line}")
        sensor = ConsumerGroupLagSensor(task_id="t", checkpoint_location=query.location, max_lag=0)
        assert sensor.poke({}).is_done is False
        sensor._close()


def test_a_window_is_not_planned_for_a_topic_without_a_group(names):
    asked = {"group_id": {names.topic: names.group}}
    for start in ("committed", "earliest", {names.other: {"0": 0}}):
        with pytest.raises(AirflowFailException, match="but group_id has no such key"):
            run(PlanOffsetWindowOperator, topics=names.other, start=start, **asked)
    with pytest.raises(AirflowFailException, match="but group_id has no such key"):
        run(PlanOffsetWindowOperator, topics_pattern=names.other, **asked)


@pytest.fixture
def window(names, produce):
    produce(names.topic, {0: 1})
    return run(
        PlanOffsetWindowOperator, group_id=names.group, topics=[names.topic], end={names.topic: {"0": 6}}
    )


@pytest.mark.parametrize(
    "asked",
    [
        lambda n: {"group_id": n.group, "topics": "ordrs"},
        lambda n: {"group_id": n.group, "topics": [n.topic, "ordrs"]},
        lambda n: {"group_id": {n.topic: n.group, "ordrs": n.group}},
        lambda n: {"group_id": n.group, "topics": f"{n.topic}:0,9"},
    ],
    ids=["nothing", "one of two", "a key", "a partition"],
)
def test_a_window_is_committed_only_with_names_that_it_has(asked, names, window, commits):
    before = commits()
    with pytest.raises(AirflowFailException, match="which the window does not have"):
        run(CommitOffsetWindowOperator, window=window, fenced=False, **asked(names))
    assert commits() == before


def test_what_the_plan_has_left_out_is_no_wrong_name(names, window, commits):
    """A partition that its bounds do not name, given to plan and commit alike."""
    parts = {"group_id": names.group, "topics": f"{names.topic}:0,1"}
    planned = run(PlanOffsetWindowOperator, end={names.topic: {"0": 6}}, **parts)
    run(CommitOffsetWindowOperator, window=planned, fenced=False, **parts)
    assert commits() == {f"{names.topic}-0": 6, f"{names.topic}-1": 5}
    with pytest.raises(AirflowFailException, match="which the window does not have"):
        run(
            CommitOffsetWindowOperator,
            window=planned | {"source": {"topics": names.other}},
            group_id=names.group,
            topics=names.other,
        )


def test_a_file_is_restored_only_with_names_that_are_there(names, tmp_path, commits):
    file = tmp_path / "before.csv"
    file.write_text(f"{names.topic},0,1\n")
    saved = {"from_file": str(file), "restore_when": "always"}
    for asked, says in (
        ({"group_id": names.group, "topics": [names.topic, "ordrs"]}, "topic ordrs is not on the broker"),
        ({"group_id": {"ordrs": names.group}}, "topic ordrs is not on the broker"),
        ({"group_id": names.group, "topics": names.other}, "has none of the partitions in topics"),
    ):
        with pytest.raises(AirflowFailException, match=says):
            run(RestoreOffsetsOperator, **saved, **asked)
    # A topic of which nothing had been committed is in no file.
    run(RestoreOffsetsOperator, **saved, group_id=names.group, topics=[names.topic, names.other])
    assert commits() == {f"{names.topic}-0": 1, f"{names.topic}-1": 5}


def test_the_hook_refuses_what_is_not_there(names):
    hook = KafkaOffsetsHook()
    asked = {
        "committed": lambda topics: hook.committed_offsets(names.group, topics),
        "lag": lambda topics: hook.lag(names.group, topics),
        "log": lambda topics: hook.log_offsets(topics),
        "time": lambda topics: hook.offsets_for_time(topics, "2020-01-01T00:00:00Z"),
    }
    for ask in asked.values():
        for wrong in ([names.topic, "ordrs"], f"{names.topic}:9"):
            with pytest.raises(UnknownTopicPartitionError, match="is not on"):
                ask(wrong)
        with pytest.raises(UsageError, match="topics is empty|topics: found"):
            ask("")
    for name in ("log", "time"):
        with pytest.raises(UsageError, match="topics is missing"):
            asked[name](None)
