"""What a gate and a check of drift do about records that retention deletes soon."""

import time
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from waiting import WAYS, TaskInstance, reading_of, wait_by

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

pytestmark = pytest.mark.usefixtures("memory", "fast_polls")

KEPT = {"retention.ms": "86400000"}


def gate(group, **parameters):
    return ConsumerGroupLagSensor(task_id="gate", group_id=group, **{"min_headroom": "PT6H"} | parameters)


@pytest.fixture
def behind(group, make_topic, produce, commit):
    """A group whose oldest unread record expires in an hour, and the one after it in 20 hours."""
    with_times = make_topic(1, KEPT)
    produce(with_times, {0: 2}, timestamps_ms={0: [ago(23), ago(4)]})
    commit(group, with_times, {0: 0})
    return with_times


def ago(hours):
    return int((time.time() - hours * 3600) * 1000)


@pytest.mark.parametrize("way", WAYS)
def test_headroom_is_waited_for_in_each_way_with_the_same_result(way, behind, group, commit, context):
    value = wait_by(way, lambda **more: gate(group, **more), context, lambda: commit(group, behind, {0: 1}))
    assert value["headroom"] == pytest.approx(20 * 3600, abs=60)
    assert value["headroom_state"] == "time"
    (partition,) = value["partitions"]
    assert partition["headroom"] == value["headroom"]
    assert (partition["headroom_state"], partition["headroom_reason"]) == ("time", None)
    assert "time_lag" not in partition


def test_it_goes_together_with_the_other_thresholds(behind, group, commit):
    done, value = reading_of(gate(group, max_time_lag="PT1H", max_lag=5))
    assert not done
    assert value["headroom"] == pytest.approx(3600, abs=60)
    assert value["time_lag"] == pytest.approx(23 * 3600, abs=60)
    commit(group, behind, {0: 2})
    done, value = reading_of(gate(group, max_time_lag="PT1H", max_lag=5))
    assert done
    assert (value["headroom"], value["headroom_state"], value["time_lag"]) == (None, "none", 0)


def test_a_gate_is_not_green_while_the_headroom_is_unknown(group, make_topic, produce, commit, capsys):
    topic = make_topic(1, {"retention.bytes": "1000000"})
    produce(topic, {0: 1})
    commit(group, topic, {0: 0})
    done, value = reading_of(gate(group))
    assert (done, value["headroom_state"]) == (False, "unknown")
    assert f"headroom of {topic}-0 is unknown: retention.bytes=1000000" in capsys.readouterr().out
    commit(group, topic, {0: 1})
    assert reading_of(gate(group))[0]


def test_records_that_are_lost_hold_the_gate_until_they_are_passed(
    group, delete_records, make_topic, produce, commit
):
    topic = make_topic(1, KEPT)
    produce(topic, {0: 5})
    commit(group, topic, {0: 2})
    delete_records(topic, {0: 5})
    opened, value = reading_of(gate(group))
    assert (opened, value["headroom"], value["headroom_state"], value["lost"]) == (False, 0, "lost", 3)
    commit(group, topic, {0: 5})
    assert reading_of(gate(group))[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_group_of_which_no_record_is_read_in_time_waits_as_long_as_it_must(
    way, behind, group, commit, context, monkeypatch, capsys
):
    monkeypatch.setattr(OffsetsClient, "record_times", lambda *_, **__: {})
    value = wait_by(way, lambda **more: gate(group, **more), context, lambda: commit(group, behind, {0: 1}))
    assert (value["headroom"], value["headroom_state"]) == (6 * 3600, "time")
    assert value["partitions"][0]["headroom_reason"].startswith("at least 6 h: the time of the oldest")
    if way == "poke":
        why = f"headroom of {behind}-0 is unknown: less than 6 h: the time of the oldest unread record"
        assert why in capsys.readouterr().out


# -- drift --


@pytest.mark.parametrize(
    ("hours", "verdict", "says"),
    [
        (6, "expiring", r"expiring on 1 of 1 partitions \(.* left\).*run the query now"),
        (0.5, None, ""),
    ],
)
def test_a_pipeline_with_too_little_headroom_has_drifted(behind, group, new_query, hours, verdict, says):
    task = CheckOffsetDriftOperator(
        task_id="t",
        group_id=group,
        checkpoint_location=new_query({behind: {0: 0}}).location,
        min_headroom=hours * 3600,
    )
    context: Any = {"ti": TaskInstance()}
    if verdict is None:
        report = task.execute(context)
    else:
        with pytest.raises(AirflowFailException, match=says):
            task.execute(context)
        report = context["ti"].xcoms["return_value"]
    (found,) = report["pipelines"][0]["groups"]
    assert found["verdicts"] == {verdict or "in step": 1}
    assert found["headroom"] == pytest.approx(3600, abs=60)
    assert found["partitions"][0]["headroom_state"] == "time"


def test_the_settings_of_all_topics_of_a_pipeline_are_one_question(
    make_topic, new_group, commit, new_query, monkeypatch
):
    asked = []
    settings = OffsetsClient.topic_settings

    def count(client, topics):
        asked.append(set(topics))
        return settings(client, topics)

    monkeypatch.setattr(OffsetsClient, "topic_settings", count)
    topics = [make_topic(1, KEPT) for _ in range(3)]
    groups = {topic: new_group() for topic in topics}
    for topic, name in groups.items():
        commit(name, topic, {0: 0})
    location = new_query({topic: {0: 0} for topic in topics}).location
    task = CheckOffsetDriftOperator(
        task_id="t", group_id=groups, checkpoint_location=location, min_headroom=60
    )
    assert not task.execute({"ti": TaskInstance()})["drifted"]
    assert asked == [set(topics)]
