"""Checks that a task before the commit of an offset window has read the window."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context, TriggerRule

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.recovery_tasks import SUCCESS, RecoveryTasks
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.task.run_tasks import task_states

_MAY_HAVE_READ = frozenset({SUCCESS, "skipped", "removed"})
"""States of the instances of a mapped job that has succeeded; Airflow removes those of a shorter list."""
_NONE_FAILED = frozenset({"none_failed", "none_failed_min_one_success"})
"""Rules of a task that does not run after a failed one."""
_AFTER_FAILURE = frozenset({"one_failed", "all_failed"})
"""Rules of a fallback or an alert, which is skipped if no task before it has failed."""
_RUNS_ANYWAY = frozenset(rule for rule in TriggerRule if "done" in rule or rule in ("none_skipped", "always"))
"""Rules of a task that is no fallback: its success says nothing about the tasks before it."""


class WindowJobs:
    """The tasks directly before the task that commits a window, which must have read the window."""

    def __init__(self, commit: Any, window: OffsetWindow) -> None:
        self._commit = commit
        plan = commit.dag.task_dict.get(str(window.source.get("task_id")))
        before_plan = {plan.task_id, *plan.get_flat_relative_ids(upstream=True)} if plan else set()
        self._after_plan = set(plan.get_flat_relative_ids()) if plan else set()
        self._directly_after_plan = set(plan.downstream_task_ids) if plan else set()
        jobs = [
            task
            for task in commit.upstream_list
            if task.task_id not in before_plan
            and not task.is_setup
            and (self._counted_before(task) or not task.is_teardown)
        ]
        self._jobs_after_plan = [task for task in jobs if task.task_id in self._after_plan]
        self._jobs = self._jobs_after_plan or jobs

    def check(self, context: Context) -> None:
        """Refuse the commit if no task has read the window, although the commit runs."""
        runs_anyway = self._commit.trigger_rule != TriggerRule.ALL_SUCCESS
        if not self._jobs_after_plan:
            self._refuse_job_beside()
        if self._jobs and (runs_anyway or any(map(self._counted_before, self._jobs))):
            self._refuse_unread(context)

    def _counted_before(self, task: Any) -> list[Any]:
        """Return the tasks that count in a task's place, whose success does not show theirs; or none."""
        all_succeeded, directly = _needs_success(task), task.task_id in self._directly_after_plan
        if task.trigger_rule in _RUNS_ANYWAY or not (directly or all_succeeded):
            return [
                each for each in task.upstream_list if each.task_id in self._after_plan and not each.is_setup
            ]
        if directly:
            return []
        # A task after such a one, such as a notification, does not show more than that one.
        found = task.get_flat_relatives(upstream=True)
        return [each for each in found if not _needs_success(each) and self._counted_before(each)]

    def _last_before(self, task: Any, found: RecoveryTasks) -> list[Any]:
        """Return the last of the tasks that count in a task's place; all of them if none can have failed."""
        before = self._counted_before(task)
        if task.trigger_rule in _NONE_FAILED:
            return before
        # A fallback that was not needed does not count in the place of its job.
        unneeded = {
            each.task_id
            for each in before
            if each.trigger_rule in _AFTER_FAILURE and set(found.states[each.task_id]) == {"skipped"}
        }
        names = {each.task_id for each in before} - unneeded
        return [each for each in before if not names & each.get_flat_relative_ids()]

    def _refuse_job_beside(self) -> None:
        """Refuse the commit if a task that may be the window's job runs at the same time."""
        commit = self._commit
        ordered = commit.get_flat_relative_ids(upstream=True) | commit.get_flat_relative_ids()
        if beside := sorted(self._directly_after_plan - ordered - {commit.task_id}):
            raise PlanRefusedError(
                f"no job of the window is before this task, and {beside[0]!r} runs beside it. If the "
                "window's job fails, the commit has skipped its records: order the job before "
                f"{commit.task_id!r}, and a task that does not read the window after it"
            )

    def _refuse_unread(self, context: Context) -> None:
        """Refuse the commit if the states of the tasks before it do not show that the window was read."""
        upstream = self._commit.get_flat_relative_ids(upstream=True)
        asked = {task.task_id for task in self._jobs} | self._after_plan & upstream
        found = task_states(context, self._commit, asked)
        counted: set[str] = set()
        states = {task.task_id: self._states(task, found, counted) for task in self._jobs}
        ended = {name for name, each in states.items() if _MAY_HAVE_READ.issuperset(each)}
        read = {name for name in ended if SUCCESS in states[name]}
        # A fallback is after the failed job and directly after the plan; an alert is only after the job.
        fallbacks = read & self._directly_after_plan
        in_place = {before for name in fallbacks for before in self._before(name)}
        if not read or not states.keys() <= ended | in_place:
            raise PlanRefusedError(
                "the tasks directly before this one do not show that the window was read "
                f"({found.describe(counted)}), but this one, or a task before it, has a trigger_rule "
                "that lets it run anyway. A commit could skip the records: clear the job together "
                "with this task. If a task that is not named here has read them, order it directly after the "
                "plan and directly before this one. Order a task that replaces the job also after the job, "
                "with trigger_rule='none_failed' if the job is skipped, 'one_failed' if it fails"
            )

    def _before(self, task_id: str) -> set[str]:
        upstream: set[str] = self._commit.dag.get_task(task_id).get_flat_relative_ids(upstream=True)
        return upstream

    def _states(self, job: Any, found: RecoveryTasks, counted: set[str]) -> set[str | None]:
        """Return the states that show whether a task has read the window; add the counted tasks' names."""
        states = set[str | None]()
        todo, seen = [job], set[str]()
        while todo:
            task = todo.pop()
            if task.task_id in seen:
                continue
            seen.add(task.task_id)
            own = set(found.states[task.task_id])
            if (last := self._last_before(task, found)) and (task.is_teardown or SUCCESS in own):
                # The task may delete the cluster of a job that has failed. A teardown may fail.
                states |= set() if task.is_teardown else own - {SUCCESS}
                todo += last
            else:
                states |= own
                counted.add(task.task_id)
        return states


def _needs_success(task: Any) -> bool:
    return bool(task.trigger_rule == TriggerRule.ALL_SUCCESS)
