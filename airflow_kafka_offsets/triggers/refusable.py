"""
Triggers whose constructor raises no error in a triggerer.

A triggerer creates triggers from the database. If a constructor raises, the triggerer ends, with all other
triggers. The database may contain parameters that an older version accepted and this version refuses. So in a
triggerer the error is reported when the trigger runs. In a DAG file or a task the constructor raises at once.
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
    """Base of the triggers: can be created again from its parameters, and may be refused."""

    refused: tuple[KafkaOffsetsError, dict[str, Any]] | None = None
    """The error for which the trigger cannot be used, and the trigger's parameters."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The constructor's parameters as plain JSON."""
        raise NotImplementedError

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and the parameters; equal triggers return equal values."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, self.parameters if self.refused is None else self.refused[1]


Init = TypeVar("Init", bound=Callable[..., None])


def defer_refusal(init: Init) -> Init:
    """
    Let a constructor keep its error in ``refused`` instead of raising it in a triggerer.

    A parameter that is ``None`` has its default.
    """
    with_defaults = none_is_default(init)

    @functools.wraps(init)
    def make(self: RefusableTrigger, **parameters: Any) -> None:
        try:
            with_defaults(self, **parameters)
        except KafkaOffsetsError as error:
            if not _in_event_loop():
                raise
            self.refused = error, parameters

    # The cast lets type checkers see the constructor's parameters in a DAG file.
    return cast("Init", make)


def _in_event_loop() -> bool:
    # A triggerer creates its triggers in an event loop. A DAG file or a task runs without one.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
