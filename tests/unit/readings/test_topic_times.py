"""First records at or after a time, where a lookup by time finds a marker or a record ahead of the clock."""

from datetime import datetime, timezone
from typing import Any

import pytest
from memory_broker import filled_broker

from airflow_kafka_offsets.errors import BrokerUnavailableError, PlanRefusedError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import LogRange, OffsetRange, TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.readings.topic_times import first_records, records_since
from airflow_kafka_offsets.readings.window import cut_off_refusals, plan_window
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.topic import TopicWait

TP = TopicPartition("orders", 0)
NOW = datetime.now(tz=timezone.utc)
MS = int(NOW.timestamp() * 1000)
MINUTE = 60_000
AHEAD = MS + 7 * 86_400_000
NOON = MS - 60 * MINUTE
TARGET = datetime.fromtimestamp(NOON / 1000, tz=timezone.utc)


class Log(OffsetsClient):
    """A partition with records of these times; a marker has the time of its broker, and is no record."""

    def __init__(self, *times: int, markers: tuple[int, ...] = (), unreadable: bool = False) -> None:
        broker = filled_broker(times)
        for offset in markers:
            broker.mark("orders", 0, offset)
        super().__init__(broker.config())
        self._unreadable = unreadable

    def record_times(self, offsets: Any, **parameters: Any) -> Any:
        return {} if self._unreadable else super().record_times(offsets, **parameters)

    def first_since(self, ranges: Any, timestamp_ms: int, **parameters: Any) -> Any:
        return {} if self._unreadable else super().first_since(ranges, timestamp_ms, **parameters)


def since(log: Log, moment: int = NOON) -> tuple[int, bool]:
    found = records_since(log, [TP], moment, log.log_ranges([TP]))
    return found.offsets[TP], TP in found.ahead


def first(log: Log) -> int | None:
    found, _ = first_records(log, [TP], NOON, log.log_ranges([TP]))
    return found[TP]


def test_the_first_record_since_a_time_is_found_behind_a_marker():
    older, later = [NOON - MINUTE] * 5, [NOON + MINUTE] * 2
    log = Log(NOON - MINUTE, NOON + MINUTE, *older, *later, markers=(1,))
    assert since(log) == (7, False)
    assert since(Log(NOON - MINUTE, NOON + MINUTE, *older, markers=(1,))) == (7, False)  # the log end
    assert since(Log(NOON - MINUTE, NOON + MINUTE, markers=(1,))) == (1, False)
    assert since(Log(NOON - MINUTE, NOON, NOON + MINUTE)) == (1, False)
    assert since(Log(NOON - MINUTE)) == (1, False)
    assert since(Log()) == (0, False)


def test_windows_that_meet_at_a_time_leave_no_record_between_them():
    before, after = NOON - MINUTE, NOON + MINUTE
    times = [before, after, before, after, before, before, after, before, after]
    early, late = (Log(*times[:count], markers=(1,)) for count in (5, len(times)))
    # The first window is planned as soon as its time has passed, the next one an hour later.
    assert since(early) == since(late) == (3, False)


def test_a_record_ahead_of_the_clock_is_named():
    assert since(Log(NOON - MINUTE, AHEAD, NOON - MINUTE, NOON)) == (1, True)
    # Found by the search behind the marker, too.
    assert since(Log(NOON - MINUTE, NOON, NOON - MINUTE, AHEAD, markers=(1,))) == (3, True)
    # Clocks differ a little.
    assert since(Log(NOON - MINUTE, MS + MINUTE // 2)) == (1, False)


@pytest.mark.parametrize(
    "ask", [since, lambda log: cut_off_refusals(log, {TP: 1}, {TP: LogRange(1, 2)}, TARGET)]
)
def test_times_that_cannot_be_read_are_an_error(ask):
    with pytest.raises(BrokerUnavailableError, match=r"the times of records in orders-0 .* try again"):
        ask(Log(NOON, unreadable=True))


def test_records_behind_a_marker_that_cannot_be_read_in_time_are_an_error():
    class Slow(Log):
        def first_since(self, *_: Any, **__: Any) -> Any:
            return {}

    with pytest.raises(BrokerUnavailableError, match=r"records of orders-0 behind a transaction .* offsets"):
        since(Slow(NOON, NOON - MINUTE, markers=(0,)))


def test_a_window_does_not_end_at_a_record_ahead_of_the_clock():
    log: Any = Log(NOON - MINUTE, AHEAD, NOON - MINUTE, NOON + MINUTE)
    selection = GroupSelection.parse(None, ["orders"], required=False)
    moment = Place("time", TARGET)
    with pytest.raises(PlanRefusedError, match=r"ahead of the clock on orders-0 \(orders-0: offset 1 is of"):
        plan_window(log, selection, Place.parse("earliest", "start"), moment, now=NOW)
    whole = plan_window(
        log, selection, Place.parse("earliest", "start"), Place.parse("latest", "end"), now=NOW
    )
    assert whole.ranges == {TP: OffsetRange(0, 4)}


def test_a_topic_has_not_reached_a_time_by_a_record_ahead_of_the_clock():
    assert first(Log(NOON - MINUTE, AHEAD)) is None
    assert first(Log(NOON - MINUTE, AHEAD, NOON - MINUTE)) is None
    assert first(Log(NOON - MINUTE, AHEAD, NOON)) == 1  # the last record decides
    wait = TopicWait(topics=["orders"], target=TARGET.isoformat())
    reading = wait.judge(Log(NOON - MINUTE, AHEAD), {"": {TP: None}})
    assert not reading.done
    assert "ahead of the clock" in reading.text
    assert "no record yet" in wait.judge(Log(NOON - MINUTE), {"": {TP: None}}).text


def test_the_target_of_a_time_is_the_log_end_behind_a_record_ahead_of_the_clock():
    wait = ReachedWait(group_id="etl", topics=["orders"], target=TARGET.isoformat())
    assert wait.freeze(Log(NOON - MINUTE, AHEAD, NOON - MINUTE), None).target == {"orders": {"0": 3}}
    assert wait.freeze(Log(NOON - MINUTE, NOON, NOON), None).target == {"orders": {"0": 1}}
