"""Plans the commit of a checkpoint's position, and repeats the commit if a concurrent move overtakes it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from tenacity import Retrying, retry_if_exception, stop_after_attempt

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.batch import first_offsets
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointMovedError,
    GroupMovedError,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.groups import check_not_overtaken, plan_commits
from airflow_kafka_offsets.readings.known_moves import KnownMoves
from airflow_kafka_offsets.readings.log_checks import LogCheck
from airflow_kafka_offsets.readings.positions import assign_offsets

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
        if earlier is None:
            return self
        first = {group_plan.group_id: group_plan.before for group_plan in earlier.group_plans}
        before = {
            plan.group_id: {
                tp: at
                for tp, at in first.get(plan.group_id, {}).items()
                if self.metadata.is_same_instance(CommitMetadata.of(plan.commits.get(tp)))
            }
            for plan in self.plan.group_plans
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
    :param allow_new_query: whether the query may replace another query in the group.
    :raises GroupMovedError: if a later batch was finished and committed since the checkpoint was read.
    :raises PlanRefusedError: if the names do not match the checkpoint, or the query has finished no batch
        since a reset in this run.
    :return: the plan. With ``allow_new_query`` it is refused if neither query has read some of the group's
        records.
    """
    # This question reads the archives, before the position is read. In the other order a move in between
    # would count as known, and the commit would have the offsets from before it.
    known_moves = KnownMoves(checkpoint)
    known_moves.refuse_unfinished()
    state = _read(checkpoint)
    targets = assign_offsets(selection, state.kafka_offsets)
    metadata = replace(metadata, query=state.query_id, batch=state.batch_id, move=known_moves.number)
    known_moves.log_unfinished_recovery(state.kafka_offsets, metadata)
    everything = {tp: offset for offsets in targets.values() for tp, offset in offsets.items()}
    known_moves.check_batch_since_reset(metadata, everything, client)
    group_plans = plan_commits(
        client,
        targets,
        source={"checkpoint": state.location, "query_id": state.query_id, "batch_id": state.batch_id},
        on_out_of_range=on_out_of_range,
        allow_rewind=allow_rewind,
        query=None if allow_new_query else state.query_id,
        may_go_back=partial(known_moves.rewindable_partitions, state.query_id),
        log_check=LogCheck(allow_new_cluster, moves=known_moves, state=state),
        if_lost=(
            "Spark would fail there at its next start, and clamp moves only the group: let the query finish "
            "one run with failOnDataLoss=false, or move checkpoint and group forward by a reset with "
            f"{parameter_text('to_offset', 'committed')} and {parameter_text('on_out_of_range', 'clamp')}; "
            "then commit"
        ),
    )
    check_not_overtaken(
        group_plans, targets, lambda: selection.assign_offsets(checkpoint.read().kafka_offsets)
    )
    # After a move, the query's first offsets do not show what it has read.
    if allow_new_query and known_moves.newest is None:
        first = cache(partial(first_offsets, checkpoint, state.kafka_offsets))
        group_plans = [
            replace(each, refusals=(*each.refusals, *_skipped_refusals(each, state.query_id, first)))
            for each in group_plans
        ]
    return PositionCommit(PipelinePlan(group_plans), metadata, known_moves)


def _skipped_refusals(group_plan: OffsetPlan, query: str, read_first: Callable[[], Offsets]) -> list[str]:
    """
    Return why a query must not take a group over: it began after the end of the group's last query.

    :param read_first: returns where the query began.
    """
    taken_over = set(group_plan.partitions_of_other_query(query))
    if not taken_over:
        return []
    way_out = "to take the group over anyway, first commit to it the offsets at which the query began"
    try:
        first = read_first()
    except CheckpointError as error:
        return [f"{error}; so it is not known which records the query has skipped; {way_out}"]
    skipped: dict[TopicPartition, int] = {}
    for tp, before, _, log_range in group_plan.moves:
        if tp in taken_over and (count := first.get(tp, 0) - max(before or 0, log_range.start)) > 0:
            skipped[tp] = count
    if not skipped:
        return []
    example, group_id = min(skipped), group_plan.group_id
    return [
        f"the query began after the position of group {group_id!r} on {summarize(skipped)} ({example}: the "
        f"group is at {group_plan.before[example]}, the query began at {first[example]}), so neither this "
        f"query nor the group's last query has read {plural(sum(skipped.values()), 'record')}: to read them, "
        f"reset group and checkpoint with {parameter_text('to_offset', 'committed')}; {way_out}"
    ]


def retry_while_checkpoint_moves() -> Retrying:
    """Return a retry loop that repeats a commit if the checkpoint or its group has moved in the meantime."""
    overtaken: list[BaseException] = []

    def is_overtaken(error: BaseException) -> bool:
        if overtaken and isinstance(error, PlanRefusedError):
            error.append(f"this was the second try: {overtaken[-1]}")
        moved = isinstance(error, CheckpointMovedError | GroupMovedError)
        overtaken.extend([error] if moved else [])
        return moved

    return Retrying(
        retry=retry_if_exception(is_overtaken),
        stop=stop_after_attempt(_TRIES),
        before_sleep=lambda state: log.warning(
            "Committing again: %s", state.outcome and state.outcome.exception()
        ),
        reraise=True,
    )


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
    for warning in state.warnings:
        log.warning("%s", warning)
    log.info("Checkpoint %s: query %s, batch %d", state.location, state.query_id, state.batch_id)
    return state
