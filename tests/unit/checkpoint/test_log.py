import json
from contextlib import suppress
from string import ascii_letters, digits

import pytest
from checkpoint_moves import METADATA
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.checkpoint.log import (
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
KAFKA = '{"orders":{"2":12,"0":10}}'

topics = st.text(f"{ascii_letters}{digits}._-", min_size=1, max_size=20).filter(
    lambda name: not name.startswith(".")
)
topic_partitions = st.builds(TopicPartition, topics, st.integers(0, 4) | st.integers(0, 2**31 - 1))
offsets_of_a_source = st.dictionaries(
    topic_partitions, st.integers(0, 20) | st.integers(0, MAX_OFFSET), min_size=1, max_size=8
)
not_kafka = st.sampled_from(
    ["0", "17", '{"logOffset": 0}', '{"sourceVersion":1,"reservoirId":"a","index":-1}', "{}", "-"]
)


def spaced(offsets, separators):
    """Another writer's JSON: partitions in the order of the mapping, and spaces of its own."""
    found = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found, separators=separators)


@st.composite
def logs(draw):
    """The text of a log of either version; source -> the text of its line; Kafka source -> its offsets."""
    texts, kafka = {}, {}
    named = draw(st.booleans())
    names = st.text(f"{ascii_letters}{digits}_", min_size=1, max_size=8) if named else st.integers(0, 3)
    for name in map(str, draw(st.lists(names, min_size=1, max_size=4, unique=True))):
        if draw(st.booleans()):
            kafka[name] = draw(offsets_of_a_source)
            separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]))
            texts[name] = spaced(kafka[name], separators)
        else:
            texts[name] = draw(not_kafka)
    if not named:  # version 1 has no names, but numbers its lines
        numbers = {name: str(number) for number, name in enumerate(texts)}
        texts = {numbers[name]: text for name, text in texts.items()}
        kafka = {numbers[name]: offsets for name, offsets in kafka.items()}
    lines = [f"{name}:{text}" if named else text for name, text in texts.items()]
    metadata = draw(st.sampled_from([METADATA, '{"conf":{"a.b":"\u00e9"}}', ""]))
    head = ["v2" if named else "v1", metadata]
    return "\n".join([*head, *lines]) + draw(st.sampled_from(["", "\n"])), texts, kafka


# --- offset log


def test_the_metadata_may_be_empty_as_in_continuous_mode():
    entry = parse_offset_log(f"v1\n\n{KAFKA}", NAME)
    assert entry.metadata == {}
    assert entry.batch_timestamp_ms is None


@given(logs())
def test_every_log_reads_back_and_is_the_same_text_with_its_own_offsets(log):
    text, texts, kafka = log
    entry = parse_offset_log(text, NAME)
    assert entry.text == text
    found = [(source, "-" if offset is None else offset) for source, offset in entry.sources.items()]
    assert found == [*texts.items()]
    assert entry.kafka_offsets == kafka
    for same in (kafka, {}):
        assert entry.with_offsets(same) == text


@given(logs(), st.data())
def test_a_written_log_has_exactly_the_offsets_asked_for_and_every_other_byte_as_before(log, data):
    text, texts, kafka = log
    targets = {
        source: {
            tp: data.draw(st.sampled_from([offset]) | st.integers(0, MAX_OFFSET))
            for tp, offset in offsets.items()
            if data.draw(st.booleans())
        }
        for source, offsets in kafka.items()
        if data.draw(st.booleans())
    }
    wanted = {source: offsets | targets.get(source, {}) for source, offsets in kafka.items()}

    written = parse_offset_log(text, NAME).with_offsets({source: wanted[source] for source in targets})

    entry = parse_offset_log(written, NAME)
    assert [*entry.sources] == [*texts]
    assert entry.kafka_offsets == wanted
    moved = [source in kafka and wanted[source] != kafka[source] for source in texts]
    end = [False] if text.endswith("\n") else []
    pairs = zip(text.split("\n"), written.split("\n"), strict=True)
    assert [before != after for before, after in pairs] == [False, False, *moved, *end]


