"""Windows planned by one task and committed by another: refused or right, never silently wrong."""

import json
import logging
import os
import signal
import threading
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, AirflowTaskTimeout
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, chain
from airflow.sdk.execution_time.context import OutletEventAccessors
from waiting import Store

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.window import WINDOW_CONF_KEY, OffsetWindow
from airflow_kafka_offsets.moves import window_commit
from airflow_kafka_offsets.moves.write import commit_window
from airflow_kafka_offsets.operators import plan_window as planning
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.readings.window import plan_window

pytestmark = pytest.mark.usefixtures("memory")

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TIMES = [int((NOON + timedelta(minutes=minute)).timestamp() * 1000) for minute in range(10)]
HALF, ONE = NOON + timedelta(minutes=2), NOON + timedelta(minutes=6)


@pytest.fixture
def topic(make_topic, produce):
    """Records of ten minutes in partition 0, of four in partition 1, none in partition 2."""
    name = make_topic(config={"retention.ms": "-1"})
    produce(name, {0: 10, 1: 4}, {0: TIMES, 1: TIMES})
    return name


@pytest.fixture
def group(topic, new_group, broker):
    name = new_group()
    broker.commit(name, {TopicPartition(topic, number): at for number, at in enumerate((5, 2, 0))})
    return name


class Run:
    """What Airflow knows of a run and of a task in it: plan() is the task's next try."""

    clear_number = max_tries = 0
    triggering_user_name = loop = None

    def __init__(self, run_id="scheduled__1", *, store=True, start_date=NOON):
        self.start_date = start_date
        self.run_id, self.store, self.tries, self.xcoms = run_id, Store() if store else None, 0, {}

    def context(self):
        self.tries += 1
        self.xcoms.clear()
        store = {} if self.store is None else {"task_state_store": self.store}
        loop = {} if self.loop is None else {"loop": SimpleNamespace(index=self.loop)}
        return {"ti": TaskInstance(self), "dag_run": self, **store, **loop}

    def iteration(self, number):
        """In a task loop of Airflow 3.4."""
        self.loop = number
        return self

    def clear(self):
        self.clear_number += 1
        self.start_date += timedelta(hours=1)
        self.max_tries = self.tries
        return self


class TaskInstance:
    dag_id, task_id, map_index = "flights", "plan", -1

    def __init__(self, run):
        self.run_id, self.try_number, self.max_tries, self.xcoms = (
            run.run_id,
            run.tries,
            run.max_tries,
            run.xcoms,
        )

    def xcom_push(self, key, value):
        self.xcoms[key] = json.loads(json.dumps(value))


@pytest.fixture
def run():
    return Run()


def plan(run, **parameters):
    return PlanOffsetWindowOperator(task_id="plan", **parameters).execute(run.context())


def plan_rendered(run, **parameters: Any):
    """Plan with parameters that are known only when the task runs."""
    with DAG("d", render_template_as_native_obj=True):
        templates = {name: f"{{{{ {name} }}}}" for name in parameters}
        task = PlanOffsetWindowOperator(task_id="plan", **templates)
    context: Any = parameters
    task.render_template_fields(context)
    return task.execute(run.context())


def commit(window, run=None, **parameters):
    context: Any = run.context() if run else {"ti": TaskInstance(Run())}
    receipt = CommitOffsetWindowOperator(task_id="commit", window=window, **parameters).execute(context)
    assert receipt["verified"]
    return receipt


@pytest.mark.parametrize("in_file", [False, True])
def test_a_try_that_airflow_ends_replaces_no_window(run, group, topic, tmp_path, monkeypatch, in_file):
    """Airflow calls on_kill for SIGTERM, and lets the task run for seconds: the next try may have planned."""
    file = tmp_path / "window.json"
    where: Any = {"window_file": str(file)} if in_file else {}
    task = PlanOffsetWindowOperator(task_id="plan", group_id=group, topics=topic, **where)

    def ended(*arguments, **parameters):
        os.kill(os.getpid(), signal.SIGTERM)
        return plan_window(*arguments, **parameters)

    monkeypatch.setattr(planning, "plan_window", ended)
    earlier = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    try:
        with pytest.raises(SystemExit):
            task.execute(run.context())
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert not run.xcoms
    assert not file.exists()


def test_a_plan_that_takes_too_long_ends_with_the_error_of_its_timeout():
    task = PlanOffsetWindowOperator(task_id="plan", topics="orders", start="earliest")
    try:
        raise AirflowTaskTimeout
    except AirflowTaskTimeout:
        task.on_kill()  # as Airflow calls it, before it raises the error again


@pytest.fixture
def add_partition(grow, produce):
    """add_partition(topic): partition 3, with two records."""

    def add(topic):
        grow(topic, 4)
        produce(topic, {3: 2})

    return add


@pytest.mark.parametrize(
    ("bounds", "start", "end"),
    [
        ({}, [5, 2, 0], [10, 4, 0]),
        ({"start": "earliest"}, [0, 0, 0], [10, 4, 0]),
        ({"start": HALF, "end": ONE.isoformat()}, [2, 2, 0], [6, 4, 0]),
        ({"end": "2026-03-01T12:08:00Z"}, [5, 2, 0], [8, 4, 0]),
        ({"end": HALF}, [5, 2, 0], [5, 2, 0]),
        ({"start": "TOPIC 1 1 0", "end": "TOPIC 9 4 0"}, [1, 1, 0], [9, 4, 0]),
        ({"max_records": "3"}, [5, 2, 0], [7, 3, 0]),
    ],
    ids=["default", "earliest", "times", "until a time", "the group is past the end", "offsets", "limited"],
)
def test_a_window_is_where_it_was_asked_for(run, topic, group, bounds, start, end):
    def offsets(value):
        if not str(value).startswith("TOPIC"):
            return value
        return {topic: dict(enumerate(map(int, value.split()[1:])))}

    found = plan(run, group_id=group, on_empty="continue", **{k: offsets(v) for k, v in bounds.items()})
    assert found["start"] == {topic: dict(zip("012", start, strict=True))}
    assert found["end"] == {topic: dict(zip("012", end, strict=True))}
    assert found["records"] == sum(end) - sum(start)
    assert found["source"]["run_id"] == "scheduled__1"
    assert found["source"]["limited"] is ("max_records" in bounds)


