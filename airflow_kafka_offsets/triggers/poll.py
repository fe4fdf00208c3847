"""
How does a trigger look again and again?

It shares the owner of its Kafka connection with all other triggers of the process. The owner begins with the first
wait and ends with the last one.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async

from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError, UnknownTopicPartitionError
from airflow_kafka_offsets.triggers.poll_request import FLOOR, PollRequest
from airflow_kafka_offsets.triggers.shared_poller import SharedPoller

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.waits.wait import Reading, Wait

CONSUMERS = 50
"""Consumers kept by all owners together; each has about four threads and eight sockets."""

_LEAST_SHARE = 10

CALL = 10.0
"""Seconds for a question to the broker."""

STALE = 300.0
"""Seconds without an answer after which the connection is read again: the brokers may have moved."""

_owners: dict[str, SharedPoller] = {}
_guard = threading.Lock()
_opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def _share() -> int:
    return max(_LEAST_SHARE, CONSUMERS // max(1, len(_owners)))


async def _acquire(kafka_config_id: str) -> SharedPoller:
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
            owner = _owners[kafka_config_id] = SharedPoller(
                kafka_config_id, lambda keep: _open(config, keep), _share
            )
            owner.users = 1
            return owner


def _release(kafka_config_id: str, owner: SharedPoller) -> None:
    with _guard:
        owner.users -= 1
        if owner.users <= 0:
            owner.close()
            if _owners.get(kafka_config_id) is owner:
                del _owners[kafka_config_id]


def _retire(kafka_config_id: str, owner: SharedPoller) -> None:
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
    ticket = PollRequest(wait, interval, longest or interval, ends, loop, asyncio.Queue())
    known = False
    while True:
        try:
            await sync_to_async(lambda: wait.checkpoint)()
            owner = await _acquire(wait.kafka_config_id)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with a connection: who waits decides
            # One that was there before may be there again: Airflow's secrets say "not defined" also when they are away.
            yield BrokerUnavailableError(str(error)) if known else error
        else:
            known = True
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


def _of_the_connection(outcome: Reading | Exception, owner: SharedPoller) -> bool:
    """Whether the connection has to be read again: it may have been corrected since."""
    refused = isinstance(outcome, BrokerError) and not isinstance(
        outcome, (BrokerUnavailableError, UnknownTopicPartitionError)
    )
    return refused or owner.broken is not None
