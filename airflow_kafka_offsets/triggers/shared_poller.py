"""
Polls a Kafka cluster for all waits of a triggerer, in one thread for each Kafka connection.

A round serves all waits that are due at about the same time, and reads each group and log end only once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.errors import BrokerUnavailableError, KafkaOffsetsError, StorageUnavailableError
from airflow_kafka_offsets.kafka.config import plain_settings
from airflow_kafka_offsets.model.offsets import Positions
from airflow_kafka_offsets.waits.wait import KnownCheckpoint, Reading, Wait

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.cached_reader import CachedReader

log = logging.getLogger(__name__)

FLOOR = 1.0
"""Minimum seconds between two polls of one wait."""

JITTER = 0.1
"""Fraction of the interval by which polls vary, so that triggerers do not poll at the same time."""

CALL = 10.0
"""Seconds for a call to the broker, or for reading the connection again."""

GATHER = 0.1
"""Seconds in which new waits are gathered for one round."""

PATIENCE = 15.0
"""Seconds after which a round gives up on a broker or storage that does not answer."""

T = TypeVar("T")
StorageKey = tuple[str | None, str | None, bool]
"""Checkpoint, connection of its storage, and whether the checkpoint has to exist."""


@dataclass(eq=False)
class PollRequest:
    """
    Requests a poll every ``interval`` seconds.

    :param interval: seconds between two polls; doubled after each poll that was due, up to ``longest``.
    :param ends: end of the wait by the monotonic clock: a last poll is due then, regardless of the interval.
    :param loop: event loop in which the outcomes are awaited.
    """

    wait: Wait
    interval: float
    longest: float
    ends: float
    loop: asyncio.AbstractEventLoop
    checkpoint: SparkCheckpoint | None = None
    outcomes: asyncio.Queue[Reading | Exception] = field(default_factory=asyncio.Queue)
    due: float = 0.0
    early: float = 0.0
    """Time from which the request may join a round for other requests, to be in step with them."""
    in_trouble: bool = False
    checked: Mapping[str, Positions] | None = field(default=None, init=False)
    """The positions whose topics were checked last: an event trigger polls on after its wait is over."""

    def set_outcome(self, outcome: Reading | Exception) -> None:
        """Pass an outcome to the wait's event loop."""
        try:
            self.loop.call_soon_threadsafe(self.outcomes.put_nowait, outcome)
        except RuntimeError:
            log.debug("The outcome is dropped, because the event loop of the wait is closed")

    def schedule(self, now: float, stretch: float) -> None:
        """Set when the next poll is due, after a poll at ``now``."""
        was_due = now >= self.due
        pause = max(FLOOR, self.interval) * stretch
        self.due = now + pause
        # After the end of the wait its last poll is done, so the end no longer sets the due time.
        if now < self.ends:
            self.due = min(self.due, self.ends)
        self.early = self.due - min(5.0, pause / 2)
        if was_due:
            self.interval = max(self.interval, min(self.interval * 2, self.longest))


