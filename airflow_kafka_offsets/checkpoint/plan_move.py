"""
Plans the move of a Spark checkpoint to other offsets, and the restore of an earlier state.

There are three kinds of moves. The query must be stopped (measured with Spark 3.5 to 4.2):

* *seek* writes other offsets into the Kafka lines of the newest batch's file in ``offsets/``. The query
  continues from there with the next batch id. No id occurs twice, so sinks that remember ids stay correct.
* *truncate* removes batches, newest first. The query plans them again under the same ids. This is exact
  for a query with state, too, but wrong for sinks that skip ids they have seen. The Spark application must
  have ended, not only the query: a running application may write old state again.
* *restore* puts back the files of an archive, or seeks to its offsets if the query has run since.

Each plan is a list of files to write and remove. Their order ensures that Spark can start from the checkpoint
after any interruption. :func:`~airflow_kafka_offsets.checkpoint.apply_move.apply_checkpoint_plan` applies the
plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_kafka_offsets.checkpoint.archive import find_archived_move, read_archived_moves, read_copy
from airflow_kafka_offsets.checkpoint.archive_names import next_archive_name
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.guards import (
    CheckpointBatches,
    link_refusals,
    pending_refusals,
    read_checkpoint_batches,
    restart_refusals,
    state_refusals,
    truncate_refusals,
    unknown_partition_refusals,
)
from airflow_kafka_offsets.checkpoint.open_moves import (
    has_run_since,
    resume_plan,
    unfinished_move_of_request,
)
from airflow_kafka_offsets.checkpoint.plan_failover import failover_refusals
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state_store import StateStores
from airflow_kafka_offsets.errors import CheckpointError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, MoveKind, Step, sources_json
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.offsets import Offsets


def plan_seek(
    checkpoint: SparkCheckpoint,
    targets: Mapping[str, Offsets],
    policy: CheckpointPolicy | None = None,
    *,
    kind: MoveKind = "seek",
    undoes: str | None = None,
    request: str = "",
    keep_pending_batch: bool = False,
) -> CheckpointPlan:
    """
    Plan to let the query continue from other offsets.

    The same request finishes an interrupted move; every other request is refused until then.

    :param targets: source -> offsets; the caller checks that they are inside the log. Partitions without a
        target keep their offsets.
    :param request: identifies the request; by default a digest of the targets.
    :param keep_pending_batch: whether an unfinished batch that began at the targets may stay.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished yet.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    policy = policy or CheckpointPolicy()
    request = request or digest(kind, undoes, sources_json(targets))
    checkpoint_batches = read_checkpoint_batches(checkpoint)
    earlier = unfinished_move_of_request(checkpoint, checkpoint_batches, request, undoes)
    before = checkpoint_batches.state.kafka_offsets
    refusals = restart_refusals(checkpoint_batches)
    refusals += unknown_partition_refusals(checkpoint_batches, targets)
    refusals += state_refusals(checkpoint, policy)
    after = {source: offsets | targets.get(source, {}) for source, offsets in before.items()}
    kept = keep_pending_batch and after == before and policy.on_pending_batch == "fail"
    discarded = () if kept else checkpoint_batches.pending
    if discarded:
        refusals += pending_refusals(checkpoint, checkpoint_batches, policy)
    # Newest first: after each removal the previous batch is the newest, and its files are complete.
    steps = [Step(f"offsets/{number}", None) for number in reversed(discarded)]
    if after != before and not refusals:
        steps.append(
            Step(
                f"offsets/{checkpoint_batches.batch_id}",
                checkpoint_batches.entry.with_offsets(targets).encode(),
            )
        )
    without = [source.source for source in checkpoint_batches.state.sources if source.offsets is None]
    notes = (f"source {', '.join(without)} has no Kafka offsets and stays as it is",) if without else ()
    plan = _plan(checkpoint, checkpoint_batches, kind, after, steps, request, refusals, discarded=discarded)
    return resume_plan(checkpoint, replace(plan, notes=notes, undoes=undoes), earlier)


