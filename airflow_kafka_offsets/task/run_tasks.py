"""Other tasks of a task's DAG: their states in the run, and whether a restore fits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from airflow.sdk import BaseOperator, Context, XComArg

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.commit_metadata import MAX_INDEXES, CommitMetadata
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.recovery_tasks import FAILED, RecoveryTasks
from airflow_kafka_offsets.model.text import join_first, shorten
from airflow_kafka_offsets.task.identity import iteration, map_index, was_cleared
from airflow_kafka_offsets.task.mapped import operator_class, values_of

_PASSED_ON = frozenset({"all_success", "none_failed", "none_failed_min_one_success"})
"""Trigger rules with which a task fails if an upstream task has failed."""


def related_tasks(
    context: Context, task: BaseOperator, *, upstream: bool, without: Collection[str] = ()
) -> RecoveryTasks:
    """Return the tasks before or after a task, of its index in a mapped task group, without teardowns."""
    names = set(task.get_flat_relative_ids(upstream=upstream)).difference(without)
    found = [task.dag.get_task(name) for name in names]
    tasks = {each.task_id: each for each in found if not getattr(each, "is_teardown", False)}
    downstream = {name: set(each.get_flat_relative_ids(upstream=False)) for name, each in tasks.items()}
    return RecoveryTasks(_states(context, tasks, task), downstream)


def tasks_after_reset(context: Context, task: BaseOperator, *, moved: bool | None) -> RecoveryTasks:
    """
    Return the tasks after a reset; refuse a reset that was cleared without those that have succeeded.

    :param moved: whether the reset has finished a move in this run; ``None`` if unknown.
    """
    if not hasattr(context.get("ti"), "get_task_states"):
        return RecoveryTasks({}, {})
    work = related_tasks(context, task, upstream=False, without=tasks_that_move(task))
    if map_index(context) >= 0 and (parts := work.partly_succeeded):
        raise PlanRefusedError(
            f"{', '.join(parts)} succeeded for some of its map indexes in this run, and those were not "
            "cleared: it is not known which map indexes have read the records that this index moves back. "
            "Clear all map indexes (with Downstream), or trigger a new run"
        )
    # Without a move, or a Clear of this task, a user has marked them: no task has read the moved records.
    cleared = was_cleared(context, task.retries) and moved is not False
    if outdated := work.outdated if cleared else work.succeeded:
        raise PlanRefusedError(
            f"{', '.join(outdated)} succeeded in this run, and was not cleared together with the tasks "
            "before it: no task would read the moved records again. Clear it as well (with Downstream), or "
            "trigger a new run"
        )
    return work


def refuse_used_result(context: Context, task: BaseOperator) -> None:
    """Refuse another window for a run that was cleared without the job that has read the earlier one."""
    ti = context.get("ti")
    can_ask = hasattr(ti, "get_task_states") and task.has_dag()  # type: ignore[no-untyped-call]
    # Also on a retry, when no later task has succeeded: a Clear is not seen if ``retries`` was changed.
    if not can_ask or (getattr(ti, "try_number", None) or 1) == 1:
        return
    if used := related_tasks(context, task, upstream=False).not_repeated:
        raise PlanRefusedError(
            f"{', '.join(used)} succeeded in this run, and was not cleared together with {task.task_id}: the "
            "window that it had is not kept, or its parameters have changed, so a commit could skip records. "
            "Clear it as well (with Downstream), or trigger a new run"
        )


def tasks_before_restore(context: Context, restore: BaseOperator) -> RecoveryTasks:
    """Return the tasks between a restore and its resets, and other failed tasks before the restore."""
    upstream = related_tasks(context, restore, upstream=True)
    if not upstream.states:
        raise UsageError(
            f"task {restore.task_id} has no upstream task that could have failed: make it the teardown of "
            "the reset, or set restore_when='always'"
        )
    resets = [task for task in restore.upstream_list if task.is_setup]
    between = {name for task in resets for name in task.get_flat_relative_ids(upstream=False)}
    states = {
        name: states
        for name, states in upstream.states.items()
        if not resets or name in between or FAILED.intersection(states)
    }
    return RecoveryTasks(states, upstream.downstream)


def task_states(context: Context, task: BaseOperator, task_ids: Collection[str]) -> RecoveryTasks:
    """Return given tasks of a task's DAG and their states in this run, see :func:`related_tasks`."""
    return RecoveryTasks(_states(context, {name: task.dag.get_task(name) for name in task_ids}, task), {})


