"""Which intervals a task emits, over retries, kills, Clears, resets and changed parameters."""

import json
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset
from checkpoint_moves import apply_plan, interrupt
from hypothesis import given
from hypothesis import strategies as st
from interval_runs import FakeAirflow
from memory_broker import MemoryBroker
from memory_clients import open_client
from written_query import Query

from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator

HOURS, DAYS = Asset("hours"), Asset("days")
DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
START = DAY.isoformat()


class Stream:
    """A topic, a group that reads it, and an Airflow that emits its hours."""

    def __init__(self, partitions: int = 1, **airflow: Any) -> None:
        self.broker = MemoryBroker()
        self.broker.create("orders", partitions)
        self.airflow = FakeAirflow(**airflow)
        self.runs = 0

    def write(self, *hours: float, partition: int = 0, read: int | None = None) -> None:
        """Write records of these times; then the group commits an offset, if it is given."""
        times = [int((DAY + timedelta(hours=each)).timestamp() * 1000) for each in hours]
        self.broker.append("orders", partition, times)
        if read is not None:
            self.commit(read)

    def commit(self, *offsets: int, group: str = "etl") -> None:
        with open_client(self.broker) as client:
            client.commit(group, {TopicPartition("orders", number): at for number, at in enumerate(offsets)})

    def operator(self, **parameters: Any) -> CompletedIntervalsOperator:
        given: dict[str, Any] = {"outlets": [HOURS], "group_id": "etl", "topics": "orders"}
        # Each run looks at so many intervals, and one more.
        given |= {"task_id": "hours", "start_from": START, "max_intervals": 12}
        operator = CompletedIntervalsOperator(**{**given, **parameters})
        airflow, broker = self.airflow, self.broker

        class Client(OffsetsClient):
            def committed(self, *named: Any) -> Any:
                airflow.step()
                return super().committed(*named)

            def log_ranges(self, *named: Any, **parameters: Any) -> Any:
                airflow.step()
                return super().log_ranges(*named, **parameters)

            def record_times(self, *named: Any, **parameters: Any) -> Any:
                airflow.step()
                return super().record_times(*named, **parameters)

        operator.open_client = lambda *_: Client(broker.config())  # type: ignore[method-assign]
        return operator

    def run(self, run_id: str = "", **parameters: Any) -> Any:
        names = ("kill_at", "max_tries", "ends", "loop")
        how = {name: parameters.pop(name) for name in names if name in parameters}
        self.runs += not run_id
        return self.airflow.run(self.operator(**parameters), run_id or f"run-{self.runs}", **how)

    def hours(self, asset: str = "hours") -> list[str]:
        return [key[8:13] for key in self.airflow.keys(asset)]


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_each_complete_hour_is_an_event_with_its_key_once(stream):
    stream.write(0.5, 1.5, 3.5, read=1)
    result = stream.run()
    assert result["assets"]["hours"]["intervals"] == [
        {
            "key": "2026-03-01T00:00:00",
            "start": "2026-03-01T00:00:00+00:00",
            "end": "2026-03-01T01:00:00+00:00",
        }
    ]
    assert (result["version"], result["position"]) == (1, "group")
    assert result["assets"]["hours"]["complete_until"] == "2026-03-01T01:00:00+00:00"
    stream.commit(3)
    stream.run()
    stream.run()
    assert stream.hours() == ["01T00", "01T01", "01T02"]
    (event, *_) = stream.airflow.events["hours"]
    assert {name: event.extra[name] for name in ("every", "timezone", "start", "end")} == {
        "every": "hour",
        "timezone": "UTC",
        "start": "2026-03-01T00:00:00+00:00",
        "end": "2026-03-01T01:00:00+00:00",
    }


def test_a_task_without_a_new_interval_sends_no_event(stream):
    stream.write(0.5, read=1)
    operator = stream.operator()
    stream.airflow.run(operator, "run")
    assert operator.outlets == []
    assert stream.airflow.events == {}
    # The declared ones are known when the same operator is executed again, as under dag.test.
    stream.write(1.5)
    stream.airflow.run(operator, "again")
    assert stream.hours() == ["01T00"]


