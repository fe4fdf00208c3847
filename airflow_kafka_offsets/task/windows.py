"""
Keeps the windows that a run has planned and committed, and passes them to other tasks as JSON or in a file.

The records that a run reads must not change if its plan task is retried or the run is cleared. Airflow 3.3
keeps a task's state until the run is deleted. A window file keeps the window on any version.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import Context

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.hooks.checkpoint import storage_from_connection
from airflow_kafka_offsets.model.certificate import Certificate
from airflow_kafka_offsets.model.commit_metadata import RunStart
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.model.text import describe_type, shorten
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.pipeline import parse_location
from airflow_kafka_offsets.readings.window import is_committed_by_run
from airflow_kafka_offsets.storage import open_location, read_text, replace_file
from airflow_kafka_offsets.task.identity import commit_metadata, was_cleared

log = logging.getLogger(__name__)

_KEY = "kafka_offsets.window"
_BEGUN = "kafka_offsets.window_begun"
"""Shows that the task's state of earlier tries still exists, even if no try has kept a window."""
_COMMITTED = "kafka_offsets.committed_window"

MAX_ARGUMENT = 100_000
"""Maximum bytes of a window that is passed as text: Linux limits one argument to 128 KiB."""

RUN = ("dag_id", "run_id", "task_id", "map_index", "iteration")
"""Keys in a window's source that identify the task run that planned the window."""
RUN_START = ("run_started", "run_clears")
"""Keys in a window's source that distinguish its run from a deleted run with the same id."""


class WindowMemory:
    """Keeps the window that one task has planned in one run, also in a file if the window has one."""

    def __init__(self, context: Context, window_file: str | None, conn_id: str | None) -> None:
        self._store: Any = context.get("task_state_store")
        self._file = window_file
        self._conn_id = conn_id
        self._run = commit_metadata(context)
        self._ran_before = (self._run.try_number or 1) > 1
        # Airflow 3.1 counts a Clear in the run only if the run had ended.
        cleared = was_cleared(context, getattr(context.get("task"), "retries", 0))
        self._cleared = self._run.run_start.clears > 0 or cleared
        self.run: dict[str, Any] = {name: getattr(context.get("ti"), name, None) for name in RUN}
        self.run |= {"map_index": self._run.map_index, "iteration": self._run.iteration}
        self.run |= dict(zip(RUN_START, self._run.run_start, strict=True))

    def recall(self) -> OffsetWindow | None:
        """Return the window that was planned before, or ``None``; refuse a window that was changed."""
        stored: Any = self._store.get(_KEY) if self._store is not None else None
        if stored is not None and not isinstance(stored, Mapping):
            raise PlanRefusedError(f"the task's state {_KEY!r} is not a window: delete this state")
        uri = self._file if stored is None else stored.get("window_file")
        if self._file and self._file != uri:
            # The parameter was changed. The window is also written to the new file.
            self._read_file(self._file)
        if not uri:
            return None if stored is None else OffsetWindow.parse(stored, "the window kept with the task")
        # The file is used, not the copy in the task's state, because the job reads the file.
        window = self._read_file(uri)
        if window is None:
            if stored is None:
                return None
            raise PlanRefusedError(
                f"{uri}, the file with the window of this run, does not exist any more: trigger a new run"
            )
        if stored is not None:
            if stored.get("ranges") not in (None, window.digest):
                raise changed_file_refusal(uri)
            return window
        at, clears = (window.source.get(name) for name in RUN_START)
        started = RunStart(at if isinstance(at, int) else None, clears if isinstance(clears, int) else 0)
        if not self._run.run_start.continues(started):
            log.info("%s contains the window of a deleted run with this run's id, and is replaced", uri)
            return None
        return window

    def _read_file(self, uri: str) -> OffsetWindow | None:
        """Return the window in a file; refuse another run's window, which must not be read or overwritten."""
        window = read_window_file(uri, self._conn_id)
        if window is not None and not is_same_task_run(window.source, self.run):
            raise other_run_refusal(uri, window.source)
        return window

    def keep(self, window: OffsetWindow) -> None:
        """Write the window to its file, and keep it with the task."""
        if self._file:
            write_text(self._file, window.as_text(), self._conn_id, "window_file", "window_conn_id")
        if self._store is not None:
            kept: Any = json.loads(window.as_text())
            if self._file:
                kept = {"window_file": self._file, "ranges": window.digest}
            # airflow.sdk.NEVER_EXPIRE, which versions before 3.3 do not have. Deleted together with the run.
            self._store.set(_KEY, kept, retention=timedelta.max)

    def refuse_other_records(self, client: OffsetsClient, selection: GroupSelection) -> None:
        """
        Refuse to plan from the group's current position for a run that was cleared, or has committed.

        A task that has not run before has no earlier window, unless it is in a task loop: Airflow creates the
        iterations after a cleared iteration again. If a task is only retried, no other task has used its
        earlier window, because the downstream tasks run after it has succeeded. While Airflow keeps the
        task's state, a window that is not in the state was never planned. Airflow may delete the state when
        the task succeeds (``clear_on_success``) and, from 3.4 on, when the task is cleared.
        """
        if self._store is not None and self._store.get(_BEGUN) is not None:
            return
        in_loop, has_group = self._run.iteration is not None, selection.group_id is not None
        # A group's commits show whether an iteration has run. Without a group this is unknown.
        cleared = self._cleared and (self._ran_before or (in_loop and not has_group))
        may_have_run = self._ran_before or (in_loop and self._cleared)
        if cleared or (may_have_run and has_group and is_committed_by_run(client, selection, self._run)):
            found = "was cleared" if cleared else "has already committed"
            raise PlanRefusedError(
                f"this run {found}, and the records that it read are not known any more; 'committed', "
                "'earliest' and 'latest' now select other records: trigger a new run for these. A run "
                "can be cleared if start and end are times or offsets, with window_file, or if Airflow "
                "has kept the task's state (3.3 and later without [state_store] clear_on_success; on 3.4 "
                "clear with 'Keep task state')"
            )
        if self._store is not None:
            self._store.set(_BEGUN, True, retention=timedelta.max)


