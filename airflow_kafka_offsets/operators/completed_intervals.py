"""Emits the intervals of record time that a position has completed, as events of assets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from airflow.sdk import Asset, Context, XComArg

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.interval import MOST_INTERVALS, IntervalSchedule, parse_timezone
from airflow_kafka_offsets.model.parameters import (
    choice_parser,
    parse_count,
    parse_duration,
    parse_interval,
    parse_time,
)
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.operators.base import OffsetsOperator, Parser
from airflow_kafka_offsets.readings.interval_feed import CompletedIntervals, IntervalFeed
from airflow_kafka_offsets.readings.topic_times import IDLE_AFTER
from airflow_kafka_offsets.task.interval_memory import IntervalMemory
from airflow_kafka_offsets.task.parameter_checks import is_template, with_task_name
from airflow_kafka_offsets.waits.interval_position import IntervalPosition
from airflow_kafka_offsets.waits.topic import IdlePartitionPolicy
from airflow_kafka_offsets.waits.wait import PositionSource, Wait


def _parse_max_intervals(value: object, parameter: str) -> int | None:
    count = parse_count(value, parameter, minimum=1)
    if count is not None and count > MOST_INTERVALS:
        raise UsageError(
            f"{parameter}={count}: expected at most {MOST_INTERVALS}, since each interval is an event that "
            "can start a run; the next run emits the rest"
        )
    return count


class CompletedIntervalsOperator(OffsetsOperator):
    """
    Emit an asset event for each interval of record time, such as an hour, that a position has completed since
    the last event.

    Run this task after the task that commits, or on a schedule beside a query that always runs. The task
    changes nothing in Kafka.

    An interval is complete when the position of the group, or of the checkpoint, has passed every record with
    a Kafka timestamp before the interval's end. This requires, in every partition, a record with a timestamp
    at or after the end, and that all records before that record were read.
    :class:`~airflow_kafka_offsets.sensors.reached.OffsetsReachedSensor` and
    :class:`~airflow_kafka_offsets.sensors.topic.TopicReachedSensor` use the same rule. An interval that is
    not yet over by the clock is never complete.

    The partition key of each event is the interval's key: the interval's start in ``timezone``, such as
    ``2026-03-01T14:00:00``. A DAG with ``schedule=PartitionedAssetTimetable(assets=...)`` runs once for each
    event. On Airflow 3.1 and 3.2 one event has all intervals in its ``extra``.

    Intervals are emitted in order, each one once. A task that fails or is killed has emitted nothing. Its
    next try, or the next run, emits the same intervals. A reset may move the position back behind emitted
    intervals. These are emitted again when they are complete again, if this task has read the earlier
    position, or if the checkpoint records the reset. By default only one run of the task emits at a time
    (``max_active_tis_per_dag=1``).

    The task refuses, and emits nothing, in these cases:

    - The position is of another cluster or topic, or beyond the log end.
    - Retention deleted records before they were read.
    - The intervals have another length, time zone, group or query than the asset's earlier intervals, and
      ``start_from`` has not changed.
    - Another task emits for the same asset at the same time.

    Returns ``version``, ``position`` (``group`` or ``checkpoint``) and ``assets``. For each asset's name,
    ``assets`` has ``every``, ``timezone``, ``intervals`` (each with ``key``, ``start`` and ``end``),
    ``complete_until``, and ``more``: whether ``max_intervals`` has left intervals for the next run.

    :param every: ``hour``, ``day``, a cron expression such as ``0 6 * * *``, or a length such as ``PT15M`` or
        a timedelta, counted from 1970-01-01T00:00 UTC. A list needs one asset in ``outlets`` for each
        element. (templated)
    :param outlets: the asset of each ``every``, in the same order. No other task should send events for it.
    :param timezone: time zone in which hours, days and cron expressions start; ``UTC`` by default.
        (templated)
    :param lateness: for timestamps that are out of order within a partition, the largest step back: a record
        completes an interval only if it is at least this much later than the interval's end. Seconds, a
        timedelta or text such as ``PT5M``; ``PT0S`` by default. (templated)
    :param on_idle_partition: ``wait`` (default) waits for every partition; ``ignore`` ignores idle partitions
        that were read to their end, if another partition of the topic shows that the interval is complete.
        (templated)
    :param idle_after: with ``ignore``: age of a partition's newest record after which the partition is idle:
        seconds, a timedelta or text such as ``10m``; 10 minutes by default. (templated)
    :param start_from: a time in the first interval to emit. By default the first interval is that of the
        first unread record when the task first runs, or the current interval if all records were read. Until
        the first event, you can change it to an earlier time. (templated)
    :param max_intervals: maximum number of events for an asset in one run, 200 by default; the next run emits
        the rest. (templated)
    :param position: which position to read: ``group`` or ``checkpoint``; by default the group's if both are
        given. (templated)
    """

    parsers: ClassVar[Mapping[str, Parser]] = {
        "every": lambda value, _: [IntervalSchedule.parse(each) for each in _as_list(value)],
        "timezone": parse_timezone,
        "lateness": parse_duration,
        "on_idle_partition": choice_parser(IdlePartitionPolicy),
        "idle_after": parse_interval,
        "start_from": parse_time,
        "max_intervals": _parse_max_intervals,
        "position": choice_parser(PositionSource),
    }
    template_fields: Sequence[str] = (*OffsetsOperator.template_fields, *parsers)
    needs_group: ClassVar[bool] = False
    one_at_a_time: ClassVar[bool] = True

    def __init__(
        self,
        *,
        every: str | timedelta | Sequence[str | timedelta] | XComArg = "hour",
        outlets: Asset | Sequence[Asset] | None = None,
        timezone: str = "UTC",
        lateness: float | timedelta | str = "PT0S",
        on_idle_partition: IdlePartitionPolicy | str = "wait",
        idle_after: float | timedelta | str | None = None,
        start_from: datetime | str | XComArg | None = None,
        max_intervals: int | str = 200,
        position: PositionSource | str | None = None,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        # Two runs at once would emit the same intervals.
        super().__init__(outlets=outlets, max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.every: Any = every
        self.timezone = timezone
        self.lateness = lateness
        self.on_idle_partition = on_idle_partition
        self.idle_after = idle_after
        self.start_from: Any = start_from
        self.max_intervals = max_intervals
        self.position = position
        self.check_parameters()

    def check_parameters(self) -> None:
        """Check also that there is a position, and an asset for each schedule."""
        super().check_parameters()
        with with_task_name(self):
            Wait.check_parameters(self)
            if not (is_template(self.every) or is_template(self.timezone)):
                self._schedules()
            if not is_template(self.every):
                self._assets()
        if self.on_idle_partition == "wait":
            self.refuse_unused("with on_idle_partition='wait'", "idle_after")

    def execute(self, context: Context) -> dict[str, Any]:
        """Emit the intervals that have become complete, and return them."""
        with self.run_checked():
            # Airflow sends an event for each asset that is in outlets when the task ends.
            self.outlets = []
            names = ("group_id", "topics", "checkpoint_location", "kafka_config_id", "position")
            position = IntervalPosition(**{name: getattr(self, name) for name in names})
            completed = self._completed(position, self._feeds(context))
            self._emit([(memory, each) for memory, each in completed if each.intervals])
        return {
            "version": 1,
            "position": "checkpoint" if position.position_is_checkpoint else "group",
            "assets": {each.feed.name: each.as_json() for _, each in completed},
        }

    def _feeds(self, context: Context) -> list[tuple[IntervalMemory, IntervalFeed]]:
        """Return what was emitted for each asset, and what its intervals are."""
        start_from = self.start_from
        if start_from is not None:
            start_from = self.parse_parameter("start_from").astimezone(timezone.utc)
        limits = self.parse_parameter("lateness"), self.parse_parameter("max_intervals")
        return [
            (IntervalMemory(context, asset), IntervalFeed(asset.name, schedule, start_from, *limits))
            for asset, schedule in zip(self._assets(), self._schedules(), strict=True)
        ]

    def _completed(
        self, position: IntervalPosition, feeds: Sequence[tuple[IntervalMemory, IntervalFeed]]
    ) -> list[tuple[IntervalMemory, CompletedIntervals]]:
        """Return the intervals of each asset that the position has completed since the last event."""
        idle_after = None
        if self.parse_parameter("on_idle_partition") == "ignore":
            idle_after = IDLE_AFTER if self.idle_after is None else self.parse_parameter("idle_after")
        checkpoint = self.open_checkpoint()
        completed = []
        # The position looks up the times of records when they are needed.
        with self.open_client() as client:
            found = position.read(client, checkpoint, idle_after, [memory.emitted for memory, _ in feeds])
            if found is None:
                self.log.info("The checkpoint has not finished its first batch: no interval is complete")
                return []
            if not found.times.has_position:
                self.log.warning("The group has no committed offset: no interval is complete")
            for memory, feed in feeds:
                emitted = feed.continued(memory.emitted, found)
                if emitted is not None:
                    # Kept now, so that the beginning or a reset is not forgotten if this task fails.
                    memory.keep(emitted)
                    completed.append((memory, feed.completed(emitted.end, found.times)))
        return completed

    def _emit(self, emitting: Sequence[tuple[IntervalMemory, CompletedIntervals]]) -> None:
        """Let Airflow send the events of the completed intervals when the task succeeds."""
        token = uuid.uuid4().hex
        for memory, each in emitting:
            memory.emit(each, token)
        for memory, _ in emitting:
            # Of tasks that have kept theirs at the same moment, only the last one emits.
            memory.refuse_other_task()
        self.outlets = [memory.asset for memory, _ in emitting]

    def _assets(self) -> list[Asset]:
        """Return the outlets, one for each schedule, as assets."""
        count = len(_as_list(self.every))
        outlets = self._group_outlets.declared or self.outlets
        assets = [outlet for outlet in outlets if isinstance(outlet, Asset)]
        if not len(outlets) == len({asset.name for asset in assets}) == count:
            found = ", ".join(type(each).__name__ for each in outlets) or "none"
            raise UsageError(
                f"outlets: found {found}; expected {plural(count, 'different asset')}, one for each interval "
                "in every, in the same order"
            )
        return assets

    def _schedules(self) -> list[IntervalSchedule]:
        schedules = [IntervalSchedule.parse(each, self.timezone) for each in _as_list(self.every)]
        if len({each.canonical for each in schedules}) < len(schedules):
            raise UsageError(f"every={self.every} names the same intervals twice: name them once")
        return schedules


def _as_list(every: object) -> list[Any]:
    values = list(every) if isinstance(every, list | tuple) else [every]
    if not values:
        raise UsageError("every=[] names no intervals: give 'hour', 'day' or a cron expression")
    return values