def test_hours_and_days_go_to_their_assets(stream):
    stream.write(0.5, 47.9, 48.1, read=2)
    stream.run(every=["hour", "day"], outlets=[HOURS, DAYS], max_intervals=48)
    assert len(stream.hours()) == 48
    assert stream.airflow.keys("days") == ["2026-03-01T00:00:00", "2026-03-02T00:00:00"]


def test_days_of_a_time_zone_have_the_keys_of_its_clock(stream):
    stream.write(24 * 27 + 23.5, 24 * 30, read=2)
    stream.run(every="day", timezone="Europe/Berlin", start_from="2026-03-29T00:30:00+01:00")
    assert stream.airflow.keys() == ["2026-03-29T00:00:00", "2026-03-30T00:00:00"]
    assert stream.airflow.events["hours"][0].extra["end"] == "2026-03-30T22:00:00+00:00"


def test_on_airflow_before_3_3_one_event_has_all_intervals_in_its_extra(monkeypatch):
    variables: dict[str, str] = {}

    class Variable:
        @staticmethod
        def get(key: str, default: Any = None, deserialize_json: bool = False) -> Any:
            return json.loads(variables[key]) if key in variables else default

        @staticmethod
        def set(key: str, value: Any, description: str, serialize_json: bool) -> None:
            variables[key] = json.dumps(value)

    monkeypatch.setattr("airflow_kafka_offsets.task.interval_memory.Variable", Variable)
    stream = Stream(partitions=1)
    stream.airflow.partitions = False
    stream.write(0.5, 2.5, 3.5, read=1)
    stream.run()
    stream.commit(2)
    stream.run()
    first, second = stream.airflow.events["hours"]
    assert first.partition_key is None
    assert [each["key"][8:13] for each in first.extra["intervals"]] == ["01T00", "01T01"]
    assert [each["key"][8:13] for each in second.extra["intervals"]] == ["01T02"]
    assert list(variables) == ["kafka_offsets.intervals.hours"]
    # Airflow says only in the log that it could not set a Variable.
    monkeypatch.setattr(Variable, "set", lambda *_, **__: None)
    stream.write(4.5, read=4)
    with pytest.raises(PlanRefusedError, match="could not be set .*, or another task has set") as refused:
        stream.run()
    assert refused.value.retriable


# -- where it begins --


def test_where_it_begins_is_not_forgotten_if_the_first_task_is_killed():
    for kill_at in range(1, 8):
        stream = Stream()
        stream.write(0.5, 1.5, 2.5, 3.5, read=1)
        stream.run("first", start_from=None, kill_at=kill_at)
        if not stream.airflow.kept:
            continue
        stream.commit(3)
        stream.run("first", start_from=None)
        assert stream.hours() == ["01T01", "01T02"], kill_at


# -- limits and gaps --


@pytest.mark.parametrize("idle_after", [{}, {"idle_after": "PT1H"}], ids=["by-default", "given"])
def test_idle_partitions_hold_hours_up_unless_they_are_left_out(idle_after):
    stream = Stream(2)
    stream.write(0.5, 1.5, 2.5)
    stream.write(0.1, partition=1)
    stream.commit(3, 1)
    stream.run()
    assert stream.hours() == []
    stream.run(on_idle_partition="ignore", **idle_after)
    assert stream.hours() == ["01T00", "01T01"]


# -- killed, tried again, cleared --


def test_killed_at_any_step_a_task_loses_no_interval_and_emits_none_twice():
    for kill_at in count(1):
        stream = Stream()
        stream.write(0.5, 1.5, 2.5, 3.5, read=1)
        stream.run("before")
        stream.commit(3)
        stream.run("killed", kill_at=kill_at)
        killed = stream.airflow.states["stream", "killed", "hours"] == "failed"
        assert stream.hours() == (["01T00"] if killed else ["01T00", "01T01", "01T02"])
        # Tried again, or given up for the next run.
        stream.run("killed" if killed and kill_at % 2 else "after")
        stream.run("later")
        assert stream.hours() == ["01T00", "01T01", "01T02"], kill_at
        if not killed:
            break
    assert kill_at > 10