class SharedPoller:
    """The thread that polls for all waits of one Kafka connection."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.broken: Exception | None = None
        """The error that ended the thread, ``None`` while it runs or after :meth:`close`."""
        self.settings = plain_settings(config)
        self.read_at = 0.0
        """When the connection was last read, by the monotonic clock."""
        self.is_checked = False
        """Whether the connection is being read again."""
        self.outdated = False
        """Whether the connection has other settings now."""
        self._config = config
        self._requests: set[PollRequest] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._reading: dict[StorageKey, Future[KnownCheckpoint | None]] = {}
        self._hung: dict[StorageKey, Future[Any]] = {}
        self._thread = threading.Thread(target=self._run, name=f"kafka offsets of {name}", daemon=True)
        self._thread.start()

    def add(self, request: PollRequest) -> None:
        """Serve a request from now on."""
        with self._changed:
            if self.broken is None:
                request.due = request.early = time.monotonic()
                self._requests.add(request)
                self._changed.notify()
                return
        request.set_outcome(self.broken)

    def remove(self, request: PollRequest) -> int:
        """Stop serving a request; return how many are left."""
        with self._changed:
            self._requests.discard(request)
            return len(self._requests)

    def close(self) -> None:
        """End the thread after its current round; return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        from airflow_kafka_offsets.kafka.cached_reader import CachedReader
        from airflow_kafka_offsets.kafka.client import OffsetsClient

        # A storage that hangs blocks one thread; the other threads read the other waits' checkpoints.
        storage = ThreadPoolExecutor(4, thread_name_prefix="read checkpoint")
        client: OffsetsClient | None = None
        try:
            client = OffsetsClient(self._config, timeout=CALL)
            reader = CachedReader(client)
            while batch := self._next_batch():
                began = time.monotonic()
                self._poll(batch, reader, storage)
                # One stretch for the whole round, so that its waits stay in step.
                stretch = random.uniform(1 - JITTER, 1 + JITTER)
                for request in batch:
                    request.schedule(began, stretch)
        except Exception as error:
            log.exception("Polling Kafka ended")
            with self._changed:
                self.broken = error
                requests = list(self._requests)
            for request in requests:
                request.set_outcome(error)
        finally:
            if client is not None:
                client.close()
            # A storage that never answers must not delay the end of this thread.
            storage.shutdown(wait=False, cancel_futures=True)

    def _next_batch(self) -> Sequence[PollRequest]:
        """Return the requests to serve now; empty if the thread must end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                first = min((request.due for request in self._requests), default=None)
                if first is not None and first + GATHER <= now:
                    near = [request for request in self._requests if request.early <= now]
                    # Those whose last poll failed come last: they may take all the time of the round.
                    return sorted(near, key=lambda request: request.in_trouble)
                self._changed.wait(None if first is None else first + GATHER - now)
        return ()

    def _poll(self, batch: Sequence[PollRequest], reader: CachedReader, storage: ThreadPoolExecutor) -> None:
        reader.next_round()
        reader.read_groups({group_id for request in batch for group_id in request.wait.group_ids})
        self._read_checkpoints(batch, storage)
        found: dict[PollRequest, Mapping[str, Positions]] = {}

        def ask(request: PollRequest, question: Callable[..., T], *more: object) -> T:
            """Ask what may read archives and batches of the checkpoint, whose storage may hang by now."""
            known = self._checkpoint_of(request)
            if known is None:
                return question(reader, None, *more)
            # With a reader of its own: a late answer must not get into a later round.
            answer = storage.submit(question, copy(reader), known, *more)
            wait_for_futures([answer], timeout=give_up - time.monotonic())
            if not answer.done():
                self._hung[_storage_key(request)] = answer
                self._checkpoint_of(request)
            return answer.result()

        def find(request: PollRequest) -> None:
            found[request] = ask(request, request.wait.find_positions)

        def judge(request: PollRequest) -> None:
            before = found[request]
            reading = request.wait.judge(reader, before)
            if reading.done:
                # A partition that was added may hold unread records.
                reader.forget_partitions({tp.topic for positions in before.values() for tp in positions})
                find(request)
                if found[request] != before:
                    reading = request.wait.judge(reader, found[request])
            if reading.done and found[request] != request.checked:
                ask(request, partial(check, request), found[request])
            request.set_outcome(reading)

        def check(request: PollRequest, *asked: Any) -> None:
            request.wait.check_topics(*asked)
            # Also if it took longer than the round: the next one need not check again.
            *_, request.checked = asked

        for requests, step in ((batch, find), (found, judge)):
            give_up = time.monotonic() + PATIENCE
            _for_each(requests, step, give_up)

    def _checkpoint_of(self, request: PollRequest) -> KnownCheckpoint | None:
        if request.checkpoint is None:
            return None
        key = _storage_key(request)
        if key in self._hung or not (read := self._reading[key]).done():
            raise StorageUnavailableError(
                f"{request.wait.checkpoint_location}: the storage did not answer within "
                f"{PATIENCE:g} s: check whether the triggerer can reach it"
            )
        return read.result()

    def _read_checkpoints(self, batch: Sequence[PollRequest], storage: ThreadPoolExecutor) -> None:
        wanted = {_storage_key(request): request for request in batch if request.checkpoint is not None}
        # A checkpoint whose earlier read has not finished is not read again, and not waited for.
        late = {key: read for key, read in self._reading.items() if not read.done()}
        self._hung = {key: answer for key, answer in self._hung.items() if not answer.done()}
        new = {
            key: storage.submit(request.wait.read_checkpoint, request.checkpoint)
            for key, request in wanted.items()
            if key not in late | self._hung
        }
        wait_for_futures(new.values(), timeout=PATIENCE)
        self._reading = late | new


def _for_each(requests: Iterable[PollRequest], step: Callable[[PollRequest], None], give_up: float) -> None:
    """Call a step for each request. An error becomes the outcome of that request's wait only."""
    silent: BrokerUnavailableError | None = None
    for request in requests:
        if silent is not None and time.monotonic() > give_up:
            # Otherwise each wait in turn would wait for the unreachable broker.
            request.set_outcome(silent)
            continue
        try:
            step(request)
            request.in_trouble = False
        except Exception as error:
            if not isinstance(error, KafkaOffsetsError):
                log.exception("A poll failed")
            request.in_trouble = True
            silent = error if isinstance(error, BrokerUnavailableError) else silent
            request.set_outcome(error)


def _storage_key(request: PollRequest) -> StorageKey:
    wait = request.wait
    return wait.checkpoint_location, wait.checkpoint_conn_id, wait.position_is_checkpoint
