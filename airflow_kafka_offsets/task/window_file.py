"""Passes windows between tasks as JSON, or in a file if they are too large for XCom or an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.hooks.checkpoint import storage_from_connection
from airflow_kafka_offsets.model.commit_metadata import RunStart
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.model.text import describe_type, shorten
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.pipeline import parse_location
from airflow_kafka_offsets.storage import open_location, read_text, replace_file

MAX_ARGUMENT = 100_000
"""Maximum bytes of a window that is passed as text: Linux limits one argument to 128 KiB."""

RUN = ("dag_id", "run_id", "task_id", "map_index", "iteration")
"""Keys in a window's source that identify the task run that planned the window."""
RUN_START = ("run_started", "run_clears")
"""Keys in a window's source that distinguish its run from a deleted run with the same id."""


def write_window(uri: str, window: OffsetWindow, conn_id: str | None = None) -> None:
    """Write a window's JSON to a file atomically."""
    write_text(uri, window.as_text(), conn_id, "window_file", "window_conn_id")


def write_text(uri: str, text: str, conn_id: str | None, parameter: str, conn_parameter: str) -> None:
    """
    Write a text file atomically.

    :param parameter: the parameter that names the file, for the error texts.
    :param conn_parameter: the parameter that names the file's storage, for the error texts.
    """
    check_location(uri, parameter, conn_parameter)
    replace_file(*open_location(uri, storage_from_connection(uri, conn_id, conn_parameter)), text.encode())


def read_window_file(uri: str, conn_id: str | None = None) -> OffsetWindow | None:
    """Return the window in a file, ``None`` if the file does not exist."""
    check_location(uri, "window_file", "window_conn_id")
    text = read_text(uri, storage_from_connection(uri, conn_id, "window_conn_id"))
    return None if text is None else OffsetWindow.parse(text, uri, show=describe_type)


def load_window(value: object, conn_id: str | None = None) -> OffsetWindow:
    """
    Read a window that another task has planned.

    :param value: the result of ``PlanOffsetWindowOperator``, as a mapping or as JSON text, or the URI of its
        file.
    :param conn_id: Airflow connection of the file's storage.
    :raises PlanRefusedError: if the file does not exist, or now contains the window of another run or a
        window that differs from the planned one. The job reads the window in the file.
    """
    window, uri = split_window(value)
    if isinstance(window, OffsetWindow):
        return window
    return _existing(uri, conn_id) if window is None else _in_its_file(window, uri, conn_id)


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


def planning_run_start(window: OffsetWindow) -> RunStart:
    """Return the start of the run that planned a window."""
    at, clears = (window.source.get(name) for name in RUN_START)
    return RunStart(at if isinstance(at, int) else None, clears if isinstance(clears, int) else 0)


def other_run_refusal(uri: str, window: OffsetWindow) -> PlanRefusedError:
    """Return the refusal of a file that contains another run's window."""
    names = (name for name in RUN if window.source.get(name) is not None)
    found = ", ".join(f"{name}={shorten(window.source[name])}" for name in names)
    return PlanRefusedError(
        f"window_file={shorten(uri)} contains the window of another run ({found}): use a different file "
        'for each run, such as window_file=\'.../{{ run_id | replace(":", "") }}.json\', and for each '
        "mapped task or loop iteration"
    )


def window_xcom(window: OffsetWindow, uri: str, *, whole: bool) -> dict[str, Any]:
    """
    Return the XCom of a window that is in a file.

    :param whole: whether the XCom has the whole window. Otherwise it only has the window's totals and digest.
    """
    form = window.as_json()
    if whole:
        return {**form, "window_file": uri}
    marks = _marks(window)
    source = {**form["source"], "ranges": marks.pop("ranges")}
    return {"version": form["version"], **marks, "source": source, "window_file": uri}


def _in_its_file(value: Mapping[str, Any], uri: str, conn_id: str | None) -> OffsetWindow:
    # The XCom of a window that was too large only has its totals and digest.
    whole = None if value.get("start") is None else OffsetWindow.parse(value)
    window = read_window_file(uri, conn_id) if whole else _existing(uri, conn_id)
    if window is None:
        # The file was deleted after the job has read it. The XCom has the whole window.
        return OffsetWindow.parse(value)
    source = value.get("source") or {}
    if not isinstance(source, Mapping) or not is_same_task_run(window.source, source):
        raise other_run_refusal(uri, window)
    found = _marks(window)
    planned = _marks(whole) if whole else {**value, "ranges": source.get("ranges")}
    if others := [name for name in found if planned.get(name) not in (None, found[name])]:
        differs = ", ".join(f"{name}={found[name]} instead of {shorten(planned[name])}" for name in others)
        raise changed_file_refusal(uri, differs)
    return window


def _marks(window: OffsetWindow) -> dict[str, Any]:
    return {"records": window.records, "partitions": len(window.ranges), "ranges": window.digest}


def changed_file_refusal(uri: str, found: str) -> PlanRefusedError:
    """Return the refusal of a file whose window differs from the planned window."""
    return PlanRefusedError(
        f"window_file={shorten(uri)} was changed since the window was planned: found {found}. The job "
        "may have read other records than planned: restore the file, or trigger a new run"
    )


def _existing(uri: str, conn_id: str | None) -> OffsetWindow:
    window = read_window_file(uri, conn_id)
    if window is None:
        raise PlanRefusedError(
            f"window={shorten(uri)}: the file does not exist: correct the URI and window_conn_id, or "
            "trigger a new run"
        )
    return window
