"""
Estimates of a replay: records that the query reads again, the time it takes, and records lost meanwhile.

A number that cannot be estimated is missing, with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import StatisticsError, correlation, fmean, linear_regression, stdev
from typing import Any, Literal, NamedTuple

from airflow_kafka_offsets.model.headroom import Headrooms, Retention
from airflow_kafka_offsets.model.pace import estimate_text
from airflow_kafka_offsets.model.parameters import duration_text
from airflow_kafka_offsets.model.plan import PartitionMove
from airflow_kafka_offsets.model.text import plural

ENOUGH_BATCHES = 4
"""Least number of finished batches with records that a pace needs."""

_UNEVEN = 3.0
"""Highest allowed ratio between the fastest and the slowest pace of the largest batches."""

_LARGEST = 4
"""One in this many batches counts as one of the largest."""

_FITS = 0.5
"""Least share of the variation of durations that the line through the batches must explain (R squared)."""

_MOST_ERROR = 0.5
"""Largest standard error of the mean size of a record, as a share of the mean."""


class FinishedBatch(NamedTuple):
    """The number of records and the duration of a finished batch."""

    records: int
    seconds: float


class Between(NamedTuple):
    """An estimated range of a number."""

    least: float
    most: float


RetentionVerdict = Literal["kept", "at risk", "lost", "unknown"]


@dataclass(frozen=True)
class Estimate:
    """
    The consequences of a move for the query or the consumers that continue from its targets.

    Records are differences of offsets: transaction markers and compacted records count too.

    :param records_passed: records that are skipped, and never read.
    :param lag: records from the targets to the log ends; ``partition_lag`` is the highest one of a partition.
    :param time_lag: seconds since the oldest record at a target was written.
    :param bytes: uncompressed size of the records up to the log ends; ``None`` if unknown, see ``reasons``.
    :param seconds: time to read these records, without new ones.
    :param begin_within: seconds until retention reaches the oldest record that is read.
    :param reasons: name of a number -> reason why it is missing, or a remark about it.
    """

    records_again: int
    records_passed: int
    lag: int
    partition_lag: int
    time_lag: float | None = None
    bytes: int | None = None
    seconds: Between | None = None
    begin_within: float | None = None
    retention: RetentionVerdict = "unknown"
    reasons: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON with rounded numbers."""
        seconds = None if self.seconds is None else [round(each, 1) for each in self.seconds]
        return {
            **asdict(self),
            "seconds": seconds,
            "time_lag": None if self.time_lag is None else round(self.time_lag),
            "begin_within": None if self.begin_within is None else round(self.begin_within),
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Estimate:
        """Read the result of :meth:`as_json`."""
        known = {each.name: value[each.name] for each in fields(cls) if each.name in value}
        seconds = value.get("seconds")
        return cls(**{**known, "seconds": None if seconds is None else Between(*seconds)})

    def duration(self) -> str:
        """Return how long reading takes, as text."""
        if self.seconds is None:
            return f"time unknown: {self.reasons.get('seconds', 'there is no history')}"
        least, most = (estimate_text(each) for each in self.seconds)
        return least if least == most else f"{least} to {most}"

    def volume(self) -> str:
        """Return the records and bytes to read, as text."""
        records = plural(self.lag, "record")
        return records if self.bytes is None else f"{records}, about {bytes_text(self.bytes)} by a sample"

    def retention_text(self) -> str:
        """Return whether retention deletes records meanwhile, as text."""
        left = "" if self.begin_within is None else duration_text(self.begin_within)
        match self.retention:
            case "lost":
                return "records are lost: retention has deleted them"
            case "at risk":
                slow = "at risk: reading takes longer than the topic keeps records"
                return f"{slow}; begin within {left}" if left else slow
            case "kept":
                return f"kept until they are read; begin within {left}" if left else "kept"
        return f"begin within {left}" if left else f"unknown: {self.reasons.get('retention', 'no answer')}"


def measure_move(moves: Collection[PartitionMove]) -> Estimate:
    """Count the records of a move of the query, or of the group without a checkpoint."""
    changes = [move.after - move.before for move in moves if move.before is not None]
    lags = [move.log.lag(move.after) for move in moves]
    return Estimate(
        records_again=sum(max(0, -change) for change in changes),
        records_passed=sum(max(0, change) for change in changes),
        lag=sum(lags),
        partition_lag=max(lags, default=0),
    )


def replay_seconds(records: int, batches: Sequence[FinishedBatch]) -> Between | str:
    """
    Return the time that a query needs to read a number of records, or the reason why it is unknown.

    A batch takes a constant time, and more for each record. The lower bound is one batch with all records: on
    a straight line through the finished batches if their sizes differ enough, else the mean time of the
    largest batches. The upper bound is the time at the pace of the largest batches.
    """
    known = [batch for batch in batches if batch.records > 0 and batch.seconds > 0]
    if len(known) < ENOUGH_BATCHES:
        return f"the checkpoint has {len(known)} of {ENOUGH_BATCHES} needed batches with records and times"
    if not records:
        return Between(0.0, 0.0)
    known.sort(key=lambda batch: batch.records)
    largest = known[-max(2, len(known) // _LARGEST) :]
    paces = [batch.records / batch.seconds for batch in largest]
    if max(paces) > _UNEVEN * min(paces):
        slow, fast = min(paces), max(paces)
        return f"the paces of large batches differ too much: {slow:,.0f} to {fast:,.0f} records a second"
    most = records * sum(batch.seconds for batch in largest) / sum(batch.records for batch in largest)
    least = _one_batch(records, known)
    if least is None and records >= fmean([batch.records for batch in largest]):
        least = fmean([batch.seconds for batch in largest])
    return Between(most if least is None else min(least, most), most)


def _one_batch(records: int, batches: Sequence[FinishedBatch]) -> float | None:
    """Return the seconds of one batch, from a line through the others; ``None`` if no line fits them."""
    sizes = [batch.records for batch in batches]
    times = [batch.seconds for batch in batches]
    try:
        slope, base = linear_regression(sizes, times)
        fits = correlation(sizes, times) ** 2 >= _FITS
    except StatisticsError:  # all sizes or all times are equal
        return None
    return base + slope * records if slope > 0 and base >= 0 and fits else None


def mean_size(samples: Sequence[Sequence[int]]) -> float | str:
    """Return the mean size of a record from samples at several offsets, or why it is unknown."""
    means = [fmean(sizes) for sizes in samples if sizes]
    if not means:
        return "no record could be read"
    mean = fmean(means)
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    if error > _MOST_ERROR * mean:
        return f"records differ too much in size: {min(means):,.0f} to {max(means):,.0f} bytes on average"
    return mean


def judge_retention(
    headrooms: Headrooms, retentions: Mapping[str, Retention | str], seconds: Between | None
) -> tuple[RetentionVerdict, float | None, str]:
    """
    Judge whether retention deletes records before a replay reads them.

    The replay reads the oldest records first. Its last records are written now, and are kept for the whole
    retention. So a replay that starts in time, and is faster than the retention, loses no records.

    :return: the verdict, the seconds until the first record is deleted, and the reason for ``unknown``.
    """
    found = list(headrooms.values())
    if any(each.state == "lost" for each in found):
        return "lost", 0.0, ""
    times = [each.by_time for each in found if each.state in ("time", "unknown") and each.by_time is not None]
    within = min(times, default=None)
    unknown = next((each.reason for each in found if each.state == "unknown"), "")
    if unknown:
        return "unknown", within, unknown
    kept_for = [
        each.ms / 1000 for each in retentions.values() if not isinstance(each, str) and each.ms is not None
    ]
    if within is None or not kept_for:
        return "kept", None, ""
    if within <= 0:
        return "at risk", within, ""
    if seconds is None:
        return "unknown", within, "the duration of the replay is unknown"
    return ("kept" if seconds.most <= min(kept_for) else "at risk"), within, ""


def bytes_text(size: float) -> str:
    """Return a number of bytes with the largest unit in which it is at least 1: ``3.1 MB``."""
    units = ("B", "kB", "MB", "GB", "TB")
    number = 0
    while size >= 1_000 and number < len(units) - 1:
        size, number = size / 1_000, number + 1
    return f"{size:,.0f} {units[number]}" if size >= 10 or not number else f"{size:.1f} {units[number]}"
