"""
Every reader of what others have written, as a function of bytes, with valid inputs to start from.

What a reader refuses must be refused with an error of ours; see :func:`try_input`.
"""

import atexit
import gzip
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.archive import file_digest
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.batch import batch_bounds, finished_batch_ends
from airflow_kafka_offsets.checkpoint.history import read_history
from airflow_kafka_offsets.checkpoint.log import check_commit_log, parse_offset_log, parse_query_id
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.sink_logs import delta_batch, hudi_batch, hudi_layout, iceberg_table
from airflow_kafka_offsets.checkpoint.state_store import read_state, snapshots_after
from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.kafka.config import (
    client_config,
    dropped_keys,
    load_properties,
    scrubber,
    unusable_setting,
)
from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.model.audited_rows import parse_where
from airflow_kafka_offsets.model.broker_addresses import SERVERS
from airflow_kafka_offsets.model.certificate import Certificate
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, read_sources
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy, parse_quiet_period, parse_sink
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.commit_origins import committer_text, other_query_refusal
from airflow_kafka_offsets.model.drift import parse_grace
from airflow_kafka_offsets.model.formats import (
    OffsetsFile,
    parse_csv,
    parse_offsets,
    parse_positions,
)
from airflow_kafka_offsets.model.groups import GroupSelection, parse_group_id
from airflow_kafka_offsets.model.names import parse_existing_group, parse_existing_groups, parse_group
from airflow_kafka_offsets.model.offsets import Commit, TopicPartition
from airflow_kafka_offsets.model.parameters import (
    OutOfRangePolicy,
    parse_choice,
    parse_count,
    parse_duration,
    parse_pattern,
    parse_seconds,
    parse_switch,
    parse_text,
    timestamp_ms,
)
from airflow_kafka_offsets.model.pipeline_plan import read_groups_file
from airflow_kafka_offsets.model.pipelines_file import read_pipelines
from airflow_kafka_offsets.model.place import PARAMETERS, Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.text import describe_type
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow, check_bounds
from airflow_kafka_offsets.pipeline import NAME_PARSERS, KafkaPipeline
from airflow_kafka_offsets.spark.broker import librdkafka_config
from airflow_kafka_offsets.storage import decode, open_location
from airflow_kafka_offsets.ui.receipts import TaskInstance, parse_package_value, read_outcome

RECORDED = Path(__file__).parents[1] / "checkpoints"
TABLES = Path(__file__).parents[1] / "tables"
CORPUS = Path(__file__).parents[1] / "hostile" / "corpus"
"""A directory for each reader, with inputs that once failed."""

MOST_TEXT = 5_000
ORDERS_0 = TopicPartition("orders", 0)
Files = dict[str, bytes]


class Reader(NamedTuple):
    """One reader."""

    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    """Inputs that it accepts."""


class HostileInputError(AssertionError):
    """An input was neither read nor refused as it must be."""


def try_input(name: str, data: bytes) -> KafkaOffsetsError | None:
    """
    Give an input to a reader.

    :return: the refusal, ``None`` if the input was read.
    :raises HostileInputError: if anything else than an error of ours comes out, or one with a text that is
        empty, endless, or moves a terminal's cursor.
    """
    try:
        READERS[name].read(data)
    except KafkaOffsetsError as error:
        text = str(error)
        if not text.strip() or len(text) > MOST_TEXT or not text.replace("\n", "").isprintable():
            raise HostileInputError(f"error text of {len(text)} characters: {text[:500]!r}") from error
        return error
    except HostileInputError:
        raise
    except Exception as error:
        raise HostileInputError(f"{type(error).__name__}: {str(error)[:500]}") from error
    return None


# What is one value: a parameter, an XCom, a part of a file.


def _read_place(parameter: str, value: object) -> None:
    place = Place.parse(value, parameter)
    place.as_json()
    if place.time is not None:
        timestamp_ms(place.time)


