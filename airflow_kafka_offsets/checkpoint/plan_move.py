"""
Plans the move of a Spark checkpoint to other offsets or another cluster, and the restore of an earlier state.

There are four kinds of moves. The query must be stopped (measured with Spark 3.5 to 4.2):

* *seek* writes other offsets into the Kafka lines of the newest batch's file in ``offsets/``. The query
  continues from there with the next batch id. No id occurs twice, so sinks that remember ids stay correct.
* *truncate* removes batches, newest first. The query plans them again under the same ids. This is exact for a
  query with state, too, but wrong for sinks that skip ids they have seen. The Spark application must have
  ended, not only the query: a running application may write old state again.
* *restore* puts back the files of an archive, or seeks to its offsets if the query has run since.
* *failover* writes the offsets and topics of a mirror into the file of the newest batch. Spark does not
  compare topic names: it continues there with its state. Earlier batches keep the offsets of the old cluster,
  so no move can go back past a failover.

Each plan is a list of files to write and remove, in an order in which Spark can start from the checkpoint
after any interruption. ``apply_move.py`` applies it.

Each function raises CheckpointError if the checkpoint cannot be read or no batch has finished yet, and
MoveUnfinishedError if another request has begun a move and not finished it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_kafka_offsets.checkpoint.archive import read_copy
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves, next_archive_name
from airflow_kafka_offsets.checkpoint.guards import (
    file_refusals,
    pending_refusals,
    restart_refusals,
    state_refusals,
    truncate_refusals,
    twin_refusals,
    unknown_partition_refusals,
)
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import FinishedState
from airflow_kafka_offsets.checkpoint.state_store import StateFiles, is_stateful, read_state, snapshots_after
from airflow_kafka_offsets.errors import CheckpointError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, MoveKind, Step, sources_json
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.wording import parameter_text


def plan_seek(
    checkpoint: SparkCheckpoint,
    targets: Mapping[str, Offsets],
    policy: CheckpointPolicy | None = None,
    *,
    kind: MoveKind = "seek",
    undoes: str | None = None,
    request: str = "",
    keep_pending_batch: bool = False,
    left_logs: LogIds = UNKNOWN_LOGS,
) -> CheckpointPlan:
    """
    Plan to let the query continue from other offsets.

    The same request finishes an interrupted move; every other request is refused until then.

    :param targets: source -> offsets; the caller checks that they are inside the log. Partitions without a
        target keep their offsets.
    :param request: identifies the request; by default a digest of the targets.
    :param keep_pending_batch: whether an unfinished batch that began at the targets may stay.
    :param left_logs: ids of the logs that the query leaves; unknown ids if it stays where it is. The file of
        the newest batch is then written even if it stays the same, as in a failover.
    """
    policy = policy or CheckpointPolicy()
    request = request or digest(kind, undoes, sources_json(targets))
    state = checkpoint.read_finished()
    before = state.kafka_offsets
    refusals = restart_refusals(state)
    refusals += unknown_partition_refusals(state, targets)
    refusals += state_refusals(checkpoint, policy)
    after = {source: offsets | targets.get(source, {}) for source, offsets in before.items()}
    refusals += twin_refusals(checkpoint, state, after)
    kept = keep_pending_batch and after == before and policy.on_pending_batch == "fail"
    discarded = () if kept else state.pending
    if discarded:
        refusals += pending_refusals(checkpoint, state, policy)
    # Newest first: after each removal the previous batch is the newest, and its files are complete.
    steps = [Step(f"offsets/{number}", None) for number in reversed(discarded)]
    if (after != before or left_logs) and not refusals:
        steps.append(Step(f"offsets/{state.batch_id}", state.entry.with_offsets(after).encode()))
    without = [source.source for source in state.sources if source.offsets is None]
    notes = (f"source {', '.join(without)} has no Kafka offsets and stays as it is",) if without else ()
    more: Any = {"discarded": discarded, "undoes": undoes, "notes": notes, "left_logs": left_logs}
    return _plan(ArchivedMoves(checkpoint), state, kind, after, steps, request, refusals, **more)


def plan_truncate(
    checkpoint: SparkCheckpoint, batch_id: int, policy: CheckpointPolicy | None = None
) -> CheckpointPlan:
    """
    Plan to remove every batch after one, from whose end the query then plans them again.

    :param policy: must name the sink.
    """
    policy = policy or CheckpointPolicy()
    request = digest("truncate", batch_id)
    state = checkpoint.read_finished()
    moves = ArchivedMoves(checkpoint)
    after = checkpoint.entry(batch_id).kafka_offsets if batch_id in state.planned else {}
    # commits/N before offsets/N: between the two removals Spark would run batch N again, which is safe.
    steps = [
        Step(f"{directory}/{number}", None)
        for number in sorted(state.planned | state.committed, reverse=True)
        if number > batch_id
        for directory, there in (("commits", state.committed), ("offsets", state.planned))
        if number in there
    ]
    there = steps and batch_id in state.planned & state.committed
    files: StateFiles = read_state(checkpoint) if there else {}
    refusals = truncate_refusals(checkpoint, state, batch_id, policy, files)
    refusals += moves.failover_refusals(batch_id)
    more: Any = {
        "discarded": state.pending,
        "derived": () if refusals else snapshots_after(files, batch_id + 1),
    }
    return _plan(moves, state, "truncate", after, steps, request, refusals, **more)


def plan_restore(
    checkpoint: SparkCheckpoint,
    archive: str | None = None,
    policy: CheckpointPolicy | None = None,
    *,
    left_logs: LogIds = UNKNOWN_LOGS,
) -> CheckpointPlan:
    """
    Plan to take a move back.

    If the query has not run since, the files are restored, including an unfinished batch. If it has run, or
    leaves its cluster, what the move has moved goes back to its offsets before the move.

    :param archive: name of the archive; by default the newest move that was not taken back.
    :param left_logs: as in :func:`plan_seek`.
    :raises PlanRefusedError: if the archive is of another query, or of the time before a failover.
    """
    moves = ArchivedMoves(checkpoint)
    archived = moves.find(archive)
    if archived.undoes is not None and not archived.is_over:
        raise CheckpointError(
            f"{checkpoint.location}: {archived.name} is itself a restore, and was not finished: restore "
            f"{archived.undoes} again, which finishes it"
        )
    # The name that 0.1.0 replaced: a restore that was interrupted before the upgrade can still be finished.
    request = digest("undo", archived.name)
    state = checkpoint.read_finished()
    # An interrupted restore continues in the way it began: its files may look as if the query had not run.
    begun = [one for one in moves if one.undoes == archived.name and not one.copies]
    newest = archived.newest_committed
    # A copy of the checkpoint may lack the newest batch: with its files back, another batch is the newest.
    lost = newest not in state.committed and f"commits/{newest}" not in archived.files
    moved = begun or archived.carried or lost or moves.has_run_since(archived)
    refuse_past_failover(moves, archived, moved=bool(moved))
    if moved or left_logs:
        how: Any = {"undoes": archived.name, "request": request, "left_logs": left_logs}
        groups, _ = moves.group_offsets(archived)
        # The query may have read on in the others, whose groups stay where they are.
        back = archived.offsets_moved({tp for positions in groups.values() for tp in positions})
        return replace(
            plan_seek(checkpoint, back, policy, kind="restore", **how), log_ids=archived.logs_before
        )
    known = [Step(path, read_copy(checkpoint, archived, path)) for path in archived.files]
    # The archive of a restore records that the query returns to other logs, also without a change.
    steps = [step for step in known if archived.changes_logs or checkpoint.read_file(step.path) != step.data]
    # First remove files, newest first; then write files, oldest first.
    steps.sort(key=_restore_order)
    left_logs = archived.log_ids if archived.is_failover else UNKNOWN_LOGS
    more: Any = {"copies": True, "log_ids": archived.logs_before, "left_logs": left_logs}
    return _plan(moves, state, "restore", archived.before, steps, request, undoes=archived.name, **more)


def refuse_past_failover(moves: ArchivedMoves, archived: ArchivedMove, *, moved: bool = False) -> None:
    """
    Raise a PlanRefusedError if a move cannot be taken back: the query has gone to another cluster since.

    :param moved: whether the query has run since the move.
    """
    location = moves.checkpoint.location
    if archived.abandoned:
        raise PlanRefusedError(
            f"{location}: move {archived} was interrupted before it changed the checkpoint, and the "
            "query has run since: there is nothing to take back"
        )
    if archived.undoes_failover:
        raise PlanRefusedError(
            f"{location}: {archived.name} has taken a move to another cluster back, and cannot be taken back "
            "itself: move the query there again"
        )
    others = (each for each in moves.of_query if each.undoes != archived.name)
    later = (each for each in others if each.has_failed_over and each.number > archived.number)
    failover = archived if archived.has_failed_over and moved else next(later, None)
    if failover is not None and (moved or not archived.undone):
        raise PlanRefusedError(
            f"{location}: move {failover} has moved the query to another cluster or topic, where the offsets "
            "of before are other records: move it back with a failover in the other direction ('failover "
            "back'), which translates its position there, or reset it to a time"
        )


def plan_checkpoint_failover(
    checkpoint: SparkCheckpoint,
    targets: Mapping[str, Offsets],
    policy: CheckpointPolicy,
    *,
    request: str,
    log_ids: LogIds,
    left_logs: LogIds = UNKNOWN_LOGS,
    again: str = "",
    refusals: Sequence[str] = (),
    state: FinishedState | None = None,
) -> CheckpointPlan:
    """
    Plan to continue the query on another cluster.

    The file of the newest batch is written even if it stays the same: the move's archive records the new
    cluster.

    :param targets: source -> all of its offsets on the new cluster, with the topic names of that cluster.
    :param log_ids: ids of the new cluster and its topics, and ``left_logs`` those of the old one.
    :param again: sentence about the records that may be read again; empty if no record may be.
    :param state: the state with the position of the targets; by default the present one.
    """
    state = state or checkpoint.read_finished()
    before = state.kafka_offsets
    found = [*refusals, *restart_refusals(state), *pending_refusals(checkpoint, state, policy)]
    if again and not policy.allow_stateful and is_stateful(checkpoint):
        found.append(
            f"{checkpoint.location}: the query keeps state (state/), and would count records twice: {again}; "
            "let commits with a mirror keep the data for an exact translation, or set "
            f"{parameter_text('allow_stateful', True)} if that is right for this query"
        )
    steps = [Step(f"offsets/{number}", None) for number in reversed(state.pending)]
    after = {source: targets.get(source, offsets) for source, offsets in before.items()}
    if not found:
        steps.append(Step(f"offsets/{state.batch_id}", state.entry.with_offsets(after).encode()))
    more: Any = {"discarded": state.pending, "log_ids": log_ids, "left_logs": left_logs}
    return _plan(ArchivedMoves(checkpoint), state, "failover", after, steps, request, found, **more)


def _plan(
    moves: ArchivedMoves,
    state: FinishedState,
    kind: MoveKind,
    after: Mapping[str, Offsets],
    steps: list[Step],
    request: str,
    refusals: Sequence[str] = (),
    *,
    derived: tuple[str, ...] = (),
    undoes: str | None = None,
    **more: Any,
) -> CheckpointPlan:
    """Return the plan of a move, or of what is left of a begun move; ``more`` are fields of the plan."""
    checkpoint, begun = moves.checkpoint, moves.begun_by(request, undoes)
    plan = CheckpointPlan(
        kind=kind,
        location=checkpoint.location,
        query_id=state.query_id,
        batch_id=state.batch_id,
        before=state.kafka_offsets,
        after=after,
        derived=derived,
        steps=tuple(steps),
        file_contents={step.path: checkpoint.read_file(step.path) for step in steps},
        batches=(state.planned, state.committed),
        refusals=(*refusals, *file_refusals(checkpoint, [*derived, *(step.path for step in steps)])),
        # A plan that changes no file writes no archive, and so no unfinished move.
        archive=next_archive_name(checkpoint, kind) if steps else None,
        request=request,
        undoes=undoes,
        **more,
    )
    return plan if begun is None else begun.resume(plan)


def _restore_order(step: Step) -> tuple[int, int, bool]:
    # commits/N is removed before offsets/N, and written after it: in between, Spark would run batch N.
    directory, _, number = step.path.partition("/")
    if step.data is None:
        return 0, -int(number), directory == "offsets"
    return 1, int(number), directory == "commits"
