"""Moves of a pipeline whose topic is created again, in any order: earlier offsets are never believed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from datetime import timedelta
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from archive_clock import START, Clock, by_next_step, set_clock
from memory_broker import MemoryBroker
from memory_clients import open_client
from written_query import Query

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.saved_plan import Names
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.apply import apply_checkpoint, apply_groups, apply_pipeline, apply_position
from airflow_kafka_offsets.moves.checkpoint_commit import plan_checkpoint_commit
from airflow_kafka_offsets.moves.groups import plan_commits, plan_group_resets
from airflow_kafka_offsets.moves.reset import plan_checkpoint_seek, plan_reset
from airflow_kafka_offsets.moves.restore import plan_restore_archive, plan_restore_file
from airflow_kafka_offsets.moves.saved import plan_saved, save_plan
from airflow_kafka_offsets.readings.batch_times import recreated_since
from airflow_kafka_offsets.readings.drift import pipeline_drift
from airflow_kafka_offsets.waits.lag import LagWait

ORDERS = TopicPartition("orders", 0)
ETL = GroupSelection.parse("etl", None)


class Pipeline:
    """A query and its group; each topic of the name has 100 records of the minute in which it was created."""

    def __init__(self, root: Path) -> None:
        self.broker, self.query, self.before = MemoryBroker(), Query(root), dict[str, dict[int, str]]()
        self.client, self.checkpoint = open_client(self.broker), SparkCheckpoint(str(root))
        self.recreate()
        self.ends: dict[int, str] = {}
        """The id of the topic that the offsets of each batch are of: now, and ``before`` each move."""
        for batch, offset in enumerate((10, 50)):
            self.query.run(batch, {"orders": {0: offset}}, at=by_next_step().at)
            self.ends[batch] = self.topic
        self.commit()

    @property
    def topic(self) -> str:
        return self.broker.topics["orders"].topic_id

    @property
    def newest(self) -> int:
        return self.checkpoint.read().batch_id or 0

    @property
    def read(self) -> str:
        return self.ends[self.newest]

    def fork(self, root: Path) -> Pipeline:
        other = copy(self)
        other.query, other.before, other.ends = copy(self.query), dict(self.before), dict(self.ends)
        other.query.root = shutil.copytree(self.query.root, root)
        other.checkpoint, other.broker = SparkCheckpoint(str(root)), copy(self.broker)
        other.broker.topics, other.broker.groups = dict(self.broker.topics), dict(self.broker.groups)
        other.client = open_client(other.broker)
        return other

    def move(self, plan: PipelinePlan, tool: str, back: Mapping[int, str] | None = None) -> None:
        before, by = dict(self.ends), by_next_step(tool)
        if plan.group_plans:
            apply_pipeline(self.client, plan, by, self.checkpoint, 0)
        else:
            apply_checkpoint(plan, by, self.checkpoint, 0)
        to = self.topic if back is None else back[max(back)]
        self.ends = {**self.ends, **(back or {}), self.newest: to}
        if plan.checkpoint_plan and plan.checkpoint_plan.archive:
            self.before[plan.checkpoint_plan.archive] = before

    def recreate(self, later: int = 0) -> None:
        """Create the topic; each record of its second half is some seconds later than the one before."""
        self.broker.create("orders")
        at = (by_next_step().at or 0) * 1_000
        self.broker.append("orders", 0, [at + max(0, number - 49) * later * 1_000 for number in range(100)])

    def run(self) -> None:
        """Run a batch: Spark does not notice that the topic is another one, and skips its first records."""
        batch, offset = self.newest + 1, self.query.stands()[0]
        self.ends[batch] = (
            self.topic if self.read == self.topic else f"{self.topic}, its first records unread"
        )
        self.query.run(batch, {"orders": {0: offset + 5}}, at=by_next_step().at)

    def commit(self, **allowed: bool) -> None:
        how: Any = {"allow_rewind": True, "allow_new_query": True, **allowed}
        planned = plan_checkpoint_commit(self.client, self.checkpoint, ETL, by_next_step(), **how)
        apply_position(self.client, planned.plan, planned.metadata, planned.known_moves)
        if "allow_new_cluster" in allowed:
            self.ends[self.newest] = self.topic
        self.believe()

    def commit_by_another_tool(self) -> None:
        self.client.commit("etl", {ORDERS: 46})

    def commit_offsets(self) -> None:
        given = {"etl": {ORDERS: 45}}
        apply_groups(self.client, PipelinePlan(plan_commits(self.client, given, source={})), by_next_step())

    def reset_group(self) -> None:
        scopes = {"etl": TopicScope.parse("orders")}
        plans = plan_group_resets(self.client, scopes, Place("offset", 44), now=Clock.now())
        apply_groups(self.client, PipelinePlan(plans), by_next_step("reset"))

    def believe(self) -> None:
        assert self.read == self.topic, "the checkpoint's offsets are believed"

    def reset(self, place: Place = Place("offset", 20)) -> None:  # noqa: B008  # it is frozen
        how: Any = {"now": Clock.now(), "metadata": by_next_step("reset")}
        self.move(plan_reset(self.client, self.checkpoint, ETL, place, **how), "reset")

    def shift(self) -> None:
        read, starts = self.read, not any(self.client.committed("etl", [ORDERS]).values())
        self.reset(Place("shift", -5))
        assert read == self.topic or not starts, "the checkpoint's offsets are shifted"

    def to_batch(self) -> None:
        read = self.ends[0]
        self.reset(Place("batch", 0))
        assert read == self.topic, "the end of a batch is believed"

    def truncate(self) -> None:
        plan = plan_truncate(self.checkpoint, 0, CheckpointPolicy(sink="noop"))
        self.move(PipelinePlan((), plan), "truncate", {0: self.ends[0]})

    def seek(self) -> None:
        place = Place("offset", 15)
        self.move(plan_checkpoint_seek(self.client, self.checkpoint, place, now=Clock.now()), "seek")

    def restore_file(self) -> None:
        file = self.query.root.with_suffix(".csv")
        file.write_text('"etl","orders",0,40\n')
        self.move(plan_restore_file(self.client, str(file), self.checkpoint, ETL), "restore")

    def restore(self) -> None:
        archived = ArchivedMoves(self.checkpoint).find(None).name
        plan = plan_restore_archive(self.client, archived, self.checkpoint, ETL, allow_stale=True)
        self.move(plan, "restore", self.before[archived])

    def restore_checkpoint(self, archived: str = "") -> None:
        archived = archived or ArchivedMoves(self.checkpoint).find(None).name
        plan = plan_checkpoint_restore(self.checkpoint, archived)
        self.move(PipelinePlan((), plan), "restore", self.before[archived])

    def restore_first_move(self) -> None:
        first = next(iter(ArchivedMoves(self.checkpoint)), None)
        self.restore_checkpoint("" if first is None else first.name)

    def drift(self) -> None:
        if not any(report.drifted for report in pipeline_drift(self.client, self.checkpoint, ETL)):
            self.believe()

    def wait(self, **group: str) -> None:
        """Wait for the position of the checkpoint, which the commits of a named group may confirm."""
        wait = LagWait(checkpoint_location=self.checkpoint.location, max_lag=100, **group)  # type: ignore[arg-type]
        if wait.poll(self.client, self.checkpoint).done:
            self.believe()

    def check(self) -> None:
        """Let what only reads decide whether the checkpoint's offsets are those of the present topic."""
        for look in (self.drift, self.wait, partial(self.wait, group_id="etl", position="checkpoint")):
            with suppress(KafkaOffsetsError):
                look()


