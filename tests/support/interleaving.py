"""Lets two movers take turns: each I/O call waits at a gate, and a schedule says who goes next."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_offsets.checkpoint import apply_move, archive, claim, reader
from airflow_kafka_offsets.kafka import fenced, logs, topics
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.admin_process import AdminProcess
from airflow_kafka_offsets.kafka.connection import Connections
from airflow_kafka_offsets.kafka.group_commits import GroupCommits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pytest

HANG = 90.0
"""Seconds after which a mover counts as hung: more than all deadlines of one."""
PATIENCE, PER_STEP = 1.0, 0.1
"""Seconds of a turn, and more for each step, after which a mover counts as waiting for the other one."""
ALL = 10**9
"""Steps to the end of a mover."""

STORAGE_USERS = (apply_move, archive, claim, reader)
STORAGE_CALLS = {
    "list_names": "list {}",
    "read_bytes": "open {}",
    "replace_file": "file {}",
    "remove_file": "remove {}",
    "modified": "time {}",
}

Segment = tuple[str, int]
"""Whose turn it is, and for how many steps."""


class Step(NamedTuple):
    """One I/O call: who made it, what it was, and the offsets that it has read or written."""

    mover: str
    kind: str
    offsets: Mapping[int, int | None] | None = None


class Ending(NamedTuple):
    """How a mover ended: with a result, or with an error."""

    result: Any
    error: BaseException | None


class Interleaving:
    """Runs movers in threads of this process; only the one whose turn it is goes on, until its next gate."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(segments)
        self._turn, self._left = self._segments.pop(0)
        self._until = time.monotonic() + PATIENCE
        self._changed = threading.Condition()
        self._movers: dict[int, str] = {}
        self._ended: set[str] = set()
        self.trace: list[Step] = []
        self.waited = False
        """Whether one of them waited for the other, so that the schedule could not be kept."""

    def run(self, movers: Mapping[str, Callable[[], Any]]) -> dict[str, Ending]:
        """Run the movers to their ends; a hung one is an AssertionError."""
        endings: dict[str, Ending] = {}

        def work(name: str) -> None:
            with self._changed:
                self._movers[threading.get_ident()] = name
            try:
                self.gate("begin")
                endings[name] = Ending(movers[name](), None)
            except BaseException as error:  # noqa: BLE001  # it is judged by the caller
                endings[name] = Ending(None, error)
            finally:
                with self._changed:
                    self._ended.add(name)
                    self._next()

        threads = [threading.Thread(target=work, args=(name,), name=name, daemon=True) for name in movers]
        for thread in threads:
            thread.start()
        end = time.monotonic() + HANG
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        hung = [thread.name for thread in threads if thread.is_alive()]
        assert not hung, f"{hung} did not end within {HANG:g} s: {self.trace}"
        return endings

    def gate(self, kind: str) -> str | None:
        """Wait for this thread's turn; return its mover, ``None`` for a thread that is none."""
        mover = self._movers.get(threading.get_ident())
        if mover is None:
            return None
        with self._changed:
            if self._turn == mover and self._left <= 0:
                self._next()
            while self._turn != mover:
                self._changed.wait(0.05)
                if self._turn != mover and time.monotonic() > self._until:
                    self.waited = True
                    self._give(mover, ALL)
            self._left -= 1
            self._until += PER_STEP
            self.trace.append(Step(mover, kind))
        return mover

    def note(self, mover: str | None, kind: str, offsets: Mapping[int, int | None]) -> None:
        """Record what a mover has read or written."""
        if mover is not None:
            with self._changed:
                self.trace.append(Step(mover, kind, offsets))

    def _next(self) -> None:
        while self._segments:
            mover, steps = self._segments.pop(0)
            if mover not in self._ended:
                return self._give(mover, steps)
        others = {*self._movers.values()} - self._ended
        if others and (self._turn in self._ended or self._left <= 0):
            self._give(min(others), ALL)
        return None

    def _give(self, mover: str, steps: int) -> None:
        self._turn, self._left = mover, steps
        self._until = time.monotonic() + PATIENCE
        self._changed.notify_all()

    def reads(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that waits at a gate, and is recorded as a read of commits."""

        def at_gate(*args: Any, **kwargs: Any) -> Any:
            mover = self.gate(kind)
            found = call(*args, **kwargs)
            self.note(mover, "read", {tp.partition: each and each.offset for tp, each in found.items()})
            return found

        return at_gate

    def sends(self, call: Callable[..., Any], parts: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that waits at a gate, and is recorded as a write where the broker took it."""

        def at_gate(*args: Any) -> Any:
            mover = self.gate("send")
            results = call(*args)
            sent = {tp: at for part in parts(*args) for tp, at in part.items()}
            taken = {tp.partition: at for tp, at in sent.items() if results.get(tp) is None}
            if taken:
                self.note(mover, "write", taken)
            return results

        return at_gate

    def plain(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that waits at a gate; ``{}`` in its kind is the file or the request."""

        def at_gate(*args: Any, **kwargs: Any) -> Any:
            self.gate(kind.format(str(args[1]).rpartition("/checkpoint/")[2]) if "{}" in kind else kind)
            return call(*args, **kwargs)

        return at_gate

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Put gates before every request to the broker, and every read and write of the checkpoint."""
        with monkeypatch.context() as patch:

            def put(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
                patch.setattr(owner, name, wrap(getattr(owner, name)))

            put(GroupCommits, "read", lambda call: self.reads("read commits", call))
            put(fenced, "send_commit", lambda call: self.sends(call, lambda _, offsets, *__: [offsets]))
            put(Admin, "commit", lambda call: self.sends(call, lambda _, __, parts, *___: parts))
            put(logs, "read_offsets", lambda call: self.plain("log", call))
            put(topics, "read_topics", lambda call: self.plain("topics", call))
            put(fenced._Member, "join", lambda call: self.plain("join", call))
            put(Connections, "close", lambda call: self.plain("leave", call))
            patch.setattr(AdminProcess, "run", self._admin(AdminProcess.run))
            for room, name in itertools.product(STORAGE_USERS, STORAGE_CALLS):
                if hasattr(room, name):
                    put(room, name, partial(self.plain, STORAGE_CALLS[name]))
            yield

    def _admin(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def at_gate(process: Any, about: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if name != "commits":  # they have a gate of their own
                self.gate(f"admin {name}")
            return call(process, about, name, *args, **kwargs)

        return at_gate