def test_the_iterations_of_a_loop_emit_nothing_twice(stream):
    stream.write(0.5, 1.5, 2.5, read=2)
    stream.run("run", loop=0)
    stream.commit(3)
    stream.run("run", loop=1, ends="failed")
    stream.run("run", loop=1)
    assert stream.hours() == ["01T00", "01T01"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(("one", {"ends": "failed"}), ("two", {}), id="failed after execute(), then a run"),
        pytest.param(("one", {"ends": "failed"}), ("one", {"max_tries": 1}), id="failed and cleared"),
        # The task's retries were lowered by the number of its tries before it was cleared.
        pytest.param(("one", {"max_tries": 1}), ("one", {"max_tries": 1}), id="a Clear like a retry"),
    ],
)
def test_of_two_executions_one_emits_the_hour(stream, first, second):
    stream.write(0.5, 1.5, read=2)
    for run_id, how in (first, second):
        stream.run(run_id, **how)
    assert stream.hours() == ["01T00"]


def test_a_task_that_a_user_marks_as_a_success_has_emitted_nothing(stream):
    stream.write(0.5, 1.5, read=2)
    announced = 0
    for kill_at in range(1, 30):
        airflow = stream.airflow = FakeAirflow()
        stream.run("killed", kill_at=kill_at)
        if airflow.xcoms:
            break
        announced += "announced" in airflow.kept.get("hours", {}).get("kafka_offsets.intervals", ())
        airflow.states["stream", "killed", "hours"] = "success"
        stream.run("next")
        assert stream.hours() == ["01T00"], kill_at
    assert announced


def test_a_cleared_task_emits_nothing_twice(stream):
    stream.write(0.5, 1.5, read=2)
    stream.run("one")
    stream.run("one", max_tries=1)
    assert stream.hours() == ["01T00"]
    stream.write(2.5, read=3)
    stream.run("two")
    stream.run("one", max_tries=2)
    assert stream.hours() == ["01T00", "01T01"]


def test_while_airflow_does_not_say_what_was_emitted_a_task_waits(stream):
    stream.write(0.5, 1.5, read=2)
    stream.run("one", ends="failed")
    stream.airflow.unreadable = ValueError("start_date: Input should be a valid datetime")
    with pytest.raises(PlanRefusedError, match="run that was started by an event is queued") as refused:
        stream.run("two")
    assert refused.value.retriable
    # The retry of the task itself needs no events.
    stream.run("one")
    assert stream.hours() == ["01T00"]
    # Its result shows that it has emitted.
    stream.write(2.5, read=3)
    stream.run("two")
    assert stream.hours() == ["01T00", "01T01"]


def test_without_events_a_task_that_is_marked_as_a_success_has_emitted_only_what_it_has_returned(stream):
    stream.write(0.5, 24.5, read=2)
    parameters = {"every": ["hour", "day"], "outlets": [HOURS, DAYS], "max_intervals": 24}
    for kill_at in range(1, 40):
        airflow = stream.airflow = FakeAirflow()
        stream.run("killed", kill_at=kill_at, **parameters)
        if airflow.xcoms:
            break
        airflow.states["stream", "killed", "hours"] = "success"
        airflow.unreadable = ValueError("start_date: Input should be a valid datetime")
        with suppress(PlanRefusedError):
            stream.run("next", **parameters)
        airflow.unreadable = None
        stream.run("last", **parameters)
        assert (len(stream.hours()), len(stream.hours("days"))) == (24, 1), kill_at
    assert kill_at > 10


# -- two tasks on one asset --


def test_a_task_waits_while_another_one_emits_for_its_asset(stream):
    stream.write(0.5, 1.5, read=2)
    stream.run("one", ends="running")
    with pytest.raises(PlanRefusedError, match="task stream.hours of run one is emitting") as refused:
        stream.run("two", task_id="too")
    assert refused.value.retriable
    stream.airflow.states["stream", "one", "hours"] = "failed"
    stream.run("two", task_id="too")
    assert stream.hours() == ["01T00"]


