"""Triggers that continue the wait of a deferred sensor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar

from airflow.triggers.base import TriggerEvent

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.task.metrics import report_lag
from airflow_kafka_offsets.triggers.poll import poll_repeatedly
from airflow_kafka_offsets.triggers.refusable import RefusableTrigger, defer_refusal
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.progress import Progress
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.topic import TopicWait
from airflow_kafka_offsets.waits.wait import Reading, Wait

log = logging.getLogger(__name__)

LAST_POLL = 30.0
"""Seconds in which the poll at the end of the sensor's time may still be answered."""


class WaitTrigger(RefusableTrigger):
    """
    Base of the triggers of the sensors: polls every ``poll_interval`` until the wait is over.

    Its event has a ``status``: ``done``; ``timeout`` at the end of the sensor's time; ``failed`` for a wait
    that is stalled, and for an error that every poll would repeat, such as a connection that is not defined;
    or ``error`` for what a retry may fix, such as an error of Airflow's own. Beside it are the last
    ``reading``, its ``text`` and, unless all is well, a ``message``. An error that may pass (the broker is
    not reachable) is logged, and the wait goes on. Nothing outside is changed, so it may run twice.

    :param poll_interval: seconds between two polls.
    :param max_interval: seconds up to which they grow, doubling; default: they stay.
    :param ends_at: when the wait's time is up, in seconds since 1970; default: never.
    :param parameters: those of the wait.
    """

    wait_class: ClassVar[type[Wait]]

    @defer_refusal
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

    @property
    def parameters(self) -> dict[str, Any]:
        """The wait's parameters, and when it polls."""
        own = {name: getattr(self, name) for name in ("poll_interval", "max_interval", "ends_at")}
        return self.wait.parameters | own

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the wait is over."""
        yield TriggerEvent(await self._run())  # type: ignore[no-untyped-call]

    async def _run(self) -> dict[str, Any]:
        if self.refused is not None:
            return _event("failed", None, str(self.refused[0]))
        progress = Progress(self.wait.stalled_after)
        last: Reading | None = None
        async with aclosing(
            poll_repeatedly(self.wait, self.poll_interval, self.max_interval, self._time_left())
        ) as outcomes:
            while True:
                try:
                    # A little longer than the sensor's time: the poll that is due at its end may still
                    # answer.
                    outcome = await asyncio.wait_for(anext(outcomes), self._time_left(LAST_POLL))
                except asyncio.TimeoutError:
                    break
                if isinstance(outcome, Reading):
                    last = outcome = progress.add_reading(outcome)
                    if progress.news:
                        (log.warning if outcome.unknown else log.info)("%s", outcome.text)
                    report_lag(outcome.lags, outcome.checkpoint)
                    if outcome.done:
                        return _event("done", outcome)
                    if stalled := progress.stalled:
                        return _event("failed", outcome, stalled)
                elif not isinstance(outcome, KafkaOffsetsError):
                    return _event("error", last, str(outcome) or repr(outcome))
                elif not outcome.retriable:
                    return _event("failed", last, str(outcome))
                elif progress.is_new_trouble(outcome):
                    log.warning("No answer this time: %s", outcome)
                if self._time_left() == 0:
                    break
        trouble = f"; {progress.summary}" if progress.trouble else ""
        return _event("timeout", last, f"the sensor's timeout is over{trouble}")

    def _time_left(self, more: float = 0.0) -> float | None:
        return None if self.ends_at is None else max(0.0, self.ends_at + more - time.time())


def _event(status: str, reading: Reading | None, message: str | None = None) -> dict[str, Any]:
    seen = {} if reading is None else {"reading": reading.as_json(), "text": reading.text}
    return {"status": status, **seen, **({"message": message} if message else {})}


class ConsumerGroupLagTrigger(WaitTrigger):
    """Continue a :class:`~airflow_kafka_offsets.waits.lag.LagWait`, which has the parameters."""

    wait_class = LagWait


class OffsetsReachedTrigger(WaitTrigger):
    """Continue a :class:`~airflow_kafka_offsets.waits.reached.ReachedWait`, which has the parameters."""

    wait_class = ReachedWait


class TopicReachedTrigger(WaitTrigger):
    """Continue a :class:`~airflow_kafka_offsets.waits.topic.TopicWait`, which has the parameters."""

    wait_class = TopicWait


TRIGGERS: Mapping[type[Wait], type[WaitTrigger]] = {
    kind.wait_class: kind for kind in (ConsumerGroupLagTrigger, OffsetsReachedTrigger, TopicReachedTrigger)
}
"""The trigger of each kind of wait."""
