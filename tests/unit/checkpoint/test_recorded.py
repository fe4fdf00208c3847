"""
Checkpoints that Spark 3.5.4, 4.0.0 and 4.2.0 wrote, each with what the broker said when it was recorded.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from airflow_kafka_offsets.checkpoint.batch import finished_batch_ends
from airflow_kafka_offsets.checkpoint.log import parse_offset_log
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.formats import offsets_json

RECORDED = sorted(path.parent for path in (Path(__file__).parents[2] / "checkpoints").glob("*/expected.json"))
PENDING = {"uncommitted-last": 2}


def case_of(directory: Path) -> str:
    return directory.name.split("-", 2)[2]


def test_all_recorded_checkpoints_are_found() -> None:
    assert len(RECORDED) == 28


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_a_recorded_checkpoint_gives_the_expected_offsets(directory: Path) -> None:
    expected = json.loads((directory / "expected.json").read_text())

    state = SparkCheckpoint(str(directory / "checkpoint")).read().as_json()

    assert state["batch_id"] == expected["batch"]
    assert {source["source"]: source["offsets"] for source in state["sources"]} == expected["sources"]


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_a_source_is_kafka_exactly_if_it_has_kafka_offsets(directory: Path) -> None:
    for source in SparkCheckpoint(str(directory / "checkpoint")).read().sources:
        assert source.kafka == (source.offsets is not None)


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_only_the_interrupted_query_has_a_pending_batch(directory: Path) -> None:
    state = SparkCheckpoint(str(directory / "checkpoint")).read()

    assert state.pending_batch_id == PENDING.get(case_of(directory))


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_the_query_id_is_that_of_the_metadata(directory: Path) -> None:
    metadata = json.loads((directory / "checkpoint" / "metadata").read_text())

    assert SparkCheckpoint(str(directory / "checkpoint")).read().query_id == metadata["id"]


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_the_time_of_the_batch_is_known_except_in_continuous_mode(directory: Path) -> None:
    timestamp = SparkCheckpoint(str(directory / "checkpoint")).read().batch_timestamp_ms

    assert (timestamp is None) == (case_of(directory) == "continuous")


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_an_offset_log_can_be_put_together_again_byte_for_byte(directory: Path) -> None:
    for path in (directory / "checkpoint" / "offsets").glob("[0-9]*"):
        entry = parse_offset_log(path.read_text(), path.name)

        assert "\n".join(entry.lines).encode() == path.read_bytes()
        for source, line in zip(entry.sources, entry.lines[2:], strict=True):
            assert line.endswith(source.text or "-")


def batches_in(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.glob("[0-9]*")}


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_every_finished_batch_has_an_end_and_the_newest_ends_where_the_query_is(directory: Path) -> None:
    expected = json.loads((directory / "expected.json").read_text())
    root = directory / "checkpoint"
    checkpoint = SparkCheckpoint(str(root))

    ends = {
        batch_id: finished_batch_ends(checkpoint, batch_id)
        for batch_id in sorted(batches_in(root / "offsets") & batches_in(root / "commits"))
    }

    newest = {source: offsets_json(offsets) for source, offsets in ends[expected["batch"]].items()}
    assert newest == {source: offsets for source, offsets in expected["sources"].items() if offsets}
    for earlier, later in itertools.pairwise(ends.values()):
        for source, offsets in earlier.items():
            assert all(offset <= later[source][tp] for tp, offset in offsets.items() if tp in later[source])


@pytest.mark.parametrize(
    ("case", "batch_id", "there"),
    [
        ("plain", 4, "finished batches: 0 to 3: Spark keeps"),
        ("purged", 9, "finished batches: 10 to 12: Spark keeps"),
        ("uncommitted-last", 2, r"finished batches: 0 to 1 \(2 was begun and not finished\): Spark keeps"),
        ("async-progress", 2, "finished batches: 0 to 1, 3, 5, 7, 10, 12: Spark keeps"),
    ],
)
def test_a_batch_that_is_gone_pending_or_to_come_is_refused_with_those_there_are(
    case: str, batch_id: int, there: str
) -> None:
    checkpoint = SparkCheckpoint(str(RECORDED[0].parent / f"spark-4.2.0-{case}" / "checkpoint"))

    with pytest.raises(
        PlanRefusedError, match=f"batch {batch_id} is not a finished batch of the checkpoint; {there}"
    ):
        finished_batch_ends(checkpoint, batch_id)
