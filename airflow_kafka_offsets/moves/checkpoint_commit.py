"""Plans the commit of a checkpoint's position, which a move of the checkpoint may overtake."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointMovedError,
    GroupMovedError,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.commit import plan_commits
from airflow_kafka_offsets.readings.known_moves import KnownMoves
from airflow_kafka_offsets.readings.log_checks import LogCheck

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import CheckpointState, SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.parameters import OutOfRangePolicy

log = logging.getLogger(__name__)

_TRIES = 3
"""How often a position is read and committed again because the checkpoint was moved meanwhile."""


class PositionCommit(NamedTuple):
    """The plan of a commit, and what :func:`~airflow_kafka_offsets.moves.apply.apply_position` needs."""

    plan: PipelinePlan
    metadata: CommitMetadata
    known_moves: KnownMoves

    def with_earlier_attempt(self, earlier: PipelinePlan | None) -> PositionCommit:
        """Return it with what was there before an earlier attempt of the task that has written."""
        if earlier is None or not self.metadata.token:
            return self
        first = {group_plan.group_id: group_plan.before for group_plan in earlier.group_plans}
        before = {
            group_plan.group_id: {
                tp: first[group_plan.group_id][tp]
                for tp, text in group_plan.metadata.items()
                if (made := CommitMetadata.parse(text)) is not None
                and made.token == self.metadata.token
                and tp in first.get(group_plan.group_id, {})
            }
            for group_plan in self.plan.group_plans
        }
        return self._replace(plan=self.plan.with_before(before))


def plan_checkpoint_commit(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    selection: GroupSelection,
    metadata: CommitMetadata,
    *,
    on_out_of_range: OutOfRangePolicy = "fail",
    allow_rewind: bool = False,
    allow_new_query: bool = False,
    allow_new_cluster: bool = False,
) -> PositionCommit:
    """
    Plan to commit what a checkpoint's newest committed batch has read.

    Plan and apply it within :func:`retry_while_checkpoint_moves`.

    :param metadata: what the commits record about their origin; the query, batch and newest move are added.
    :param allow_rewind: whether a group may go backwards.
    :param allow_new_query: whether the query may take over a group that another query followed.
    :param allow_new_cluster: whether the offsets are known to be right on a cluster, or topic, that is
        another one than before.
    :raises MoveUnfinishedError: if a move of the checkpoint was begun and not finished.
    :raises PlanRefusedError: if the names do not fit the checkpoint, or the query has done nothing since a
        reset of this run.
    :raises CheckpointError: if no batch has finished.
    """
    # Before the position is read: a move in between shows as one that began since.
    known_moves = KnownMoves.read(checkpoint)
    state = _read(checkpoint)
    targets = selection.assign_offsets(state.kafka_offsets)
    metadata = replace(metadata, query=state.query_id, batch=state.batch_id, move=known_moves.number)
    known_moves.log_unfinished_recovery(state.kafka_offsets, metadata)
    everything = {tp: offset for offsets in targets.by_group.values() for tp, offset in offsets.items()}
    known_moves.check_work(metadata, everything, client)
    group_plans = plan_commits(
        client,
        targets,
        source={"checkpoint": state.location, "query_id": state.query_id, "batch_id": state.batch_id},
        on_out_of_range=on_out_of_range,
        allow_rewind=allow_rewind,
        query=None if allow_new_query else state.query_id,
        may_go_back=partial(known_moves.rewindable_partitions, state.query_id),
        # The offsets that a move has written into a batch's file are not those that the batch has read.
        read_at=None if known_moves.has_rewritten(state.batch_id) else state.batch_timestamp_ms,
        log_check=LogCheck(allow_new_cluster, checkpoint=checkpoint),
        if_lost=(
            "Spark would fail there at its next start, and clamp moves the group alone: let the query finish "
            "one run with failOnDataLoss=false, or move checkpoint and group on with a reset to committed "
            f"and {parameter_text('on_out_of_range', 'clamp')}; then commit"
        ),
    )
    return PositionCommit(PipelinePlan(group_plans), metadata, known_moves)


def retry_while_checkpoint_moves() -> Retrying:
    """Return what calls a function again if the checkpoint or its group was moved meanwhile."""
    return Retrying(
        retry=retry_if_exception_type((CheckpointMovedError, GroupMovedError)),
        stop=stop_after_attempt(_TRIES),
        before_sleep=_log_why,
        reraise=True,
    )


def _log_why(state: RetryCallState) -> None:
    if state.outcome is not None:
        log.warning("Committing again: %s", state.outcome.exception())


def _read(checkpoint: SparkCheckpoint) -> CheckpointState:
    state = checkpoint.read()
    if state.batch_id is None:
        begun = "" if state.pending_batch_id is None else f" (batch {state.pending_batch_id} was begun)"
        raise CheckpointError(
            f"{state.location}: no batch has finished{begun}, so there are no offsets to commit: run the "
            "Spark query until its first batch is done"
        )
    if not state.kafka_offsets:
        raise PlanRefusedError(state.no_kafka_offsets)
    if (pending := state.pending_batch_id) is not None:
        log.info("Batch %d is pending: Spark will run it again, its offsets are not committed", pending)
    log.info("Checkpoint %s: query %s, batch %d", state.location, state.query_id, state.batch_id)
    return state
