"""The command `checkpoint history`, as the documentation shows it, and its bars."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from checkpoint_moves import RECORDED, apply_plan, case_of
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.checkpoint.history import PastBatch
from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.cli import cli
from airflow_kafka_offsets.cli.history import bar_of_blocks, chart
from airflow_kafka_offsets.model.offsets import TopicPartition

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"
SIX = 1_772_344_800
"""2026-03-01T06:00:00Z."""
ENDS = {40: (900, 1100), 41: (1000, 1300), 42: (1100, 1450), 43: (2000, 2500), 44: (2600, 3100)}
SECONDS = {40: 12.0, 41: 12.4, 42: 10.8, 43: 41.5}


def run(*arguments: str, columns: int = 72) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", "history", *arguments], env={"COLUMNS": str(columns)})


def write(root: Path, number: int) -> None:
    first, second = ENDS[number]
    metadata = json.dumps({"batchTimestampMs": (SIX + 60 * number) * 1000})
    files = {"offsets": f'v1\n{metadata}\n{{"orders":{{"0":{first},"1":{second}}}}}', "commits": "v1\n{}"}
    for directory, text in files.items():
        if directory == "offsets" or number in SECONDS:
            path = root / directory / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            took = SECONDS.get(number, 0) if directory == "commits" else 0
            os.utime(path, (SIX + 60 * number + took,) * 2)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A query that was moved after batch 42, and is in batch 44."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"975d5cb5-daf7-40c6-ad83-ae84395a7b2a"}')
    for number in (40, 41, 42):
        write(tmp_path, number)
    targets = {TopicPartition("orders", 0): 1000, TopicPartition("orders", 1): 1300}
    apply_plan(tmp_path, plan_seek(SparkCheckpoint(str(tmp_path)), {"0": targets}))
    for number in (43, 44):
        write(tmp_path, number)
    return tmp_path


def documented(options: str) -> str:
    shown = re.findall(
        r"```console\n\$ airflow-kafka-offsets checkpoint history \S+(.*?)\n(.*?)```",
        DOCS.read_text(),
        re.DOTALL,
    )
    return next(output for given, output in shown if given.strip() == options)


@pytest.mark.parametrize("options", ["--last 4", "--last 4 --plot"])
def test_the_output_is_the_one_of_the_documentation(orders: Path, options: str) -> None:
    done = run(str(orders), *options.split())

    assert done.exit_code == 0
    assert done.output == documented(options)


def test_the_storage_is_asked_for_the_query_once(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after the batches would have no deadline."""
    asked: list[str] = []
    read = SparkCheckpoint.read_file

    def count(checkpoint: SparkCheckpoint, path: str, **how: bool) -> bytes | None:
        asked.append(path)
        return read(checkpoint, path, **how)

    monkeypatch.setattr(SparkCheckpoint, "read_file", count)
    assert run(str(orders)).exit_code == 0
    assert asked.count("metadata") == 1
    assert asked[0] == "metadata"


def test_the_json_has_the_same_batches(orders: Path) -> None:
    value = json.loads(run(str(orders), "--output", "json", "--last", "3").output)

    assert (value["version"], value["location"]) == (1, str(orders))
    assert [batch["batch"] for batch in value["batches"]] == [42, 43, 44]
    assert value["batches"][1] == {
        "batch": 43,
        "at": "2026-03-01T06:43:00+00:00",
        "duration": 41.5,
        "records": 2200,
        "read": {"0": {"orders": 2200}},
        "previous": 42,
        "pending": False,
        "skipped": False,
        "offsets": {"0": {"orders": {"0": 2000, "1": 2500}}},
        "moved_in": None,
        "moved_to": None,
    }
    assert value["batches"][0]["moved_to"] == {"0": {"orders": {"0": 1000, "1": 1300}}}
    assert value["totals"] == {
        "batches": 2,
        "records": 2450,
        "records_of": 2,
        "duration": 41.5,
        "duration_of": 1,
    }


@pytest.mark.parametrize("option", ["--output=table", "--output=json", "--plot"])
def test_every_recorded_checkpoint_is_shown(option: str) -> None:
    for directory in RECORDED:
        done = run(str(directory / "checkpoint"), option)

        assert done.exit_code == 0, done.output
        assert ("pending" in done.output.splitlines()[-2] or option == "--output=json") == (
            case_of(directory) == "uncommitted-last" or option == "--output=json"
        ), directory.name


def test_a_batch_that_spark_has_skipped_is_not_a_finished_one(orders: Path) -> None:
    (orders / "commits" / "42").unlink()

    row, *_, totals = run(str(orders), "--last", "3").output.splitlines()[2:]

    assert row.endswith("not finished, and skipped; then moved in 0001-seek")
    assert totals == "1 finished batches: 2200 records (in 1), 41.5 s (in 1)"


def test_a_query_without_a_batch_has_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"x"}')

    assert run(str(tmp_path)).output.splitlines()[-1] == "0 finished batches: nothing is known"
    assert run(str(tmp_path), "--plot").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--plot", "--output", "json"], "--plot draws text"),
        (["--last", "0"], "Invalid value for '--last'"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, arguments: Sequence[str], text: str) -> None:
    done = run(str(tmp_path), *arguments)

    assert done.exit_code != 0
    assert text in done.output + str(done.exception)


@given(
    st.lists(st.tuples(st.integers(0, 10**9) | st.none(), st.floats(0, 10**5) | st.none()), max_size=20),
    st.integers(40, 250),
)
def test_no_line_of_a_chart_is_wider_than_the_terminal(
    values: list[tuple[int | None, float | None]], columns: int
) -> None:
    found = [
        PastBatch(number, None, seconds, None, {"0": {"t": records}}, {}, pending=number == 7)
        for number, (records, seconds) in enumerate(values)
    ]

    lines = chart(found, columns, bar_of_blocks)

    assert max(map(len, lines)) <= columns


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 40))
def test_a_bar_is_as_long_as_its_share_and_never_nothing(share: float, width: int) -> None:
    drawn = bar_of_blocks(share, width)

    assert 1 <= len(drawn) <= width
    assert abs(len(drawn) - share * width) < 1.1
