"""What does a wait remember from one try of its task to the next?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from airflow_kafka_offsets.task.clears import clear_mark

if TYPE_CHECKING:
    from airflow.sdk import Context


class WaitMemory:
    """
    What Airflow keeps for a task, where it does (3.3 and later).

    The target is the same over reschedules, deferrals and retries. What the last look saw belongs to one try. Clearing
    the task begins anew: Airflow keeps a task's state then as well, but the keys are others.

    :param context: of the task.
    """

    def __init__(self, context: Context) -> None:
        self._store: Any = context.get("task_state_store")
        clears = clear_mark(context)
        self._try = getattr(context.get("ti"), "try_number", 0) or 0
        self._target, self._look = (f"kafka_offsets.{what}.{clears}" for what in ("target", "look"))

    @property
    def lasts(self) -> bool:
        """Whether anything is remembered at all."""
        return self._store is not None

    @property
    def target(self) -> Mapping[str, Any] | None:
        """The frozen target of the wait, ``None`` if there is none yet."""
        kept = self._store.get(self._target) if self.lasts else None
        return kept if isinstance(kept, Mapping) else None

    @target.setter
    def target(self, target: Mapping[str, Any]) -> None:
        if self.lasts:
            self._store.set(self._target, cast("Any", target))

    @property
    def look(self) -> Mapping[str, Any]:
        """What the last look of this try saw."""
        kept = self._store.get(self._look) if self.lasts else None
        return kept if isinstance(kept, Mapping) and kept.get("try") == self._try else {}

    @look.setter
    def look(self, seen: Mapping[str, Any]) -> None:
        if self.lasts:
            self._store.set(self._look, {**seen, "try": self._try})

    def forget(self) -> None:
        """Forget it all: a later run of the task waits for something else."""
        for key in (self._target, self._look):
            if self.lasts and self._store.get(key) is not None:
                self._store.delete(key)