def test_the_job_gets_it_by_its_configuration(run, topic, group):
    task = PlanOffsetWindowOperator(task_id="plan", group_id=group)
    assert task.spark_conf() == {
        WINDOW_CONF_KEY: "{{ ti.xcom_pull(task_ids='plan', key='kafka_offsets.window') }}"
    }
    returned = task.execute(run.context())
    assert OffsetWindow.parse(run.xcoms["kafka_offsets.window"]) == OffsetWindow.parse(returned)
    assert json.loads(returned["spark_options"]["startingOffsets"]) == {topic: {"0": 5, "1": 2, "2": 0}}


def test_topics_are_named_by_a_pattern(run, topic, group):
    assert list(plan(run, group_id=group, topics_pattern=f"{topic[:-3]}...")["start"]) == [topic]
    with pytest.raises(AirflowFailException, match="no topic on the broker matches topics_pattern='topic'"):
        plan(Run(), group_id=group, topics_pattern="topic")


def test_a_replay_needs_no_group(run, topic):
    window = plan(run, topics=[topic], start=HALF, end=ONE)
    assert window["records"] == 6
    assert window["source"]["group_id"] is None
    with pytest.raises(AirflowFailException, match="start='committed' needs a group_id"):
        plan(Run(), topics=[topic])
    with pytest.raises(AirflowFailException, match="without a group needs topics"):
        plan(Run(), start="earliest")


def test_a_group_that_stands_elsewhere_is_told_in_the_log(run, group, caplog, holds):
    caplog.set_level(logging.WARNING)
    window = plan(run, group_id=group, start="earliest")
    assert "A first commit of this window would be refused now" in caplog.text
    assert "-0: found 5, the range goes from 0 to 10" in caplog.text
    with pytest.raises(AirflowFailException, match="-0: found 5, the range goes from 0 to 10"):
        commit(window, group_id=group)
    assert holds(group) == {0: 5, 1: 2, 2: 0}


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"start": NOON, "end": NOON}, "CronDataIntervalTimetable"),
        ({"start": ONE, "end": HALF}, "is after end"),
        ({"end": datetime(2999, 1, 1, tzinfo=timezone.utc)}, "is in the future"),
        ({"max_records": 0}, "max_records=0: expected 1 or more"),
        ({"topics_pattern": "("}, "is not a regular expression"),
    ],
)
def test_what_cannot_be_a_window_is_refused(run, group, bounds, said):
    with pytest.raises(AirflowFailException, match=said):
        plan_rendered(run, group_id=group, **bounds)


def test_offsets_that_end_before_they_start_are_refused(run, topic, group):
    with pytest.raises(AirflowFailException, match="ends before it starts on .*-0.*from 6 to 5"):
        plan(run, group_id=group, start={topic: {"0": 6}}, end={topic: {"0": 5}})
    with pytest.raises(AirflowFailException, match="start and end name different partitions"):
        plan_rendered(run, group_id=group, start={topic: {"0": 6}}, end={topic: {"1": 5}})


@pytest.mark.parametrize(
    ("policy", "start"), [("earliest", {"0": 0, "1": 0, "2": 0}), ("latest", {"0": 10, "1": 4, "2": 0})]
)
def test_a_group_without_a_commit_starts_where_it_is_told(
    run, topic, new_group, policy, start, holds, produce
):
    group = new_group()
    with pytest.raises(AirflowFailException, match="no committed offset on .*set on_no_commit"):
        plan(run, group_id=group, topics=topic)
    # Under latest the window is empty, and goes on all the same: its commit is what fixes the place.
    window = plan(Run(), group_id=group, topics=topic, on_no_commit=policy)
    assert window["start"] == {topic: start}
    assert window["committed"] == {topic: dict.fromkeys("012")}
    commit(window, group_id=group)
    assert holds(group) == {0: 10, 1: 4, 2: 0}
    produce(topic, {0: 1})
    assert plan(Run(), group_id=group, topics=topic)["records"] == 1


def test_a_topic_without_a_commit_may_be_left_out(run, topic, group, make_topic):
    other = make_topic(1)
    window = plan(run, group_id=group, topics=[topic, other], on_no_commit="skip")
    assert list(window["start"]) == [topic]
    # With the pipeline's names as they were given to the plan.
    assert list(commit(window, group_id=group, topics=[topic, other])["after"]) == [topic]
    with pytest.raises(AirflowSkipException):
        plan(Run(), group_id=group, topics=other, on_no_commit="skip")
    with pytest.raises(AirflowFailException, match="the window has no partitions"):
        plan(Run(), group_id=group, topics=other, on_no_commit="skip", on_empty="continue")


@pytest.mark.parametrize(
    ("on_empty", "raised"), [("skip", AirflowSkipException), ("fail", AirflowFailException)]
)
def test_an_empty_window_skips_or_fails_and_is_planned_anew_when_cleared(
    run, topic, group, broker, produce, on_empty, raised
):
    broker.commit(group, {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 4})
    with pytest.raises(raised, match="window is empty"):
        plan(run, group_id=group, on_empty=on_empty)
    produce(topic, {0: 1})
    assert plan(run.clear(), group_id=group, on_empty=on_empty)["records"] == 1


