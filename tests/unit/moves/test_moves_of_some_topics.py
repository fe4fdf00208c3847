"""Moves of some topics of a checkpoint: they say nothing about its other topics, which a restore leaves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from archive_clock import Clock, by_next_step, set_clock
from memory_broker import MemoryBroker, filled_broker
from memory_clients import open_client
from written_query import Query

from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.moves import restore
from airflow_kafka_offsets.moves.apply import apply_checkpoint, apply_pipeline, apply_position
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit
from airflow_kafka_offsets.moves.groups import plan_commits
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_archive, plan_restore_receipt
from airflow_kafka_offsets.readings.drift import pipeline_drift

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)
EVERYTHING, ORDERS_ONLY = GroupSelection.parse("etl", None), GroupSelection.parse("etl", "orders")


class Pipeline:
    """A query of two topics, and its group."""

    def __init__(self, root: Path) -> None:
        self.broker, self.query, self.checkpoint = MemoryBroker(), Query(root), SparkCheckpoint(str(root))
        self.client = open_client(self.broker)
        for topic in ("orders", "payments"):
            self.create(topic)
        self.run(0, orders=50, payments=50)

    def create(self, topic: str) -> None:
        self.broker.create(topic)
        self.broker.append(topic, 0, [(by_next_step().at or 0) * 1_000] * 100)

    def commit(self) -> None:
        planned = plan_checkpoint_commit(self.client, self.checkpoint, EVERYTHING, by_next_step())
        apply_position(self.client, planned.plan, planned.metadata, planned.known_moves)

    def run(self, batch: int, *, orders: int, payments: int) -> None:
        """Run a batch, and commit it."""
        self.query.run(batch, {"orders": {0: orders}, "payments": {0: payments}}, at=by_next_step().at)
        self.commit()

    def reset(self, to: int, selection: GroupSelection = ORDERS_ONLY) -> dict[str, Any]:
        by, place = by_next_step("reset"), Place("offset", to)
        plan = plan_reset(self.client, self.checkpoint, selection, place, now=Clock.now(), metadata=by)
        return apply_pipeline(self.client, plan, by, self.checkpoint, 0)

    def at(self) -> Mapping[TopicPartition, int]:
        return self.checkpoint.read().kafka_offsets["0"]


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    set_clock(monkeypatch)
    return Pipeline(tmp_path)


@pytest.mark.parametrize(
    ("by_archive", "target"),
    [(True, 20), (False, 20), (False, 50)],
    ids=["archive", "receipt", "at its place"],
)
def test_a_topic_that_the_reset_did_not_name_stays_where_the_query_is(pipeline, by_archive, target):
    receipt = pipeline.reset(target)
    pipeline.run(1, orders=target + 5, payments=60)
    by: Any = {"allow_stale": True, "metadata": by_next_step("restore")}
    where = (pipeline.checkpoint, EVERYTHING)
    if by_archive:
        plan = plan_restore_archive(pipeline.client, "0001-seek", *where, **by)
    else:
        plan = plan_restore_receipt(pipeline.client, Receipt.parse(receipt), *where, **by)
    apply_pipeline(pipeline.client, plan, by["metadata"], pipeline.checkpoint, 0)
    assert pipeline.at() == {ORDERS: 50, PAYMENTS: 60}
    reports = pipeline_drift(pipeline.client, pipeline.checkpoint, EVERYTHING)
    assert [report.drifted for report in reports] == [False]


def test_a_restore_of_only_the_checkpoint_leaves_the_topic_alone_too(pipeline):
    pipeline.reset(20)
    pipeline.run(1, orders=25, payments=60)
    plan = PipelinePlan((), plan_checkpoint_restore(pipeline.checkpoint, "0001-seek"))
    apply_checkpoint(plan, by_next_step("restore"), pipeline.checkpoint, 0)
    assert pipeline.at() == {ORDERS: 50, PAYMENTS: 60}


def test_a_restore_does_not_move_only_the_group_if_all_records_are_deleted_while_it_is_planned(
    pipeline, monkeypatch
):
    receipt, by = pipeline.reset(20, EVERYTHING), by_next_step("restore")

    def plan_and_delete(*given: Any, **named: Any) -> Any:
        planned = plan_commits(*given, **named)
        for topic in ("orders", "payments"):
            pipeline.broker.delete_records(topic, 0, 60)
        return planned

    monkeypatch.setattr(restore, "plan_commits", plan_and_delete)
    where = (Receipt.parse(receipt), pipeline.checkpoint, EVERYTHING)
    plan = plan_restore_receipt(pipeline.client, *where, on_out_of_range="skip", metadata=by)
    with pytest.raises(PlanRefusedError, match="since the plan was made the log has changed"):
        apply_pipeline(pipeline.client, plan, by, pipeline.checkpoint, 0)
    assert pipeline.at() == {ORDERS: 20, PAYMENTS: 20}


@pytest.mark.parametrize("again", ["orders", "payments"])
@pytest.mark.parametrize(
    "order", ["create, reset", "reset, create", "create, reset, run", "reset, create, run"]
)
def test_a_move_of_one_topic_does_not_hide_that_another_was_created_again(pipeline, order, again):
    pipeline.run(1, orders=55, payments=55)
    other = GroupSelection.parse("etl", "payments" if again == "orders" else "orders")
    for step in order.split(", "):
        if step == "create":
            pipeline.create(again)
        elif step == "reset":
            pipeline.reset(20, other)
        else:
            with pytest.raises(PlanRefusedError, match=f"{again}-0"):
                pipeline.run(2, orders=60, payments=60)
    with pytest.raises(PlanRefusedError, match=f"{again}-0"):
        pipeline.commit()


def test_after_a_move_of_one_topic_another_of_another_cluster_is_committed(pipeline):
    """A query that reads two clusters."""
    west = filled_broker(range(100), topic="payments", cluster_id="west")
    client, selection = open_client(west), GroupSelection.parse("etl-west", "payments")
    for reset in (False, True):
        if reset:
            pipeline.reset(20)
        planned = plan_checkpoint_commit(client, pipeline.checkpoint, selection, by_next_step())
        apply_position(client, planned.plan, planned.metadata, planned.known_moves)
        (report,) = pipeline_drift(client, pipeline.checkpoint, selection)
        assert not report.drifted
