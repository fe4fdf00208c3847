"""Checkpoints that Spark 3.5.4, 4.0.0 and 4.2.0 wrote are read, and moved and put back or refused."""

import itertools
import json
import shutil
from typing import Any

import pytest
from checkpoint_moves import (
    DISCARD,
    RECORDED,
    apply_plan,
    case_of,
    files,
    restore,
    spark_starts,
    sparks_own,
    truncate,
)

from airflow_kafka_offsets.checkpoint.batch import finished_batch_ends
from airflow_kafka_offsets.checkpoint.log import parse_offset_log
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointFormatError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.offsets import TopicPartition

EACH = pytest.mark.parametrize("directory", RECORDED, ids=lambda path: path.name)


@EACH
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


@EACH
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


@pytest.mark.parametrize(
    "directory", [path for path in RECORDED if case_of(path) != "async-progress"], ids=lambda path: path.name
)
def test_spark_starts_from_what_it_has_written(directory):
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
def test_spark_does_not_start_from_a_damaged_checkpoint(damage, three):
    assert spark_starts(three) == (2, 2)
    damage(three)
    with pytest.raises((AssertionError, CheckpointFormatError)):
        spark_starts(three)


# --- moves

REFUSED = {
    "stateful": "the query keeps state",
    "stateful-ckpt-v2": "the query keeps state",
    "uncommitted-last": "batch 2 was begun and not finished: run the query once, which finishes",
    "async-progress": "does not exist, and Spark starts only if the two newest batches exist",
    "continuous": "has no metadata, as in continuous mode",
}
ALLOWED_BY: dict[str, dict[str, Any]] = {
    "stateful": {"allow_stateful": True},
    "stateful-ckpt-v2": {"allow_stateful": True},
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


EVERYTHING_ALLOWED = CheckpointPolicy("discard", "noop", allow_stateful=True)


@pytest.mark.parametrize(
    ("directory", "policy"),
    [(path, None) for path in RECORDED if case_of(path) in REFUSED]
    + [(path, EVERYTHING_ALLOWED) for path in RECORDED if case_of(path) in NEVER],
    ids=lambda value: getattr(value, "name", "allowed" if value else "by default"),
)
def test_a_recorded_checkpoint_that_must_not_be_moved_so_is_refused_with_the_reason(
    directory, policy, tmp_path, assert_refused
):
    root = shutil.copytree(directory / "checkpoint", tmp_path / "cp")
    spark = SparkCheckpoint(str(root))
    assert_refused(root, plan_seek(spark, targets_of(spark, "zero"), policy), REFUSED[case_of(directory)])


@pytest.mark.parametrize("to", ["zero", "others"])
@pytest.mark.parametrize(
    "directory", [path for path in RECORDED if case_of(path) not in NEVER], ids=lambda path: path.name
)
def test_a_recorded_checkpoint_is_sought_in_its_newest_offsets_alone_and_put_back(directory, to, tmp_path):
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
    apply_plan(root, checkpoint_plan)

    found = files(root)
    archived = {
        path.removeprefix("_kafka_offsets/0001-seek/"): found[path] for path in found if path[0] == "_"
    }
    manifest = json.loads(archived.pop("manifest.json"))
    assert archived.pop("done") == archived.pop(f"{manifest['nonce']}.claim") == b""
    assert archived == {path: original[path] for path in (newest, *discarded)}
    touched = [newest, *discarded]
    checksums = {path.replace("/", "/.") + ".crc" for path in touched}
    assert original.keys() - found.keys() == {*discarded, *checksums}
    assert [path for path in original if path in found and found[path] != original[path]] == [newest]
    assert spark_starts(root) == (state.batch_id, state.batch_id)

    before = parse_offset_log(original[newest].decode(), newest)
    after = parse_offset_log(found[newest].decode(), newest)
    old, new = before.text.split("\n"), after.text.split("\n")
    assert (after.version, new[:2], len(new)) == (before.version, old[:2], len(old))
    for number, source in enumerate(before.sources, 2):
        name = "" if before.version == 1 else f"{source}:"
        if source in wanted:
            line = json.loads(new[number].removeprefix(name))
            assert {TopicPartition(t, int(p)): o for t, ps in line.items() for p, o in ps.items()} == wanted[
                source
            ]
            assert new[number].startswith(name)
        else:
            assert new[number] == old[number]
    assert spark.read().kafka_offsets == wanted

    apply_plan(root, plan_checkpoint_restore(spark))

    assert sparks_own(files(root)) == sparks_own(original)
    assert original.keys() - files(root).keys() == checksums
    spark_starts(root)


@pytest.mark.parametrize(("case", "batch_id"), [("plain", 1), ("plain", 0), ("purged", 11)])
@pytest.mark.parametrize("version", ["3.5.4", "4.0.0", "4.2.0"])
def test_a_recorded_checkpoint_is_truncated_and_put_back(case, batch_id, version, tmp_path):
    recorded = RECORDED[0].parent / f"spark-{version}-{case}" / "checkpoint"
    root = shutil.copytree(recorded, tmp_path / "cp")
    original = files(root)
    newest = SparkCheckpoint(str(root)).read().batch_id or 0

    apply_plan(root, truncate(root, batch_id, sink="noop"))

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

    apply_plan(root, restore(root))

    assert sparks_own(files(root)) == sparks_own(original)
    spark_starts(root)


@pytest.mark.parametrize(
    "directory", [path for path in RECORDED if "stateful" in path.name], ids=lambda path: path.name
)
def test_a_recorded_query_with_state_is_truncated_with_its_state_as_it_is(directory, tmp_path):
    root = shutil.copytree(directory / "checkpoint", tmp_path / "cp")
    original = files(root)
    apply_plan(root, truncate(root, 1, idempotent_sink=True))
    assert spark_starts(root) == (1, 1)
    assert {p: d for p, d in files(root).items() if p.startswith("state/")} == {
        p: d for p, d in original.items() if p.startswith("state/")
    }
