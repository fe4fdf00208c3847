"""What the command line refuses before it asks anybody: in this process, as each start of another takes its time."""

from __future__ import annotations

import sys

import pytest

from airflow_kafka_offsets.cli import main


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs the command line on groups of a broker that is not there; returns exit status and standard error."""

    def run(*arguments):
        words = ["airflow-kafka-offsets", "group", *arguments, "--bootstrap-server", "127.0.0.1:1"]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ["lag", ""],
        ["lag", " "],
        ["lag", " padded"],
        ["describe", ""],
        ["delete", ""],
        ["reset", " ", "--all-topics", "--to-earliest"],
        ["restore", " ", "--from-file", "f"],
        ["lag", "g", "--timeout", "inf"],
        ["lag", "g", "--timeout", "nan"],
        ["lag", "g", "--timeout", "-1"],
        ["lag", "g", "--topic", "orders:2147483648"],
        ["lag", "g", "--topic", "orders:" + "9" * 5_000],
        ["reset", "g", "--all-topics", "--to-offset", "9" * 5_000],
        ["reset", "g", "--all-topics", "--by-duration", "P999999999DT999999999H"],
        ["reset", "g", "--all-topics", "--to-earliest", "--quiet-period", "nan"],
    ],
)
def test_names_and_numbers_that_cannot_be_are_exit_2_and_a_sentence(cli, arguments):
    status, said = cli(*arguments)
    assert status == 2
    assert "Error: " in said
    assert "expected" in said


@pytest.mark.parametrize(
    "content", ['hunter2"', '{"hunter2": 1}', '{"version": 1, "groups": ["hunter2"]}', "[" * 100_000]
)
def test_what_is_in_a_file_that_is_no_receipt_is_not_shown(cli, tmp_path, content):
    file = tmp_path / "receipt.json"
    file.write_text(content)
    status, said = cli("restore", "g", "--receipt", str(file))
    assert status == 1
    assert said.startswith("Error: ")
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "arguments",
    [("restore", "g", "--receipt"), ("restore", "g", "--from-file"), ("reset", "g", "--from-file")],
)
def test_a_file_that_is_too_large_is_not_read(cli, tmp_path, arguments):
    file = tmp_path / "dump"
    with file.open("wb") as large:
        large.truncate(20_000_000)
    status, said = cli(*arguments, str(file))
    assert status == 2
    assert "is 20,000,000 bytes large; expected at most 10,000,000" in said
