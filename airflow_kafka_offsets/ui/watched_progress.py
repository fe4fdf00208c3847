"""Measures the rates of pipelines and the progress of sensors' waits, over the polls of open pages."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.model.pace import ProgressHistory
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.wait import Wait

WAITS: Mapping[str, type[Wait]] = {"lag": LagWait, "reached": ReachedWait}

_FORGOTTEN = 120.0
"""Seconds without a viewer after which progress is measured again."""

_MOST = 2_000
"""Maximum number of histories in memory: one of a wait, three of a pipeline."""


class WatchedProgress:
    """
    Keeps the remaining records of waits and pipelines at earlier polls, and measures like the sensors.

    :param lend: lends the client of a Kafka connection until a deadline by ``time.monotonic()``.
    """

    def __init__(self, lend: Callable[[str, float], AbstractContextManager[OffsetsClient]]) -> None:
        self._lend = lend
        self._lock = threading.Lock()
        self._histories: OrderedDict[str, ProgressHistory] = OrderedDict()

    def rates(self, names: Mapping[str, Any], reading: Mapping[str, Any]) -> dict[str, float | None]:
        """
        Note a reading of a pipeline.

        :param names: the names of the pipeline, and the servers of its cluster.
        :return: records per second: written (``records_in``), read (``records_out``) and decrease of the lag
            (``lag_falls``), and ``seconds_left`` until the lag is 0. Unknown values are ``None``.
        """
        partitions = reading["partitions"]
        remaining = {
            # A rising position is measured as a falling remainder.
            "records_in": _negative(partitions["log_end"]),
            "records_out": _negative(partitions["committed"]),
            # Measured like a sensor that waits for max_lag=0 and max_partition_lag=0.
            "lag_falls": _remaining(partitions),
        }
        # Sums over other partitions are not continued.
        key, now = [names, reading["totals"]["over"]], time.time()
        paces = {name: self._add_poll([*key, name], now, each).pace for name, each in remaining.items()}
        known = {name: pace.as_json() for name, pace in paces.items() if pace is not None}
        return {
            **{name: known[name]["records_per_second"] if name in known else None for name in paces},
            "seconds_left": known["lag_falls"]["seconds_left"] if "lag_falls" in known else None,
        }

    def poll_wait(self, question: Mapping[str, Any], end: float) -> dict[str, Any]:
        """
        Poll a wait again for the page.

        :param question: ``kind``, ``parameters`` as the task has rendered them, and ``began``: when the wait
            began and how many records remained then, ``None`` if unknown.
        :return: ``done``; ``moving``, whether the target moves like the log end; the ``remaining`` records,
            their number at the beginning (``of``), and the ``pace`` as text, each ``None`` if unknown.
        """
        kind, given = WAITS[question["kind"]], question["parameters"]
        wait = kind(**{name: given[name] for name in kind.parsers if given.get(name) is not None})
        checkpoint = None
        if wait.checkpoint_location is not None:
            checkpoint = spark_checkpoint(wait.checkpoint_location, wait.checkpoint_conn_id)
        # Read before the client is lent, so that slow storage does not block other requests to the broker.
        state = wait.read_checkpoint(checkpoint)
        with self._lend(wait.kafka_config_id, end) as client:
            if isinstance(wait, ReachedWait):
                wait = wait.freeze(client, checkpoint)  # limits the given target to topics
            positions = wait.find_positions(client, state)
            reading = wait.judge(client, positions)
            if reading.done:
                wait.check_topics(client, state, positions)
        # Without the id and deadline, which differ in each request.
        key = {name: question[name] for name in ("kind", "parameters", "began")}
        history = self._add_poll(key, time.time(), reading.remaining, question["began"])
        pace = history.pace
        return {
            "done": reading.done,
            "moving": reading.moving,
            "remaining": reading.remaining[0] if reading.remaining else None,
            "of": None if reading.moving or not reading.remaining else history.first,
            "pace": None if pace is None else pace.text(moving=reading.moving),
        }

    def _add_poll(
        self, of: object, now: float, remaining: Sequence[int], began: tuple[float, int] | None = None
    ) -> ProgressHistory:
        key = json.dumps(of, sort_keys=True)
        with self._lock:
            history = self._histories.pop(key, ProgressHistory())
            if history.last is None or now - history.last.at > _FORGOTTEN:
                history = ProgressHistory()
                if began is not None and remaining:
                    at, amount = began
                    history = history.after_poll(at, (amount,) * len(remaining))
            self._histories[key] = history = history.after_poll(now, remaining)
            while len(self._histories) > _MOST:
                self._histories.popitem(last=False)
        return history


def _remaining(partitions: Mapping[str, Any]) -> tuple[int, ...]:
    lags: Sequence[int | None] = partitions["lag"]
    known = [lag for lag in lags if lag is not None]
    lost = "lost" in partitions["headroom_state"]
    return () if lost or not known or len(known) < len(lags) else (sum(known), max(known))


def _negative(positions: Sequence[int | None]) -> tuple[int, ...]:
    known = [position for position in positions if position is not None]
    return (-sum(known),) if known and len(known) == len(positions) else ()