def test_of_two_tasks_that_announce_their_intervals_at_the_same_moment_the_last_one_emits(stream):
    stream.write(0.5, 1.5, read=2)
    stream.run("last", ends="running")
    airflow, step, of_last = stream.airflow, stream.airflow.step, stream.airflow.kept
    airflow.kept = {}

    def overtake() -> None:
        if "'run_id': 'first'" in str(airflow.kept):
            airflow.kept = of_last
        step()

    airflow.step = overtake
    with pytest.raises(PlanRefusedError, match="another task has emitted for the asset 'hours'") as refused:
        stream.run("first")
    assert refused.value.retriable
    airflow.states["stream", "last", "hours"] = "failed"
    stream.run("next")
    assert stream.hours() == ["01T00"]


# -- resets --


def test_a_move_that_was_interrupted_counts_when_the_query_has_run_and_hides_no_later_move(stream, tmp_path):
    stream.write(*(0.5 + hour for hour in range(8)))
    query = Query(tmp_path / "checkpoint")
    names = {"group_id": None, "checkpoint_location": query.location}

    def seek(offset):
        return plan_seek(SparkCheckpoint(query.location), {"0": {TopicPartition("orders", 0): offset}})

    query.run(0, {"orders": {0: 1}})
    query.run(1, {"orders": {0: 4}})
    stream.run(**names)
    interrupt(query.root, seek(2), before="mark_done")
    # It may still be finished, or taken back.
    stream.run(**names)
    assert stream.hours() == ["01T00", "01T01", "01T02", "01T03"]
    query.run(2, {"orders": {0: 5}})
    stream.run(**names)
    assert stream.hours()[4:] == ["01T02", "01T03", "01T04"]
    apply_plan(query.root, seek(3))
    query.run(3, {"orders": {0: 6}})
    stream.run(**names)
    assert stream.hours()[7:] == ["01T03", "01T04", "01T05"]


def test_a_reset_that_was_seen_is_not_forgotten_by_a_task_that_is_killed():
    for kill_at in range(1, 20):
        stream = Stream()
        stream.write(0.5, 1.5, 2.5, 3.5, read=4)
        stream.run()
        stream.commit(1)
        stream.run("seen", kill_at=kill_at)
        seen = stream.airflow.kept["hours"]["kafka_offsets.intervals"]["end"] == "2026-03-01T01:00:00+00:00"
        stream.commit(4)
        stream.run("after")
        assert stream.hours()[3:] == (["01T01", "01T02"] if seen else []), kill_at
    assert seen


def test_records_that_were_deleted_unread_after_kafka_forgot_the_group_complete_nothing(
    stream, capsys, caplog
):
    stream.write(0.5, 1.5, 5.5, read=1)
    stream.run()
    stream.broker.forget("etl")
    stream.broker.delete_records("orders", 0, 2)
    caplog.set_level("INFO")
    stream.run()
    assert "orders-0 has no position" in capsys.readouterr().out + caplog.text
    stream.commit(3)
    stream.run()
    assert stream.hours() == [f"01T{hour:02}" for hour in range(5)]


# -- other intervals, positions and logs --


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"every": "day"}, "every was '0 \\* \\* \\* \\*' and is '0 0 \\* \\* \\*'"),
        ({"timezone": "Europe/Berlin"}, "timezone was 'UTC' and is 'Europe/Berlin'"),
        ({"group_id": "other"}, "group_id was 'etl' and is 'other'"),
        ({"topics": ["orders:0"]}, "topics was"),
    ],
)
def test_other_intervals_for_an_asset_are_refused_until_it_is_said_where_they_begin(stream, change, named):
    stream.write(0.5, 1.5, 30.5)
    for group in ("etl", "other"):
        stream.commit(3, group=group)
    stream.run()
    count = len(stream.hours())
    for start_from in (None, START):
        with pytest.raises(AirflowFailException, match=f"{named}.*set start_from to a new time"):
            stream.run(**change, start_from=start_from)
    stream.run(**change, start_from="2026-03-01T23:30:00+00:00")
    stream.run(**change, start_from="2026-03-01T23:30:00+00:00")
    assert len(stream.hours()) > count
    begins = {"every": "01T00", "timezone": "02T00"}
    assert stream.hours()[count] == begins.get(next(iter(change)), "01T23")


