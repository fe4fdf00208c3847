"""A clock for the archives of moves: each step is a minute after the one before."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_kafka_offsets.checkpoint import archive
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata

START = datetime(2026, 3, 1, tzinfo=timezone.utc)


class Clock(datetime):
    """In place of ``datetime`` in ``archive``."""

    minute = 0

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return (START + timedelta(minutes=cls.minute)).astimezone(tz)


def set_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the archives use the clock, from ``START`` on."""
    monkeypatch.setattr(archive, "datetime", Clock)
    monkeypatch.setattr(Clock, "minute", 0)


def by_next_step(tool: str = "") -> CommitMetadata:
    """Return who makes the next step, a minute later."""
    Clock.minute += 1
    return CommitMetadata(at=int(Clock.now().timestamp()), tool=tool)
