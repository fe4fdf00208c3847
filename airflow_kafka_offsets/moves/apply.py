"""
Carries out a plan that moves consumer groups and the Spark checkpoint that they follow as one.

Everything is checked and saved before the first write. From then on others can see the move in the checkpoint's
archive: who commits meanwhile finds it there. The checkpoint is moved, then the groups are committed, then both are
read back, the groups last. A move that was interrupted in between is finished by running it again: the archive has kept
where it was to go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.move import (
    apply_checkpoint_plan,
    finish_checkpoint_move,
    verify_checkpoint,
)
from airflow_kafka_offsets.errors import BrokerError, CheckpointMovedError
from airflow_kafka_offsets.model.checkpoint_plan import QUIET_PERIOD
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import committed_offsets, summarize
from airflow_kafka_offsets.moves.commit import apply_plans, commit_plans, prove_commits

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
    from airflow_kafka_offsets.model.offsets import TopicPartition
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.model.plan import OffsetPlan

log = logging.getLogger(__name__)

_SHOWN_WITHIN = 5.0
"""Seconds for the times of a table: they are for the reader, and nothing waits for them."""

_LAST_LOOKS = 3
"""How often groups are committed again that a commit of the same query has moved meanwhile."""


def look_up_times(client: OffsetsClient, plan: PipelinePlan) -> PipelinePlan:
    """Return a plan with the times that the log has at its positions, as far as the broker tells them soon."""
    times: dict[tuple[TopicPartition, int], int | None] = {}
    left = sorted(plan.positions())
    while left:
        asked = dict(left)  # a partition once, at its last position
        left = [position for position in left if asked[position[0]] != position[1]]
        try:
            found = client.record_times(asked, within=_SHOWN_WITHIN)
        except BrokerError as error:
            log.info("The times of the log are not shown: %s", error)
            break
        times |= {(tp, asked[tp]): time for tp, time in found.items()}
    return plan.with_times(times)


def apply_plan(
    client: OffsetsClient | None,
    checkpoint: SparkCheckpoint | None,
    plan: PipelinePlan,
    metadata: CommitMetadata,
    *,
    quiet_period: float = QUIET_PERIOD,
) -> None:
    """
    Carry out a joint plan: the checkpoint first, then the groups, and read both back.

    :raises PlanRefusedError: if a part of it must not be carried out; nothing was written.
    :raises CheckpointError: if the checkpoint could not be moved; the groups were not touched.
    :raises BrokerError: if a right to commit is missing, with nothing written; or if a commit failed, which then says
        that the checkpoint has moved already.
    """
    plan.check()
    checkpoint_plan = plan.checkpoint
    groups = plan.groups if client is not None else ()
    if checkpoint_plan is None or checkpoint is None:
        if client is not None:
            apply_plans(client, groups, metadata)
        return
    if client is not None:
        prove_commits(client, groups, always=bool(checkpoint_plan.steps))
    apply_checkpoint_plan(
        checkpoint,
        checkpoint_plan,
        quiet_period=quiet_period,
        by=metadata,
        attachments=plan.images(),
        last_check=_unmoved(client, groups, checkpoint_plan),
        finish=False,
    )
    if client is not None:
        stamped = plan.stamped(metadata)
        try:
            commit_plans(client, groups, stamped)
            verify_checkpoint(checkpoint, checkpoint_plan)
            _look_at_groups_last(client, groups, stamped)
        except BrokerError as error:
            if checkpoint_plan.steps:
                moved = (
                    f"{error}; the checkpoint {checkpoint_plan.location} was moved before: running it again finishes the rest, undoing "
                    f"archive {checkpoint_plan.archive} takes it back"
                )
                error.args = (moved, *error.args[1:])
            raise
    finish_checkpoint_move(checkpoint, checkpoint_plan)


def _unmoved(
    client: OffsetsClient | None, groups: Sequence[OffsetPlan], checkpoint_plan: CheckpointPlan
) -> Callable[[], None] | None:
    """Return what sees that the groups are still where they were when the plan was made."""
    if client is None or checkpoint_plan.resumes:
        return None

    def check() -> None:
        for plan in groups:
            now = client.committed(plan.group_id, plan.found)
            moved = {tp for tp, offset in committed_offsets(now).items() if offset != plan.found[tp]}
            if moved:
                tp = min(moved)
                by = CommitMetadata.parse(commit.metadata) if (commit := now[tp]) is not None else None
                raise CheckpointMovedError(
                    f"group {plan.group_id!r} was committed on {summarize(moved)} while its move was being prepared"
                    f"{f' (by {by})' if by else ''}; nothing was changed; running it again plans from there"
                )

    return check


def _look_at_groups_last(
    client: OffsetsClient, groups: Sequence[OffsetPlan], metadata: CommitMetadata
) -> None:
    """
    Read the groups once more, and commit them again where a commit has come in between.

    A task that commits has read the checkpoint before it was moved, and has written after the groups were.

    :raises CommitError: if another client commits to a group.
    """
    for _ in range(_LAST_LOOKS):
        late = []
        for plan in groups:
            now = client.committed(plan.group_id, plan.after)
            other = {tp: now[tp] for tp, offset in committed_offsets(now).items() if offset != plan.after[tp]}
            said = [CommitMetadata.parse(commit.metadata) for commit in other.values() if commit is not None]
            if other and all(by is not None and by.query == metadata.query for by in said):
                log.warning(
                    "Group %s was committed by %s meanwhile: committed again", plan.group_id, said[:1]
                )
                late.append(plan)
            elif other:
                plan.verify(committed_offsets(now))
        if not late:
            return
        commit_plans(client, late, metadata)
