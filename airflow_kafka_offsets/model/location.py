"""Locations of checkpoints and files: what is refused before a storage is opened."""

from __future__ import annotations

import re

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.text import is_plain, shorten
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Line feeds and the like, and what turns the text after it around: logs and errors show locations."""
_NO_FILE_HERE = re.compile(r"(?:file|local):(?!/(?:[^/]|$)|///)", re.IGNORECASE)
_PASSWORD = re.compile(r"(?i:s3[an]?)://[^/@:]*:[^@]*@|[A-Za-z0-9+.-]+://[^/@:]*:[^/@]*@")
"""Old Hadoop wrote ``s3a://KEY:SECRET@bucket``, and such a secret may hold slashes."""


def check_location_text(location: str) -> None:
    """
    Refuse a location that is no path for every storage, or that would write into the lines that show it.

    :raises UsageError: if it is empty, or has such characters.
    """
    if not location:
        raise UsageError("the location is empty; expected a URI as the Spark job has it")
    if not is_plain(location) or _CONTROLS.search(location):
        raise UsageError(
            f"the location {location!r} has characters that no path should have, such as a line feed; "
            "expected a URI as the Spark job has it"
        )


def check_file_uri(location: str) -> None:
    """
    Refuse the URI of a file that names a host, as ``file://`` with two slashes does, or has no whole path.

    fsspec would take the host for a directory below the working directory, and Spark refuses it.

    :raises UsageError: if it is one.
    """
    if _NO_FILE_HERE.match(location):
        raise UsageError(
            f"the location {shorten(location)} names a host, or has no whole path; expected file:///path: "
            "three slashes and a path that begins at the root"
        )


def check_location(
    location: object,
    parameter: str = "checkpoint_location",
    conn_parameter: str | None = "checkpoint_conn_id",
) -> None:
    """
    Refuse a location with a password in it.

    :param parameter: what the location was given as, for the error text.
    :param conn_parameter: what names the connection of its storage, ``None`` if nothing does.
    :raises UsageError: without repeating the password.
    """
    if isinstance(location, str) and _PASSWORD.match(location):
        scheme = location.partition(":")[0]
        where = "the configuration of the storage's driver"
        if conn_parameter is not None:
            where = f"an Airflow connection and name it with {parameter_text(conn_parameter)}"
        raise parameter_error(
            parameter,
            f" ({scheme}://...) holds a password, which logs and the UI would show: put the credentials into "
            f"{where}",
        )
