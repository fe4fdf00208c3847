"""
Applies a plan: checks it once, moves the checkpoint, commits the groups, reads both back.

Everything is checked and saved before the first write. From then on the move is in the checkpoint's archive:
a task that commits meanwhile finds it there, and an interrupted move is finished by running it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan, verify_checkpoint
from airflow_kafka_offsets.errors import BrokerError, CheckpointMovedError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import QUIET_PERIOD
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import committed_offsets
from airflow_kafka_offsets.model.table import DELETED
from airflow_kafka_offsets.moves.log_checks import check_logs_again

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.offsets import TopicPartition
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.model.plan import OffsetPlan
    from airflow_kafka_offsets.model.table import RecordTimes
    from airflow_kafka_offsets.moves.known_moves import KnownMoves

    Write = Callable[[OffsetsClient, OffsetPlan, Mapping[str, str]], OffsetPlan]
    """Commits one group's plan with metadata (topic -> text), reads it back, and returns what it did."""

log = logging.getLogger(__name__)

_TIMES_WITHIN = 5.0
"""Seconds for the times of a table: they are for the reader, and nothing waits for them."""

_REPEATS = 3
"""How often groups are committed again that a commit of the same query has moved meanwhile."""


def look_up_times(client: OffsetsClient, plan: PipelinePlan) -> PipelinePlan:
    """Return a plan with the log's times at its positions, as far as the broker gives them soon."""
    positions = {(tp, offset) for tp, offset in plan.positions() if offset >= 0}
    try:
        logs = client.log_ranges({tp for tp, _ in positions})
        deleted = {(tp, offset) for tp, offset in positions if offset < logs[tp].start}
        known = times_at(client, positions - deleted, _TIMES_WITHIN)
        times: RecordTimes = {**known, **dict.fromkeys(deleted, DELETED)}
        return plan.with_times(times)
    except BrokerError as error:
        log.info("The times of the log are not shown: %s", error)
        return plan


def times_at(
    client: OffsetsClient, positions: Iterable[tuple[TopicPartition, int]], within: float
) -> dict[tuple[TopicPartition, int], int | None]:
    """
    Return the log's times at partitions and offsets, see :meth:`OffsetsClient.record_times`.

    :param within: seconds for all of them.
    """
    times: dict[tuple[TopicPartition, int], int | None] = {}
    left, end = sorted(positions), time.monotonic() + within
    while left and (within := end - time.monotonic()) > 0:
        asked = dict(left)  # a partition once, at its last position
        left = [position for position in left if asked[position[0]] != position[1]]
        times |= {(tp, asked[tp]): at for tp, at in client.record_times(asked, within=within).items()}
    return times


def write_offsets(client: OffsetsClient, plan: OffsetPlan, metadata: Mapping[str, str]) -> OffsetPlan:
    """Commit a plan's offsets to a group that is where it was when the plan was made, and read them back."""
    client.commit(plan.group_id, plan.after, metadata, check=plan.check_unmoved)
    read_back(client, plan)
    return plan


def _overwrite(client: OffsetsClient, plan: OffsetPlan, metadata: Mapping[str, str]) -> OffsetPlan:
    """Commit the offsets that a checkpoint was moved to, whatever the group holds, and read them back."""
    client.commit(plan.group_id, plan.after, metadata)
    read_back(client, plan)
    return plan


def read_back(client: OffsetsClient, plan: OffsetPlan) -> None:
    """Compare what a group holds with what was planned, see :meth:`OffsetPlan.verify`."""
    plan.verify(committed_offsets(client.committed(plan.group_id, plan.after)))


