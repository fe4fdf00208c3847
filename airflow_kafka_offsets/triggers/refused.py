"""
Keeps an error of a trigger's constructor until the trigger runs.

A triggerer that makes a trigger from the database ends, with all other triggers, at an error of the constructor. There may
be parameters in the database that an older version took and this one refuses, so there the error comes when the trigger
runs. Where a DAG file or a task makes a trigger it is raised at once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from airflow_kafka_offsets.errors import KafkaOffsetsError


class Refusable(Protocol):
    """A trigger whose constructor may refuse its parameters."""

    refused: tuple[KafkaOffsetsError, dict[str, Any]] | None
    """Why it cannot be used, and its parameters."""


T = TypeVar("T", bound=Refusable)


def refused_when_run(init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor note in ``refused`` what it would raise in a triggerer."""

    @functools.wraps(init)
    def make(self: T, **parameters: Any) -> None:
        try:
            init(self, **parameters)
        except KafkaOffsetsError as error:
            if not _in_event_loop():
                raise
            self.refused = error, parameters

    return make


def _in_event_loop() -> bool:
    # Where a triggerer makes its triggers there is one; where a DAG file is read, or a task runs, there is none.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
