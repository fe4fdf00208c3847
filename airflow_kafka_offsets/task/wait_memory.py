"""What a sensor remembers from one run of its task to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from airflow_kafka_offsets.task.identity import clear_mark

if TYPE_CHECKING:
    from airflow.sdk import Context


class WaitMemory:
    """
    Keeps what Airflow keeps for a task, where it does (3.3 and later).

    The target stays over reschedules, deferrals and retries, the progress over the reschedules of one try.
    Clearing the task begins a new wait: Airflow keeps a task's state then as well, but the keys are others.

    :param context: of the task.
    """

    def __init__(self, context: Context) -> None:
        self._store: Any = context.get("task_state_store")
        clears = clear_mark(context)
        self._try = getattr(context.get("ti"), "try_number", 0) or 0
        self._target, self._progress = (f"kafka_offsets.{what}.{clears}" for what in ("target", "progress"))

    @property
    def is_kept(self) -> bool:
        """Whether anything is remembered at all."""
        return self._store is not None

    @property
    def target(self) -> Mapping[str, Any] | None:
        """The frozen target of the wait, ``None`` if there is none yet."""
        return self._get(self._target)

    @target.setter
    def target(self, target: Mapping[str, Any]) -> None:
        if self.is_kept:
            self._store.set(self._target, cast("Any", target))

    @property
    def progress(self) -> Mapping[str, Any]:
        """What the polls of this try have seen."""
        kept = self._get(self._progress) or {}
        # A retry measures its own pace, and is not stalled by the time between two tries.
        return kept if kept.get("try") == self._try else {}

    @progress.setter
    def progress(self, kept: Mapping[str, Any]) -> None:
        if self.is_kept:
            self._store.set(self._progress, {**kept, "try": self._try})

    def _get(self, key: str) -> Mapping[str, Any] | None:
        kept = self._store.get(key) if self.is_kept else None
        return kept if isinstance(kept, Mapping) else None

    def forget(self) -> None:
        """Forget everything: a later run of the task waits for something else."""
        for key in (self._target, self._progress):
            # Each call goes to Airflow's API: most waits have kept nothing.
            if self.is_kept and self._store.get(key) is not None:
                self._store.delete(key)
