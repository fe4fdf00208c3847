"""Reads from brokers and checkpoints for all viewers in one child process, with a deadline."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Literal

from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS
from airflow_kafka_offsets.ui.airflow_api import run_in_thread
from airflow_kafka_offsets.ui.pipelines import PipelineNames, unresolved
from airflow_kafka_offsets.ui.single_flight_cache import SingleFlightCache
from airflow_kafka_offsets.ui.worker_process import WorkerProcess

Question = Literal["now", "batches", "times", "wait"]

DEADLINE = 10.0
"""Seconds after which a request has an answer or a failure."""

FRESH = 5.0
"""Seconds for which all viewers share an answer or a failure."""

KEPT = 32 << 20
"""Maximum bytes of the last good answers, compressed: 2,000 partitions take a few thousand."""

_BESIDE = 1_000
"""Bytes that an answer takes in addition to its value."""

WORKER = "airflow_kafka_offsets.ui.live_worker"


@dataclass(frozen=True)
class Answer:
    """
    The last good answer to a request, and the error of a newer one.

    :param packed: the last good answer, see :func:`pack_json`; empty before the first one.
    :param read_at: when the last good answer was read.
    :param error: why there is no newer answer; ``None`` if the answer is new.
    :param since: when the requests began to fail.
    """

    packed: bytes = b""
    read_at: datetime | None = None
    error: str | None = None
    since: datetime | None = None

    @property
    def value(self) -> dict[str, Any] | None:
        """The last good answer, parsed from its bytes each time; ``None`` before the first one."""
        found: dict[str, Any] | None = json.loads(zlib.decompress(self.packed)) if self.packed else None
        return found


def pack_json(value: object) -> bytes:
    """Return plain JSON as compressed bytes; half of a surrogate pair becomes a question mark."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return zlib.compress(text.encode(errors="replace"), 1)


class LiveClient:
    """
    Client of the child process that reads from brokers and checkpoints.

    Equal requests at the same time, or within :data:`FRESH` seconds, are made once. Failures are shared too,
    so that an unreachable broker is not called for each viewer. The child process starts with the first
    request, and ends after some time without requests.
    """

    def __init__(self) -> None:
        self._child: WorkerProcess | None = None
        self._answers: SingleFlightCache[str, Answer] = SingleFlightCache(
            FRESH, KEPT, lambda answer: len(answer.packed) + _BESIDE
        )

    def close(self) -> None:
        """End the child process."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    async def ask(self, question: Question, names: PipelineNames, **more: Any) -> Answer:
        """Return the answer about a pipeline within the deadline; an error is part of the answer."""
        if unknown := ", ".join(unresolved(names)):
            return Answer(error=f"no run has rendered {unknown} yet, or Airflow has cut it off or masked it")
        of = {name: names.get(name) for name in PIPELINE_PARAMETERS}
        request = {"question": question, "names": of, **more}
        # A receipt may have tens of thousands of partitions.
        key = await run_in_thread(partial(digest, request, length=64)) if more else digest(request, length=64)
        return await self._answers.get(key, lambda: self._read(key, request))

    async def _read(self, key: str, request: Mapping[str, Any]) -> Answer:
        try:
            found = await self._running().ask(request, DEADLINE)
        except OSError as error:  # the system has no process left
            self.close()
            found = {"error": f"the process that reads from Kafka cannot be started ({error.strerror})"}
        now = datetime.now(tz=timezone.utc)
        if found.get("error") is None:
            return Answer(await run_in_thread(pack_json, found.get("value")), now)
        # The last good answer is kept, and the page shows it in grey.
        before = self._answers.get_known(key, math.inf) or Answer()
        return replace(before, error=str(found["error"]), since=before.since or now)

    def _running(self) -> WorkerProcess:
        if self._child is None or not (self._child.is_usable or self._child.failed_lately):
            # Airflow reads connections from its database only in a server process.
            environment = {**os.environ, "_AIRFLOW_PROCESS_CONTEXT": "server"}
            self._child = WorkerProcess(WORKER, environment)
        return self._child