def test_the_same_intervals_under_another_name_are_the_same(stream):
    stream.write(0.5, 1.5, 2.5, read=2)
    stream.run()
    stream.commit(3)
    stream.run(every="0 * * * *", lateness="PT5M", topics=["orders"])
    assert stream.hours() == ["01T00", "01T01"]


def test_records_that_were_deleted_unread_are_refused(stream):
    stream.write(0.5, 1.5, 2.5, read=1)
    stream.broker.delete_records("orders", 0, 2)
    with pytest.raises(AirflowFailException, match="retention has deleted 1 unread record of orders-0"):
        stream.run()
    stream.commit(2)
    stream.run()
    assert stream.hours() == ["01T00", "01T01"]


def test_a_position_beyond_the_log_end_is_refused(stream):
    stream.write(0.5, 1.5, 2.5, read=3)
    stream.broker.topics["orders"] = stream.broker.topics["orders"]._replace(
        logs=(stream.broker.topics["orders"].logs[0]._replace(times=()),)
    )
    with pytest.raises(AirflowFailException, match="beyond the log end"):
        stream.run()


def test_what_is_kept_with_the_asset_and_cannot_be_read_is_refused(stream):
    stream.write(0.5, 1.5, read=2)
    for kept in ("x", {"version": 2}, {"version": 1, "end": "2026-03-01T00:00:00", "meaning": {}}):
        stream.airflow.kept["hours"] = {"kafka_offsets.intervals": kept}
        with pytest.raises(AirflowFailException, match="of the asset 'hours'.*delete the value"):
            stream.run()


# -- parameters --


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"outlets": []}, "outlets: found none; expected 1 different asset, one for each"),
        ({"outlets": [HOURS, DAYS]}, "found Asset, Asset; expected 1"),
        ({"every": ["hour", "day"]}, "found Asset; expected 2"),
        ({"every": ["hour", "day"], "outlets": [HOURS, HOURS]}, "expected 2 different assets"),
        ({"outlets": [Asset.ref(name="hours")]}, "found AssetNameRef; expected 1 different asset,"),
        ({"every": ["hour", "@hourly"], "outlets": [HOURS, DAYS]}, "the same intervals twice"),
        ({"every": []}, "every=[] names no intervals"),
        ({"every": "hourly"}, "every='hourly': expected 'hour'"),
        ({"timezone": "Berlin"}, "timezone='Berlin'"),
        ({"lateness": "-1"}, "lateness='-1'"),
        ({"on_idle_partition": "skip"}, "on_idle_partition='skip': expected one of 'wait', 'ignore'"),
        ({"idle_after": "10m"}, "idle_after would be ignored with on_idle_partition='wait'"),
        ({"start_from": "yesterday"}, "start_from='yesterday': expected a time"),
        ({"max_intervals": 0}, "max_intervals=0: expected 1 or more"),
        ({"max_intervals": 1001}, "max_intervals=1001: expected at most 1000"),
        ({"position": "checkpoint"}, "name the checkpoint"),
        ({"group_id": None}, "no position to read"),
        ({"checkpoint_conn_id": "s3"}, "checkpoint_conn_id would be ignored"),
    ],
)
def test_parameters_that_cannot_be_are_refused_when_the_dag_is_parsed(stream, parameters, found):
    with pytest.raises(UsageError) as refused:
        stream.operator(**parameters)
    assert found in str(refused.value)
    assert "task hours: " in str(refused.value)


