"""Plans the commit of a checkpoint's position, and repeats the commit if a concurrent move overtakes it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from airflow_kafka_offsets.checkpoint.batch import first_offsets
from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointMovedError,
    GroupMovedError,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.commit import plan_commits
from airflow_kafka_offsets.readings.known_moves import KnownMoves
from airflow_kafka_offsets.readings.log_checks import LogCheck

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import CheckpointState, SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.parameters import OutOfRangePolicy
    from airflow_kafka_offsets.model.plan import OffsetPlan

log = logging.getLogger(__name__)

_TRIES = 3
"""Number of tries to read and commit a position while concurrent moves overtake the commit."""


class PositionCommit(NamedTuple):
    """The arguments of :func:`~airflow_kafka_offsets.moves.apply.apply_position`."""

    plan: PipelinePlan
    metadata: CommitMetadata
    known_moves: KnownMoves

    def with_earlier_attempt(self, earlier: PipelinePlan | None) -> PositionCommit:
        """
        Return the commit with the positions before an earlier attempt of the task, if that attempt has
        written.
        """
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
    Plan to commit the end of a checkpoint's newest committed batch.

    Plan and apply the commit within :func:`retry_while_checkpoint_moves`.

    :param metadata: the commits' metadata; query, batch and newest move are added.
    :param allow_rewind: whether a group may move back.
    :param allow_new_query: whether the query may replace another query in the group.
    :param allow_new_cluster: whether the caller confirms that the offsets are valid on a new cluster or in a
        recreated topic.
    :raises MoveUnfinishedError: if a move of the checkpoint was started and not finished.
    :raises PlanRefusedError: if the names do not match the checkpoint, or the query has finished no batch
        since a reset in this run.

    With ``allow_new_query`` the plan is refused if neither query has read some of the group's records.
    :raises CheckpointError: if no batch has finished.
    """
    # Read before the position, so that a move in between is detected as a later move.
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
        # If a move has rewritten the batch's file, its offsets are not those that the batch has read.
        read_at=None if known_moves.has_rewritten(state.batch_id) else state.batch_timestamp_ms,
        log_check=LogCheck(allow_new_cluster, checkpoint=checkpoint),
        if_lost=(
            "Spark would fail there at its next start, and clamp moves only the group: let the query finish "
            "one run with failOnDataLoss=false, or move checkpoint and group forward with a reset to "
            f"committed and {parameter_text('on_out_of_range', 'clamp')}; then commit"
        ),
    )
    # After a move, the query's first offsets do not show what it has read.
    if allow_new_query and not known_moves.number:
        first = first_offsets(checkpoint, state.kafka_offsets)
        group_plans = [_refuse_skipped(group_plan, state.query_id, first) for group_plan in group_plans]
    return PositionCommit(PipelinePlan(group_plans), metadata, known_moves)


def _refuse_skipped(plan: OffsetPlan, query: str, first: Offsets) -> OffsetPlan:
    """
    Refuse a new query that began after the position at which the group's other query had ended.

    :param first: where the new query began to read.
    """
    skipped: dict[TopicPartition, int] = {}
    for move in plan.moves:
        tp = move.topic_partition
        made = CommitMetadata.parse(plan.metadata.get(tp))
        if move.before is not None and tp in first and made is not None and made.query not in ("", query):
            count = first[tp] - max(move.before, move.log.start)
            skipped |= {tp: count} if count > 0 else {}
    if not skipped:
        return plan
    example = min(skipped)
    refusal = (
        f"the query began after the position of group {plan.group_id!r} on {summarize(skipped)} "
        f"({example}: the group is at {plan.before[example]}, the query began at {first[example]}), so "
        f"neither this query nor the group's last query has read {sum(skipped.values())} records: to read "
        f"them, reset group and checkpoint with {parameter_text('to_offset', 'committed')}; to skip them, "
        "first commit the offsets at which the query began to the group"
    )
    return replace(plan, refusals=(*plan.refusals, refusal))


def retry_while_checkpoint_moves() -> Retrying:
    """Return a retry loop that repeats a commit if the checkpoint or its group has moved in the meantime."""
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
            "Spark query until its first batch has finished"
        )
    if not state.kafka_offsets:
        raise PlanRefusedError(state.no_kafka_offsets)
    if (pending := state.pending_batch_id) is not None:
        log.info("Batch %d is pending: Spark will run it again, so its offsets are not committed", pending)
    log.info("Checkpoint %s: query %s, batch %d", state.location, state.query_id, state.batch_id)
    return state
