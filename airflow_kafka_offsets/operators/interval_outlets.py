"""Assets of intervals, the intervals to emit for each asset, and their events."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from airflow.sdk import Asset, Context

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.interval import Interval, IntervalSchedule
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds, other_logs_refusals
from airflow_kafka_offsets.task.interval_memory import KEY, Emitted, IntervalMemory


class IntervalFeed(NamedTuple):
    """An asset, the schedule of its intervals, and the intervals emitted so far."""

    asset: Asset
    schedule: IntervalSchedule
    memory: IntervalMemory
    emitted: Emitted | None
    """``None`` before the first event."""


class CompletedIntervals(NamedTuple):
    """The intervals that a task emits for an asset."""

    feed: IntervalFeed
    emitted: Emitted
    intervals: Sequence[Interval]
    more: bool
    """Whether more intervals are complete than may be emitted at once."""

    @property
    def end(self) -> datetime:
        """The end of the last interval that is emitted after this task."""
        return self.intervals[-1].end if self.intervals else self.emitted.end

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, for the task's result."""
        return {
            "every": self.feed.schedule.every,
            "timezone": self.feed.schedule.zone,
            "intervals": [each.as_json() for each in self.intervals],
            "complete_until": self.end.isoformat(),
            "more": self.more,
        }


def check_assets(outlets: Sequence[Any], count: int) -> list[Asset]:
    """Return the outlets as assets; refuse them if they are not ``count`` different assets."""
    assets = [outlet for outlet in outlets if isinstance(outlet, Asset)]
    if len(assets) < len(outlets) or len(outlets) != count or len({asset.name for asset in assets}) < count:
        found = ", ".join(type(each).__name__ for each in outlets) or "none"
        raise UsageError(
            f"outlets: found {found}; expected {count} different assets, one for each interval in every, in "
            "the same order"
        )
    return assets


def check_meaning(
    asset: Asset, emitted: Emitted, meaning: Mapping[str, Any], start_from: datetime | None
) -> Emitted | None:
    """
    Return what was emitted for an asset, or ``None`` if the asset begins again with other intervals.

    Other intervals than before are refused, unless ``start_from`` sets a new beginning.
    """
    before = emitted.meaning
    if before == meaning:
        return emitted
    begins_again = start_from is not None and start_from.isoformat() != emitted.start_from
    if begins_again or emitted.waits_for_start:  # nothing was emitted yet
        return None
    changes = [
        f"{name} was {before.get(name)!r} and is {meaning.get(name)!r}"
        for name in sorted(before.keys() | meaning.keys())
        if before.get(name) != meaning.get(name)
    ]
    raise PlanRefusedError(
        f"the asset {asset.name!r} has other intervals until {emitted.end.isoformat()} "
        f"({'; '.join(changes)}): use another asset for the new intervals, or set start_from to a new time, "
        f"such as {emitted.end.isoformat()!r}, to begin there"
    )


def refuse_other_logs(
    feeds: Sequence[IntervalFeed], move: int | None, position: Mapping[str, Any], logs: LogIds
) -> None:
    """Refuse the position of a checkpoint if its topics were created again since it was read."""
    remedy = "move the checkpoint to the present topics (ResetOffsetsOperator)"
    for feed in feeds:
        recorded = recorded_logs(feed, move, position)
        if refusals := other_logs_refusals("the checkpoint", recorded, logs, remedy=remedy):
            raise PlanRefusedError(refusals)


def recorded_logs(feed: IntervalFeed, move: int | None, position: Mapping[str, Any]) -> LogIds:
    """
    Return the ids of the logs to which a checkpoint's position belonged when it was last read.

    A move since then has set it to offsets of the present topics, and a new query has read these.
    """
    kept = feed.emitted
    if kept is None or kept.move != move or kept.meaning.get("query_id") != position.get("query_id"):
        return UNKNOWN_LOGS
    return kept.logs


def emit(context: Context, completed: Sequence[CompletedIntervals]) -> list[Asset]:
    """Let Airflow send events of intervals when the task succeeds, note this, and return their assets."""
    token = uuid.uuid4().hex
    told = [each for each in completed if each.intervals]
    for each in told:
        each.feed.memory.announce(each.emitted, each.end, token)
    for each in told if "outlet_events" in context else ():
        events: Any = context["outlet_events"][each.feed.asset]
        # All keys share one extra: each interval follows from its key.
        extra = {
            "version": 1,
            "every": each.feed.schedule.every,
            "timezone": each.feed.schedule.zone,
            "start": each.intervals[0].start.isoformat(),
            "end": each.end.isoformat(),
            "token": token,
        }
        if hasattr(events, "add_partitions"):
            events.add_partitions([interval.key for interval in each.intervals])
        else:
            extra["intervals"] = [interval.as_json() for interval in each.intervals]
        events.extra = extra
    if told and "ti" in context:
        # The last step: a task without a token has not reached its end.
        context["ti"].xcom_push(key=KEY, value=token)
    return [each.feed.asset for each in told]
