"""Complete hours of a real log: transactions, topics that are created again, checkpoints and resets."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset
from confluent_kafka import Producer
from interval_runs import FakeAirflow
from written_query import Query

from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.kafka import record_reads
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.integration

DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
FOREVER = {"retention.ms": "-1"}
HOURS = Asset("hours")


def ms(hours: float) -> int:
    return int((DAY + timedelta(hours=hours)).timestamp() * 1000)


class Runs:
    """Runs of the operator on one pipeline, and the hours that they emit."""

    def __init__(self, **names: Any) -> None:
        self.names = names
        self.airflow = FakeAirflow()
        self.number = 0

    def run(self, **parameters: Any) -> list[str]:
        """Return the hours that a run emits, such as "05"."""
        given = {"outlets": [HOURS], "start_from": DAY.isoformat(), **self.names, **parameters}
        operator = CompletedIntervalsOperator(task_id="hours", **given)
        before = len(self.airflow.keys())
        self.number += 1
        self.airflow.run(operator, f"run-{self.number}")
        return [key[11:13] if key < "2026-03-02" else key[5:13] for key in self.airflow.keys()[before:]]


@pytest.fixture
def write(produce):
    """write(topic, {0: [0.5, 1.5]}) writes records of these hours."""

    def send(topic, hours):
        counts = {number: len(each) for number, each in hours.items()}
        produce(topic, counts, {number: [ms(each) for each in them] for number, them in hours.items()})

    return send


def test_hours_come_as_the_group_passes_their_last_records(make_topic, write, commit, group):
    topic = make_topic(2, FOREVER)
    write(topic, {0: [0.1, 0.9, 1.5, 3.2], 1: [0.2, 1.1, 2.9]})
    runs = Runs(group_id=group, topics=topic)
    commit(group, topic, {0: 1, 1: 1})
    assert runs.run() == []
    commit(group, topic, {0: 2, 1: 1})
    assert runs.run() == ["00"]
    commit(group, topic, {0: 4, 1: 3})
    assert runs.run() == ["01"]  # the second partition holds nothing of 03:00 or later
    write(topic, {1: [3.1]})
    assert runs.run() == ["02"]
    assert runs.run() == []


def test_a_group_without_a_commit_is_told_in_the_log(make_topic, write, group, capsys, caplog):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.1, 1.2]})
    for parameters in ({}, {"start_from": None}):
        assert Runs(group_id=group, topics=topic).run(**parameters) == []
        said = capsys.readouterr().out + caplog.text
        assert "The group has no committed offset: no interval is complete" in said


@pytest.mark.parametrize("abort", [False, True])
def test_markers_of_transactions_show_nothing_and_hold_nothing_up(
    make_topic, send_in_transaction, commit, group, abort
):
    topic = make_topic(1, FOREVER)
    tp = TopicPartition(topic, 0)
    runs = Runs(group_id=group, topics=topic)
    # Each record, and its marker, which carries the broker's clock: that of today.
    send_in_transaction(tp, ms(0.5))
    send_in_transaction(tp, ms(0.7), abort=abort)
    for position in (1, 2, 3, 4):
        commit(group, topic, {0: position})
        assert runs.run() == [], position
    send_in_transaction(tp, ms(1.5))
    commit(group, topic, {0: 2})
    assert runs.run() == []
    # A consumer that commits the offset after its last record has not passed the marker.
    commit(group, topic, {0: 3})
    assert runs.run() == ["00"]
    send_in_transaction(tp, ms(2.5))
    commit(group, topic, {0: 8})
    assert runs.run() == ["01"]


def test_a_topic_that_was_created_again_is_refused_until_the_group_is_moved(
    make_topic, write, group, recreate, broker, new_query
):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.5, 1.5]})
    query = new_query({topic: {0: 2}})
    names = {"group_id": group, "topics": topic}
    commit = CommitOffsetsOperator(task_id="commit", checkpoint_location=query.location, **names)
    commit.execute({})
    old = broker.committed(group, [TopicPartition(topic, 0)])
    runs = Runs(**names)
    assert runs.run() == ["00"]
    recreate(topic, 1)
    write(topic, {0: [1.6, 2.5, 3.5]})
    # Kafka has deleted the commits with the topic, but somebody has put them back.
    broker.commit(group, {TopicPartition(topic, 0): 2}, old[TopicPartition(topic, 0)].metadata)
    with pytest.raises(AirflowFailException, match="deleted and created again"):
        runs.run()
    broker.commit(group, {TopicPartition(topic, 0): 3})
    assert runs.run() == ["01", "02"]


# -- checkpoints and their moves --


@pytest.fixture
def recorded(make_topic, write):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.5, 1.5, 2.5, 3.5, 4.5]})
    return topic


def reset(query, group, to_offset, context, run="reset", **parameters):
    context["ti"].run_id = run
    return ResetOffsetsOperator(
        task_id="reset",
        group_id=group,
        checkpoint_location=query.location,
        to_offset=to_offset,
        quiet_period=0,
        **parameters,
    ).execute(context)


def test_the_hours_of_a_checkpoint_need_no_group(recorded, new_query):
    query = new_query({recorded: {0: 3}})
    runs = Runs(checkpoint_location=query.location)
    assert runs.run() == ["00", "01", "02"]
    query.run(2, {recorded: {0: 5}})
    assert runs.run() == ["03"]


def test_a_new_query_in_the_same_location_is_refused_until_it_is_told_where_to_begin(recorded, new_query):
    query = new_query({recorded: {0: 2}})
    runs = Runs(checkpoint_location=query.location)
    assert runs.run() == ["00", "01"]
    # The query was started anew without its checkpoint, and has skipped records.
    shutil.rmtree(query.root)
    Query(query.root, "aaaaaaaa-2222-3333-4444-555555555555").run(0, {recorded: {0: 5}})
    with pytest.raises(
        AirflowFailException, match="query_id was '.*' and is 'aaaaaaaa-.*start_from to a new"
    ):
        runs.run()
    assert runs.run(start_from=(DAY + timedelta(hours=3)).isoformat()) == ["03"]


def test_before_its_first_batch_a_checkpoint_has_no_hours(recorded, tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    runs = Runs(checkpoint_location=str(tmp_path))
    assert runs.run() == []
    assert runs.airflow.kept == {}


@pytest.mark.parametrize("position", ["group", "checkpoint"])
def test_a_reset_that_was_read_again_between_two_runs_is_seen_in_the_checkpoint(
    recorded, new_query, group, commit, context, position
):
    query = new_query({recorded: {0: 4}})
    commit(group, recorded, {0: 4})
    runs = Runs(group_id=group, checkpoint_location=query.location, position=position)
    assert runs.run() == ["00", "01", "02", "03"]
    reset(query, group, {recorded: {"0": 1}}, context)
    query.run(2, {recorded: {0: 5}})
    commit(group, recorded, {0: 5})
    assert runs.run() == ["01", "02", "03"]
    assert runs.run() == []


def test_a_reset_that_was_taken_back_takes_nothing_back(recorded, new_query, group, commit, context):
    query = new_query({recorded: {0: 4}})
    commit(group, recorded, {0: 4})
    names = {"group_id": group, "checkpoint_location": query.location}
    runs = Runs(**names)
    assert runs.run() == ["00", "01", "02", "03"]
    receipt = reset(query, group, {recorded: {"0": 1}}, context)
    RestoreOffsetsOperator(task_id="restore", receipt=receipt, restore_when="always", **names).execute(
        context
    )
    assert runs.run() == []


def test_a_move_of_the_checkpoint_alone_takes_nothing_back_from_the_group(
    recorded, new_query, group, commit, cli, bootstrap_servers
):
    query = new_query({recorded: {0: 4}})
    commit(group, recorded, {0: 4})
    runs = Runs(group_id=group, checkpoint_location=query.location)
    assert runs.run() == ["00", "01", "02", "03"]
    how = ("--bootstrap-server", bootstrap_servers, "--quiet-period", "0", "--execute")
    done = cli("checkpoint", "seek", query.location, "--to-offset", 1, *how)
    assert done.code == 0, done.err
    assert runs.run() == []
    assert Runs(checkpoint_location=query.location).run() == ["00"]


# -- the window of a partitioned run --


class Run:
    def __init__(self, key: str | None) -> None:
        self.partition_key = key


def plan(context, key, **parameters):
    return PlanOffsetWindowOperator(task_id="plan", on_empty="continue", **parameters).execute(
        {**context, "dag_run": Run(key)}
    )


def test_a_run_reads_the_hour_that_its_partition_key_names(recorded, context, produce):
    window = plan(context, "2026-03-01T02:00:00", topics=recorded, every="hour")
    assert (window["start"], window["end"]) == ({recorded: {"0": 2}}, {recorded: {"0": 3}})
    assert window["source"]["start"] == "2026-03-01T02:00:00+00:00"
    # Airflow's own mappers name hours and days in short.
    assert plan(context, "2026-03-01T02", topics=recorded, every="hour")["end"] == window["end"]
    day = plan(context, "2026-03-01", topics=recorded, every="day")
    assert (day["start"], day["end"]) == ({recorded: {"0": 0}}, {recorded: {"0": 5}})
    berlin = plan(context, "2026-03-01T02:00:00", topics=recorded, every="hour", timezone="Europe/Berlin")
    assert berlin["start"] == {recorded: {"0": 1}}


def test_a_run_whose_partition_key_names_no_interval_is_refused(recorded, context):
    with pytest.raises(
        AirflowFailException, match="this run has no partition key: .*PartitionedAssetTimetable"
    ):
        plan(context, None, topics=recorded, every="hour")
    with pytest.raises(AirflowFailException, match="partition_key='2026-03-01T02:30:00' is not the start"):
        plan(context, "2026-03-01T02:30:00", topics=recorded, every="hour")
    with pytest.raises(AirflowFailException, match="is in the future"):
        plan(context, "2199-03-01T02:00:00", topics=recorded, every="hour")
    with pytest.raises(UsageError, match="max_records.*with every"):
        plan(context, "2026-03-01T02:00:00", topics=recorded, every="hour", max_records=1)


def test_a_run_of_an_emitted_day_does_not_read_one_hour(recorded, context):
    extra = {"every": "day", "timezone": "UTC", "token": "t"}
    event = SimpleNamespace(partition_key="2026-03-01T00:00:00", extra=extra)
    started = {**context, "triggering_asset_events": {HOURS: [event]}}
    with pytest.raises(AirflowFailException, match="set every='day' and timezone='UTC'"):
        plan(started, "2026-03-01T00:00:00", topics=recorded, every="hour")
    day = plan(started, "2026-03-01T00:00:00", topics=recorded, every="day")
    assert day["end"] == {recorded: {"0": 5}}


def test_the_marker_of_a_transaction_does_not_end_an_hour(
    make_topic, commit, group, context, bootstrap_servers
):
    topic = make_topic(1, FOREVER)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(20)
    for hours in ([0.1, 0.2], [0.3, 0.4], [1.1], [2.1], [3.1]):  # the records' own times
        producer.begin_transaction()
        for hour in hours:
            producer.produce(topic, b"", partition=0, timestamp=ms(hour))
        producer.commit_transaction(20)
    commit(group, topic, {0: 12})
    assert Runs(group_id=group, topics=topic).run() == ["00", "01", "02"]
    windows = [plan(context, f"2026-03-01T0{hour}:00:00", topics=topic, every="hour") for hour in range(3)]
    assert [(each["start"][topic]["0"], each["end"][topic]["0"]) for each in windows] == [
        (0, 6),
        (6, 8),
        (8, 10),
    ]


def test_hours_meet_at_the_same_record_whenever_they_are_planned(make_topic, context, bootstrap_servers):
    topic = make_topic(1, FOREVER)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(20)

    def write(*hours):
        producer.begin_transaction()
        for hour in hours:
            producer.produce(topic, b"", partition=0, timestamp=ms(hour))
        producer.commit_transaction(20)

    write(0.1)
    write(0.2, 1.1, 0.3)
    first = plan(context, "2026-03-01T00:00:00", topics=topic, every="hour")
    write(0.4, 0.5, 0.6, 1.2, 0.7, 1.3)
    second = plan(context, "2026-03-01T01:00:00", topics=topic, every="hour")
    assert (first["end"], second["start"]) == ({topic: {"0": 3}}, {topic: {"0": 3}})


def test_a_broker_whose_records_are_slow_hides_no_deleted_ones(
    make_topic, write, context, delete_records, monkeypatch
):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.1, 0.2, 1.1, 2.1]})
    delete_records(topic, {0: 2})
    monkeypatch.setattr(record_reads, "_TIMES_WITHIN", 0.002)
    with pytest.raises(BrokerUnavailableError):
        plan(context, "2026-03-01T00:00:00", topics=topic, every="hour")


def test_the_key_of_a_day_is_no_hour(make_topic, write, context):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.1, 5.1, 24.1]})
    with pytest.raises(AirflowFailException, match="is not the start of an interval"):
        plan(context, "2026-03-01", topics=topic, every="hour")
    with pytest.raises(AirflowFailException, match="is not the start of an interval"):
        plan(context, "9999-12-31", topics=topic, every="hour")


def test_a_checkpoint_whose_topic_was_created_again_is_refused_until_it_is_moved(
    recorded, new_query, recreate, write, context, group
):
    query = new_query({recorded: {0: 3}})
    runs = Runs(checkpoint_location=query.location)
    assert runs.run() == ["00", "01", "02"]
    recreate(recorded, 1)
    write(recorded, {0: [3.1, 3.2, 3.3, 4.5, 5.5]})
    with pytest.raises(AirflowFailException, match="was deleted and created again"):
        runs.run()
    reset(query, group, "earliest", context, topics=recorded)
    query.run(2, {recorded: {0: 5}})
    assert runs.run() == ["03", "04"]