def test_records_that_retention_took_are_counted(run, topic, group, delete_records):
    delete_records(topic, {0: 8})
    with pytest.raises(
        AirflowFailException, match="retention has deleted 3 records of the window.*starts at 5, the log at 8"
    ):
        plan(run, group_id=group)
    with pytest.raises(AirflowFailException, match="retention has deleted 1 record of the window"):
        plan(run, start={topic: {"0": 7}})
    with pytest.raises(AirflowFailException, match="does not start before 2026-03-01T12:02.*8 in total"):
        plan(run, topics=topic, start=HALF)
    # There may have been more records of this time.
    with pytest.raises(AirflowFailException, match="does not start before 2026-03-01T12:08"):
        plan(run, topics=topic, start=NOON + timedelta(minutes=8))
    assert plan(run, topics=topic, start=NOON + timedelta(minutes=9))["records"] == 1
    assert plan(Run(), topics=topic, start="earliest")["records"] == 6


def test_records_that_retention_takes_while_a_time_is_looked_up_are_missed(
    run, topic, delete_records, monkeypatch
):
    look_up = OffsetsClient.offsets_for_time

    def after_retention(self, *asked):
        delete_records(topic, {0: 5})
        return look_up(self, *asked)

    monkeypatch.setattr(OffsetsClient, "offsets_for_time", after_retention)
    with pytest.raises(AirflowFailException, match="does not start before 2026-03-01T12:02.*5 in total"):
        plan(run, topics=topic, start=HALF)


def test_retention_between_plan_and_commit(run, topic, group, delete_records, holds):
    """What the job has read may go; what lies behind the end may not, unless that is said to be all right."""
    window = plan(run, group_id=group, end=NOON + timedelta(minutes=7))
    delete_records(topic, {0: 7})
    commit(window, group_id=group)
    assert holds(group) == {0: 7, 1: 4, 2: 0}
    later = plan(Run(), group_id=group, end=NOON + timedelta(minutes=8))
    delete_records(topic, {0: 9})
    with pytest.raises(
        AirflowFailException, match="offset 8 of .*-0 is outside its log, which holds 9 to 10"
    ):
        commit(later, group_id=group)
    assert holds(group) == {0: 7, 1: 4, 2: 0}
    commit(later, group_id=group, on_out_of_range="clamp")
    assert holds(group) == {0: 9, 1: 4, 2: 0}


def test_an_added_partition_is_read_from_its_start(run, topic, group, add_partition, holds):
    before = plan(run, group_id=group)
    add_partition(topic)
    commit(before, group_id=group)
    assert holds(group) == {0: 10, 1: 4, 2: 0}
    window = plan(Run(), group_id=group)
    assert (window["start"][topic]["3"], window["end"][topic]["3"], window["records"]) == (0, 2, 2)
    assert window["committed"][topic]["3"] is None
    commit(window, group_id=group)
    assert holds(group) == {0: 10, 1: 4, 2: 0, 3: 2}


def test_an_added_partition_that_was_cut_is_refused(run, topic, group, add_partition, delete_records):
    add_partition(topic)
    delete_records(topic, {3: 1})
    for policy in ("fail", "earliest"):
        with pytest.raises(AirflowFailException, match="deleted 1 record of the window on .*-3 "):
            plan(run, group_id=group, on_no_commit=policy)


def test_ends_meet_the_next_starts_while_records_come(topic, group, produce, holds):
    stop = threading.Event()

    def write():
        while not stop.wait(0.001):
            produce(topic, {0: 2, 1: 3, 2: 1})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        stands = {"0": 5, "1": 2, "2": 0}
        for number in range(5):
            produce(topic, {0: 1})  # the thread may not have come so far
            window = plan(Run(str(number)), group_id=group, max_records=None if number % 2 else 4)
            assert window["start"] == {topic: stands}
            commit(json.dumps(window), group_id=group)
            stands = window["end"][topic]
    finally:
        stop.set()
        thread.join()
    assert holds(group) == {int(number): offset for number, offset in stands.items()}


def test_an_added_partition_that_is_planned_alone_is_read_from_its_start(run, topic, group, add_partition):
    add_partition(topic)
    window = plan(run, group_id=group, topics=f"{topic}:3", on_no_commit="latest")
    assert (window["start"], window["records"]) == ({topic: {"3": 0}}, 2)


def test_an_empty_window_that_was_kept_is_kept(run, topic, new_group, produce):
    parameters = {"group_id": new_group(), "topics": topic, "on_no_commit": "latest"}
    window = plan(run, **parameters)
    assert window["records"] == 0
    produce(topic, {0: 3})
    assert plan(run.clear(), **parameters)["end"] == window["end"]


def test_a_window_between_times_is_refused_where_retention_has_left_nothing(run, topic, delete_records):
    delete_records(topic, {0: 10, 1: 4})
    with pytest.raises(AirflowFailException, match="retention has deleted all records of"):
        plan(run, topics=topic, start=HALF.isoformat(), end=ONE.isoformat())


def test_a_window_between_times_is_refused_where_compaction_has_removed_the_record_at_the_log_start(
    run, topic, delete_records, memory
):
    delete_records(topic, {0: 7})
    times = [-1 if at in (7, 8) else time for at, time in enumerate(TIMES)]
    logs = memory.topics[topic].logs
    compacted = logs[0]._replace(times=tuple(times), markers=frozenset({7, 8}))
    memory.topics[topic] = memory.topics[topic]._replace(logs=(compacted, *logs[1:]))
    with pytest.raises(AirflowFailException, match="does not start before 2026-03-01T12:02.*7 in total"):
        plan(run, topics=topic, start=HALF.isoformat())


