"""What gates see: age, retention, silence, topics that change; how a wait ends, in each way of waiting."""

import contextlib
import json
import re
import threading
import time
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.sdk import DAG
from waiting import (
    FOREVER,
    OLD,
    WAYS,
    TaskInstance,
    a_minute_ago,
    deferred,
    end_of,
    ends,
    lag_sensor,
    no_answer,
    now_ms,
    poke_once,
    reached_sensor,
    reading_of,
    topic_sensor,
    wait_by,
)

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor

pytestmark = pytest.mark.usefixtures("memory", "fast_polls")


def test_a_time_lag_is_the_age_of_the_first_record_that_waits(group, make_topic, produce, commit):
    topic = make_topic(partitions=2, config=FOREVER)
    old, new = now_ms() - 3_600_000, now_ms() - 60_000
    produce(topic, {0: 3, 1: 2}, timestamps_ms={0: [old, old + 1, new], 1: [new, new]})
    commit(group, topic, {0: 1, 1: 0})
    done, value = reading_of(lag_sensor(group, max_time_lag="PT30M"))
    assert not done
    assert value["time_lag"] == pytest.approx(3600, abs=60)
    # What is young enough is not looked at more closely.
    assert [partition["time_lag"] for partition in value["partitions"]] == [value["time_lag"], None]
    commit(group, topic, {0: 2, 1: 0})
    done, value = reading_of(lag_sensor(group, max_time_lag=1800))
    assert done
    assert value["total_lag"] == 3


def test_records_that_retention_took_are_lost_and_not_waited_for(
    group, make_topic, produce, commit, delete_records
):
    topic = make_topic(partitions=1)
    produce(topic, {0: 10})
    commit(group, topic, {0: 2})
    delete_records(topic, {0: 10})
    done, value = reading_of(lag_sensor(group))
    assert done
    assert (value["total_lag"], value["lost"], value["partitions"][0]["lost"]) == (0, 8, 8)
    done, value = reading_of(reached_sensor(group))
    assert done
    assert (value["remaining"], value["lost"]) == (0, 8)


def test_the_reading_of_several_groups_has_those_of_each(make_topic, new_group, commit):
    groups: Any = {make_topic(partitions=1): new_group() for _ in range(2)}
    for topic, group in groups.items():
        commit(group, topic, {0: 0})
    done, value = reading_of(lag_sensor(groups, max_lag=0))
    assert done
    assert {each["name"]: len(each["partitions"]) for each in value["groups"]} == dict.fromkeys(
        groups.values(), 1
    )
    assert "partitions" not in value


def test_an_empty_topic_is_not_waited_for(group, make_topic, commit):
    topic = make_topic(partitions=2)
    commit(group, make_topic(partitions=1), {0: 0})
    assert reading_of(lag_sensor(group, topics=topic))[0] is True
    assert reading_of(lag_sensor(group, topics=topic, max_time_lag=1))[0] is True
    assert reading_of(reached_sensor(group, topics=topic))[0] is True


@pytest.mark.parametrize("records", [0, 3])
def test_a_group_that_has_never_committed_is_waited_for(records, group, make_topic, produce, commit, capsys):
    topic = make_topic(partitions=1)
    produce(topic, {0: records})
    sensor = lag_sensor(group, topics=topic, on_no_commit="latest")
    says = f"group '{group}' has committed nothing on this broker: the wait continues until the first commit"
    assert sensor.poke({}).is_done is False
    assert says in capsys.readouterr().out
    commit(group, topic, {0: records})
    assert sensor.poke({}).is_done is True
    sensor._close()


def test_no_group_can_be_further_behind_than_the_whole_log(group, make_topic, produce):
    topic = make_topic(partitions=1)
    assert reading_of(lag_sensor(group, topics=topic, on_no_commit="earliest"))[0] is True
    produce(topic, {0: 3})
    assert reading_of(lag_sensor(group, topics=topic, on_no_commit="earliest"))[0] is False
    assert reading_of(lag_sensor(group, topics=topic, on_no_commit="earliest", max_lag=3))[0] is True


