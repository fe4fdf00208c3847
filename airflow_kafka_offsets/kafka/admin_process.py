"""Runs the admin worker in a child process each time, so that this process survives a crash of the client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import airflow_kafka_offsets
from airflow_kafka_offsets.errors import BrokerAuthenticationError, ClientCrashedError, SetupError
from airflow_kafka_offsets.kafka.config import scrubber
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import Causes, Failed, Failure
from airflow_kafka_offsets.kafka.retry import until
from airflow_kafka_offsets.model.text import shorten

_MODULE = "airflow_kafka_offsets.kafka.admin_worker"
# As python -m, but what lies in the working directory is not taken for a module (-P is Python 3.11's).
_START = f"import sys; sys.path = [at for at in sys.path if at]; from {_MODULE} import main; main()"
_CRASHES = 2
"""A worker that dies is started again this often within a call."""
_GRACE = 1.0
"""Seconds that a worker may take beyond its own deadline before it is killed."""


class AdminProcess:
    """
    Makes each call of an AdminClient in a short-lived worker process.

    librdkafka can abort the process that makes such a call, after a time-out or when a coordinator moves.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._scrub = scrubber(config)

    def run(self, call: Call, name: str, arguments: Any = None) -> Any:
        """Make one of the worker's ``CALLS``; again if the worker dies or the error passes."""
        causes = Causes(self._scrub)
        crashes: list[str] = []

        def attempt(_: float) -> Any:
            # A worker takes long to start, so that it gets all the time there is.
            try:
                return self._attempt(call, name, arguments, causes)
            except ClientCrashedError as error:
                crashes.append(str(error))
                if len(crashes) > _CRASHES:
                    raise
                raise Failed(Failure("_RETRY", str(error))) from None

        try:
            return until(call, attempt, lambda: causes)
        except Failed as error:
            if crashes and error.failure.code == "_RETRY":
                raise ClientCrashedError(f"{call.what}: {crashes[-1]}") from None
            raise call.explain(error.failure, causes=causes) from None
        except ClientCrashedError as error:
            raise ClientCrashedError(f"{call.what}: {error}") from None

    def failure(self, values: Sequence[str] | None) -> Failure | None:
        """Return a failure that the worker has sent, without credentials in it; ``None`` for none."""
        return Failure(*values).scrubbed(self._scrub) if values else None

    def _attempt(self, call: Call, name: str, arguments: Any, causes: Causes) -> Any:
        plain = {key: value for key, value in self._config.items() if not callable(value)}
        request = {
            "call": name,
            "arguments": arguments,
            "config": plain,
            "token": _token(self._config.get("oauth_cb"), plain),
            "timeout": max(0.5, call.left),
        }
        status, output, errors = run_worker(json.dumps(request), call.left + _GRACE)
        try:
            response = json.loads(output)
        except ValueError:
            response = None
        if not isinstance(response, dict):
            if status is None:
                raise Failed(Failure("_TIMED_OUT", "the call did not end in time"))
            raise self._died(status, errors)
        causes.clear()
        causes.add(Failure(*cause) for cause in response.get("causes", ()))
        if (failure := self.failure(response.get("failure"))) is not None:
            raise Failed(failure)
        return response["result"]

    def _died(self, status: int, errors: str) -> Exception:
        lines = [line for line in errors.splitlines() if line.strip()]
        if status < 0:
            reason = next((line for line in lines if "ssert" in line), "")
            name = signal.Signals(-status).name if -status in list(signal.Signals) else str(-status)
            text = f"the Kafka client died by {name} in its process {reason}".strip()
            return ClientCrashedError(
                f"{self._scrub(shorten(text, 300))}; this process is not affected, try again"
            )
        last = self._scrub(shorten(lines[-1], 300)) if lines else "it said nothing"
        return SetupError(
            f"{sys.executable} -m {_MODULE} ended with status {status} and without an answer ({last}): group "
            "calls need a Python that can import this package and confluent-kafka"
        )


def run_worker(request: str, timeout: float) -> tuple[int | None, str, str]:
    """
    Run the admin worker in another Python, and kill it when the time is up.

    :param request: its standard input: it may hold a password, so it must not be an argument.
    :return: exit status (``None`` if it was killed), standard output, standard error.
    """
    if not sys.executable:
        raise SetupError(
            "sys.executable is not set, expected the path of this Python: group calls run in a child process "
            "and need it"
        )
    root = str(Path(airflow_kafka_offsets.__file__).parents[1])
    # The worker finds the package where this process found it.
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    try:
        worker = subprocess.run(
            [sys.executable, "-c", _START],
            input=request,
            timeout=timeout,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        )
    except subprocess.TimeoutExpired:
        return None, "", ""
    except OSError as error:
        raise SetupError(f"{sys.executable} cannot be started ({error}): group calls need it") from error
    return worker.returncode, worker.stdout, worker.stderr


def _token(oauth_cb: Callable[[str], Any] | None, config: Mapping[str, Any]) -> list[Any] | None:
    """Return a token from the user's function, which only this process may have."""
    if oauth_cb is None:
        return None
    try:
        return list(oauth_cb(str(config.get("sasl.oauthbearer.config", ""))))
    except Exception as error:  # noqa: BLE001  # it is the user's, and its text may hold anything
        raise BrokerAuthenticationError(
            f"oauth_cb of the Kafka configuration gave no token ({type(error).__name__}): correct the "
            "connection"
        ) from None