def apply(
    client: OffsetsClient | None,
    plan: PipelinePlan,
    metadata: CommitMetadata,
    *,
    checkpoint: SparkCheckpoint | None = None,
    quiet_period: float = QUIET_PERIOD,
    known_moves: KnownMoves | None = None,
    write: Write = write_offsets,
    plan_only: bool = False,
) -> dict[str, Any]:
    """
    Check a plan, carry it out and read it back: the checkpoint first, then the groups.

    A group that does not move is committed as well: Kafka forgets the offsets of a group without members
    ``offsets.retention.minutes`` after the last commit.

    :param client: needed where groups move.
    :param checkpoint: the checkpoint that the plan moves.
    :param quiet_period: seconds without a write to the checkpoint for which to wait at most.
    :param known_moves: of the checkpoint that the groups follow: no other one may begin meanwhile.
    :return: the receipt.
    :raises PlanRefusedError: if a part of the plan is refused, or nothing is left to write; nothing was
        written.
    :raises CheckpointError: if the checkpoint could not be moved; the groups were not touched.
    :raises CheckpointMovedError: if another move began; the text says whether anything was written.
    :raises BrokerError: if a right to commit is missing, with nothing written; or if a commit failed: says
        which groups were written, and whether the checkpoint has moved.
    """
    plan.check()
    if plan_only:
        return plan.receipt(plan_only=True)
    if known_moves is not None:
        known_moves.check("nothing was written")
    groups = [group for group in plan.groups if group.after and not group.done]
    moved = plan.checkpoint
    if client is not None and write is write_offsets:
        _prove_commits(client, groups, always=bool(moved and moved.steps))
    if checkpoint is not None and moved is not None:

        def commit() -> None:
            if client is not None:
                stamped = plan.stamped(metadata)
                commit_groups(client, groups, stamped, _overwrite if moved.steps else write)
                verify_checkpoint(checkpoint, moved)
                _commit_over_late_ones(client, groups, stamped)

        apply_checkpoint_plan(
            checkpoint,
            moved,
            quiet_period=quiet_period,
            by=metadata,
            attachments=plan.images(),
            last_check=None if client is None else partial(_last_check, client, plan, groups),
            commit=commit,
        )
    elif client is not None:
        written = commit_groups(client, groups, metadata, write)
        plan = replace(plan, groups=[written.get(each.group_id, each) for each in plan.groups])
    if known_moves is not None:
        known_moves.check("what was committed may be from before the move, and is to be committed again")
    return plan.receipt(verified=not plan.empty)


def commit_groups(
    client: OffsetsClient, plans: Sequence[OffsetPlan], metadata: CommitMetadata, write: Write = write_offsets
) -> dict[str, OffsetPlan]:
    """
    Commit plans that were checked, one after another; an error says which groups were written.

    :return: group -> its plan as it was carried out.
    """
    written: dict[str, OffsetPlan] = {}
    for plan in plans:
        try:
            carried_out = write(client, plan, metadata.texts(plan.after, plan.log_ids))
        except (BrokerError, CheckpointMovedError, PlanRefusedError) as error:
            if written:
                error.append(
                    f"written before: group {', '.join(written)}; running it again finishes the rest"
                )
            raise
        written[plan.group_id] = carried_out
        log.info("Committed and read back: group %r, %d partitions", plan.group_id, len(plan.after))
    return written


def _prove_commits(client: OffsetsClient, plans: Sequence[OffsetPlan], *, always: bool) -> None:
    """
    Check that this user may commit to every group and topic of plans; nothing is written.

    A single topic of a single group needs no proof before its commit: all of it is refused, or nothing.

    :param always: also for a single topic, because something else is written before the commit.
    """
    wanted = {plan.group_id: sorted({tp.topic for tp in plan.after}) for plan in plans}
    if always or sum(map(len, wanted.values())) > 1:
        for group_id, topics in wanted.items():
            client.prove_commit(group_id, topics)


def _last_check(client: OffsetsClient, plan: PipelinePlan, groups: Sequence[OffsetPlan]) -> None:
    """Check that logs and groups are still what they were when the plan was made."""
    check_logs_again(client, plan)
    # An interrupted try of the same move has written to some of them.
    if plan.checkpoint is None or not plan.checkpoint.resumes:
        for each in groups:
            each.check_unmoved(client.committed(each.group_id, each.found))


def _commit_over_late_ones(
    client: OffsetsClient, groups: Sequence[OffsetPlan], metadata: CommitMetadata
) -> None:
    """Commit groups again where a task has committed what the checkpoint was at before the move."""
    for _ in range(_REPEATS):
        late = []
        for plan in groups:
            now = client.committed(plan.group_id, plan.after)
            other = [now[tp] for tp, offset in committed_offsets(now).items() if offset != plan.after[tp]]
            makers = [CommitMetadata.parse(commit.metadata) for commit in other if commit is not None]
            if other and all(maker is not None and maker.query == metadata.query for maker in makers):
                log.warning(
                    "Group %r was committed by %s meanwhile: committed again", plan.group_id, makers[:1]
                )
                late.append(plan)
            elif other:
                plan.verify(committed_offsets(now))
        if not late:
            return
        commit_groups(client, late, metadata, _overwrite)
