import errno
import os
import sys
import threading
import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.checkpoint import reader
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import StorageError, StorageUnavailableError, UsageError
from airflow_kafka_offsets.model.location import check_location, is_same_location
from airflow_kafka_offsets.model.text import MAX_SIZE
from airflow_kafka_offsets.storage import (
    list_names,
    open_location,
    read_bytes,
    read_named_text,
    read_text,
    remove_file,
    replace_file,
)
from airflow_kafka_offsets.storage_errors import driver_text


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/cp", "/data/cp"),
        ("/data/cp/", "/data/cp"),
        ("//data/cp", "//data/cp"),
        ("file:/data/cp", "/data/cp"),
        ("file:///data/cp/", "/data/cp"),
        ("FILE:///data/my cp%20", "/data/my cp%20"),
        ("/data/user@host:1/cp", "/data/user@host:1/cp"),
    ],
)
def test_every_spelling_of_a_local_directory_is_understood(location, path):
    fs, root = open_location(location)
    assert isinstance(fs, LocalFileSystem)
    assert root == path


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3a://lake/cp", "s3://lake/cp/", True),
        ("abfss://cps@lake.dfs.core.windows.net/cp", "abfs://cps@lake.dfs.core.windows.net/cp", True),
        ("file:/data/cp", "/data/cp/", True),
        ("FILE:///data/cp", "file:/data/cp", True),
        ("s3a://lake//cps///cp", "s3://lake/cps/cp", True),
        ("hdfs:///nn/cp", "hdfs://nn/cp", False),
        ("s3a://lake/cp", "gs://lake/cp", False),
        ("s3a://lake/cp", "s3a://lake/cp2", False),
        ("hdfs://nn1/cp", "hdfs://nn2/cp", False),
        ("/data/cp", "", False),
        ("/", "", False),
        ("/", "file:///", True),
    ],
)
def test_two_spellings_of_a_location_are_known(one, other, same):
    assert is_same_location(one, other) == is_same_location(other, one) == same


def test_the_mark_of_utf_8_at_the_beginning_of_a_file_is_not_in_its_text(tmp_path):
    (file := tmp_path / "offsets.csv").write_text("orders,0,5\n", encoding="utf-8-sig")
    assert read_text(str(file)) == "orders,0,5\n"


def test_a_file_that_a_parameter_names_is_read_or_the_parameter_is_named(tmp_path, monkeypatch):
    (file := tmp_path / "plan.json").write_text("{}")
    assert read_named_text(str(file), "plan", "give a plan") == "{}"
    with pytest.raises(
        UsageError, match=r"^plan: cannot be read \(.*gone: there is no such file\): give a plan$"
    ):
        read_named_text(str(tmp_path / "gone"), "plan", "give a plan")
    with pytest.raises(UsageError, match=r"^plan: cannot be read \(.*: is a directory; .*\): give a plan$"):
        read_named_text(str(tmp_path), "plan", "give a plan")
    busy = Mock(side_effect=StorageUnavailableError("the storage does not answer"))
    monkeypatch.setattr("airflow_kafka_offsets.storage.read_text", busy)
    with pytest.raises(StorageUnavailableError):
        read_named_text(str(file), "plan", "give a plan")


def test_a_relative_path_is_relative_to_the_working_directory():
    assert open_location("data/cp")[1] == str(Path.cwd() / "data" / "cp")


@pytest.mark.parametrize(
    ("location", "module", "scheme"),
    [
        ("gs://lake/cp", "gcsfs", "gs"),
        ("abfss://container@account.dfs.core.windows.net/cp", "adlfs", "abfs"),
        ("wasbs://container@account.blob.core.windows.net/cp", "adlfs", "abfs"),
    ],
)
def test_a_missing_driver_is_named_with_what_to_install(location, module, scheme, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StorageError, match=f"^{scheme}:// needs a driver .*: pip install {module}$"):
        open_location(location)


