"""Polls for one wait through its connection's poller, which ends with the last of its waits."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async

from airflow_kafka_offsets.errors import (
    BrokerError,
    BrokerUnavailableError,
    ClientCrashedError,
    StorageError,
    UnknownTopicPartitionError,
    UsageError,
)
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.kafka.config import plain_settings
from airflow_kafka_offsets.triggers.shared_poller import CALL, FLOOR, PollRequest, SharedPoller
from airflow_kafka_offsets.waits.wait import Reading, Wait

RECHECK = 60.0
"""Seconds after which the connection is read again, because it may have been changed."""

# Errors that are not caused by the connection: reading the connection again would not help.
# Also a client whose connections lead to two clusters, which a new client may not.
_REFUSALS = (BrokerError, UsageError)
_NO_REFUSAL = (BrokerUnavailableError, ClientCrashedError, UnknownTopicPartitionError)

_pollers: dict[str, SharedPoller] = {}
# Reentrant: _leave() calls _retire() while it holds the lock.
_guard = threading.RLock()
_opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def poll_repeatedly(
    wait: Wait, interval: float, longest: float | None = None, ends_in: float | None = None
) -> AsyncGenerator[Reading | Exception, None]:
    """
    Poll repeatedly for a wait; yield the reading or the error of each poll.

    :param interval: seconds between two polls, at least :data:`FLOOR`.
    :param longest: maximum seconds of the interval, which is doubled after each poll; by default the interval
        is constant.
    :param ends_in: seconds after which the last poll is due; by default the polls do not end.
    """
    ends = math.inf if ends_in is None else time.monotonic() + ends_in
    request = PollRequest(wait, interval, longest or interval, ends, asyncio.get_running_loop())
    was_found = False
    while True:
        pause = max(FLOOR, interval)
        # Outcomes of an earlier poller, which may come late, are of earlier settings.
        request = replace(request, outcomes=asyncio.Queue())
        try:
            if wait.checkpoint_location and wait.needs_checkpoint:
                connect = sync_to_async(spark_checkpoint)
                request.checkpoint = await connect(wait.checkpoint_location, wait.checkpoint_conn_id)
            # A poller that has already ended answers at once, so that no wait hangs.
            poller = await _join(wait.kafka_config_id, request)
        except Exception as error:  # noqa: BLE001  # the caller handles every error of a connection
            # A connection that was found before may be found again: Airflow also reports "not defined" if its
            # secrets backend is unavailable.
            yield BrokerUnavailableError(str(error)) if was_found else error
        else:
            # From now on, "connection not found" counts as a temporary error.
            was_found = True
            try:
                while True:
                    outcome = await request.outcomes.get()
                    if await _has_changed(wait.kafka_config_id, poller):
                        # The outcome may be of another cluster, so the new settings are used at once.
                        pause = 0.0
                        break
                    refused = isinstance(outcome, _REFUSALS) and not isinstance(outcome, _NO_REFUSAL)
                    # In these cases the connections are read again, because they may have been corrected.
                    over = refused or poller.broken is not None
                    if over:
                        _retire(wait.kafka_config_id, poller)
                    yield outcome
                    if over or (isinstance(outcome, StorageError) and not outcome.retriable):
                        break
            finally:
                _leave(wait.kafka_config_id, request, poller)
        await asyncio.sleep(pause)


async def _join(kafka_config_id: str, request: PollRequest) -> SharedPoller:
    since = time.monotonic()
    async with _opening.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        with _guard:
            known = _pollers.get(kafka_config_id)
            # Waits that begin together share one reading of the connection.
            if known is not None and known.broken is None and known.read_at > since:
                known.add(request)
                return known
        config = await _read_connection(kafka_config_id)
        with _guard:
            # Another event loop may have opened a poller meanwhile, or the last wait may have closed it.
            known = _pollers.get(kafka_config_id)
            if known is None or known.broken is not None or known.settings != plain_settings(config):
                known = _pollers[kafka_config_id] = SharedPoller(kafka_config_id, config)
            known.read_at = time.monotonic()
            known.add(request)
            return known


async def _has_changed(kafka_config_id: str, poller: SharedPoller) -> bool:
    """Return whether the connection has other settings now than when the poller was opened."""
    if not (poller.outdated or poller.is_checked) and time.monotonic() > poller.read_at + RECHECK:
        poller.is_checked = True
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(_check(kafka_config_id, poller)), CALL)
    return poller.outdated


async def _check(kafka_config_id: str, poller: SharedPoller) -> None:
    try:
        # If the secrets backend does not answer, the known settings count.
        with suppress(Exception):
            config = await _read_connection(kafka_config_id)
            poller.outdated = poller.settings != plain_settings(config)
        if poller.outdated:
            _retire(kafka_config_id, poller)
    finally:
        poller.read_at, poller.is_checked = time.monotonic(), False


def _leave(kafka_config_id: str, request: PollRequest, poller: SharedPoller) -> None:
    with _guard:
        if not poller.remove(request):
            poller.close()
            _retire(kafka_config_id, poller)


def _retire(kafka_config_id: str, poller: SharedPoller) -> None:
    """Let the next wait read the connection again, because its settings or its poller do not work."""
    with _guard:
        if _pollers.get(kafka_config_id) is poller:
            del _pollers[kafka_config_id]


async def _read_connection(kafka_config_id: str) -> dict[str, Any]:
    # The answer to a request that is cut off would be taken for the answer to the next one (Airflow 3.1).
    return await asyncio.shield(_ask_airflow(kafka_config_id))


@sync_to_async
def _ask_airflow(kafka_config_id: str) -> dict[str, Any]:
    # In an event loop, Airflow's connections must be read in a thread, through Airflow's own bridge. Imported
    # here because a DAG file with a trigger does not need the Kafka client.
    from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

    return KafkaOffsetsHook(kafka_config_id).client_config()
