"""The child process: opens the pipelines' connections, and asks brokers and storages."""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.checkpoint.history import Batch, batches
from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerUnavailableError,
    ClientCrashedError,
    KafkaOffsetsError,
)
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.ui.now import PipelineNow

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

_IDLE = 900.0
"""Seconds without a question after which the process ends."""

_AT_ONCE = 8
_CALL = 3.0
"""Seconds for each call to a broker."""

_SHUT = 8.0
"""Seconds in which a broker that did not answer is not asked again."""

_MARGIN = 1.0
"""Seconds before the end of its time at which a question gives up."""

_WATCH = 5.0


class Cluster:
    """
    The client of one Kafka connection, which one question uses at a time.

    While it does not answer, those that wait for it fail at once.
    """

    def __init__(self, kafka_config_id: str) -> None:
        self._kafka_config_id = kafka_config_id
        self._lock = threading.Lock()
        self._client: OffsetsClient | None = None
        self._shut_until = 0.0
        self._failure = ""

    @contextmanager
    def client(self, end: float) -> Iterator[OffsetsClient]:
        """Lend the client; it is made again after a failure, since the connection may have been corrected."""
        if not self._lock.acquire(timeout=max(0.0, end - time.monotonic())):
            raise BrokerUnavailableError("other questions to the broker took all of the time")
        try:
            if time.monotonic() < self._shut_until:
                raise BrokerUnavailableError(self._failure)
            if self._client is None:
                self._client = KafkaOffsetsHook(self._kafka_config_id, timeout=_CALL).get_offsets_client()
            try:
                yield self._client
            except (BrokerUnavailableError, BrokerAuthenticationError, ClientCrashedError) as error:
                self._shut_until, self._failure = time.monotonic() + _SHUT, str(error)
                client, self._client = self._client, None
                threading.Thread(target=client.close, daemon=True).start()
                raise
        finally:
            self._lock.release()


class LiveWorker:
    """Answers questions, several at once."""

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}
        self._lock = threading.Lock()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question, or one sentence that says why there is none."""
        names = request["names"]
        try:
            if time.monotonic() > request["end"]:
                raise BrokerUnavailableError("other questions took all of the time")
            ask = {"now": self._now, "batches": self._batches}[request["question"]]
            return {"id": request["id"], "value": ask(names, request["end"])}
        except KafkaOffsetsError as error:
            return {"id": request["id"], "error": sentence(error, names)}
        except Exception as error:  # noqa: BLE001  # its text may hold anything
            return {"id": request["id"], "error": f"reading failed ({type(error).__name__})"}

    def _now(self, names: Mapping[str, Any], end: float) -> dict[str, Any]:
        named = Groups.parse(names["group_id"], names["topics"], required=False)
        checkpoint = None
        if names["checkpoint_location"]:
            checkpoint = spark_checkpoint(names["checkpoint_location"], names["checkpoint_conn_id"])
        kafka_config_id = names["kafka_config_id"] or "kafka_default"
        with self._lock:
            cluster = self._clusters.setdefault(kafka_config_id, Cluster(kafka_config_id))
        with cluster.client(end) as client:
            return PipelineNow(client, named, checkpoint).read()

    def _batches(self, names: Mapping[str, Any], end: float) -> dict[str, Any]:
        checkpoint = spark_checkpoint(names["checkpoint_location"], names["checkpoint_conn_id"])
        found = batches(checkpoint, within=max(0.5, end - time.monotonic() - _MARGIN))
        return {"batches": [_batch(each) for each in found]}


def _batch(batch: Batch) -> dict[str, Any]:
    ends = [offset for offsets in batch.offsets.values() for offset in offsets.values()]
    return {
        "batch": batch.batch,
        "at": None if batch.at is None else batch.at.isoformat(),
        "duration": batch.duration,
        "records": batch.records,
        "offset": sum(ends) if ends else None,
        "pending": batch.pending,
        "moved_by": batch.moved_by,
    }


def sentence(error: KafkaOffsetsError, names: Mapping[str, Any]) -> str:
    """Return why there is no answer; where the broker is and who asks it is not for all viewers."""
    connection = f"connection {shorten(names['kafka_config_id'] or 'kafka_default')!r}"
    if isinstance(error, BrokerAuthenticationError):
        return f"the broker of {connection} refuses its user: see the log of a task of this pipeline"
    if isinstance(error, BrokerUnavailableError):
        return f"the broker of {connection} does not answer"
    return shorten(str(error).split("\n")[0], 500)


def main() -> None:
    """Answer the questions on standard input until it ends, or nobody asks any more."""
    out = os.dup(1)
    os.dup2(2, 1)  # what Airflow and its providers print
    logging.disable(logging.INFO)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    worker, writing = LiveWorker(), threading.Lock()

    def reply(line: str) -> None:
        write(worker.answer(json.loads(line)))

    def write(value: Mapping[str, Any]) -> None:
        text = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        with writing:
            while text:
                text = text[os.write(out, text) :]

    pool = ThreadPoolExecutor(_AT_ONCE)
    write({"ready": True})
    with suppress(queue.Empty):
        while True:
            pool.submit(reply, lines.get(timeout=_IDLE))
    os._exit(0)


def _read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def _watch(parent: int) -> None:
    # A copy of the parent may hold the other end of the input open.
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(0)


if __name__ == "__main__":
    main()