@pytest.mark.parametrize(
    ("location", "needs"),
    [
        ("dbfs:/jobs/cp", "FSSPEC_DBFS_INSTANCE .* and FSSPEC_DBFS_TOKEN"),
        ("hdfs://namenode/cp", "check the host, .* JAVA_HOME, HADOOP_HOME, and in CLASSPATH .* webhdfs://"),
    ],
)
def test_a_storage_without_an_airflow_connection_names_what_its_driver_needs(location, needs, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(StorageError, match=f"cannot be opened .*: .*{needs}"):
        open_location(location)


def test_an_unknown_scheme_is_refused():
    with pytest.raises(StorageError, match="Protocol not known: ftps3"):
        open_location("ftps3://lake/cp")


@pytest.mark.parametrize(
    "location",
    [
        "s3a://AKIA:SECRET@lake/cp",
        "s3n://AKIA:SEC/SECRET@lake/cp",
        "hdfs://user:SECRET@namenode:8020/cp",
        "s3a:/AKIA:SECRET@lake/cp",
        "https:///user:SECRET@host/cp",
        "simplecache::s3://AKIA:SECRET@lake/cp",
        "zip://offsets::filecache::https://user:SECRET@host/cp",
    ],
)
@pytest.mark.parametrize("check", [open_location, check_location])
def test_a_location_with_a_password_is_refused_without_repeating_it(location, check):
    with pytest.raises(UsageError, match="holds a password") as refused:
        check(location)
    assert "SECRET" not in str(refused.value)
    assert "AKIA" not in str(refused.value)


@pytest.mark.parametrize(
    "location", ["zip://x::{archive}", "zip://x::file://{archive}", "simplecache://x::/"]
)
def test_a_chain_of_urls_opens_nothing(location, tmp_path):
    """Spark knows no chains, which would also lead to another place than the one that is named."""
    archive = tmp_path / "archive.zip"
    archive.write_bytes(b"no archive")
    with pytest.raises(StorageError, match="cannot be opened"):
        open_location(location.format(archive=archive))


@pytest.mark.parametrize("location", ["simplecache::s3://lake/window.json", "filecache::/tmp/window.json"])
def test_a_chain_of_urls_is_no_path_below_the_working_directory(location):
    with pytest.raises(UsageError, match="is a chain of URLs; expected the URI that the Spark job uses"):
        open_location(location)


def test_a_token_in_the_url_of_a_request_is_not_repeated():
    fs = fsspec.filesystem("webhdfs", host="localhost", port=1, token="SECRET")
    with pytest.raises(StorageUnavailableError, match=r"/webhdfs/v1/cp/metadata\?\.\.\.") as refused:
        SparkCheckpoint("webhdfs://localhost/cp", fs=fs).read()
    assert "SECRET" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Invalid endpoint: user:SECRET@lake", "Invalid endpoint: ...@lake"),
        ('no answer of "https://user:SECRET@lake:9000/cp"', 'no answer of "https://...@lake:9000/cp"'),
        ("GET https://lake/cp?sig=SECRET failed", "GET https://lake/cp?... failed"),
    ],
)
def test_a_secret_in_the_url_of_a_driver_s_error_is_not_repeated(text, shown):
    class Broken(LocalFileSystem):
        def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
            try:
                raise ValueError(text)
            except ValueError as error:
                raise OSError("no listing" if behind else text) from error

    for behind in (False, True):
        with pytest.raises(StorageUnavailableError) as refused:
            list_names(Broken(), "/cp")
        assert ("no listing" if behind else shown) in str(refused.value)
        assert "SECRET" not in "".join(traceback.format_exception(refused.value))


def test_a_long_error_of_a_driver_without_spaces_is_searched_for_secrets_at_once():
    began = time.process_time()
    driver_text(ValueError('{"code":"403",' * 1_500))
    assert time.process_time() - began < 1.0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_permission_is_named(checkpoint):
    root = checkpoint({0: 5}, [0])
    (root / "offsets").chmod(0)
    try:
        with pytest.raises(StorageError, match="no permission"):
            SparkCheckpoint(str(root)).read()
    finally:
        (root / "offsets").chmod(0o755)


