"""Moves of a pipeline between two clusters, in any order: offsets of the other one are never believed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import copy
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from archive_clock import START, by_next_step, set_clock
from memory_broker import filled_broker
from memory_clients import open_client
from written_query import Query

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError, MoveUnfinishedError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.apply import apply_checkpoint, apply_groups, apply_pipeline, apply_position
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit
from airflow_kafka_offsets.moves.failover import plan_failover
from airflow_kafka_offsets.moves.groups import plan_commits, plan_group_resets
from airflow_kafka_offsets.moves.reset import plan_checkpoint_seek, plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_archive, plan_restore_file
from airflow_kafka_offsets.readings.drift import pipeline_drift
from airflow_kafka_offsets.readings.log_checks import LogCheck

ORDERS = TopicPartition("orders", 0)
ETL = GroupSelection.parse("etl", None)
OTHER = {"east": "west", "west": "east"}


class Pipeline:
    """A query and its group. The same offset of its topic is another record on the other cluster."""

    def __init__(self, root: Path) -> None:
        self.brokers = {name: filled_broker(range(100), cluster_id=name) for name in OTHER}
        self.clients = {name: open_client(broker) for name, broker in self.brokers.items()}
        self.checkpoint = SparkCheckpoint(str(root))
        self.on, self.before = "east", dict[str, str]()
        """The cluster that the checkpoint's offsets are of: now, and before each move."""
        query = Query(root)
        query.run(0, {"orders": {0: 50}}, at=START.timestamp())
        self.reset("east", 40)
        self.commit("east")

    def fork(self, root: Path) -> Pipeline:
        """Return a copy; the brokers are the same ones."""
        shutil.copytree(self.checkpoint.location, root)
        other = copy(self)
        other.checkpoint, other.before = SparkCheckpoint(str(root)), dict(self.before)
        return other

    def newest(self) -> str:
        return next((each.name for each in reversed(ArchivedMoves(self.checkpoint))), "")

    def apply(self, to: str, move: Callable[[], object]) -> None:
        newest, before = self.newest(), self.on
        move()
        self.on = to
        if self.newest() != newest:
            self.before[self.newest()] = before

    def move(self, cluster: str, plan: PipelinePlan, by: CommitMetadata, to: str = "") -> None:
        client = self.clients[cluster]
        self.apply(to or cluster, lambda: apply_pipeline(client, plan, by, self.checkpoint, 0))

    def commit(self, cluster: str) -> None:
        client = self.clients[cluster]
        planned = plan_checkpoint_commit(client, self.checkpoint, ETL, by_next_step(), allow_rewind=True)
        apply_position(client, planned.plan, planned.metadata, planned.known_moves)

    def reset(self, cluster: str, to: int = 30) -> None:
        by, client, place = by_next_step("reset"), self.clients[cluster], Place("offset", to)
        how: Any = {"now": START, "metadata": by, "allow_new_cluster": True}
        self.move(cluster, plan_reset(client, self.checkpoint, ETL, place, **how), by)

    def reset_to_the_same(self, cluster: str) -> None:
        self.reset(cluster, self.checkpoint.read().kafka_offsets["0"][ORDERS])

    def reset_group(self, cluster: str) -> None:
        by, client, check = by_next_step("reset"), self.clients[cluster], LogCheck(allow_new_cluster=True)
        scopes = {"etl": TopicScope.parse("orders")}
        plans = plan_group_resets(client, scopes, Place("offset", 20), now=START, log_check=check)
        apply_groups(client, PipelinePlan(plans), by)

    def commit_offsets(self, cluster: str) -> None:
        by, client, check = by_next_step(), self.clients[cluster], LogCheck(allow_new_cluster=True)
        plans = plan_commits(client, {"etl": {ORDERS: 45}}, source={}, log_check=check)
        apply_groups(client, PipelinePlan(plans), by)

    def seek(self, cluster: str) -> None:
        by, client, place = by_next_step("checkpoint seek"), self.clients[cluster], Place("offset", 10)
        plan = plan_checkpoint_seek(client, self.checkpoint, place, now=START, allow_new_cluster=True)
        self.move(cluster, plan, by)

    def fail_over(self, cluster: str) -> None:
        by, clusters = by_next_step("failover"), (self.clients[OTHER[cluster]], self.clients[cluster])
        plan = plan_failover(*clusters, self.checkpoint, ETL, Mirror("to"), policy=FailoverPolicy())
        self.move(cluster, plan, by)

    def restore_file(self, cluster: str) -> None:
        file = Path(f"{self.checkpoint.location}.csv")
        file.write_text('"etl","orders",0,60\n')
        by, client = by_next_step("restore"), self.clients[cluster]
        plan = plan_restore_file(client, str(file), self.checkpoint, ETL, allow_new_cluster=True)
        self.move(cluster, plan, by)

    def restore(self, cluster: str) -> None:
        by, client, name = by_next_step("restore"), self.clients[cluster], self.newest()
        plan = plan_restore_archive(client, name, self.checkpoint, ETL, metadata=by, allow_stale=True)
        self.move(cluster, plan, by, self.before[name])

    def restore_checkpoint(self, _: str) -> None:
        by, name = by_next_step("checkpoint restore"), self.newest()
        plan = PipelinePlan((), plan_checkpoint_restore(self.checkpoint, name))
        self.apply(self.before[name], lambda: apply_checkpoint(plan, by, self.checkpoint, 0))

    def believers(self) -> list[str]:
        """Return what takes the checkpoint's offsets for those of the cluster that the pipeline is not on."""
        client, found = self.clients[OTHER[self.on]], []
        try:
            plan_checkpoint_commit(
                client, self.checkpoint, ETL, by_next_step(), allow_rewind=True
            ).plan.check()
            found.append("a commit")
        except KafkaOffsetsError:
            pass
        try:
            pipeline_drift(client, self.checkpoint, ETL)
            found.append("a drift check")
        except KafkaOffsetsError:
            pass
        return found


