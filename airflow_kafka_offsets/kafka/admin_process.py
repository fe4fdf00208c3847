"""
Runs the admin worker in a child process, so that this process survives a crash of the client.

The reasons are librdkafka's issues 4605 (after a group call that timed out, the process aborts when the
connection opens later) and 5040 (``OffsetFetch`` answered with ``NOT_COORDINATOR`` ends the process by
SIGSEGV). When the oldest supported confluent-kafka has both fixes, remove this module, all of
:mod:`~airflow_kafka_offsets.kafka.worker` but ``start_child``, which the Offsets tab uses too,
:class:`~airflow_kafka_offsets.errors.ClientCrashedError`, and ``respond`` and ``main`` of the worker.
:class:`~airflow_kafka_offsets.kafka.admin.Admin` can then call the functions in ``CALLS`` directly.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_kafka_offsets.errors import ClientCrashedError, SetupError, UsageError
from airflow_kafka_offsets.kafka.config import scrubber
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import BackgroundErrors, CallError, Failure
from airflow_kafka_offsets.kafka.oauth_token import get_token
from airflow_kafka_offsets.kafka.retry import retry_until
from airflow_kafka_offsets.kafka.worker import GRACE, MODULE, AdminWorker
from airflow_kafka_offsets.model.text import shorten

CRASHES = 2
"""How often a worker that died is started again within one call."""
# Seconds that close() waits for a call of another thread; after that, the call itself ends the worker.
_CLOSE = 3.0


class AdminProcess:
    """
    Makes AdminClient calls in a worker process that starts with the first call and is kept.

    After a temporary failure the worker is replaced, because its client may be the cause. Calls of several
    threads wait for each other.

    :param note_cluster: called with the cluster id of each response; it raises to refuse the response.
    """

    def __init__(self, config: Mapping[str, Any], note_cluster: Callable[[str], object] = str) -> None:
        self._note_cluster = note_cluster
        self._config = dict(config)
        self._scrub = scrubber(config)
        self._lock = threading.Lock()
        self._worker: AdminWorker | None = None
        self._closed = False

    def close(self) -> None:
        """End the worker; wait a few seconds at most. A running call ends the worker when it ends."""
        self._closed = True
        if self._lock.acquire(timeout=_CLOSE):
            try:
                self._end()
            finally:
                self._lock.release()

    def run(
        self,
        call: Call,
        name: str,
        arguments: Any = None,
        *,
        first_attempt: float = math.inf,
        most_crashes: float = CRASHES,
    ) -> Any:
        """
        Make one of the worker's ``CALLS``; repeat it if the worker dies or the error is temporary.

        :param first_attempt: seconds of the first attempt; each later attempt may take twice as long.
        :param most_crashes: how often the worker may die before the call fails.
        """
        background_errors = BackgroundErrors()
        crashes: list[str] = []

        def attempt(seconds: float) -> Any:
            try:
                return self.run_once(call.with_timeout(seconds), name, arguments, background_errors)
            except ClientCrashedError as error:
                crashes.append(str(error))
                if len(crashes) > most_crashes:
                    raise
                raise CallError(Failure("_RETRY", str(error))) from None

        try:
            return retry_until(call, attempt, lambda: background_errors, first_attempt=first_attempt)
        except CallError as error:
            if crashes and error.failure.code == "_RETRY":
                raise ClientCrashedError(f"{call.what}: {crashes[-1]}") from None
            raise call.explain(error.failure, background_errors=background_errors) from None
        except ClientCrashedError as error:
            raise ClientCrashedError(f"{call.what}: {error}") from None

    def read_failure(self, values: Sequence[str] | None) -> Failure | None:
        """Parse a failure from the worker, without credentials; ``None`` if there is no failure."""
        return Failure(*values).scrub(self._scrub) if values else None

    def run_once(self, call: Call, name: str, arguments: Any, background_errors: BackgroundErrors) -> Any:
        """
        Make one of the worker's ``CALLS`` once.

        :param background_errors: receives the errors that the client reported in the background.
        :raises ClientCrashedError: if the worker died; the request may have been executed.
        """
        with self._alone(call) as worker:
            # Both processes read the same clock. The worker may take long to start.
            end = time.monotonic() + max(0.5, call.seconds_left)
            request = {"call": name, "arguments": arguments, "end": end}
            try:
                output = worker.ask(json.dumps(request), call.seconds_left + GRACE)
            except BaseException:
                # Interrupted, for example by a signal: the late response must not be taken for the next one.
                self._worker = None
                worker.end(0)
                raise
            try:
                response = json.loads(output or "")
            except ValueError:
                response = None
            if not isinstance(response, dict):
                self._worker = None
                status, errors = worker.end(0 if output is None else GRACE)
                if output is None:
                    raise CallError(Failure("_TIMED_OUT", "the call did not end in time"))
                raise self._died(status, errors)
            if response["last"]:
                self._end()
        background_errors.clear()
        background_errors.add_failures(
            Failure(*cause).scrub(self._scrub) for cause in response["background_errors"]
        )
        if (failure := self.read_failure(response["failure"])) is not None:
            raise CallError(failure)
        self._note_cluster(response["cluster_id"])
        return response["result"]

    @contextmanager
    def _alone(self, call: Call) -> Iterator[AdminWorker]:
        """Keep out calls of other threads; start a worker if none is running."""
        if not self._lock.acquire(timeout=call.seconds_left):
            raise CallError(Failure("_TIMED_OUT", "another call of this client took all of the time"))
        try:
            if self._closed:
                raise UsageError(f"{call.what}: this client was closed; create a new one")
            if self._worker is not None and not self._worker.is_usable:
                self._end()
            if self._worker is None:
                plain = {key: value for key, value in self._config.items() if not callable(value)}
                # The function itself cannot be passed to the worker.
                token = get_token(self._config)
                self._worker = AdminWorker(json.dumps({"config": plain, "token": token}), token)
            yield self._worker
        finally:
            if self._closed:
                self._end()
            self._lock.release()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _died(self, status: int, errors: str) -> Exception:
        lines = [line for line in errors.splitlines() if line.strip()]
        if status < 0:
            reason = next((line for line in lines if "ssert" in line), "")
            name = signal.Signals(-status).name if -status in list(signal.Signals) else str(-status)
            text = f"the Kafka client died by {name} in its process {reason}".strip()
            return ClientCrashedError(
                f"{self._scrub(shorten(text, 300))}; this process is not affected, try again"
            )
        last = self._scrub(shorten(lines[-1], 300)) if lines else "no output"
        return SetupError(
            f"{sys.executable} -m {MODULE} ended with status {status} and without an answer ({last}): group "
            "calls need a Python that can import this package and confluent-kafka"
        )