PARSERS: dict[str, Callable[[Any], object]] = {
    "offsets": parse_offsets,
    "positions": parse_positions,
    "window": OffsetWindow.parse,
    "certificate": Certificate.parse,
    "where": lambda value: parse_where(value, "where"),
    "receipt": Receipt.parse,
    "sources": lambda value: read_sources(value, "sources"),
    "topics": TopicScope.parse,
    "group_id": parse_group_id,
    **{name: partial(_read_place, name) for name in PARAMETERS},
    "grace": parse_grace,
    "count": lambda value: parse_count(value, "max_lag"),
    "seconds": lambda value: parse_seconds(value, "timeout"),
    "choice": lambda value: parse_choice(value, OutOfRangePolicy, "on_out_of_range"),
    "sink": parse_sink,
    "pattern": lambda value: parse_pattern(value, "topics_pattern"),
    "switch": lambda value: parse_switch(value, "allow_rewind"),
    "text": lambda value: parse_text(value, "checkpoint_conn_id"),
}


def _text(data: bytes) -> str:
    # Some lone surrogates are let through: JSON and the client's callbacks can carry them.
    return data.decode("utf-8", "surrogateescape")


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return _text(data)


def _of_values(*names: str) -> Callable[[bytes], object]:
    """Return a reader that gives an input to several parsers, as text and as the value that it is in JSON."""

    def read(data: bytes) -> None:
        refused = None
        for name in names:
            for value in (_text(data), _json(data)):
                try:
                    PARSERS[name](value)
                except KafkaOffsetsError as error:
                    refused = error
        if refused is not None:
            raise refused

    return read


def _seeds(*values: object) -> list[bytes]:
    return [value.encode() if isinstance(value, str) else json.dumps(value).encode() for value in values]


# Offsets, receipts, windows.

_OFFSETS = {"orders": {"0": 42, "1": 7}, "returns": {"0": 2**63 - 1}}
_POSITIONS = {"orders": {"0": 42, "1": None}}
_LOCATION = "s3a://lake/checkpoints/orders"
_CHECKPOINT_PART = {
    "kind": "seek",
    "location": _LOCATION,
    "query_id": "975d5cb5-daf7-40c6-ad83-ae84395a7b2a",
    "batch_id": 7,
    "before": {"0": _OFFSETS},
    "after": {"0": _OFFSETS},
    "discarded": [8],
    "archive": "0001-seek",
}
_RECEIPT = {
    "version": 1,
    "group_id": "orders",
    "before": _POSITIONS,
    "after": {"orders": {"0": 40, "1": 1}},
    "log_start": _POSITIONS,
    "log_end": _POSITIONS,
    "changed": 2,
    "moved_by": -2,
    "plan_only": False,
    "verified": True,
    "source": {"to_offset": "earliest"},
}
_RECEIPTS = {
    "version": 1,
    "groups": [_RECEIPT, {**_RECEIPT, "group_id": "other"}],
    "changed": 4,
    "source": {},
}
_WINDOW = {
    "version": 1,
    "start": {"orders": {"0": 1, "1": 5}},
    "end": {"orders": {"0": 9, "1": 5}},
    "committed": {"orders": {"0": 1, "1": None}},
    "spark_options": {"assign": '{"orders":[0,1]}'},
    "records": 8,
    "source": {"topics": ["orders:0,1", "returns"], "topics_pattern": "or.*", "group_id": {"orders": "g"}},
}
_CERTIFICATE = {
    "version": 1,
    "verdict": "incomplete",
    "counts": {
        "offsets": 20,
        "rows": 18,
        "lost": 2,
        "doubled": 1,
        "foreign": 1,
        "without_record": 0,
        "undecided": 1,
    },
    "lost": {"orders": {"0": [[3, 5]]}},
    "doubled": {"orders": {"1": [[7, 8]]}},
    "foreign": [{"topic": None, "partition": 1, "first": 2, "last": 2, "rows": 1}],
    "undecided": {"retention": {"orders": {"0": [[0, 1]]}}},
    "problems": ["a sentence"],
    "window": {"start": {"orders": {"0": 0}}, "source": {"group_id": "g"}},
    "audited": {"table": "events", "where": None},
    "at": "2026-03-01T12:00:00Z",
    "digest": "9a" * 32,
}
_PIPELINES = (
    [{"group_id": "g", "topics": ["orders"]}],
    {"defaults": {"topics": "a"}, "pipelines": [{"group_id": "g"}]},
)
_INSTANCE = TaskInstance("dag", "run", "task", -1, datetime(2026, 3, 1))
_CSV = ("orders,0,42\norders,1,7\n", "g,orders,0,42\ng,orders,1,7\nh,returns,0,0\n", '"g,1",orders,0,42\r\n')


