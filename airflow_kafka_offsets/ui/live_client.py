"""Asks brokers and checkpoints for all viewers together, in one child process, with a deadline."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import zlib
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS
from airflow_kafka_offsets.ui.pipelines import Pipeline
from airflow_kafka_offsets.ui.worker_process import NoAnswerError, WorkerProcess

Question = Literal["now", "batches", "times", "wait"]

DEADLINE = 10.0
"""Seconds after which there is an answer, whatever it is."""

FRESH = 5.0
"""Seconds in which an answer, also a failure, is given to everybody who asks."""

_KEPT = 32 << 20
"""Bytes of last good answers that are kept, packed: one of 2,000 partitions has a few thousand."""

_BESIDE = 1_000
"""Bytes that count for an answer besides its value."""

_WORKER = "airflow_kafka_offsets.ui.live_worker"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """
    What is known.

    :param packed: the last good answer, see :func:`pack_json`; empty if there was none yet.
    :param read_at: when that was.
    :param error: why there is no newer one, ``None`` if it is new.
    :param since: since when there is none.
    """

    packed: bytes = b""
    read_at: datetime | None = None
    error: str | None = None
    since: datetime | None = None

    @property
    def value(self) -> dict[str, Any] | None:
        """The last good answer, made from its bytes each time; ``None`` if there was none yet."""
        found: dict[str, Any] | None = json.loads(zlib.decompress(self.packed)) if self.packed else None
        return found


def pack_json(value: object) -> bytes:
    """Return plain JSON as few bytes."""
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


class LiveClient:
    """
    The answers of brokers and checkpoints.

    A question that is asked again while it is under way, or within :data:`FRESH` seconds, is asked once. The
    child process starts with the first question, and ends when nobody has asked for a while.

    :param worker: the module that the child process runs.
    :param max_bytes: bytes of answers that are kept.
    """

    def __init__(
        self,
        worker: str = _WORKER,
        deadline: float = DEADLINE,
        max_age: float = FRESH,
        max_bytes: int = _KEPT,
    ) -> None:
        self._worker = worker
        self._deadline = deadline
        self._fresh = max_age
        self._most = max_bytes
        self._lock = threading.Lock()
        self._child: WorkerProcess | None = None
        self._under_way: dict[str, Future[Answer]] = {}
        self._answers: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._bytes = 0

    def close(self) -> None:
        """End the child process."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.end()

    def warm(self) -> None:
        """Start the child process: somebody is about to ask, and hears why it cannot be started."""
        with self._lock, suppress(OSError):
            self._running()

    def ask(self, question: Question, pipeline: Pipeline, **more: Any) -> Future[Answer]:
        """
        Return the answer about a pipeline, now or within the deadline; it never is an exception.

        :param more: belongs to the question, as plain JSON.
        """
        names = {name: pipeline.names.get(name) for name in PIPELINE_PARAMETERS}
        request = {"question": question, "names": names, **more}
        key = digest(request, length=64)
        done: Future[Answer] = Future()
        done.set_running_or_notify_cancel()  # one viewer who leaves must not cancel it for the others
        if pipeline.unresolved_parameters:
            names_open = ", ".join(pipeline.unresolved_parameters)
            done.set_result(Answer(error=f"no run has rendered {names_open} yet, so there is nothing to ask"))
            return done
        with self._lock:
            at, known = self._answers.get(key, (0.0, Answer()))
            # Failures too: a broker that is away is not asked by each viewer.
            if at and time.monotonic() - at < self._fresh:
                done.set_result(known)
                return done
            if key in self._under_way:
                return self._under_way[key]
            self._under_way[key] = done
            try:
                asked = self._running().ask(request, self._deadline)
            except OSError as error:
                asked = Future()
                asked.set_exception(
                    NoAnswerError(f"the process that asks cannot be started ({error.strerror})")
                )
        asked.add_done_callback(lambda result: self._answered(key, result, done))
        return done

    def _running(self) -> WorkerProcess:
        if self._child is None or not self._child.is_usable:
            # Airflow looks connections up in its database only in a process of a server.
            environment = {**os.environ, "_AIRFLOW_PROCESS_CONTEXT": "server"}
            self._child = WorkerProcess([sys.executable, "-c", _start(self._worker)], environment)
        return self._child

    def _answered(self, key: str, result: Future[Any], done: Future[Answer]) -> None:
        now = datetime.now(tz=timezone.utc)
        failure = result.exception()
        with self._lock:
            _, before = self._answers.get(key, (0.0, Answer()))
            if failure is None and (found := result.result()).get("error") is None:
                answer = Answer(pack_json(found.get("value")), now)
            else:
                reason = str(failure) if failure is not None else str(found["error"])
                # The last good answer stays, and the page shows it in grey.
                answer = replace(before, error=reason, since=before.since or now)
            if key in self._answers:
                self._bytes -= _size(before)
            self._bytes += _size(answer)
            self._answers[key] = (time.monotonic(), answer)
            # The oldest answer goes first.
            self._answers.move_to_end(key)
            while self._bytes > self._most:
                self._bytes -= _size(self._answers.popitem(last=False)[1][1])
            self._under_way.pop(key, None)
        done.set_result(answer)


def _size(answer: Answer) -> int:
    return len(answer.packed) + _BESIDE


def _start(module: str) -> str:
    # As python -m, but what lies in the working directory is not taken for a module.
    return f"import sys; sys.path = [at for at in sys.path if at]; from {module} import main; main()"
