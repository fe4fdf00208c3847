"""A worker process, which carries out one order, reports, and must leave nothing behind."""

import logging
import os
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_kafka_offsets.errors import KafkaOffsetsError
from tests.soak import actions
from tests.soak.faults import FAULT_THREAD, Steps
from tests.soak.schedule import Fault

MARK = "KAFKA_OFFSETS_SOAK"
"""Environment variable by which the children of a worker are found after its end."""

_SETTLE = 6.0
"""Seconds within which a worker's threads, sockets and children are gone after its action."""

_SETTLE_POLLER = 20.0
"""The same after a wait: a shared poller ends after the round that it is in."""


def run(connection: Connection, order: actions.Order, fault: Fault | None, mark: str, home: str) -> None:
    """Carry out an order, and send what came of it."""
    temporary = Path(home, "tmp")
    temporary.mkdir(exist_ok=True)
    os.environ |= {MARK: mark, "TMPDIR": str(temporary)}
    logging.disable(logging.CRITICAL)

    def ask() -> None:
        connection.send(("strike", None))
        connection.recv()

    steps = Steps(order.checkpoint or home, fault, ask)
    steps.install()
    outcome: dict[str, Any] = {}
    before = threading.active_count()
    began = time.monotonic()
    try:
        outcome["result"] = actions.carry_out(order)
    except (KafkaOffsetsError, actions.CommandError) as error:
        outcome |= {"error": type(error).__name__, "text": str(error)}
        outcome["retriable"] = getattr(error, "retriable", None)
    except AirflowTaskTimeout as error:
        # Nobody can say more about a storage that no longer answers.
        outcome |= {"error": type(error).__name__, "text": "", "retriable": True}
    except BaseException as error:  # noqa: BLE001  # whatever else comes out is a defect, and named as one
        outcome |= {"error": f"foreign {type(error).__name__}", "text": str(error), "retriable": None}
    stalled = steps.stalled
    steps.end()
    outcome |= {"seconds": time.monotonic() - began, "steps": steps.count, "struck": steps.struck}
    outcome["stalled"] = stalled
    root = Path(order.checkpoint or home)
    ended = stalled or outcome.get("error") == AirflowTaskTimeout.__name__
    outcome["left"] = _left(before, temporary, root, order.name, ended=ended)
    connection.send(("outcome", outcome))


def _left(threads: int, temporary: Path, checkpoint: Path, name: str, *, ended: bool) -> list[str]:
    """
    Return what an action has left behind.

    :param ended: whether it was ended from outside: then it leaves files as a killed one does.
    """
    me = psutil.Process()
    deadline = time.monotonic() + (_SETTLE_POLLER if name == "wait" else _SETTLE)
    while True:
        left = [f"child {child.pid}" for child in me.children(recursive=True)]
        left += [f"socket to {each.raddr}" for each in me.net_connections() if each.raddr]
        left += [
            f"open file {each.path}" for each in me.open_files() if each.path.startswith(str(checkpoint))
        ]
        left += [f"file {path}" for path in temporary.iterdir()]
        # Airflow's bridge between threads and event loops keeps one.
        others = [each.name for each in threading.enumerate()[threads:] if not _is_others(each, name)]
        left += [f"thread {each}" for each in others]
        if not ended:
            left += [f"file {path}" for path in checkpoint.rglob(".*.tmp")]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _is_others(thread: threading.Thread, action: str) -> bool:
    return thread.name == FAULT_THREAD or (action == "wait" and thread.name.startswith("ThreadPoolExecutor"))


def told(outcome: dict[str, Any] | None) -> str:
    """Return what came of an order, for the log of a schedule."""
    if outcome is None:
        return "killed"
    what = f"{outcome['error']}: {outcome['text']}" if "error" in outcome else f"done: {outcome['result']}"
    return f"{what} ({outcome['steps']} steps, {outcome['seconds']:.1f} s, struck: {outcome['struck']})"


def marked(mark: str) -> list[str]:
    """Return the processes that a worker has started and that run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
    return found
