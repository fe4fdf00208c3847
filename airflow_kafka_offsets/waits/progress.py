"""Does a wait get anywhere, and is there anything new to show?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.model.parameters import duration_text
from airflow_kafka_offsets.waits.wait import Reading


class Progress:
    """
    What the looks of one wait have seen so far.

    :param stalled_after: seconds without movement after which the wait is stalled; ``None`` = never.
    :param seen: from :attr:`seen`, to go on with another process's looks.
    """

    def __init__(self, stalled_after: float | None = None, seen: Mapping[str, Any] | None = None) -> None:
        self._stalled_after = stalled_after
        self._seen: dict[str, Any] = dict(seen or {})
        self._last_text = ""
        self.trouble = ""
        """Why the last look had no answer; empty if it had one."""

    @property
    def seen(self) -> dict[str, Any]:
        """What has to be remembered, as plain JSON."""
        return self._seen

    def is_news(self, reading: Reading) -> bool:
        """Take a reading; return whether it says anything else than the one before."""
        self.trouble, self._last_text = "", reading.text
        now = time.time()
        if self._seen.get("standing") != reading.standing:
            self._seen |= {"standing": reading.standing, "since": now}
        news = self._seen.get("shown") != reading.digest
        self._seen["shown"] = reading.digest
        return news

    def saw_nothing(self, error: Exception) -> bool:
        """Take a look without an answer: what could not be seen may have moved. Return whether the reason is news."""
        self._seen.pop("standing", None)
        news = self.trouble != str(error)
        self.trouble = str(error)
        return news

    @property
    def last_words(self) -> str:
        """What the last look saw, or why it saw nothing."""
        return f"the last look failed: {self.trouble}" if self.trouble else self._last_text

    def stall(self) -> str | None:
        """Return why the wait is stalled, ``None`` while it is not."""
        quiet = time.time() - self._seen.get("since", time.time())
        if self._stalled_after is None or quiet < self._stalled_after:
            return None
        return (
            f"nothing has moved for {duration_text(quiet)} (stalled_after={self._stalled_after:g}), and the wait is not over: "
            "see whether what it waits for is running; then clear this task"
        )
