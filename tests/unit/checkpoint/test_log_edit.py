"""Other offsets in an offset log: what a seek writes, text in and text out."""

from __future__ import annotations

import json
from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.checkpoint.log import kafka_offsets, parse_offset_log
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Offsets, TopicPartition

NAME = "cp/offsets/7"
METADATA = '{"batchWatermarkMs":0, "batchTimestampMs":1795228309758,"conf":{"a.b":"\u00e9"}}'
A, B, C = (TopicPartition("orders", number) for number in range(3))

topic_partitions = st.builds(
    TopicPartition, st.sampled_from(["orders", "0", "logOffset", "paid.eu-1"]), st.integers(0, 4)
)
offsets_of_a_source = st.dictionaries(
    topic_partitions, st.integers(0, 20) | st.integers(0, MAX_OFFSET), min_size=1, max_size=6
)
not_kafka = st.sampled_from(["0", "17", '{"logOffset": 0}', '{"reservoirId":"a","index":-1}', "{}", "-"])
names = st.text(f"{ascii_letters}{digits}_", min_size=1, max_size=8)


def spaced(offsets: Offsets, separators: tuple[str, str]) -> str:
    """Another writer's JSON: partitions in the order of the mapping, and spaces of its own."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=separators)


kafka_texts = st.builds(
    spaced, offsets_of_a_source, st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")])
)
texts = st.one_of(kafka_texts, not_kafka)
ends = st.sampled_from(["", "\n"])


@st.composite
def logs(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """The text of a log of either version, and source -> its line's text after the name."""
    metadata = draw(st.sampled_from([METADATA, ""]))
    if draw(st.booleans()):
        lines = draw(st.lists(texts, min_size=1, max_size=4))
        text = "\n".join(["v1", metadata, *lines])
        return text + draw(ends), {str(index): line for index, line in enumerate(lines)}
    named = draw(st.dictionaries(names, texts, min_size=1, max_size=4))
    text = "\n".join(["v2", metadata, *(f"{name}:{line}" for name, line in named.items())])
    return text + draw(ends), named


def offsets_in(text: str) -> Offsets | None:
    return None if text == "-" else kafka_offsets(text)


@given(logs(), st.data())
def test_a_written_log_has_exactly_the_offsets_asked_for_and_every_other_byte_as_before(
    log: tuple[str, dict[str, str]], data: st.DataObject
) -> None:
    text, sources = log
    kafka = {source: offsets for source, line in sources.items() if (offsets := offsets_in(line)) is not None}
    targets = {
        source: {
            tp: data.draw(st.sampled_from([offset]) | st.integers(0, MAX_OFFSET))
            for tp, offset in offsets.items()
            if data.draw(st.booleans())
        }
        for source, offsets in kafka.items()
        if data.draw(st.booleans())
    }

    written = parse_offset_log(text, NAME).with_offsets(targets)

    found = {source.source: source.text for source in parse_offset_log(written, NAME).sources}
    assert list(found) == list(sources)
    for source, offsets in kafka.items():
        assert kafka_offsets(found[source] or "") == offsets | targets.get(source, {})
    old, new = text.split("\n"), written.split("\n")
    assert len(old) == len(new)
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        named = list(sources)[number - 2] if 2 <= number < 2 + len(sources) else ""
        moved = named in kafka and kafka[named] | targets.get(named, {}) != kafka[named]
        assert (before != after) == moved


@given(logs())
def test_a_log_that_is_written_with_its_own_offsets_is_the_same_text(log: tuple[str, dict[str, str]]) -> None:
    text, sources = log
    same = {source: offsets for source, line in sources.items() if (offsets := offsets_in(line)) is not None}

    entry = parse_offset_log(text, NAME)

    assert entry.with_offsets(same) == text
    assert entry.with_offsets({}) == text
    assert entry.with_offsets({source: {} for source in sources}) == text


def test_version_1_is_edited_by_position() -> None:
    text = f'v1\n{METADATA}\n{{"logOffset":0}}\n{{"orders":{{"1":2,"0":1}}}}\n-\n{{"orders":{{"0":5}}}}'

    written = parse_offset_log(text, NAME).with_offsets({"1": {A: 9}})

    assert (
        written
        == f'v1\n{METADATA}\n{{"logOffset":0}}\n{{"orders":{{"0":9,"1":2}}}}\n-\n{{"orders":{{"0":5}}}}'
    )


def test_version_2_is_edited_by_name_and_keeps_the_order_of_its_lines() -> None:
    text = f'v2\n{METADATA}\nrt:10\norders:{{"orders":{{"0":1}}}}\n1:{{"orders":{{"0":2}}}}\nnone:-\n'

    written = parse_offset_log(text, NAME).with_offsets({"orders": {A: 0}})

    assert (
        written == f'v2\n{METADATA}\nrt:10\norders:{{"orders":{{"0":0}}}}\n1:{{"orders":{{"0":2}}}}\nnone:-\n'
    )


def test_partitions_that_are_not_named_keep_their_offsets() -> None:
    text = f'v1\n{METADATA}\n{{"orders":{{"0":1,"1":2,"2":3}}}}'

    written = parse_offset_log(text, NAME).with_offsets({"0": {B: 0}})

    assert kafka_offsets(written.split("\n")[2]) == {A: 1, B: 0, C: 3}


@pytest.mark.parametrize("line", ['{"logOffset":0}', "17", "-", "{}"])
def test_a_source_without_kafka_offsets_is_left_alone_even_if_offsets_are_named_for_it(line: str) -> None:
    text = f"v1\n{METADATA}\n{line}"

    assert parse_offset_log(text, NAME).with_offsets({"0": {A: 5}, "7": {A: 5}}) == text