@pytest.mark.parametrize(
    ("error", "says", "retriable"),
    [
        (PermissionError("Denied"), r"checkpoint/offsets: no permission to read it .Denied", False),
        (RuntimeError("Could not connect to the endpoint URL"), "Could not connect", True),
    ],
    ids=["refused", "no answer"],
)
def test_a_storage_that_refuses_is_named_and_one_that_does_not_answer_is_worth_another_try(
    error, says, retriable, checkpoint
):
    class Failing(LocalFileSystem):
        def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
            raise error

    root = checkpoint({0: 5}, [0])
    with pytest.raises(StorageError, match=says) as refused:
        SparkCheckpoint(str(root), fs=Failing()).read()
    assert refused.value.retriable is retriable


def test_an_error_of_our_own_is_not_the_storages(checkpoint, monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(reader, "parse_offset_log", broken)

    with pytest.raises(KeyError):
        SparkCheckpoint(str(checkpoint({0: 5}, [0]))).read()


def test_a_file_in_place_of_a_directory_is_named(checkpoint):
    root = checkpoint({0: 5}, [])
    (root / "commits").rmdir()
    (root / "commits").write_text("")
    with pytest.raises(StorageError, match="checkpoint/commits: is a file; expected a directory"):
        SparkCheckpoint(str(root)).read()


def test_a_bucket_that_is_written_to_and_is_not_there_is_not_worth_another_try(tmp_path):
    class Vanished(LocalFileSystem):
        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            raise FileNotFoundError("The specified bucket does not exist")

    with pytest.raises(StorageError, match="does not exist: correct the location") as refused:
        replace_file(Vanished(), str(tmp_path / "window.json"), b"{}")

    assert not refused.value.retriable


def test_a_write_that_fails_half_way_leaves_no_temporary_file(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "7").write_bytes(b"before")
    with pytest.raises(StorageUnavailableError, match="No space left.*, has free space, and"):
        replace_file(LocalFileSystem(), str(tmp_path / "7"), b"after")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"7": b"before"}


def test_a_time_limit_ends_a_write_though_the_storage_does_not_answer_any_more(tmp_path, monkeypatch):
    class TimeIsOverError(BaseException):
        """As Airflow's, which is no Exception."""

    class Silent(LocalFileSystem):
        def rm_file(self, path: str) -> None:
            answers.wait()

    def over(_: int) -> None:
        raise TimeIsOverError

    answers = threading.Event()
    monkeypatch.setattr(os, "fsync", over)
    began = time.monotonic()
    with pytest.raises(TimeIsOverError):
        replace_file(Silent(), str(tmp_path / "7"), b"after")
    assert time.monotonic() - began < 5
    answers.set()


@pytest.mark.parametrize(("status", "data"), [(416, b""), (500, None)])
def test_an_object_store_that_has_no_such_range_has_an_empty_object(status, data, monkeypatch):
    """Some answer a range of an empty object so."""

    class RefusedError(Exception):
        code = status

    def cat_file(*_: Any, **__: Any) -> bytes:
        raise RefusedError

    fs = MemoryFileSystem()
    monkeypatch.setattr(fs, "cat_file", cat_file)
    with nullcontext() if data is not None else pytest.raises(StorageUnavailableError):
        assert read_bytes(fs, "/cp/metadata") == data


@pytest.mark.parametrize("kind", [LocalFileSystem, MemoryFileSystem])
def test_a_file_that_is_too_large_is_refused_with_both_sizes_and_not_read_whole(kind, tmp_path, monkeypatch):
    def cat_file(*arguments: Any, **options: Any) -> bytes:
        read.append(data := original(*arguments, **options))
        return data

    read: list[bytes] = []
    fs, path = kind(), str(tmp_path / "offsets")
    original = fs.cat_file
    monkeypatch.setattr(fs, "cat_file", cat_file)
    fs.pipe_file(path, bytes(MAX_SIZE + 5))
    with pytest.raises(StorageError, match="offsets: is 10,000,005 bytes large; expected at most 10,000,000"):
        read_bytes(fs, path)
    assert list(map(len, read)) == [MAX_SIZE + 1]


