"""How is a call made in a process of its own, so that this one lives whatever becomes of it?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import airflow_kafka_offsets
from airflow_kafka_offsets.errors import BrokerAuthenticationError, ClientCrashedError, SetupError
from airflow_kafka_offsets.kafka.config import SERVERS, scrubber
from airflow_kafka_offsets.kafka.failures import Causes, Deadline, Failed, Failure, explain
from airflow_kafka_offsets.kafka.retry import until
from airflow_kafka_offsets.model.text import shorten

_MODULE = "airflow_kafka_offsets.kafka.admin_worker"
# As python -m, but what lies in the working directory is not taken for a module (-P is Python 3.11's).
_START = f"import sys; sys.path = [at for at in sys.path if at]; from {_MODULE} import main; main()"
_CRASHES = 2
"""A child that dies is replaced this often within a call."""
_GRACE = 1.0
"""Seconds a child may take beyond its own deadline before it is killed."""


class AdminProcess:
    """
    Makes AdminClient's calls in a short-lived child process each.

    librdkafka can abort the process that makes them, after a time-out or when a coordinator moves.

    :param config: from :func:`~airflow_kafka_offsets.kafka.config.client_config`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._servers = str(config.get(SERVERS))
        self._scrub = scrubber(config)

    def call(self, what: str, name: str, arguments: Any, deadline: Deadline) -> Any:
        """
        Make a call in a child; again if it dies or its error is one that passes.

        :param what: what is wanted, for the error text.
        :param name: one of :data:`airflow_kafka_offsets.kafka.admin_worker.CALLS`.
        :param arguments: what goes with it: plain JSON.
        :raises BrokerError: if there is no answer.
        """
        causes = Causes(self._scrub)
        crashes: list[str] = []

        def attempt(_: float) -> Any:
            # A child takes long to start, so that it gets all the time there is.
            try:
                return self._child(name, arguments, deadline, causes)
            except ClientCrashedError as error:
                crashes.append(str(error))
                if len(crashes) > _CRASHES:
                    raise
                raise Failed(Failure("_RETRY", str(error))) from None

        try:
            return until(deadline, attempt, lambda: causes)
        except Failed as error:
            if crashes and error.failure.code == "_RETRY":
                raise ClientCrashedError(f"{what}: {crashes[-1]}") from None
            raise explain(what, error.failure, causes, self._servers, deadline.timeout) from None
        except ClientCrashedError as error:
            raise ClientCrashedError(f"{what}: {error}") from None

    def _child(self, name: str, arguments: Any, deadline: Deadline, causes: Causes) -> Any:
        plain = {key: value for key, value in self._config.items() if not callable(value)}
        request = {
            "call": name,
            "arguments": arguments,
            "config": plain,
            "token": _token(self._config.get("oauth_cb"), plain),
            "timeout": max(0.5, deadline.left),
        }
        status, said, complaints = run_child(json.dumps(request), deadline.left + _GRACE)
        try:
            answer = json.loads(said)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            if status is None:
                raise Failed(Failure("_TIMED_OUT", "the call did not end in time"))
            raise self._died(status, complaints)
        causes.clear()
        causes.add(Failure(*cause) for cause in answer.get("causes", ()))
        if answer.get("failure") is not None:
            raise Failed(Failure(*answer["failure"]).scrubbed(self._scrub))
        return answer["result"]

    def _died(self, status: int, complaints: str) -> Exception:
        lines = [line for line in complaints.splitlines() if line.strip()]
        if status < 0:
            reason = next((line for line in lines if "ssert" in line), "")
            name = signal.Signals(-status).name if -status in list(signal.Signals) else str(-status)
            text = f"the Kafka client died by {name} in its process {reason}".strip()
            return ClientCrashedError(
                f"{self._scrub(shorten(text, 300))}; this process is not affected, try again"
            )
        last = self._scrub(shorten(lines[-1], 300)) if lines else "it said nothing"
        return SetupError(
            f"{sys.executable} -m {_MODULE} ended with status {status} and without an answer ({last}): "
            "group calls need a Python that can import this package and confluent-kafka"
        )


def run_child(text: str, timeout: float) -> tuple[int | None, str, str]:
    """
    Run :mod:`airflow_kafka_offsets.kafka.admin_worker` in a Python of its own, and kill it when the time is up.

    :param text: its standard input: there may be a password in it, so it must not be an argument.
    :return: exit status (``None`` if it was killed), standard output, standard error.
    :raises SetupError: if there is no Python to run it with.
    """
    if not sys.executable:
        raise SetupError(
            "sys.executable is not set, expected the path of this Python: "
            "group calls run in a child process and need it"
        )
    root = str(Path(airflow_kafka_offsets.__file__).parents[1])
    # The child finds the package where this process found it.
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        )
    except OSError as error:
        raise SetupError(f"{sys.executable} cannot be started ({error}): group calls need it") from error
    try:
        said, complaints = child.communicate(text, timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return None, "", ""
    except BaseException:
        child.kill()
        child.communicate()
        raise
    return child.returncode, said, complaints


def _token(oauth_cb: Callable[[str], Any] | None, config: Mapping[str, Any]) -> list[Any] | None:
    """Get the token here: the function may be one that only this process has."""
    if oauth_cb is None:
        return None
    try:
        return list(oauth_cb(str(config.get("sasl.oauthbearer.config", ""))))
    except Exception as error:  # noqa: BLE001  # it is the user's, and its text may hold anything
        raise BrokerAuthenticationError(
            f"oauth_cb of the Kafka configuration gave no token ({type(error).__name__}): correct the connection"
        ) from None
