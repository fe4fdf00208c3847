"""
Metrics of tasks and triggers, through Airflow's own ``Stats``: StatsD or OpenTelemetry, as in its settings.

Tags are ``group`` and ``topic``, never a partition. No function here raises: metrics must not fail a task.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    CommitError,
    GroupActiveError,
    PlanRefusedError,
    UnknownTopicPartitionError,
)
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from airflow_kafka_offsets.model.drift import DriftReport
    from airflow_kafka_offsets.model.headroom import Headroom
    from airflow_kafka_offsets.model.lag import Lag

P = ParamSpec("P")

log = logging.getLogger(__name__)

REFUSALS = (
    PlanRefusedError,
    CommitError,
    GroupActiveError,
    UnknownTopicPartitionError,
    BrokerAuthenticationError,
)
"""Errors that refuse a plan or its commit. After any other error the outcome is unknown."""

CounterName = Literal["commit", "reset", "unready", "refused"]
"""``reset`` is any deliberate move, ``unready`` a commit that has not kept the data for a failover."""


def _never_raising(report: Callable[P, None]) -> Callable[P, None]:
    @wraps(report)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            report(*args, **kwargs)
        except Exception:
            log.debug("Metrics were not reported", exc_info=True)

    return quiet


@_never_raising
def report_lag(lags: Iterable[Lag], checkpoint: str | None = None) -> None:
    """
    Report ``kafka_offsets.lag``, ``.time_lag`` and ``.headroom`` of each group and topic.

    The time lag is 0 while no partition is late, and is not reported if the time of the oldest unread record
    is unknown; nor is a headroom that is unknown for a partition, unless another partition's is 0.

    :param checkpoint: URI of the checkpoint whose position was read; it then is the tag ``group``.
    """
    records: Counter[tuple[str, str]] = Counter()
    seconds: dict[tuple[str, str], float] = {}
    unknown: set[tuple[str, str]] = set()
    uncounted: set[tuple[str, str]] = set()
    headroom: dict[str, list[tuple[TopicPartition, Headroom]]] = {}
    for lag in lags:
        group = checkpoint or lag.name
        for row in lag.partitions:
            key = group, row.topic_partition.topic
            records[key] += row.lag or 0
            if row.uncounted:
                uncounted.add(key)
            if row.time_lag is None:
                unknown.add(key)
            elif lag.has_time_lags:
                seconds[key] = max(row.time_lag, seconds.get(key, 0.0))
        headroom.setdefault(group, []).extend((lag.headroom or {}).items())
    for (group, topic), waiting in records.items():
        if (group, topic) not in uncounted:
            _gauge("lag", waiting, group, topic)
    for (group, topic), late in seconds.items():
        # A known age is a lower bound. A 0 would be a guess if another partition's age is unknown.
        if late or (group, topic) not in unknown | uncounted:
            _gauge("time_lag", late, group, topic)
    for group, found in headroom.items():
        _report_headroom(group, found)


def _report_headroom(group: str, found: Iterable[tuple[TopicPartition, Headroom]]) -> None:
    from airflow_kafka_offsets.model.headroom import topic_gauges

    for topic, left in topic_gauges(found).items():
        _gauge("headroom", left, group, topic)


@_never_raising
def report_drift(reports: Iterable[DriftReport]) -> None:
    """Report ``kafka_offsets.drift`` (partitions), ``.lag`` if known, and ``.headroom`` if measured."""
    for report in reports:
        report_lag([report.lag])
        drifted: Counter[str] = Counter({entry.topic_partition.topic: 0 for entry in report.partitions})
        unfinished = report.unfinished_move or report.unfinished_recovery
        found = [report.partitions] if unfinished else report.drift.values()
        drifted.update(entry.topic_partition.topic for each in found for entry in each)
        for topic, partitions in drifted.items():
            _gauge("drift", partitions, report.group_id, topic)
        _report_headroom(report.group_id, report.headroom.items())


@_never_raising
def count(name: CounterName, topics: Mapping[str, Iterable[str]], **tags: str) -> None:
    """Count each group and topic in ``kafka_offsets.<name>``; once without a topic if none is known."""
    for group, names in topics.items():
        for topic in sorted({*names}) or [""]:
            _stats().incr(f"kafka_offsets.{name}", tags=_tags(group=group, topic=topic, **tags))


def _gauge(name: str, value: float, group: str, topic: str) -> None:
    _stats().gauge(f"kafka_offsets.{name}", value, tags=_tags(group=group, topic=topic))


@cache
def _stats() -> Any:
    """Return Airflow's ``Stats``, which the process of the task or triggerer has configured."""
    # Remove when Airflow documents its metrics for tasks: until then the module moves between versions.
    try:
        from airflow.sdk.observability.stats import Stats
    except ImportError:  # Airflow 3.1
        from airflow.stats import Stats
    return Stats


def _tags(**tags: str) -> dict[str, str]:
    """Return the tags with a value, without characters that the metrics format does not allow."""
    given = {name: value for name, value in tags.items() if value}
    breaking = _breaking()
    if breaking is None:
        return given
    # Such a tag may become part of the metric's name, and Airflow drops names over 250 characters.
    return {name: breaking.sub("_", value)[:80] for name, value in given.items()}


@cache
def _breaking() -> re.Pattern[str] | None:
    """
    Return a pattern of the characters that a tag must not have, ``None`` if all are allowed.

    In InfluxDB's format a tag becomes part of the metric's name, and Airflow drops names with other
    characters. In DogStatsD's format these characters end a tag or a line. OpenTelemetry accepts any text.
    """
    from airflow.providers.common.compat.sdk import conf

    if conf.getboolean("metrics", "statsd_datadog_enabled", fallback=False):
        return re.compile(r"[\s,|]")
    if conf.getboolean("metrics", "statsd_influxdb_enabled", fallback=False):
        return re.compile(r"[^a-zA-Z0-9_./-]")
    return None
