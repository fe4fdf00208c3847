"""
Opens, lists, reads and replaces files on any storage that fsspec supports.

Each call raises :class:`StorageError` if the storage refuses or does not answer. The location is exactly the
URI that the Spark job uses. Hadoop and fsspec have different schemes for some storages (``s3a://`` and
``s3n://`` are ``s3://``, ``wasbs://`` is ``abfs://``); the rest of the URI is the same.
"""

from __future__ import annotations

import codecs
import importlib.util
import os
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from airflow_kafka_offsets.errors import KafkaOffsetsError, StorageError, UsageError
from airflow_kafka_offsets.local_disk import replace_by, sync_directory, syncing_new_directories
from airflow_kafka_offsets.model.location import PASSWORD, check_location_text, check_uri, split_scheme
from airflow_kafka_offsets.model.text import MAX_SIZE, shorten, too_large_error
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text
from airflow_kafka_offsets.storage_errors import (
    access_refusal,
    driver_cause,
    driver_text,
    is_empty_object,
    storage_error,
)

_DRIVER = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "abfs": "adlfs",
    "hdfs": "pyarrow",
    "dbfs": "requests",
    "webhdfs": "requests",
}
"""fsspec's scheme -> the package to install for it."""

_NEEDS = {
    # No Airflow provider supports it as a storage.
    "dbfs": "set FSSPEC_DBFS_INSTANCE (the workspace's host) and FSSPEC_DBFS_TOKEN in the environment, or "
    "give the location in the cloud's own storage",
    "hdfs": "check the host, and Java and Hadoop, which pyarrow needs here: JAVA_HOME, HADOOP_HOME, and in "
    "CLASSPATH the output of 'hadoop classpath --glob'; webhdfs://NAMENODE:PORT/... needs neither",
}
"""fsspec's scheme -> what to do if its driver cannot be set up."""

_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az"})
"""fsspec's schemes of storages without directories."""

_ATOMIC_WRITES = _OBJECT_STORES | {"memory"}
"""fsspec's schemes of storages with atomic writes."""

_OWN = "this machine (environment, configuration files, instance profile)"
_credentials: WeakKeyDictionary[AbstractFileSystem, str] = WeakKeyDictionary()
"""Origin of a storage's credentials, if they are not this machine's own."""


def open_location(
    location: str, fs: AbstractFileSystem | None = None, storage_options: Mapping[str, Any] | None = None
) -> tuple[AbstractFileSystem, str]:
    """
    Return the file system of a location, and the path in it.

    A path without a scheme is local. Spark would resolve it on its default file system; if that is HDFS, give
    the full URI.

    :param location: a URI as in Spark: ``s3a://``, ``gs://``, ``abfss://``, ``hdfs://``, ``file:/``,
        ``file:///``, ``dbfs:/`` or a path.
    :param fs: an existing file system; by default fsspec creates one for the scheme.
    :param storage_options: options of fsspec's driver, such as endpoint and credentials; used only without
        ``fs``.
    :raises UsageError: if the location is empty, contains a password, or is a file on another machine.
    :raises StorageError: if the driver is not installed, or cannot be set up.
    """
    check_location_text(location)
    scheme, rest = split_scheme(location)
    if PASSWORD.match(location):
        raise UsageError(
            f"the location ({location.partition(':')[0]}://...) holds a password, which logs would show: "
            "leave it out of the URI and put the credentials into an Airflow connection, or the storage's "
            "own configuration"
        )
    check_uri(location)
    uri = rest if rest == location else f"{scheme}://{rest.removeprefix('//')}"
    if fs is None:
        fs = _file_system(scheme, uri, dict(storage_options or {}))
    elif _is_elsewhere(fs, uri):
        # Without the storage's address: the Offsets tab shows this text, but no addresses of connections.
        raise UsageError(
            f"the location {shorten(location)} is not on the storage of its connection: correct the "
            "location or the connection"
        )
    # fsspec's Databricks driver does not know its own scheme, so it would not remove the scheme.
    path = uri.removeprefix("dbfs://") if scheme == "dbfs" else str(fs._strip_protocol(uri))
    return fs, path.rstrip("/") or path


def _is_elsewhere(fs: AbstractFileSystem, uri: str) -> bool:
    """Return whether the URI names another account or host than that of the file system."""
    try:
        named = urlsplit(uri)
    except ValueError as error:  # an unpaired bracket
        raise UsageError(
            f"the location {shorten(uri)} is no URI ({error}); expected the URI that the Spark job uses"
        ) from None
    account, url = getattr(fs, "account_name", None), getattr(fs, "url", None)
    if isinstance(account, str) and "@" in named.netloc:
        return account != (named.hostname or "").partition(".")[0]
    # WebHDFS has a text, and other drivers a method of this name.
    host = urlsplit(url).hostname if isinstance(url, str) else None
    return None not in (host, named.hostname) and host != named.hostname