def _read_receipt(data: bytes) -> None:
    for value in (_json(data), parse_package_value(_text(data))):
        if value is not None:
            own = parse_package_value(value)
            if own is not None:
                read_outcome(_INSTANCE, "reset", own)
            Receipt.parse(value, describe=describe_type)


def _read_window(data: bytes) -> None:
    window = OffsetWindow.parse(_json(data), "window")
    again = OffsetWindow.parse(window.as_text())
    if (again.ranges, again.without_commit, again.source) != (
        window.ranges,
        window.without_commit,
        window.source,
    ):
        raise HostileInputError("a window is another one when it is written and read again")
    bool(window.limited(3))
    window.spark_options()
    GroupSelection.parse({"orders": "g", "returns": "h"}, ["orders:0,7", "returns"]).restricted_to_window(
        window.ranges, window.source
    )


def _read_csv(data: bytes) -> None:
    text = decode(data, "the file")
    for groups in (["g"], ["g", "h"]):
        with suppress(KafkaOffsetsError):
            OffsetsFile("the file", text).offsets_by_group(groups)
    parse_csv(text)


# Names and parameters.

_PARAMETERS = (
    *PARAMETERS,
    *("grace", "count", "seconds", "choice", "sink", "pattern", "switch", "text"),
)


def _read_names(data: bytes) -> None:
    text = _text(data)
    for read in (parse_group, parse_existing_group, lambda name: parse_existing_groups([name, name])):
        with suppress(KafkaOffsetsError):
            read(text)
    value = _json(data)
    names = (
        value if isinstance(value, dict) and value.keys() == {"group_id", "topics"} else {"group_id": value}
    )
    groups = GroupSelection.parse(**names, required=False)
    groups.scopes()
    groups.assign_offsets({"0": {TopicPartition("orders", 0): 1}, "1": {TopicPartition("returns", 0): 1}})


def _read_bounds(data: bytes) -> None:
    text = _text(data)
    first, _, second = text.partition("|")
    start, end = Place.parse(first, "start"), Place.parse(second, "end")
    check_bounds(start, end)
    Place.parse(start.as_text(), "start")


def _read_durations(data: bytes) -> None:
    for value in (_text(data), _json(data)):
        with suppress(KafkaOffsetsError):
            parse_quiet_period(value)
        with suppress(KafkaOffsetsError):
            parse_duration(value, "grace", allow_zero=False)
    _of_values("by_duration", "grace", "seconds")(data)


def _read_metadata(data: bytes) -> None:
    text = _text(data)
    metadata = CommitMetadata.parse(text)
    for shown in (str(metadata), committer_text(Commit(0, text))):
        if not shown.isprintable():
            raise HostileInputError(f"metadata is shown as {shown!r}")
    other_query_refusal("g", {TopicPartition("t", 0): Commit(0, text)}, "mine")
    for partitions in (1, 1_000):
        if len(metadata.text(partitions)) > 4_000:
            raise HostileInputError("metadata that is too long is written")


def _read_pipelines(file: str, data: bytes) -> None:
    read_pipelines(_text(data), file, NAME_PARSERS)


def _read_pipeline(data: bytes) -> None:
    value = _json(data)
    location = value if isinstance(value, str) else _text(data)
    with suppress(KafkaOffsetsError):
        open_location(location, MemoryFileSystem())
    if isinstance(value, dict) and value.keys() <= {"group_id", "topics", "checkpoint_location"}:
        parse_group_id(value.get("group_id"))
        KafkaPipeline(**{"group_id": "", **value}).spark_conf()


# Connections.

_EXTRA = {
    "bootstrap.servers": "kafka-1:9093,kafka-2:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "orders",
    "sasl.password": "hunter2",
    "ssl.ca.location": "/etc/ssl/ca.pem",
    "socket.timeout.ms": 10000,
    "group.id": "orders",
    "error_cb": "module.function",
}
_JAAS = (
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="orders" password="hunter2";'
)
_SPARK_OPTIONS = {
    "kafka.bootstrap.servers": "kafka-1:9093",
    "kafka.sasl.jaas.config": _JAAS,
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.truststore.location": "/etc/ssl/ca.pem",
}
_PROPERTIES = (
    "# Kafka\nbootstrap.servers=kafka-1:9093\nsasl.password = hunter2\\\\\n! also a comment\n",
    "bootstrap.servers kafka-1:9093\r\nsecurity.protocol:SASL_SSL\r\n"
    "sasl.username\torders\nlong=one,\\\n    two\nodd\\ key=\\u00e9\\n\n",
)


