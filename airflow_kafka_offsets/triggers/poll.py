"""
Polls of one wait, served by the shared poller of its Kafka connection.

All triggers of a process share the pollers. One begins with the first wait of its connection and ends with
the last.
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

from airflow_kafka_offsets.errors import (
    BrokerError,
    BrokerUnavailableError,
    ClientCrashedError,
    UnknownTopicPartitionError,
)
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.triggers.poll_request import FLOOR, PollRequest
from airflow_kafka_offsets.triggers.shared_poller import SharedPoller

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.waits.wait import Reading, Wait

CALL = 10.0
"""Seconds for a question to the broker."""

STALE = 300.0
"""Seconds without an answer after which the connection is read again: the brokers may have moved."""

# Not the connection's fault: reading it again would not help.
_NO_REFUSAL = (BrokerUnavailableError, ClientCrashedError, UnknownTopicPartitionError)

_pollers: dict[str, SharedPoller] = {}
# Reentrant: _release() retires a poller while it holds it.
_guard = threading.RLock()
_opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def poll_repeatedly(
    wait: Wait, interval: float, longest: float | None = None, ends_in: float | None = None
) -> AsyncGenerator[Reading | Exception, None]:
    """
    Poll again and again for a wait; yields the reading, or the error, of each poll.

    :param interval: seconds between two polls, at least :data:`FLOOR`.
    :param longest: seconds up to which the interval is doubled after each poll; default: it stays.
    :param ends_in: seconds after which the last poll is due; default: none is the last.
    """
    ends = math.inf if ends_in is None else time.monotonic() + ends_in
    request = PollRequest(wait, interval, longest or interval, ends, asyncio.get_running_loop())
    known = False
    while True:
        try:
            if wait.checkpoint_location and wait.needs_checkpoint and request.checkpoint is None:
                connect = sync_to_async(spark_checkpoint)
                request.checkpoint = await connect(wait.checkpoint_location, wait.checkpoint_conn_id)
            poller = await _acquire(wait.kafka_config_id)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with a connection: the caller decides
            # One that was defined may be again: Airflow's secrets say "not defined" also when they are away.
            yield BrokerUnavailableError(str(error)) if known else error
        else:
            # From here on a connection that is not found may be found again.
            known = True
            # Answered at once by a poller that has ended, so that no wait is left behind.
            poller.add(request)
            answered = time.monotonic()
            try:
                while True:
                    outcome = await request.outcomes.get()
                    if not isinstance(outcome, BrokerUnavailableError):
                        answered = time.monotonic()
                    refused = isinstance(outcome, BrokerError) and not isinstance(outcome, _NO_REFUSAL)
                    # Then the connection is read again: it may have been corrected since.
                    over = refused or poller.broken is not None or time.monotonic() > answered + STALE
                    if over:
                        _retire(wait.kafka_config_id, poller)
                    yield outcome
                    if over:
                        break
            finally:
                poller.remove(request)
                _release(wait.kafka_config_id, poller)
        await asyncio.sleep(max(FLOOR, interval))


async def _acquire(kafka_config_id: str) -> SharedPoller:
    lock = _opening.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        with _guard:
            known = _pollers.get(kafka_config_id)
            if known is not None and known.broken is None:
                known.users += 1
                return known
        # Airflow's connections have to be read through its own bridge from a thread.
        config = await sync_to_async(_config_of)(kafka_config_id)
        with _guard:
            # Another event loop may have been quicker: then there are two for a while.
            poller = SharedPoller(kafka_config_id, lambda: _open(config))
            poller.users = 1
            _pollers[kafka_config_id] = poller
            return poller


def _release(kafka_config_id: str, poller: SharedPoller) -> None:
    with _guard:
        poller.users -= 1
        if poller.users <= 0:
            poller.close()
            _retire(kafka_config_id, poller)


def _retire(kafka_config_id: str, poller: SharedPoller) -> None:
    """Let the next wait read the connection again: the broker, or the client, refused what it says."""
    with _guard:
        if _pollers.get(kafka_config_id) is poller:
            del _pollers[kafka_config_id]


def _config_of(kafka_config_id: str) -> dict[str, Any]:
    # A DAG file that names a trigger must not load the Kafka client.
    from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

    return KafkaOffsetsHook(kafka_config_id).client_config()


def _open(config: Mapping[str, Any]) -> OffsetsClient:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

    return OffsetsClient(config, timeout=CALL)