class CommitMemory:
    """Keeps a task's committed window over retries and Clears (Airflow 3.3); ``same`` has its groups."""

    def __init__(self, context: Context, window: OffsetWindow, **same: Any) -> None:
        self._store: Any = context.get("task_state_store")
        self._digest = digest(window.digest, same, length=12)

    @property
    def committed_at(self) -> str | None:
        """When this task committed the same window; ``None`` if it did not, or if this is unknown."""
        kept: Any = self._store.get(_COMMITTED) if self._store is not None else None
        if not isinstance(kept, Mapping) or kept.get("digest") != self._digest:
            return None
        return str(kept.get("at"))

    def keep(self) -> None:
        """Note that the window was committed, by this execution of the task or an earlier one."""
        # The first time is kept: a cleared task that finds its window committed did not commit it again.
        if self._store is not None and self.committed_at is None:
            at = datetime.now(tz=timezone.utc).isoformat(timespec="seconds")
            self._store.set(_COMMITTED, {"digest": self._digest, "at": at}, retention=timedelta.max)


def write_text(uri: str, text: str, conn_id: str | None, parameter: str, conn_parameter: str) -> None:
    """Write a text file atomically; errors name the parameters of the file and of its storage."""
    check_location(uri, parameter, conn_parameter)
    replace_file(*open_location(uri, storage_from_connection(uri, conn_id, conn_parameter)), text.encode())


def write_certificate(uri: str, certificate: Certificate, conn_id: str | None) -> None:
    """Write a certificate to a file; refuse another audit's certificate and any other file."""
    check_location(uri, "save_to", "save_conn_id")
    text = read_text(uri, storage_from_connection(uri, conn_id, "save_conn_id"))
    if text is not None:
        earlier = Certificate.parse(text, f"save_to={uri}", describe=describe_type)
        same_run = is_same_task_run(earlier.window["source"], certificate.window["source"])
        if (found := _subject(earlier)) != _subject(certificate) or not same_run:
            raise PlanRefusedError(
                f"save_to={shorten(uri)} contains the certificate of another audit ({shorten(found, 300)}): "
                "use a different file for each run, audit and mapped task, or delete this one if it is not "
                "needed"
            )
    write_text(uri, certificate.as_text(), conn_id, "save_to", "save_conn_id")


