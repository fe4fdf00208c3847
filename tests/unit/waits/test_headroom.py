"""What a wait says of headroom, where the lag alone looks well."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import IsolationLevel, LogRange, TopicPartition
from airflow_kafka_offsets.readings.positions import measure_lag
from airflow_kafka_offsets.waits.lag import LagWait

A = TopicPartition("orders", 0)
HOUR = 3600
KEPT = {"cleanup.policy": "delete", "retention.ms": str(24 * HOUR * 1000), "retention.bytes": "-1"}


class Broker:
    """One partition of 100 records, of which each from 50 on belongs to a transaction that hangs."""

    unreadable: int | None = None
    """An offset of which the record's time cannot be had."""

    def __init__(self) -> None:
        self.asked: list[tuple[IsolationLevel, dict[TopicPartition, int]]] = []

    def log_ranges(
        self, partitions: Iterable[TopicPartition], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, LogRange]:
        end = 50 if isolation_level == "read_committed" else 100
        return dict.fromkeys(partitions, LogRange(0, end))

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        return dict.fromkeys(topics, KEPT)

    def offsets_for_time(self, partitions: Iterable[TopicPartition], _: int) -> dict[TopicPartition, None]:
        return dict.fromkeys(partitions)

    def record_times(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        **_: Any,
    ) -> dict[TopicPartition, int | None]:
        self.asked.append((isolation_level, dict(offsets)))
        log = self.log_ranges(offsets, isolation_level=isolation_level)
        written = int((time.time() - 23 * HOUR) * 1000)
        return {
            tp: written if offset < log[tp].end else None
            for tp, offset in offsets.items()
            if offset != self.unreadable
        }


def reading(broker: Broker, *positions: int, **parameters: Any) -> tuple[bool, dict[str, Any]]:
    wait = LagWait(group_id="etl", **({"min_headroom": "PT6H"} | parameters))
    found = wait.judge(
        cast("OffsetsClient", broker), {f"etl-{number}": {A: at} for number, at in enumerate(positions)}
    )
    return found.done, found.as_json()


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_records_behind_a_transaction_that_hangs_expire_too(isolation_level: IsolationLevel) -> None:
    done, value = reading(Broker(), 50, isolation_level=isolation_level)
    assert value["total_lag"] == (0 if isolation_level == "read_committed" else 50)
    assert (done, value["headroom_state"]) == (False, "time")
    assert value["headroom"] == pytest.approx(HOUR, abs=60)
    client = cast("OffsetsClient", Broker())
    lag = measure_lag(client, "etl", {A: 50}, isolation_level=isolation_level, headroom=True)
    assert (lag.headroom or {})[A].seconds == pytest.approx(HOUR, abs=60)


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_the_time_lag_keeps_its_isolation_level(isolation_level: IsolationLevel) -> None:
    broker = Broker()
    reading(broker, 40, isolation_level=isolation_level, max_time_lag=60)
    assert broker.asked == [("read_uncommitted", {A: 40}), (isolation_level, {A: 40})]


def test_the_tolerance_is_not_for_retention() -> None:
    done, value = reading(Broker(), 99, tolerance=1000, max_lag=0)
    assert (done, value["headroom_state"]) == (False, "time")


def test_what_is_known_of_one_group_is_not_hidden_by_another() -> None:
    broker = Broker()
    broker.unreadable = 40
    for positions in ((40, 50), (50, 40)):
        done, value = reading(broker, *positions)
        assert (done, value["headroom_state"]) == (False, "unknown")
        assert value["headroom"] == pytest.approx(HOUR, abs=60)
