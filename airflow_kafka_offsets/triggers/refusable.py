"""
Triggers whose constructor raises nothing in a triggerer.

A triggerer that makes a trigger from the database ends, with all other triggers, at an error of the
constructor. The database may have parameters that an older version took and this one refuses, so there the
error comes when the trigger runs. Where a DAG file or a task makes a trigger it is raised at once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from airflow.triggers.base import BaseTrigger

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.task.parameter_checks import none_is_default


class RefusableTrigger(BaseTrigger):
    """Base of the triggers: is made again from its parameters, and may be refused."""

    refused: tuple[KafkaOffsetsError, dict[str, Any]] | None = None
    """Why it cannot be used, and its parameters."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The constructor's parameters as plain JSON."""
        raise NotImplementedError

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its parameters, the same for the same trigger."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, self.parameters if self.refused is None else self.refused[1]


T = TypeVar("T", bound=RefusableTrigger)
Init = TypeVar("Init", bound=Callable[..., None])


def defer_refusal(init: Init) -> Init:
    """Let a constructor note in ``refused`` what it would raise in a triggerer; ``None`` is a default."""
    with_defaults = none_is_default(init)

    @functools.wraps(init)
    def make(self: T, **parameters: Any) -> None:
        try:
            with_defaults(self, **parameters)
        except KafkaOffsetsError as error:
            if not _in_event_loop():
                raise
            self.refused = error, parameters

    # Type checkers see the constructor's own parameters, in a DAG file too.
    return cast("Init", make)


def _in_event_loop() -> bool:
    # A triggerer makes its triggers in one; where a DAG file is read, or a task runs, there is none.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
