"""A checkpoint is moved, truncated and put back, or refused with nothing changed: files in, files out."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.checkpoint.archive import archive_of_run, digest, next_name, read_archives
from airflow_kafka_offsets.checkpoint.log import parse_offset_log
from airflow_kafka_offsets.checkpoint.move import (
    apply_checkpoint_plan,
    plan_seek,
    plan_truncate,
    plan_undo,
    resume,
    verify_checkpoint,
)
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.storage import modified, remove_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsspec import AbstractFileSystem

    Files = Callable[[Path], dict[str, bytes]]
    SparkStarts = Callable[[Path], tuple[int, int]]

RECORDED = sorted(path.parent for path in (Path(__file__).parents[2] / "checkpoints").glob("*/expected.json"))
ORDERS_0 = TopicPartition("orders", 0)
THREE = {0: 5, 1: 6, 2: 7}
"""Offsets of orders-0 in the batches 0 to 2."""
DISCARD = {"pending_batch": "discard", "sink": "foreachBatch"}


def case_of(directory: Path) -> str:
    return directory.name.split("-", 2)[2]


def seek(root: Path, offset: int = 3, **policy: Any) -> CheckpointPlan:
    return plan_seek(SparkCheckpoint(str(root)), {"0": {ORDERS_0: offset}}, CheckpointPolicy(**policy))


def truncate(root: Path, batch_id: int, **policy: Any) -> CheckpointPlan:
    return plan_truncate(SparkCheckpoint(str(root)), batch_id, CheckpointPolicy(**policy))


def undo(root: Path, archive: str | None = None, **policy: Any) -> CheckpointPlan:
    return plan_undo(SparkCheckpoint(str(root)), archive, CheckpointPolicy(**policy))


def carry_out(root: Path, checkpoint_plan: CheckpointPlan, **how: Any) -> CheckpointPlan:
    apply_checkpoint_plan(SparkCheckpoint(str(root)), checkpoint_plan, **({"quiet_period": 0} | how))
    return checkpoint_plan


def offset_of(root: Path) -> int:
    return SparkCheckpoint(str(root)).read().kafka_offsets["0"][ORDERS_0]


def sparks_own(found: dict[str, bytes]) -> dict[str, bytes]:
    """What a move must give back: everything but the archives, and checksums, which Spark does not need."""
    return {
        path: data
        for path, data in found.items()
        if not path.startswith("_kafka_offsets/") and not path.endswith(".crc")
    }


@pytest.fixture
def three(checkpoint: Callable[..., Path], with_checksums: Callable[[Path], Path]) -> Path:
    """The checkpoint of a query that has finished the batches 0 to 2."""
    return with_checksums(checkpoint(THREE, [0, 1, 2]))


@pytest.fixture
def begun(checkpoint: Callable[..., Path], with_checksums: Callable[[Path], Path]) -> Path:
    """The checkpoint of a query that has finished the batches 0 to 2, and was stopped in batch 3."""
    return with_checksums(checkpoint(THREE | {3: 9}, [0, 1, 2]))


@pytest.fixture
def assert_refused(files: Files) -> Callable[..., None]:
    """assert_refused(root, plan, *texts): it has these refusals and no others, and nothing is written."""

    def check(root: Path, checkpoint_plan: CheckpointPlan, *says: str) -> None:
        before = files(root)
        with pytest.raises(PlanRefusedError) as refused:
            carry_out(root, checkpoint_plan)
        assert len(refused.value.refusals) == len(says), refused.value.refusals
        for text, refusal in zip(says, refused.value.refusals, strict=True):
            assert text in refusal
        assert files(root) == before

    return check


# --- the checker of these tests


@pytest.mark.parametrize(
    "directory", [path for path in RECORDED if case_of(path) != "async-progress"], ids=lambda path: path.name
)
def test_spark_starts_from_what_it_has_written(directory: Path, spark_starts: SparkStarts) -> None:
    expected = json.loads((directory / "expected.json").read_text())

    assert spark_starts(directory / "checkpoint")[0] == expected["batch"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: (root / "offsets/2").unlink(),
        lambda root: (root / "offsets/1").unlink(),
        lambda root: (root / "commits/2").write_text(""),
        lambda root: (root / "offsets/2").write_text((root / "offsets/2").read_text()[:-3]),
        lambda root: (root / "offsets/2").write_text((root / "offsets/2").read_text() + "\n"),
        lambda root: [(root / "commits" / name).unlink() for name in ("2", ".2.crc", "1", ".1.crc")],
        lambda root: (root / "commits/2").unlink(),
        lambda root: (root / "offsets/2.tmp").write_text(""),
    ],
    ids=[
        "newest gone",
        "one before gone",
        "empty commit",
        "cut off",
        "other content",
        "two without commit",
        "checksum left",
        "visible file",
    ],
)
def test_spark_does_not_start_from_a_damaged_checkpoint(
    damage: Callable[[Path], object], three: Path, spark_starts: SparkStarts
) -> None:
    assert spark_starts(three) == (2, 2)

    damage(three)

    with pytest.raises((AssertionError, CheckpointFormatError)):
        spark_starts(three)


# --- recorded checkpoints

REFUSED = {
    "stateful": "the query keeps state",
    "stateful-ckpt-v2": "the query keeps state",
    "uncommitted-last": "batch 2 was begun and not finished: running the query once would finish it",
    "async-progress": "is not there, and Spark starts only if the two newest batches are",
    "continuous": "has no metadata, as in continuous mode",
}
ALLOWED_BY = {
    "stateful": {"allow_state": True},
    "stateful-ckpt-v2": {"allow_state": True},
    "uncommitted-last": DISCARD,
}
NEVER = ("async-progress", "continuous")


def targets_of(checkpoint: SparkCheckpoint, to: str) -> dict[str, dict[TopicPartition, int]]:
    """Every partition to 0, or half of them to offsets before and after their own."""
    offsets = checkpoint.read().kafka_offsets
    if to == "zero":
        return {source: dict.fromkeys(found, 0) for source, found in offsets.items()}
    return {
        source: {
            tp: offset + (5 if tp.partition else -1) for tp, offset in found.items() if tp.partition != 1
        }
        for source, found in offsets.items()
    }


@pytest.mark.parametrize(
    "directory", [path for path in RECORDED if case_of(path) in REFUSED], ids=lambda path: path.name
)
def test_a_recorded_checkpoint_that_must_not_be_moved_so_is_refused_with_the_reason(
    directory: Path, tmp_path: Path, assert_refused: Callable[..., None]
) -> None:
    root = shutil.copytree(directory / "checkpoint", tmp_path / "cp")
    spark = SparkCheckpoint(str(root))

    assert_refused(root, plan_seek(spark, targets_of(spark, "zero")), REFUSED[case_of(directory)])


@pytest.mark.parametrize(
    "directory", [path for path in RECORDED if case_of(path) in NEVER], ids=lambda path: path.name
)
def test_a_recorded_checkpoint_that_spark_would_not_start_from_is_refused_whatever_is_allowed(
    directory: Path, tmp_path: Path, assert_refused: Callable[..., None]
) -> None:
    root = shutil.copytree(directory / "checkpoint", tmp_path / "cp")
    spark = SparkCheckpoint(str(root))
    policy = CheckpointPolicy("discard", "noop", None, allow_state=True)

    assert_refused(root, plan_seek(spark, targets_of(spark, "zero"), policy), REFUSED[case_of(directory)])


@pytest.mark.parametrize("to", ["zero", "others"])
@pytest.mark.parametrize(
    "directory", [path for path in RECORDED if case_of(path) not in NEVER], ids=lambda path: path.name
)
def test_a_recorded_checkpoint_is_sought_in_its_newest_offsets_alone_and_put_back(
    directory: Path, to: str, tmp_path: Path, files: Files, spark_starts: SparkStarts
) -> None:
    root = shutil.copytree(directory / "checkpoint", tmp_path / "cp")
    original = files(root)
    spark = SparkCheckpoint(str(root))
    state = spark.read()
    targets = targets_of(spark, to)
    wanted = {source: offsets | targets[source] for source, offsets in state.kafka_offsets.items()}
    newest = f"offsets/{state.batch_id}"
    discarded = [] if state.pending_batch_id is None else [f"offsets/{state.pending_batch_id}"]

    checkpoint_plan = plan_seek(spark, targets, CheckpointPolicy(**ALLOWED_BY.get(case_of(directory), {})))
    assert files(root) == original
    carry_out(root, checkpoint_plan)

    found = files(root)
    archived = {
        path.removeprefix("_kafka_offsets/0001-seek/"): found[path] for path in found if path[0] == "_"
    }
    assert archived.pop("manifest.json")
    assert archived.pop("done") == b""
    assert archived == {path: original[path] for path in (newest, *discarded)}
    touched = [newest, *discarded]
    checksums = {path.replace("/", "/.") + ".crc" for path in touched}
    assert original.keys() - found.keys() == {*discarded, *checksums}
    assert [path for path in original if path in found and found[path] != original[path]] == [newest]
    assert spark_starts(root) == (state.batch_id, state.batch_id)

    before = parse_offset_log(original[newest].decode(), newest)
    after = parse_offset_log(found[newest].decode(), newest)
    assert (after.version, after.lines[:2]) == (before.version, before.lines[:2])
    assert len(after.lines) == len(before.lines)
    for number, source in enumerate(before.sources, 2):
        name = "" if before.version == 1 else f"{source.source}:"
        if source.source in wanted:
            line = json.loads(after.lines[number].removeprefix(name))
            assert {TopicPartition(t, int(p)): o for t, ps in line.items() for p, o in ps.items()} == wanted[
                source.source
            ]
            assert after.lines[number].startswith(name)
        else:
            assert after.lines[number] == before.lines[number]
    assert spark.read().kafka_offsets == wanted

    carry_out(root, plan_undo(spark))

    assert sparks_own(files(root)) == sparks_own(original)
    assert original.keys() - files(root).keys() == checksums
    spark_starts(root)


@pytest.mark.parametrize(("case", "batch_id"), [("plain", 1), ("plain", 0), ("purged", 11)])
@pytest.mark.parametrize("version", ["3.5.4", "4.0.0", "4.2.0"])
def test_a_recorded_checkpoint_is_truncated_and_put_back(
    case: str, batch_id: int, version: str, tmp_path: Path, files: Files, spark_starts: SparkStarts
) -> None:
    recorded = RECORDED[0].parent / f"spark-{version}-{case}" / "checkpoint"
    root = shutil.copytree(recorded, tmp_path / "cp")
    original = files(root)
    newest = SparkCheckpoint(str(root)).read().batch_id or 0

    carry_out(root, truncate(root, batch_id, sink="noop"))

    removed = range(batch_id + 1, newest + 1)
    gone = {
        f"{directory}/{name}"
        for directory in ("offsets", "commits")
        for number in removed
        for name in (f"{number}", f".{number}.crc")
    }
    found = {path: data for path, data in files(root).items() if path[0] != "_"}
    assert found == {path: data for path, data in original.items() if path not in gone}
    assert spark_starts(root) == (batch_id, batch_id)

    carry_out(root, undo(root))

    assert sparks_own(files(root)) == sparks_own(original)
    spark_starts(root)


@pytest.mark.parametrize(
    "directory", [path for path in RECORDED if "stateful" in path.name], ids=lambda path: path.name
)
def test_a_recorded_query_with_state_is_truncated_with_its_state_as_it_is(
    directory: Path, tmp_path: Path, files: Files, spark_starts: SparkStarts
) -> None:
    root = shutil.copytree(directory / "checkpoint", tmp_path / "cp")
    original = files(root)

    carry_out(root, truncate(root, 1, sink="foreachBatch"))

    assert spark_starts(root) == (1, 1)
    assert {p: d for p, d in files(root).items() if p.startswith("state/")} == {
        p: d for p, d in original.items() if p.startswith("state/")
    }


# --- seek


def test_a_seek_to_where_the_query_stands_changes_nothing(three: Path, files: Files) -> None:
    before = files(three)

    checkpoint_plan = carry_out(three, seek(three, 7))

    assert (checkpoint_plan.steps, checkpoint_plan.archive) == ((), None)
    assert files(three) == before


def test_a_source_without_kafka_offsets_stays_as_it_is_and_is_named(checkpoint: Callable[..., Path]) -> None:
    text = 'v1\n{"batchTimestampMs":1}\n{"logOffset":0}\n{"orders":{"0":7}}\n-'
    root = checkpoint({0: text}, [0])

    checkpoint_plan = plan_seek(SparkCheckpoint(str(root)), {"1": {ORDERS_0: 3}})
    carry_out(root, checkpoint_plan)

    assert checkpoint_plan.notes == ("source 0, 2 has no Kafka offsets and stays as it is",)
    assert (root / "offsets/0").read_text() == text.replace("7", "3")


def test_unfinished_batches_are_removed_newest_first_before_the_offsets_are_written(
    checkpoint: Callable[..., Path],
) -> None:
    root = checkpoint(THREE | {3: 9, 4: 10}, [0, 1, 2])

    checkpoint_plan = seek(root, **DISCARD)

    assert [step.path for step in checkpoint_plan.steps] == ["offsets/4", "offsets/3", "offsets/2"]
    assert checkpoint_plan.discarded == (3, 4)


def test_an_unfinished_batch_can_be_discarded_without_a_move(
    begun: Path, files: Files, spark_starts: SparkStarts
) -> None:
    before = files(begun)

    carry_out(begun, seek(begun, 7, **DISCARD))

    assert spark_starts(begun) == (2, 2)
    assert before.keys() - files(begun).keys() == {"offsets/3", "offsets/.3.crc"}
    assert files(begun)["offsets/2"] == before["offsets/2"]


def test_the_checksum_beside_a_file_goes_and_those_of_other_files_stay(three: Path) -> None:
    carry_out(three, seek(three))

    assert not (three / "offsets/.2.crc").exists()
    assert (three / "offsets/.1.crc").exists()
    assert (three / "commits/.2.crc").exists()


def test_a_move_leaves_no_temporary_file(three: Path, files: Files) -> None:
    carry_out(three, seek(three))
    carry_out(three, undo(three))

    assert not [path for path in files(three) if path.endswith(".tmp")]


def test_what_is_read_back_must_be_what_was_planned(three: Path) -> None:
    checkpoint_plan = carry_out(three, seek(three))
    verify_checkpoint(SparkCheckpoint(str(three)), checkpoint_plan)

    carry_out(three, seek(three, 4))

    with pytest.raises(CheckpointError, match=r"read back .* archive 0001-seek"):
        verify_checkpoint(SparkCheckpoint(str(three)), checkpoint_plan)


# --- guards


def test_a_query_that_has_not_finished_a_batch_is_refused(
    checkpoint: Callable[..., Path], files: Files
) -> None:
    root = checkpoint({0: 5}, [])
    before = files(root)

    for plan in (lambda: seek(root), lambda: truncate(root, 0, sink="noop")):
        with pytest.raises(CheckpointError, match="no batch has finished, so there is nothing to move"):
            plan()
    assert files(root) == before


def test_a_directory_without_a_checkpoint_is_not_found(tmp_path: Path) -> None:
    for plan in (seek, lambda root: truncate(root, 0)):
        with pytest.raises(CheckpointNotFoundError):
            plan(tmp_path)


def test_a_commit_without_offsets_is_refused(
    checkpoint: Callable[..., Path], assert_refused: Callable[..., None]
) -> None:
    root = checkpoint(THREE, [0, 1, 2, 3])

    assert_refused(root, seek(root), "found commits/3 without offsets/3")


def test_a_checkpoint_without_the_batch_before_the_newest_is_refused(
    checkpoint: Callable[..., Path], assert_refused: Callable[..., None]
) -> None:
    root = checkpoint({0: 5, 2: 7}, [0, 1, 2])

    assert_refused(root, seek(root), "offsets/1 is not there, and Spark starts only if")


def test_a_first_batch_needs_none_before_it(checkpoint: Callable[..., Path]) -> None:
    root = checkpoint({0: 5}, [0])

    carry_out(root, seek(root))

    assert offset_of(root) == 3


def test_continuous_mode_is_refused(
    checkpoint: Callable[..., Path], assert_refused: Callable[..., None]
) -> None:
    log = 'v1\n\n{"orders":{"0":7}}'
    root = checkpoint({0: log, 1: log}, [0, 1])

    assert_refused(root, seek(root), "batch 1 has no metadata, as in continuous mode")
    assert_refused(root, truncate(root, 0, sink="noop"), "is of continuous mode")


@pytest.mark.parametrize(
    "targets",
    [
        {"0": {TopicPartition("orders", 1): 3}},
        {"0": {ORDERS_0: 3, TopicPartition("orders", 1): 3}},
        {"0": {TopicPartition("paid", 0): 3}},
        {"1": {ORDERS_0: 3}},
    ],
)
def test_partitions_that_the_newest_batch_does_not_have_are_refused(
    targets: dict[str, dict[TopicPartition, int]], three: Path, assert_refused: Callable[..., None]
) -> None:
    assert_refused(three, plan_seek(SparkCheckpoint(str(three)), targets), "batch 2 has no offset for ")


def test_a_query_with_state_is_refused_unless_that_is_allowed(
    three: Path, assert_refused: Callable[..., None]
) -> None:
    store = three / "state/0/0"
    store.mkdir(parents=True)
    (store / "3.delta").write_bytes(b"state")

    assert_refused(three, seek(three), "the query keeps state (state/)")
    carry_out(three, seek(three, allow_state=True))

    assert offset_of(three) == 3
    assert (store / "3.delta").read_bytes() == b"state"


def test_an_empty_state_directory_is_no_state(three: Path) -> None:
    (three / "state").mkdir()

    assert seek(three).refusals == ()


def test_an_unfinished_batch_is_refused_by_default(begun: Path, assert_refused: Callable[..., None]) -> None:
    assert_refused(begun, seek(begun), "batch 3 was begun and not finished: running the query once")
    assert_refused(begun, seek(begun, 7), "batch 3 was begun and not finished: running the query once")


@pytest.mark.parametrize("allow_state", [False, True])
def test_an_unfinished_batch_of_a_query_with_state_cannot_be_discarded(
    allow_state: bool, begun: Path, assert_refused: Callable[..., None]
) -> None:
    (begun / "state/0/0").mkdir(parents=True)
    state = [] if allow_state else ["the query keeps state (state/)"]

    assert_refused(
        begun,
        seek(begun, allow_state=allow_state, **DISCARD),
        *state,
        "it cannot be discarded; run the query once",
    )


def test_all_reasons_are_given_at_once(
    checkpoint: Callable[..., Path], assert_refused: Callable[..., None]
) -> None:
    root = checkpoint({0: 5, 2: 7, 3: 9}, [0, 2])
    (root / "state/0/0").mkdir(parents=True)
    checkpoint_plan = plan_seek(SparkCheckpoint(str(root)), {"1": {ORDERS_0: 1}})

    assert_refused(
        root, checkpoint_plan, "offsets/1 is not there", "has no offset for", "keeps state", "was begun"
    )


# --- sinks

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


@pytest.mark.parametrize("sink", ["idempotent", "foreachBatch", "kafka", "noop"])
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
        policy = {"sink": "file", "sink_location": str(nothing)}
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
    policy = {"sink": "file", "sink_location": file_sink(tmp_path / "out", *names)}

    carry_out(begun, seek(begun, pending_batch="discard", **policy))

    assert offset_of(begun) == 3
    assert not (begun / "offsets/3").exists()


def test_recorded_batches_are_not_truncated_for_a_file_sink(
    begun: Path, tmp_path: Path, assert_refused: Callable[..., None]
) -> None:
    policy = {"sink": "file", "sink_location": file_sink(tmp_path / "out", "0", "1", "2")}

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


# --- truncate


def test_a_truncation_removes_newest_first_and_commits_before_offsets(begun: Path) -> None:
    checkpoint_plan = truncate(begun, 0, sink="noop")

    assert [(step.path, step.data) for step in checkpoint_plan.steps] == [
        ("offsets/3", None),
        ("commits/2", None),
        ("offsets/2", None),
        ("commits/1", None),
        ("offsets/1", None),
    ]
    assert checkpoint_plan.discarded == (3,)
    assert checkpoint_plan.after == {"0": {ORDERS_0: 5}}


def test_a_truncation_to_the_newest_batch_changes_nothing_and_needs_no_sink(
    three: Path, files: Files
) -> None:
    before = files(three)

    checkpoint_plan = carry_out(three, truncate(three, 2))

    assert checkpoint_plan.steps == ()
    assert files(three) == before


@pytest.mark.parametrize("batch_id", [-1, 3, 4])
def test_only_a_finished_batch_can_be_truncated_to(
    batch_id: int, begun: Path, assert_refused: Callable[..., None]
) -> None:
    assert_refused(
        begun,
        truncate(begun, batch_id, sink="noop"),
        f"batch {batch_id} is not there as a finished batch; there are 0 to 2",
    )


def test_a_truncation_needs_the_batch_before_too(
    checkpoint: Callable[..., Path], assert_refused: Callable[..., None]
) -> None:
    root = checkpoint({5: 1, 6: 2, 8: 4, 9: 5}, [5, 6, 8, 9])

    assert_refused(
        root,
        truncate(root, 5, sink="noop"),
        "offsets/4 is not there",
    )
    assert_refused(root, truncate(root, 8, sink="noop"), "offsets/7 is not there")
    assert truncate(root, 6, sink="noop").refusals == ()


@pytest.mark.parametrize("line", ['{"logOffset":0}', "17", "-"])
def test_a_query_with_a_source_that_is_not_kafka_is_not_truncated(
    line: str, checkpoint: Callable[..., Path], assert_refused: Callable[..., None]
) -> None:
    log = f'v1\n{{"batchTimestampMs":1}}\n{{"orders":{{"0":7}}}}\n{line}'
    root = checkpoint({0: log, 1: log}, [0, 1])

    assert_refused(root, truncate(root, 0, sink="noop"), "source 1 is not Kafka and keeps a log of its own")


STATES = {
    "deltas": ("0/0/{}.delta",),
    "a snapshot": ("0/0/{}.snapshot",),
    "RocksDB": ("0/0/{}.zip",),
    "RocksDB's changelog": ("0/0/{}.changelog",),
    "the second format": ("0/0/{}_398e234e-009d-48da-9dae-7f95254395dd.zip",),
    "the second format's changelog": ("0/0/{}_398e234e-009d-48da-9dae-7f95254395dd.changelog",),
    "a join": ("0/0/left-keyToNumValues/{}.delta", "0/0/right-keyToNumValues/{}.delta"),
    "two operators": ("0/0/{}.delta", "1/0/{}.delta"),
}


def keep_state(root: Path, names: tuple[str, ...], versions: range) -> None:
    for name in names:
        for version in versions:
            path = root / "state" / name.format(version)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"state %d" % version)
    (root / "state/0/0/_metadata").mkdir(parents=True, exist_ok=True)
    (root / "state/0/0/_metadata/schema").write_bytes(b"schema")


@pytest.mark.parametrize("names", STATES.values(), ids=STATES)
def test_a_query_with_state_is_truncated_to_a_batch_whose_state_is_kept(
    names: tuple[str, ...], three: Path, assert_refused: Callable[..., None], spark_starts: SparkStarts
) -> None:
    keep_state(three, names, range(2, 4))  # version 1, the state after batch 0, is not kept any more

    assert_refused(
        three, truncate(three, 0, sink="noop"), "the state after batch 0 (version 1) is not kept any more"
    )
    carry_out(three, truncate(three, 1, sink="noop"))

    assert spark_starts(three) == (1, 1)


def test_the_state_of_every_operator_must_be_kept(three: Path, assert_refused: Callable[..., None]) -> None:
    keep_state(three, ("0/0/{}.delta",), range(1, 4))
    keep_state(three, ("1/0/{}.delta",), range(3, 4))

    assert_refused(three, truncate(three, 1, sink="noop"), "(version 2) is not kept any more")


@pytest.mark.parametrize("name", ["12.delta", "2.delta.crc", ".2.delta.crc", "2_x.tmp"])
def test_other_files_are_not_taken_for_the_state_of_a_version(
    name: str, three: Path, assert_refused: Callable[..., None]
) -> None:
    keep_state(three, (f"0/0/{name}",), range(1))

    assert_refused(three, truncate(three, 1, sink="noop"), "(version 2) is not kept any more")


def test_whole_states_of_removed_batches_go_with_their_checksums_and_changes_stay(
    three: Path, files: Files
) -> None:
    for names in STATES["deltas"], STATES["a join"]:
        keep_state(three, names, range(1, 4))
    stores = ["state/0/0", "state/0/1", "state/0/0/left-keyToNumValues"]
    for store in stores:
        (three / store).mkdir(exist_ok=True)
        for name in (
            "2.snapshot",
            ".2.snapshot.crc",
            "3.delta",
            "3.snapshot",
            ".3.snapshot.crc",
            "3.snapshot.crc",
        ):
            (three / store / name).write_bytes(b"state")
    keep_state(three, ("1/0/{}.changelog", "1/0/{}.zip", "2/0/{}.zip"), range(1, 4))
    before = files(three)

    checkpoint_plan = carry_out(three, truncate(three, 1, sink="noop"))

    gone = {path for path in before.keys() - files(three).keys() if path.startswith("state/")}
    expected = {f"{store}/3.snapshot" for store in stores} | {"state/1/0/3.zip"}
    assert set(checkpoint_plan.derived) == expected
    assert gone == expected | {
        f"{store}/{name}" for store in stores for name in (".3.snapshot.crc", "3.snapshot.crc")
    }


# --- undo


def test_the_newest_move_that_was_not_taken_back_is_taken_back(three: Path, files: Files) -> None:
    original = sparks_own(files(three))
    carry_out(three, seek(three, 1))
    carry_out(three, seek(three, 2))

    assert carry_out(three, undo(three)).undoes == "0002-seek"
    assert offset_of(three) == 1

    assert carry_out(three, undo(three)).undoes == "0001-seek"
    assert sparks_own(files(three)) == original


def test_an_undo_is_not_taken_back_by_default_and_nothing_is_left_then(three: Path, files: Files) -> None:
    carry_out(three, seek(three))
    carry_out(three, undo(three))
    before = files(three)

    with pytest.raises(
        CheckpointError, match=r"found no move to take back; there are: 0001-seek \(undone\), 0002-undo \(20"
    ):
        undo(three)
    assert files(three) == before


def test_an_undo_can_be_taken_back_by_its_name(three: Path) -> None:
    carry_out(three, seek(three))
    carry_out(three, undo(three))

    checkpoint_plan = carry_out(three, undo(three, "0002-undo"))

    assert (checkpoint_plan.undoes, checkpoint_plan.archive) == ("0002-undo", "0003-undo")
    assert offset_of(three) == 3


def test_a_move_can_be_taken_back_by_its_name_again_and_nothing_changes(three: Path, files: Files) -> None:
    carry_out(three, seek(three))
    carry_out(three, undo(three))
    before = sparks_own(files(three))

    checkpoint_plan = carry_out(three, undo(three, "0001-seek"))

    assert (checkpoint_plan.steps, checkpoint_plan.archive) == ((), None)
    assert sparks_own(files(three)) == before


def test_an_earlier_move_is_taken_back_by_its_name_as_a_seek(three: Path) -> None:
    carry_out(three, seek(three, 1))
    carry_out(three, seek(three, 2))

    checkpoint_plan = carry_out(three, undo(three, "0001-seek"))

    assert checkpoint_plan.undoes == "0001-seek"
    assert offset_of(three) == 7


def test_a_name_that_is_not_there_is_refused_with_those_that_are(three: Path) -> None:
    with pytest.raises(CheckpointError, match="found no archive 0009-seek; there are: none"):
        undo(three, "0009-seek")

    carry_out(three, seek(three))

    with pytest.raises(CheckpointError, match=r"found no archive 0009-seek; there are: 0001-seek \(20"):
        undo(three, "0009-seek")


def test_an_archive_of_another_query_is_refused(three: Path, files: Files) -> None:
    carry_out(three, seek(three))
    (three / "metadata").write_text('{"id":"another"}')
    before = files(three)

    with pytest.raises(
        PlanRefusedError, match=r"archive 0001-seek is of query 975d5cb5-.* is of query another"
    ):
        undo(three)
    assert files(three) == before


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda copy: copy.write_bytes(copy.read_bytes()[:-1]), "changed"),
        (lambda copy: copy.unlink(), "gone"),
    ],
    ids=["cut off", "gone"],
)
def test_a_damaged_copy_is_not_put_back(
    damage: Callable[[Path], object], says: str, three: Path, files: Files
) -> None:
    carry_out(three, seek(three))
    damage(three / "_kafka_offsets/0001-seek/offsets/2")
    before = files(three)

    with pytest.raises(
        CheckpointError, match=f"_kafka_offsets/0001-seek/offsets/2: is {says} since it was kept"
    ):
        undo(three)
    assert files(three) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "\udcff",
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"newest_planned"', '"newest"'),
        lambda text: text.replace('"orders"', '"or ders"'),
        lambda text: text.replace('"files": {', '"files": [], "was": {'),
    ],
    ids=["half", "empty", "a list", "no text", "version 2", "a field less", "no topic", "files"],
)
def test_a_damaged_manifest_is_named_and_nothing_is_put_back(
    damage: Callable[[str], str], three: Path, files: Files
) -> None:
    carry_out(three, seek(three))
    manifest = three / "_kafka_offsets/0001-seek/manifest.json"
    manifest.write_text(damage(manifest.read_text()), errors="surrogateescape")
    before = files(three)

    with pytest.raises(CheckpointFormatError, match="_kafka_offsets/0001-seek/manifest.json: cannot be read"):
        undo(three)
    assert files(three) == before


@pytest.mark.parametrize(
    "path",
    [
        "../7",
        "/tmp/7",
        "offsets/../../7",
        "offsets/./2",
        "metadata",
        "state/0/0/1.delta",
        "offsets/",
        "offsets/2\n",
    ],
)
def test_a_manifest_that_leads_anywhere_but_to_batches_is_refused(
    path: str, three: Path, files: Files
) -> None:
    carry_out(three, seek(three))
    manifest = three / "_kafka_offsets/0001-seek/manifest.json"
    text = json.loads(manifest.read_text())
    text["files"] = {path: {"before": None, "after": digest((three / "offsets/2").read_bytes())}}
    manifest.write_text(json.dumps(text))
    (three.parent / "7").write_text("another's")
    before = files(three.parent)

    with pytest.raises(CheckpointFormatError, match="entry 1 of files is no batch in offsets or commits"):
        undo(three)
    assert files(three.parent) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "hunter2",
        lambda text: text.replace('"version": 1', '"version": "hunter2"'),
        lambda text: text.replace('"batch_id": 2', '"batch_id": "hunter2"'),
        lambda text: text.replace('"undoes": null', '"undoes": ["hunter2"]'),
        lambda text: text.replace('"orders"', '"hunter2 "'),
        lambda text: text.replace('"files": {', '"files": {"hunter2": {},'),
        lambda text: text.replace('"query_id"', '"hunter2": 1, "hunter2": 1, "id"'),
    ],
    ids=["no JSON", "version", "batch", "undoes", "topic", "files", "twice"],
)
def test_what_is_in_a_manifest_that_is_none_is_not_shown(damage: Callable[[str], str], three: Path) -> None:
    carry_out(three, seek(three))
    manifest = three / "_kafka_offsets/0001-seek/manifest.json"
    manifest.write_text(damage(manifest.read_text()))

    with pytest.raises(CheckpointFormatError, match="expected a manifest of version 1") as refused:
        undo(three)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("path", ["../7", "/tmp/7", "offsets//7", "offsets/../7", "a\0b", ""])
def test_nothing_is_written_or_removed_outside_of_a_checkpoint(path: str, three: Path) -> None:
    spark = SparkCheckpoint(str(three))

    with pytest.raises(CheckpointError, match="is not the path of a file below the checkpoint"):
        spark.write_file(path, b"")
    with pytest.raises(CheckpointError, match="is not the path of a file below the checkpoint"):
        spark.remove_file(path)


@pytest.mark.parametrize("linked", ["offsets", "commits", "_kafka_offsets", "state"])
def test_a_checkpoint_is_not_changed_through_a_symbolic_link(
    linked: str, three: Path, files: Files, tmp_path: Path
) -> None:
    (three / "state/0/0").mkdir(parents=True)
    for version in ("2.delta", "3.delta", "3.snapshot"):
        (three / "state/0/0" / version).write_bytes(b"")
    elsewhere = tmp_path / "elsewhere"
    (three / linked).rename(elsewhere) if linked != "_kafka_offsets" else elsewhere.mkdir()
    (three / linked).symlink_to(elsewhere)
    before = files(tmp_path)

    with pytest.raises((CheckpointError, PlanRefusedError), match=f"{linked}: is a symbolic link"):
        carry_out(three, truncate(three, 1, sink="noop"))
    assert files(tmp_path) == before


def test_a_batch_that_is_a_symbolic_link_is_replaced_and_what_it_leads_to_stays(
    three: Path, tmp_path: Path
) -> None:
    elsewhere = (three / "offsets/2").rename(tmp_path / "elsewhere")
    before = elsewhere.read_bytes()
    (three / "offsets/2").symlink_to(elsewhere)

    carry_out(three, seek(three))

    assert elsewhere.read_bytes() == before
    assert not (three / "offsets/2").is_symlink()


def test_an_archive_without_a_manifest_is_ignored_and_its_number_not_used_again(three: Path) -> None:
    half = three / "_kafka_offsets/0001-seek/offsets"
    half.mkdir(parents=True)
    (half / "2").write_text("half a copy")

    with pytest.raises(CheckpointError, match="found no move to take back; there are: none"):
        undo(three)
    assert carry_out(three, seek(three)).archive == "0002-seek"
    assert carry_out(three, undo(three)).undoes == "0002-seek"
    assert offset_of(three) == 7


def test_archives_are_ordered_by_number_also_beyond_four_digits(three: Path) -> None:
    (three / "_kafka_offsets/9999-undo").mkdir(parents=True)
    (three / "_kafka_offsets/notes").mkdir()
    spark = SparkCheckpoint(str(three))
    assert next_name(spark, "seek") == "10000-seek"

    carry_out(three, seek(three, 1))
    (three / "_kafka_offsets/10000-seek").rename(three / "_kafka_offsets/9999-seek")
    carry_out(three, seek(three, 2))

    assert [archive.name for archive in read_archives(spark)] == ["9999-seek", "10000-seek"]
    assert undo(three).undoes == "10000-seek"


def test_an_undo_brings_a_discarded_batch_back(begun: Path, files: Files, spark_starts: SparkStarts) -> None:
    original = sparks_own(files(begun))
    carry_out(begun, seek(begun, **DISCARD))

    checkpoint_plan = carry_out(begun, undo(begun))

    # What comes back comes oldest first: batch 3 without the offsets that it starts at would be another batch.
    assert [step.path for step in checkpoint_plan.steps] == ["offsets/2", "offsets/3"]
    assert sparks_own(files(begun)) == original
    assert spark_starts(begun) == (2, 3)


def test_an_undo_of_a_truncation_brings_everything_back_oldest_first_and_offsets_before_commits(
    begun: Path, files: Files, spark_starts: SparkStarts
) -> None:
    original = sparks_own(files(begun))
    carry_out(begun, truncate(begun, 0, sink="noop"))

    checkpoint_plan = carry_out(begun, undo(begun))

    assert [step.path for step in checkpoint_plan.steps] == [
        "offsets/1",
        "commits/1",
        "offsets/2",
        "commits/2",
        "offsets/3",
    ]
    assert sparks_own(files(begun)) == original
    assert spark_starts(begun) == (2, 3)


@pytest.mark.parametrize(
    "move", [seek, lambda root: truncate(root, 0, sink="noop")], ids=["seek", "truncate"]
)
def test_an_undo_after_the_query_has_run_is_a_seek(
    move: Callable[[Path], CheckpointPlan],
    three: Path,
    checkpoint: Callable[..., Path],
    files: Files,
    spark_starts: SparkStarts,
) -> None:
    carry_out(three, move(three))
    batch = (SparkCheckpoint(str(three)).read().batch_id or 0) + 1
    checkpoint({batch: 8}, [batch])
    before = files(three)

    checkpoint_plan = carry_out(three, undo(three))

    assert (checkpoint_plan.kind, [step.path for step in checkpoint_plan.steps]) == (
        "undo",
        [f"offsets/{batch}"],
    )
    assert offset_of(three) == 7
    assert spark_starts(three) == (batch, batch)
    changed = {path for path in before if files(three).get(path) != before[path]}
    assert changed == {f"offsets/{batch}"}
    assert (
        three / "_kafka_offsets" / str(checkpoint_plan.undoes) / "undone"
    ).read_text() == f"{checkpoint_plan.archive}\n"


def test_an_undo_while_a_new_batch_is_unfinished_needs_what_a_seek_needs(
    three: Path, checkpoint: Callable[..., Path], assert_refused: Callable[..., None]
) -> None:
    carry_out(three, seek(three))
    checkpoint({3: 8}, [])

    assert_refused(three, undo(three), "batch 3 was begun and not finished")
    checkpoint_plan = carry_out(three, undo(three, **DISCARD))

    assert [step.path for step in checkpoint_plan.steps] == ["offsets/3", "offsets/2"]
    assert offset_of(three) == 7


def test_an_undo_where_a_discarded_batch_has_run_with_other_records_is_a_seek(
    begun: Path, checkpoint: Callable[..., Path]
) -> None:
    carry_out(begun, seek(begun, **DISCARD))
    checkpoint({3: 4}, [])

    checkpoint_plan = undo(begun, **DISCARD)

    assert [step.path for step in checkpoint_plan.steps] == ["offsets/3", "offsets/2"]
    assert checkpoint_plan.after == {"0": {ORDERS_0: 7}}


def test_an_undo_of_a_seek_of_a_query_with_state_that_has_run_needs_the_flag_again(
    three: Path, checkpoint: Callable[..., Path], assert_refused: Callable[..., None]
) -> None:
    (three / "state/0/0").mkdir(parents=True)
    carry_out(three, seek(three, allow_state=True))
    assert undo(three).refusals == ()

    checkpoint({3: 8}, [3])

    assert_refused(three, undo(three), "the query keeps state")


# --- a move that is taken up again


def test_the_archive_of_a_run_is_found_by_its_token_until_it_is_taken_back(three: Path) -> None:
    spark = SparkCheckpoint(str(three))
    carry_out(
        three, seek(three), by=CommitMetadata(token="this run"), attachments={"before.csv": "orders,0,7\n"}
    )
    carry_out(three, seek(three, 4), by=CommitMetadata(token="another"))

    found = archive_of_run(spark, "this run")
    assert found is not None
    assert found.name == "0001-seek"
    assert archive_of_run(spark, "a third") is None
    assert archive_of_run(spark, "") is None
    assert (three / "_kafka_offsets/0001-seek/before.csv").read_text() == "orders,0,7\n"

    carry_out(three, undo(three, "0001-seek"))
    assert archive_of_run(spark, "this run") is None


def test_an_interrupted_move_is_taken_up_again_with_its_archive_and_undone_in_one(
    begun: Path, files: Files
) -> None:
    spark = SparkCheckpoint(str(begun))
    original = files(begun)
    carry_out(begun, seek(begun, **DISCARD), by=CommitMetadata(token="run"))
    # As if it had been interrupted before its last step.
    (begun / "offsets/2").write_bytes(original["offsets/2"])
    kept = archive_of_run(spark, "run")
    assert kept is not None

    checkpoint_plan = carry_out(
        begun, resume(spark, seek(begun, **DISCARD), kept), by=CommitMetadata(token="run")
    )

    assert (checkpoint_plan.resumes, checkpoint_plan.archive, checkpoint_plan.discarded) == (
        True,
        "0001-seek",
        (3,),
    )
    assert [archive.name for archive in read_archives(spark)] == ["0001-seek"]
    assert offset_of(begun) == 3
    carry_out(begun, undo(begun))
    assert sparks_own(files(begun)) == sparks_own(original)


def test_a_move_is_not_taken_up_again_after_the_query_has_run(
    three: Path, checkpoint: Callable[..., Path]
) -> None:
    spark = SparkCheckpoint(str(three))
    carry_out(three, seek(three), by=CommitMetadata(token="run"))
    checkpoint({3: 8}, [3])
    kept = archive_of_run(spark, "run")
    assert kept is not None

    checkpoint_plan = resume(spark, seek(three), kept)

    assert (checkpoint_plan.resumes, checkpoint_plan.archive) == (False, "0002-seek")


# --- quiet period


def written_ago(root: Path, seconds: float) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture
def waiting() -> Iterator[Callable[[Callable[[], object]], None]]:
    """waiting(action): runs the action in a thread as soon as a move begins to wait."""
    logger = logging.getLogger("airflow_kafka_offsets.checkpoint.move")
    level = logger.level
    handlers: list[logging.Handler] = []
    threads: list[threading.Thread] = []

    class _Starts(logging.Handler):
        def __init__(self, action: Callable[[], object]) -> None:
            super().__init__()
            self.action = action

        def emit(self, record: logging.LogRecord) -> None:
            if record.msg.startswith("Waiting"):
                threads.append(threading.Thread(target=self.action))
                threads[-1].start()
                threads[-1].join()

    def when_waiting(action: Callable[[], object]) -> None:
        handlers.append(_Starts(action))
        logger.addHandler(handlers[-1])
        logger.setLevel(logging.INFO)

    yield when_waiting
    for handler in handlers:
        logger.removeHandler(handler)
    logger.setLevel(level)
    assert threads, "the move did not wait"


def test_a_move_waits_after_a_fresh_write(three: Path, waiting: Callable[..., None]) -> None:
    waiting(lambda: None)
    begun_at = time.monotonic()

    carry_out(three, seek(three), quiet_period=0.3)

    assert time.monotonic() - begun_at > 0.1
    assert offset_of(three) == 3


def test_a_move_waits_for_no_longer_than_the_period_where_the_storages_clock_is_ahead(three: Path) -> None:
    written_ago(three, -3600)
    begun_at = time.monotonic()

    carry_out(three, seek(three), quiet_period=0.3)

    assert 0.3 <= time.monotonic() - begun_at < 30


def test_a_move_does_not_wait_where_nothing_was_written_for_that_long(
    three: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written_ago(three, 120)

    with caplog.at_level(logging.INFO):
        carry_out(three, seek(three), quiet_period=60)

    assert "Waiting" not in caplog.text
    assert offset_of(three) == 3


def test_a_period_of_0_does_not_wait(three: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        carry_out(three, seek(three), quiet_period=0)

    assert "Waiting" not in caplog.text


def test_a_move_without_a_step_does_not_wait(three: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        carry_out(three, seek(three, 7), quiet_period=60)

    assert "Waiting" not in caplog.text


@pytest.mark.parametrize(
    "write",
    [
        lambda root: shutil.copy(root / "offsets/2", root / "offsets/3"),
        lambda root: [shutil.copy(root / d / "2", root / d / "3") for d in ("offsets", "commits")],
        lambda root: os.utime(root / "commits/2", (1, 1)),
    ],
    ids=["a batch begins", "a batch is finished", "a commit is written again"],
)
def test_a_write_while_a_move_waits_is_a_running_query(
    write: Callable[[Path], object], three: Path, files: Files, waiting: Callable[..., None]
) -> None:
    checkpoint_plan = seek(three)
    after: dict[str, bytes] = {}

    def spark() -> None:
        write(three)
        after.update(files(three))

    waiting(spark)

    with pytest.raises(
        PlanRefusedError, match=r"was written to within the last 0\.3 s: the query is running"
    ):
        carry_out(three, checkpoint_plan, quiet_period=0.3)
    assert files(three) == after


class _TimelessFileSystem(LocalFileSystem):
    cachable = False

    def modified(self, path: str) -> Any:
        raise NotImplementedError


def test_a_move_waits_on_a_storage_that_does_not_tell_when_files_were_written(
    three: Path, waiting: Callable[..., None]
) -> None:
    written_ago(three, 3600)
    waiting(lambda: None)
    spark = SparkCheckpoint(str(three), fs=_TimelessFileSystem())
    begun_at = time.monotonic()

    apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=0.3)

    assert time.monotonic() - begun_at >= 0.3
    assert offset_of(three) == 3


def test_a_batch_that_begins_is_seen_on_a_storage_without_times(
    three: Path, files: Files, waiting: Callable[..., None]
) -> None:
    spark = SparkCheckpoint(str(three), fs=_TimelessFileSystem())
    before = files(three)
    waiting(lambda: shutil.copy(three / "offsets/2", three / "offsets/3"))

    with pytest.raises(PlanRefusedError, match="the query is running"):
        apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=0.3)
    assert files(three) == before | {"offsets/3": before["offsets/2"]}


# --- a checkpoint that changes between the plan and the move

MOVES: dict[str, Callable[[Path], CheckpointPlan]] = {
    "seek": seek,
    "truncate": lambda root: truncate(root, 1, sink="noop"),
    "undo": undo,
}


@pytest.mark.parametrize("kind", MOVES)
@pytest.mark.parametrize(
    "changes",
    [
        lambda write: write({2: 8}, []),
        lambda write: write({3: 8}, [3]),
        lambda write: write({3: 8}, []),
    ],
    ids=["the newest offsets are others", "a batch was finished", "a batch was begun"],
)
def test_a_plan_is_refused_once_the_checkpoint_is_another(
    changes: Callable[[Callable[..., Path]], object],
    kind: str,
    three: Path,
    checkpoint: Callable[..., Path],
    files: Files,
) -> None:
    if kind == "undo":
        carry_out(three, seek(three))
    checkpoint_plan = MOVES[kind](three)
    changes(checkpoint)
    before = files(three)

    with pytest.raises(PlanRefusedError, match="has changed since the plan was made"):
        carry_out(three, checkpoint_plan)
    assert files(three) == before


def test_a_batch_that_was_to_be_discarded_and_has_been_finished_is_not_discarded(
    begun: Path, checkpoint: Callable[..., Path], files: Files
) -> None:
    checkpoint_plan = seek(begun, **DISCARD)
    checkpoint({}, [3])
    before = files(begun)

    with pytest.raises(PlanRefusedError, match="has changed since the plan was made"):
        carry_out(begun, checkpoint_plan)
    assert files(begun) == before


# --- storages


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    yield MemoryFileSystem()
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


class _RenamingFileSystem(MemoryFileSystem):
    """A storage on which a write may be seen in part, and a rename may not."""

    protocol = ("renaming",)
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        self.written.append(path.rpartition("/")[2])
        super().pipe_file(path, value, *args, **kwargs)


@pytest.fixture(params=["local", "memory", "renaming", "s3"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, memory: MemoryFileSystem
) -> tuple[AbstractFileSystem, str, str]:
    """A file system, a directory on it, and the URI of that."""
    if request.param == "local":
        return LocalFileSystem(), str(tmp_path / "on"), str(tmp_path / "on")
    if request.param == "s3":
        s3fs = pytest.importorskip("s3fs")
        root = f"lake/{uuid.uuid4()}"
        return s3fs.S3FileSystem(**request.getfixturevalue("storage_options")), root, f"s3a://{root}"
    fs = memory if request.param == "memory" else _RenamingFileSystem()
    return fs, "/lake/on", "memory://lake/on"


def test_a_file_is_written_replaced_and_removed_on_every_storage(
    storage: tuple[AbstractFileSystem, str, str],
) -> None:
    fs, root, _ = storage
    path = f"{root}/new/directory/7"

    replace_file(fs, path, b"first")
    assert fs.cat_file(path) == b"first"
    replace_file(fs, path, b"second, longer")
    assert fs.cat_file(path) == b"second, longer"
    fs.invalidate_cache()
    assert [name.rpartition("/")[2] for name in fs.ls(f"{root}/new/directory", detail=False)] == ["7"]

    remove_file(fs, path)
    remove_file(fs, path)
    assert not fs.exists(path)


def test_the_time_of_a_write_is_told_with_its_zone(storage: tuple[AbstractFileSystem, str, str]) -> None:
    fs, root, _ = storage
    assert modified(fs, f"{root}/7") is None

    replace_file(fs, f"{root}/7", b"text")

    found = modified(fs, f"{root}/7")
    assert found is not None
    assert found.tzinfo is not None
    assert abs(found.timestamp() - time.time()) < 60


def test_a_storage_without_times_tells_none(tmp_path: Path) -> None:
    (tmp_path / "7").write_bytes(b"text")

    assert modified(_TimelessFileSystem(), str(tmp_path / "7")) is None


def test_a_file_takes_its_name_by_a_rename_where_a_write_could_be_seen_in_part(
    memory: MemoryFileSystem,
) -> None:
    fs = _RenamingFileSystem()

    replace_file(fs, "/lake/offsets/7", b"text")

    (written,) = fs.written
    assert written.startswith(".7.")
    assert written.endswith(".tmp")


def test_a_seek_and_its_undo_on_every_storage(
    storage: tuple[AbstractFileSystem, str, str], write_checkpoint: Callable[..., str]
) -> None:
    fs, root, location = storage
    write_checkpoint(fs, root, THREE | {3: 9}, [0, 1, 2])
    before = {path: fs.cat_file(path) for path in fs.find(root)}
    spark = SparkCheckpoint(location, fs=fs)
    policy = CheckpointPolicy("discard", "kafka")

    checkpoint_plan = plan_seek(spark, {"0": {ORDERS_0: 3}}, policy)
    apply_checkpoint_plan(spark, checkpoint_plan, quiet_period=0.2)

    state = spark.read()
    assert (state.batch_id, state.pending_batch_id) == (2, None)
    assert state.kafka_offsets == {"0": {ORDERS_0: 3}}
    assert [archive.name for archive in read_archives(spark)] == ["0001-seek"]

    apply_checkpoint_plan(spark, plan_undo(spark), quiet_period=0)

    fs.invalidate_cache()
    after = {path: fs.cat_file(path) for path in fs.find(root) if "_kafka_offsets" not in path}
    assert after == before
    assert [archive.undone for archive in read_archives(spark)] == [True, False]


def test_a_truncation_and_its_undo_on_every_storage(
    storage: tuple[AbstractFileSystem, str, str], write_checkpoint: Callable[..., str]
) -> None:
    fs, root, location = storage
    write_checkpoint(fs, root, THREE, [0, 1, 2])
    before = {path: fs.cat_file(path) for path in fs.find(root)}
    spark = SparkCheckpoint(location, fs=fs)

    apply_checkpoint_plan(spark, plan_truncate(spark, 0, CheckpointPolicy(sink="noop")), quiet_period=0)
    assert (spark.batches("offsets"), spark.batches("commits")) == ({0}, {0})

    apply_checkpoint_plan(spark, plan_undo(spark), quiet_period=0)

    fs.invalidate_cache()
    assert {path: fs.cat_file(path) for path in fs.find(root) if "_kafka_offsets" not in path} == before


class _KeepsFileSystem(_RenamingFileSystem):
    """A storage whose rename leaves a file that is there as it is, without an error, as HDFS over HTTP does."""

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        if not self.exists(path2):
            super().mv(path1, path2, *args, **kwargs)


class _RefusesFileSystem(_KeepsFileSystem):
    """A storage whose rename does not take a name that is there, as that of Databricks."""

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        if self.exists(path2):
            raise FileExistsError(path2)
        super().mv(path1, path2, *args, **kwargs)


@pytest.mark.parametrize("driver", [_KeepsFileSystem, _RefusesFileSystem])
def test_a_seek_where_a_rename_does_not_replace_fails_and_leaves_the_checkpoint_as_it_was(
    driver: type[_KeepsFileSystem], memory: MemoryFileSystem, write_checkpoint: Callable[..., str]
) -> None:
    fs = driver()
    root = write_checkpoint(fs, "/lake/on", THREE, [0, 1, 2])
    spark = SparkCheckpoint("memory://lake/on", fs=fs)
    before = {path: fs.cat_file(path) for path in fs.find(root)}

    with pytest.raises(CheckpointError):
        apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=0)

    assert before.items() <= {path: fs.cat_file(path) for path in fs.find(root)}.items()
    assert spark.read().kafka_offsets == {"0": {ORDERS_0: 7}}


def test_a_storage_that_may_not_be_written_to_is_named_and_nothing_is_changed(
    three: Path, files: Files
) -> None:
    class Forbidden(LocalFileSystem):
        cachable = False

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            raise PermissionError("Access Denied")

    spark = SparkCheckpoint(str(three), fs=Forbidden())
    before = files(three)

    with pytest.raises(CheckpointError, match=r"no permission to change it .Access Denied"):
        apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}), quiet_period=0)
    assert files(three) == before
