"""
Applies plans: checks a plan, moves the checkpoint, commits the groups, and reads both back.

Everything is checked and saved before the first write. From then on the move is in the checkpoint's archive:
a concurrent commit finds the move there, and the same task finishes an interrupted move when it runs again.

Each function returns the receipt. Each raises PlanRefusedError if a part of the plan is refused or nothing is
left to write; nothing was written then. Each raises BrokerError if a commit failed; the text names the groups
that were written before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.apply_move import (
    apply_checkpoint_plan,
    check_not_over,
    verify_checkpoint,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.commit_origins import other_query_refusal
from airflow_kafka_offsets.model.offsets import committed_offsets
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan, check_read_back
from airflow_kafka_offsets.moves.write import commit_groups, overwrite, prove_commits, write_plan
from airflow_kafka_offsets.readings.known_moves import KnownMoves
from airflow_kafka_offsets.readings.log_checks import check_logs_again

log = logging.getLogger(__name__)


def apply_groups(client: OffsetsClient, plan: PipelinePlan, metadata: CommitMetadata) -> dict[str, Any]:
    """
    Commit the groups of a plan.

    A group that does not move is committed too, because Kafka deletes the offsets of a group without members
    ``offsets.retention.minutes`` after the last commit.
    """
    plan.check()
    prove_commits(client, plan.to_write)
    commit_groups(client, plan.to_write, metadata, write_plan)
    return plan.make_receipt(verified=not plan.is_empty)


def apply_position(
    client: OffsetsClient, plan: PipelinePlan, metadata: CommitMetadata, known_moves: KnownMoves
) -> dict[str, Any]:
    """
    Commit a checkpoint's position to the groups that follow it, unless the checkpoint moves at the same time.

    :raises CheckpointMovedError: if another move started; the text says whether anything was written.
    """
    # Checked right before and right after the write.
    known_moves.check_no_later_move("nothing was written")
    receipt = apply_groups(client, plan, metadata)
    known_moves.check_no_later_move("the commit may predate the move: commit again")
    return receipt


def apply_checkpoint(
    plan: PipelinePlan, metadata: CommitMetadata, checkpoint: SparkCheckpoint, quiet_period: float
) -> dict[str, Any]:
    """
    Move a checkpoint without contacting a broker; no group moves.

    :param quiet_period: seconds without a write to the checkpoint after which its query counts as stopped.
    """
    plan.check()
    if plan.checkpoint_plan is not None:
        apply_checkpoint_plan(checkpoint, plan.checkpoint_plan, quiet_period=quiet_period, made_by=metadata)
    return plan.make_receipt(verified=True)


def apply_pipeline(
    client: OffsetsClient,
    plan: PipelinePlan,
    metadata: CommitMetadata,
    checkpoint: SparkCheckpoint | None,
    quiet_period: float,
) -> dict[str, Any]:
    """
    Move a checkpoint, then the groups that follow it; a plan without a checkpoint moves only groups.

    :raises CheckpointError: if the checkpoint could not be moved; the groups were not changed.
    :raises GroupMovedError: if another process has committed a group since the plan; that group was not
        written.
    """
    moved = plan.checkpoint_plan
    if checkpoint is None or moved is None:
        return apply_groups(client, plan, metadata)
    plan.check()
    groups, stamped = plan.to_write, plan.stamp(metadata)
    prove_commits(client, groups)

    def check_again() -> None:
        check_logs_again(client, plan)
        # An interrupted try of the same move may already have written to some groups.
        for group_plan in () if moved.resumes else groups:
            group_plan.check_not_moved(client.committed(group_plan.group_id, group_plan.committed))

    def write(client: OffsetsClient, plan: OffsetPlan, texts: Mapping[str, str]) -> None:
        check_not_over(checkpoint, moved)
        (overwrite if moved.steps else write_plan)(client, plan, texts)

    def commit() -> None:
        commit_groups(client, groups, stamped, write)
        # After the commits, because a query that was started in the meantime has read from the old position.
        verify_checkpoint(checkpoint, moved)
        # A commit that was planned before the move may have come in between; no later move has begun.
        for each in groups if moved.steps else ():
            now = client.committed(each.group_id, each.after)
            if committed_offsets(now) != each.after:
                if other_query_refusal(each.group_id, now, stamped.query):
                    check_read_back(each.group_id, each.after, committed_offsets(now))
                log.warning("Group %r was committed in the meantime: committing it again", each.group_id)
                commit_groups(client, [each], stamped, write)

    apply_checkpoint_plan(
        checkpoint,
        moved,
        quiet_period=quiet_period,
        made_by=metadata,
        attachments=plan.archive_files(),
        last_check=check_again,
        commit=commit,
    )
    return plan.make_receipt(verified=not plan.is_empty)
