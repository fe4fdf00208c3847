"""The child process: opens the pipelines' connections, and reads from brokers and storages."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.history import PastBatch, read_history
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    KafkaOffsetsError,
    StorageError,
)
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.kafka.admin_worker import open_channel
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.config import plain_settings
from airflow_kafka_offsets.kafka.failures import DENIED
from airflow_kafka_offsets.model.digest import partitions_digest
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.ui.now import PipelineNow, error_text
from airflow_kafka_offsets.ui.receipt_now import ReceiptRow, other_topics, read_move_state, read_times
from airflow_kafka_offsets.ui.watched_progress import WatchedProgress

_IDLE = 900.0
"""Seconds without a request after which the process ends."""

# Number of simultaneous requests of each connection: a thread waits for each storage that does not answer.
_AT_ONCE = 8
_CALL = 3.0
"""Seconds for each call to a broker."""

_SHUT = 5.0
"""Seconds for which a broker that did not answer is not called again."""

_CHECKED = 30.0
"""Seconds for which a connection is not read again."""

_MARGIN = 1.0
"""Seconds before its deadline at which a request gives up."""

_HARMLESS = (type(None), ImportError, FileNotFoundError, NotADirectoryError, UnicodeDecodeError)
"""
Errors behind those of a storage that are shown. Behind all others is an error of its driver, whose text may
contain the storage's address or its user.
"""

_BUSY = "other requests to this broker took all of the time"


class ClusterClient:
    """
    The client of one Kafka connection; one request uses it at a time.

    While the broker does not answer, requests that wait for the client fail at once. A client of a connection
    that has changed since, such as to another cluster, is replaced.
    """

    def __init__(self, kafka_config_id: str) -> None:
        self._hook = KafkaOffsetsHook(kafka_config_id, timeout=_CALL)
        self._lock = threading.Lock()
        self._client: OffsetsClient | None = None
        self._settings: Mapping[str, Any] = {}
        self._checked_at = 0.0
        self._shut_until = 0.0
        self._failure = ""

    @contextmanager
    def lend(self, end: float) -> Iterator[OffsetsClient]:
        """Lend the client; the text of its errors may be seen by all viewers."""
        if not self._lock.acquire(timeout=max(0.0, end - time.monotonic())):
            raise KafkaOffsetsError(_BUSY)
        try:
            if time.monotonic() < self._shut_until:
                raise KafkaOffsetsError(self._failure)
            yield self._current_client()
        except BrokerError as error:
            servers = "" if self._client is None else self._client.servers
            text = f"connection {self._hook.kafka_config_id!r}: {error_text(error, servers)}"
            if _is_cluster_error(error):
                self._shut_until, self._failure = time.monotonic() + _SHUT, text
                self._close_client()
            raise KafkaOffsetsError(text) from None
        finally:
            self._lock.release()

    def _current_client(self) -> OffsetsClient:
        if self._client is None or time.monotonic() > self._checked_at + _CHECKED:
            config = self._hook.client_config()
            settings = plain_settings(config)
            if self._client is None or settings != self._settings:
                self._close_client()
                self._client, self._settings = OffsetsClient(config, timeout=_CALL), settings
            self._checked_at = time.monotonic()
        return self._client

    def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # In the background, because closing takes a while if the broker is unreachable, and other
            # requests wait for the lock.
            threading.Thread(target=client.close, daemon=True).start()


class ReadAhead(SparkCheckpoint):
    """A checkpoint that is read before the client is lent, so that slow storage does not block others."""

    def __init__(self, checkpoint: SparkCheckpoint) -> None:
        super().__init__(checkpoint.location, fs=checkpoint.fs)
        self._first: CheckpointState | None = super().read()

    def read(self) -> CheckpointState:
        """Return the state that was read ahead; later calls read again."""
        first, self._first = self._first, None
        return first or super().read()


class LiveWorker:
    """Answers several requests at once."""

    def __init__(self) -> None:
        self._clusters: dict[str, ClusterClient] = {}
        self._lock = threading.Lock()
        self._progress = WatchedProgress(self._lend)
        self._answers: Mapping[str, Callable[[Mapping[str, Any], float], dict[str, Any]]] = {
            "now": self._now,
            "batches": self._batches,
            "times": self._times,
            "wait": lambda request, end: {"wait": self._progress.poll_wait(request, end)},
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, or one sentence with the reason why it failed."""
        try:
            if time.monotonic() > request["end"]:
                raise KafkaOffsetsError(_BUSY)
            ask = self._answers[request["question"]]
            return {"id": request["id"], "value": ask(request, request["end"])}
        except KafkaOffsetsError as error:
            return {"id": request["id"], "error": _reason(error, request["names"])}
        except Exception as error:  # noqa: BLE001  # its text may contain secrets
            return {"id": request["id"], "error": f"reading failed ({type(error).__name__})"}

    def _now(self, request: Mapping[str, Any], end: float) -> dict[str, Any]:
        names = request["names"]
        selection = GroupSelection.parse(names["group_id"], names["topics"], required=False)
        checkpoint = None
        if names["checkpoint_location"]:
            checkpoint = ReadAhead(
                spark_checkpoint(names["checkpoint_location"], names["checkpoint_conn_id"])
            )
        with self._lend(names["kafka_config_id"], end) as client:
            reading = PipelineNow(client, selection, checkpoint, end).read()
            # The connection may lead to another cluster by now, with other offsets.
            pace = self._progress.rates({**names, "servers": client.servers}, reading)
        return {**reading, "pace": pace}

    def _times(self, request: Mapping[str, Any], end: float) -> dict[str, Any]:
        with self._lend(request["names"]["kafka_config_id"], end) as client:
            rows = [ReceiptRow(*row) for row in request["rows"]]
            others = other_topics(client, request["topics"])
            since = None if others or request["plan_only"] else read_move_state(client, rows)
            within = max(0.0, end - time.monotonic() - _MARGIN)
            return {**read_times(client, rows, others, within), "since": since}

    def _lend(self, kafka_config_id: str | None, end: float) -> AbstractContextManager[OffsetsClient]:
        name = kafka_config_id or "kafka_default"
        with self._lock:
            if name not in self._clusters:
                self._clusters[name] = ClusterClient(name)
            return self._clusters[name].lend(end)

    def _batches(self, request: Mapping[str, Any], end: float) -> dict[str, Any]:
        names = request["names"]
        checkpoint = spark_checkpoint(names["checkpoint_location"], names["checkpoint_conn_id"])
        found = read_history(checkpoint, within=max(0.5, end - time.monotonic() - _MARGIN))
        scope = GroupSelection.parse(names["group_id"], names["topics"], required=False).scope
        return {
            "batches": [_batch(each, scope) for each in found.batches],
            "moves": [
                _checkpoint_move(each, scope) for each in found.archives if _is_from_command_line(each)
            ],
        }


