"""How does a deferred sensor go on waiting in the triggerer?"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.task.metrics import report_lag
from airflow_kafka_offsets.triggers.poll import looks
from airflow_kafka_offsets.triggers.refused import refused_when_run
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.progress import Progress
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.topic import TopicWait
from airflow_kafka_offsets.waits.wait import Reading, Wait

log = logging.getLogger(__name__)

LAST_LOOK = 30.0
"""Seconds in which the look at the end of the sensor's time may still be answered."""


class WaitTrigger(BaseTrigger):
    """
    Base of the triggers of the sensors: looks every ``poll_interval`` seconds until the wait is over.

    Its event has a ``status``: ``done``; ``timeout`` at the end of the sensor's time; ``failed`` for a wait that is
    stalled, and for an error that would come again at every look, such as a connection that is not defined; or ``error``
    for what a retry may mend, such as an error of Airflow's own. Beside it are the last ``reading``, its ``text``
    and, unless all is well, a ``message``. An error that may pass (the broker is not reachable) is logged, and the
    wait goes on. Nothing outside is changed, so it may run twice.

    :param poll_interval: seconds between two looks.
    :param max_interval: seconds up to which they grow, doubling; default: they stay.
    :param ends_at: when the wait's time is up, in seconds since 1970; default: never.
    :param parameters: those of the wait.
    """

    wait_class: ClassVar[type[Wait]]
    refused: tuple[KafkaOffsetsError, dict[str, Any]] | None = None

    @refused_when_run
    def __init__(
        self,
        *,
        poll_interval: float = 60.0,
        max_interval: float | None = None,
        ends_at: float | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poll_interval = poll_interval
        self.max_interval = max_interval
        self.ends_at = ends_at
        self.wait = self.wait_class(**parameters)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its parameters as plain JSON."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        if self.refused is not None:
            return path, self.refused[1]
        pace = {
            "poll_interval": self.poll_interval,
            "max_interval": self.max_interval,
            "ends_at": self.ends_at,
        }
        return path, {**self.wait.parameters, **pace}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the wait is over."""
        yield TriggerEvent(await self._run())  # type: ignore[no-untyped-call]

    async def _run(self) -> dict[str, Any]:
        if self.refused is not None:
            return _event("failed", None, str(self.refused[0]))
        progress = Progress(self.wait.stalled_after)
        last: Reading | None = None
        ends_in = None if self.ends_at is None else max(0.0, self.ends_at - time.time())
        async with aclosing(looks(self.wait, self.poll_interval, self.max_interval, ends_in)) as outcomes:
            while True:
                try:
                    outcome = await asyncio.wait_for(anext(outcomes), self._time_left(LAST_LOOK))
                except asyncio.TimeoutError:
                    return _timeout(last, progress)
                if isinstance(outcome, KafkaOffsetsError) and outcome.retriable:
                    if progress.saw_nothing(outcome):
                        log.warning("No answer this time: %s", outcome)
                    if self._time_left() == 0:
                        return _timeout(last, progress)
                    continue
                if isinstance(outcome, Exception):
                    status = "failed" if isinstance(outcome, KafkaOffsetsError) else "error"
                    return _event(status, last, str(outcome) or repr(outcome))
                last = outcome
                if progress.is_news(outcome):
                    log.info("%s", outcome.text)
                report_lag(outcome.lags, outcome.checkpoint)
                if outcome.done:
                    return _event("done", outcome)
                if stalled := progress.stall():
                    return _event("failed", outcome, stalled)
                if self._time_left() == 0:
                    return _timeout(last, progress)

    def _time_left(self, more: float = 0.0) -> float | None:
        return None if self.ends_at is None else max(0.0, self.ends_at + more - time.time())


def _timeout(last: Reading | None, progress: Progress) -> dict[str, Any]:
    trouble = f"; {progress.last_words}" if progress.trouble else ""
    return _event("timeout", last, f"the sensor's timeout is over{trouble}")


def _event(status: str, reading: Reading | None, message: str | None = None) -> dict[str, Any]:
    seen = {} if reading is None else {"reading": reading.value, "text": reading.text}
    return {"status": status, **seen, **({"message": message} if message else {})}


class ConsumerGroupLagTrigger(WaitTrigger):
    """
    Wait until the lag of a consumer group is at or below thresholds.

    Its parameters are those of :class:`~airflow_kafka_offsets.waits.lag.LagWait`.
    """

    wait_class = LagWait


class OffsetsReachedTrigger(WaitTrigger):
    """
    Wait until a position is at or past a frozen target.

    Its parameters are those of :class:`~airflow_kafka_offsets.waits.reached.ReachedWait`.
    """

    wait_class = ReachedWait


class TopicReachedTrigger(WaitTrigger):
    """
    Wait until topics hold a record at or after a time in every partition.

    Its parameters are those of :class:`~airflow_kafka_offsets.waits.topic.TopicWait`.
    """

    wait_class = TopicWait
