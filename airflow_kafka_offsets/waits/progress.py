"""Progress of a wait: whether its position moves, its pace, and whether a reading has changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_kafka_offsets.model.pace import ProgressHistory
from airflow_kafka_offsets.model.parameters import duration_text
from airflow_kafka_offsets.model.wording import dag_text, parameter_text
from airflow_kafka_offsets.waits.wait import Reading


class Progress:
    """
    The history of one wait's polls.

    :param stalled_after: seconds without movement after which the wait is stalled; ``None`` for never.
    :param kept: the value of :attr:`kept` in another process, to continue its polls.
    """

    def __init__(self, stalled_after: float | None = None, kept: Mapping[str, Any] | None = None) -> None:
        self._stalled_after = stalled_after
        self.kept: dict[str, Any] = dict(kept or {})
        """The state to keep between processes, as plain JSON."""
        self._history = ProgressHistory.from_json(self.kept.get("descent"))
        self._last_text = ""
        self.news = False
        """Whether the last reading differs from the previous one."""
        self.last_error = ""
        """Why the last poll failed; empty if it succeeded."""

    def add_reading(self, reading: Reading) -> Reading:
        """Record a reading; return it with its pace, if the pace can be estimated."""
        now = time.time()
        if self.kept.get("position") != reading.position:
            self.kept |= {"position": reading.position, "since": now}
        before, self.kept["shown"] = self.kept.get("shown"), reading.digest
        self.news = before != reading.digest
        self._history = self._history.after_poll(now, reading.remaining)
        self.kept["descent"] = self._history.as_json()
        if (pace := self._history.pace) is not None:
            plain, value = reading.as_json, pace.as_json()
            reading = replace(
                reading,
                as_json=lambda: plain() | {"progress": value},
                text=f"{reading.text}\n{pace.text(moving=reading.moving)}",
            )
        self.last_error, self._last_text = "", reading.text
        return reading

    def is_new_error(self, error: Exception) -> bool:
        """Record a failed poll, which may have missed a movement; return whether its error is a new one."""
        # Time without a broker must not count as time without movement.
        self.kept |= {"position": None, "since": time.time()}
        before, self.last_error = self.last_error, str(error)
        return before != self.last_error

    @property
    def summary(self) -> str:
        """The last reading, or why the last poll failed."""
        return f"the last poll failed: {self.last_error}" if self.last_error else self._last_text

    @property
    def stalled(self) -> str | None:
        """Why the wait is stalled; ``None`` if it is not."""
        quiet = time.time() - self.kept.get("since", time.time())
        if self._stalled_after is None or quiet < self._stalled_after:
            return None
        return (
            f"nothing has moved for {duration_text(quiet)} ({parameter_text('stalled_after')} "
            f"{duration_text(self._stalled_after)}), and the wait is not over: check whether the query or "
            f"consumer is running; then {dag_text('clear this task', 'wait again')}"
        )
