"""Keeps the state of a sensor's wait between the executions of its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context

from airflow_kafka_offsets.task.identity import commit_metadata


class WaitMemory:
    """
    Keeps a wait's target in Airflow's task state (3.3 and later), over reschedules, deferrals and retries.

    Clearing the task, and another iteration of a task loop, begin a new wait with another key. The state
    stays when a wait ends: if the worker is killed before Airflow knows, a retry must not begin a new wait.
    """

    def __init__(self, context: Context) -> None:
        self._store: Any = context.get("task_state_store")
        self._key = f"kafka_offsets.target.{commit_metadata(context).token}"

    @property
    def is_kept(self) -> bool:
        """Whether Airflow keeps the state of tasks."""
        return self._store is not None

    @property
    def target(self) -> Mapping[str, Any] | None:
        """The frozen target of the wait, ``None`` before it is frozen."""
        kept = self._store.get(self._key) if self.is_kept else None
        return kept if isinstance(kept, Mapping) else None

    @target.setter
    def target(self, target: Mapping[str, Any]) -> None:
        if self.is_kept:
            self._store.set(self._key, target)
