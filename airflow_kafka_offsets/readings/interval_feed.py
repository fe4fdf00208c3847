"""
Which intervals of an asset were emitted, where they continue, and which ones are emitted now.

``CompletedIntervalsOperator`` asks this in two steps. :meth:`IntervalFeed.continued` compares what is kept
with the asset to the present position; the task keeps the result at once, so that a beginning or a reset is
not forgotten if the task fails. :meth:`IntervalFeed.completed` then returns the intervals to emit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import islice, takewhile
from typing import Any, NamedTuple

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.interval import Interval, IntervalSchedule
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.parameters import iso_time, timestamp_ms
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.readings.record_progress import RecordProgress

log = logging.getLogger(__name__)

KEY = "kafka_offsets.intervals"
"""Key of the state that is kept with the asset."""

_VERSION = 1
_SHOWN = 3


class CompletingPosition(NamedTuple):
    """
    The position that completes intervals.

    :param owner: the group or the query that it belongs to, as plain JSON.
    :param move: number of the checkpoint's newest move that is over; ``None`` without a checkpoint.
    :param times: the position in the time of the records.
    :param moved: the same for the lowest targets of the moves since the last run, even if it has passed them.
    :param logs: ids of the cluster and the topics of a checkpoint's position; a group's commits have them.
    """

    owner: Mapping[str, Any]
    move: int | None
    times: RecordProgress
    moved: RecordProgress
    logs: LogIds = UNKNOWN_LOGS

    def recorded_logs(self, kept: Emitted | None) -> LogIds:
        """
        Return the ids of the logs to which the position belonged when it was last read.

        A move since then has set it to offsets of the present topics, and a new query has read these.
        """
        if kept is None or kept.move != self.move:
            return UNKNOWN_LOGS
        same_query = kept.meaning.get("query_id") == self.owner.get("query_id")
        return kept.logs if same_query else UNKNOWN_LOGS


@dataclass(frozen=True)
class Emitted:
    """
    The intervals of an asset that were emitted, as they are kept with the asset.

    :param end: end of the newest emitted interval. All intervals from the first one up to here were emitted.
    :param meaning: the schedule of the intervals, and the group or checkpoint that completes them.
    :param start_from: value of this parameter when the first interval was emitted.
    :param move: that of the :class:`CompletingPosition`, like ``logs``.
    :param begin: start of the first interval; ``None`` if unknown.
    """

    end: datetime
    meaning: Mapping[str, Any]
    start_from: str | None
    move: int | None
    begin: datetime | None
    logs: LogIds = UNKNOWN_LOGS

    @property
    def waits_for_start(self) -> bool:
        """Whether ``start_from`` was given, and no interval was emitted: the position may be before it."""
        return self.start_from is not None and self.end == self.begin

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "version": _VERSION,
            "end": self.end.isoformat(),
            "meaning": dict(self.meaning),
            "start_from": self.start_from,
            "move": self.move,
            "begin": None if self.begin is None else self.begin.isoformat(),
            **({"logs": self.logs.as_json()} if self.logs else {}),
        }

    @classmethod
    def parse(cls, value: object) -> Emitted:
        """Read the result of :meth:`as_json`; raise a KeyError, TypeError or ValueError for anything else."""
        if not isinstance(value, Mapping) or value["version"] != _VERSION:
            raise ValueError
        return cls(
            parse_moment(value["end"]),
            dict(value["meaning"]),
            value.get("start_from"),
            value.get("move"),
            None if value.get("begin") is None else parse_moment(value["begin"]),
            LogIds.parse(value.get("logs")),
        )


@dataclass(frozen=True)
class IntervalFeed:
    """
    How a task emits intervals for an asset: the schedule and the limits.

    :param start_from: a time in the first interval, in UTC; by default that of the first unread record.
    :param lateness: an interval is complete when all partitions have reached its end plus this.
    :param limit: maximum number of intervals in one run.
    """

    name: str
    schedule: IntervalSchedule
    start_from: datetime | None
    lateness: timedelta
    limit: int

    def continued(self, kept: Emitted | None, position: CompletingPosition) -> Emitted | None:
        """
        Return what was emitted, corrected for resets, or where the intervals begin.

        ``None`` while nothing determines where they begin.

        :raises PlanRefusedError: if they are other intervals than before, or would begin at a wrong time.
        """
        schedule, move = self.schedule, position.move
        meaning = {"every": schedule.cron or schedule.every, "timezone": schedule.zone, **position.owner}
        start_from = None if self.start_from is None else self.start_from.isoformat()
        if kept is None or self._begins_again(kept, meaning):
            first = self.start_from or _first_unread(position.times)
            if first is None:
                return None
            begin = schedule.containing(first)
            emitted = Emitted(begin.start, meaning, start_from, move, begin.start)
            now = "now " if kept and kept.meaning == meaning else ""
            log.info("%s: the first interval is %s%s", self.name, now, begin)
        else:
            end = kept.end
            if start_from not in (None, kept.start_from):
                log.warning(
                    "%s: start_from was %s and is now %s. This has no effect: the intervals continue at %s. "
                    "To begin again, delete the state %s of the asset, or use another asset",
                    *(self.name, kept.start_from, start_from, end.isoformat(), KEY),
                )
            if not kept.waits_for_start:
                has_moved = move is not None and kept.move is not None and kept.move < move
                readings = [position.times, position.moved] if has_moved else [position.times]
                end = min(end_after_reset(each, schedule, end) for each in readings)
            if end < kept.end:
                log.warning(
                    "%s: the position was moved back. The intervals from %s until %s are emitted again when "
                    "they are complete again",
                    *(self.name, schedule.containing(end), kept.end.isoformat()),
                )
            emitted = replace(kept, end=end, move=move)
        # An id that the broker does not return this time is not forgotten.
        return replace(emitted, logs=position.recorded_logs(kept) | position.logs)

    def _begins_again(self, kept: Emitted, meaning: Mapping[str, Any]) -> bool:
        start, before = self.start_from, kept.meaning
        if start is not None and start.isoformat() == kept.start_from:
            start = None
        if before == meaning:
            if start is None or kept.begin is None:
                return False
            # A later beginning is not accepted: a template with a new time in each run would skip intervals.
            return self.schedule.containing(start).start <= kept.end <= kept.begin
        if start is not None or kept.waits_for_start:  # nothing was emitted yet
            return True
        changes = [
            f"{name} was {before.get(name)!r} and is {meaning.get(name)!r}"
            for name in sorted(before.keys() | meaning.keys())
            if before.get(name) != meaning.get(name)
        ]
        raise PlanRefusedError(
            f"the asset {self.name!r} has other intervals until {kept.end.isoformat()} "
            f"({'; '.join(changes)}): use another asset for the new intervals, or set start_from to a new "
            f"time, such as {kept.end.isoformat()!r}, to begin there"
        )

    def completed(self, since: datetime, times: RecordProgress) -> CompletedIntervals:
        """Return the complete intervals that start at or after a time."""

        def moment(interval: Interval) -> int:
            return timestamp_ms(interval.end + self.lateness)

        ended = takewhile(lambda each: moment(each) <= times.now, self.schedule.since(since))
        at_most = list(islice(ended, self.limit + 1))
        count = times.reached([moment(each) for each in at_most])
        found = at_most[: min(count, self.limit)]
        if found:
            several = f" to {found[-1]}" if len(found) > 1 else ""
            log.info("%s: complete: %s%s (%d)", self.name, found[0], several, len(found))
        if count > self.limit:
            log.warning(
                "%s: more intervals are complete than max_intervals: the next run emits the rest", self.name
            )
        else:
            following = next(self.schedule.since(found[-1].end if found else since))
            missing = times.missing(moment(following)) if moment(following) <= times.now else {}
            reasons = "; ".join(f"{tp} {why}" for tp, why in sorted(missing.items())[:_SHOWN])
            others = (
                f" and {plural(len(missing) - _SHOWN, 'more partition')}" if len(missing) > _SHOWN else ""
            )
            why = f"{reasons or 'it has not ended'}{others}"
            log.info("%s: the next interval is %s: %s", self.name, following, why)
        return CompletedIntervals(self, since, found, count > self.limit)


class CompletedIntervals(NamedTuple):
    """
    The intervals of a feed that a task emits in one run.

    :param since: the end of the last interval that was emitted before.
    :param more: whether more intervals are complete than may be emitted at once.
    """

    feed: IntervalFeed
    since: datetime
    intervals: Sequence[Interval]
    more: bool

    @property
    def end(self) -> datetime:
        """The end of the last interval that is emitted after this task."""
        return self.intervals[-1].end if self.intervals else self.since

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, for the task's result."""
        return {
            "every": self.feed.schedule.every,
            "timezone": self.feed.schedule.zone,
            "intervals": [each.as_json() for each in self.intervals],
            "complete_until": self.end.isoformat(),
            "more": self.more,
        }


def end_after_reset(times: RecordProgress, schedule: IntervalSchedule, end: datetime) -> datetime:
    """Return the end of the intervals that are still complete; ``end`` unless a position has moved back."""
    first = times.rewound_to(timestamp_ms(end))
    if first is None:
        return end
    read = schedule.containing(_moment(first)).start
    probe = schedule.containing(read).end
    while read < probe < end:
        if times.rewound_to(timestamp_ms(probe)) is not None:
            end = probe
        else:
            read = probe
        middle = schedule.containing(read + (end - read) / 2)
        probe = middle.start if middle.start > read else middle.end
    return read


def parse_moment(text: str) -> datetime:
    """Read a time with a time zone; raise a ValueError without one."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return moment


def _first_unread(times: RecordProgress) -> datetime | None:
    first = times.time
    if first is None:
        return None
    # A first record that is older than a year probably has a wrong timestamp.
    if times.now - first > 366 * 86_400_000:
        raise PlanRefusedError(
            f"the first unread record is of {iso_time(first)}, and intervals would be emitted from this time "
            "on: set start_from to a time in the first interval to emit"
        )
    return _moment(first)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
