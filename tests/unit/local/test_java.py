import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.java import find_java, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ('openjdk version "next"', None),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_read_from_what_java_prints(text, version):
    assert parse_version(text) == version


@given(st.text())
def test_any_other_text_has_no_version_and_is_no_crash(text):
    assert parse_version(text) is None or 'version "' in text


@pytest.fixture
def environment(monkeypatch):
    """environment(PATH=...) -> these are the variables that lead to a Java, and no others."""

    def environment(**variables):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return environment


@pytest.fixture
def java_that_says(tmp_path):
    def make(text, status=0):
        program = tmp_path / "home" / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.stderr.write({text!r})\nsys.exit({status})\n"
        )
        program.chmod(0o755)
        return program

    return make


def test_java_home_wins_over_path(java_that_says, environment):
    program = java_that_says('openjdk version "21.0.1" 2023-10-17')
    environment(JAVA_HOME=program.parent.parent, PATH="/usr/bin:/bin")
    assert find_java() == (program, 21)


def test_the_first_on_path_is_taken(java_that_says, environment):
    program = java_that_says('openjdk version "17.0.1" 2021-10-19')
    environment(PATH=f"{program.parent}:/usr/bin")
    assert find_java() == (program, 17)


def test_one_that_is_too_old_is_refused_with_what_was_found_and_a_remedy(java_that_says, environment):
    program = java_that_says('java version "1.8.0_392"')
    environment(PATH=program.parent)
    with pytest.raises(SetupError) as refused:
        find_java()
    assert str(refused.value).startswith(
        f"{program} (from PATH) is Java 8, expected Java 17 or newer: install"
    )
    assert "openjdk-17-jre-headless" in str(refused.value)


def test_none_at_all_is_refused_with_a_remedy(tmp_path, environment):
    environment(PATH=tmp_path)
    with pytest.raises(
        SetupError, match=r"no Java was found on PATH, expected Java 17.*openjdk-17-jre-headless"
    ):
        find_java()


def test_a_java_home_without_java_is_named(tmp_path, environment):
    environment(JAVA_HOME=tmp_path, PATH="/usr/bin:/bin")
    with pytest.raises(SetupError, match=rf"JAVA_HOME is {tmp_path}, but it has no bin/java"):
        find_java()


def test_one_that_prints_no_version_is_quoted(java_that_says, environment):
    environment(PATH=java_that_says("Unable to locate a Java Runtime.", status=1).parent)
    with pytest.raises(SetupError, match=r"printed no version, its output is 'Unable to locate"):
        find_java()


def test_one_that_does_not_start_is_named(java_that_says, environment):
    program = java_that_says("")
    program.write_bytes(b"\x00\x01")
    environment(JAVA_HOME=program.parent.parent)
    with pytest.raises(SetupError, match="does not start"):
        find_java()