@pytest.mark.parametrize(
    "location",
    [
        "file://host/data/cp",
        "FILE://localhost/data",
        "file://data",
        "file:data/cp",
        "file://./data",
        "local://host/data",
    ],
)
def test_a_file_on_another_machine_is_no_file_below_the_working_directory(location, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for fs in (None, LocalFileSystem()):
        with pytest.raises(UsageError, match=r"names a host.*expected file:///"):
            open_location(location, fs)
    with pytest.raises(UsageError, match=r"names a host.*expected file:///"):
        read_text(location)
    assert not list(tmp_path.iterdir())


NO_PATH = [
    "/data/a\0b",
    "s3a://lake/\ud800",
    "/data/a\nb",
    "/data/a\tb",
    "s3a://lake/\u202egnp",
    "/data/\u2066",
]
NO_BUCKET = ["s3:/lake/cp", "s3a:lake/cp", "S3A:///cp", "abfss:/c@account/cp", "gs://"]


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("", "empty"),
        *((location, "characters that no path should have") for location in NO_PATH),
        *((location, "names no bucket: expected .* such as s3a://bucket/path") for location in NO_BUCKET),
    ],
)
def test_a_location_that_leads_nowhere_is_refused(location, says):
    with pytest.raises(UsageError, match=says):
        open_location(location)


@given(st.text(alphabet="abcFILEfile:/.%", max_size=12))
def test_a_uri_of_a_file_leads_to_its_own_path_or_nowhere(rest):
    try:
        _, path = open_location(f"file:{rest}")
    except UsageError:
        return
    assert Path(path) == Path("/" + rest.lstrip("/"))


def test_a_new_name_is_on_the_disk_too(tmp_path, monkeypatch):
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        done.append("the file" if name.endswith(".tmp") else f"{name}/")
        sync(descriptor)

    def renamed(temporary: Path, path: str) -> Path:
        done.append("renamed")
        return replace(temporary, path)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", renamed)
    replace_file(LocalFileSystem(), str(tmp_path / "7"), b"after")
    assert done == ["the file", "renamed", f"{tmp_path.name}/"]
    done.clear()
    replace_file(LocalFileSystem(), str(tmp_path / "archives/0001-seek/7"), b"kept")
    assert done == ["archives/", f"{tmp_path.name}/", "the file", "renamed", "0001-seek/"]
    done.clear()
    remove_file(LocalFileSystem(), str(tmp_path / "7"))
    remove_file(LocalFileSystem(), str(tmp_path / "7"))
    assert done == [f"{tmp_path.name}/"]


@pytest.mark.parametrize(
    ("code", "fails"), [(errno.EIO, True), (errno.EINVAL, False), (errno.ENOTSUP, False)]
)
def test_a_directory_that_cannot_be_synced_fails_the_write_where_the_storage_has_a_sync(
    tmp_path, monkeypatch, code, fails
):
    sync = os.fsync

    def broken(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    expected: AbstractContextManager[object] = (
        pytest.raises(StorageUnavailableError, match="Input/output error") if fails else nullcontext()
    )
    with expected:
        replace_file(LocalFileSystem(), str(tmp_path / "7"), b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


@pytest.mark.parametrize(
    ("attribute", "of_connection", "location", "refused"),
    [
        ("account_name", "mine", "abfss://lake@other.dfs.core.windows.net/cp", True),
        ("account_name", "mine", "abfss://lake@mine.dfs.core.windows.net/cp", False),
        ("account_name", "mine", "abfss://lake/cp", False),
        ("url", "http://one:9870/webhdfs/v1", "webhdfs://two:9870/cp", True),
        ("url", "http://one:9870/webhdfs/v1", "webhdfs://one:9870/cp", False),
    ],
)
def test_another_account_or_host_than_that_of_the_connection_is_not_read(
    attribute, of_connection, location, refused
):
    fs = MemoryFileSystem()
    setattr(fs, attribute, of_connection)
    try:
        with pytest.raises(UsageError, match="is not on the storage of its") if refused else nullcontext():
            open_location(location, fs)
    finally:
        # fsspec keeps one instance for all.
        delattr(fs, attribute)
