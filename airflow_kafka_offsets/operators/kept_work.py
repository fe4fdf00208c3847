"""Handles resets that were cleared without the work after them: refuses them, or moves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.recovery_tasks import RecoveryTasks
from airflow_kafka_offsets.moves.recovery import plan_without_move
from airflow_kafka_offsets.task.identity import map_index
from airflow_kafka_offsets.task.run_tasks import commit_identities, related_tasks, tasks_that_move

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.saved_plan import SavedPlan


def cleared_work(task: Any, context: Context) -> tuple[RecoveryTasks | None, bool]:
    """
    Return the tasks after this one if some have already succeeded, and whether any task follows.

    If some have succeeded, this task was cleared without them. It is refused if they must be cleared too.
    """
    if not hasattr(context.get("ti"), "get_task_states") or not task.has_dag():
        return None, False
    work = related_tasks(context, task, upstream=False, without=tasks_that_move(task))
    if map_index(context) >= 0 and (parts := work.partly_succeeded):
        raise PlanRefusedError(
            f"{', '.join(parts)} succeeded for some of its map indexes in this run, and those were not "
            "cleared: it is not known which map indexes have read the records that this index moves back. "
            "Clear all map indexes (with Downstream), or trigger a new run"
        )
    if not work.succeeded:
        return None, bool(work.states)
    if work.outdated:
        raise PlanRefusedError(
            f"{', '.join(work.outdated)} succeeded in this run, and was not cleared together with the tasks "
            "before it: no task would read the moved records again. Clear it as well (with Downstream), or "
            "trigger a new run"
        )
    return work, True


def plan_of_kept_work(
    task: Any,
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    work: RecoveryTasks,
    metadata: CommitMetadata,
    saved: SavedPlan | None = None,
) -> PipelinePlan:
    """
    Return the plan of a reset that moves nothing because its work was finished and not cleared.

    :param saved: the plan of the reset, whose names a restore may take from the receipt.
    """
    movers = commit_identities(metadata, {task.task_id, *tasks_that_move(task)})
    plan, unfinished = plan_without_move(client, checkpoint, task.selection(), movers, work.succeeded)
    if unfinished:
        raise PlanRefusedError(
            f"{', '.join(work.succeeded)} succeeded in this run, and nothing was committed to group "
            f"{', '.join(unfinished)} since the reset or its restore: clear "
            f"{'it' if len(work.succeeded) == 1 else 'them'} too, or trigger a new run"
        )
    task.log.info(
        "Nothing is moved: %s succeeded in this run, was committed, and was not cleared with %s. To read "
        "the records again, clear it too",
        ", ".join(work.succeeded),
        task.task_id,
    )
    if saved is not None:
        plan = replace(plan, provenance={**plan.provenance, "names": saved.names.as_json()})
    return plan