@pytest.mark.parametrize("policy", [{}, {"on_no_commit": "skip"}], ids=["by default", "skip"])
def test_a_group_that_has_never_committed_is_an_error_on_an_empty_topic(policy, group, make_topic):
    sensor = lag_sensor(group, topics=make_topic(partitions=1), **policy)
    with pytest.raises(
        AirflowFailException, match="has no committed offset on this broker.*correct the name"
    ):
        sensor.poke({})
    sensor._close()


@pytest.mark.parametrize("records", [0, 3])
def test_a_target_is_not_reached_by_a_group_that_has_never_committed(
    records, group, make_topic, produce, commit, capsys
):
    topic = make_topic(partitions=1)
    produce(topic, {0: records})
    sensor = reached_sensor(group, topics=topic)
    done, reading = reading_of(sensor)
    assert (done, reading["reached"]) == (False, False)
    assert f"group '{group}' has committed nothing on this broker" in capsys.readouterr().out
    commit(group, topic, {0: records})
    assert sensor.poke({}).is_done is True
    sensor._close()


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_a_position_beyond_the_log_is_no_lag_of_0(isolation_level, make_topic, produce, recreate, new_query):
    topic = make_topic(partitions=1)
    produce(topic, {0: 5})
    query = new_query({topic: {0: 5}})
    gate = lag_sensor(None, checkpoint_location=query.location, isolation_level=isolation_level)
    assert gate.poke({}).is_done
    recreate(topic, 1)
    try:
        with pytest.raises(AirflowFailException, match="beyond the log end.*deleted and created again"):
            gate.poke({})
    finally:
        gate._close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sensor", [lag_sensor, reached_sensor])
def test_a_checkpoint_has_not_read_a_topic_that_was_created_again(
    sensor, way, group, make_topic, produce, recreate, new_query, context
):
    topic = make_topic(partitions=1)
    query = new_query({topic: {0: 5}})
    query.plan(1, {topic: {0: 5}}, at=time.time() - 600)
    recreate(topic, 1)
    produce(topic, {0: 9})
    names = {"checkpoint_location": query.location, "topics": topic}

    def read() -> None:
        """Spark does not notice it, and never reads the first 5 records."""
        query.run(2, {topic: {0: 9}})

    with pytest.raises(AirflowFailException, match=f"{topic}-0: the topic was deleted and created again"):
        wait_by(way, partial(sensor, None, **names), context, read)
    allowed = CommitOffsetsOperator(task_id="commit", group_id=group, allow_new_cluster=True, **names)
    allowed.execute(context)
    assert reading_of(sensor(group, position="checkpoint", **names))[0] is True


def test_a_partition_that_is_added_during_a_wait_is_waited_for(group, make_topic, produce, commit, grow):
    topic = make_topic(partitions=1)
    produce(topic, {0: 5})
    commit(group, topic, {0: 4})
    gate = lag_sensor(group, on_no_commit="earliest")
    assert gate.poke({}).is_done is False
    grow(topic, 2)
    produce(topic, {1: 3})
    commit(group, topic, {0: 5})
    value = gate.poke({}).xcom_value
    gate._close()
    assert value["total_lag"] == 3
    assert [partition["committed"] for partition in value["partitions"]] == [5, None]


@pytest.mark.parametrize(("policy", "lag"), [("earliest", 3), ("latest", 0), ("skip", 0), ("fail", None)])
def test_on_no_commit_decides_of_a_partition_that_a_checkpoint_does_not_have_yet(
    make_topic, new_query, produce, grow, policy, lag
):
    topic = make_topic(partitions=1)
    query = new_query({topic: {0: 5}})
    produce(topic, {0: 5})
    grow(topic, 2)
    produce(topic, {1: 3})
    gate = lag_sensor(None, checkpoint_location=query.location, on_no_commit=policy)
    if lag is None:
        with pytest.raises(AirflowFailException, match="the checkpoint has no committed offset for"):
            gate.poke({})
    else:
        assert reading_of(gate)[1]["total_lag"] == lag


