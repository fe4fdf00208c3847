"""How does a window reach a task: as JSON, or as a file that is too large for XCom or an argument?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.checkpoint.storage import open_location, plain_errors, read_bytes, replace_file
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.hooks.checkpoint import storage_of
from airflow_kafka_offsets.model.offset_window import OffsetWindow
from airflow_kafka_offsets.model.offsets import load_json, shorten
from airflow_kafka_offsets.pipeline import check_location

MAX_ARGUMENT = 100_000
"""Bytes of a window that is handed over as text: Linux limits one argument to 128 KiB."""

RUN = ("dag_id", "run_id", "task_id", "map_index")
"""What of a window's source names the task run that planned it."""


def write_window(uri: str, window: OffsetWindow, conn_id: str | None = None) -> None:
    """
    Write a window's JSON to a file, which is there whole or not at all.

    :param conn_id: Airflow connection of the storage.
    """
    with plain_errors(uri, "write"):
        replace_file(*_open(uri, conn_id), window.as_text().encode())


def read_window_file(uri: str, conn_id: str | None = None) -> OffsetWindow | None:
    """Return the window that a file holds, ``None`` if there is no such file."""
    with plain_errors(uri):
        data = read_bytes(*_open(uri, conn_id))
    return None if data is None else OffsetWindow.parse(data.decode("utf-8", "replace"), uri)


def load_window(value: object, conn_id: str | None = None) -> OffsetWindow:
    """
    Read a window that another task has planned.

    :param value: what ``PlanOffsetWindowOperator`` returned, as a mapping or as JSON text, or the URI of its file.
    :param conn_id: Airflow connection of the file's storage.
    :raises PlanRefusedError: if the file is gone, or by now holds the window of another run.
    """
    if isinstance(value, str) and value.strip().startswith("{"):
        value = load_json(value, "window")
    if isinstance(value, Mapping) and value.get("start") is None and value.get("window_file"):
        uri = str(value["window_file"])
        window = _existing(uri, conn_id)
        if same_run(window.source, value.get("source") or {}):
            return window
        raise not_this_run(uri, window)
    if isinstance(value, str):
        return _existing(value.strip(), conn_id)
    return OffsetWindow.parse(value)


def same_run(source: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two windows were planned by the same task of the same run."""
    return all(source.get(name) == other.get(name) for name in RUN)


def not_this_run(uri: str, window: OffsetWindow) -> PlanRefusedError:
    """Return the refusal of a file that another run's window is in."""
    found = ", ".join(f"{name}={window.source.get(name)}" for name in RUN)
    return PlanRefusedError(
        [
            f"window_file={shorten(uri)} holds the window of another run ({found}): give each run a file of its own, as with "
            'window_file=\'.../{{ run_id | replace(":", "") }}.json\', and each mapped task its own'
        ]
    )


def _existing(uri: str, conn_id: str | None) -> OffsetWindow:
    window = read_window_file(uri, conn_id)
    if window is None:
        raise PlanRefusedError(
            [
                f"window={shorten(uri)}: there is no such file: plan the window again, or correct the URI and window_conn_id"
            ]
        )
    return window


def _open(uri: str, conn_id: str | None) -> tuple[Any, str]:
    check_location(uri, "window_file", "window_conn_id")
    return open_location(uri, storage_of(uri, conn_id, "window_conn_id"))