@pytest.mark.parametrize(("kept", "refused"), [("3600000", True), (str(2**63 - 1), False), ("-1", False)])
def test_an_emptied_partition_beside_others_is_refused_if_the_window_is_older_than_retention(
    run, topic, delete_records, memory, kept, refused
):
    memory.topics[topic] = memory.topics[topic]._replace(settings=(("retention.ms", kept),))
    delete_records(topic, {1: 4})
    with (
        pytest.raises(AirflowFailException, match="retention has deleted all records of .*-1, 4 in total")
        if refused
        else nullcontext()
    ):
        assert plan(run, topics=topic, start=HALF.isoformat())["records"] == 8


def test_a_retention_that_the_broker_does_not_tell_in_time_lets_no_emptied_partition_pass(
    run, topic, delete_records, monkeypatch
):
    def no_answer(self, topics):
        raise BrokerUnavailableError("no answer")

    monkeypatch.setattr(OffsetsClient, "topic_settings", no_answer)
    delete_records(topic, {1: 4})
    with pytest.raises(BrokerUnavailableError):
        plan(run, topics=topic, start=HALF.isoformat())


def test_a_window_that_a_group_has_read_before_is_refused_where_retention_has_emptied_a_partition(
    run, topic, group, broker, delete_records, memory
):
    memory.topics[topic] = memory.topics[topic]._replace(settings=(("retention.ms", "3600000"),))
    broker.commit(group, {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 4})
    delete_records(topic, {1: 4})
    window = {"group_id": group, "topics": topic, "start": HALF.isoformat()}
    assert plan(run, **window)["records"] == 8
    broker.commit(group, {TopicPartition(topic, 0): 10})
    with pytest.raises(AirflowFailException, match="retention has deleted all records of .*-1, 4 in total"):
        plan(Run("again"), **window)


def test_a_late_record_of_the_last_window_does_not_refuse_the_next_one_beside_an_emptied_partition(
    run, topic, group, broker, delete_records
):
    broker.commit(group, {TopicPartition(topic, 0): 9, TopicPartition(topic, 1): 4})
    delete_records(topic, {1: 4})
    after = NOON + timedelta(hours=1)
    assert plan(run, group_id=group, topics=topic, start=after, on_empty="continue")["records"] == 0


def test_a_window_of_a_topic_that_was_made_anew_is_not_clamped_back(topic, group, holds):
    start = {topic: {"0": 100, "1": 100, "2": 100}}
    window = OffsetWindow.parse({"version": 1, "start": start, "end": start, "committed": start})
    with pytest.raises(AirflowFailException, match="the log ends before the window starts"):
        commit(window.as_json(), group_id=group, on_out_of_range="clamp")
    assert holds(group) == {0: 5, 1: 2, 2: 0}


@pytest.mark.parametrize("fenced", [True, False])
def test_a_window_that_somebody_else_commits_meanwhile_is_not_called_moved_by_this_task(
    run, topic, group, broker, holds, monkeypatch, fenced
):
    window = plan(run, group_id=group)
    real, events = commit_window, OutletEventAccessors()

    def after_another(client, group_id, part, metadata, **how):
        broker.commit(group_id, part.only([TopicPartition(topic, 0)]).end)
        return real(client, group_id, part, metadata, **how)

    monkeypatch.setattr(window_commit, "commit_window", after_another)
    asset = KafkaPipeline(group_id=group).asset
    operator = CommitOffsetWindowOperator(
        task_id="commit", window=window, fenced=fenced, group_id=group, outlets=[asset]
    )
    receipt = operator.execute({**Run("2").context(), "outlet_events": events})
    assert receipt["before"] == {topic: {"0": 10, "1": 2, "2": 0}}
    assert (receipt["changed"], receipt["moved_by"], receipt["verified"]) == (1, 2, True)
    assert (events[asset].extra["changed"], events[asset].extra["moved_by"]) == (1, 2)
    assert holds(group) == {0: 10, 1: 4, 2: 0}


def test_a_commit_that_skips_everything_is_refused_and_not_remembered(run, topic, group, holds):
    window = plan(Run(), group_id=group)
    past = window | {"end": {topic: dict.fromkeys("012", 99)}}
    for _ in range(2):
        with pytest.raises(
            AirflowFailException,
            match="nothing is left to write: offset 99 of .* outside its log.*: left alone",
        ):
            commit(past, run, group_id=group, on_out_of_range="skip")
    assert run.store == {}
    assert holds(group) == {0: 5, 1: 2, 2: 0}
    assert commit(window, run, group_id=group)["changed"] == 2
    assert run.store != {}


@pytest.mark.parametrize("fenced", [True, False])
def test_a_group_with_a_member_is_refused(run, topic, group, member, holds, fenced):
    window = plan(run, group_id=group)
    member(group, topic)
    with pytest.raises(AirflowFailException, match="1 active member .a-reader"):
        commit(window, group_id=group, fenced=fenced)
    assert holds(group) == {0: 5, 1: 2, 2: 0}


def test_a_refusal_says_which_run_has_moved_the_group_and_what_helps(group, holds):
    window = plan(Run("1"), group_id=group, max_records=3)
    commit(plan(Run("2"), group_id=group), Run("2"), group_id=group)
    with pytest.raises(AirflowFailException) as refused:
        commit(window, group_id=group)
    assert "Moved by run 2 of flights.plan at 20" in str(refused.value)
    assert "trigger a new run with start='committed': clearing the plan of this run gives the same" in str(
        refused.value
    )
    assert holds(group) == {0: 10, 1: 4, 2: 0}


@pytest.mark.parametrize("fenced", [True, False])
def test_a_group_that_kafka_forgot_was_not_moved_by_another_run(run, group, broker, fenced):
    window = plan(run, group_id=group)
    assert broker.delete_groups([group]) == {group: None}
    with pytest.raises(
        AirflowFailException, match="3 of the commits no longer exist: Kafka deletes"
    ) as refused:
        commit(window, group_id=group, fenced=fenced)
    assert "oved by" not in str(refused.value)


