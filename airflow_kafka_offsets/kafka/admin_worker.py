"""
Makes the calls of an AdminClient, in a process of its own because the client can abort it.

Run as ``python -m airflow_kafka_offsets.kafka.admin_worker``: reads the client's settings and then requests
from standard input, each a line of JSON, and writes a line of JSON for each request to standard output.
Nothing else is written there. It ends with its input, with its parent, and after a failure that may pass.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException

from airflow_kafka_offsets.kafka.admin_calls import CALLS, AdminSession
from airflow_kafka_offsets.kafka.failures import RETRIABLE, CallError, Failure

# More than a pipe holds (64 KB on Linux): one read takes all that is there.
_PART = 1 << 20
_WATCH = 5.0
"""Seconds between two looks at the parent."""


def respond(session: AdminSession, request: dict[str, Any]) -> dict[str, Any]:
    """Make the call of one request; ``last``: a failure may pass, and a new process should try again."""
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
        "last": last,
    }


def _codes(result: Any) -> list[str]:
    """Return the codes of the parts' failures."""
    parts = result.values() if isinstance(result, Mapping) else ()
    return [part[1].code for part in parts if type(part) is tuple and part[1] is not None]


def main() -> None:
    """Read the settings, respond to requests, and end with the input."""
    # As the command line: many values that live until they are sent.
    gc.set_threshold(100_000)
    # What the client prints goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(lines, os.getppid()), daemon=True).start()
    session = AdminSession(**json.loads(lines.get()))
    last = False
    while not last:
        request = json.loads(lines.get())
        # Ends also a client that no thread can interrupt.
        # Later than the parent's own patience (GRACE in kafka/worker.py): the parent says better what was
        # wrong.
        signal.alarm(max(1, int(request["end"] - time.monotonic()) + 5))
        response = respond(session, request)
        signal.alarm(0)
        last = response["last"]
        text = json.dumps(response, separators=(",", ":")).encode() + b"\n"
        while text:
            text = text[os.write(out, text) :]
    # Closing the client may abort or hang.
    os._exit(0)


def read_lines(lines: queue.SimpleQueue[bytearray], parent: int) -> None:
    """Read lines of standard input; end this process with its input, and with its parent."""
    pending = bytearray()
    try:
        while True:
            ready, _, _ = select.select([0], [], [], _WATCH)
            # A copy of the parent may hold the other end of the input open.
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