def _read_extra(data: bytes) -> None:
    value = _json(data)
    if not isinstance(value, dict):
        return
    scrub = scrubber(value)
    dropped_keys(value)
    try:
        unusable_setting(client_config(value))
    except KafkaOffsetsError as error:
        if scrub(str(error)) != str(error) and "hunter2" in str(error):
            raise HostileInputError("an error text holds a secret") from None
        raise


def _read_client(data: bytes) -> None:
    """Make a client of a connection's extra: librdkafka ends the process for some settings."""
    value = _json(data)
    if not isinstance(value, dict):
        return
    config = client_config({**value, SERVERS: "127.0.0.1:1"})
    # Nothing is asked for over a network, and no program is started.
    away = re.compile(r"sasl\.(oauthbearer|kerberos)\..*|https\..*|ssl\.(engine|providers)\b.*|.*_cb")
    config = {key: found for key, found in config.items() if not away.fullmatch(key)}
    Connection(config, "g", "read_uncommitted").consumer.close()


def _read_properties(data: bytes) -> None:
    path = _home() / "client.properties"
    path.write_bytes(data)
    client_config(load_properties(path))


def _read_spark_options(data: bytes) -> None:
    value = _json(data)
    if isinstance(value, dict):
        client_config(librdkafka_config(value))


# Checkpoints.


@cache
def _home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="hostile-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def recorded(pattern: str, most: int = 20, under: Path = RECORDED) -> list[bytes]:
    """Return some files of the recorded checkpoints or tables, no two alike."""
    found = {path.read_bytes() for path in under.glob(pattern) if not path.name.startswith(".")}
    return sorted(found, key=len)[:most]


_WRITER = "975d5cb5-daf7-40c6-ad83-ae84395a7b2a"


def _read_batch(read: Callable[[bytes], int | None]) -> Callable[[bytes], object]:
    def check(data: bytes) -> None:
        batch_id = read(data)
        if batch_id is not None and not 0 <= batch_id < 2**63:
            raise HostileInputError(f"batch {batch_id}")

    return check


def _read_offset_log(data: bytes) -> None:
    text = decode(data, "offsets/7")
    entry = parse_offset_log(text, "offsets/7")
    if entry.with_offsets({}) != text:
        raise HostileInputError("a file that nothing changes is another one")
    moved = {source: dict.fromkeys(offsets, 3) for source, offsets in entry.kafka_offsets.items()}
    again = parse_offset_log(entry.with_offsets(moved), "offsets/7")
    if again.kafka_offsets != moved or again.metadata != entry.metadata:
        raise HostileInputError("a move is read back as another one")


_LOG = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795228309758,"conf":{}}\n{"orders":{"0":%d}}'
_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
_SMALL: Files = {
    "metadata": b'{"id":"975d5cb5-daf7-40c6-ad83-ae84395a7b2a"}',
    **{f"offsets/{number}": _LOG % (5 + number) for number in range(3)},
    **{f"commits/{number}": _COMMIT for number in range(3)},
    "sources/0/0": b'\0v1\n{"orders":{"0":0}}',
}


def _tree(data: bytes, of: Files) -> Files:
    """Return the files of a checkpoint of which an input replaces some: ``path``, a NUL, its content."""
    files = dict(of)
    for part in data.split(b"\xff"):
        path, _, content = part.partition(b"\0")
        name = path.decode("utf-8", "replace").strip("/")
        if name and len(name) <= 250:
            files[name] = content
    return files


def _read_tree(data: bytes) -> None:
    memory = MemoryFileSystem()
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    for path, content in _tree(data, _SMALL).items():
        with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            memory.pipe_file(f"/cp/{path}", content)
    checkpoint = SparkCheckpoint("memory://cp", fs=memory)
    refused: KafkaOffsetsError | None = None
    for ask in _QUESTIONS:
        try:
            ask(checkpoint)
        except KafkaOffsetsError as error:
            if not str(error).replace("\n", "").isprintable() or len(str(error)) > MOST_TEXT:
                raise
            refused = error
    if refused is not None:
        raise refused