def plan_truncate(
    checkpoint: SparkCheckpoint, batch_id: int, policy: CheckpointPolicy | None = None
) -> CheckpointPlan:
    """
    Plan to remove every batch after one, so that the query plans them again.

    :param batch_id: the batch that becomes the newest; the query continues from its end offsets.
    :param policy: must name the sink.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished yet.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    policy = policy or CheckpointPolicy()
    request = digest("truncate", batch_id)
    checkpoint_batches = read_checkpoint_batches(checkpoint)
    earlier = unfinished_move_of_request(checkpoint, checkpoint_batches, request)
    after = checkpoint.entry(batch_id).kafka_offsets if batch_id in checkpoint_batches.planned else {}
    # commits/N before offsets/N: between the two removals Spark would run batch N again, which is safe.
    steps = [
        Step(f"{directory}/{number}", None)
        for number in sorted(checkpoint_batches.planned | checkpoint_batches.committed, reverse=True)
        if number > batch_id
        for directory, there in (
            ("commits", checkpoint_batches.committed),
            ("offsets", checkpoint_batches.planned),
        )
        if number in there
    ]
    there = steps and batch_id in checkpoint_batches.planned & checkpoint_batches.committed
    stores = StateStores.read(checkpoint) if there else StateStores({})
    refusals = truncate_refusals(checkpoint, checkpoint_batches, batch_id, policy, stores)
    refusals += failover_refusals(checkpoint, batch_id)
    derived = () if refusals else stores.snapshots_after(batch_id + 1)
    refusals += link_refusals(checkpoint, derived)
    plan = _plan(
        checkpoint,
        checkpoint_batches,
        "truncate",
        after,
        steps,
        request,
        refusals,
        discarded=checkpoint_batches.pending,
    )
    return resume_plan(checkpoint, replace(plan, derived=derived), earlier)


def plan_put_back_archive(
    checkpoint: SparkCheckpoint, archive: str | None = None, policy: CheckpointPolicy | None = None
) -> CheckpointPlan:
    """
    Plan to take a move back.

    If the query has not run since, the files are restored, including an unfinished batch. If it has run, the
    checkpoint is moved to its offsets before the move.

    :param archive: name of the archive; by default the newest move that was not taken back.
    :raises CheckpointError: if there is no such archive, or the checkpoint cannot be read.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    archived = find_archived_move(checkpoint, archive)
    if archived.undoes is not None and not archived.is_over:
        raise CheckpointError(
            f"{checkpoint.location}: {archived.name} is itself a restore, and was not finished: restore "
            f"{archived.undoes} again, which finishes it"
        )
    # The name that 0.1.0 replaced: a restore that was interrupted before the upgrade can still be finished.
    request = digest("undo", archived.name)
    checkpoint_batches = read_checkpoint_batches(checkpoint)
    if archived.query_id != checkpoint_batches.state.query_id:
        raise PlanRefusedError(
            f"{checkpoint.location}: archive {archived.name} belongs to query {archived.query_id}, but the "
            f"checkpoint belongs to query {checkpoint_batches.state.query_id}: give the archive's own "
            "checkpoint"
        )
    # An interrupted restore continues in the way it began: its files may look as if the query had not run.
    archives = read_archived_moves(checkpoint)
    begun = [one for one in archives if one.undoes == archived.name and not one.copies]
    moved = begun or archived.carried or has_run_since(checkpoint, archived, checkpoint_batches)
    if refusal := _past_failover(checkpoint, archived, archives, moved=bool(moved)):
        raise PlanRefusedError(refusal)
    if moved:
        return plan_seek(
            checkpoint, archived.before, policy, kind="restore", undoes=archived.name, request=request
        )
    earlier = unfinished_move_of_request(checkpoint, checkpoint_batches, request, archived.name)
    known = [Step(path, read_copy(checkpoint, archived, path)) for path in archived.files]
    steps = [step for step in known if checkpoint.read_file(step.path) != step.data]
    # First remove files, newest first; then write files, oldest first.
    steps.sort(key=_put_back_order)
    plan = _plan(checkpoint, checkpoint_batches, "restore", archived.before, steps, request)
    plan = replace(plan, undoes=archived.name, copies=True, **_back_from(archived))
    return resume_plan(checkpoint, plan, earlier)


def _back_from(archived: ArchivedMove) -> dict[str, Any]:
    """Return the ids of the logs that the offsets belong to after a failover is taken back."""
    return {"log_ids": archived.left, "left": archived.log_ids} if archived.is_failover else {}


def _past_failover(
    checkpoint: SparkCheckpoint, archived: ArchivedMove, archives: Sequence[ArchivedMove], *, moved: bool
) -> str | None:
    """
    Return why a move cannot be taken back: a failover has moved the query to another cluster since.

    :param moved: whether the query has run since the move.
    """
    later = [each for each in archives if each.fails_over and each.number > archived.number]
    if archived.fails_over and moved:
        later.append(archived)
    if not later or (archived.undone and not moved):
        return None
    return (
        f"{checkpoint.location}: failover {later[-1]} has moved the query to another cluster or topic, where "
        "the offsets of before are other records: move it back with a failover in the other direction "
        "('failover back'), which translates its position there"
    )


def _plan(
    checkpoint: SparkCheckpoint,
    checkpoint_batches: CheckpointBatches,
    kind: MoveKind,
    after: Mapping[str, Offsets],
    steps: list[Step],
    request: str,
    refusals: Sequence[str] = (),
    discarded: tuple[int, ...] = (),
) -> CheckpointPlan:
    return CheckpointPlan(
        kind=kind,
        location=checkpoint.location,
        query_id=checkpoint_batches.state.query_id,
        batch_id=checkpoint_batches.batch_id,
        before=checkpoint_batches.state.kafka_offsets,
        after=after,
        steps=tuple(steps),
        file_contents={step.path: checkpoint.read_file(step.path) for step in steps},
        discarded=discarded,
        batches=(frozenset(checkpoint_batches.planned), frozenset(checkpoint_batches.committed)),
        refusals=(*refusals, *link_refusals(checkpoint, [step.path for step in steps])),
        # A plan that changes no file writes no archive, and so no unfinished move.
        archive=next_archive_name(checkpoint, kind) if steps else None,
        request=request,
    )


def _put_back_order(step: Step) -> tuple[int, int, bool]:
    # Remove commits/N before offsets/N, and write it after offsets/N: in between, Spark would run batch N
    # again.
    directory, _, number = step.path.partition("/")
    if step.data is None:
        return 0, -int(number), directory == "offsets"
    return 1, int(number), directory == "commits"