def list_names(fs: AbstractFileSystem, path: str) -> list[str]:
    """
    Return the current names in a directory; none if the directory does not exist.

    Sizes and times are not requested, because that is several times slower for 50,000 files.
    """
    with plain_errors(fs, path):
        try:
            if type(fs) is LocalFileSystem:  # fsspec would also stat each file, which is six times slower
                return os.listdir(path)  # noqa: PTH208  # 50,000 Path objects would be slower
            fs.invalidate_cache(path)  # remote file systems may return an old cached listing
            return [str(name).rstrip("/").rpartition("/")[2] for name in fs.ls(path, detail=False)]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise StorageError(f"{_display_name(fs, path)}: is a file; expected a directory") from None


def may_list_late(fs: AbstractFileSystem) -> bool:
    """
    Return whether listings may miss new files, and may show removed files.

    Reads of a file are always current. So are listings of Amazon, Google and Azure, but not those of every
    other server with their protocols.
    """
    return _is_one_of(fs, _OBJECT_STORES)


def read_bytes(fs: AbstractFileSystem, path: str, *, listed: bool = False) -> bytes | None:
    """
    Return a file's content; ``None`` if it does not exist. Refuse a file larger than :data:`MAX_SIZE`.

    :param listed: whether the directory was listed just now; a missing file may then be detected from the
        cached listing.
    """
    with plain_errors(fs, path):
        try:
            if isinstance(fs, LocalFileSystem):
                mode = Path(path).stat().st_mode
                # Reading /dev/zero, or a pipe without a writer, would never end.
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise StorageError(f"{_display_name(fs, path)}: is a pipe or a device; expected a file")
            if not listed and may_list_late(fs):
                fs.invalidate_cache(path.rpartition("/")[0])
            # One request, also to object stores. It has an end: a very large file would fill the memory.
            data: bytes = fs.cat_file(path, start=0, end=MAX_SIZE + 1)
            size = len(data) if len(data) <= MAX_SIZE else fs.size(path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except Exception as error:
            if not is_empty_object(error):
                raise
            return b""
    if size > MAX_SIZE:
        raise StorageError(too_large_error(_display_name(fs, path), size))
    return data


def read_text(uri: str, fs: AbstractFileSystem | None = None) -> str | None:
    """Return the content of a small text file; ``None`` if it does not exist. See :func:`read_bytes`."""
    fs, path = open_location(uri, fs)
    data = read_bytes(fs, path)
    if data is None and isinstance(fs, LocalFileSystem) and Path(path).is_dir():
        raise StorageError(f"{_display_name(fs, path)}: is a directory; expected a file")
    # Editors and tools on Windows mark UTF-8 at the beginning of a file.
    return None if data is None else decode(data.removeprefix(codecs.BOM_UTF8), _display_name(fs, path))


def read_named_text(uri: str, parameter: str, remedy: str) -> str:
    """
    Return the content of a small text file that a parameter names.

    :param remedy: for the error text: which file to give.
    :raises UsageError: if the file does not exist or cannot be read, unless a retry may succeed.
    """
    try:
        text, why = read_text(uri), f"{shorten(uri)}: there is no such file"
    except KafkaOffsetsError as error:
        if error.retriable:
            raise
        # The error names the file, unless its URI contains a password.
        text, why = None, str(error)
    if text is None:
        raise parameter_error(parameter, f": cannot be read ({why}): {remedy}")
    return text


def decode(data: bytes, name: str) -> str:
    """Return the text of a file; refuse bytes that are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StorageError(
            f"{name}: found bytes that are not UTF-8 text (at byte {error.start} of {len(data)}); expected a "
            "text file"
        ) from None


def replace_file(fs: AbstractFileSystem, path: str, data: bytes) -> None:
    """
    Write a file atomically.

    An object store writes an object atomically. On other storages, the content is written to a hidden
    temporary file in the same directory, like Spark's own temporary files, which is then renamed.
    """
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/.{name}.{uuid.uuid4()}.tmp"
    with plain_errors(fs, path, "change"):
        # An object store has no directories: its drivers would check the bucket, which needs a separate
        # right, and create the bucket if they do not see it.
        if not _is_one_of(fs, _OBJECT_STORES):
            local = isinstance(fs, LocalFileSystem)
            with syncing_new_directories(directory) if local else nullcontext():
                fs.makedirs(directory, exist_ok=True)
        if _is_one_of(fs, _ATOMIC_WRITES):
            fs.pipe_file(path, data)
            return
        try:
            if isinstance(fs, LocalFileSystem):
                replace_by(temporary, path, data)
            else:
                fs.pipe_file(temporary, data)
                if _is_one_of(fs, frozenset({"webhdfs"})):
                    # fsspec's own rename does not replace an existing file, and raises no error.
                    fs._call(
                        "RENAME", method="put", path=temporary, destination=path, renameoptions="OVERWRITE"
                    )
                else:
                    fs.mv(temporary, path)
        except (Exception, KeyboardInterrupt):
            # On a full disk, the partial temporary file would take space.
            with suppress(Exception):
                fs.rm_file(temporary)
            raise


def remove_file(fs: AbstractFileSystem, path: str) -> None:
    """Remove a file; do nothing if it does not exist."""
    with plain_errors(fs, path, "change"), suppress(FileNotFoundError):
        fs.rm_file(path)
        if isinstance(fs, LocalFileSystem):
            sync_directory(Path(path).parent)


def modified_at(fs: AbstractFileSystem, path: str, *, listed: bool = False) -> datetime | None:
    """
    Return when a file was written; ``None`` if it does not exist, or its storage does not know the time.

    :param listed: whether the directory was listed just now; the cached listing may then be used.
    """
    with plain_errors(fs, path):
        try:
            if not listed:
                fs.invalidate_cache(path.rpartition("/")[0])
            moment = fs.modified(path)
        except (FileNotFoundError, NotImplementedError, KeyError):
            return None
    if not isinstance(moment, datetime):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def note_credentials(fs: AbstractFileSystem, source: str) -> None:
    """Record the origin of a storage's credentials, such as ``Airflow connection 'lake'``, for errors."""
    # All local locations share one file system object.
    if not isinstance(fs, LocalFileSystem):
        _credentials[fs] = source


@contextmanager
def plain_errors(fs: AbstractFileSystem, path: str, doing: str = "read") -> Iterator[None]:
    """
    Turn errors of a storage's driver into a :class:`StorageError` that names the location.

    Use it only around calls of the driver, because it treats every error as an error of the storage.
    """
    try:
        yield
    except KafkaOffsetsError:
        raise
    except FileNotFoundError as error:
        raise StorageError(
            f"{_display_name(fs, path)}: cannot be {'read' if doing == 'read' else 'written'}, because a "
            "directory or bucket above it does not exist: correct the location, or create the directory or "
            "bucket"
        ) from error
    except Exception as error:  # noqa: BLE001  # each driver has its own errors, and few are OSErrors
        origin = _credentials.get(fs, _OWN)
        raise storage_error(error, _display_name(fs, path), doing, origin) from driver_cause(error)


def _is_one_of(fs: AbstractFileSystem, schemes: frozenset[str]) -> bool:
    return not schemes.isdisjoint((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def _display_name(fs: AbstractFileSystem, path: str) -> str:
    """Return the name of a file or directory for messages."""
    return path if isinstance(fs, LocalFileSystem) else str(fs.unstrip_protocol(path))


def _file_system(scheme: str, uri: str, storage_options: dict[str, Any]) -> AbstractFileSystem:
    try:
        # Not url_to_fs(), which would open a chain, such as zip://a::http://host/b, that Spark does not know.
        kind: type[AbstractFileSystem] = fsspec.get_filesystem_class(scheme)
        return kind(**{**kind._get_kwargs_from_urls(uri), **storage_options})
    except ImportError as error:
        driver = _DRIVER.get(scheme)
        missing = driver is not None and importlib.util.find_spec(driver) is None
        remedy = f"pip install {driver}" if missing else "install what the message names"
        raise StorageError(
            f"{scheme}:// needs a driver that is not installed here ({shorten(str(error))}): {remedy}"
        ) from error
    except Exception as error:
        if not isinstance(error, (OSError, TypeError, ValueError)) and access_refusal(error) is None:
            raise
        connection = f"{parameter_text('checkpoint_conn_id')} for a checkpoint"
        other = f"check the scheme, and give the storage's connection ({connection}) if it needs one"
        reason = f"{type(error).__name__}: {driver_text(error)}"
        remedy = _NEEDS.get(scheme, other)
        raise StorageError(f"{scheme}:// cannot be opened ({reason}): {remedy}") from driver_cause(error)
