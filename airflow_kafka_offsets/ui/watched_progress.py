"""Measures the progress of sensors' waits over the polls of open pages."""

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
"""Maximum number of waits whose history is in memory."""


class WatchedProgress:
    """
    Keeps the remaining records of waits at earlier polls, and measures like the sensors.

    :param lend: lends the client of a Kafka connection until a deadline by ``time.monotonic()``.
    """

    def __init__(self, lend: Callable[[str, float], AbstractContextManager[OffsetsClient]]) -> None:
        self._lend = lend
        self._lock = threading.Lock()
        self._histories: OrderedDict[str, ProgressHistory] = OrderedDict()

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
        self, of: object, now: float, remaining: Sequence[int], began: tuple[float, int] | None
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
