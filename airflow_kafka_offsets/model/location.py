"""The locations of checkpoints and files: their checks and comparison, before a storage is opened."""

from __future__ import annotations

import re

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.text import is_plain, shorten
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text

_FSSPEC_SCHEME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
"""Hadoop's scheme -> fsspec's scheme, if they differ or fsspec does not know Hadoop's scheme."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters and changes of the text direction, which would break the lines of logs."""
_NO_FILE_HERE = re.compile(r"(?:file|local):(?!/(?:[^/]|$)|///)", re.IGNORECASE)
_NO_BUCKET = re.compile(r"(?:s3[an]?|gs|gcs|abfss?|wasbs?|az):(?!//[^/])", re.IGNORECASE)
PASSWORD = re.compile(r"(?s:.*::)?(?:(?i:s3[an]?):/+[^/]*:|(?:[A-Za-z0-9+.-]+:/+|//)[^/@:]*:[^/@]*@)")
"""
The start of a URI with a password, or of old Hadoop's ``s3a://KEY:SECRET@``: no bucket has a colon. It may
follow ``::``, as in fsspec's chains of URLs, which are not opened.
"""
_CHAIN = re.compile(r"[A-Za-z0-9+.-]+::")
_SLASHES = re.compile("/+")
_EXPRESSION = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}")
"""A part of a template, whose colons and slashes are not the location's."""


def split_scheme(location: str) -> tuple[str, str]:
    """Return fsspec's scheme of a location, ``file`` for a path, and the text after the scheme."""
    found = _SCHEME.match(location)
    scheme, rest = (found[1].lower(), location[found.end() :]) if found else ("file", location)
    return _FSSPEC_SCHEME.get(scheme, scheme), rest


def one_spelling(location: str) -> str:
    """Return the same text for each spelling of a location, such as ``s3://lake/cp`` and ``s3a://lake/cp/``."""
    scheme, rest = split_scheme(location)
    whole = hadoop_path(rest.removeprefix("//"))
    path = whole.rstrip("/") or whole[:1]
    return path if scheme == "file" else f"{scheme}://{path}"


def is_same_location(one: str, other: str) -> bool:
    """Whether two locations differ in their spelling only."""
    return one_spelling(one) == one_spelling(other)


def hadoop_path(path: str) -> str:
    """Return a path as Spark reads it: Hadoop takes several slashes for one, and an object store does not."""
    return _SLASHES.sub("/", path)


def check_location_text(location: str) -> None:
    """Refuse a location that is empty, or no path in any storage, or that would break the lines of a log."""
    if not location:
        raise UsageError("the location is empty; expected the URI that the Spark job uses")
    if not is_plain(location) or _CONTROLS.search(location):
        raise UsageError(
            f"the location {location!r} has characters that no path should have, such as a line feed; "
            "expected the URI that the Spark job uses"
        )


def check_uri(location: str) -> None:
    """
    Refuse a URI of an object store without a bucket, such as ``s3a:/path``, a file URI that names a host,
    such as ``file://`` with two slashes, or that has a relative path, and a chain of URLs.

    The host or the chain would be a directory below the working directory, and Spark refuses such a URI.
    """
    if _CHAIN.match(location):
        raise UsageError(
            f"the location {shorten(location)} is a chain of URLs; expected the URI that the Spark job uses"
        )
    if _NO_BUCKET.match(location):
        raise UsageError(
            f"the location {shorten(location)} names no bucket: expected two slashes and a bucket, such as "
            "s3a://bucket/path"
        )
    if _NO_FILE_HERE.match(location):
        raise UsageError(
            f"the location {shorten(location)} names a host, or has a relative path; expected file:///path: "
            "three slashes and a path that begins at the root"
        )


def check_location(
    location: object,
    parameter: str = "checkpoint_location",
    conn_parameter: str | None = "checkpoint_conn_id",
) -> None:
    """
    Refuse a location that contains a password, with a UsageError that does not repeat it.

    :param conn_parameter: the parameter with the connection of the storage; ``None`` without this parameter.
    """
    if isinstance(location, str) and PASSWORD.match(_EXPRESSION.sub("", location)):
        scheme = location.partition(":")[0]
        where = "the configuration of the storage's driver"
        if conn_parameter is not None:
            where = f"an Airflow connection and name it with {parameter_text(conn_parameter)}"
        raise parameter_error(
            parameter,
            f" ({scheme}://...) holds a password, which logs and the UI would show: put the credentials "
            f"into {where}",
        )