def _ask_state(checkpoint: SparkCheckpoint) -> None:
    state = checkpoint.read()
    if not json.dumps(state.as_json()) or not state.query_id.isprintable():
        raise HostileInputError(f"query id {state.query_id!r}")


def _ask_batch(checkpoint: SparkCheckpoint) -> None:
    batch_bounds(checkpoint, 1)
    batch_bounds(checkpoint, 0, "0")
    finished_batch_ends(checkpoint, 1)


def _ask_history(checkpoint: SparkCheckpoint) -> None:
    json.dumps([each.as_json() for each in read_history(checkpoint).batches])


def _ask_moves(checkpoint: SparkCheckpoint) -> None:
    snapshots_after(read_state(checkpoint), 1)
    plans: tuple[Callable[[], CheckpointPlan], ...] = (
        lambda: plan_seek(checkpoint, {"0": {ORDERS_0: 3}}),
        lambda: plan_truncate(checkpoint, 1, CheckpointPolicy(sink="noop")),
        lambda: plan_checkpoint_restore(checkpoint),
    )
    for plan in plans:
        with suppress(KafkaOffsetsError):
            shown = plan().table()
            if not shown.replace("\n", "").isprintable():
                raise HostileInputError(f"a plan is shown as {shown!r}")


_QUESTIONS = (_ask_state, _ask_batch, _ask_history, _ask_moves, lambda spark: [*ArchivedMoves(spark)])

_ORIGINAL, _MOVED = _LOG % 7, _LOG % 3


def manifest(**changed: Any) -> dict[str, Any]:
    """Return the manifest of a seek from 7 to 3."""
    return {
        "version": 1,
        "created": "2026-03-01T00:00:00+00:00",
        "kind": "seek",
        "location": "/cp",
        "query_id": "975d5cb5-daf7-40c6-ad83-ae84395a7b2a",
        "batch_id": 2,
        "request": "0123456789abcdef",
        "carried": False,
        "undoes": None,
        "copies": False,
        "newest_planned": 2,
        "newest_committed": 2,
        "by": {"tool": "airflow-kafka-offsets"},
        "nonce": "0" * 32,
        "before": {"0": {"orders": {"0": 7}}},
        "after": {"0": {"orders": {"0": 3}}},
        "files": {"offsets/2": {"before": file_digest(_ORIGINAL), "after": file_digest(_MOVED)}},
        **changed,
    }


_IMAGES = {"before": {"g": {"orders": {"0": None}}}, "after": {"g": {"orders": {"0": 3}}}}
_LINKS = (
    None,
    "offsets",
    "commits",
    "_kafka_offsets",
    "_kafka_offsets/0001-seek",
    "_kafka_offsets/0001-seek/offsets",
    "offsets/2",
    "state",
)


def _read_manifest(data: bytes) -> None:
    """
    Take a move back that an input describes, on a local disk where one directory may lead out of the
    checkpoint.

    The first byte chooses the link; the rest is the manifest.
    """
    link = _LINKS[data[0] % len(_LINKS)] if data else None
    root = _home() / "checkpoint"
    outside = _home() / "outside"
    shutil.rmtree(root, ignore_errors=True)
    files: Files = {
        **_SMALL,
        "offsets/2": _MOVED,
        "_kafka_offsets/0001-seek/offsets/2": _ORIGINAL,
        "_kafka_offsets/0001-seek/done": b"",
        "_kafka_offsets/0001-seek/manifest.json": data[1:],
    }
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    if link is not None and (root / link).exists():
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir()
        (root / link).rename(outside / "there")
        (root / link).symlink_to(outside / "there")
    checkpoint = SparkCheckpoint(str(root))
    refused: KafkaOffsetsError | None = None
    with watch_writes(root):
        for done in (True, False):
            try:
                if not done:
                    checkpoint.remove_file("_kafka_offsets/0001-seek/done")
                # An unfinished move is shown, and a command with its names is recommended.
                ArchivedMoves(checkpoint).refuse_unfinished()
                apply_checkpoint_plan(checkpoint, plan_checkpoint_restore(checkpoint), quiet_period=0)
            except KafkaOffsetsError as error:
                refused = error
    if refused is not None:
        raise refused


