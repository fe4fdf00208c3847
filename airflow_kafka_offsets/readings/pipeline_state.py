"""Compares where a pipeline is now with the offsets before and after a saved plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.errors import DriftError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, other_logs_refusals
from airflow_kafka_offsets.model.offsets import committed_offsets, flat
from airflow_kafka_offsets.model.saved_plan import SavedPlan
from airflow_kafka_offsets.readings.log_checks import known_log_ids
from airflow_kafka_offsets.readings.positions import check_in_log

K = TypeVar("K")


def pipeline_state(
    client: OffsetsClient, checkpoint: SparkCheckpoint | None, saved: SavedPlan
) -> tuple[str, int]:
    """
    Compare the groups and the checkpoint with the offsets before and after a plan.

    :return: ``not moved``, ``moved``, ``moved in part``, ``read on`` or ``elsewhere``; and the lag.
    """
    now = known_log_ids(client, saved.log_ids.topics)
    PlanRefusedError.raise_if(other_logs_refusals("the plan", saved.log_ids, now, remedy="plan again"))
    found: set[str] = set()
    lag = 0
    for group in saved.groups:
        commits = committed_offsets(client.committed(group.group_id, group.after))
        found |= _states(commits, group.before, group.after)
        logs = client.log_ranges(group.after)
        check_in_log(client, group.group_id, commits, logs)
        lag += Lag.measure(group.group_id, commits, logs, "earliest").total
    if checkpoint is not None and saved.checkpoint is not None:
        states = _checkpoint_states(checkpoint, saved.checkpoint, saved)
        if saved.left_logs is not None and states == {"not moved"}:
            found -= {"moved"}  # once taken back: a commit on the mirror stays if none was there before
        found |= states
    if "elsewhere" in found or found <= {"moved"}:
        return "elsewhere" if "elsewhere" in found else "moved", lag
    if "read on" in found or _has_run_since(checkpoint, saved):
        return "read on", lag
    return "moved in part" if "moved" in found else "not moved", lag


def _has_run_since(checkpoint: SparkCheckpoint | None, saved: SavedPlan) -> bool:
    """Return whether the query has run since a plan moved it: it may be where it was before the plan."""
    made = newest_move_of(saved, checkpoint)
    if checkpoint is None or made is None or not made.done:
        return False
    moves = ArchivedMoves(checkpoint)
    return made == next(moves.in_effect(), None) and moves.has_run_since(made)


def newest_move_of(saved: SavedPlan, checkpoint: SparkCheckpoint | None) -> ArchivedMove | None:
    """Return the newest move of a checkpoint that applies a plan; ``None`` if no move does."""
    if checkpoint is None or saved.checkpoint is None:
        return None
    # The same plan may have been made and applied before, and then has the same digest.
    first = saved.checkpoint.number or 0
    moves = (each for each in ArchivedMoves(checkpoint).of_query if each.number >= first)
    return next((each for each in moves if each.made_by.plan == saved.digest), None)


def check_moved(client: OffsetsClient, checkpoint: SparkCheckpoint, saved: SavedPlan) -> None:
    """Raise a DriftError unless a saved plan has moved the pipeline, which may have read on since."""
    state, _ = pipeline_state(client, checkpoint, saved)
    made = newest_move_of(saved, checkpoint)
    if made is None:
        moved = saved.checkpoint is not None and saved.checkpoint.number is None
    else:
        moved = made.done and not made.undone
    if state != "moved" and not (moved and state == "read on"):
        raise DriftError(
            f"plan {saved.digest[:8]} has not moved it (found {state!r}, expected 'moved'): clear the task "
            "that applies the plan, with the tasks after it"
        )


def _checkpoint_states(checkpoint: SparkCheckpoint, move: CheckpointPlan, saved: SavedPlan) -> set[str]:
    """Return the states of a checkpoint's partitions; after a failover its archive decides."""
    state = checkpoint.read()
    if state.query_id != move.query_id:
        return {"elsewhere"}
    now = flat(state.kafka_offsets)
    # The offsets of two clusters cannot be compared. The newest move names the cluster.
    moves = ArchivedMoves(checkpoint)
    newest = moves.newest_with_cluster()
    mine = newest is not None and newest.made_by.plan == saved.digest
    was_on = saved.left_logs or (UNKNOWN_LOGS if saved.allow_new_cluster else saved.log_ids)
    if newest is not None and not mine:
        later = newest.is_failover and 0 < (move.number or 0) <= newest.number
        if later or was_on.is_other_cluster(newest.log_ids):
            return {"elsewhere"}
    if saved.left_logs is None:
        return _states(now, flat(move.before), flat(move.after))
    unfinished = moves.unfinished()
    if unfinished is not None and (unfinished.undoes or unfinished.made_by.plan == saved.digest):
        return {"moved", "not moved"}
    if mine:
        return _states(now, {}, flat(move.after))
    # On its old cluster and topics a query that has read on has not moved.
    behind = any(now.get(key, -1) < at for key, at in flat(move.before).items())
    return {"elsewhere" if behind else "not moved"}


def _states(now: Mapping[K, int | None], before: Mapping[K, int | None], after: Mapping[K, int]) -> set[str]:
    """Compare the offsets of moving partitions with those before and after the plan."""
    states = set()
    for tp, to in after.items():
        at, was = now.get(tp), before.get(tp)
        if at == to:
            if was != to:
                states.add("moved")
        elif at == was:
            states.add("not moved")
        elif at is not None and at > to:
            states.add("read on")
        else:
            states.add("elsewhere")
    return states
