"""
Headroom: the time until retention deletes the oldest unread record.

A broker deletes whole segments, oldest first. It deletes a segment when ``now - largest timestamp`` exceeds
``retention.ms``. This includes the active segment, which is rolled first (Kafka 4.1, ``deletableSegments``
and ``deleteRetentionMsBreachedSegments`` of ``org.apache.kafka.storage.internals.log.UnifiedLog``;
``RemoteLogManager`` has the same rule for tiered storage).

Headroom is a lower bound, because the largest timestamp is never less than the record's timestamp. The record
is kept until the newest record of its segment has expired and the broker has checked the segment. It checks
every ``log.retention.check.interval.ms``, and with ``compact,delete`` when the cleaner (``LogCleaner``) wakes
up, every ``log.cleaner.backoff.ms``.

The record's timestamp decides. With ``message.timestamp.type=CreateTime`` the producer sets it, so it may be
in the past or in the future.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from airflow_kafka_offsets.model.offsets import LogRange, Logs, Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.parameters import duration_text

HeadroomState = Literal["lost", "unknown", "time", "none"]
"""
States of a headroom, the worst first.

``lost``: records were deleted before they were read. ``unknown``: see the reason. ``time``: the headroom is a
number of seconds. ``none``: no record is unread, or the topic keeps its records forever.
"""

CLEANUP, KEPT_FOR, KEPT_BYTES = TOPIC_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes")
"""Topic settings that decide when records are deleted."""

NO_TIME = -1
"""Kafka's timestamp of a record without a timestamp; also used for a timestamp that could not be read."""

_LONGEST = 100 * 365.25 * 86_400
"""Longest headroom, in seconds, that is shown as a number."""

_WORST_FIRST: tuple[HeadroomState, ...] = get_args(HeadroomState)


class Retention(NamedTuple):
    """How long a topic keeps its records."""

    ms: int | None = None
    """Milliseconds; ``None`` for no limit."""
    size: int | None = None
    """Bytes of a partition; ``None`` for no limit."""
    compacted: bool = False
    """Whether compaction removes records too."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, str | None]) -> Retention | str:
        """Read a topic's settings; return a reason instead if they are unknown."""
        policy = settings.get(CLEANUP)
        if policy is None:
            return f"the broker did not return {CLEANUP}"
        words = [word.strip() for word in policy.split(",")]
        if "delete" not in words:
            return cls()
        limits: list[int | None] = []
        for name in (KEPT_FOR, KEPT_BYTES):
            text = settings.get(name) or ""
            # -1 means no limit; a value that is not a number is unknown.
            if not re.fullmatch("-?[0-9]{1,19}", text):
                return f"the broker did not return {name}"
            limits.append(None if text.startswith("-") else int(text))
        return cls(limits[0], limits[1], "compact" in words)


@dataclass(frozen=True)
class Headroom:
    """
    The headroom of one partition.

    :param by_time: seconds until ``retention.ms`` expires for the oldest unread record, never below 0. If no
        record is unread: seconds until it expires for a record that is written now. ``None``: never, or
        unknown. In the state ``unknown``, an upper bound.
    :param reason: why the headroom is unknown, or a remark about it.
    :param at_least: whether ``by_time`` is only a lower bound.
    """

    state: HeadroomState
    by_time: float | None = None
    reason: str = ""
    at_least: bool = False

    @classmethod
    def measure(
        cls, position: int, log: LogRange, retention: Retention | str, time_ms: int | None, now_ms: int
    ) -> Headroom:
        """
        Return the headroom of a position in a log.

        :param retention: the topic's retention, or why it is unknown.
        :param time_ms: timestamp of the first record at or after the position; ``None`` if there is no such
            record, :data:`NO_TIME` if the timestamp is unknown.
        """
        if position < log.start:
            return cls("lost", reason="records were deleted before they were read")
        kept_for = None if isinstance(retention, str) else retention.ms
        if position >= log.end or time_ms is None:
            return cls("none", None if kept_for is None else kept_for / 1000)
        if isinstance(retention, str):
            return cls("unknown", reason=retention)
        left_ms = None if kept_for is None or time_ms < 0 else time_ms + kept_for - now_ms
        by_time = None if left_ms is None else max(0, left_ms) / 1000
        if retention.size is not None:
            reason = f"{KEPT_BYTES}={retention.size}: the size of the log may delete records earlier"
            return cls("unknown", by_time, reason)
        if kept_for is None:
            return cls("none", reason="the topic keeps its records forever")
        if by_time is None:
            return cls("unknown", reason="the time of the oldest unread record could not be read")
        reason = ""
        if time_ms > now_ms:
            reason = (
                "the oldest unread record has a timestamp in the future, and is kept until that timestamp "
                "has expired"
            )
        elif by_time == 0:
            reason = "expired: deleted as soon as the newest record of its segment has expired too"
        return cls("time", by_time, reason)

    def with_verdict(self, min_headroom: float, retention: Retention, *, enough: bool) -> Headroom:
        """Return a headroom of unknown size that is, or is not, ``enough`` for ``min_headroom`` seconds."""
        if not enough:
            return replace(
                self,
                # The verdict needs a number, but only "below the threshold" is known: use a millisecond less.
                by_time=max(0.0, min_headroom - 0.001),
                reason=f"less than {duration_text(min_headroom)}: {self.reason}",
            )
        if retention.size is not None:
            return self
        return Headroom(
            "time", min_headroom, f"at least {duration_text(min_headroom)}: {self.reason}", at_least=True
        )

    @property
    def seconds(self) -> float | None:
        """The headroom in seconds, 0 if records are lost; ``None`` in the states ``unknown`` and ``none``."""
        return 0.0 if self.state == "lost" else self.by_time if self.state == "time" else None

    @property
    def at_most(self) -> float | None:
        """The headroom in seconds, or an upper bound in the state ``unknown``."""
        return self.by_time if self.state == "unknown" else self.seconds

    def is_below(self, min_headroom: float) -> bool | None:
        """Return whether the headroom is less than ``min_headroom`` seconds; ``None`` if unknown."""
        if self.state in ("lost", "none"):
            return self.state == "lost"
        # retention.bytes can only shorten the headroom.
        if self.by_time is not None and self.by_time < min_headroom:
            return True
        return None if self.state == "unknown" else False

    def as_json(self) -> dict[str, Any]:
        """Return ``headroom`` in seconds, ``headroom_state`` and ``headroom_reason``."""
        return {
            "headroom": self.seconds,
            "headroom_state": self.state,
            "headroom_reason": self.reason or None,
        }

    def __str__(self) -> str:
        if self.state == "time":
            # A producer may write any timestamp, such as one in microseconds.
            text = duration_text(self.by_time or 0) if (self.by_time or 0) <= _LONGEST else ">100 y"
            return f">{text}" if self.at_least and text[0] != ">" else text
        return "-" if self.state == "none" else self.state


