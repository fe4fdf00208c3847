"""Measures how fast records are written and read, over the polls of open pages."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_kafka_offsets.model.pace import ProgressHistory

_FORGOTTEN = 120.0
"""Seconds without a viewer after which the rates are measured again."""

_MOST = 500
"""Maximum number of pipelines in memory."""


@dataclass(frozen=True)
class _Watched:
    """The polls of one pipeline."""

    over: str | None
    at: float
    lag: ProgressHistory = field(default_factory=ProgressHistory)
    written: ProgressHistory = field(default_factory=ProgressHistory)
    read: ProgressHistory = field(default_factory=ProgressHistory)


class WatchedRates:
    """
    Keeps earlier positions of pipelines, and measures rates like the sensors.

    :param clock: function that returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._watched: OrderedDict[str, _Watched] = OrderedDict()

    def after_reading(self, key: str, reading: Mapping[str, Any]) -> dict[str, float | None]:
        """
        Note a reading of a pipeline.

        :return: records per second: written (``records_in``), read (``records_out``) and decrease of the lag
            (``lag_falls``), and ``seconds_left`` until the lag is 0. Unknown values are ``None``.
        """
        partitions, over, now = reading["partitions"], reading["totals"]["over"], self._clock()
        with self._lock:
            before = self._watched.pop(key, None)
            if before is None or before.over != over or now - before.at > _FORGOTTEN:
                before = _Watched(over, now)
            watched = _Watched(
                over,
                now,
                # Measured like a sensor that waits for max_lag=0 and max_partition_lag=0.
                before.lag.after_poll(now, _remaining(partitions)),
                # A rising position is measured as a falling remainder.
                before.written.after_poll(now, _negative(partitions["log_end"])),
                before.read.after_poll(now, _negative(partitions["committed"])),
            )
            self._watched[key] = watched
            while len(self._watched) > _MOST:
                self._watched.popitem(last=False)
        pace = watched.lag.pace
        return {
            "records_in": _rate(watched.written),
            "records_out": _rate(watched.read),
            "lag_falls": _rate(watched.lag),
            "seconds_left": None if pace is None or pace.seconds is None else round(pace.seconds),
        }


def _remaining(partitions: Mapping[str, Any]) -> tuple[int, ...]:
    lags: Sequence[int | None] = partitions["lag"]
    known = [lag for lag in lags if lag is not None]
    lost = "lost" in partitions["headroom_state"]
    return () if lost or not known or len(known) < len(lags) else (sum(known), max(known))


def _negative(positions: Sequence[int | None]) -> tuple[int, ...]:
    known = [position for position in positions if position is not None]
    return (-sum(known),) if known and len(known) == len(positions) else ()


def _rate(descent: ProgressHistory) -> float | None:
    pace = descent.pace
    return None if pace is None else float(f"{pace.rate:.3g}")