def test_a_template_is_judged_when_it_is_rendered(stream):
    operator = stream.operator(every="{{ params.every }}", timezone="{{ params.zone }}")
    operator.every = "day"
    operator.timezone = "Mars"
    with pytest.raises(AirflowFailException, match="timezone='Mars'"):
        stream.airflow.run(operator, "run")


def test_one_run_emits_at_a_time_unless_the_dag_says_otherwise(stream):
    assert stream.operator().max_active_tis_per_dag == 1
    mapped = CompletedIntervalsOperator.partial(task_id="hours", outlets=[HOURS])
    assert mapped.expand(group_id=["one", "two"]).partial_kwargs["max_active_tis_per_dag"] == 1


# -- all of it together --


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 1), st.integers(0, 150)),
        st.tuples(st.just("read"), st.integers(0, 1), st.integers(0, 5)),
        st.tuples(st.just("run"), st.sampled_from([None, 1, 3, 5, 7, 9, 11, 13]), st.integers(1, 3)),
        st.tuples(st.just("reset"), st.integers(0, 1), st.integers(0, 6)),
    ),
    max_size=40,
)


@given(steps)
def test_no_interval_is_lost_or_wrong_whatever_happens(steps):
    """
    Records come and are read, tasks run, are killed, and are tried again; resets are seen by a task.

    Each emitted hour was complete at that moment. At the end all hours were emitted, in order, and twice only
    those that a reset has taken back.
    """
    stream = Stream(2)
    clocks, written, read = [0, 0], [0, 0], [0, 0]
    taken_back = False
    stream.commit(0, 0)
    for number, (what, which, amount) in enumerate(steps):
        if what == "write":
            clocks[which] += amount
            stream.write(clocks[which] / 60, partition=which)
            written[which] += 1
        elif what == "read":
            read[which] = min(written[which], read[which] + amount)
            stream.commit(*read)
        elif what == "reset":
            read[which] = max(0, read[which] - amount)
            stream.commit(*read)
            taken_back = True
            stream.run(f"reset-{number}")
        else:
            before = len(stream.hours())
            stream.run(f"run-{number}", kill_at=which, max_intervals=amount)
            failed = stream.airflow.states["stream", f"run-{number}", "hours"] == "failed"
            if failed and number % 2:
                stream.run(f"run-{number}", max_intervals=amount)
            for hour in stream.hours()[before:]:
                end = (int(hour[:2]) - 1) * 24 + int(hour[3:]) + 1
                for partition in (0, 1):
                    times = stream.broker.topics["orders"].logs[partition].times
                    ends = int((DAY + timedelta(hours=end)).timestamp() * 1000)
                    unread = times[read[partition] :]
                    assert max(times, default=0) >= ends
                    assert not unread or min(unread) >= ends, "a record of the hour is unread"
    stream.write(140, partition=0)
    stream.write(140, partition=1)
    stream.commit(written[0] + 1, written[1] + 1)
    stream.run("last", max_intervals=140)
    hours = stream.hours()
    expected = [f"{1 + hour // 24:02}T{hour % 24:02}" for hour in range(140)]
    assert sorted(set(hours)) == expected
    if not taken_back:
        assert hours == expected


def test_a_task_that_failed_and_is_marked_as_a_success_has_emitted_nothing(stream):
    stream.write(0.5, 1.5, read=2)
    stream.run("one", ends="failed")
    stream.airflow.states["stream", "one", "hours"] = "success"
    stream.run("two")
    assert stream.hours() == ["01T00"]


def test_a_task_that_was_overtaken_by_another_one_emits_nothing(stream):
    stream.write(0.5, 1.5, read=2)
    slow, other, begun = stream.operator(task_id="slow"), stream.operator(task_id="other"), []

    class Client(OffsetsClient):
        def log_ranges(self, *named, **parameters):
            if not begun:
                begun.append(stream.airflow.run(other, "other"))
            return super().log_ranges(*named, **parameters)

    slow.open_client = lambda *_: Client(stream.broker.config())
    with pytest.raises(PlanRefusedError) as refused:
        stream.airflow.run(slow, "slow")
    assert refused.value.retriable
    assert stream.hours() == ["01T00"]
