"""Decides when a backlog is reported again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Backlog:
    """
    What is known of a backlog from one poll to the next.

    :param fired_at: when it was last reported, in seconds since 1970; ``None`` while there is none.
    :param position: the reader's position then, as a text that changes when a position does.
    :param last: the reader's position in the last poll. It is not kept over a restart.
    """

    fired_at: float | None = None
    position: str = ""
    last: str = field(default="", compare=False)

    @classmethod
    def from_json(cls, value: object) -> Backlog:
        """Read what :meth:`as_json` wrote; anything else counts as nothing known."""
        kept = value if isinstance(value, Mapping) else {}
        at, position = kept.get("fired_at"), kept.get("position")
        if not isinstance(at, (int, float)):
            return cls()
        return cls(float(at), position if isinstance(position, str) else "")

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"fired_at": self.fired_at, "position": self.position}

    def after_poll(
        self, waiting: bool, now: float, refire_after: float, *, position: str
    ) -> tuple[Backlog, bool]:
        """
        Note a poll; return what is known now, and whether the backlog is to be reported.

        It is reported

        * when it begins;
        * when the position has moved since the last report and is the same as in the poll before: what the
          report started has done its work, and more is waiting. Any change counts, also back (a reset) and to
          nothing (Kafka forgot the group): other records wait than were reported. A reader that moves from
          each poll to the next, as a stream does, is still at work;
        * every ``refire_after`` seconds while it stays: what the report started may have failed.

        :param waiting: whether there is a backlog.
        :param now: seconds since 1970.
        :param position: the reader's position, as a text that changes when a position does.
        """
        if not waiting:
            return Backlog(), False
        moved = position != self.position and position == self.last
        # A clock that was set back makes a negative age: then it is reported again.
        if self.fired_at is None or not 0 <= now - self.fired_at < refire_after or moved:
            return Backlog(now, position, position), True
        return replace(self, last=position), False
