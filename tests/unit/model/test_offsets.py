import json
from string import ascii_letters, digits

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.formats import (
    format_csv,
    offsets_json,
    offsets_text,
    parse_csv,
    parse_offsets,
    parse_positions,
)
from airflow_kafka_offsets.model.offsets import (
    MAX_OFFSET,
    LogRange,
    TopicPartition,
    not_on_broker,
    summarize,
)

topics = st.text(f"{ascii_letters}{digits}._-", min_size=1, max_size=20).filter(
    lambda name: not name.startswith(".")
)
partitions = st.builds(TopicPartition, topics, st.integers(0, 10_000))
offset_sets = st.dictionaries(partitions, st.integers(0, MAX_OFFSET), min_size=1, max_size=30)
# Any name that a group can have, with the characters of CSV in many of them.
groups = st.text(
    st.characters(exclude_characters="\0", codec="utf-8") | st.sampled_from('\r\n,"'), min_size=1
).filter(lambda name: name.strip(" \t\n\v\f\r") == name)


@given(offset_sets)
def test_offsets_survive_sparks_json_as_text_and_as_mapping(offsets):
    assert parse_offsets(offsets_text(offsets)) == offsets
    assert parse_offsets(offsets_json(offsets)) == offsets


@given(st.dictionaries(partitions, st.none() | st.integers(0, MAX_OFFSET), min_size=1))
def test_positions_survive_with_their_missing_commits(positions):
    assert parse_positions(json.loads(json.dumps(offsets_json(positions)))) == positions


@given(offset_sets)
def test_the_json_form_is_in_order(offsets):
    form = offsets_json(offsets)
    assert list(form) == sorted(form)
    assert all(list(map(int, cells)) == sorted(map(int, cells)) for cells in form.values())


@given(st.dictionaries(groups, offset_sets, min_size=2, max_size=4))
@example({"{}": {TopicPartition("t", 0): 1}, "a": {TopicPartition("t", 0): 2}})
def test_several_groups_survive_kafkas_csv(by_group):
    assert parse_csv(format_csv(by_group)) == by_group


@given(groups, offset_sets)
def test_one_group_survives_kafkas_csv_in_three_columns(group, offsets):
    text = format_csv({group: offsets})
    assert all(line.count(",") == 2 for line in text.splitlines())
    assert parse_csv(text) == {"": offsets}


@pytest.mark.parametrize(
    "value",
    [
        {"partition": 0, "offset": 100},
        {"orders": {"partition": 0}},
        {"orders": {"0": -1}},
        {"orders": {"0": -2}},
        {"orders": {"0": True}},
        {"orders": {"0": "42"}},
        {"orders": {"0": 4.2}},
        {"orders": {"0": None}},
        {"orders": {"00": 1}},
        {"orders": {"-1": 1}},
        {"orders": {0: 1, "0": 1}},
        {"orders": {}},
        {"or ders": {"0": 1}},
        {"": {"0": 1}},
        {"orders": {"0": MAX_OFFSET + 1}},
        {},
        [],
        42,
        None,
        "",
        "{",
        "9" * 5_000,
        "42",
        '{"orders": {"0": 1, "0": 2}}',
        '{"orders": {"0": 1}, "orders": {"1": 1}}',
    ],
)
def test_other_forms_are_refused_with_the_right_form_shown(value):
    with pytest.raises(OffsetsFormatError) as refused:
        parse_offsets(value, "to_offset")
    assert str(refused.value).startswith("to_offset: ")
    assert '{"topic": {"0": 42}}' in str(refused.value) or "occurs twice" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no lines"),
        ("topic,partition,offset\norders,0,1\n", "line 1"),
        ("orders,0,1\norders,1\n", "line 2"),
        ("orders,0,-5\n", "line 1"),
        ("orders,0,1\norders,0,2\n", "twice"),
        ("orders;0;1\n", "line 1"),
        (
            '{"version": 1, "before": {"orders": {"0": 1}}}',
            "begins as JSON.*RestoreOffsetsOperator.*to_offset",
        ),
        # As many commas as a line of offsets has.
        ('{"version": 1, "group_id": "g", "before": {"orders": {"0": 1}}}', "begins as JSON"),
        ('{"version": 1, "group_id": "g", "before": {}, "after": {}}', "begins as JSON"),
        ('{\n  "version": 1\n}', "begins as JSON; expected lines of topic,partition,offset. To restore"),
    ],
)
def test_a_csv_file_that_is_wrong_is_refused_with_the_line(text, says):
    with pytest.raises(OffsetsFormatError, match=says):
        parse_csv(text)


def test_the_log_end_is_a_position_in_the_log_and_one_more_is_not():
    log = LogRange(5, 10)
    assert [offset in log for offset in (4, 5, 10, 11)] == [False, True, True, False]


def test_the_lag_of_a_position_outside_the_log_is_that_of_the_nearest_one_in_it():
    log = LogRange(5, 10)
    assert [log.lag(position) for position in (0, 5, 8, 10, 11)] == [5, 5, 2, 0, 0]


def test_many_partitions_are_summarized():
    assert summarize([TopicPartition("t", n) for n in range(7)], limit=2) == "t-0, t-1 and 5 more"


def test_partitions_that_a_broker_does_not_have_are_in_order():
    wanted = [TopicPartition(topic, number) for topic in ("orders", "clicks") for number in (9, 1, 0)]
    assert not_on_broker(wanted, {"orders": [0, 1]}) == [
        TopicPartition("clicks", 0),
        TopicPartition("clicks", 1),
        TopicPartition("clicks", 9),
        TopicPartition("orders", 9),
    ]