@pytest.mark.parametrize("of_a_group", [True, False])
def test_a_window_that_was_not_planned_for_the_group_says_so(of_a_group, run, topic, group, new_group, holds):
    other = new_group()
    names = {"group_id": group} if of_a_group else {"topics": topic, "start": "earliest"}
    planned = f"for group_id='{group}'" if of_a_group else "without a group"
    with pytest.raises(AirflowFailException) as refused:
        commit(plan(run, **names), group_id=other)
    assert f"the window was planned {planned}, and group '{other}' is not at its start" in str(refused.value)
    assert "no longer exist" not in str(refused.value)
    assert holds(other) == {}


@pytest.mark.parametrize(
    ("order", "refused"),
    [
        ("plan job commit", ""),
        ("plan cluster job commit, job end_cluster", ""),
        ("clean_up plan job commit", ""),
        ("gate commit, plan job commit", ""),
        ("plan job clean_up commit", "clean_up"),
        ("plan job clean_up other commit", "clean_up"),
        ("plan job clean_up commit, job commit", "clean_up"),
        ("plan job end_cluster commit", "end_cluster"),
        ("plan job join commit, plan other join", "join"),
        ("job clean_up commit", "clean_up"),
    ],
)
def test_a_window_is_not_committed_after_a_task_that_runs_although_the_job_has_not_read_it(
    order, refused, run, topic, group, holds
):
    window = plan(run, group_id=group)
    with DAG("flights") as dag:
        for name in ("plan", "cluster", "job", "other", "gate"):
            EmptyOperator(task_id=name)
        EmptyOperator(task_id="clean_up", trigger_rule="all_done")
        EmptyOperator(task_id="join", trigger_rule="none_failed_min_one_success")
        EmptyOperator(task_id="end_cluster").as_teardown()
        commit = CommitOffsetWindowOperator(task_id="commit", group_id=group, window=window, fenced=False)
    for names in order.split(", "):
        chain(*map(dag.get_task, names.split()))
    if refused:
        with pytest.raises(AirflowFailException, match=rf"'{refused}' has trigger_rule='.*expected 'all_suc"):
            commit.execute(run.context())
        assert holds(group) == {0: 5, 1: 2, 2: 0}
    else:
        commit.execute(run.context())
        assert holds(group) == {0: 10, 1: 4, 2: 0}


@pytest.mark.parametrize("rule", ["all_done", "none_failed", "none_failed_min_one_success", "one_success"])
def test_a_commit_that_runs_although_the_job_has_not_read_the_window_is_refused(rule, run, group, holds):
    window = plan(run, group_id=group)
    with DAG("flights"):
        commit = CommitOffsetWindowOperator(
            task_id="commit", group_id=group, window=window, fenced=False, trigger_rule=rule
        )
        EmptyOperator(task_id="plan") >> EmptyOperator(task_id="job") >> commit
    with pytest.raises(AirflowFailException, match=f"'commit' has trigger_rule='{rule}'"):
        commit.execute(run.context())
    assert holds(group) == {0: 5, 1: 2, 2: 0}


@pytest.mark.parametrize(
    ("order", "refused"),
    [
        ([("plan", "job")], True),
        ([("plan", "cluster"), ("cluster", "job")], True),
        ([("plan", "job"), ("end_cluster", "commit")], True),
        ([("plan", "job"), ("cluster", "plan"), ("cluster", "commit")], True),
        ([("plan", "job"), ("cluster", "commit")], True),
        ([("plan", "job"), ("job", "commit")], False),
        ([("plan", "job"), ("commit", "job")], False),
        ([], False),
    ],
)
def test_a_window_is_not_committed_while_its_job_runs_beside_the_commit(
    order, refused, run, topic, group, holds
):
    window = plan(run, group_id=group)
    with DAG("flights") as dag:
        for name in ("plan", "cluster", "job"):
            EmptyOperator(task_id=name)
        EmptyOperator(task_id="end_cluster").as_teardown()
        commit = CommitOffsetWindowOperator(task_id="commit", group_id=group, window=window, fenced=False)
    for before, after in [("plan", "commit"), *order]:
        dag.get_task(before) >> dag.get_task(after)
    if refused:
        said = f"no job of the window is before .*'{order[0][1]}' runs beside it.* before 'commit', and a"
        with pytest.raises(AirflowFailException, match=said):
            commit.execute(run.context())
        assert holds(group) == {0: 5, 1: 2, 2: 0}
    else:
        commit.execute(run.context())
        assert holds(group) == {0: 10, 1: 4, 2: 0}


@pytest.mark.parametrize(("planned_in", "refused"), [("flights", True), ("other", False)])
def test_a_window_is_not_committed_without_an_order_of_the_commit_after_its_job(
    planned_in, refused, run, topic, group, holds, monkeypatch
):
    """As with a window from a template or a file, which does not put the commit after its plan."""
    monkeypatch.setattr(TaskInstance, "dag_id", planned_in)
    window = plan(run, group_id=group)
    with DAG("flights"):
        commit = CommitOffsetWindowOperator(task_id="commit", group_id=group, window=window, fenced=False)
        EmptyOperator(task_id="plan") >> EmptyOperator(task_id="job")
        EmptyOperator(task_id="gate") >> commit
    with pytest.raises(AirflowFailException, match="'job' runs beside it") if refused else nullcontext():
        commit.execute(run.context())
    assert holds(group) == ({0: 5, 1: 2, 2: 0} if refused else {0: 10, 1: 4, 2: 0})


def test_an_empty_window_needs_no_job(run, topic, group):
    window = plan(run, group_id=group, end={topic: {"0": 5, "1": 2, "2": 0}}, on_empty="continue")
    with DAG("flights"):
        commit = CommitOffsetWindowOperator(
            task_id="commit", group_id=group, window=window, fenced=False, trigger_rule="none_failed"
        )
        EmptyOperator(task_id="job") >> commit
    assert commit.execute(run.context())["verified"]


