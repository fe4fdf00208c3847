"""Compares the interval that a task reads with the events that started its run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow.sdk import Context

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.interval import Interval, IntervalSchedule


def check_emitted_interval(context: Context, key: str, interval: Interval) -> None:
    """
    Refuse to read another interval than the one that ``CompletedIntervalsOperator`` has emitted.

    The same key names an hour and a day, and other moments in another time zone. A run with a key that a
    mapper of Airflow has changed is not checked.

    :param key: the partition key of the run.
    :param interval: the interval that the task's own ``every`` and ``timezone`` find for the key.
    :raises UsageError: if the events of the run name another interval.
    """
    triggering: Mapping[Any, Any] = context.get("triggering_asset_events") or {}
    for asset, events in triggering.items():
        if any(getattr(event, "partition_key", None) != key for event in events):
            continue
        for extra in (event.extra for event in events):
            emitted = _emitted_interval(extra, key)
            if emitted is not None and (emitted.start, emitted.end) != (interval.start, interval.end):
                raise UsageError(
                    f"this run was started for the interval from {emitted.start.isoformat()} until "
                    f"{emitted.end.isoformat()} of the asset {asset.name!r}, and this task would read from "
                    f"{interval.start.isoformat()} until {interval.end.isoformat()}: set "
                    f"every={extra['every']!r} and timezone={extra['timezone']!r}, as in the task that "
                    "emits the asset's events"
                )


def _emitted_interval(extra: object, key: str) -> Interval | None:
    """Return the interval of an event; ``None`` for an event of another task."""
    with suppress(UsageError, KeyError):
        if isinstance(extra, Mapping) and "token" in extra:
            return IntervalSchedule.parse(extra["every"], extra["timezone"]).of_key(key)
    return None