def refuse_after_failure(context: Context) -> None:
    """Refuse an index of a mapped task if another index has failed in this run."""
    ti: Any = context.get("ti")
    if map_index(context) < 0:
        raise UsageError("stop_after_failure would be ignored by a task that is not mapped: leave it out")
    states = {key.rpartition("_"): str(state) for key, state in _instances(ti, [ti.task_id]).items()}
    failed = [
        index
        for (name, _, index), state in states.items()
        if (name, state) == (ti.task_id, "failed") and index != str(map_index(context))
    ]
    if failed:
        # Not a skip: if only the other index was cleared, the run would succeed without this one.
        raise PlanRefusedError(
            f"map index {join_first(sorted(failed, key=int), 3)} of {ti.task_id} has failed in this run, and "
            "stop_after_failure is True. Clear all map indexes that have failed to continue"
        )


def refuse_renamed(task: BaseOperator, plan: PipelinePlan, metadata: CommitMetadata) -> None:
    """Refuse to move a second time after a task of this run that the DAG does not have any more."""

    @cache
    def identities() -> set[str]:
        return commit_identities(metadata, tasks_that_move(task), MAX_INDEXES)

    def is_in_dag(by: CommitMetadata) -> bool:
        if by.task:
            return by.task in task.dag.task_ids
        # A commit of many partitions may have only the identity of its task, and not which iteration it was.
        return not by.identity or metadata.iteration is not None or by.identity in identities()

    for group in plan.group_plans if task.has_dag() else ():  # type: ignore[no-untyped-call]
        found = {CommitMetadata.of(commit): tp for tp, commit in group.commits.items()}
        for by, tp in found.items():
            again = by.kind == "reset" and metadata.is_same_run(by) and not metadata.is_same_plan(by)
            if not again or is_in_dag(by):
                continue
            first = by.offsets_before(tp.topic)
            before = f" (offsets before it: {shorten(offsets_json(first))})" if first else ""
            raise PlanRefusedError(
                f"{f'task {by.task}' if by.task else 'another task'} of this run has moved group "
                f"{group.group_id!r}{before}, and the DAG has no such task any more, as after it was "
                "renamed or put into a task group: this task would move a second time. Give it its earlier "
                "name, or put the pipeline back and trigger a new run"
            )


def tasks_that_move(task: BaseOperator) -> list[str]:
    """Return the tasks of a task's DAG that reset or restore: those with ``moves_on_purpose``."""
    if not task.has_dag():  # type: ignore[no-untyped-call]
        return []
    kinds = {each.task_id: operator_class(each) for each in task.dag.tasks}
    return [name for name, kind in kinds.items() if getattr(kind, "moves_on_purpose", False) is True]


def commit_identities(metadata: CommitMetadata, task_ids: Collection[str], instances: int = 1) -> set[str]:
    """
    Return the identities that other tasks of a run have in their commits.

    The tasks are in the same iteration of a task loop or outside the loop. They are not mapped or have the
    same map index, unless there are more instances.
    """
    indexes = {-1, metadata.map_index, *(range(instances) if instances > 1 else ())}
    return {
        replace(metadata, task=name, map_index=index, iteration=loop, key="").identity
        for name in task_ids
        for index in indexes
        for loop in {None, metadata.iteration}
    }


def _states(context: Context, tasks: Mapping[str, Any], of: Any) -> dict[str, list[str | None]]:
    ti: Any = context["ti"]
    if (number := iteration(context)) is not None:
        # Airflow only returns the states of the newest iteration. If it is this one, this task runs in it.
        own = ti.task_id if map_index(context) < 0 else f"{ti.task_id}_{ti.map_index}"
        state = _instances(ti, [ti.task_id]).get(own)
        if str(state) != "running":
            raise PlanRefusedError(
                f"iteration {number} of the task loop was cleared without the later iterations "
                f"(found {ti.task_id} as {state} in the newest), and Airflow only returns the states of the "
                "newest iteration: clear the later iterations as well, or trigger a new run"
            )
    found: dict[str, list[str | None]] = {name: [] for name in tasks}
    group = _mapped_group(of)
    for names in _unambiguous_lists(sorted(tasks)):
        for key, state in _instances(ti, names).items():
            # Airflow names an instance of a mapped task "<task id>_<map index>".
            name = key if key in names else key.rpartition("_")[0]
            if name not in names:
                continue
            if group is None or _mapped_group(tasks[name]) != group or key == f"{name}_{ti.map_index}":
                found[name].append(None if state is None else str(state))
    return found


