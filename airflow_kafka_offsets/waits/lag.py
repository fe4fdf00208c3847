"""A wait for lag at or below thresholds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_kafka_offsets.annotation_types import OffsetsReader
from airflow_kafka_offsets.errors import NoCommitError, UsageError
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import Positions
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    choice_parser,
    duration_text,
    parse_count,
    parse_interval,
    parse_seconds,
)
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.positions import check_in_log
from airflow_kafka_offsets.readings.retention import read_headrooms
from airflow_kafka_offsets.readings.topic_times import AHEAD
from airflow_kafka_offsets.waits.wait import SHOWN, Reading, Wait, unknown_groups_text

THRESHOLDS = ("max_lag", "max_partition_lag", "max_time_lag", "min_headroom")


@dataclass(frozen=True)
class LagWait(Wait):
    """
    Wait until lag is at or below thresholds, while the log end moves.

    The parameters are those of :class:`~airflow_kafka_offsets.sensors.lag.ConsumerGroupLagSensor`; durations
    are seconds.
    """

    parsers: ClassVar = {
        **Wait.parsers,
        "max_lag": parse_count,
        "max_partition_lag": parse_count,
        "max_time_lag": parse_seconds,
        "min_headroom": parse_interval,
        "tolerance": parse_count,
        "on_no_commit": choice_parser(MissingCommitPolicy),
    }

    max_lag: int | None = None
    max_partition_lag: int | None = None
    max_time_lag: float | None = None
    min_headroom: float | None = None
    tolerance: int = 0
    on_no_commit: MissingCommitPolicy = "fail"

    @classmethod
    def check_parameters(cls, parameters: Any) -> None:
        """Refuse parameters that are missing or contradict each other."""
        super().check_parameters(parameters)
        if all(getattr(parameters, threshold) is None for threshold in THRESHOLDS):
            *others, last = map(parameter_text, THRESHOLDS)
            raise UsageError(f"no threshold: give {', '.join(others)} or {last}")

    def judge(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> Reading:
        """Measure the lag of every group or source, and compare the total with the thresholds."""
        lags = tuple(self._measure(client, name, found) for name, found in positions.items())
        if not lags:
            return self.reading_without_batch(
                total_lag=None, max_partition_lag=None, lost=None, topics={}, partitions=[]
            )
        if all(partition.lag is None for lag in lags for partition in lag.partitions):
            raise NoCommitError(
                f"{', '.join(lag.name for lag in lags)} has no committed offset, so with "
                f"{parameter_text('on_no_commit', 'skip')} no partition is left to measure: correct the name "
                "of the group, or commit first"
            )
        together = Lag(
            "all",
            tuple(partition for lag in lags for partition in lag.partitions),
            self.tolerance,
            has_time_lags=self.max_time_lag is not None,
            has_headroom=self.min_headroom is not None,
        )
        within = together.is_within(self.max_lag, self.max_partition_lag)
        unknown = self._unknown(client, positions) if within else ""
        # The table shows the current values, and the last line the thresholds.
        last = [unknown or f"the wait ends at {self._thresholds}"] if unknown or not within else []
        return Reading(
            within and not unknown,
            lambda: self._value(lags, together),
            "\n".join([*(lag.table(SHOWN) for lag in lags), *last]),
            news="\n".join([*(lag.table(SHOWN, durations=False) for lag in lags), *last]),
            positions=positions,
            lags=lags,
            checkpoint=self.checkpoint_location if self.position_is_checkpoint else None,
            remaining=self._remaining(together),
            moving=True,
            unknown=unknown,
        )

    @property
    def _thresholds(self) -> str:
        """The given thresholds, with their parameters."""
        given = {name: value for name in THRESHOLDS if (value := getattr(self, name)) is not None}
        return ", ".join(
            parameter_text(name, value)
            if isinstance(value, int)
            else f"{parameter_text(name)} {duration_text(value)}"
            for name, value in given.items()
        )

    def _unknown(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> str:
        """
        Return why the wait continues although the thresholds hold: a group has no commit at all.

        With ``earliest`` the lag of such a group is the whole log, so the thresholds are a valid result.

        :raises NoCommitError: unless ``on_no_commit`` defines the position of a group before its first
            commit.
        """
        groups = [] if self.on_no_commit == "earliest" else self.groups_without_commits(client, positions)
        if groups and self.on_no_commit != "latest":
            raise NoCommitError(
                f"{', '.join(groups)} has no committed offset on this broker, so its lag is undefined: "
                "correct the name of the group, or commit first"
            )
        return unknown_groups_text(groups)

    def _remaining(self, lag: Lag) -> tuple[int, ...]:
        """Return the number of records above each threshold; empty if other conditions apply too."""
        if self.max_time_lag is not None or self.min_headroom is not None or lag.lost:
            return ()
        return lag.above(self.max_lag, self.max_partition_lag)

    def _value(self, lags: tuple[Lag, ...], together: Lag) -> dict[str, Any]:
        value = self.base_json(**together.as_json())
        if len(lags) > 1:
            del value["partitions"]
            value["groups"] = [{"name": lag.name, **lag.as_json()} for lag in lags]
        return value

    def _measure(self, client: OffsetsReader, name: str, positions: Positions) -> Lag:
        logs = client.log_ranges(positions, isolation_level=self.isolation_level)
        check_in_log(client, name, positions, logs)
        lag = Lag.measure(name, positions, logs, self.on_no_commit, self.tolerance)
        if (least := self.min_headroom) is not None:
            read_up_to = lag.counted_positions
            # Retention also deletes uncommitted records.
            whole = client.log_ranges(read_up_to) if self.isolation_level == "read_committed" else logs
            found = read_headrooms(client, read_up_to, whole, min_headroom=least)
            lag = lag.with_headroom(found, least)
        return lag if self.max_time_lag is None else self._with_time_lags(client, lag, self.max_time_lag)

    def _with_time_lags(self, client: OffsetsReader, lag: Lag, limit: float) -> Lag:
        """
        Add the time lag of the partitions that have not been read up to ``limit`` seconds ago.

        A lookup by time finds markers too, and a log may have no record at the position. So the next record
        decides: if none follows, or if it is new enough, the partition is not late.
        """
        now_ms = int(time.time() * 1000)
        unread = lag.first_unread
        times = client.record_times(unread, isolation_level=self.isolation_level)
        ages = {tp: (now_ms - at) / 1000 for tp, at in times.items() if at is not None}
        # A record ahead of the clock says nothing about those behind it; or this clock is behind.
        late = {tp: age if age > 0 else None for tp, age in ages.items() if not -AHEAD / 1000 <= age <= limit}
        # Not read in time. If all records before the limit are read by their times, it is not late.
        unknown = unread.keys() - times.keys()
        new = client.offsets_for_time(unknown, max(0, now_ms - int(limit * 1000)))
        late |= {tp: None for tp in unknown if (first := new[tp]) is None or unread[tp] < first}
        return lag.with_time_lags(late)
