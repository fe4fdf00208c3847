"""
Plan of a pipeline: the move of a checkpoint and of the groups that follow it.

The targets are computed once and are the same for both, so that one refusal refuses the whole move, and one
receipt says what was overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    What moves together: a plan for each group, and the checkpoint's, ``None`` where only groups move.

    With ``may_be_empty`` it may be carried out also if nothing is left to write.

    :param connections: the ids of the Airflow connections that it was made with, by the names that the
        receipt has for them; empty outside Airflow.
    """

    groups: Sequence[OffsetPlan]
    checkpoint: CheckpointPlan | None = None
    may_be_empty: bool = False
    connections: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, groups: Sequence[OffsetPlan], checkpoint_plan: CheckpointPlan) -> PipelinePlan:
        """Put plans together; the groups' sources then say which query's checkpoint moves with them."""
        of = checkpoint_plan
        where = {"checkpoint": of.location, "query_id": of.query_id, "batch_id": of.batch_id}
        log_ids = of.log_ids
        for plan in () if of.leaves_mirror else groups:
            log_ids |= plan.log_ids
        return cls(
            [replace(plan, source={**plan.source, **where}) for plan in groups], replace(of, log_ids=log_ids)
        )

    def check(self) -> None:
        """Refuse the whole move, with every reason, if one part of it must not be carried out."""
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
    def to_write(self) -> list[OffsetPlan]:
        """The groups of which something is to be committed."""
        return [plan for plan in self.groups if plan.after and not plan.done]

    @property
    def refused(self) -> bool:
        """Whether it must not be carried out, or a part of it must not."""
        refusals = [
            self.checkpoint.refusals if self.checkpoint else (),
            *(plan.refusals for plan in self.groups),
        ]
        return any(refusals) or (self.empty and not self.may_be_empty)

    def tables(self) -> list[str]:
        """Return each part as lines for a log; parts of a refused move say that it was not made."""
        checkpoint = [self.checkpoint.table(refused=self.refused)] if self.checkpoint else []
        return [*checkpoint, *(plan.table(refused=self.refused) for plan in self.groups)]

    def receipt(self, *, plan_only: bool = False, verified: bool = False) -> dict[str, Any]:
        """
        Return the groups' receipt, with the ids of the Airflow connections.

        The checkpoint's part is under ``checkpoint`` where there is one.
        """
        value = {**receipt(self.groups, plan_only=plan_only, verified=verified), **self.connections}
        return value if self.checkpoint is None else {**value, "checkpoint": self.checkpoint.receipt()}

    def stamped(self, metadata: CommitMetadata) -> CommitMetadata:
        """Return the metadata of the groups' commits, with the query, batch and move that they go with."""
        of = self.checkpoint
        if of is None:
            return metadata
        return replace(metadata, query=of.query_id, batch=of.batch_id, move=of.number)

    def images(self) -> dict[str, str]:
        """Return the groups' offsets before and after as name -> text of files for the archive."""
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
        """Return every partition and offset of the plan that its tables show."""
        moves: list[tuple[TopicPartition, int | None, int | None]] = []
        if self.checkpoint is not None:
            moves += [move[1:] for move in self.checkpoint.shown()[0]]
        for plan in self.groups:
            moves += [(move.topic_partition, move.before, move.after) for move in plan.shown()[0]]
        return {(tp, offset) for tp, *both in moves for offset in both if offset is not None}

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
    """Read :data:`GROUPS_FILE`: where each group was and was to be; empty for a move of no group."""
    if not text:
        return {}, {}
    kept: Any = load_json(text, GROUPS_FILE, show=kind_of)
    before, after = ((kept.get(name) if isinstance(kept, dict) else None) for name in ("before", "after"))
    if not isinstance(before, dict) or not isinstance(after, dict):
        raise OffsetsFormatError(
            f"{GROUPS_FILE}: found {kind_of(kept)}; expected before and after, each with offsets by group"
        )
    positions = {group: parse_positions(at, GROUPS_FILE, show=kind_of) for group, at in before.items() if at}
    return positions, {
        group: parse_offsets(at, GROUPS_FILE, show=kind_of) for group, at in after.items() if at
    }