Headrooms = Mapping[TopicPartition, Headroom]

NO_HEADROOM: dict[str, Any] = dict.fromkeys(("headroom", "headroom_state", "headroom_reason"))
"""JSON of a partition without a position, which has no headroom."""


def positions_needing_time(
    positions: Offsets, logs: Logs, retentions: Mapping[str, Retention | str]
) -> Offsets:
    """Return the positions whose headroom depends on the timestamp of the next record."""
    return {
        tp: position
        for tp, position in positions.items()
        if logs[tp].start <= position < logs[tp].end
        and isinstance(retention := retentions[tp.topic], Retention)
        and retention.ms is not None
    }


def measure_headrooms(
    positions: Offsets,
    logs: Logs,
    retentions: Mapping[str, Retention | str],
    times: Mapping[TopicPartition, int | None],
    now_ms: int,
) -> dict[TopicPartition, Headroom]:
    """Return the headroom of each position; ``times`` lacks the records whose timestamp is unknown."""
    return {
        tp: Headroom.measure(position, logs[tp], retentions[tp.topic], times.get(tp, NO_TIME), now_ms)
        for tp, position in sorted(positions.items())
    }


def partitions_without_verdict(
    headrooms: Headrooms, retentions: Mapping[str, Retention | str]
) -> dict[Retention, list[TopicPartition]]:
    """
    Return partitions whose oldest unread record has no known timestamp, but where a lookup by time can
    decide.

    Retention deletes segments from the oldest to the first segment that has not expired. So a record that is
    new enough, at or before the position, protects all records after it, whatever their timestamps. Without
    a record that is new enough, the next record is too old. With compaction neither is certain, because
    compaction may also remove the protecting record.
    """
    found: dict[Retention, list[TopicPartition]] = {}
    for tp, headroom in headrooms.items():
        kept = retentions[tp.topic]
        if isinstance(kept, str) or kept.ms is None or kept.compacted:
            continue
        if headroom.state == "unknown" and headroom.by_time is None:
            found.setdefault(kept, []).append(tp)
    return found


def topic_gauges(headrooms: Iterable[tuple[TopicPartition, Headroom]]) -> dict[str, float]:
    """
    Return the lowest value among each topic's partitions, for a metric: the headroom, or that of a record
    written now if no record is unread.

    A topic with an unknown or estimated partition is left out, because that partition may be lower and the
    value would jump. A topic whose lowest value is 0 is always included.
    """
    gauges: dict[str, float] = {}
    unknown: set[str] = set()
    for tp, found in headrooms:
        if found.state == "unknown" or found.at_least:
            unknown.add(tp.topic)
        elif (value := found.by_time if found.state == "none" else found.seconds) is not None:
            gauges[tp.topic] = min(value, gauges.get(tp.topic, value))
    return {topic: least for topic, least in gauges.items() if topic not in unknown or not least}


def headrooms_json(headrooms: Collection[Headroom]) -> dict[str, Any]:
    """Return ``headroom``, the lowest known headroom in seconds, and ``headroom_state``, the worst state."""
    worst = min((found.state for found in headrooms), key=_WORST_FIRST.index, default=None)
    known = (found.seconds for found in headrooms if found.seconds is not None)
    return {"headroom": min(known, default=None), "headroom_state": worst}


def reason_lines(headrooms: Headrooms) -> list[str]:
    """Return a line for each reason that explains an unknown or a measured headroom."""
    reasons: dict[tuple[str, str], list[TopicPartition]] = {}
    for tp, found in headrooms.items():
        if found.reason and found.state in ("unknown", "time"):
            what = " is unknown" if found.state == "unknown" else ""
            reasons.setdefault((what, found.reason), []).append(tp)
    return [f"headroom of {summarize(tps, limit=3)}{what}: {why}" for (what, why), tps in reasons.items()]
