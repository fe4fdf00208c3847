"""Keeps the state of a sensor's wait between the executions of its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context

from airflow_kafka_offsets.task.identity import commit_metadata


class WaitMemory:
    """
    Keeps a wait's target and progress in Airflow's task state (3.3 and later).

    The target is kept over reschedules, deferrals and retries, the progress over the reschedules of one try.
    Clearing the task, and another iteration of a task loop, begin a new wait with other keys. The state stays
    when a wait ends: if the worker is killed before Airflow knows, a retry must not begin a new wait.
    """

    def __init__(self, context: Context) -> None:
        self._store: Any = context.get("task_state_store")
        execution = commit_metadata(context).token
        self._try = getattr(context.get("ti"), "try_number", 0) or 0
        self._target, self._progress = (
            f"kafka_offsets.{what}.{execution}" for what in ("target", "progress")
        )

    @property
    def is_kept(self) -> bool:
        """Whether Airflow keeps the state of tasks."""
        return self._store is not None

    @property
    def target(self) -> Mapping[str, Any] | None:
        """The frozen target of the wait, ``None`` before it is frozen."""
        return self._get(self._target)

    @target.setter
    def target(self, target: Mapping[str, Any]) -> None:
        if self.is_kept:
            self._store.set(self._target, target)

    @property
    def progress(self) -> Mapping[str, Any]:
        """The progress that the polls of this try have measured."""
        kept = self._get(self._progress) or {}
        # A retry measures its own pace. The time between two tries does not count as stalled.
        return kept if kept.get("try") == self._try else {}

    @progress.setter
    def progress(self, kept: Mapping[str, Any]) -> None:
        if self.is_kept:
            self._store.set(self._progress, {**kept, "try": self._try})

    def _get(self, key: str) -> Mapping[str, Any] | None:
        kept = self._store.get(key) if self.is_kept else None
        return kept if isinstance(kept, Mapping) else None
