"""The record that follows a position says how late its partition is."""

import pytest
from memory_broker import MemoryBroker
from memory_clients import open_client

from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.waits import lag
from airflow_kafka_offsets.waits.lag import LagWait

NOW = 1_000_000
TP = TopicPartition("orders", 0)


class Clock:
    now = NOW

    def time(self) -> float:
        return self.now / 1000


@pytest.mark.parametrize(
    ("written", "found", "late"),
    [
        (NOW - 60_000, NOW - 60_000, {TP: 60.0}),
        (NOW - 10_000, NOW - 10_000, {}),
        (NOW - 9_999, NOW - 9_999, {}),
        (NOW - 60_000, None, {}),
        (NOW - 60_000, ..., {TP: None}),
        (NOW - 9_999, ..., {}),
        (NOW + 60_000, NOW + 60_000, {}),
        # This clock is behind, or the producer's is ahead: records behind it may be old.
        (NOW + 60_001, NOW + 60_001, {TP: None}),
    ],
    ids=[
        *("old", "as old as allowed", "new enough", "only markers follow", "unread", "unread and new"),
        *("a little ahead of the clock", "ahead of the clock"),
    ],
)
def test_the_record_that_follows_says_how_late_a_partition_is(
    memory: MemoryBroker,
    monkeypatch: pytest.MonkeyPatch,
    written: int,
    found: object,
    late: dict[TopicPartition, float | None],
) -> None:
    monkeypatch.setattr(lag, "time", Clock())
    memory.create("orders")
    memory.append("orders", 0, [written])
    client = open_client(memory)
    times = {} if found is ... else {TP: found}
    monkeypatch.setattr(client, "record_times", lambda *_, **__: times)
    wait = LagWait(group_id="etl", max_time_lag=10)
    reading = wait.judge(client, {"etl": {TP: 0}})
    assert {row.topic_partition: row.time_lag for row in reading.lags[0].partitions if row.is_late} == late
    assert reading.done is (not late)


def test_an_age_that_grows_is_no_change(memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(lag, "time", clock)
    memory.create("orders")
    memory.append("orders", 0, [NOW - 60_000])
    client, wait = open_client(memory), LagWait(group_id="etl", max_time_lag=10)
    first = wait.judge(client, {"etl": {TP: 0}})
    clock.now += 5_000
    later = wait.judge(client, {"etl": {TP: 0}})
    assert [each.as_json()["time_lag"] for each in (first, later)] == [60, 65]
    assert first.digest == later.digest