# A plan that is cleared without its job.


@pytest.mark.parametrize(
    ("states", "refused"),
    [
        ({"job": "success", "commit": None}, True),
        ({"job": "success", "commit": "failed", "notify": "failed"}, True),
        ({"job": "success", "commit": "success", "notify": "failed"}, True),
        ({"job": None, "commit": None}, False),
        ({"job": None, "commit": "success"}, False),
        ({"job": "failed", "commit": "upstream_failed", "notify": "failed"}, False),
    ],
)
def test_another_window_is_not_planned_for_a_job_that_is_not_cleared(
    states, refused, topic, group, produce, monkeypatch
):
    """A commit of it would skip what that job has not read."""

    def planned(run, end):
        with DAG("flights"):
            task = PlanOffsetWindowOperator(task_id="plan", topics=topic, start="2026-03-01", end=end)
            job, commit, notify = (EmptyOperator(task_id=name) for name in ("job", "commit", "notify"))
            task >> [job, commit, notify]
            job >> commit
        context: Any = run.context()
        found = {run.run_id: {"notify": "success"} | states}
        monkeypatch.setattr(context["ti"], "get_task_states", lambda **_: found, raising=False)
        return task.execute(context)

    run = Run()
    first = planned(run, HALF)
    assert planned(run.clear(), HALF) == first
    if refused:
        with pytest.raises(AirflowFailException, match="job succeeded in this run, .* together with plan"):
            planned(run.clear(), ONE)
    else:
        assert planned(run.clear(), ONE)["records"] > first["records"]


@pytest.mark.parametrize(("before", "now"), [(2, 1), (2, 0), (0, 1), (0, 3)])
def test_another_window_is_not_planned_for_a_job_that_is_not_cleared_if_retries_were_changed_too(
    before, now, topic, group, produce, monkeypatch
):
    """Airflow counts with the retries of its stored DAG, and the worker has those of the new file."""

    def planned(run, end, retries):
        with DAG("flights"):
            task = PlanOffsetWindowOperator(
                task_id="plan", topics=topic, start="2026-03-01", end=end, retries=retries
            )
            task >> EmptyOperator(task_id="job") >> EmptyOperator(task_id="commit")
        context: Any = run.context()
        found = {run.run_id: {"job": "success", "commit": None}}
        monkeypatch.setattr(context["ti"], "get_task_states", lambda **_: found, raising=False)
        return task.execute(context)

    run = Run()
    planned(run, HALF, before)
    run.clear().max_tries += before
    with pytest.raises(AirflowFailException, match="job succeeded in this run, .* together with plan"):
        planned(run, ONE, now)


# A commit that is cleared.


@pytest.mark.parametrize("fenced", [True, False])
def test_a_cleared_commit_is_done_where_later_windows_were_committed(
    topic, group, produce, holds, capsys, fenced
):
    cleared = Run("1")
    first = plan(Run("1"), group_id=group)
    commit(first, cleared, group_id=group, fenced=fenced)
    # A group that is at the end is committed again, because Kafka deletes offsets that are too old.
    assert "committed_at" not in commit(first, cleared.clear(), group_id=group, fenced=fenced)["source"]
    produce(topic, {0: 3})
    commit(plan(Run("2"), group_id=group), Run("2"), group_id=group, fenced=fenced)
    again = commit(first, cleared.clear(), group_id=group, fenced=fenced)
    assert (again["changed"], again["after"][topic]["0"]) == (0, 13)
    assert "committed_at" in again["source"]
    said = capsys.readouterr().out
    assert "nothing to do: this task has committed the window at" in said
    assert "moved by run 2 of flights.plan" in said
    assert holds(group) == {0: 13, 1: 4, 2: 0}


def test_a_cleared_commit_is_refused_where_nothing_proves_that_it_was_done(topic, group, produce, holds):
    unproved = Run("1", store=False)
    first = plan(Run("1"), group_id=group)
    commit(first, unproved, group_id=group)
    produce(topic, {0: 3})
    commit(plan(Run("2"), group_id=group), Run("2"), group_id=group)
    # Airflow before 3.3, and a task that has committed another window.
    for run in (unproved.clear(), Run("1")):
        with pytest.raises(AirflowFailException, match="-0: found 13, the range goes from 5 to 10"):
            commit(first, run, group_id=group)
    assert holds(group) == {0: 13, 1: 4, 2: 0}


@pytest.mark.parametrize("moved", [{0: 5, 1: 3}, {0: 7}, {0: 12, 1: 3}], ids=["between", "back", "one back"])
def test_a_cleared_commit_is_refused_where_the_group_is_before_the_windows_end(
    topic, group, produce, broker, holds, moved
):
    cleared = Run("1")
    first = plan(Run("1"), group_id=group)
    commit(first, cleared, group_id=group)
    produce(topic, {0: 3})
    broker.commit(group, {TopicPartition(topic, number): offset for number, offset in moved.items()})
    with pytest.raises(AirflowFailException, match="is neither at the start nor at the end"):
        commit(first, cleared.clear(), group_id=group)
    assert holds(group) == {0: 10, 1: 4, 2: 0} | moved


def test_each_topic_may_have_a_group_of_its_own_and_one_that_has_gone_on_is_left_alone(
    run, topic, group, make_topic, produce, new_group, holds, broker
):
    other_topic, other = make_topic(1), new_group()
    produce(other_topic, {0: 3})
    groups = {topic: group, other_topic: other}
    cleared = Run("1")
    window = plan(run, group_id=groups, on_no_commit="earliest", topics=[topic, other_topic])
    assert window["committed"] == {topic: {"0": 5, "1": 2, "2": 0}, other_topic: {"0": None}}
    commit(window, cleared, group_id=groups)
    produce(topic, {0: 1})
    broker.commit(group, {TopicPartition(topic, 0): 11})
    commit(window, cleared.clear(), group_id=groups)
    assert (holds(group), holds(other)) == ({0: 11, 1: 4, 2: 0}, {0: 3})


