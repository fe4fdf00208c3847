"""
Who looks at a Kafka cluster for all the waits of a triggerer?

For each Kafka connection one thread, which looks for all waits that are due at about the same time in one
round: each group is asked once, and each topic's log end once. It begins with the first wait and ends with
the last one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async

from airflow_kafka_offsets.errors import (
    BrokerError,
    BrokerUnavailableError,
    CheckpointUnavailableError,
    KafkaOffsetsError,
    UnknownTopicPartitionError,
)

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import CheckpointState
    from airflow_kafka_offsets.hooks.wait import Reading, Wait
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.kafka.rounds import RoundClient
    from airflow_kafka_offsets.model.offsets import Positions

log = logging.getLogger(__name__)

CONSUMERS = 50
"""Consumers kept by all owners together; each has about four threads and eight sockets."""

COLD_PER_SECOND = 8
"""Consumers made in a second at most: one takes about 30 ms, so that more groups make looks rarer, not dearer."""

FLOOR = 1.0
"""Seconds between two looks of one wait, at least."""

JITTER = 0.1
"""By how much of it the time between two looks differs, so that triggerers do not keep in step."""

EARLY = 5.0
"""Seconds by which a look may come early, at most: but not by more than half of the interval."""

GATHER = 0.1
"""Seconds in which waits that begin together come together in one round."""

CALL = 10.0
"""Seconds for a question to the broker."""

PATIENCE = 15.0
"""Seconds after which a round gives up on a broker, or a storage, that does not answer."""

_STORAGE_THREADS = 4

STALE = 300.0
"""Seconds without an answer after which the connection is read again: the brokers may have moved."""

_LEAST_SHARE = 10

StorageKey = tuple[str | None, str | None, bool]
"""Checkpoint, connection of its storage, and whether the checkpoint has to be there."""


@dataclass(eq=False)
class Ticket:
    """
    A wait that is looked at.

    :param interval: seconds between two looks; doubled after each one that was due, up to ``longest``.
    :param ends: when the wait ends, by the monotonic clock: there is a look then, whatever the interval is.
    """

    wait: Wait
    interval: float
    longest: float
    ends: float
    loop: asyncio.AbstractEventLoop
    outcomes: asyncio.Queue[Reading | Exception]
    due: float = 0.0
    early: float = 0.0
    """From when on it may be looked at because others are, so that it is in step with them from then on."""
    in_trouble: bool = False

    def answer(self, outcome: Reading | Exception) -> None:
        """Hand an outcome to whoever awaits it."""
        try:
            self.loop.call_soon_threadsafe(self.outcomes.put_nowait, outcome)
        except RuntimeError:
            log.debug("Nobody waits for the outcome any more: the event loop is closed")

    def put_off(self, now: float, stretch: float) -> None:
        """Set when the next look is due, after one at ``now``."""
        was_due = now >= self.due
        pause = max(FLOOR, self.interval) * stretch
        self.due = now + pause
        if now < self.ends:
            self.due = min(self.due, self.ends)
        self.early = self.due - min(EARLY, pause / 2)
        if was_due:
            self.interval = max(self.interval, min(self.interval * 2, self.longest))


class Owner:
    """
    The thread that looks for all waits of one Kafka connection.

    :param name: the connection's id.
    :param open_client: makes the client, given how many Consumers it may keep.
    """

    def __init__(self, name: str, open_client: Callable[[int], OffsetsClient]) -> None:
        self.users = 0
        self.broken: Exception | None = None
        """What ended the thread, if it was not :meth:`close`."""
        self._open_client = open_client
        self._tickets: set[Ticket] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._reading: dict[StorageKey, Future[CheckpointState | None]] = {}
        self._thread = threading.Thread(target=self._run, name=f"kafka offsets of {name}", daemon=True)
        self._thread.start()

    def add(self, ticket: Ticket) -> None:
        """Look for a wait from now on."""
        with self._changed:
            if self.broken is None:
                ticket.due = ticket.early = time.monotonic()
                self._tickets.add(ticket)
                self._changed.notify()
                return
        ticket.answer(self.broken)

    def remove(self, ticket: Ticket) -> None:
        """Look for a wait no longer."""
        with self._changed:
            self._tickets.discard(ticket)

    def close(self) -> None:
        """End the thread after what it is doing; returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; return whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        from airflow_kafka_offsets.kafka.rounds import RoundClient

        storage = ThreadPoolExecutor(_STORAGE_THREADS, thread_name_prefix="read checkpoint")
        client: OffsetsClient | None = None
        try:
            client = self._open_client(_share())
            rounds = RoundClient(client)
            while batch := self._next_batch(_share() - 2):
                client.keep(_share())
                began, opened = time.monotonic(), client.opened
                self._look(batch, rounds, storage)
                stretch = random.uniform(1 - JITTER, 1 + JITTER)
                for ticket in batch:
                    ticket.put_off(began, stretch)
                self._rest(began + (client.opened - opened) / COLD_PER_SECOND)
        except Exception as error:
            log.exception("Looking at Kafka ended")
            self._fail(error)
        finally:
            if client is not None:
                client.close()
            storage.shutdown(wait=False, cancel_futures=True)

    def _next_batch(self, groups: int) -> Sequence[Ticket]:
        """Return the waits to look for now, of so many groups at most; empty when it is time to end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                first = min((ticket.due for ticket in self._tickets), default=None)
                if first is not None and first + GATHER <= now:
                    near = [ticket for ticket in self._tickets if ticket.early <= now]
                    return next_looks(near, now, groups)
                self._changed.wait(None if first is None else first + GATHER - now)
        return ()

    def _rest(self, until: float) -> None:
        with self._changed:
            while not self._closed and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def _look(self, batch: Sequence[Ticket], rounds: RoundClient, storage: ThreadPoolExecutor) -> None:
        rounds.next_round()
        states = self._read_checkpoints(batch, storage)
        found: dict[Ticket, Mapping[str, Positions]] = {}

        def find(ticket: Ticket) -> None:
            state = states.get(_storage_key(ticket.wait))
            if isinstance(state, Exception):
                raise state
            found[ticket] = ticket.wait.find(rounds, state)

        _for_each(batch, find)
        _for_each(found, lambda ticket: ticket.answer(ticket.wait.judge(rounds, found[ticket])))

    def _read_checkpoints(
        self, batch: Sequence[Ticket], storage: ThreadPoolExecutor
    ) -> dict[StorageKey, CheckpointState | Exception | None]:
        wanted = {_storage_key(t.wait): t.wait for t in batch if t.wait.checkpoint_location}
        # One that has not answered yet is not asked again meanwhile, and nobody waits for it any more.
        new = {
            key: storage.submit(wait.read_checkpoint)
            for key, wait in wanted.items()
            if key not in self._reading
        }
        self._reading |= new
        wait_for_futures(new.values(), timeout=PATIENCE)
        states: dict[StorageKey, CheckpointState | Exception | None] = {}
        for key in wanted:
            if not self._reading[key].done():
                states[key] = CheckpointUnavailableError(
                    f"{key[0]}: the storage did not answer within {PATIENCE:g} s: see whether it is reachable from the "
                    "triggerer"
                )
                continue
            future = self._reading.pop(key)
            error = future.exception()
            states[key] = future.result() if error is None else _as_exception(error)
        return states

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.broken = error
            tickets = list(self._tickets)
        for ticket in tickets:
            ticket.answer(error)


def _for_each(tickets: Iterable[Ticket], look: Callable[[Ticket], None]) -> None:
    """Do a step for each wait. An error is the outcome of the wait it came from, and of no other."""
    give_up = time.monotonic() + PATIENCE
    silent: BrokerUnavailableError | None = None
    for ticket in tickets:
        if silent is not None and time.monotonic() > give_up:
            # Or a broker that is away would take the time of each wait, one after the other.
            ticket.answer(silent)
            continue
        try:
            look(ticket)
            ticket.in_trouble = False
        except KafkaOffsetsError as error:
            # Its own trouble: in the next round it stands behind the others.
            ticket.in_trouble = True
            silent = error if isinstance(error, BrokerUnavailableError) else silent
            ticket.answer(error)
        except Exception as error:
            log.exception("A look at Kafka failed")
            ticket.in_trouble = True
            ticket.answer(error)


def _storage_key(wait: Wait) -> StorageKey:
    return wait.checkpoint_location, wait.checkpoint_conn_id, wait.from_checkpoint


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def next_looks(tickets: Iterable[Ticket], now: float, groups: int) -> list[Ticket]:
    """
    Return which waits to look for in one round, of those that may be looked at.

    What is due comes first, and what has waited longest before the others, so that nobody is left out for good.

    :param groups: how many different groups a round may ask for.
    """
    known: set[str] = set()
    taken: list[Ticket] = []
    for ticket in sorted(tickets, key=lambda ticket: (ticket.due > now, ticket.due)):
        more = known | ticket.wait.groups
        if len(more) <= groups or not taken:
            known = more
            taken.append(ticket)
    # Within a round those come last that may take all of its time.
    return sorted(taken, key=lambda ticket: ticket.in_trouble)


_owners: dict[str, Owner] = {}
_guard = threading.Lock()
_opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def _share() -> int:
    return max(_LEAST_SHARE, CONSUMERS // max(1, len(_owners)))


async def _acquire(kafka_config_id: str) -> Owner:
    lock = _opening.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        with _guard:
            known = _owners.get(kafka_config_id)
            if known is not None and known.broken is None:
                known.users += 1
                return known
        # Airflow's connections have to be read through its own bridge from a thread.
        config = await sync_to_async(_config_of)(kafka_config_id)
        with _guard:
            # Another event loop may have been quicker: then there are two for a while.
            owner = _owners[kafka_config_id] = Owner(kafka_config_id, lambda keep: _open(config, keep))
            owner.users = 1
            return owner


def _release(kafka_config_id: str, owner: Owner) -> None:
    with _guard:
        owner.users -= 1
        if owner.users <= 0:
            owner.close()
            if _owners.get(kafka_config_id) is owner:
                del _owners[kafka_config_id]


def _retire(kafka_config_id: str, owner: Owner) -> None:
    """Let who comes next read the connection again: the broker, or the client, refused what it says."""
    with _guard:
        if _owners.get(kafka_config_id) is owner:
            del _owners[kafka_config_id]


def _config_of(kafka_config_id: str) -> dict[str, Any]:
    from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

    return KafkaOffsetsHook(kafka_config_id).client_config()


def _open(config: Mapping[str, Any], keep: int) -> OffsetsClient:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

    return OffsetsClient(config, timeout=CALL, keep=keep)


async def looks(
    wait: Wait, interval: float, longest: float | None = None, ends_in: float | None = None
) -> AsyncGenerator[Reading | Exception, None]:
    """
    Look again and again for a wait; yields a reading, or the error, of each look.

    :param wait: what to look for.
    :param interval: seconds between two looks, at least :data:`FLOOR`; a few more where there are many groups.
    :param longest: seconds up to which the interval is doubled after each look; default: it stays.
    :param ends_in: seconds after which the last look is due; default: none is the last.
    """
    ends = math.inf if ends_in is None else time.monotonic() + ends_in
    loop = asyncio.get_running_loop()
    ticket = Ticket(wait, interval, longest or interval, ends, loop, asyncio.Queue())
    while True:
        try:
            await sync_to_async(lambda: wait.checkpoint)()
            owner = await _acquire(wait.kafka_config_id)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with a connection: who waits decides
            yield error
        else:
            owner.add(ticket)
            answered = time.monotonic()
            try:
                while True:
                    outcome = await ticket.outcomes.get()
                    if not isinstance(outcome, BrokerUnavailableError):
                        answered = time.monotonic()
                    over = _of_the_connection(outcome, owner) or time.monotonic() > answered + STALE
                    if over:
                        _retire(wait.kafka_config_id, owner)
                    yield outcome
                    if over:
                        break
            finally:
                owner.remove(ticket)
                _release(wait.kafka_config_id, owner)
        await asyncio.sleep(max(FLOOR, interval))


def _of_the_connection(outcome: Reading | Exception, owner: Owner) -> bool:
    """Whether the connection has to be read again: it may have been corrected since."""
    refused = isinstance(outcome, BrokerError) and not isinstance(
        outcome, (BrokerUnavailableError, UnknownTopicPartitionError)
    )
    return refused or owner.broken is not None
