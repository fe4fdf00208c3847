"""
Makes AdminClient calls in a separate process, because the client can abort its process.

Run as ``python -m airflow_kafka_offsets.kafka.admin_worker``. It reads the client's settings and then
requests from standard input, each as a line of JSON, and writes only a line of JSON for each request to
standard output. It ends when its input or its parent ends, and after a temporary failure.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException

from airflow_kafka_offsets.kafka.admin_calls import CALLS, AdminSession
from airflow_kafka_offsets.kafka.failures import RETRIABLE, CallError, Failure

# More than a pipe holds (64 KB on Linux): one read returns all available data.
_PART = 1 << 20
_WATCH = 5.0
"""Seconds between two checks of the parent."""


def respond(session: AdminSession, request: dict[str, Any]) -> dict[str, Any]:
    """Make the call of one request; ``last`` asks for a new process, because a failure may be temporary."""
    result = failure = None
    try:
        session.begin(request["end"])
        result = CALLS[request["call"]](session, request["arguments"])
    except CallError as error:
        failure = error.failure
    except KafkaException as error:
        failure = Failure.from_error(error)
    last = failure is not None or any(code in RETRIABLE for code in _codes(result))
    return {
        "result": result,
        "failure": failure,
        "background_errors": session.background_failures(),
        "cluster_id": session.cluster_id,
        "last": last,
    }


def _codes(result: Any) -> list[str]:
    parts = result.values() if isinstance(result, Mapping) else ()
    return [part[1].code for part in parts if type(part) is tuple and part[1] is not None]


def main() -> None:
    """Read the settings and respond to requests until the input ends."""
    # As in the command line: many values live until they are sent.
    gc.set_threshold(100_000)
    lines, write = open_channel()
    session = AdminSession(**json.loads(lines.get()))
    last = False
    while not last:
        request = json.loads(lines.get())
        # The alarm ends even a client that no thread can interrupt. It comes later than the parent's timeout
        # (GRACE in kafka/worker.py), because the parent's error is more precise.
        signal.alarm(max(1, int(request["end"] - time.monotonic()) + 5))
        response = respond(session, request)
        signal.alarm(0)
        last = response["last"]
        write(response)
    # Closing the client may abort or hang.
    os._exit(0)


def open_channel() -> tuple[queue.SimpleQueue[bytearray], Callable[[Mapping[str, Any]], None]]:
    """
    Return the lines from the parent process, and a function that sends it a value as a line of JSON.

    Other output of this process, such as a client's own, is redirected to standard error.
    """
    # The core file of a client that aborts would contain the credentials. With a limit of 0, Linux would
    # still pipe it to a program.
    with suppress(ValueError):  # the hard limit is 0
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    out = os.dup(1)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(lines, os.getppid()), daemon=True).start()

    def write(value: Mapping[str, Any]) -> None:
        text = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        while text:
            text = text[os.write(out, text) :]

    return lines, write


def read_lines(lines: queue.SimpleQueue[bytearray], parent: int) -> None:
    """Read lines from standard input; exit when the input or the parent process ends."""
    pending = bytearray()
    try:
        while True:
            ready, _, _ = select.select([0], [], [], _WATCH)
            # A fork of the parent may keep the other end of the pipe open.
            data = os.read(0, _PART) if ready else b""
            if os.getppid() != parent or (ready and not data):
                return
            pending += data
            if b"\n" in data:
                *whole, pending = pending.split(b"\n")
                for line in whole:
                    lines.put(line)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