NOW: Any = {"now": START + timedelta(days=1)}
FIRST = ("run", "reset")
STEPS = (
    *(
        "run",
        "commit",
        "commit_by_another_tool",
        "commit_offsets",
        "reset_group",
        "reset",
        "shift",
        "to_batch",
    ),
    *("seek", "restore_file", "truncate", "restore", "restore_checkpoint", "restore_first_move"),
)


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    set_clock(monkeypatch)
    return Pipeline(tmp_path / "0")


def test_in_a_topic_that_was_created_again_no_offset_of_the_earlier_one_is_believed(pipeline, tmp_path):
    names, wrong, done = map(str, count(1)), [], 0
    for first in FIRST:
        begun = pipeline.fork(tmp_path / next(names))
        getattr(begun, first)()
        begun.recreate()
        for steps in product(STEPS, repeat=2):
            after = begun.fork(tmp_path / next(names))
            try:
                for step in (*steps, "commit", "check"):
                    getattr(after, step)()
                    after.check()
                    done += 1
            except KafkaOffsetsError:
                pass
            except AssertionError as error:
                wrong.append((first, *steps, str(error)))
    assert wrong == []
    assert done > 200


def test_an_earlier_batch_is_checked_although_the_group_was_committed_in_the_new_topic(pipeline):
    pipeline.recreate()
    pipeline.run()
    with pytest.raises(PlanRefusedError, match="all records there are newer than an earlier batch"):
        pipeline.commit()
    pipeline.client.commit("etl", {ORDERS: pipeline.query.stands()[0]})
    (report,) = pipeline_drift(pipeline.client, pipeline.checkpoint, ETL)
    assert report.drifted
    pipeline.commit(allow_new_cluster=True)
    pipeline.commit()
    pipeline.drift()
    with pytest.raises(PlanRefusedError, match="the first record of orders-0 is newer than the batch"):
        pipeline.to_batch()
    pipeline.shift()


