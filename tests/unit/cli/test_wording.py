"""Texts name a parameter as the interface that runs: Python in a DAG, an option on the command line."""

import ast
import itertools
import pickle
import re
from datetime import timedelta
from pathlib import Path

import click
import pytest
from command_line_words import PARAMETERS, commands, words_of_dags
from hypothesis import given
from hypothesis import strategies as st

import airflow_kafka_offsets
from airflow_kafka_offsets.cli.options import OptionWording
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.drift import remedies
from airflow_kafka_offsets.model.wording import dag_text, parameter_error, parameter_text, unexpected, worded

COMMANDS = dict(commands())
OPTIONS = {
    str(option.name): option.opts[0]
    for command in COMMANDS.values()
    for option in command.params
    if isinstance(option, click.Option)
}
PACKAGE = Path(airflow_kafka_offsets.__file__).parent
SHARED_ROOMS = ("model", "checkpoint", "kafka", "readings", "moves", "waits", "hooks", "cli", "local")
"""Rooms whose texts the command line shows."""
KEY_OF_A_RECEIPT = "receipt, group_id"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_parameter_is_named_as_the_option_of_each_command_that_has_it(command):
    has = COMMANDS[command].params
    with worded(OptionWording(COMMANDS[command])):
        for each in has:
            expected = (
                each.opts[0] if isinstance(each, click.Option) else each.human_readable_name.strip("[].")
            )
            assert parameter_text(str(each.name)) == expected
            assert parameter_text(str(each.name), True) == expected
            assert parameter_text(str(each.name), ...) == expected
            assert parameter_text(str(each.name), 5) == f"{expected} 5"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_parameter_of_an_operator_or_a_sensor_is_shown_as_in_python(command):
    values = (True, False, None, ..., "clamp", 42, timedelta(hours=1))
    with worded(OptionWording(COMMANDS[command])):
        for name, value in itertools.product(PARAMETERS, values):
            text = parameter_text(name, value)
            assert re.fullmatch(r"(no )?(--[a-z]+(-[a-z]+)*|GROUP|URI)( .*)?", text)
            assert "=" not in text.replace(repr(value), "")
            assert not words_of_dags(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_parameter_that_a_command_lacks_is_named_as_the_option_of_another(command):
    own = {each.name for each in COMMANDS[command].params}
    with worded(OptionWording(COMMANDS[command])):
        for name in set(PARAMETERS) & OPTIONS.keys() - own:
            assert parameter_text(name) == OPTIONS[name]
        assert parameter_text("group_id") == "GROUP"
        assert parameter_text("topics", ...) == "--topic"
        assert parameter_text("checkpoint_location") in ("--checkpoint", "URI")


@pytest.mark.parametrize(
    ("name", "value", "in_python", "as_option"),
    [
        ("allow_stateful", True, "allow_stateful=True", "--allow-stateful"),
        ("on_out_of_range", "clamp", "on_out_of_range='clamp'", "--on-out-of-range clamp"),
        ("to_offset", "latest", "to_offset='latest'", "--to-latest"),
        ("to_offset", "committed", "to_offset='committed'", "--to-current"),
        ("to_offset", 42, "to_offset=42", "--to-offset 42"),
        ("to_offset", {"t": {"0": 1}}, "to_offset={'t': {'0': 1}}", "--to-offset {'t': {'0': 1}}"),
        ("topics", ..., "topics=...", "--topic"),
        ("checkpoint_location", None, "checkpoint_location=None", "no --checkpoint"),
        ("group_id['a']", "b c", "group_id['a']='b c'", "GROUP['a'] b c"),
        ("s3://bucket/pipelines.yaml", ..., "s3://bucket/pipelines.yaml=...", "s3://bucket/pipelines.yaml"),
    ],
)
def test_a_parameter_with_a_value_is_shown_in_both_wordings(name, value, in_python, as_option):
    assert parameter_text(name, value) == in_python
    with worded(OptionWording(COMMANDS["group reset"])):
        assert parameter_text(name, value) == as_option
    assert parameter_text(name, value) == in_python


def test_the_reset_after_lost_records_is_named_by_its_options():
    with worded(OptionWording(COMMANDS["drift"])):
        assert "a reset with --to-current and --on-out-of-range clamp" in remedies()["records lost"]


def test_the_keys_of_a_file_keep_their_names():
    with worded(OptionWording(COMMANDS["drift"], {"topics": "topics", "topic_map": "mirror.topics"})):
        assert parameter_text("topics", ...) == "topics"
        assert parameter_text("topic_map") == "mirror.topics"
        assert parameter_text("allow_rewind", True) == "--allow-rewind"


def test_advice_for_dags_is_given_in_dags_only():
    assert dag_text(", or **pipeline", ", or GROUP") == ", or **pipeline"
    with worded(OptionWording(COMMANDS["group lag"])):
        assert dag_text(", or **pipeline", ", or GROUP") == ", or GROUP"
        assert dag_text(", or **pipeline") == ""


@given(
    name=st.sampled_from([*PARAMETERS, *OPTIONS]), value=st.text() | st.integers() | st.none() | st.booleans()
)
def test_an_error_about_a_parameter_has_its_name_and_a_plain_text_in_every_wording(name, value):
    error = unexpected(name, value, "another")
    assert (error.parameter, str(error)) == (name, f"{parameter_text(name, value)}: expected another")
    assert str(error).isprintable()
    with worded(OptionWording(COMMANDS["group reset"])):
        error = unexpected(name, value, "another")
        text = str(error)
        assert (error.parameter, text) == (name, f"{parameter_text(name, value)}: expected another")
    # A text does not change once it is written.
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.parameter) == (text, name)


def test_a_wording_ends_with_an_error():
    with pytest.raises(UsageError, match="^--max-lag is empty"), worded(OptionWording(COMMANDS["wait lag"])):
        raise parameter_error("max_lag", " is empty")
    assert parameter_text("max_lag") == "max_lag"


def unmarked(file: Path) -> list[str]:
    """Return the texts of a module that have the name of a parameter in them and do not mark it."""
    tree = ast.parse(file.read_text())
    allowed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dag_text":
            allowed |= {id(each) for each in ast.walk(node.args[0])}
    texts = {
        node.value: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in allowed
    }
    return [
        f"{file.relative_to(PACKAGE)}:{line}: {word} in {text!r}"
        for text, line in texts.items()
        if " " in text and text != KEY_OF_A_RECEIPT
        for word in words_of_dags(text)
    ]


@pytest.mark.parametrize("room", SHARED_ROOMS)
def test_a_text_that_the_command_line_may_show_marks_each_parameter(room):
    found = [text for file in sorted((PACKAGE / room).rglob("*.py")) for text in unmarked(file)]
    assert not found
