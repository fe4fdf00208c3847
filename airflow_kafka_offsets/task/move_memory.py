"""Remembers the groups' offsets before a move, over the tries of its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow.sdk import Context

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.formats import offsets_json, parse_positions
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import Positions, TopicPartition, summarize
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.task.identity import clear_mark, commit_metadata


class MoveMemory:
    """
    The groups' offsets before the first write, kept over retries and Clears of the task.

    A restore needs the offsets from before the first try, but Airflow deletes a task's XCom on a retry. The
    commits of a move name them, if they are of few partitions. Airflow 3.3 and later keep a task's state,
    which also shows whether an earlier try was interrupted, or has finished its move.
    """

    _KEY = "kafka_offsets.before"
    _BEGUN = "kafka_offsets.reset_begun"
    """Shows that the task's state still exists since its first try, even if no try has moved."""

    def __init__(self, context: Context) -> None:
        self._store: Any = context.get("task_state_store")
        self._mark = clear_mark(context)
        kept = self._store.get(self._KEY) if self._store is not None else None
        self._kept: Mapping[str, Any] = kept if isinstance(kept, Mapping) else {}
        self.moved: bool | None = True if self._kept.get("done") else None
        """Whether an earlier try of the task in this run has finished its move; ``None`` if unknown."""
        if self._store is not None:
            self.moved = self.moved or (False if self._store.get(self._BEGUN) else None)
            # A later try that finds no state does not know what the tries before it have done.
            if commit_metadata(context).try_number == 1:
                self._store.set(self._BEGUN, True)

    @property
    def moved_checkpoint(self) -> str | None:
        """The checkpoint of the finished move, which may have changed none of its files."""
        return self._kept.get("checkpoint") if self.moved else None

    @property
    def interrupted(self) -> bool:
        """Whether the task was cleared while a try had not finished its move, as far as this is known."""
        # Commits of tries since the Clear have the token of this one.
        return self._unfinished and (not self._is_retry or bool(self._kept.get("continues")))

    @property
    def _unfinished(self) -> bool:
        """Whether an earlier try may have written, and did not finish; a retry does not know that it did."""
        return bool(self._kept) and (self._is_retry or not self._kept.get("done"))

    @property
    def _is_retry(self) -> bool:
        return self._kept.get("mark") == self._mark

    def with_first_offsets(
        self, plan: PipelinePlan, client: OffsetsClient, metadata: CommitMetadata, *, has_followers: bool
    ) -> PipelinePlan:
        """
        Return the plan with the groups' offsets from before the first write.

        :raises PlanRefusedError: if an interrupted try has moved partitions that the plan does not have, or
            if another map index of the task has moved a group of the plan.
        """
        self._refuse_changed_names(plan, client, metadata)
        # If other tasks follow this one, it continues its earlier move even after a Clear.
        continues = has_followers or self.interrupted
        is_own = metadata.is_same_task if continues else metadata.is_same_instance
        before: dict[str, dict[TopicPartition, int | None]] = {}
        for group in plan.group_plans:
            kept, found = self._kept_before(group.group_id), before.setdefault(group.group_id, {})
            made = {tp: by for tp, commit in group.commits.items() if (by := CommitMetadata.of(commit))}
            for by in {*made.values()} if continues else ():
                if (index := metadata.other_index(by)) is not None:
                    raise PlanRefusedError(
                        f"map index {index} of this task has moved group {group.group_id!r} in this "
                        "run, and nothing was committed since, so this index does not know the offsets from "
                        "before that: the list was changed since, or has the group twice; name the group "
                        "once, and trigger a new run"
                    )
            for tp, by in made.items():
                # Only if this task made the last commit: a restore must put back other clients' commits.
                if is_own(by):
                    first = kept or by.offsets_before(tp.topic)
                    if tp in first:
                        found[tp] = first[tp]
        return plan if plan.archive else plan.with_before(before)

    def _refuse_changed_names(
        self, plan: PipelinePlan, client: OffsetsClient, metadata: CommitMetadata
    ) -> None:
        """Refuse a plan without what an interrupted try has moved: no receipt would have it."""
        if not self._unfinished:
            return
        what, remedy = "the move of an interrupted try of this task", "trigger a new run"
        begun = LogIds(self._kept.get("cluster", ""))
        PlanRefusedError.raise_if(other_logs_refusals(what, begun, plan.log_ids, remedy=remedy))
        planned = {
            (group.group_id, tp) for group in plan.group_plans for tp in (*group.before, *group.skipped)
        }
        for group_id in self._kept.get("groups", ()):
            moved = {
                tp: self._kept_before(group_id)[tp]
                for tp, by in self._committers_since(client, group_id).items()
                if (group_id, tp) not in planned and metadata.is_same_task(by)
            }
            if moved:
                raise PlanRefusedError(
                    f"an earlier try of this task was interrupted, and has moved group {group_id!r} on "
                    f"{summarize(moved)}, which this task does not name any more: name it again to finish "
                    f"the move (before it: {shorten(offsets_json(moved))})"
                )

    def refuse_unknown(
        self, plan: PipelinePlan, client: OffsetsClient, metadata: CommitMetadata
    ) -> PipelinePlan:
        """
        Return a relative plan of groups, refused if it may move them a second time.

        An earlier try of this task was interrupted, and another client has committed since. So the group does
        not show whether that try had moved it.
        """
        if not self._is_retry:
            return plan
        groups = []
        for group in plan.group_plans:
            others = {
                tp: str(by or "another client")
                for tp, by in self._committers_since(client, group.group_id).items()
                if not metadata.is_same_task(by)
            }
            refusal = (
                f"group {group.group_id!r} was committed on {summarize(others)} by "
                f"{', '.join(sorted(set(others.values())))} since an earlier try "
                "of this task was interrupted, so it is unknown whether that try had moved the group: "
                "trigger a new run"
            )
            groups.append(replace(group, refusals=(*group.refusals, refusal)) if others else group)
        return replace(plan, group_plans=groups)

    def _committers_since(self, client: OffsetsClient, group_id: str) -> dict[TopicPartition, CommitMetadata]:
        """Return who has committed other offsets than those that were kept from before the first write."""
        first = self._kept_before(group_id)
        return {
            tp: CommitMetadata.of(commit)
            for tp, commit in client.committed(group_id, first).items()
            if commit is not None and commit.offset != first[tp]
        }

    def _kept_before(self, group_id: str) -> Positions:
        """Return a group's offsets before the first write; empty if they were not kept."""
        kept = self._kept.get("groups", {}).get(group_id)
        return parse_positions(kept) if kept else {}

    def keep(self, plan: PipelinePlan) -> None:
        """Keep the groups' offsets from before the first write."""
        if self._store is None:
            return
        groups: Any = {group.group_id: offsets_json(group.before) for group in plan.group_plans}
        kept = {"mark": self._mark, "groups": groups, "cluster": plan.log_ids.cluster}
        kept["checkpoint"] = plan.checkpoint_plan and plan.checkpoint_plan.location
        # Kept before the first write: afterwards the earlier offsets cannot be read any more.
        self._begun = {**kept, "done": False, "continues": self.interrupted}
        self._store.set(self._KEY, self._begun)

    def finish(self) -> None:
        """Note that the task has finished its move."""
        if self._store is not None:
            self._store.set(self._KEY, {**self._begun, "done": True})

    def forget(self) -> None:
        """Keep only what earlier tries have kept: this one has written nothing."""
        if self._store is not None:
            self._store.set(self._KEY, self._kept)
