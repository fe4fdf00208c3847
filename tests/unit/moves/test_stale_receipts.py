"""A receipt whose group has gone on, or was moved again, is restored only if that is allowed."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.apply import apply_groups
from airflow_kafka_offsets.moves.group_reset import plan_resets
from airflow_kafka_offsets.moves.restore import plan_restore_receipt

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
TOOL = CommitMetadata(tool="airflow-kafka-offsets group reset")


@pytest.fixture
def reset(client):
    """reset(20) -> the receipt of a reset of the group."""

    def reset(offset):
        place = Place.parse({"orders": {"0": offset, "1": offset}}, "to_offset")
        plans = plan_resets(client, {"g": TopicScope()}, place, now=NOW)
        return apply_groups(client, PipelinePlan(plans), TOOL)

    return reset


@pytest.fixture
def restore(client):
    """restore(receipt) -> where the group is then."""

    def restore(receipt, **allowed):
        plan = plan_restore_receipt(client, receipt, None, GroupSelection.parse("g"), **allowed)
        apply_groups(client, plan, CommitMetadata(tool="airflow-kafka-offsets group restore"))
        return [*committed_offsets(client.committed("g", [FIRST, SECOND])).values()]

    return restore


def test_a_receipt_that_was_restored_does_not_take_back_what_was_read_since(client, reset, restore):
    client.commit("g", {FIRST: 10, SECOND: 10})
    receipt = reset(50)
    assert restore(receipt) == [10, 10]
    client.commit("g", {FIRST: 30, SECOND: 30}, CommitMetadata(query="q").text())
    with pytest.raises(PlanRefusedError, match="40 records are read again"):
        restore(receipt)
    assert restore(receipt, allow_stale=True) == [10, 10]


def test_a_reset_that_another_one_has_followed_is_not_taken_back(client, reset, restore):
    client.commit("g", {FIRST: 50, SECOND: 50})
    receipt = reset(10)
    newer = reset(30)
    with pytest.raises(PlanRefusedError, match=r"committed on .* by airflow-kafka-offsets group reset"):
        restore(receipt)
    assert restore(newer) == [10, 10]
    assert restore(receipt) == [50, 50]


def test_a_recovery_that_has_come_half_way_is_taken_back(client, reset, restore):
    client.commit("g", {FIRST: 50, SECOND: 50})
    receipt = reset(10)
    client.commit("g", {FIRST: 30, SECOND: 30}, CommitMetadata(query="q").text())
    assert restore(receipt) == [50, 50]
