"""Triggers that continue the wait of a deferred sensor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException
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


class WaitTrigger(RefusableTrigger):
    """
    Base of the sensors' triggers: polls every ``poll_interval`` until the wait is over.

    The event has one of these values as ``status``:

    - ``done``: the wait is over.
    - ``timeout``: the sensor's timeout has passed.
    - ``failed``: the wait is stalled, or every poll would repeat the error, such as a wrong password.
    - ``error``: a retry may fix the error, such as an undefined connection or an error in Airflow itself.

    The event also has the last ``reading``, its ``text`` and, unless the status is ``done``, a ``message``. A
    temporary error, such as an unreachable broker, is logged, and the wait continues. The trigger only reads,
    so it may run twice.

    :param max_interval: maximum seconds of the interval, which is doubled after each poll; by default the
        interval is constant.
    :param ends_at: end of the wait in seconds since 1970; no end by default.
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
        """The wait's parameters, its polling intervals and its end."""
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
                    # Longer than the sensor's timeout: the poll that is due then may still be answered.
                    outcome = await asyncio.wait_for(anext(outcomes), self._time_left(30.0))
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
                elif not getattr(outcome, "retriable", True):
                    return _event("failed", last, str(outcome))
                elif not isinstance(outcome, KafkaOffsetsError) or isinstance(
                    outcome.__cause__, AirflowNotFoundException
                ):
                    return _event("error", last, str(outcome) or repr(outcome))
                elif progress.is_new_error(outcome):
                    log.warning("This poll failed, and the wait continues: %s", outcome)
                if self._time_left() == 0:
                    break
        trouble = f"; {progress.summary}" if progress.last_error else ""
        return _event("timeout", last, f"the sensor's timeout has passed{trouble}")

    def _time_left(self, more: float = 0.0) -> float | None:
        return None if self.ends_at is None else max(0.0, self.ends_at + more - time.time())


def _event(status: str, reading: Reading | None, message: str | None = None) -> dict[str, Any]:
    seen = {} if reading is None else {"reading": reading.as_json(), "text": reading.text}
    return {"status": status, **seen, **({"message": message} if message else {})}


class ConsumerGroupLagTrigger(WaitTrigger):
    """Continues a :class:`~airflow_kafka_offsets.sensors.lag.ConsumerGroupLagSensor`."""

    wait_class = LagWait


class OffsetsReachedTrigger(WaitTrigger):
    """Continues a :class:`~airflow_kafka_offsets.sensors.reached.OffsetsReachedSensor`."""

    wait_class = ReachedWait


class TopicReachedTrigger(WaitTrigger):
    """Continues a :class:`~airflow_kafka_offsets.sensors.topic.TopicReachedSensor`."""

    wait_class = TopicWait


TRIGGERS: Mapping[type[Wait], type[WaitTrigger]] = {
    kind.wait_class: kind for kind in (ConsumerGroupLagTrigger, OffsetsReachedTrigger, TopicReachedTrigger)
}
"""The trigger of each kind of wait."""
