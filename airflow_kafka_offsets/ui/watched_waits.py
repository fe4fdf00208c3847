"""Measures the progress of sensors' waits while a page is open: the waits are polled again for the page."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.model.pace import ProgressHistory
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.wait import Wait

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

WAITS: Mapping[str, type[Wait]] = {"lag": LagWait, "reached": ReachedWait}

_FORGOTTEN = 120.0
"""Seconds without a viewer after which a wait's pace is measured again."""

_MOST = 500
"""Maximum number of waits in memory."""


class WatchedWaits:
    """
    Polls waits, and keeps the history of the remaining records of each wait.

    :param lend: lends the client of a Kafka connection until a deadline by ``time.monotonic()``.
    """

    def __init__(self, lend: Callable[[str, float], AbstractContextManager[OffsetsClient]]) -> None:
        self._lend = lend
        self._lock = threading.Lock()
        self._histories: OrderedDict[str, ProgressHistory] = OrderedDict()

    def poll(self, question: Mapping[str, Any], end: float) -> dict[str, Any]:
        """
        Poll a wait.

        :param question: ``kind``, ``parameters`` as the task has rendered them, and ``began``: when the wait
            began and how many records remained then, ``None`` if unknown.
        :param end: deadline of the poll.
        :return: see :class:`~airflow_kafka_offsets.ui.responses.WaitResponse`.
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
            reading = wait.judge(client, wait.find_positions(client, state))
        history = self._add_poll(question, reading.remaining)
        pace = history.pace
        return {
            "done": reading.done,
            "moving": reading.moving,
            "remaining": reading.remaining[0] if reading.remaining else None,
            "of": None if reading.moving or not reading.remaining else history.first,
            "pace": None if pace is None else pace.text(moving=reading.moving),
        }

    def _add_poll(self, question: Mapping[str, Any], remaining: tuple[int, ...]) -> ProgressHistory:
        # Without the id and deadline, which differ in each request.
        wait = {name: question[name] for name in ("kind", "parameters", "began")}
        key, now = json.dumps(wait, sort_keys=True), time.time()
        with self._lock:
            history = self._histories.pop(key, None)
            if history is None or history.last is None or now - history.last.at > _FORGOTTEN:
                history = ProgressHistory()
                if question["began"] is not None and remaining:
                    at, amount = question["began"]
                    history = history.after_poll(at, (amount,) * len(remaining))
            self._histories[key] = history = history.after_poll(now, remaining)
            while len(self._histories) > _MOST:
                self._histories.popitem(last=False)
        return history
