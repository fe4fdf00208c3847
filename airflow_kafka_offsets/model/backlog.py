"""Decides when a backlog is reported again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Backlog:
    """
    State of a backlog between two polls.

    :param fired_at: when the backlog was last reported, in seconds since 1970; ``None`` without a backlog.
    :param position: the reader's position at that time, as a text that changes when a position changes.
    :param last: the reader's position in the last poll. It is lost at a restart.
    """

    fired_at: float | None = None
    position: str = ""
    last: str = field(default="", compare=False)

    @classmethod
    def from_json(cls, value: object) -> Backlog:
        """Read the result of :meth:`as_json`; any other value gives an empty state."""
        kept = value if isinstance(value, Mapping) else {}
        at, position = kept.get("fired_at"), kept.get("position")
        if not isinstance(at, (int, float)):
            return cls()
        return cls(float(at), position if isinstance(position, str) else "")

    def as_json(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        return {"fired_at": self.fired_at, "position": self.position}

    def after_poll(
        self, waiting: bool, now: float, refire_after: float, *, position: str
    ) -> tuple[Backlog, bool]:
        """
        Record a poll; return the new state, and whether to report the backlog.

        :class:`~airflow_kafka_offsets.triggers.event.LagEventTrigger` lists when it is reported. Any change
        of the position counts as a move, including a move back (a reset) or a lost position (Kafka expired
        the group's offsets), because other records are waiting than were reported. A position that changes
        at every poll, such as a stream's, means that the reader is still working.

        :param now: seconds since 1970.
        """
        if not waiting:
            return Backlog(), False
        moved = position != self.position and position == self.last
        # If the clock was set back, the age is negative, and the backlog is reported again.
        if self.fired_at is None or not 0 <= now - self.fired_at < refire_after or moved:
            return Backlog(now, position, position), True
        return replace(self, last=position), False
