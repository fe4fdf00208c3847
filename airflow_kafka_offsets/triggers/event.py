"""A trigger that starts DAGs when a group has a backlog."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.backlog import Backlog
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.offsets import IsolationLevel
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    parse_count,
    parse_interval,
    parse_seconds,
)
from airflow_kafka_offsets.task.metrics import report_lag
from airflow_kafka_offsets.triggers.poll import poll_repeatedly
from airflow_kafka_offsets.triggers.refusable import RefusableTrigger, defer_refusal
from airflow_kafka_offsets.waits.lag import THRESHOLDS, LagWait
from airflow_kafka_offsets.waits.wait import SHOWN, PositionSource

log = logging.getLogger(__name__)

# Seconds: the maximum delay before a backlog is noticed.
POLL_INTERVAL = 60.0
# Seconds: after a failed run, the backlog fires again after this time.
REFIRE_AFTER = 3600.0


class LagEventTrigger(RefusableTrigger, BaseEventTrigger):
    """
    Start DAGs when a group has a backlog of unread records: the trigger of an ``AssetWatcher``.

    The trigger fires when the backlog reaches a threshold. While the backlog stays there, the trigger fires
    again

    * if the position has moved since and is then the same in two polls: the started run has committed, and
      more records are unread. The position of a streaming job that commits more often than ``poll_interval``
      is never the same in two polls, so the trigger does not fire again for this reason;
    * every ``refire_after``, because the started run may have failed.

    When the backlog is below the thresholds, the trigger starts over. The asset event's payload is the
    reading without its partitions: ``group_id``, ``total_lag``, ``max_partition_lag``, ``lost``, ``topics``,
    and ``time_lag`` with ``min_time_lag``. No parameter is templated, because a watcher belongs to no run.

    On Airflow 3.3 and later, which keeps state for an asset, the trigger does not fire again after a restart
    of the triggerer. On earlier versions, and if two assets have an equal trigger, it fires once more after a
    restart while the backlog stays. The trigger never ends because of an error: it logs the error and polls
    again.

    Durations are seconds, a timedelta or text such as ``10m`` or ``PT10M``.

    For parameters that are not described here, see
    :class:`~airflow_kafka_offsets.sensors.lag.ConsumerGroupLagSensor`.

    :param mirror: not used; :class:`~airflow_kafka_offsets.pipeline.KafkaPipeline` passes this parameter on.
    :param topics: as in the sensor; give topics for a group that has not committed yet.
    :param min_lag: number of unread records in all partitions together.
    :param min_time_lag: age of the oldest unread record. With both thresholds, the trigger fires when either
        one is reached.
    :param refire_after: time after which the trigger fires again; one hour by default.
    :param poll_interval: time between two polls; one minute by default.
    :param on_no_commit: as in the sensor, but ``earliest`` by default: the whole log counts.
    :raises UsageError: without a threshold, for a threshold that is always reached, and for invalid names and
        numbers.
    """

    @defer_refusal
    def __init__(
        self,
        *,
        group_id: str | Mapping[str, str] | None = None,
        topics: str | Sequence[str] | None = None,
        checkpoint_location: str | None = None,
        checkpoint_conn_id: str | None = None,
        kafka_config_id: str = "kafka_default",
        mirror: Mapping[str, Any] | None = None,  # noqa: ARG002  # one of the pipeline's names
        min_lag: int | None = None,
        min_time_lag: float | timedelta | str | None = None,
        tolerance: int = 0,
        refire_after: float | timedelta | str = REFIRE_AFTER,
        poll_interval: float | timedelta | str = POLL_INTERVAL,
        position: PositionSource | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
        on_no_commit: MissingCommitPolicy = "earliest",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.min_lag = parse_count(min_lag, "min_lag")
        self.min_time_lag = parse_seconds(min_time_lag, "min_time_lag")
        self.refire_after = parse_interval(refire_after, "refire_after") or REFIRE_AFTER
        self.poll_interval = parse_interval(poll_interval, "poll_interval") or POLL_INTERVAL
        thresholds = {"min_lag": self.min_lag, "min_time_lag": self.min_time_lag}
        for name, value in thresholds.items():
            if value == 0:
                raise UsageError(f"{name}=0 is always reached: expected more than 0")
        if not any(thresholds.values()):
            raise UsageError("LagEventTrigger needs a threshold: give min_lag, min_time_lag, or both")
        self.wait = LagWait(
            group_id=group_id,
            topics=topics,
            checkpoint_location=checkpoint_location,
            checkpoint_conn_id=checkpoint_conn_id,
            kafka_config_id=kafka_config_id,
            position=position,
            isolation_level=isolation_level,
            # There is a backlog as long as this wait is not over.
            max_lag=None if self.min_lag is None else self.min_lag - 1,
            max_time_lag=self.min_time_lag,
            tolerance=tolerance,
            on_no_commit=on_no_commit,
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """The pipeline's names, the thresholds, and the intervals of polls and events."""
        taken = (*THRESHOLDS, "stalled_after")
        names = {name: value for name, value in self.wait.parameters.items() if name not in taken}
        own = ("min_lag", "min_time_lag", "refire_after", "poll_interval")
        return names | {name: getattr(self, name) for name in own}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when a backlog begins, and again while the backlog stays."""
        if self.refused is not None:
            log.error("This trigger cannot be used and never fires; correct its DAG: %s", self.refused[0])
            await asyncio.Event().wait()
        backlog = kept = await self._recall()
        trouble = ""
        async with aclosing(poll_repeatedly(self.wait, self.poll_interval)) as outcomes:
            async for outcome in outcomes:
                # Kept at the next poll, when the event is in the database. A restart before it fires again.
                if backlog != kept:
                    await self._remember(backlog)
                    kept = backlog
                last, trouble = trouble, str(outcome) if isinstance(outcome, Exception) else outcome.unknown
                if trouble and trouble != last:
                    answered = "Poll failed, no event" if isinstance(outcome, Exception) else "No event"
                    log.warning("%s: %s", answered, trouble)
                if isinstance(outcome, Exception):
                    continue
                report_lag(outcome.lags, outcome.checkpoint)
                waiting = bool(outcome.lags) and not (outcome.done or outcome.unknown)
                backlog, news = backlog.after_poll(
                    waiting, time.time(), self.refire_after, position=outcome.position
                )
                if news:
                    tables = "\n".join(lag.table(SHOWN) for lag in outcome.lags)
                    log.info("Unread records: %s", tables)
                    # Without partitions, since Airflow keeps events for long, and without a wait's progress.
                    reading = outcome.as_json().items()
                    left_out = ("partitions", "groups", "progress")
                    payload = {name: value for name, value in reading if name not in left_out}
                    yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    @property
    def _key(self) -> str:
        # An asset may have several watchers.
        return f"kafka_offsets.backlog.{digest(self.serialize()[1], length=12)}"

    async def _recall(self) -> Backlog:
        try:
            return Backlog.from_json(None if self._store is None else await self._store.aget(self._key))
        except Exception as error:  # noqa: BLE001  # no error of the store must hide the backlog
            log.warning("The last event is not known, so the trigger may fire again: %s", error)
            return Backlog()

    async def _remember(self, backlog: Backlog) -> None:
        try:
            if self._store is not None:
                await self._store.aset(self._key, backlog.as_json())
        except Exception as error:  # noqa: BLE001  # as above
            log.warning("After a restart the trigger may fire again: %s", error)

    @property
    def _store(self) -> Any:
        return getattr(self, "asset_state_store", None)
