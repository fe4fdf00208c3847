"""
Hostile input to every reader.

``HOSTILE_INPUTS=5000 pytest tests/hostile`` gives so many inputs to each reader, a third of them made up by
hypothesis, ``HOSTILE_SEED=7`` others, and ``LONG_TESTS=yes`` shows whether time or memory grow faster than an
input. An input that is neither read nor refused as it must be is kept in ``tests/hostile/corpus``, from where
it is tried again; one that ends Python itself is not, but its seed gives it again.
"""

import json
import os
import random
import resource
import shutil
import time
import traceback
import tracemalloc
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hostile_inputs import damaged, grown, inputs
from hostile_readers import CORPUS, READERS, RECORDED, HostileInputError, try_input, watch_writes
from hypothesis import HealthCheck, example, given, seed, settings

from airflow_kafka_offsets.checkpoint.log import parse_offset_log, parse_query_id
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    KafkaOffsetsError,
    MisnamedError,
    OffsetsFormatError,
    StorageError,
    UsageError,
)
from airflow_kafka_offsets.kafka.config import client_config, load_properties
from airflow_kafka_offsets.model.formats import OffsetsFile, load_json, parse_csv, parse_offsets
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.parameters import (
    OutOfRangePolicy,
    parse_choice,
    parse_count,
    parse_duration,
    parse_pattern,
    parse_seconds,
    parse_switch,
    parse_time,
)
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.text import MAX_SIZE, MAX_VALUES
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.storage import open_location
from airflow_kafka_offsets.ui.receipts import parse_package_value

# Python's own remark on a pattern such as "[[", which is none of ours.
pytestmark = pytest.mark.filterwarnings("ignore:Possible:FutureWarning")

INPUTS, SEED = int(os.environ.get("HOSTILE_INPUTS", "240")), int(os.environ.get("HOSTILE_SEED", "0"))
MADE_UP = INPUTS // (3 if "HOSTILE_INPUTS" in os.environ else 4)
SLOW = 5.0
"""Seconds of the processor that no input may take; the largest have 200 kB."""
SMALL = 100_000
"""Bytes of the inputs that are compared with the largest ones that are not refused for their size."""
KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


def give(name, data):
    """Try an input, and return the seconds that it took; keep it if it was not read or refused."""
    began = time.process_time()
    try:
        try_input(name, data)
        seconds = time.process_time() - began
        assert seconds < SLOW
    except (AssertionError, HostileInputError) as error:
        # One of each kind: hypothesis tries many on its way to a small one.
        cause = error.__cause__ or error
        where = traceback.extract_tb(cause.__traceback__)[-1]
        path = CORPUS / name / f"{type(cause).__name__}-{Path(where.filename).stem}-{where.lineno}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        error.add_note(f"{data[:300]!r} ({len(data)} bytes, kept in {path})")
        raise
    return seconds


