"""Is a backlog one that was not told of yet, or not for a while?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Backlog:
    """
    What was last known of a backlog.

    :param fired_at: when it was last told of, in seconds since 1970; ``None`` while there is none.
    """

    fired_at: float | None = None

    @classmethod
    def from_json(cls, value: object) -> Backlog:
        """Read what :meth:`as_json` wrote; anything else counts as nothing known."""
        at = value.get("fired_at") if isinstance(value, Mapping) else None
        return cls(float(at)) if isinstance(at, (int, float)) else cls()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"fired_at": self.fired_at}

    def seen(self, waiting: bool, now: float, refire_after: float) -> tuple[Backlog, bool]:
        """
        Take a look; return what is known now, and whether this is to be told.

        It is told when the backlog begins, and again every ``refire_after`` seconds while it stays: what the first
        time started may have failed.

        :param waiting: whether there is a backlog.
        :param now: seconds since 1970.
        """
        if not waiting:
            return Backlog(), False
        if self.fired_at is None or not 0 <= now - self.fired_at < refire_after:
            return Backlog(now), True
        return self, False