@pytest.mark.parametrize("line", ['{"logOffset":0}', "17", "-", "{}"])
def test_a_source_without_kafka_offsets_is_left_alone_even_if_offsets_are_named_for_it(line):
    text, offsets = f"v1\n{METADATA}\n{line}", {TopicPartition("orders", 0): 5}
    assert parse_offset_log(text, NAME).with_offsets({"0": offsets, "7": offsets}) == text


@given(offsets_of_a_source, st.data())
def test_a_kafka_line_that_is_cut_off_anywhere_is_refused(offsets, data):
    line = offsets_text(offsets)
    cut = line[: data.draw(st.integers(0, len(line) - 1))]
    with pytest.raises(CheckpointFormatError):
        parse_offset_log(f"v1\n{METADATA}\n{KAFKA}\n{cut}\n0", NAME)


@given(st.text())
@example("v1\n{}\n" + "[" * 100_000)
@example("v1\n{}\n" + "9" * 5_000)
@example("v1\n" + "[" * 100_000 + "\n0")
def test_no_text_raises_anything_but_a_refusal(text):
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
        (f"v3\n{METADATA}\n{KAFKA}", "version v3; expected v1 to v2"),
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
def test_a_malformed_offset_log_is_refused_with_its_name_and_what_was_found(text, found):
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
def test_what_other_sources_write_is_not_kafka(text):
    assert kafka_offsets(text) is None


@pytest.mark.parametrize("topic", ["logOffset", "0", "version", "offset"])
def test_a_topic_may_be_called_as_other_sources_call_their_fields(topic):
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
def test_kafkas_shape_with_anything_that_is_no_offset_is_refused(text):
    with pytest.raises(CheckpointFormatError, match=r"^cp/offsets/7, line 3: .*(expected|occurs twice)"):
        kafka_offsets(text, "cp/offsets/7, line 3")


# --- commit log, metadata, bytes


def test_a_commit_log_may_end_with_a_line_feed():
    check_commit_log('v1\n{"nextBatchWatermarkMs":0}\n', "cp/commits/7")


@pytest.mark.parametrize("text", ["", "v1", "v1\n", 'v1\n{"nextBatch', "v4\n{}", "{}", "v1\n0", "v1\n{}\n{}"])
def test_a_malformed_commit_log_is_refused_with_its_name(text):
    with pytest.raises(CheckpointFormatError, match=r"^cp/commits/7.*expected"):
        check_commit_log(text, "cp/commits/7")


@pytest.mark.parametrize("text", ["", "\0" * 30])
def test_an_empty_commit_log_is_refused_with_the_remedy(text):
    with pytest.raises(CheckpointFormatError, match="remove the file .*Spark runs the batch again"):
        check_commit_log(text, "cp/commits/7")


SECRET = "hunter2"


@pytest.mark.parametrize(
    "text", ["", "{}", '{"id":""}', '{"id":"975d', "[]", SECRET, f'{{"id": ["{SECRET}"]}}', f'"{SECRET}"']
)
def test_metadata_without_a_query_id_is_refused_and_not_shown(text):
    with pytest.raises(CheckpointFormatError, match=r"^cp/metadata: found .*expected") as refused:
        parse_query_id(text, "cp/metadata")
    assert SECRET not in str(refused.value)


def test_bytes_that_are_no_text_are_refused_with_their_file():
    with pytest.raises(StorageError, match=r"^cp/offsets/7: found bytes that are not UTF-8"):
        decode(b"v1\n\xff\xfe\x00", "cp/offsets/7")


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
def test_the_content_of_a_file_that_is_no_log_is_not_shown(text):
    with pytest.raises(CheckpointFormatError) as refused:
        parse_offset_log(text, NAME)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("time", [10**18, -1, "true", 10**400])
def test_a_batch_that_was_planned_at_no_time_has_none(time):
    entry = parse_offset_log(f'v1\n{{"batchTimestampMs":{time}}}\n{KAFKA}', NAME)
    assert entry.batch_timestamp_ms is None