# -- what a topic holds --


@pytest.fixture
def one_silent(make_topic, produce):
    """A topic with a partition that goes on, one that has stopped, and one that was never written to."""
    topic = make_topic(partitions=3, config=FOREVER)
    produce(
        topic, {0: 2, 1: 1}, timestamps_ms={0: [now_ms() - 3_600_000, now_ms()], 1: [now_ms() - 3_600_000]}
    )
    return topic


def test_an_idle_partition_blocks_unless_it_is_ignored(one_silent):
    done, value = reading_of(topic_sensor(one_silent, a_minute_ago()))
    assert not done
    assert value["offsets"] == {one_silent: {"0": 1, "1": None, "2": None}}
    done, value = reading_of(topic_sensor(one_silent, a_minute_ago(), on_idle_partition="ignore"))
    assert done
    assert value["idle"] == {one_silent: {"1": 1, "2": 0}}


def test_a_partition_that_was_written_to_lately_is_not_idle(one_silent):
    gate = topic_sensor(one_silent, a_minute_ago(), on_idle_partition="ignore", idle_after="PT2H")
    assert reading_of(gate)[1]["idle"] == {one_silent: {"2": 0}}
    written = f"{one_silent}:0,1"
    gate = topic_sensor(written, a_minute_ago(), on_idle_partition="ignore", idle_after=7200)
    assert reading_of(gate)[0] is False


def test_a_topic_that_is_silent_altogether_has_not_reached_anything(make_topic):
    silent = make_topic(partitions=2)
    gate = topic_sensor(silent, a_minute_ago(), on_idle_partition="ignore", idle_after=1)
    assert reading_of(gate)[0] is False


def test_the_topics_may_be_those_that_a_group_reads(group, one_silent, commit):
    commit(group, one_silent, {0: 0})
    gate = TopicReachedSensor(task_id="gate", group_id=group, target="2013-01-01", on_idle_partition="ignore")
    assert reading_of(gate)[1]["log_end"] == {one_silent: {"0": 2, "1": 1, "2": 0}}


@pytest.mark.parametrize("way", WAYS)
def test_a_named_topic_is_waited_for_before_the_first_run_of_its_query(way, make_topic, produce, context):
    topic = make_topic(partitions=1, config=FOREVER)
    produce(topic, {0: 1}, timestamps_ms={0: [OLD]})
    value = wait_by(
        way,
        lambda **more: topic_sensor(
            topic, "2013-01-01T00:26:40.005Z", checkpoint_location="/no/such/checkpoint", **more
        ),
        context,
        lambda: produce(topic, {0: 1}, timestamps_ms={0: [OLD + 5]}),
    )
    assert value["reached"] is True


# -- how a wait ends --


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("soft_fail", "error"),
    [(False, AirflowFailException), (True, AirflowSkipException)],
    ids=["fail", "soft_fail"],
)
def test_a_stalled_wait_fails_early_and_leaves_its_last_reading(way, soft_fail, error, behind, context):
    raised, reading = ends(
        way,
        partial(lag_sensor, behind, stalled_after=0.15, timeout=60, soft_fail=soft_fail),
        context,
        error,
    )
    assert reading["total_lag"] == 5
    if not soft_fail:
        assert "nothing has moved for" in str(raised)
        assert "total lag 5" in str(raised)


def test_a_position_that_moves_is_not_stalled(behind, commit, broker, context):
    topic = next(tp.topic for tp in broker.committed_everywhere(behind))
    sensor = lag_sensor(behind, stalled_after=0.15, poke_interval=0.05)
    looked, offsets = sensor.poke, iter((1, 2, 3, 4, 5))

    def poke(context):
        commit(behind, topic, {0: next(offsets)})
        return looked(context)

    sensor.poke = poke
    assert sensor.execute(context)["total_lag"] == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("soft_fail", "error"),
    [(False, AirflowSensorTimeout), (True, AirflowSkipException)],
    ids=["fail", "soft_fail"],
)
def test_a_timeout_leaves_the_last_reading_and_says_what_is_missing(way, soft_fail, error, behind, context):
    raised, reading = ends(
        way, partial(lag_sensor, behind, timeout=0.25, soft_fail=soft_fail), context, error
    )
    assert reading["total_lag"] == 5
    if not soft_fail:
        assert f"{behind}: total lag 5" in str(raised)
        assert str(raised).endswith("the wait ends at max_lag=0")


