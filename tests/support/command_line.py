"""The command line in this process. With it comes Airflow, which most rooms of the unit tests do without."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
from command_line_words import words_of_dags

from airflow_kafka_offsets.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs the command line in this process: cli("checkpoint", "show", uri) -> exit code, output, errors."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["airflow-kafka-offsets", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        done = Done(int(end.value.code or 0), *capsys.readouterr())
        keys = "--pipelines" in arguments or arguments[0] == "recover"
        assert not words_of_dags(done.err, keys=keys), done.err
        assert done.out.startswith("{") or not words_of_dags(done.out), done.out
        return done

    return run
