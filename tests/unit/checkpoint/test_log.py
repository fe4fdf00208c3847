from __future__ import annotations

import json
from contextlib import suppress
from string import ascii_letters, digits

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.checkpoint.log import (
    SourceOffset,
    check_commit_log,
    kafka_offsets,
    parse_offset_log,
    parse_query_id,
)
from airflow_kafka_offsets.errors import CheckpointFormatError, StorageError
from airflow_kafka_offsets.model.formats import offsets_text
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, TopicPartition
from airflow_kafka_offsets.storage import decode

NAME = "s3a://lake/cp/offsets/7"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795228309758,"conf":{}}'
KAFKA = '{"orders":{"2":12,"0":10}}'

offsets_of_sources = st.dictionaries(
    st.builds(
        TopicPartition,
        st.text(f"{ascii_letters}{digits}._-", min_size=1, max_size=20).filter(
            lambda name: not name.startswith(".")
        ),
        st.integers(0, 2**31 - 1),
    ),
    st.integers(0, MAX_OFFSET),
    min_size=1,
    max_size=8,
)
not_kafka = st.sampled_from(
    ["0", "17", '{"logOffset":0}', '{"sourceVersion":1,"reservoirId":"a","reservoirVersion":3}', "{}"]
)
sources_lists = st.lists(st.one_of(offsets_of_sources, not_kafka, st.none()), min_size=1, max_size=5)
names_of_sources = st.text(f"{ascii_letters}{digits}_", min_size=1, max_size=12)


def as_line(source: dict[TopicPartition, int] | str | None) -> str:
    if source is None:
        return "-"
    return source if isinstance(source, str) else offsets_text(source)


# --- offset log


def test_version_1_numbers_its_sources_in_the_order_of_the_lines() -> None:
    entry = parse_offset_log(f'v1\n{METADATA}\n{KAFKA}\n{{"logOffset":0}}\n-', NAME)

    assert entry.version == 1
    assert entry.batch_timestamp_ms == 1795228309758
    assert entry.sources == (
        SourceOffset("0", KAFKA),
        SourceOffset("1", '{"logOffset":0}'),
        SourceOffset("2", None),
    )


def test_version_2_names_its_sources_in_any_order_and_splits_at_the_first_colon() -> None:
    entry = parse_offset_log(f"v2\n{METADATA}\nrt:10\norders:{KAFKA}\n1:-", NAME)

    assert entry.version == 2
    assert entry.sources == (SourceOffset("rt", "10"), SourceOffset("orders", KAFKA), SourceOffset("1", None))


def test_the_metadata_may_be_empty_as_in_continuous_mode() -> None:
    entry = parse_offset_log(f"v1\n\n{KAFKA}", NAME)

    assert entry.metadata == {}
    assert entry.batch_timestamp_ms is None


def test_a_line_feed_at_the_end_is_no_further_source_and_is_kept() -> None:
    text = f"v1\n{METADATA}\n{KAFKA}\n"

    entry = parse_offset_log(text, NAME)

    assert len(entry.sources) == 1
    assert "\n".join(entry.lines) == text


@given(sources_lists)
def test_every_log_of_version_1_reads_back(sources: list[dict[TopicPartition, int] | str | None]) -> None:
    text = "\n".join(["v1", METADATA, *map(as_line, sources)])

    entry = parse_offset_log(text, NAME)

    assert "\n".join(entry.lines) == text
    assert [found.source for found in entry.sources] == [str(index) for index in range(len(sources))]
    for found, source in zip(entry.sources, sources, strict=True):
        if isinstance(source, dict):
            assert kafka_offsets(found.text or "") == source
        else:
            assert found.text == source


@given(
    st.dictionaries(names_of_sources, st.one_of(offsets_of_sources, not_kafka, st.none()), min_size=1),
    st.randoms(),
)
def test_every_log_of_version_2_reads_back_in_any_order(sources: dict[str, object], random: object) -> None:
    lines = [f"{name}:{as_line(source)}" for name, source in sources.items()]  # type: ignore[arg-type]
    random.shuffle(lines)  # type: ignore[attr-defined]

    entry = parse_offset_log("\n".join(["v2", METADATA, *lines]), NAME)

    assert dict(entry.sources) == {
        name: None if source is None else as_line(source)  # type: ignore[arg-type]
        for name, source in sources.items()
    }


