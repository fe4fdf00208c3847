import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import (
    MAX_VALUES,
    describe_type,
    escape_controls,
    shorten,
    size_error,
)

any_text = st.text(st.characters(exclude_categories=()))
SECRET = "hunter2"


@given(any_text)
def test_what_is_shown_is_one_line_that_moves_no_cursor(text):
    assert escape_controls(text).isprintable()
    assert shorten(text, 20).isprintable()
    assert len(shorten(text, 20)) <= 20


def test_control_characters_are_escaped_and_letters_are_not():
    assert escape_controls("añ \x1b[31m\r\n\ud800\u202e💾") == r"añ \x1b[31m\r\n\ud800\u202e💾"


@pytest.mark.parametrize("value", [SECRET, {SECRET: SECRET}, [SECRET], SECRET.encode(), {SECRET}])
def test_what_a_value_is_can_be_said_without_what_is_in_it(value):
    assert SECRET not in describe_type(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None"),
        (-1, "-1"),
        ("", "an empty text"),
        ("abc", "a text of 3 characters"),
        ({"a": 1}, "an object of 1 key"),
        ([1, 2], "a list of 2 values"),
    ],
)
def test_a_value_is_named_by_its_kind(value, said):
    assert describe_type(value) == said


def test_what_python_itself_cannot_show_is_named():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shorten(10**5_000) == describe_type(10**5_000) == "an int that is too large to be shown"
    assert shorten(deep) == "a list that is too large to be shown"


def test_a_table_shows_names_of_others_escaped():
    assert align_rows([["GROUP", "STATE"], ["a\x1b[2J\n", "Empty"]]) == [
        "GROUP       STATE",
        r"a\x1b[2J\n  Empty",
    ]


def test_a_text_of_more_values_than_can_be_held_is_refused():
    assert size_error("it", "," * MAX_VALUES) is None
    assert "has about 200,001 values" in str(size_error("it", "," * (MAX_VALUES + 1)))
