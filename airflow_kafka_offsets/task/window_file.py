"""Passes windows between tasks, as JSON or as a file where they are too large for XCom or an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.hooks.checkpoint import storage_from_connection
from airflow_kafka_offsets.model.commit_metadata import RunStart
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.model.text import describe_type, shorten
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.pipeline import parse_location
from airflow_kafka_offsets.storage import open_location, read_text, replace_file

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MAX_ARGUMENT = 100_000
"""Bytes of a window that is handed over as text: Linux limits one argument to 128 KiB."""

RUN = ("dag_id", "run_id", "task_id", "map_index", "iteration")
"""What of a window's source names the task run that planned it."""
RUN_START = ("run_started", "run_clears")
"""What of it tells that run from a deleted one with the same id."""


def write_window(uri: str, window: OffsetWindow, conn_id: str | None = None) -> None:
    """Write a window's JSON to a file, which is there whole or not at all."""
    write_text(uri, window.as_text(), conn_id, "window_file", "window_conn_id")


def write_text(uri: str, text: str, conn_id: str | None, parameter: str, conn_parameter: str) -> None:
    """
    Write a text file, which is there whole or not at all.

    :param parameter: what names the file, and ``conn_parameter`` its storage, for the error texts.
    """
    check_location(uri, parameter, conn_parameter)
    replace_file(*open_location(uri, storage_from_connection(uri, conn_id, conn_parameter)), text.encode())


def read_window_file(uri: str, conn_id: str | None = None) -> OffsetWindow | None:
    """Return the window that a file holds, ``None`` if there is no such file."""
    text = read_text(uri, _storage(uri, conn_id))
    return None if text is None else OffsetWindow.parse(text, uri, show=describe_type)


def load_window(value: object, conn_id: str | None = None) -> OffsetWindow:
    """
    Read a window that another task has planned.

    :param value: what ``PlanOffsetWindowOperator`` returned, as a mapping or as JSON text, or the URI of its
        file.
    :param conn_id: Airflow connection of the file's storage.
    :raises PlanRefusedError: if the file is gone, or by now holds the window of another run, or another one
        than was planned: the job reads what is in the file.
    """
    window, uri = split_window(value)
    if isinstance(window, OffsetWindow):
        return window
    return _existing(uri, conn_id) if window is None else _in_its_file(window, uri, conn_id)


def split_window(value: object) -> tuple[OffsetWindow | Mapping[str, Any] | None, str]:
    """Return a window as :func:`load_window` takes it, unread if it is in a file, and the file's URI."""
    if isinstance(value, str):
        if not value.strip().startswith("{"):
            return None, parse_location(value.strip(), "window", "window_conn_id")
        value = load_json(value, "window")
    if isinstance(value, Mapping) and value.get("window_file"):
        return value, str(value["window_file"])
    return OffsetWindow.parse(value), ""


def is_same_task_run(source: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two windows were planned by the same task of the same run."""
    return all(source.get(name) == other.get(name) for name in RUN)


def planning_run_start(window: OffsetWindow) -> RunStart:
    """Return when the run was started that a window was planned in."""
    at, clears = (window.source.get(name) for name in RUN_START)
    return RunStart(at if isinstance(at, int) else None, clears if isinstance(clears, int) else 0)


def other_run_refusal(uri: str, window: OffsetWindow) -> PlanRefusedError:
    """Return the refusal of a file that another run's window is in."""
    names = (name for name in RUN if window.source.get(name) is not None)
    found = ", ".join(f"{name}={shorten(window.source[name])}" for name in names)
    return PlanRefusedError(
        [
            f"window_file={shorten(uri)} holds the window of another run ({found}): give each run a file of "
            "its own, as with "
            'window_file=\'.../{{ run_id | replace(":", "") }}.json\', and each mapped task or loop '
            "iteration its own"
        ]
    )


def window_xcom(window: OffsetWindow, uri: str, *, whole: bool) -> dict[str, Any]:
    """
    Return the XCom of a window that is in a file.

    :param whole: whether all of it, or only what tells it from others: it may be too large.
    """
    form = window.as_json()
    if whole:
        return {**form, "window_file": uri}
    marks = _marks(window)
    source = {**form["source"], "ranges": marks.pop("ranges")}
    return {"version": form["version"], **marks, "source": source, "window_file": uri}


def _in_its_file(value: Mapping[str, Any], uri: str, conn_id: str | None) -> OffsetWindow:
    # A window that was too large for XCom is there with its marks only.
    whole = None if value.get("start") is None else OffsetWindow.parse(value)
    window = read_window_file(uri, conn_id) if whole else _existing(uri, conn_id)
    if window is None:
        # The job has read it, and all of it is here.
        return OffsetWindow.parse(value)
    source = value.get("source") or {}
    if not isinstance(source, Mapping) or not is_same_task_run(window.source, source):
        raise other_run_refusal(uri, window)
    found = _marks(window)
    planned = _marks(whole) if whole else {**value, "ranges": source.get("ranges")}
    if others := [name for name in found if planned.get(name) not in (None, found[name])]:
        differs = ", ".join(f"{name}={found[name]} in place of {shorten(planned[name])}" for name in others)
        raise changed_file_refusal(uri, differs)
    return window


def _marks(window: OffsetWindow) -> dict[str, Any]:
    return {"records": window.records, "partitions": len(window.ranges), "ranges": window.digest}


def changed_file_refusal(uri: str, found: str) -> PlanRefusedError:
    """Return the refusal of a file whose window is not the one that was planned."""
    return PlanRefusedError(
        [
            f"window_file={shorten(uri)} was changed since it was planned: found {found}. The job may have "
            "read other records than were planned: put the file back, or trigger a new run"
        ]
    )


def _existing(uri: str, conn_id: str | None) -> OffsetWindow:
    window = read_window_file(uri, conn_id)
    if window is None:
        raise PlanRefusedError(
            [
                f"window={shorten(uri)}: there is no such file: correct the URI and window_conn_id, or "
                "trigger a new run"
            ]
        )
    return window


def _storage(uri: str, conn_id: str | None) -> AbstractFileSystem | None:
    check_location(uri, "window_file", "window_conn_id")
    return storage_from_connection(uri, conn_id, "window_conn_id")