@given(offsets_of_sources, st.data())
def test_a_kafka_line_that_is_cut_off_anywhere_is_refused(
    offsets: dict[TopicPartition, int], data: st.DataObject
) -> None:
    line = offsets_text(offsets)
    cut = line[: data.draw(st.integers(0, len(line) - 1))]

    with pytest.raises(CheckpointFormatError):
        parse_offset_log(f"v1\n{METADATA}\n{KAFKA}\n{cut}\n0", NAME)


@given(st.text())
@example("v1\n{}\n" + "[" * 100_000)
@example("v1\n{}\n" + "9" * 5_000)
@example("v1\n" + "[" * 100_000 + "\n0")
def test_no_text_raises_anything_but_a_refusal(text: str) -> None:
    with suppress(CheckpointFormatError):
        parse_offset_log(text, NAME)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "first line is an empty text"),
        ("v1", "only the version line"),
        ("v1\n", "no line of a source"),
        (f"v1\n{METADATA}", "no line of a source"),
        (f"v1\n{METADATA}\n", "no line of a source"),
        (f"v1\n{METADATA[:30]}\n{KAFKA}", "line 2"),
        (f"v1\n[]\n{KAFKA}", "line 2"),
        (f"v1\n{METADATA}\n{KAFKA}\n\n0", "line 4: found nothing"),
        (f'v1\n{METADATA}\n0\n{{"orders":{{"0":4', "line 4"),
        (f"v1\n{METADATA}\nnot JSON", "line 3"),
        (f"v3\n{METADATA}\n{KAFKA}", "version v3; expected v1 or v2"),
        (f"v0\n{METADATA}\n{KAFKA}", "'v0'"),
        (f"V1\n{METADATA}\n{KAFKA}", "'V1'"),
        (f"{METADATA}\n{KAFKA}", "first line"),
        ("PAR1\x00\x15\x04", "first line"),
        (f"v2\n{METADATA}\n{KAFKA}", "a source's name or index"),
        (f"v2\n{METADATA}\norders", "a source's name or index"),
        (f"v2\n{METADATA}\n:0", "a source's name or index"),
        (f"v2\n{METADATA}\norders:", "line 3: found nothing"),
        (f"v2\n{METADATA}\norders:0\norders:1", "source 'orders' for the second time"),
    ],
)
def test_a_malformed_offset_log_is_refused_with_its_name_and_what_was_found(text: str, found: str) -> None:
    with pytest.raises(CheckpointFormatError) as refused:
        parse_offset_log(text, NAME)

    assert str(refused.value).startswith(NAME)
    assert found in str(refused.value)
    assert "expected" in str(refused.value)


# --- Kafka's shape


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-5",
        "null",
        '"orders"',
        "{}",
        '{"orders":{}}',
        '{"logOffset":0}',
        '{"offset":3,"timestamp":1795228309758}',
        '{"0":{"value":5,"runTimeMs":1000}}',
        '{"sourceVersion":1,"reservoirId":"a","reservoirVersion":3,"index":-1,"isStartingVersion":false}',
        '{"orders":{"partition":0,"offset":100}}',
        '{"shardId-000":{"0":"49590338271490256608559692538361571095921575989136588898"}}',
        '[{"orders":{"0":1}}]',
    ],
)
def test_what_other_sources_write_is_not_kafka(text: str) -> None:
    assert kafka_offsets(text) is None


def test_kafka_offsets_of_several_topics_are_read() -> None:
    assert kafka_offsets('{"b":{"1":15,"0":0}, "a":{"0": 30}}') == {
        TopicPartition("b", 1): 15,
        TopicPartition("b", 0): 0,
        TopicPartition("a", 0): 30,
    }


