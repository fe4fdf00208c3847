"""The progress of waits that somebody watches: the waits of sensors, polled once more for the page."""

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
"""Waits that are remembered."""


class WatchedWaits:
    """
    Polls waits, and remembers how what remains of each falls.

    :param lend: lends the client of a Kafka connection until a time by ``time.monotonic()``.
    """

    def __init__(self, lend: Callable[[str, float], AbstractContextManager[OffsetsClient]]) -> None:
        self._lend = lend
        self._lock = threading.Lock()
        self._descents: OrderedDict[str, ProgressHistory] = OrderedDict()

    def poll(self, question: Mapping[str, Any], end: float) -> dict[str, Any]:
        """
        Poll a wait.

        :param question: ``kind``, ``parameters`` as the task has rendered them, and ``began``: when it began
            and how many records remained then, ``None`` if that is not known.
        :param end: when it has to be over.
        :return: see :class:`~airflow_kafka_offsets.ui.responses.WaitResponse`.
        """
        kind, given = WAITS[question["kind"]], question["parameters"]
        wait = kind(**{name: given[name] for name in kind.parsers if given.get(name) is not None})
        checkpoint = None
        if wait.checkpoint_location is not None:
            checkpoint = spark_checkpoint(wait.checkpoint_location, wait.checkpoint_conn_id)
        # Before the client is lent: a storage that is slow must not keep others from the broker.
        state = wait.read_checkpoint(checkpoint)
        with self._lend(wait.kafka_config_id, end) as client:
            if isinstance(wait, ReachedWait):
                wait = wait.freeze(client, checkpoint)  # leaves out what topics does; the target is given
            reading = wait.judge(client, wait.find_positions(client, state))
        descent = self._seen(question, reading.remaining)
        pace = descent.pace
        return {
            "done": reading.done,
            "moving": reading.moving,
            "remaining": reading.remaining[0] if reading.remaining else None,
            "of": None if reading.moving or not reading.remaining else descent.first,
            "pace": None if pace is None else pace.text(moving=reading.moving),
        }

    def _seen(self, question: Mapping[str, Any], remaining: tuple[int, ...]) -> ProgressHistory:
        # Each question has its own id and deadline.
        wait = {name: question[name] for name in ("kind", "parameters", "began")}
        key, now = json.dumps(wait, sort_keys=True), time.time()
        with self._lock:
            descent = self._descents.pop(key, None)
            if descent is None or descent.last is None or now - descent.last.at > _FORGOTTEN:
                descent = ProgressHistory()
                if question["began"] is not None and remaining:
                    at, amount = question["began"]
                    descent = descent.after_poll(at, (amount,) * len(remaining))
            self._descents[key] = descent = descent.after_poll(now, remaining)
            while len(self._descents) > _MOST:
                self._descents.popitem(last=False)
        return descent