@pytest.mark.parametrize("way", ["poke", "deferrable"])
def test_soft_fail_skips_for_an_error_that_would_come_again(way, group, context):
    _, reading = ends(way, partial(lag_sensor, group, soft_fail=True), context, AirflowSkipException)
    assert reading is None


def test_a_stall_is_forgotten_when_the_task_is_tried_again(behind, context):
    poke_once(lag_sensor(behind, stalled_after=0.1, mode="reschedule"), context)
    time.sleep(0.15)  # longer than stalled_after
    context["ti"].try_number = 2
    poke_once(lag_sensor(behind, stalled_after=0.1, mode="reschedule"), context)


def test_a_stall_cannot_be_seen_where_nothing_is_remembered(behind):
    with pytest.raises(AirflowFailException, match="needs Airflow 3.3"):
        lag_sensor(behind, stalled_after=60, mode="reschedule").execute({"ti": TaskInstance()})


def test_the_log_shows_a_table_for_each_change_and_not_for_each_look(behind, context, capsys):
    for _ in range(3):
        poke_once(lag_sensor(behind, mode="reschedule"), context)
    assert capsys.readouterr().out.count("total lag 5") == 1


@contextlib.contextmanager
def reading_on(group, topic, commit):
    """Commits five more records every twentieth of a second, in a thread."""
    over = threading.Event()

    def read():
        at = 0
        while not over.wait(0.05):
            commit(group, topic, {0: (at := at + 5)})

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()


@pytest.mark.parametrize(
    ("sensor", "deferrable", "says"),
    [
        (reached_sensor, False, r"[\d,]+ of [\d,]+ read, \S+/s, about .+"),
        (lag_sensor, True, r"lag falls by \S+/s net, about .+ to the threshold"),
    ],
    ids=["reached", "lag, deferrable"],
)
def test_a_wait_that_is_approached_says_when_it_may_end(
    sensor, deferrable, says, group, make_topic, produce, commit, context
):
    topic = make_topic(partitions=1)
    produce(topic, {0: 5_000})
    commit(group, topic, {0: 0})
    gate = sensor(group, deferrable=deferrable, poke_interval=0.1, timeout=0.8)

    def wait():
        if deferrable:
            return gate.execute_complete(context, end_of(deferred(gate, context)))
        return gate.execute(context)

    with reading_on(group, topic, commit), pytest.raises(AirflowSensorTimeout) as ended:
        wait()

    assert re.search(says, str(ended.value)), str(ended.value)
    progress = context["ti"].xcoms["return_value"]["progress"]
    # A busy machine lets the reader catch up in leaps.
    assert 20 < progress["records_per_second"] < 300
    assert 10 < progress["seconds_left"] < 250


@pytest.mark.parametrize(
    ("sensor", "parameters", "corrected"),
    [
        (reached_sensor, {}, {"group": "other"}),
        (reached_sensor, {}, {"target": a_minute_ago()}),
        (reached_sensor, {"tolerance": 1}, {"tolerance": 0}),
        (lag_sensor, {}, {"group": "other"}),
        (lag_sensor, {"max_lag": 3}, {"max_lag": 0}),
    ],
)
def test_a_wait_for_something_else_than_the_task_has_by_now_is_tried_again(
    sensor, parameters, corrected, behind, commit, broker, context
):
    """A Variable may have been changed while the task was deferred, or the DAG file."""
    topic = next(tp.topic for tp in broker.committed_everywhere(behind))
    given: Any = {"group": behind, **parameters}
    with pytest.raises(TaskDeferred) as deferral:
        sensor(**given, deferrable=True, poke_interval=0.1, stalled_after=900).execute(context)
    event = end_of(deferral.value.trigger, lambda: commit(behind, topic, {0: 5}))
    kwargs = json.loads(json.dumps({**(deferral.value.kwargs or {}), "event": event}))
    assert sensor(**given).execute_complete(context, **kwargs)["group_id"] == behind
    with pytest.raises(KafkaOffsetsError, match="the wait was for .*, and the task now has ") as refused:
        sensor(**given | corrected).execute_complete(context, **kwargs)
    assert refused.value.retriable


