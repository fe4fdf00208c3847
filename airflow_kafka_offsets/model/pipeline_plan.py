"""
Plan of a pipeline: the move of a checkpoint and of the groups that follow it, to the same targets.

One refusal refuses the whole move, and one receipt records the overwritten offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

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
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import Offsets, Positions, TopicPartition
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import make_receipt
from airflow_kafka_offsets.model.table import TimesByOffset
from airflow_kafka_offsets.model.text import describe_type

if TYPE_CHECKING:
    from typing import Self  # Python 3.10, on which a Spark job may run, lacks it

GROUPS_FILE = "groups.json"
"""The file in a checkpoint's archive from which an interrupted move of the groups is resumed."""
BEFORE_FILE = "before.csv"
"""The file in the archive with the groups' offsets before the move, as Kafka's CSV."""

OTHER_QUERY = (
    "the last commit is of another query, and not of the checkpoint's: correct the name of the group or the "
    "location of the checkpoint, unless this query replaces that one"
)


@dataclass(frozen=True)
class PipelinePlan:
    """
    The plans that are applied together: one for each group, and the checkpoint's.

    :param checkpoint_plan: ``None`` if only groups move.
    :param may_be_empty: whether a plan without anything to write is accepted.
    :param provenance: more keys of the receipt: ids of the Airflow connections that a task uses, the
        ``names`` of its pipeline, and about an applied saved plan ``plan`` (its digest) and ``approval``.
    """

    group_plans: Sequence[OffsetPlan]
    checkpoint_plan: CheckpointPlan | None = None
    may_be_empty: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def combine(cls, group_plans: Sequence[OffsetPlan], checkpoint: CheckpointPlan) -> Self:
        """Combine plans of groups and of a checkpoint; the groups' sources then name checkpoint and query."""
        batch = {"query_id": checkpoint.query_id, "batch_id": checkpoint.batch_id}
        where = {"checkpoint": checkpoint.location, **batch}
        # A group's plan has its topics' ids, the checkpoint's those of its newest move: they may differ.
        ids = [group_plan.log_ids for group_plan in group_plans if not checkpoint.undoes_failover]
        return cls(
            [
                replace(
                    plan.with_note(plan.partitions_of_other_query(checkpoint.query_id), OTHER_QUERY),
                    source={**plan.source, **where},
                )
                for plan in group_plans
            ],
            replace(checkpoint, log_ids=LogIds.union([checkpoint.log_ids, *ids])),
        )

    @property
    def _parts(self) -> list[CheckpointPlan | OffsetPlan]:
        return [*([self.checkpoint_plan] if self.checkpoint_plan else []), *self.group_plans]

    @property
    def log_ids(self) -> LogIds:
        """Ids of the cluster and the topics that the offsets belong to."""
        return LogIds.union(part.log_ids for part in self._parts)

    @property
    def refusals(self) -> list[str]:
        """Every reason why the plan must not be applied; empty if it may be applied."""
        # A checkpoint and its group are often refused for the same reason.
        refusals = list(dict.fromkeys(refusal for part in self._parts for refusal in part.refusals))
        if refusals or self.may_be_empty or not self.is_empty:
            return refusals
        notes = list(dict.fromkeys(note for group_plan in self.group_plans for note in group_plan.notes))
        return [": ".join(["nothing is left to write", *notes[:1]]), *notes[1:]]

    def check(self) -> None:
        """Refuse the whole move, before its first write, if one of its parts is refused."""
        PlanRefusedError.raise_if(self.refusals)

    @property
    def is_empty(self) -> bool:
        """Whether there are groups, but nothing to write, because every partition is left alone."""
        checkpoint = self.checkpoint_plan
        moves = checkpoint is not None and bool(checkpoint.steps or checkpoint.resumes)
        # Without groups, only the checkpoint moves, and its plan handles a move without steps.
        return bool(self.group_plans) and not moves and not any(plan.after for plan in self.group_plans)

    @property
    def to_write(self) -> list[OffsetPlan]:
        """The plans of groups with offsets to commit."""
        # Groups that an earlier try has committed are left out: they may have moved on since.
        return [plan for plan in self.group_plans if plan.after and not plan.already_done]

    @property
    def archive(self) -> str | None:
        """The archive that keeps the offsets before the move, also those of the groups, if a file changes."""
        return None if self.checkpoint_plan is None else self.checkpoint_plan.archive

    @property
    def begun(self) -> bool:
        """Whether an earlier try has already written a part of the plan."""
        checkpoint = self.checkpoint_plan
        moved = checkpoint is not None and (checkpoint.resumes or checkpoint.carried)
        return moved or any(plan.committed != plan.before for plan in self.group_plans)

    def tables(self) -> list[str]:
        """Return each part as lines for a log; in a refused move, each heading says so."""
        refused = bool(self.refusals)
        return [part.table(refused=refused) for part in self._parts]

    def make_receipt(self, *, plan_only: bool = False, verified: bool = False) -> dict[str, Any]:
        """Return the groups' receipt with connection ids, and the checkpoint's part under ``checkpoint``."""
        checkpoint = self.checkpoint_plan
        groups = make_receipt(self.group_plans, plan_only=plan_only, verified=verified)
        moved = {} if checkpoint is None else {"checkpoint": checkpoint.make_receipt()}
        return {**groups, **self.provenance, **moved}

    def stamp(self, metadata: CommitMetadata) -> CommitMetadata:
        """Return the commits' metadata with the query, the batch and the move of the checkpoint."""
        checkpoint = self.checkpoint_plan
        if checkpoint is None:
            return metadata
        return replace(metadata, query=checkpoint.query_id, batch=checkpoint.batch_id, move=checkpoint.number)

    def archive_files(self) -> dict[str, str]:
        """Return the files with the groups' offsets before and after for the archive: name -> text."""
        before = {plan.group_id: plan.before for plan in self.group_plans}
        after = offsets_after(self.group_plans)
        if not before:
            return {}
        groups = {
            "before": {group: offsets_json(offsets) for group, offsets in before.items()},
            "after": {group: offsets_json(offsets) for group, offsets in after.items()},
        }
        files = {GROUPS_FILE: json.dumps(groups, indent=2)}
        return {**files, BEFORE_FILE: format_csv(before), "after.csv": format_csv(after)}

    def table_positions(self) -> set[tuple[TopicPartition, int]]:
        """Return every partition and offset of the plan that its tables show."""
        moves: list[tuple[TopicPartition, int | None, int | None]] = []
        if self.checkpoint_plan is not None:
            moves += [move[1:] for move in self.checkpoint_plan.table_rows()[0]]
        for group_plan in self.group_plans:
            moves += [move[:3] for move in group_plan.table_moves()[0]]
        return {(tp, offset) for tp, *both in moves for offset in both if offset is not None}

    def with_times(self, times: TimesByOffset) -> PipelinePlan:
        """Return the plan with the timestamps of the records at its positions."""
        plans = [replace(plan, times=times) for plan in self.group_plans]
        checkpoint = replace(self.checkpoint_plan, times=times) if self.checkpoint_plan else None
        return replace(self, group_plans=plans, checkpoint_plan=checkpoint)

    def with_before(self, before: Mapping[str, Positions]) -> Self:
        """Return the plan with the groups' positions before an interrupted try."""
        plans = [plan.with_before(before.get(plan.group_id, {})) for plan in self.group_plans]
        return replace(self, group_plans=plans)


def offsets_after(group_plans: Sequence[OffsetPlan]) -> dict[str, Offsets]:
    """Return group -> the offsets to commit."""
    return {group_plan.group_id: group_plan.after for group_plan in group_plans}


def read_groups_file(text: str) -> tuple[dict[str, Positions], dict[str, Offsets]]:
    """Read :data:`GROUPS_FILE`: each group's positions before and after."""
    # Error texts, which go to logs, name only the type of the content: it may be any file.
    kept: Any = load_json(text, GROUPS_FILE, describe=describe_type)
    before, after = ((kept.get(name) if isinstance(kept, dict) else None) for name in ("before", "after"))
    if not isinstance(before, dict) or not isinstance(after, dict):
        raise OffsetsFormatError(
            f"{GROUPS_FILE}: found {describe_type(kept)}; expected before and after, each with offsets by "
            "group"
        )
    positions = {
        group: parse_positions(at, GROUPS_FILE, describe=describe_type) for group, at in before.items() if at
    }
    return positions, {
        group: parse_offsets(at, GROUPS_FILE, describe=describe_type) for group, at in after.items() if at
    }
