"""Whatever text or JSON comes from others is read as a value, or refused with an error of ours."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hostile_inputs import DEEP, DIGITS, texts, values
from hostile_readers import PARSERS
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import KafkaOffsetsError, OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.checkpoint_plan import read_sources
from airflow_kafka_offsets.model.commit_origins import other_query_refusal
from airflow_kafka_offsets.model.formats import load_json, parse_csv
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    Commit,
    TopicPartition,
    refuse_invalid_partitions,
)
from airflow_kafka_offsets.model.parameters import (
    iso_time,
    parse_duration,
    parse_seconds,
)
from airflow_kafka_offsets.model.pipeline_plan import read_groups_file
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.text import MAX_SIZE, describe_type
from airflow_kafka_offsets.model.window import OffsetWindow

SECRET = "hunter2"


def read(parser: Callable[[Any], object], value: object) -> None:
    """Read a value; what refuses it must be an error of ours, of one line, that a retry does not mend."""
    refused = None
    try:
        parser(value)
    except KafkaOffsetsError as error:
        refused = error
    assert refused is None or not refused.retriable
    assert str(refused).isprintable()
    assert len(str(refused)) < 2_000


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # Python's remark on a pattern such as "[["
@pytest.mark.parametrize("name", PARSERS)
@given(values | texts)
@example(DIGITS)
@example(f'{{"orders": {{"0": {DIGITS}}}}}')
@example({"orders": {DIGITS: 1}})
@example({"run_id": ["this", "that"], "day": 3})
@example(DEEP)
@example(f"orders:{DIGITS}")
@example("orders:2147483648")
@example("P999999999D")
@example("P999999999DT999999999H")
@example("0001-01-01")
@example("0001-01-01T00:00:00+23:59")
@example("9999-12-31T23:59:59-23:59")
@example(timedelta.max)
@example(float("inf"))
def test_a_value_is_read_or_refused(name, value):
    read(PARSERS[name], value)


@pytest.mark.parametrize("name", PARSERS)
def test_a_number_that_python_cannot_show_is_read_or_refused(name):
    for number in (10**5_000, -(10**5_000)):
        for value in (number, {"orders": {"0": number}}, {"orders": {number: 0}}):
            read(PARSERS[name], value)


@given(st.integers() | st.sampled_from([1_700_000_000_000_000, 2**63 - 1, -(2**63)]))
def test_every_time_that_a_record_may_have_can_be_shown(milliseconds):
    shown = iso_time(milliseconds)
    assert shown.endswith("Z") or str(milliseconds) in shown


def test_a_time_in_microseconds_is_shown_as_the_number_that_it_is():
    assert iso_time(1_700_000_000_000_000) == "1700000000000000 ms since 1970"


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1e300", timedelta(days=40_000)])
def test_a_duration_of_no_calendar_is_refused(value):
    with pytest.raises(UsageError, match=r"^grace=.*: expected seconds, or a duration"):
        parse_duration(value, "grace")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0, -1, 3_601, True, "PT2H"])
def test_seconds_have_a_range(value):
    with pytest.raises(UsageError, match=r"^timeout=.*: expected seconds, .* above 0 and of at most 3600"):
        parse_seconds(value, "timeout", maximum=3_600, allow_zero=False)


@pytest.mark.parametrize(
    "partition", [("a b", 0), ("", 0), ("a\0", 0), ("orders", -1), ("orders", MAX_PARTITION + 1)]
)
def test_a_partition_that_cannot_be_is_refused(partition):
    with pytest.raises(UsageError, match="expected"):
        refuse_invalid_partitions([TopicPartition("orders", MAX_PARTITION), TopicPartition(*partition)])


def test_the_metadata_of_others_are_escaped_where_they_are_shown():
    text = json.dumps({"query": "other\x1b[2J\n", "run": "r\r", "batch": 3})
    refusal = other_query_refusal("g", {TopicPartition("orders", 0): Commit(0, text)}, "mine")
    assert refusal is not None
    assert r"run r\r (query other\x1b[2J\n, batch 3)" in refusal


def test_many_keys_and_one_of_them_twice_are_read_at_once():
    # Quadratic, this would take hours.
    text = "{" + ",".join(f'"{key}":0' for key in range(100_000)) + ',"99999":0}'
    with pytest.raises(OffsetsFormatError, match="key '99999' occurs twice"):
        load_json(text, "offsets")


@pytest.mark.parametrize("parser", [lambda text: load_json(text, "the file"), parse_csv])
def test_a_text_that_is_too_large_is_refused_with_both_sizes(parser):
    with pytest.raises(
        OffsetsFormatError, match="the file: is 10,000,001 bytes large; expected at most 10,000,000"
    ):
        parser(" " * (MAX_SIZE + 1))


CONTENTS = [
    f"root:{SECRET}:0:0:root:/root:/bin/sh\n",
    f'{{"private_key": "{SECRET}"}}',
    f'["{SECRET}"]',
    f'"{SECRET}"',
    f'{{"version": 1, "start": "{SECRET}"}}',
    f'{{"version": 1, "start": {{"{SECRET} ": {{}}}}}}',
    f'{{"version": 1, "start": {{"orders": {{"{SECRET}": 1}}}}}}',
    f'{{"version": 1, "start": {{"orders": {{"0": "{SECRET}"}}}}}}',
    f'{{"version": 1, "{SECRET} ": 0, "{SECRET} ": 0}}',
    f'{{"version": 1, "group_id": "g", "before": {{"orders": "{SECRET}"}}}}',
    f'{{"before": {{"g": "{SECRET}"}}}}',
    f"{SECRET},0,{SECRET}",
    f"orders,0,1,{SECRET}",
    f" {SECRET}\nx",
]


@pytest.mark.parametrize(
    "parser",
    [
        lambda text: OffsetWindow.parse(text, "file", show=describe_type),
        lambda text: Receipt.parse(load_json(text, "file", describe=describe_type), describe=describe_type),
        lambda text: read_sources(
            load_json(text, "file", describe=describe_type), "file", describe=describe_type
        ),
        read_groups_file,
        parse_csv,
    ],
    ids=["window", "receipt", "sources", "images", "csv"],
)
def test_the_content_of_a_file_that_is_another_is_not_shown(parser):
    texts = {}
    for content in CONTENTS:
        try:
            parser(content)
        except OffsetsFormatError as error:
            texts[content] = str(error)
    assert texts.keys() == set(CONTENTS)
    assert not [content for content, text in texts.items() if SECRET in text]


@pytest.mark.parametrize("number", [MAX_OFFSET, MAX_OFFSET + 1, -1, 10**30])
def test_offsets_of_a_reset_are_those_of_kafka(number):
    if number == MAX_OFFSET:
        assert Place.parse(str(number), "to_offset").value == number
        assert Place.parse(-number, "shift_by").value == -number
    else:
        with pytest.raises(UsageError):
            Place.parse(number, "to_offset")