def by_now():
    """A time after that of all records so far, and another one at each call."""
    time.sleep(0.002)  # Kafka knows milliseconds
    return datetime.now(tz=timezone.utc).isoformat(timespec="microseconds")


@pytest.mark.parametrize(
    ("target", "is_tried_again"),
    [
        *(("{{ var }}", True), ("{{ cutoff and var }}", True)),
        *(("{{ clock.now() }}", False), ("{{ by_now() }}", False), ("latest", False)),
    ],
)
def test_a_target_whose_variable_was_changed_is_tried_again_and_one_that_the_clock_changes_is_not(
    target, is_tried_again, behind, commit, broker, context
):
    topic = next(tp.topic for tp in broker.committed_everywhere(behind))

    def render(until, **parameters):
        dag = DAG("d", user_defined_macros={"by_now": by_now, "cutoff": "now"})
        sensor = reached_sensor(behind, target, dag=dag, **parameters)
        sensor.render_template_fields({"clock": SimpleNamespace(now=by_now), "var": until})
        return sensor

    first = by_now()
    with pytest.raises(TaskDeferred) as deferral:
        render(first, deferrable=True, poke_interval=0.1).execute(context)
    event = end_of(deferral.value.trigger, lambda: commit(behind, topic, {0: 5}))
    kwargs = json.loads(json.dumps({**(deferral.value.kwargs or {}), "event": event}))
    assert render(first).execute_complete(context, **kwargs)["reached"]
    with pytest.raises(KafkaOffsetsError) if is_tried_again else contextlib.nullcontext():
        render(by_now()).execute_complete(context, **kwargs)


def test_clearing_the_task_freezes_a_new_target(behind, make_topic, produce, commit, broker, context):
    topic = next(tp.topic for tp in broker.committed_everywhere(behind))
    poke_once(reached_sensor(behind, mode="reschedule"), context)
    produce(topic, {0: 5})
    commit(behind, topic, {0: 5})
    context["ti"].max_tries = 1
    poke_once(reached_sensor(behind, mode="reschedule"), context)
    context["ti"].max_tries = 0
    assert reached_sensor(behind, mode="reschedule").execute(context)["target"] == {topic: {"0": 5}}


@pytest.mark.parametrize("way", WAYS)
def test_a_wait_whose_end_was_not_recorded_ends_at_once(way, group, make_topic, produce, commit, context):
    topic = make_topic(1)

    produce(topic, {0: 5})
    commit(group, topic, {0: 0})
    reading = wait_by(way, partial(reached_sensor, group), context, lambda: commit(group, topic, {0: 5}))
    produce(topic, {0: 5})
    # The worker was killed before Airflow knew, and tries again.
    context["ti"].try_number = 2
    assert reached_sensor(group).execute(context)["target"] == reading["target"] == {topic: {"0": 5}}


def test_each_iteration_of_a_loop_has_its_own_target(behind, make_topic, produce, commit, broker, context):
    topic = next(tp.topic for tp in broker.committed_everywhere(behind))
    for index in range(2):
        commit(behind, topic, {0: 5 * (index + 1)})
        gate = reached_sensor(behind)
        reading = gate.execute({**context, "loop": SimpleNamespace(index=index)})
        assert reading["target"] == {topic: {"0": 5 * (index + 1)}}
        produce(topic, {0: 5})


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"stalled_after": "{{ 0 }}"}, "stalled_after='0'"),
        ({"position": "{{ 'checkpoint' }}"}, "name the checkpoint"),
        ({"max_lag": "{{ 'few' }}"}, "max_lag='few': expected 0 or more"),
    ],
)
def test_what_makes_no_sense_once_it_is_rendered_fails_at_once(parameters, text):
    gate = lag_sensor("g", **parameters)
    gate.render_template_fields({})
    with pytest.raises(AirflowFailException, match=text):
        gate.execute({})


