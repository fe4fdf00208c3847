"""
Plan of a pipeline: the move of a checkpoint and of the groups that follow it.

The targets are computed once and are the same for both, so that one refusal refuses the whole move, and one
receipt says what was overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.formats import (
    format_csv,
    load_json,
    offsets_json,
    parse_offsets,
    parse_positions,
)
from airflow_kafka_offsets.model.offsets import Offsets, Positions, TopicPartition
from airflow_kafka_offsets.model.plan import OffsetPlan, check_plans
from airflow_kafka_offsets.model.receipt import receipt
from airflow_kafka_offsets.model.table import RecordTimes
from airflow_kafka_offsets.model.text import kind_of

GROUPS_FILE = "groups.json"
"""The file of a checkpoint's archive from which an interrupted move of the groups is finished."""


@dataclass(frozen=True)
class PipelinePlan:
    """
    What moves together.

    :param groups: a plan for each group.
    :param checkpoint: its plan, ``None`` where only groups move.
    :param may_be_empty: whether it may be carried out also if nothing is left to write.
    """

    groups: Sequence[OffsetPlan]
    checkpoint: CheckpointPlan | None = None
    may_be_empty: bool = False

    @classmethod
    def make(cls, groups: Sequence[OffsetPlan], checkpoint_plan: CheckpointPlan) -> PipelinePlan:
        """Put plans together; the groups' sources then say which query's checkpoint moves with them."""
        where = {
            "checkpoint": checkpoint_plan.location,
            "query_id": checkpoint_plan.query_id,
            "batch_id": checkpoint_plan.batch_id,
        }
        return cls([replace(plan, source={**plan.source, **where}) for plan in groups], checkpoint_plan)

    def check(self) -> None:
        """
        Refuse the whole move if one part of it must not be carried out.

        :raises PlanRefusedError: with every reason of every part.
        """
        check_plans([*([self.checkpoint] if self.checkpoint else []), *self.groups])
        if self.empty and not self.may_be_empty:
            notes = list(dict.fromkeys(note for plan in self.groups for note in plan.notes))
            raise PlanRefusedError([": ".join(["nothing is left to write", *notes[:1]]), *notes[1:]])

    @property
    def empty(self) -> bool:
        """Whether there are groups, and nothing is left to write: every partition is left alone."""
        moves = self.checkpoint is not None and bool(self.checkpoint.steps)
        return bool(self.groups) and not moves and not any(plan.after for plan in self.groups)

    @property
    def refused(self) -> bool:
        """Whether it must not be carried out, or a part of it must not."""
        parts = [*([self.checkpoint] if self.checkpoint else []), *self.groups]
        return any(part.refusals for part in parts) or (self.empty and not self.may_be_empty)

    def tables(self) -> list[str]:
        """Return each part as lines for a log; of a refused move each part says that it was not carried out."""
        checkpoint = [self.checkpoint.table(refused=self.refused)] if self.checkpoint else []
        return [*checkpoint, *(plan.table(refused=self.refused) for plan in self.groups)]

    def receipt(self, *, plan_only: bool = False, verified: bool = False) -> dict[str, Any]:
        """Return the groups' receipt, with the checkpoint's part under ``checkpoint`` where there is one."""
        value = receipt(self.groups, plan_only=plan_only, verified=verified)
        return value if self.checkpoint is None else {**value, "checkpoint": self.checkpoint.receipt()}

    def stamped(self, metadata: CommitMetadata) -> CommitMetadata:
        """Return the metadata of the groups' commits, with the query, batch and move that they go with."""
        if self.checkpoint is None:
            return metadata
        return replace(
            metadata,
            query=self.checkpoint.query_id,
            batch=self.checkpoint.batch_id,
            move=self.checkpoint.number,
        )

    def images(self) -> dict[str, str]:
        """Return where the groups were and are to be, as name -> text of files for the checkpoint's archive."""
        if not self.groups:
            return {}
        groups = {
            "before": {plan.group_id: offsets_json(plan.before) for plan in self.groups},
            "after": {plan.group_id: offsets_json(plan.after) for plan in self.groups},
        }
        return {
            GROUPS_FILE: json.dumps(groups, indent=2),
            "before.csv": format_csv({plan.group_id: plan.overwritten for plan in self.groups}),
            "after.csv": format_csv({plan.group_id: plan.after for plan in self.groups}),
        }

    def positions(self) -> set[tuple[TopicPartition, int]]:
        """Return every partition and offset that the plan comes from or goes to."""
        sources = (
            [*self.checkpoint.before.values(), *self.checkpoint.after.values()] if self.checkpoint else []
        )
        found = {(tp, offset) for offsets in sources for tp, offset in offsets.items()}
        for plan in self.groups:
            for move in plan.moves:
                found |= {
                    (move.topic_partition, offset)
                    for offset in (move.before, move.after)
                    if offset is not None
                }
        return found

    def with_times(self, times: RecordTimes) -> PipelinePlan:
        """Return the plan with the times that the log has at its positions."""
        checkpoint = replace(self.checkpoint, times=times) if self.checkpoint else None
        return replace(
            self, groups=[replace(plan, times=times) for plan in self.groups], checkpoint=checkpoint
        )

    def with_before(self, before: Mapping[str, Positions]) -> PipelinePlan:
        """Return the plan with where the groups were before an interrupted try."""
        return replace(self, groups=[plan.with_before(before.get(plan.group_id, {})) for plan in self.groups])


def offsets_after(plans: Sequence[OffsetPlan]) -> dict[str, Offsets]:
    """Return group -> offsets that plans are to commit."""
    return {plan.group_id: plan.after for plan in plans}


def read_images(text: str) -> tuple[dict[str, Positions], dict[str, Offsets]]:
    """
    Read what :meth:`PipelinePlan.images` has put into :data:`GROUPS_FILE`: where each group was and was to be.

    :param text: the file; empty for a move of no group.
    :raises OffsetsFormatError: if it is anything else.
    """
    if not text:
        return {}, {}
    kept: Any = load_json(text, GROUPS_FILE, show=kind_of)
    before, after = ((kept.get(name) if isinstance(kept, dict) else None) for name in ("before", "after"))
    if not isinstance(before, dict) or not isinstance(after, dict):
        raise OffsetsFormatError(
            f"{GROUPS_FILE}: found {kind_of(kept)}; expected before and after, each with offsets by group"
        )
    return (
        {
            group: parse_positions(offsets, GROUPS_FILE, show=kind_of)
            for group, offsets in before.items()
            if offsets
        },
        {
            group: parse_offsets(offsets, GROUPS_FILE, show=kind_of)
            for group, offsets in after.items()
            if offsets
        },
    )