def _subject(certificate: Certificate) -> str:
    audited, topics = certificate.audited, ", ".join(sorted(certificate.window["end"]))
    run = _run_text(certificate.window["source"])
    return f"table {audited.get('table')} of {audited.get('conn_id')}, topics {topics}, {run}"


def read_window_file(uri: str, conn_id: str | None = None) -> OffsetWindow | None:
    """Return the window in a file, ``None`` if the file does not exist."""
    check_location(uri, "window_file", "window_conn_id")
    text = read_text(uri, storage_from_connection(uri, conn_id, "window_conn_id"))
    return None if text is None else OffsetWindow.parse(text, uri, show=describe_type)


def load_window(value: object, conn_id: str | None = None) -> OffsetWindow:
    """
    Read a window that another task has planned.

    :param value: the result of ``PlanOffsetWindowOperator``, as a mapping or as JSON text, or its file's URI.
    :param conn_id: Airflow connection of the file's storage.
    :raises PlanRefusedError: if the file does not exist, or now contains the window of another run or a
        window that differs from the planned one. The job reads the window in the file.
    """
    given, uri = split_window(value)
    if isinstance(given, OffsetWindow):
        return given
    # The XCom of a window that was too large only has its totals and digest.
    whole = None if given is None or given.get("start") is None else OffsetWindow.parse(given)
    window = read_window_file(uri, conn_id)
    if window is None and whole is not None:
        # The file was deleted after the job has read it. The XCom has the whole window.
        return whole
    if window is None:
        raise PlanRefusedError(
            f"window={shorten(uri)}: the file does not exist: correct the URI and window_conn_id, or "
            "trigger a new run"
        )
    if given is None:
        return window
    source = given.get("source") or {}
    if not isinstance(source, Mapping) or not is_same_task_run(window.source, source):
        raise other_run_refusal(uri, window.source)
    if window.digest != (source.get("ranges") if whole is None else whole.digest):
        raise changed_file_refusal(uri)
    return window


def split_window(value: object) -> tuple[OffsetWindow | Mapping[str, Any] | None, str]:
    """Return the window and the file's URI in a value for :func:`load_window`; the file is not read."""
    if isinstance(value, str):
        if not value.strip().startswith("{"):
            return None, parse_location(value.strip(), "window", "window_conn_id")
        value = load_json(value, "window")
    if isinstance(value, Mapping) and value.get("window_file"):
        return value, str(value["window_file"])
    return OffsetWindow.parse(value), ""


def is_same_task_run(source: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two windows were planned by the same task of the same run."""
    return all(source.get(name) == other.get(name) for name in RUN)


def _run_text(source: Mapping[str, Any]) -> str:
    names = (name for name in RUN if source.get(name) is not None)
    return ", ".join(f"{name}={shorten(source[name])}" for name in names)


def other_run_refusal(uri: str, source: Mapping[str, Any]) -> PlanRefusedError:
    """Return the refusal of a file that contains another run's window."""
    return PlanRefusedError(
        f"window_file={shorten(uri)} contains the window of another run ({_run_text(source)}): use a "
        'different file for each run, such as window_file=\'.../{{ run_id | replace(":", "") }}.json\', and '
        "for each mapped task or loop iteration"
    )


def window_xcom(window: OffsetWindow, uri: str, *, whole: bool) -> dict[str, Any]:
    """Return the XCom of a window that is in a file: the whole window, or its totals and digest."""
    form = window.as_json()
    if whole:
        return {**form, "window_file": uri}
    totals = {"records": window.records, "partitions": len(window.ranges)}
    source = {**form["source"], "ranges": window.digest}
    return {"version": form["version"], **totals, "source": source, "window_file": uri}


def changed_file_refusal(uri: str) -> PlanRefusedError:
    """Return the refusal of a file whose window differs from the planned window."""
    return PlanRefusedError(
        f"window_file={shorten(uri)} was changed since the window was planned: found other ranges. The job "
        "may have read other records than planned: restore the file, or trigger a new run"
    )