@pytest.mark.parametrize("way", ["poke", "deferrable"])
def test_never_fail_skips_whatever_happens(way, behind, context, monkeypatch):
    make = partial(lag_sensor, behind, never_fail=True, kafka_config_id="nobody_knows")
    ends(way, make, context, AirflowSkipException)


def test_what_a_retry_may_mend_in_the_triggerer_is_retried(behind, context):
    with pytest.raises(AirflowException, match="no secrets today") as raised:
        lag_sensor(behind).execute_complete(context, {"status": "error", "message": "no secrets today"})
    assert not isinstance(raised.value, AirflowFailException)


def test_an_execution_timeout_leaves_the_last_reading(behind, context, monkeypatch):
    gate = lag_sensor(behind)

    sleep = time.sleep

    def interrupted(seconds):
        # As the signal does it: no other thread notices.
        if threading.current_thread() is threading.main_thread():
            raise AirflowTaskTimeout("execution_timeout")
        sleep(seconds)

    monkeypatch.setattr("airflow.sdk.bases.sensor.time.sleep", interrupted)
    with pytest.raises(AirflowTaskTimeout):
        gate.execute(context)
    assert context["ti"].xcoms["return_value"]["total_lag"] == 5


@pytest.mark.parametrize("way", ["poke", "deferrable"])
def test_a_timeout_says_that_the_broker_did_not_answer(way, behind, context, monkeypatch):
    monkeypatch.setattr(OffsetsClient, "log_ranges", no_answer)
    error, reading = ends(way, partial(lag_sensor, behind, timeout=0.25), context, AirflowSensorTimeout)
    assert reading is None
    assert "the last poll failed: no answer" in str(error)


def test_each_threshold_is_named(behind, capsys):
    reading_of(lag_sensor(behind, max_lag=4, max_partition_lag=9, max_time_lag=90, min_headroom="P1D"))
    named = "max_lag=4, max_partition_lag=9, max_time_lag 1 min 30 s, min_headroom 1 d"
    assert f"the wait ends at {named}" in capsys.readouterr().out


def test_before_a_marker_that_nothing_follows_a_group_is_not_late(
    group, make_topic, send_in_transaction, commit
):
    tp = TopicPartition(make_topic(partitions=1, config=FOREVER), 0)
    send_in_transaction(tp, OLD)
    commit(group, tp.topic, {0: 1})
    done, value = reading_of(lag_sensor(group, max_time_lag=60))
    assert done
    assert value["total_lag"] == 1


def test_the_marker_of_a_transaction_is_within_the_tolerance(group, make_topic, send_in_transaction, commit):
    tp = TopicPartition(make_topic(partitions=1), 0)
    send_in_transaction(tp, now_ms())
    # As a consumer does that commits the offset after its last record.
    commit(group, tp.topic, {0: 1})
    assert reading_of(lag_sensor(group, isolation_level="read_committed"))[0] is False
    done, value = reading_of(lag_sensor(group, isolation_level="read_committed", tolerance=1))
    assert done
    assert value["total_lag"] == 1
    reached = reached_sensor(group, tolerance=1)
    assert reading_of(reached)[0] is True


def test_a_topic_with_old_records_behind_a_marker_is_judged_by_its_last_one(make_topic, send_in_transaction):
    tp = TopicPartition(make_topic(partitions=1, config=FOREVER), 0)
    # The lookup finds the first marker: nothing is behind it, then a record that is older than the target.
    for time_of_record in (now_ms() - 7_200_000, now_ms() - 3_600_000):
        send_in_transaction(tp, time_of_record)
        assert reading_of(topic_sensor(tp.topic, a_minute_ago()))[0] is False
    send_in_transaction(tp, now_ms())
    assert reading_of(topic_sensor(tp.topic, a_minute_ago()))[0] is True
