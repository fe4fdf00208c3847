"""The tasks that must follow a reset or the plan of a window, and their states in its run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

SUCCESS = "success"
FAILED = frozenset({"failed", "upstream_failed"})
ENDED = FAILED | {SUCCESS, "skipped", "removed"}
"""States of instances that do not run again, because they were not cleared."""
TaskStates = Mapping[str, Sequence["str | None"]]
"""Task id -> the states of its instances in this run, one for each map index; ``None`` if not run yet."""


@dataclass(frozen=True)
class RecoveryTasks:
    """The tasks between a reset and its teardown, which read the records again."""

    states: TaskStates
    downstream: Mapping[str, Collection[str]]
    """Task id -> the tasks among these that are downstream of it."""

    @property
    def succeeded(self) -> list[str]:
        """Tasks with only succeeded instances."""
        return sorted(task for task, states in self.states.items() if set(states) == {SUCCESS})

    @property
    def not_succeeded(self) -> list[str]:
        """The other tasks."""
        return sorted(set(self.states) - set(self.succeeded))

    @property
    def partly_succeeded(self) -> list[str]:
        """Tasks with both succeeded and other instances."""
        return [task for task in self.not_succeeded if SUCCESS in self.states[task]]

    @property
    def failed(self) -> list[str]:
        """Tasks with an instance that has failed, or could not run because an upstream task had failed."""
        return sorted(task for task, states in self.states.items() if FAILED.intersection(states))

    @property
    def outdated(self) -> list[str]:
        """
        Tasks that have succeeded, but have an upstream task that will run again.

        They were not cleared together with the upstream task, so they would not process its new result. If
        every task has succeeded, only the reset was cleared, and all tasks are outdated.
        """
        # Airflow clears downstream tasks only with its option "Downstream".
        if not self._to_run:
            return self.succeeded
        return [task for task in self.succeeded if task in self._after_to_run]

    @property
    def not_repeated(self) -> list[str]:
        """
        Tasks that have succeeded and were not cleared, although a task after them was, or no task was.

        The later task would use their result, which is based on what their own upstream task had returned.
        """
        return [
            task
            for task in self.succeeded
            if task not in self._after_to_run
            and (not self._to_run or self._to_run.intersection(self.downstream.get(task, ())))
        ]

    @property
    def _to_run(self) -> set[str]:
        return {task for task, states in self.states.items() if not ENDED.issuperset(states)}

    @property
    def _after_to_run(self) -> set[str]:
        return {later for task in self._to_run for later in self.downstream.get(task, ())}

    def describe(self, tasks: Collection[str]) -> str:
        """Name tasks with their states."""
        return ", ".join(
            f"{task}: {', '.join(sorted({state or 'not run' for state in self.states[task]}))}"
            for task in sorted(tasks)
        )