# What is written is watched from inside Python: every call that changes a file passes this hook.

_watched: list[Path] = []
_escaped: list[str] = []
_CHANGES = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.link": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    if event == "open":
        path, _, flags = arguments
        paths = (
            [path] if isinstance(flags, int) and flags & _WRITING and isinstance(path, str | bytes) else []
        )
    elif event in _CHANGES:
        paths = [arguments[number] for number in _CHANGES[event]]
    else:
        return
    for path in paths:
        given = Path(os.fsdecode(path))
        # The directory counts: a link that is replaced or removed is not followed.
        real = given.parent.resolve() / given.name
        if _watched[0] not in real.parents and str(real) != os.devnull:
            _escaped.append(f"{event} {real}")


@contextmanager
def watch_writes(root: Path) -> Iterator[None]:
    """Let nothing be written outside a directory."""
    if not _hooked():
        raise RuntimeError("no hook")
    _escaped.clear()
    _watched[:] = [root.resolve()]
    try:
        yield
    finally:
        _watched.clear()
    if _escaped:
        raise HostileInputError(f"written outside of the checkpoint: {_escaped}")


@cache
def _hooked() -> bool:
    sys.addaudithook(_on_event)
    return True


def _tree_seeds() -> list[bytes]:
    kept = json.dumps(manifest()).encode()
    return [
        b"offsets/2\0" + _LOG % 9,
        b"commits/2\0" + _COMMIT,
        b"metadata\0" + _SMALL["metadata"],
        b"sources/0/0\0" + _SMALL["sources/0/0"],
        b"offsets/99999999999999999999\0" + _LOG % 9 + b"\xffcommits/99999999999999999999\0" + _COMMIT,
        b"offsets/.2.crc\0crc\xffoffsets/3\0" + _LOG % 11,
        b"state/0/0/3.delta\0x\xffstate/0/0/3.snapshot\0y\xffstate/0/0/left/2.zip\0z",
        b"_kafka_offsets/0001-seek/manifest.json\0" + kept,
        b"_kafka_offsets/0001-seek/manifest.json\0" + kept + b"\xffoffsets/2\0" + _MOVED,
        *(b"offsets/2\0" + data for data in recorded("spark-4.2.0-named-sources-v2/checkpoint/offsets/*", 3)),
        *(b"offsets/2\0" + data for data in recorded("*multi*/checkpoint/offsets/*", 3)),
    ]


