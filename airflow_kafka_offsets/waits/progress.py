"""Progress of a wait: whether a position moves, how fast, and whether a reading is news."""

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
    Remembers the polls of one wait.

    :param stalled_after: seconds without movement after which the wait is stalled; ``None`` = never.
    :param kept: from :attr:`kept`, to continue another process's polls.
    """

    def __init__(self, stalled_after: float | None = None, kept: Mapping[str, Any] | None = None) -> None:
        self._stalled_after = stalled_after
        self.kept: dict[str, Any] = dict(kept or {})
        """What has to be remembered, as plain JSON."""
        self._descent = ProgressHistory.from_json(self.kept.get("descent"))
        self._last_text = ""
        self.news = False
        """Whether the last reading differs from the one before."""
        self.trouble = ""
        """Why the last poll failed; empty if it did not."""

    def add_reading(self, reading: Reading) -> Reading:
        """Note a reading; return it with its pace, where that can be said."""
        now = time.time()
        if self.kept.get("position") != reading.position:
            self.kept |= {"position": reading.position, "since": now}
        before, self.kept["shown"] = self.kept.get("shown"), reading.digest
        self.news = before != reading.digest
        self._descent = self._descent.after_poll(now, reading.remaining)
        self.kept["descent"] = self._descent.as_json()
        if (pace := self._descent.pace) is not None:
            plain, value = reading.as_json, pace.as_json()
            reading = replace(
                reading,
                as_json=lambda: plain() | {"progress": value},
                text=f"{reading.text}\n{pace.text(moving=reading.moving)}",
            )
        self.trouble, self._last_text = "", reading.text
        return reading

    def is_new_trouble(self, error: Exception) -> bool:
        """Note a poll that failed: the position may have moved unseen. Return whether the reason is news."""
        # So that the time of a broker that was away does not count as standing still.
        self.kept.pop("position", None)
        before, self.trouble = self.trouble, str(error)
        return before != self.trouble

    @property
    def summary(self) -> str:
        """The last reading, or why the last poll failed."""
        return f"the last poll failed: {self.trouble}" if self.trouble else self._last_text

    @property
    def stalled(self) -> str | None:
        """Why the wait is stalled, ``None`` while it is not."""
        quiet = time.time() - self.kept.get("since", time.time())
        if self._stalled_after is None or quiet < self._stalled_after:
            return None
        return (
            f"nothing has moved for {duration_text(quiet)} "
            f"({parameter_text('stalled_after')} {duration_text(self._stalled_after)}), and the wait is not "
            "over: check whether what it waits for is running; then "
            f"{dag_text('clear this task', 'wait again')}"
        )