def _reason(error: KafkaOffsetsError, names: Mapping[str, Any]) -> str:
    if not isinstance(error, StorageError) or isinstance(error.__context__, _HARMLESS):
        return error_text(error)
    where = shorten(names["checkpoint_location"], 300)
    return f"{where}: the storage refuses access or does not answer: see the log of a task of this pipeline"


def _is_cluster_error(error: BrokerError) -> bool:
    """Return whether an error concerns the whole cluster, not one group or topic."""
    if isinstance(error, BrokerAuthenticationError):
        return error.code not in DENIED
    # The client's own codes begin with an underscore: no connection, no answer.
    return isinstance(error, BrokerUnavailableError) and (error.code or "").startswith("_")


def _batch(batch: PastBatch, scope: TopicScope) -> dict[str, Any]:
    return {
        "batch": batch.batch,
        "at": None if batch.at is None else batch.at.isoformat(),
        "duration": batch.duration,
        "records": batch.records,
        **_sum(batch.offsets, scope),
        "pending": batch.pending or batch.skipped,
    }


def _is_from_command_line(archive: ArchivedMove) -> bool:
    # A task's move is in its receipt, which not every user may read.
    return archive.done and bool(archive.made_by.tool) and not (archive.made_by.dag or archive.made_by.run)


def _checkpoint_move(archive: ArchivedMove, scope: TopicScope) -> dict[str, Any]:
    """Return what the archive has of a move, see :data:`~airflow_kafka_offsets.ui.history.EMPTY_MOVE`."""
    return {
        "at": archive.created_at,
        "kind": archive.kind,
        **_sum(archive.after, scope, "checkpoint"),
        "tool": archive.made_by.tool,
        "state": "taken back" if archive.undone else None,
    }


def _sum(offsets: Mapping[str, Offsets], scope: TopicScope, name: str = "offset") -> dict[str, Any]:
    """Return the sum over the partitions that the pipeline names, by a name, and what identifies these."""
    positions = [(tp, at) for each in offsets.values() for tp, at in each.items() if tp in scope]
    over = partitions_digest(tp for tp, _ in positions)
    return {name: sum(at for _, at in positions) if positions else None, "over": over}


def main() -> None:
    """Answer requests until the parent ends, or until there are no requests for a while."""
    # Standard error is shared with the API server, whose log should not grow with each request.
    logging.disable(logging.INFO)
    lines, write = open_channel()
    worker, writing = LiveWorker(), threading.Lock()

    def reply(request: Mapping[str, Any]) -> None:
        answer = worker.answer(request)
        with writing:
            write(answer)

    # Requests that wait for a broker must not keep those to other brokers waiting.
    pools: dict[str, ThreadPoolExecutor] = defaultdict(lambda: ThreadPoolExecutor(_AT_ONCE))
    write({"ready": True})
    with suppress(queue.Empty):
        while True:
            request = json.loads(lines.get(timeout=_IDLE))
            pools[str(request["names"]["kafka_config_id"])].submit(reply, request)
    os._exit(0)


if __name__ == "__main__":
    main()