@pytest.mark.parametrize("topic", ["logOffset", "0", "version", "offset"])
def test_a_topic_may_be_called_as_other_sources_call_their_fields(topic: str) -> None:
    assert kafka_offsets(json.dumps({topic: {"0": 1}})) == {TopicPartition(topic, 0): 1}


@pytest.mark.parametrize(
    "text",
    [
        '{"orders":{"0":-1}}',
        '{"orders":{"0":-2,"1":4}}',
        '{"orders":{"0":1.5}}',
        '{"orders":{"0":true}}',
        '{"orders":{"0":null}}',
        '{"orders":{"0":9223372036854775808}}',
        '{"orders":{"00":1}}',
        '{"orders":{"0":1,"0":2}}',
        '{"orders":{"0":1},"orders":{"1":2}}',
        '{"orders":{"0":1,"x":2}}',
        '{"orders":{"0":1},"payments":{}}',
        '{"or ders":{"0":1}}',
        '{"orders":{"0":4',
        '{"orders":{"0":4}',
        "",
    ],
)
def test_kafkas_shape_with_anything_that_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(CheckpointFormatError, match=r"^cp/offsets/7, line 3: .*(expected|occurs twice)"):
        kafka_offsets(text, "cp/offsets/7, line 3")


# --- commit log, metadata, bytes


@pytest.mark.parametrize(
    "text",
    [
        'v1\n{"nextBatchWatermarkMs":0}',
        "v1\n{}",
        'v1\n{"nextBatchWatermarkMs":0}\n',
        'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["388a16a2"]]}}',
    ],
)
def test_commit_logs_of_both_versions_are_accepted(text: str) -> None:
    check_commit_log(text, "cp/commits/7")


@pytest.mark.parametrize("text", ["", "v1", "v1\n", 'v1\n{"nextBatch', "v3\n{}", "{}", "v1\n0", "v1\n{}\n{}"])
def test_a_malformed_commit_log_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(CheckpointFormatError, match=r"^cp/commits/7.*expected"):
        check_commit_log(text, "cp/commits/7")


@pytest.mark.parametrize("text", ["", "{}", '{"id":""}', '{"id":5}', '{"id":"975d', "[]"])
def test_metadata_without_a_query_id_is_refused(text: str) -> None:
    with pytest.raises(CheckpointFormatError, match=r"^cp/metadata: found .*expected"):
        parse_query_id(text, "cp/metadata")


def test_bytes_that_are_no_text_are_refused_with_their_file() -> None:
    with pytest.raises(StorageError, match=r"^cp/offsets/7: found bytes that are not UTF-8"):
        decode(b"v1\n\xff\xfe\x00", "cp/offsets/7")


SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"root:{SECRET}:0:0:root:/root:/bin/sh\n",
        f"v1\n{SECRET}\n{KAFKA}",
        f'v1\n["{SECRET}"]\n{KAFKA}',
        f"v1\n{METADATA}\n{SECRET}",
        f'v1\n{METADATA}\n{{"orders":{{"0":1,"{SECRET}":2}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":"{SECRET}","1":2}}}}',
        f"v2\n{METADATA}\n {SECRET}:0",
        f"v2\n{METADATA}\n{SECRET}",
    ],
)
def test_the_content_of_a_file_that_is_no_log_is_not_shown(text: str) -> None:
    with pytest.raises(CheckpointFormatError) as refused:
        parse_offset_log(text, NAME)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("text", [SECRET, f'{{"id": ["{SECRET}"]}}', f'"{SECRET}"'])
def test_the_content_of_a_file_without_a_query_is_not_shown(text: str) -> None:
    with pytest.raises(CheckpointFormatError) as refused:
        parse_query_id(text, "cp/metadata")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("time", [10**18, -1, "true", 10**400])
def test_a_batch_that_was_planned_at_no_time_has_none(time: object) -> None:
    entry = parse_offset_log(f'v1\n{{"batchTimestampMs":{time}}}\n{KAFKA}', NAME)
    assert entry.batch_timestamp_ms is None