def _instances(ti: Any, task_ids: list[str]) -> Mapping[str, Any]:
    """Return the states of instances of tasks in the run of a task instance, by instance name."""
    by_run = ti.get_task_states(dag_id=ti.dag_id, task_ids=task_ids, run_ids=[ti.run_id])
    states: Mapping[str, Any] = by_run.get(ti.run_id, {})
    return states


def _mapped_group(task: Any) -> str | None:
    group = task.get_closest_mapped_task_group()
    return None if group is None else group.group_id


def _unambiguous_lists(names: Sequence[str]) -> list[list[str]]:
    """Split names into lists in which no name is also the name of an instance of another listed task."""
    alone = [name for name in names if (cut := name.rpartition("_"))[0] in names and cut[2].isdecimal()]
    together = [name for name in names if name not in alone]
    return [each for each in (together, *([name] for name in alone)) if each]


def is_move_task(task: Any, tool: str) -> bool:
    """Return whether a task, mapped or not, is a ``reset`` or a ``restore``."""
    return getattr(operator_class(task), "operation", None) == tool


def restores_of(reset: Any) -> list[Any]:
    """Return the restores that are teardowns of a reset."""
    return [task for task in reset.downstream_list if task.is_teardown and is_move_task(task, "restore")]


def check_restore(restore: Any) -> None:
    """Refuse a teardown whose receipt misses a reset, or whose failure would not fail the run."""
    moves = [task for task in restore.upstream_list if task.is_setup and is_move_task(task, "reset")]
    resets = sorted(task.task_id for task in moves)
    mapped = [task.task_id for task in moves if hasattr(task, "partial_kwargs")]
    if mapped and not hasattr(restore, "partial_kwargs"):
        raise UsageError(
            f"task {restore.task_id} is the teardown of the mapped task {', '.join(mapped)}, and is not "
            f"mapped, so its receipt would be a list: use .partial(...).expand(receipt={mapped[0]}.output), "
            "or put both into a mapped task group"
        )
    given = values_of(restore, "receipt")
    always = "always" in values_of(restore, "restore_when")
    named = {task.task_id for value in given for task, _ in XComArg.iter_xcom_references(value)}
    missing = [name for name in resets if name not in named]
    # If the receipt is a template, its reset is known only when the task runs.
    if missing and (named or not given or len(resets) > 1) and not (always and not given):
        raise UsageError(
            f"task {restore.task_id} is the teardown of {', '.join(resets)}, and its receipt is "
            f"{'of ' + ', '.join(sorted(named)) if named else 'missing'}: nothing would take back the move "
            f"of {', '.join(missing)}; give each reset its own restore, with receipt={missing[0]}.output"
        )
    if resets and not always and not _fails_the_run(restore):
        after = sorted(task.task_id for task in restore.downstream_list)
        raise UsageError(
            f"task {restore.task_id}: the run would succeed although this task fails: "
            + (
                f"Airflow takes the run's state from its last tasks, and {', '.join(after)} always runs "
                "after this task; let it run before or beside this task, or use on_failure_callback"
                if restore.on_failure_fail_dagrun
                else "set on_failure_fail_dagrun=True in as_teardown()"
            )
        )


def _fails_the_run(task: Any) -> bool:
    """Return whether a run fails if a task fails, see ``DagRun._tis_for_dagrun_state`` in Airflow."""
    counted = [each for each in task.downstream_list if not each.is_teardown or each.on_failure_fail_dagrun]
    if not counted:
        return not task.is_teardown or bool(task.on_failure_fail_dagrun)
    rules = (getattr(each.trigger_rule, "value", each.trigger_rule) for each in counted)
    return any(rule in _PASSED_ON and _fails_the_run(each) for each, rule in zip(counted, rules, strict=True))
