"""How does a deferred sensor go on waiting in the triggerer?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.hooks.waits import LagWait, ReachedWait, Wait

log = logging.getLogger(__name__)


class WaitTrigger(BaseTrigger):
    """
    Base of the triggers of the sensors: looks every ``poll_interval`` seconds until the wait is over.

    Its event is ``{"status": "done", "reading": {...}, "text": "..."}``, or ``{"status": "failed",
    "message": "..."}`` for an error that would come again at every look. One that may pass (the broker is
    not reachable) is logged, and the wait goes on. Nothing outside is changed, so it may run twice.

    :param poll_interval: seconds between two looks.
    :param parameters: those of the wait.
    """

    wait_class: ClassVar[type[Wait]]

    def __init__(self, *, poll_interval: float = 60.0, **parameters: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poll_interval = poll_interval
        self.wait = self.wait_class(**parameters)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its parameters as plain JSON."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {**self.wait.parameters, "poll_interval": self.poll_interval}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the wait is over."""
        yield TriggerEvent(await self._run())  # type: ignore[no-untyped-call]

    async def _run(self) -> dict[str, Any]:
        client = None
        last_text = ""
        try:
            while True:
                try:
                    if client is None:
                        # Airflow's connections have to be read through its own bridge from a thread.
                        client = await sync_to_async(self.wait.open)()
                    reading = await asyncio.to_thread(self.wait.look, client)
                except KafkaOffsetsError as error:
                    if not error.retriable:
                        return {"status": "failed", "message": str(error)}
                    log.warning("No answer this time: %s", error)
                else:
                    if reading.text != last_text:
                        log.info("%s", reading.text)
                        last_text = reading.text
                    if reading.done:
                        return {"status": "done", "reading": reading.value, "text": reading.text}
                await asyncio.sleep(self.poll_interval)
        finally:
            if client is not None:
                await asyncio.shield(asyncio.to_thread(client.close))


class ConsumerGroupLagTrigger(WaitTrigger):
    """
    Wait until the lag of a consumer group is at or below thresholds.

    Its parameters are those of :class:`~airflow_kafka_offsets.hooks.waits.LagWait`.
    """

    wait_class = LagWait


class OffsetsReachedTrigger(WaitTrigger):
    """
    Wait until a position is at or past a frozen target.

    Its parameters are those of :class:`~airflow_kafka_offsets.hooks.waits.ReachedWait`.
    """

    wait_class = ReachedWait
