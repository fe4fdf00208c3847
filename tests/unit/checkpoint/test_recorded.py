"""
Checkpoints that Spark 3.5.4, 4.0.0 and 4.2.0 wrote, each with what the broker said when it was recorded.
"""

import itertools
import json

import pytest
from checkpoint_moves import RECORDED, case_of

from airflow_kafka_offsets.checkpoint.batch import finished_batch_ends
from airflow_kafka_offsets.checkpoint.log import parse_offset_log
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.formats import offsets_json


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_a_recorded_checkpoint_is_read_as_it_was_recorded(directory):
    expected = json.loads((directory / "expected.json").read_text())
    metadata = json.loads((directory / "checkpoint" / "metadata").read_text())
    state = SparkCheckpoint(str(directory / "checkpoint")).read()
    assert state.query_id == metadata["id"]
    assert state.batch_id == expected["batch"]
    assert state.pending_batch_id == (2 if case_of(directory) == "uncommitted-last" else None)
    assert (state.batch_timestamp_ms is None) == (case_of(directory) == "continuous")
    sources = {source["source"]: source["offsets"] for source in state.as_json()["sources"]}
    assert sources == expected["sources"]
    assert [source.kafka for source in state.sources] == [each is not None for each in sources.values()]


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_an_offset_log_can_be_put_together_again_byte_for_byte(directory):
    for path in (directory / "checkpoint" / "offsets").glob("[0-9]*"):
        entry = parse_offset_log(path.read_text(), path.name)
        assert "\n".join(entry.lines).encode() == path.read_bytes()
        for text, line in zip(entry.sources.values(), entry.lines[2:], strict=True):
            assert line.endswith(text or "-")


@pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)
def test_every_finished_batch_has_an_end_and_the_newest_ends_where_the_query_is(directory):
    expected = json.loads((directory / "expected.json").read_text())
    checkpoint = SparkCheckpoint(str(directory / "checkpoint"))
    planned, committed = checkpoint.listed()
    ends = {batch_id: finished_batch_ends(checkpoint, batch_id) for batch_id in sorted(planned & committed)}
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
def test_a_batch_that_is_gone_pending_or_to_come_is_refused_with_those_there_are(case, batch_id, there):
    checkpoint = SparkCheckpoint(str(RECORDED[0].parent / f"spark-4.2.0-{case}" / "checkpoint"))
    with pytest.raises(
        PlanRefusedError, match=f"batch {batch_id} is not a finished batch of the checkpoint; {there}"
    ):
        finished_batch_ends(checkpoint, batch_id)