COMMITS = ("commit", "commit_offsets", "reset_group")
MOVES = ("reset", "reset_to_the_same", "seek", "fail_over", "restore_file", "restore")
STEPS = [*product((*COMMITS, *MOVES), OTHER), ("restore_checkpoint", "east")]


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    set_clock(monkeypatch)
    return Pipeline(tmp_path / "0")


def test_after_any_two_steps_only_the_cluster_of_the_checkpoint_is_believed(pipeline, tmp_path):
    names, wrong, done = map(str, count(1)), [], 0
    started = [((), pipeline, {name: dict(each.groups) for name, each in pipeline.brokers.items()})]
    for _ in range(2):
        begun, started = started, []
        for (order, before, groups), step in product(begun, STEPS):
            for name, held in groups.items():
                before.brokers[name].groups = dict(held)
            after = before.fork(tmp_path / next(names))
            try:
                getattr(after, step[0])(step[1])
            except KafkaOffsetsError:
                continue
            done += 1
            if believers := after.believers():
                wrong.append((*order, step, believers))
                continue
            held = {name: dict(each.groups) for name, each in pipeline.brokers.items()}
            started.append(((*order, step), after, held))
    assert wrong == []
    assert done > 150


@pytest.mark.parametrize(
    "order",
    [
        "reset west, reset east, restore_checkpoint east, restore_checkpoint east",
        "restore_file west, restore west, restore_checkpoint east",
    ],
)
def test_a_move_that_was_taken_back_is_not_made_again_by_a_restore(pipeline, order):
    *steps, last = (step.split() for step in order.split(", "))
    for name, cluster in steps:
        getattr(pipeline, name)(cluster)
    with pytest.raises(PlanRefusedError, match="cannot be taken back itself: move the query there again"):
        getattr(pipeline, last[0])(last[1])
    assert pipeline.believers() == []


def test_an_interrupted_reset_is_not_finished_on_the_other_cluster(pipeline, killed):
    """Its connection was edited before the retry, which allows another cluster like the first try."""
    with killed():
        pipeline.reset("west", 30)
    for retry in (pipeline.reset, pipeline.seek):
        with pytest.raises((PlanRefusedError, MoveUnfinishedError), match="0002-seek.* --archive 0002-seek"):
            retry("east")
    pipeline.reset("west", 30)
    assert (pipeline.on, pipeline.believers()) == ("west", [])


def test_a_failover_is_not_taken_back_on_the_other_cluster(pipeline):
    pipeline.reset("west", 30)
    client, name = pipeline.clients["east"], pipeline.newest()
    with pytest.raises(PlanRefusedError, match="0002-seek is of cluster west, .* leads to cluster east"):
        plan_restore_archive(client, name, pipeline.checkpoint, ETL, allow_stale=True, allow_new_cluster=True)


def test_a_restore_to_another_cluster_is_finished_after_an_interruption(pipeline, killed):
    def restore():
        client, by = pipeline.clients["west"], by_next_step("restore")
        how = {"metadata": by, "allow_stale": True, "allow_new_cluster": True}
        pipeline.move("west", plan_restore_archive(client, "0001-seek", pipeline.checkpoint, ETL, **how), by)

    with killed():
        restore()
    restore()
    assert (pipeline.newest(), pipeline.on, pipeline.believers()) == ("0002-restore", "west", [])


def test_a_restore_leaves_no_cluster_where_the_query_has_committed_since(pipeline):
    pipeline.reset("east")
    client, how = pipeline.clients["west"], dict[str, Any](allow_new_cluster=True)
    planned = plan_checkpoint_commit(
        client, pipeline.checkpoint, ETL, by_next_step(), allow_rewind=True, **how
    )
    apply_position(client, planned.plan, planned.metadata, planned.known_moves)
    plan = plan_restore_archive(client, "0002-seek", pipeline.checkpoint, ETL, allow_stale=True, **how)
    assert plan.checkpoint_plan is not None
    assert not plan.checkpoint_plan.left_logs