def test_no_batch_is_searched_for_a_partition_that_was_never_read(pipeline):
    pipeline.run()
    batches = ArchivedMoves(pipeline.checkpoint).batches_after(-1)
    ends = {ORDERS: 55, TopicPartition("orders", 1): 0}
    assert recreated_since(pipeline.client, batches, ends, ends) == []
    assert len([*batches]) == 1, "the first batch shows the topic, and the second one is not compared"


def test_the_same_offset_of_the_new_topic_is_its_own_after_a_seek(pipeline):
    pipeline.recreate()
    pipeline.move(
        plan_checkpoint_seek(pipeline.client, pipeline.checkpoint, Place("offset", 50), **NOW), "seek"
    )
    pipeline.commit()


def test_a_reset_that_was_interrupted_before_its_commits_is_finished(pipeline, killed):
    """A commit to the earlier topic that arrived late does not matter to a reset to an offset."""
    late = dict(pipeline.broker.groups)
    pipeline.recreate()
    pipeline.broker.groups.update(late)
    with killed():
        pipeline.reset()
    pipeline.reset()
    assert pipeline.client.committed("etl", [ORDERS])[ORDERS].offset == 20
    pipeline.commit()


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_saved_plan_of_offsets_does_not_mind_a_late_commit_to_the_earlier_topic(pipeline, with_checkpoint):
    late = dict(pipeline.broker.groups)
    pipeline.recreate()
    pipeline.broker.groups.update(late)
    checkpoint = pipeline.checkpoint if with_checkpoint else None
    group = GroupSelection.parse("etl", "orders")
    made = plan_reset(pipeline.client, checkpoint, group, Place("offset", 20), now=Clock.now())
    names = Names("etl", "orders", str(pipeline.query.root) if with_checkpoint else None)
    saved = save_plan(pipeline.client, checkpoint, made, names, now=Clock.now())
    plan = plan_saved(pipeline.client, checkpoint, saved, now=Clock.now(), metadata=by_next_step("reset"))
    plan.check()
    assert plan.group_plans[0].after == {ORDERS: 20}


def test_a_reset_is_not_finished_in_a_topic_that_is_created_again_while_it_is_planned(pipeline, killed):
    pipeline.broker.forget("etl")
    with killed():
        pipeline.reset()
    how: Any = {"now": Clock.now(), "metadata": by_next_step("reset")}
    plan = plan_reset(pipeline.client, pipeline.checkpoint, ETL, Place("offset", 20), **how)
    pipeline.recreate()
    with pytest.raises(PlanRefusedError, match="topic 'orders' was deleted and created again"):
        pipeline.move(plan, "reset")
    assert pipeline.client.committed("etl", [ORDERS]) == {ORDERS: None}


@pytest.mark.parametrize("kept", [True, False])
def test_a_batch_with_a_record_that_is_newer_than_its_start_is_moved_and_taken_back(pipeline, kept):
    """The clock of a producer is ahead, or the query is in real-time mode; no commit names the topic."""
    pipeline.recreate(later=60)
    pipeline.run()
    if kept:
        pipeline.commit_by_another_tool()
    else:
        pipeline.broker.forget("etl")
    pipeline.reset()
    pipeline.restore()
    assert pipeline.query.stands() == {0: 55}
    for place in (Place("shift", -5), Place("batch", 2)):
        pipeline.move(plan_checkpoint_seek(pipeline.client, pipeline.checkpoint, place, **NOW), "seek")
