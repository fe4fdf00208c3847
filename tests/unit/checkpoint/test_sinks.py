"""A batch id comes again only for a sink that can take it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checkpoint_moves import ORDERS_0, THREE, carry_out, offset_of, seek, truncate
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    Files = Callable[[Path], dict[str, bytes]]
    SparkStarts = Callable[[Path], tuple[int, int]]


SINK_REFUSALS = {
    None: "the checkpoint does not say where it writes to: set sink to 'idempotent'",
    "delta": "Delta skips ids that it has seen",
    "iceberg": "Iceberg skips ids that it has seen",
    "hudi": "Hudi skips ids that it has seen",
    "file": "set sink_location, the directory it writes to",
}


@pytest.mark.parametrize("sink", SINK_REFUSALS)
def test_a_batch_is_not_discarded_nor_truncated_for_a_sink_that_may_lose_it(
    sink: str | None, begun: Path, assert_refused: Callable[..., None]
) -> None:
    assert_refused(begun, seek(begun, pending_batch="discard", sink=sink), SINK_REFUSALS[sink])
    assert_refused(begun, truncate(begun, 1, sink=sink), SINK_REFUSALS[sink])


@pytest.mark.parametrize("sink", ["idempotent", "kafka", "noop"])
def test_a_batch_is_discarded_or_truncated_for_a_sink_that_takes_its_id_again(
    sink: str, begun: Path, spark_starts: SparkStarts
) -> None:
    assert truncate(begun, 1, sink=sink).refusals == ()

    carry_out(begun, seek(begun, pending_batch="discard", sink=sink))

    assert spark_starts(begun) == (2, 2)


def file_sink(directory: Path, *names: str) -> str:
    log = directory / "_spark_metadata"
    log.mkdir(parents=True)
    for name in names:
        (log / name).write_text("v1\n")
        (log / f".{name}.crc").write_bytes(b"crc")
    return str(directory)


def test_a_directory_without_a_file_sinks_log_is_refused(
    begun: Path, tmp_path: Path, assert_refused: Callable[..., None]
) -> None:
    for nothing in (tmp_path / "absent", tmp_path):
        policy: dict[str, Any] = {"sink": "file", "sink_location": str(nothing)}
        says = f"sink_location={nothing}: has no _spark_metadata"
        assert_refused(begun, seek(begun, pending_batch="discard", **policy), says)
        assert_refused(begun, truncate(begun, 1, **policy), says)


@pytest.mark.parametrize("names", [("2", "3"), ("2", "3.compact"), ("12.compact", "9")])
def test_a_batch_that_the_file_sink_has_recorded_is_not_discarded(
    names: tuple[str, ...], begun: Path, tmp_path: Path, assert_refused: Callable[..., None]
) -> None:
    out = file_sink(tmp_path / "out", *names)
    newest = max(int(name.partition(".")[0]) for name in names)

    assert_refused(
        begun,
        seek(begun, pending_batch="discard", sink="file", sink_location=out),
        f"the file sink has recorded batch {newest} in {out}/_spark_metadata and would skip it",
    )


@pytest.mark.parametrize("names", [("0", "1", "2"), ("2.compact",), ("1", "2", "3.tmp")])
def test_a_batch_that_the_file_sink_has_not_recorded_is_discarded(
    names: tuple[str, ...], begun: Path, tmp_path: Path
) -> None:
    policy: dict[str, Any] = {"sink": "file", "sink_location": file_sink(tmp_path / "out", *names)}

    carry_out(begun, seek(begun, pending_batch="discard", **policy))

    assert offset_of(begun) == 3
    assert not (begun / "offsets/3").exists()


def test_recorded_batches_are_not_truncated_for_a_file_sink(
    begun: Path, tmp_path: Path, assert_refused: Callable[..., None]
) -> None:
    policy: dict[str, Any] = {"sink": "file", "sink_location": file_sink(tmp_path / "out", "0", "1", "2")}

    assert_refused(begun, truncate(begun, 1, **policy), "truncating: the file sink has recorded batch 2")
    assert truncate(begun, 2, **policy).refusals == ()


def test_the_log_of_a_file_sink_is_found_on_the_storage_of_the_checkpoint(
    memory: MemoryFileSystem, write_checkpoint: Callable[..., str]
) -> None:
    root = write_checkpoint(memory, f"/{uuid.uuid4()}/cp", THREE | {3: 9}, [0, 1, 2])
    memory.pipe_file(f"{root}-out/_spark_metadata/3", b"v1\n")
    policy = CheckpointPolicy("discard", "file", f"memory://{root}-out")

    checkpoint_plan = plan_seek(SparkCheckpoint(f"memory://{root}"), {"0": {ORDERS_0: 3}}, policy)

    assert "has recorded batch 3" in checkpoint_plan.refusals[0]
