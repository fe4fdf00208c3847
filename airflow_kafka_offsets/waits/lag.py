"""A wait for lag at or below thresholds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.reader import OffsetsReader
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import Positions, TopicPartition
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, choice, parse_count, parse_seconds
from airflow_kafka_offsets.waits.wait import SHOWN, Reading, Wait, check_in_log

_TIMES_WITHIN = 2.0
"""Seconds for fetching the records that show how late a partition is: the next poll can continue."""


@dataclass(frozen=True)
class LagWait(Wait):
    """
    Wait until lag is at or below thresholds, while the log end moves.

    :param max_lag: records in all partitions together.
    :param max_partition_lag: records in each partition.
    :param max_time_lag: seconds since the oldest record that was not read was written.
    :param tolerance: a partition that is at most so many records behind counts as caught up.
    :param on_no_commit: what a partition without a commit counts as.
    """

    readers: ClassVar = {
        **Wait.readers,
        "max_lag": parse_count,
        "max_partition_lag": parse_count,
        "max_time_lag": parse_seconds,
        "tolerance": parse_count,
        "on_no_commit": choice(MissingCommitPolicy),
    }

    max_lag: int | None = None
    max_partition_lag: int | None = None
    max_time_lag: float | None = None
    tolerance: int = 0
    on_no_commit: MissingCommitPolicy = "fail"

    @classmethod
    def check(cls, given: Any) -> None:
        """Refuse parameters that are missing or contradict each other."""
        super().check(given)
        if given.max_lag is None and given.max_partition_lag is None and given.max_time_lag is None:
            raise UsageError("no threshold: give max_lag, max_partition_lag or max_time_lag")

    def judge(self, client: OffsetsReader, positions: Mapping[str, Positions]) -> Reading:
        """Measure the lag of every group or source; they count together."""
        lags = tuple(self._measure(client, name, found) for name, found in positions.items())
        if not lags:
            return self.no_batch_yet(
                total_lag=None, max_partition_lag=None, lost=None, topics={}, partitions=[]
            )
        together = Lag(
            "all",
            tuple(partition for lag in lags for partition in lag.partitions),
            self.tolerance,
            # Of two groups that read one partition, one may be late.
            None if self.max_time_lag is None else _latest(lags),
        )
        return Reading(
            together.within(self.max_lag, self.max_partition_lag),
            lambda: self._value(lags, together),
            "\n".join(lag.table(SHOWN) for lag in lags),
            news="\n".join(lag.ageless().table(SHOWN) for lag in lags),
            positions=positions,
            lags=lags,
            checkpoint=self.checkpoint_location if self.from_checkpoint else None,
            remaining=self._remaining(together),
            moving=True,
        )

    def _remaining(self, lag: Lag) -> tuple[int, ...]:
        """Return by how many records each threshold is exceeded; nothing where that is not all there is."""
        if self.max_time_lag is not None or lag.lost:
            return ()
        furthest = lag.max if lag.max > self.tolerance else 0
        limits = ((lag.counted, self.max_lag), (furthest, self.max_partition_lag))
        return tuple(max(0, found - limit) for found, limit in limits if limit is not None)

    def _value(self, lags: tuple[Lag, ...], together: Lag) -> dict[str, Any]:
        value = self.base_value(**together.as_json())
        if len(lags) > 1:
            del value["partitions"]
            value["groups"] = [{"name": lag.name, **lag.as_json()} for lag in lags]
        return value

    def _measure(self, client: OffsetsReader, name: str, positions: Positions) -> Lag:
        logs = client.log_ranges(positions, isolation_level=self.isolation_level)
        beyond = {tp: at for tp, at in positions.items() if at is not None and at > logs[tp].end}
        if beyond:
            # A position may be past the last stable offset, but not past the log end.
            committed = self.isolation_level == "read_committed"
            check_in_log(name, beyond, client.log_ranges(beyond) if committed else logs)
        named = self.topics is not None
        lag = Lag.measure(name, positions, logs, self.on_no_commit, self.tolerance, named=named)
        if self.max_time_lag is None:
            return lag
        now_ms = int(time.time() * 1000)
        limit_ms = max(0, now_ms - int(self.max_time_lag * 1000))
        behind = lag.waiting
        asked = lag.before(client.offsets_for_time(behind, limit_ms)) if behind else {}
        return lag.timed(asked, self.record_times(client, asked, _TIMES_WITHIN), now_ms, self.max_time_lag)


def _latest(lags: tuple[Lag, ...]) -> dict[TopicPartition, float | None]:
    late: dict[TopicPartition, float | None] = {}
    for lag in lags:
        for tp, seconds in (lag.late or {}).items():
            late[tp] = max(seconds or 0.0, late.get(tp) or 0.0) or None
    return late
