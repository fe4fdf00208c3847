"""Times that positions have reached, and how often the broker is asked for them."""

from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_broker import MemoryBroker, filled_broker

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.interval import IntervalSchedule
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.readings.interval_feed import IntervalFeed, end_after_reset
from airflow_kafka_offsets.readings.record_progress import RecordProgress

HOUR = 3_600_000
DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
ZERO = int(DAY.timestamp() * 1000)
NOW = ZERO + 1_000 * HOUR
SCHEDULE = IntervalSchedule.parse("hour")


def at(hours: float) -> int:
    return ZERO + int(hours * HOUR)


class Counting(OffsetsClient):
    """Counts the questions about times; a client asks a broker nothing without partitions."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker.config())
        self.asked: Counter[str] = Counter()
        self.broker = broker
        self.unknown: set[TopicPartition] = set()

    def offsets_for_time(self, partitions: Any, timestamp_ms: int) -> Any:
        if partitions:
            self.asked["offsets_for_time"] += 1
        return super().offsets_for_time(partitions, timestamp_ms)

    def record_times(self, offsets: Any, **parameters: Any) -> Any:
        if offsets:
            self.asked["record_times"] += 1
        found = super().record_times(offsets, **parameters)
        return {tp: time for tp, time in found.items() if tp not in self.unknown}


def broker_with(*times: list[float]) -> Counting:
    return Counting(filled_broker(*(map(at, hours) for hours in times)))


def partitions(client: Counting) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in client.partitions(["orders"])["orders"]]


def progress(client: Counting, positions: list[int | None], **parameters: Any) -> RecordProgress:
    tps = partitions(client)
    read = dict(zip(tps, positions, strict=True))
    return RecordProgress(client, read, client.log_ranges(tps), **{"now": NOW, **parameters})


def complete(found: RecordProgress, lateness: float = 0, limit: int = 24) -> list[str]:
    feed = IntervalFeed("hours", SCHEDULE, None, timedelta(hours=lateness), limit)
    return [each.key[11:13] for each in feed.completed(DAY, found).intervals]


def test_an_hour_is_complete_when_every_partition_has_passed_its_records():
    client = broker_with([0.1, 0.9, 1.5, 2.5], [0.2, 1.1, 3.0])
    assert complete(progress(client, [2, 1])) == ["00"]  # the next ones are of 01:30 and 01:06
    assert complete(progress(client, [1, 1])) == []  # 00:54 is unread
    assert complete(progress(client, [3, 2])) == ["00", "01"]


def test_the_last_hour_of_the_log_is_not_complete_while_records_of_it_may_come():
    client = broker_with([0.1, 0.9])
    assert complete(progress(client, [2])) == []
    assert complete(progress(client, [2], idle_after=600.0)) == []  # the whole topic is silent
    assert set(progress(client, [2]).missing(at(1)).values()) == {"holds no record since"}


def test_an_hour_that_has_not_ended_by_the_clock_is_not_complete():
    client = broker_with([0.5, 1.005])
    assert complete(progress(client, [2], now=at(0.995))) == []
    assert complete(progress(client, [2], now=at(1))) == ["00"]


def test_a_record_ahead_of_the_clock_shows_nothing():
    client = broker_with([0.5, 90.0, 0.6, 1.2])
    now = at(3)
    assert complete(progress(client, [2], now=now)) == []  # 00:36 may be unread, and is
    assert complete(progress(client, [3], now=now)) == ["00"]  # 01:12 shows it
    assert complete(progress(client, [4], now=now)) == ["00"]
    ahead = broker_with([0.5, 90.0])
    read = progress(ahead, [2], now=now)
    assert complete(read) == []
    assert "ahead of the clock, at offset 1" in str(read.missing(at(1)).values())


def test_a_clock_that_is_a_little_ahead_does_no_harm():
    client = broker_with([0.5, 1.0 + 30 / 3600])
    assert complete(progress(client, [2], now=at(1))) == ["00"]


def test_a_record_out_of_order_does_not_take_back_what_was_reached():
    client = broker_with([0.5, 1.2, 0.9, 1.3])
    assert complete(progress(client, [1])) == ["00"]
    assert complete(progress(client, [2])) == ["00"]  # the next one is of 00:54: lateness is for that
    assert complete(progress(client, [2]), lateness=0.25) == []
    assert complete(progress(client, [3]), lateness=0.25) == ["00"]


def test_a_marker_of_a_transaction_carries_the_brokers_clock_and_shows_nothing():
    client = broker_with([0.5, 5.0, 0.8, 5.0])
    broker = client.broker
    for offset in (1, 3):
        broker.mark("orders", 0, offset)
    for position in (1, 2, 3, 4):
        assert complete(progress(client, [position])) == [], position
    broker.append("orders", 0, [at(1.5), at(9.0)])
    broker.mark("orders", 0, 5)
    assert complete(progress(client, [4])) == complete(progress(client, [6])) == ["00"]
    # Also where a consumer has not gone past the last marker.
    assert complete(progress(client, [5])) == ["00"]


def test_an_idle_partition_counts_unless_it_may_be_left_out():
    client = broker_with([0.5, 1.2], [0.1], [])
    read: list[int | None] = [2, 1, None]
    assert complete(progress(client, read)) == []
    assert complete(progress(client, read, idle_after=600.0)) == ["00"]
    assert complete(progress(client, [2, 0, None], idle_after=600.0)) == []  # it has an unread record


def test_a_partition_that_was_added_counts_from_its_first_record():
    client = broker_with([0.5, 1.2], [])
    assert complete(progress(client, [2, None])) == []
    client.broker.append("orders", 1, [at(0.8), at(1.4)])
    assert complete(progress(client, [2, None])) == []
    assert complete(progress(client, [2, 1])) == ["00"]


def test_without_a_position_an_hour_may_have_records_that_were_deleted_unread():
    client = broker_with([0.5, 1.2], [0.1, 0.2, 1.4])
    client.broker.delete_records("orders", 1, 2)
    assert complete(progress(client, [2, None])) == complete(progress(client, [None, None])) == []
    assert complete(progress(client, [2, 2])) == ["00"]


def test_without_any_position_no_hour_is_complete_although_nothing_was_deleted():
    client = broker_with([1.5], [1.2])
    assert complete(progress(client, [None, None])) == []
    assert complete(progress(client, [0, None])) == ["00"]


@pytest.mark.parametrize("hours", [1, 10, 168])
def test_many_hours_cost_what_one_costs(hours):
    client = broker_with([0.1, hours + 0.5, hours + 0.6], [0.2, hours + 0.1], [0.3, hours + 2.7])
    assert len(complete(progress(client, [1, 1, 2]), limit=200)) == hours
    assert client.asked == {"record_times": 1, "offsets_for_time": 1}


def test_hours_and_days_share_the_questions():
    client = broker_with([0.1, 50.5], [0.2, 50.1])
    read = progress(client, [1, 1])
    days = IntervalFeed("days", IntervalSchedule.parse("day"), None, timedelta(0), 200)
    assert len(complete(read, limit=200)) == 50
    assert len(days.completed(DAY, read).intervals) == 2
    assert client.asked == {"record_times": 1, "offsets_for_time": 2}


def test_what_is_caught_up_costs_one_question():
    client = broker_with([0.1, 1.5], [0.2, 1.7])
    assert complete(progress(client, [2, 2], now=at(1.8))) == ["00"]
    assert client.asked == {"record_times": 1}


def test_a_reset_takes_back_what_the_position_is_before():
    client = broker_with([0.1, 1.1, 2.1, 3.1], [0.2, 1.2, 2.2, 3.2])
    end = DAY + timedelta(hours=3)
    assert end_after_reset(progress(client, [4, 4]), SCHEDULE, end) == end
    assert end_after_reset(progress(client, [3, 3]), SCHEDULE, end) == end
    assert end_after_reset(progress(client, [2, 3]), SCHEDULE, end) == DAY + timedelta(hours=2)
    assert end_after_reset(progress(client, [0, 3]), SCHEDULE, end) == DAY
    assert end_after_reset(progress(client, [None, 3]), SCHEDULE, end) == end  # an added partition


def test_late_and_idle_records_are_no_reset():
    client = broker_with([0.5, 1.5, 0.7], [0.2, 0.3])
    end = DAY + timedelta(hours=1)
    # 00:42 is late; the second partition was idle, and holds nothing of 01:00 or later.
    assert end_after_reset(progress(client, [2, 1]), SCHEDULE, end) == end


def test_a_reset_onto_a_record_of_another_age_is_found_in_few_questions():
    client = broker_with([-300_000.0, 0.5, 1.5, 2.5, 3.5])
    end = DAY + timedelta(hours=3)
    assert end_after_reset(progress(client, [0]), SCHEDULE, end) < DAY
    assert client.asked["offsets_for_time"] <= 25


def test_a_time_that_cannot_be_read_decides_nothing():
    client = broker_with([0.5, 1.5, 2.5])
    client.unknown = set(partitions(client))
    assert complete(progress(client, [1])) == []
    with pytest.raises(BrokerUnavailableError, match="orders-0 could not be read"):
        _ = progress(client, [1]).time
    with pytest.raises(BrokerUnavailableError, match="orders-0 could not be read"):
        end_after_reset(progress(client, [1]), SCHEDULE, DAY + timedelta(hours=2))


def test_the_first_interval_is_that_of_the_first_record_that_was_not_read():
    client = broker_with([0.5, 1.5, 2.5], [0.6, 3.5])
    assert progress(client, [1, 1]).time == at(1.5)
    assert progress(client, [3, 2]).time == NOW
    assert progress(client, [3, None]).time == NOW
    assert progress(client, [None, None]).time is None
    ahead = broker_with([5_000.0])
    assert progress(ahead, [0]).time == NOW


times = st.lists(st.floats(0, 12).map(lambda hours: round(hours, 2)), max_size=8)


@given(st.lists(times, min_size=1, max_size=3), st.data())
def test_the_search_finds_what_a_look_at_each_hour_finds(logs, data):
    client = broker_with(*logs)
    positions = [data.draw(st.one_of(st.none(), st.integers(0, len(each)))) for each in logs]
    idle_after = data.draw(st.sampled_from([None, 600.0]))
    now = at(data.draw(st.floats(1, 14)))
    read = progress(client, positions, idle_after=idle_after, now=now)
    one_by_one = []
    for number in range(15):
        fresh = progress(client, positions, idle_after=idle_after, now=now)
        one_by_one.append(not fresh.missing(at(number + 1)))
    # Once an hour is not complete, no later one is.
    assert one_by_one == sorted(one_by_one, reverse=True)
    assert len(complete(read)) == sum(one_by_one)


@given(st.lists(times, min_size=1, max_size=3), st.data())
def test_an_hour_stays_complete_as_positions_and_logs_grow(logs, data):
    client = broker_with(*logs)
    positions: list[Any] = [data.draw(st.integers(0, len(each))) for each in logs]
    before = len(complete(progress(client, positions)))
    grown = [[*each, *data.draw(times)] for each in logs]
    later = broker_with(*grown)
    further = [
        data.draw(st.integers(at_least, len(each))) for at_least, each in zip(positions, grown, strict=True)
    ]
    found = progress(later, further)
    assert len(complete(found)) >= before
    assert end_after_reset(found, SCHEDULE, DAY + timedelta(hours=before)) == DAY + timedelta(hours=before)
