"""The outcome of one check of this machine or of a broker."""

from __future__ import annotations

from typing import Literal, NamedTuple

Status = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One line of ``airflow-kafka-offsets doctor``."""

    name: str
    """What was looked at."""
    status: Status
    """``fail``: it will not work; ``warn``: it may not, or not for long."""
    found: str
    """What is there, and what was expected if that differs."""
    remedy: str | None = None
    """What to do; ``None`` if nothing."""
