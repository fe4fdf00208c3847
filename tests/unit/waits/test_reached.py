"""Targets that can be frozen, and those that cannot."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from memory_broker import MemoryBroker, filled_broker
from memory_clients import open_client

from airflow_kafka_offsets.errors import DriftError, UsageError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.waits.reached import ReachedWait


@pytest.fixture
def reader(memory: MemoryBroker, broker: OffsetsClient) -> OffsetsClient:
    """Reads one partition of 100 records, all of which are older than any time that is asked for."""
    memory.create("orders")
    memory.append("orders", 0, range(100))
    memory.create("payments")
    broker.commit("etl", {TopicPartition("payments", 0): 1})
    return broker


def frozen(reader: OffsetsClient, target: datetime) -> object:
    wait = ReachedWait(group_id="etl", topics=["orders"], target=target.isoformat())
    return wait.freeze(reader, None).target


def test_a_time_after_the_last_record_is_the_log_end(reader: OffsetsClient) -> None:
    assert frozen(reader, datetime.now(tz=timezone.utc)) == {"orders": {"0": 100}}


@pytest.mark.parametrize(("ahead", "retriable"), [(timedelta(seconds=20), True), (timedelta(hours=2), False)])
def test_a_time_in_the_future_has_no_log_end_yet(
    reader: OffsetsClient, ahead: timedelta, retriable: bool
) -> None:
    with pytest.raises(UsageError, match=r"target=.* is in the future .* may still come") as refused:
        frozen(reader, datetime.now(tz=timezone.utc) + ahead)
    assert refused.value.retriable is retriable


def test_of_two_groups_the_one_that_is_furthest_behind_decides(reader: OffsetsClient) -> None:
    orders = TopicPartition("orders", 0)
    wait = ReachedWait(group_id={"orders": "etl"}, target={"orders": {"0": 50}})
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


def receipt(**after: int) -> dict[str, Any]:
    """Return the receipt of a move of groups that read the same partition."""
    groups = [{"group_id": name, "before": {}, "after": {"orders": {"0": at}}} for name, at in after.items()]
    return {"version": 1, "groups": groups}


@pytest.mark.parametrize(("group", "target"), [("left", 40), ("right", 60), ("etl", 60)])
def test_a_group_waits_for_its_own_offsets_in_a_receipt(
    reader: OffsetsClient, group: str, target: int
) -> None:
    wait = ReachedWait(group_id=group, topics=["orders"], target=receipt(left=40, right=60))
    # A group that the receipt does not have is past both.
    assert wait.freeze(reader, None).target == {"orders": {"0": target}}


SEPARATELY = r"different offsets for orders-0 .*: wait for each group separately, .*position='group'"


def test_two_groups_of_a_receipt_with_different_offsets_need_a_wait_each(reader: OffsetsClient) -> None:
    both = {"source:0": "left", "source:1": "right"}
    equal = ReachedWait(group_id=both, topics=["orders"], target=receipt(left=40, right=40))
    assert equal.freeze(reader, None).target == {"orders": {"0": 40}}
    differ = ReachedWait(group_id=both, topics=["orders"], target=receipt(left=40, right=60))
    # Partitions that are not waited for may differ.
    wide = receipt(left=40, right=60)
    wide["groups"] = [{**each, "after": each["after"] | {"pay": {"0": 7}}} for each in wide["groups"]]
    pay = ReachedWait(group_id=both, topics=["pay"], target=wide)
    assert pay.freeze(reader, None).target == {"pay": {"0": 7}}
    with pytest.raises(UsageError, match=SEPARATELY):
        differ.freeze(reader, None)


@pytest.mark.parametrize("group_id", [{"source:0": "left", "source:1": "right"}, None])
def test_a_checkpoint_whose_sources_have_different_offsets_in_a_receipt_is_refused(
    reader: OffsetsClient, group_id: dict[str, str] | None
) -> None:
    names: dict[str, Any] = {"checkpoint_location": "file:///cp", "position": "checkpoint"}
    equal = ReachedWait(group_id=group_id, **names, topics=["orders"], target=receipt(left=40, right=40))
    assert equal.freeze(reader, None).target == {"orders": {"0": 40}}
    # The source of the lower offset may never come to the higher one.
    differ = ReachedWait(group_id=group_id, **names, topics=["orders"], target=receipt(left=40, right=60))
    with pytest.raises(UsageError, match=SEPARATELY):
        differ.freeze(reader, None)


def test_a_target_of_another_cluster_is_not_compared(reader: OffsetsClient, memory: MemoryBroker) -> None:
    """The connection was changed since the target was fixed, and the group has read more there."""
    orders = TopicPartition("orders", 0)
    reader.commit("etl", {orders: 40})
    offsets: dict[str, Any] = {"orders": {"0": 90}}
    wait = ReachedWait(group_id="etl", topics=["orders"], target=offsets).freeze(reader, None)
    assert not ReachedWait(**wait.parameters).poll(reader, None).done
    with open_client(filled_broker(range(200), cluster_id="another")) as client:
        client.commit("etl", {orders: 200})
        with pytest.raises(DriftError, match=r"target is of cluster cluster-in-memory, .*clear this task"):
            ReachedWait(**wait.parameters).poll(client, None)