# A topic that was deleted and created again.


def test_a_cleared_commit_is_refused_where_the_topic_was_created_again_since(
    run, make_topic, produce, recreate, new_group, broker
):
    topic, group, cleared = make_topic(1), new_group(), Run("1")
    produce(topic, {0: 5})
    window = plan(run, group_id=group, topics=topic, on_no_commit="earliest")
    commit(window, cleared, group_id=group)
    recreate(topic, 1)
    produce(topic, {0: 9})
    broker.commit(group, {TopicPartition(topic, 0): 9})
    with pytest.raises(AirflowFailException, match="was deleted and created again: the window"):
        commit(window, cleared.clear(), group_id=group)


def test_a_window_of_a_topic_that_was_created_again_is_refused(
    run, make_topic, produce, recreate, new_group, broker
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    window = plan(run, group_id=group, topics=topic, on_no_commit="earliest")
    recreate(topic, 1)
    produce(topic, {0: 9})
    with pytest.raises(AirflowFailException, match=f"'{topic}' was deleted and created again: the window"):
        commit(window, group_id=group)
    assert broker.committed_everywhere(group) == {}
    with pytest.raises(AirflowFailException, match="was deleted and created again: the window"):
        plan(run.clear(), group_id=group, topics=topic, on_no_commit="earliest")
    assert plan(Run("2"), group_id=group, topics=topic, on_no_commit="earliest")["records"] == 9


# What a run had is what it gets.


def test_a_retry_and_a_cleared_run_get_the_window_that_there_was(run, topic, group, produce):
    first = plan(run, group_id=group)
    produce(topic, {0: 3})
    assert plan(run, group_id=group) == first
    commit(first, group_id=group)
    assert plan(run.clear(), group_id=group) == first
    assert plan(Run("scheduled__2"), group_id=group)["start"] == first["end"]


def test_a_window_that_was_never_planned_is_planned_in_a_cleared_run(run, topic, new_group, broker):
    group = new_group()
    with pytest.raises(AirflowFailException, match="no committed offset"):
        plan(run, group_id=group, topics=topic)
    broker.commit(group, {TopicPartition(topic, number): 0 for number in range(3)})
    assert plan(run.clear(), group_id=group, topics=topic)["records"] == 14


def test_other_parameters_than_before_are_refused_unless_they_name_the_records(run, topic, group):
    plan(run, group_id=group)
    with pytest.raises(
        AirflowFailException, match="planned its window at .* with other parameters .*end=latest"
    ):
        plan(run.clear(), group_id=group, max_records=1)
    with pytest.raises(
        AirflowFailException, match=f"other parameters .*group_id={group}.*kafka_config_id=kafka"
    ):
        plan(run.clear(), group_id={topic: group})
    times = Run("2")
    plan(times, topics=topic, start=NOON, end=HALF)
    assert plan(times.clear(), topics=topic, start=NOON, end=ONE)["records"] == 10


def test_a_kept_window_is_looked_up_in_the_log(run, topic, group, delete_records):
    plan(run, group_id=group)
    delete_records(topic, {0: 6})
    with pytest.raises(AirflowFailException, match="retention has deleted 1 record of the window"):
        plan(run.clear(), group_id=group)


def test_without_a_memory_a_cleared_run_is_refused_unless_its_bounds_say_the_same(topic, group, produce):
    run, times, half = Run(store=False), Run(store=False), Run(store=False)
    plan(run, group_id=group)
    produce(topic, {0: 3})
    # Nothing that follows has run, for it was this task that failed.
    assert plan(run, group_id=group)["end"][topic]["0"] == 13
    with pytest.raises(AirflowFailException, match="this run was cleared.*trigger a new run"):
        plan(run.clear(), group_id=group)
    first = plan(times, group_id=group, start=HALF, end=ONE)
    second = plan(times.clear(), group_id=group, start=HALF, end=ONE)
    assert (first["start"], first["end"]) == (second["start"], second["end"])
    plan(half, group_id=group, start=HALF, end="latest")
    with pytest.raises(AirflowFailException, match="this run was cleared.*trigger a new run"):
        plan(half.clear(), group_id=group, start=HALF, end="latest")


def test_without_a_memory_the_group_tells_that_the_run_has_committed(topic, group, produce):
    run = Run(store=False)
    commit(plan(run, group_id=group), group_id=group)
    produce(topic, {0: 3})
    with pytest.raises(AirflowFailException, match="this run has already committed"):
        plan(run, group_id=group)
    assert plan(Run("scheduled__2", store=False), group_id=group)["records"] == 3


def test_without_a_memory_a_task_that_has_not_run_before_plans_in_a_cleared_run(group):
    assert plan(Run(store=False).clear(), group_id=group)["records"] == 7


def test_what_a_deleted_run_with_the_same_id_has_committed_is_not_taken_for_this_run_s(topic, group, produce):
    deleted, run = Run(store=False), Run(store=False, start_date=NOON + timedelta(days=1))
    commit(plan(deleted, group_id=group), deleted, group_id=group)
    produce(topic, {0: 3})
    plan(run, group_id=group)
    assert plan(run, group_id=group)["records"] == 3


# Windows in files.


@pytest.mark.parametrize("store", [True, False])
def test_a_file_with_the_window_of_a_deleted_run_with_the_same_id_is_replaced(
    topic, group, produce, tmp_path, store
):
    uri = str(tmp_path / "window.json")
    deleted, run = Run(store=store), Run(store=store, start_date=NOON + timedelta(days=1))
    first = plan(deleted, group_id=group, window_file=uri)
    produce(topic, {0: 3})
    second = plan(run, group_id=group, window_file=uri)
    assert second["records"] == first["records"] + 3
    assert plan(run.clear(), group_id=group, window_file=uri) == second


def test_a_cleared_loop_plans_an_iteration_that_has_not_committed_and_no_other_one(topic, group, produce):
    # Airflow makes the iterations after a cleared one anew: their first try, with nothing kept.
    planned = [Run(), Run()]
    commit(plan(planned[0].iteration(0), group_id=group), planned[0], group_id=group)
    produce(topic, {0: 3})
    assert plan(Run().clear().iteration(1), group_id=group)["records"] == 3
    commit(plan(planned[1].iteration(1), group_id=group), planned[1], group_id=group)
    produce(topic, {0: 2})
    with pytest.raises(AirflowFailException, match="this run has already committed"):
        plan(Run().clear().iteration(1), group_id=group)
    assert plan(Run().clear().iteration(2), group_id=group)["records"] == 2


@pytest.mark.parametrize("store", [True, False])
def test_a_file_keeps_the_window(topic, group, produce, tmp_path, store, holds):
    run, uri = Run(store=store), f"file://{tmp_path}/windows/1.json"
    first = plan(run, group_id=group, window_file=uri)
    assert first["window_file"] == run.xcoms["kafka_offsets.window"] == uri
    produce(topic, {0: 3})
    assert plan(run.clear(), group_id=group, window_file=uri) == first
    assert [file.name for file in (tmp_path / "windows").iterdir()] == ["1.json"]
    commit(uri, group_id=group)
    assert holds(group) == {0: 10, 1: 4, 2: 0}


def test_a_file_that_is_gone_is_refused(run, group, tmp_path):
    file = tmp_path / "window.json"
    plan(run, group_id=group, window_file=str(file))
    file.unlink()
    with pytest.raises(AirflowFailException, match="the window of this run, does not exist any more"):
        plan(run.clear(), group_id=group, window_file=str(file))
    with pytest.raises(AirflowFailException, match="the file does not exist"):
        commit(str(file), group_id=group)


@pytest.mark.parametrize("file_before", [False, True])
def test_a_changed_file_name_does_not_overwrite_another_run_s_window(group, tmp_path, file_before):
    other = tmp_path / "other.json"
    plan(Run("other"), group_id=group, window_file=str(other))
    run, before = Run("1"), other.read_text()
    plan(run, group_id=group, window_file=str(tmp_path / "mine.json") if file_before else None)
    with pytest.raises(AirflowFailException, match="contains the window of another run"):
        plan(run.clear(), group_id=group, window_file=str(other))
    assert other.read_text() == before
    new = tmp_path / "new.json"
    again = plan(run.clear(), group_id=group, window_file=str(new))
    assert OffsetWindow.parse(again).digest == OffsetWindow.parse(json.loads(new.read_text())).digest


def test_a_window_that_would_end_at_a_record_ahead_of_the_clock_is_refused(run, make_topic, produce):
    topic = make_topic(1, {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**62)})
    later = int((datetime.now(tz=timezone.utc) + timedelta(days=30)).timestamp() * 1000)
    produce(topic, {0: 4}, {0: [TIMES[0], later, TIMES[1], TIMES[9]]})
    with pytest.raises(AirflowFailException, match="offset 1 is of .* records of the window may follow it"):
        plan(run, topics=topic, start=NOON, end=HALF)
    assert plan(Run("2"), topics=topic, start="earliest")["records"] == 4


