"""Checks that a DAG's restore can take a recovery back, and that its failure then fails the run."""

from __future__ import annotations

from typing import Any

from airflow.sdk import XComArg

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.task.mapped import operator_class, values_of

_PASSED_ON = frozenset({"all_success", "none_failed", "none_failed_min_one_success"})
"""Trigger rules with which a task fails if an upstream task has failed."""


def is_move_task(task: Any, tool: str) -> bool:
    """Return whether a task, mapped or not, is a ``reset`` or a ``restore``."""
    return getattr(operator_class(task), "operation", None) == tool


def restores_of(reset: Any) -> list[Any]:
    """Return the restores that are teardowns of a reset."""
    return [task for task in reset.downstream_list if task.is_teardown and is_move_task(task, "restore")]


def check_restore(restore: Any) -> None:
    """
    Check a restore that is a teardown, after its DAG is complete.

    :raises UsageError: if the restore's receipt does not include a reset whose teardown it is, or if the
        restore's failure would not fail the run.
    """
    moves = [task for task in restore.upstream_list if task.is_setup and is_move_task(task, "reset")]
    resets = sorted(task.task_id for task in moves)
    mapped = [task.task_id for task in moves if hasattr(task, "partial_kwargs")]
    if mapped and not hasattr(restore, "partial_kwargs"):
        raise UsageError(
            f"task {restore.task_id} is the teardown of the mapped task {', '.join(mapped)}, and is not "
            f"mapped, so its receipt would be a list: use .partial(...).expand(receipt={mapped[0]}.output), "
            "or put both into a mapped task group"
        )
    given = list(values_of(restore, "receipt"))
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