@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_read_or_refused(name):
    rng, before = random.Random(f"{name} {SEED}"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in (*READERS[name].seeds, *(damaged(READERS[name].seeds, rng) for _ in range(INPUTS - MADE_UP))):
        give(name, data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kB more"


@pytest.mark.parametrize("name", READERS)
@seed(SEED)
@settings(max_examples=MADE_UP, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(inputs)
@example(b"")
def test_any_input_is_read_or_refused(name, data):
    give(name, data)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_that_once_failed_is_read_or_refused(path):
    try_input(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("checkpoint", "manifest")])
def test_large_input_is_read_or_refused(name):
    for make in grown(name).values():
        try_input(name, make(20_000))


def largest(make, most):
    """The size of the largest input that is not refused for its size or its values."""
    sample = make(SMALL)
    marks = sum(map(sample.count, (b",", b"{", b"[", b"\n")))
    return min(MAX_SIZE, len(sample) * most // max(marks, 1)) * 97 // 100


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", READERS)
def test_neither_time_nor_memory_grow_faster_than_an_input(name):
    for family, make in grown(name).items():
        most = largest(make, 3 * MAX_VALUES if name == "CSV" else MAX_VALUES)
        smaller, before = make(SMALL), seconds_of(name, make(SMALL))
        for data in (make(min(4 * SMALL, most)), make(most)):
            seconds = seconds_of(name, data)
            assert seconds < max(0.5, before * len(data) / len(smaller) * 2.5), (family, len(data))
            smaller, before = data, seconds
        with memory_below(100_000_000):
            try_input(name, data)


def seconds_of(name, data):
    began = time.process_time()
    try_input(name, data)
    return time.process_time() - began


@contextmanager
def memory_below(limit):
    """Refuse a block that needs more memory at any moment, in bytes."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < limit, f"{peak:,} bytes"
    finally:
        tracemalloc.stop()


def test_a_write_outside_of_the_checkpoint_is_noticed(tmp_path: Path):
    (tmp_path / "checkpoint").mkdir()
    with (
        pytest.raises(HostileInputError, match="written outside of the checkpoint"),
        watch_writes(tmp_path / "checkpoint"),
    ):
        (tmp_path / "other").write_text("x")


def read_setting(key):
    return client_config({"bootstrap.servers": "localhost:9092", key: " "})


def read_choice(value):
    return parse_choice(value, OutOfRangePolicy, "on_out_of_range")


def read_key(key):
    return GroupSelection.parse({key: "g"}, ["returns"]).scopes()


@pytest.mark.parametrize("key", ["security.pro\ud800tocol", "ssl.ca\0"])
def test_a_setting_whose_name_ends_the_client_is_refused(key):
    with pytest.raises(UsageError, match="a setting named"):
        client_config({"bootstrap.servers": "localhost:9092", key: "x"})


@pytest.mark.parametrize(
    ("read", "value"),
    [
        *((read_setting, key) for key in (f"sasl.{'x' * 10_000}", "ssl.\x1b[2J")),
        *((read_choice, value) for value in (10**5_000, "x" * 10_000, "\x1b[2J")),
        *(
            (read_key, key)
            for key in (f"source:{'9' * 5_000}", "source:\x1b[2J", "x" * 5_000, "orders\ufeff")
        ),
    ],
    ids=lambda each: getattr(each, "__name__", "value"),
)
def test_what_is_refused_is_shown_in_short(read, value):
    with pytest.raises(UsageError) as refused:
        read(value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "pattern",
    ["a{99999999999}", f"a{{{'9' * 5_000}}}", "(" * 5_000 + ")" * 5_000],
    ids=["large", "digits", "deep"],
)
def test_a_pattern_that_python_cannot_compile_is_refused(pattern):
    with pytest.raises(UsageError, match=r"^topics_pattern='.{1,130} is not a regular expression"):
        parse_pattern(pattern, "topics_pattern")


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}"])
def test_a_window_with_a_pattern_that_is_none_is_refused(pattern):
    groups = GroupSelection.parse("g", ["orders", "returns"])
    with pytest.raises(UsageError, match="is not a regular expression"):
        groups.restricted_to_window({TopicPartition("orders", 0)}, {"topics_pattern": pattern})


@pytest.mark.parametrize("text", ["7\x1f", "\x1c7", "7\u2003"])
def test_a_number_with_odd_space_around_it_is_read(text):
    assert parse_count(text, "max_lag") == 7


def test_many_names_that_select_nothing_are_named_in_short():
    groups = GroupSelection.parse(
        {f"t{number}": "g" for number in range(5_000)}, [f"u{n}" for n in range(5_000)]
    )
    with pytest.raises(MisnamedError) as refused:
        groups.assign_offsets({"0": {TopicPartition("orders", 0): 1}})
    assert "'t0', 't1', 't10'" in str(refused.value)
    assert len(str(refused.value)) < 2_000


def test_a_source_with_a_name_of_thousands_of_digits_is_refused():
    with pytest.raises(CheckpointFormatError, match="expected a source's name or index"):
        parse_offset_log("v2\n{}\n" + "9" * 5_000 + ':{"orders":{"0":1}}', "offsets/7")


@pytest.mark.parametrize("number", [2**63, 10**200])
def test_a_batch_with_a_number_that_spark_does_not_know_is_ignored(tmp_path: Path, number):
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
        for name in (7, number):
            (tmp_path / directory / str(name)).touch()
    assert SparkCheckpoint(str(tmp_path)).listed() == ({7}, {7})


@pytest.mark.parametrize("file", ["offsets/3", "commits/3", "metadata"])
def test_no_cut_of_a_file_gives_other_offsets(tmp_path: Path, file):
    location = shutil.copytree(RECORDED / "spark-4.2.0-plain" / "checkpoint", tmp_path / "cut")
    right, whole = SparkCheckpoint(str(location)).read(), (location / file).read_bytes()
    for size in range(len(whole)):
        (location / file).write_bytes(whole[:size])
        with suppress(CheckpointFormatError):
            assert SparkCheckpoint(str(location)).read() == right, size


def test_the_names_in_a_directory_that_is_no_checkpoint_move_no_cursor(tmp_path: Path):
    (tmp_path / "\x1b[2Jx").touch()
    with pytest.raises(CheckpointNotFoundError) as refused:
        SparkCheckpoint(str(tmp_path)).read()
    assert r"\x1b[2Jx" in str(refused.value)


@pytest.mark.parametrize("query_id", ["\x1b[2J", "x" * 101, "a b", "$(id)"])
def test_a_query_id_that_would_be_shown_as_something_else_is_refused(query_id):
    refused = try_input("query metadata", b'{"id": "%b"}' % query_id.encode())
    assert isinstance(refused, CheckpointFormatError)


def test_a_topic_named_in_many_entries_is_read_at_once():
    # Quadratic, this would take minutes.
    scope = TopicScope.parse([f"orders:{number}" for number in range(200_000)])
    assert len((scope.partitions or {})["orders"] or ()) == 200_000


def test_a_file_of_many_groups_is_read_once_for_all_of_them():
    # Read once for each, this would take minutes.
    names = [f"g{number}" for number in range(3_000)]
    offsets = OffsetsFile("file", "".join(f"{name},orders,0,1\n" for name in names)).offsets_by_group(names)
    assert offsets["g2999"] == {TopicPartition("orders", 0): 1}
    with pytest.raises(OffsetsFormatError, match="no line for group 'other'"):
        OffsetsFile("file", "g,orders,0,1\nh,orders,0,1").offsets_by_group(["g", "other"])


def test_the_lines_of_a_long_file_of_settings_are_counted_once(tmp_path: Path):
    path = tmp_path / "client.properties"
    path.write_text("k=v\n" * 199_000 + "novalue\n")
    with pytest.raises(UsageError, match="line 199001: expected key=value"):
        load_properties(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#" * (MAX_SIZE + 1), "expected at most 10,000,000"),
        ("k=v\n" * (MAX_VALUES + 1), "has about 200,001 values; expected at most 200,000"),
    ],
    ids=["bytes", "lines"],
)
def test_a_file_of_settings_that_is_too_large_is_refused(tmp_path: Path, text, says):
    path = tmp_path / "client.properties"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        load_properties(path)


MOST = 1_000_000
TOO_MANY = "[" + "{}," * MAX_VALUES + "{}]"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda text: load_json(text, "file"), TOO_MANY),
        (lambda text: parse_offset_log(text, "offsets/7"), "v1\n" + TOO_MANY),
        (lambda text: parse_offset_log(text, "offsets/7"), "v1\n{}" + "\n-" * MAX_VALUES),
        (lambda text: parse_query_id(text, "metadata"), TOO_MANY),
        (parse_csv, "," * (3 * MAX_VALUES + 1)),
        (parse_csv, "a\n" * (3 * MAX_VALUES + 1)),
        (TopicScope.parse, "orders:" + "0," * MAX_VALUES + "0,0"),
    ],
    ids=["JSON", "metadata of a batch", "sources", "metadata", "cells", "lines", "partitions"],
)
def test_more_values_than_any_file_of_ours_has_are_refused_before_they_take_memory(read, text):
    with (
        memory_below(10_000_000),
        pytest.raises(KafkaOffsetsError, match=r"has about .* values; expected at most .*00,000:"),
    ):
        read(text)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("k=" + "v" * MOST, {"k": "v" * MOST}),
        ("k=" + "\\n" * MOST, {"k": "\n" * MOST}),
        ("k=" + "\\\n" * 100_000 + "v", {"k": "v"}),
        ("k" * MOST, None),
        ("\\" * MOST, None),
    ],
    ids=["value", "escapes", "continued", "name", "backslashes"],
)
def test_a_long_line_of_settings_takes_no_more_memory_than_a_long_file(tmp_path: Path, text, settings):
    path = tmp_path / "client.properties"
    path.write_text(text)
    with memory_below(20 * len(text) + 10_000_000):
        if settings is None:
            with pytest.raises(UsageError, match="line 1: expected key=value"):
                load_properties(path)
        else:
            assert load_properties(path) == settings


@pytest.mark.parametrize("read", [parse_switch, parse_time, parse_duration, parse_seconds])
def test_a_long_text_is_no_switch_time_or_duration(read):
    text = "\udcff" * MAX_SIZE
    with memory_below(1_000_000), pytest.raises(UsageError, match="expected"):
        read(text, "grace")


def test_a_long_text_is_not_written_out_to_show_its_beginning():
    text = "\0" * MAX_SIZE
    with memory_below(1_000_000), pytest.raises(UsageError, match=r"expected one of") as caught:
        parse_choice(text, OutOfRangePolicy, "on_out_of_range")
    assert len(str(caught.value)) < 300


def test_a_pattern_that_takes_much_to_compile_is_refused():
    parse_pattern("a|" * 20_000 + "a", "topics_pattern")
    with pytest.raises(UsageError, match="topics_pattern has 50,001 characters; expected at most 50,000"):
        parse_pattern("a" * 50_001, "topics_pattern")


def test_a_value_from_xcom_with_too_many_values_is_none_of_ours():
    assert parse_package_value('{"version": 1, "changed": 1, "groups": [1]}') is not None
    assert parse_package_value('{"version": 1, "changed": 1, "groups": [' + "1," * MAX_VALUES + "1]}") is None


def large(partitions, first=10**9):
    return {"orders": {str(number): first + number for number in range(partitions)}}


def large_receipt():
    offsets = large(49_000)
    return {
        "version": 1,
        "group_id": "g",
        "before": offsets,
        "after": offsets,
        "log_start": offsets,
        "log_end": offsets,
        "changed": 49_000,
    }


def large_window():
    offsets = large(66_000)
    return {"version": 1, "start": offsets, "end": large(66_000, 2 * 10**9), "committed": offsets}


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda: json.dumps(large_receipt()), lambda text: Receipt.parse(load_json(text, "receipt"))),
        (lambda: json.dumps(large_window()), OffsetWindow.parse),
        (lambda: json.dumps(large(199_000)), parse_offsets),
        (
            lambda: "v1\n{}\n" + json.dumps(large(199_000), separators=(",", ":")),
            lambda text: parse_offset_log(text, "offsets/7").kafka_offsets,
        ),
        (lambda: "".join(f"orders,{number},1\n" for number in range(199_000)), parse_csv),
        (lambda: "".join(f"g,orders,{number},1\n" for number in range(149_000)), parse_csv),
    ],
    ids=["receipt", "window", "offsets", "offset log", "CSV", "CSV of groups"],
)
def test_the_largest_files_are_read_with_less_than_100_mb(make, read):
    text = make()
    with memory_below(100_000_000):
        assert read(text)


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "metadata")
    with pytest.raises(StorageError, match="metadata: is a pipe or a device; expected a file"):
        SparkCheckpoint(str(tmp_path)).read()


@pytest.mark.parametrize("scheme", ["s3a", "abfss"])
def test_a_location_of_many_colons_takes_no_longer_than_its_length(scheme):
    location = f"{scheme}://" + '{"a":' * 40_000
    began = time.process_time()
    with suppress(KafkaOffsetsError):
        check_location(location)
    with suppress(KafkaOffsetsError):
        open_location(location, MemoryFileSystem())

    assert time.process_time() - began < 1