READERS: Mapping[str, Reader] = {
    "offset log": Reader(_read_offset_log, recorded("*/checkpoint/offsets/*", 60)),
    "commit log": Reader(
        lambda data: check_commit_log(decode(data, "commits/7"), "commits/7"),
        recorded("*/checkpoint/commits/*"),
    ),
    "Delta commit": Reader(
        _read_batch(lambda data: delta_batch(data, "7.json", _WRITER)),
        recorded("delta-*/_delta_log/*.json", under=TABLES),
    ),
    "Iceberg metadata": Reader(
        _read_batch(lambda data: iceberg_table(data, "v7.metadata.json", _WRITER).batch_id),
        [*(seeds := recorded("iceberg-*/metadata/*.json", under=TABLES)), *map(gzip.compress, seeds)],
    ),
    "Hudi commit": Reader(
        _read_batch(lambda data: hudi_batch(data, "7.commit")),
        recorded("hudi-*/.hoodie/**/*.commit", under=TABLES),
    ),
    "Hudi properties": Reader(
        lambda data: hudi_layout(data, "hoodie.properties"),
        recorded("hudi-*/.hoodie/hoodie.properties", under=TABLES),
    ),
    "query metadata": Reader(
        lambda data: parse_query_id(decode(data, "metadata"), "metadata"), recorded("*/checkpoint/metadata")
    ),
    "checkpoint": Reader(_read_tree, _tree_seeds()),
    "manifest": Reader(
        _read_manifest,
        [
            bytes([number]) + json.dumps(value).encode()
            for number in range(len(_LINKS))
            for value in (
                manifest(),
                manifest(files={"../outside/there": {"before": None, "after": "x"}}),
                manifest(files={"/etc/passwd": {"before": None, "after": None}}),
                manifest(files={"commits/2": {"before": None, "after": "x"}}, copies=True),
            )
        ],
    ),
    "groups of an archive": Reader(
        lambda data: read_groups_file(decode(data, "groups.json")), _seeds(_IMAGES, "")
    ),
    "CSV": Reader(_read_csv, _seeds(*_CSV)),
    "JSON offsets": Reader(
        _of_values("offsets", "positions", "sources", "to_offset"),
        [*_seeds(_OFFSETS, _POSITIONS, {"0": _OFFSETS}), b'"{\\"orders\\":{\\"0\\":1}}"'],
    ),
    "receipt": Reader(
        _read_receipt,
        _seeds(
            _RECEIPT,
            {**_RECEIPT, "checkpoint": _CHECKPOINT_PART},
            _RECEIPTS,
            {"version": 1, "groups": [], "changed": 0, "checkpoint": _CHECKPOINT_PART},
            {"version": 1, "pipelines": [{"group_id": "g"}], "drifted": 1},
            {
                "version": 1,
                "position": "group",
                "total_lag": 3,
                "partitions": [{"committed": 1, "log_end": 2}],
            },
        ),
    ),
    "window": Reader(_read_window, _seeds(_WINDOW)),
    "certificate": Reader(_of_values("certificate", "where"), _seeds(_CERTIFICATE, {"run_id": ["a", 7]})),
    "commit metadata": Reader(
        _read_metadata,
        _seeds(
            {"dag": "d", "run": "manual__2026", "task": "t", "map_index": 3, "user": "u", "at": 1795228309},
            {"query": "q", "batch": 7, "move": 1, "tool": "listener", "partitions": 9, "token": "x"},
            "NONE",
            "",
        ),
    ),
    "topics": Reader(
        _of_values("topics"),
        _seeds("orders", "orders:0,1", ["orders:0", "orders:1", "returns"], '["orders"]', '"orders:3"'),
    ),
    "names": Reader(
        _read_names,
        _seeds(
            *(
                "orders",
                {"orders": "g", "returns": "h"},
                '"orders"',
                "a b é",
                {"source:0": "g", "returns": "h"},
            ),
            {"group_id": {"orders": "g", "returns": "h"}, "topics": ["orders:0", "returns"]},
        ),
    ),
    "times": Reader(
        _of_values("to_datetime", "start", "end"),
        _seeds("2026-03-01T00:00:00+00:00", "2026-03-01", "20260301T101500Z", "2026-W10-3", "latest"),
    ),
    "bounds": Reader(
        _read_bounds, _seeds("earliest|latest", "2026-03-01|2026-03-02T00:00:00Z", "committed|")
    ),
    "durations": Reader(_read_durations, _seeds("PT10M", "P1DT2H3.5S", "90", "1.5", 30, 0.25)),
    "parameters": Reader(
        _of_values(*_PARAMETERS), _seeds("-100", "true", "fail", "kafka", "or.*(a|b){2,3}", 7, "committed")
    ),
    **{
        f"pipelines of {kind}": Reader(
            partial(_read_pipelines, f"file.{kind}"),
            _seeds(*_PIPELINES),
        )
        for kind in ("yaml", "json")
    },
    "pipeline": Reader(
        _read_pipeline,
        _seeds(
            {"group_id": "g", "topics": ["orders"], "checkpoint_location": _LOCATION},
            "s3a://lake/orders",
            "file:///lake",
            "abfss://c@account.dfs.core.windows.net/x",
            "dbfs:/x",
            "s3a://KEY:SEC/RET@lake/x",
        ),
    ),
    "connection extra": Reader(_read_extra, _seeds(_EXTRA)),
    "client": Reader(
        _read_client,
        _seeds(
            {"socket.timeout.ms": "10000", "client.id": "x", "security.protocol": "plaintext"},
            {
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
                "security.protocol": "SASL_PLAINTEXT",
            },
            {"ssl.ca.pem": "x", "reconnect.backoff.ms": 1, "broker.address.family": "v4", "client.rack": "r"},
        ),
    ),
    "command-config file": Reader(_read_properties, _seeds(*_PROPERTIES)),
    "Spark's options": Reader(_read_spark_options, _seeds(_SPARK_OPTIONS)),
}