def test_a_window_that_is_too_large_for_an_argument_needs_a_file(run, group, tmp_path, monkeypatch, holds):
    monkeypatch.setattr(planning, "MAX_ARGUMENT", 50)
    with pytest.raises(
        AirflowFailException, match="a program's argument can have at most 128 KiB: set window_file"
    ):
        plan(run, group_id=group)
    uri = str(tmp_path / "window.json")
    small = plan(run, group_id=group, window_file=uri)
    assert {"version", "records", "partitions", "source", "window_file"} == set(small)
    commit(small, group_id=group)
    assert holds(group) == {0: 10, 1: 4, 2: 0}
    other = OffsetWindow.parse((tmp_path / "window.json").read_text())
    other = OffsetWindow(other.ranges, source={**other.source, "run_id": "scheduled__2"})
    (tmp_path / "window.json").write_text(other.as_text())
    with pytest.raises(AirflowFailException, match="contains the window of another run"):
        commit(small, group_id=group)


@pytest.mark.parametrize("limit", [50, 100_000], ids=["XCom has the totals", "XCom has the window"])
@pytest.mark.parametrize(
    ("start", "end"),
    [({}, {"0": 9}), ({"0": 4, "1": 3}, {})],
    ids=["fewer records", "as many"],
)
def test_a_file_that_was_edited_is_refused(
    run, topic, group, tmp_path, monkeypatch, holds, limit, start, end
):
    monkeypatch.setattr(planning, "MAX_ARGUMENT", limit)
    file = tmp_path / "window.json"
    window = plan(run, group_id=group, window_file=str(file))
    edited = json.loads(file.read_text())
    edited["start"][topic] |= start
    edited["committed"][topic] |= start
    edited["end"][topic] |= end
    file.write_text(json.dumps(edited))
    with pytest.raises(AirflowFailException, match="was changed since .* planned: found other ranges"):
        commit(window, group_id=group)
    assert holds(group) == {0: 5, 1: 2, 2: 0}
    with pytest.raises(AirflowFailException, match="was changed since the window was planned"):
        plan(run.clear(), group_id=group, window_file=str(file))


def test_a_file_that_is_gone_is_not_needed_where_xcom_has_the_window(run, group, tmp_path, holds):
    file = tmp_path / "window.json"
    window = plan(run, group_id=group, window_file=str(file))
    file.unlink()
    commit(window, group_id=group)
    assert holds(group) == {0: 10, 1: 4, 2: 0}
