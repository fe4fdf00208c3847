"""Targets that can be frozen, and those that cannot."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.waits.reached import ReachedWait

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_kafka_offsets.kafka.reader import OffsetsReader


class Broker:
    """One partition of 100 records, all of which are older than any time that is asked for."""

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        return {topic: [0] for topic in topics}

    def log_ranges(self, partitions: Iterable[TopicPartition], **_: Any) -> dict[TopicPartition, LogRange]:
        return dict.fromkeys(partitions, LogRange(0, 100))

    def offsets_for_time(self, partitions: Iterable[TopicPartition], _: int) -> dict[TopicPartition, None]:
        return dict.fromkeys(partitions)

    def committed_everywhere(self, _: str) -> dict[TopicPartition, int]:
        return {TopicPartition("payments", 0): 1}


def frozen(target: datetime) -> object:
    wait = ReachedWait(group_id="etl", topics=["orders"], target=target.isoformat())
    return wait.freeze(cast("OffsetsReader", Broker()), None).target


def test_a_time_after_the_last_record_is_the_log_end() -> None:
    assert frozen(datetime.now(tz=timezone.utc)) == {"orders": {"0": 100}}


@pytest.mark.parametrize(("ahead", "retriable"), [(timedelta(seconds=20), True), (timedelta(hours=2), False)])
def test_a_time_in_the_future_has_no_log_end_yet(ahead: timedelta, retriable: bool) -> None:
    with pytest.raises(UsageError, match=r"target=.* is in the future .* may still come") as refused:
        frozen(datetime.now(tz=timezone.utc) + ahead)
    assert refused.value.retriable is retriable


def test_of_two_groups_the_one_that_is_furthest_behind_decides() -> None:
    orders = TopicPartition("orders", 0)
    wait = ReachedWait(group_id={"orders": "etl"}, target={"orders": {"0": 50}})
    reader = cast("OffsetsReader", Broker())
    for first, second, reached in ((50, 49, False), (49, 50, False), (50, 60, True), (50, None, False)):
        reading = wait.judge(reader, {"0": {orders: first}, "1": {orders: second}})
        assert reading.done is reached, (first, second)


def test_the_receipt_of_a_plan_that_was_not_carried_out_is_no_target() -> None:
    offsets = {"orders": {"0": 50}}
    planned = {"version": 1, "group_id": "etl", "before": offsets, "after": offsets, "plan_only": True}
    with pytest.raises(UsageError, match="the receipt of a plan that was not applied"):
        ReachedWait.parsers["target"](planned, "target")
    done = {**planned, "plan_only": False}
    assert ReachedWait.parsers["target"](done, "target") == done
