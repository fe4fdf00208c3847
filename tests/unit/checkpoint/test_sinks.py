"""A batch id comes again only for a sink that can take it."""

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_moves import (
    ORDERS_0,
    THREE,
    apply_plan,
    offset_of,
    seek,
    spark_starts,
    truncate,
    write_checkpoint,
)

from airflow_kafka_offsets.checkpoint.plan_move import plan_seek
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.checkpoint_policy import RECORDING_SINKS, CheckpointPolicy

TABLES = sorted((Path(__file__).parents[2] / "tables").iterdir())
"""Tables into which the query has written its batches 0 to 2, each without its data."""

SINK_REFUSALS = {
    None: "the checkpoint does not name the sink: set sink to 'kafka'",
    "delta": "set sink_location to the directory of the sink, so that its _delta_log can be checked",
    "iceberg": "set sink_location to the directory of the sink, so that its metadata can be checked",
    "hudi": "set sink_location to the directory of the sink, so that its .hoodie can be checked",
    "file": "set sink_location to the directory of the sink, so that its _spark_metadata can be checked",
}


@pytest.mark.parametrize("sink", SINK_REFUSALS)
def test_a_batch_is_not_discarded_nor_truncated_for_a_sink_that_may_lose_it(sink, begun, assert_refused):
    assert_refused(begun, seek(begun, on_pending_batch="discard", sink=sink), SINK_REFUSALS[sink])
    assert_refused(begun, truncate(begun, 1, sink=sink), SINK_REFUSALS[sink])


@pytest.mark.parametrize("sink", [{"idempotent_sink": True}, {"sink": "kafka"}, {"sink": "noop"}])
def test_a_batch_is_discarded_or_truncated_for_a_sink_that_takes_its_id_again(sink, begun):
    assert truncate(begun, 1, **sink).refusals == ()
    apply_plan(begun, seek(begun, on_pending_batch="discard", **sink))
    assert spark_starts(begun) == (2, 2)


# Sinks that record the batches that they have written


def file_sink(directory: Path, *names: str) -> str:
    log = directory / "_spark_metadata"
    log.mkdir(parents=True)
    for name in names:
        (log / name).write_text("v1\n")
        (log / f".{name}.crc").write_bytes(b"crc")
    return str(directory)


def discarding(sink: str, location: object) -> dict[str, Any]:
    return {"on_pending_batch": "discard", "sink": sink, "sink_location": str(location)}


@pytest.fixture(params=[*TABLES, "file"], ids=lambda table: getattr(table, "name", table))
def written(request, tmp_path):
    """The policy that discards a batch of a query whose sink has recorded the batches 0 to 2."""
    if request.param == "file":
        return discarding("file", file_sink(tmp_path / "written", "0", "1", "2"))
    return discarding(request.param.name.partition("-")[0], request.param)


def test_a_batch_that_the_sink_has_not_recorded_is_discarded(written, begun):
    apply_plan(begun, seek(begun, **written))
    assert spark_starts(begun) == (2, 2)
    assert offset_of(begun) == 3


def test_a_batch_that_the_sink_has_recorded_is_not_discarded(written, checkpoint, assert_refused):
    unfinished = checkpoint(THREE, [0, 1])
    assert_refused(
        unfinished,
        seek(unfinished, **written),
        f"discarding batch 2: the sink has recorded batch 2 in {written['sink_location']}/"
        f"{RECORDING_SINKS[written['sink']]} and would skip it, with all new records: run the query once, "
        "which finishes the batch (with failOnDataLoss=false for that run if Kafka has deleted records of the"
        " batch), then move it",
    )


def test_a_sink_that_has_not_recorded_what_the_checkpoint_has_finished_is_another_one(
    written, checkpoint, assert_refused
):
    later = checkpoint(THREE | {3: 8, 4: 9}, [0, 1, 2, 3])
    assert_refused(
        later,
        seek(later, **written),
        "has recorded no batch after 2, but the checkpoint has finished batch 3: give the directory that the "
        "query writes to, or run the query once",
    )


def test_a_sink_that_records_batches_is_not_truncated_below_them(written, begun, assert_refused):
    policy = {**written, "on_pending_batch": "fail"}
    assert_refused(begun, truncate(begun, 1, **policy), "with all new records: run the query once")
    assert truncate(begun, 2, **policy).refusals == ()
    (begun / "offsets" / "3").unlink()
    assert_refused(begun, truncate(begun, 1, **policy), "with all new records: seek, which uses no")


@pytest.mark.parametrize("sink", RECORDING_SINKS)
def test_a_directory_that_the_sink_does_not_write_to_is_refused(sink, begun, tmp_path, assert_refused):
    for nothing in (tmp_path / "absent", tmp_path):
        says = f"sink_location='{nothing}': has no {RECORDING_SINKS[sink]} with a batch of query 975d5cb5-"
        assert_refused(begun, seek(begun, **discarding(sink, nothing)), says)
        assert_refused(begun, truncate(begun, 1, sink=sink, sink_location=str(nothing)), says)


@pytest.mark.parametrize(
    "table", [table for table in TABLES if "hudi" not in table.name], ids=lambda t: t.name
)
def test_a_table_that_another_query_writes_to_is_refused(table, begun, assert_refused):
    other = "11111111-2222-3333-4444-555555555555"
    (begun / "metadata").write_text(json.dumps({"id": other}))
    assert_refused(begun, seek(begun, **discarding(table.name.partition("-")[0], table)), f"of query {other}")


# A file sink


@pytest.mark.parametrize("names", [("2", "3"), ("2", "3.compact"), ("12.compact", "9")])
def test_a_batch_that_the_file_sink_has_recorded_is_not_discarded(names, begun, tmp_path, assert_refused):
    out = file_sink(tmp_path / "out", *names)
    newest = max(int(name.partition(".")[0]) for name in names)
    assert_refused(
        begun,
        seek(begun, **discarding("file", out)),
        f"the sink has recorded batch {newest} in {out}/_spark_metadata and would skip it",
    )


def test_a_batch_id_that_was_left_out_is_not_used_again_once_the_sink_has_recorded_it(
    checkpoint, tmp_path, assert_refused
):
    # Without offsets/3, Spark numbers its next batch 3 after batch 4 was discarded.
    root = checkpoint(THREE | {4: 9}, [0, 1, 2])
    out = file_sink(tmp_path / "out", "2", "3")
    assert_refused(root, seek(root, **discarding("file", out)), "the sink has recorded batch 3")


@pytest.mark.parametrize("names", [("2.compact",), ("1", "2", "3.tmp")])
def test_a_batch_that_the_file_sink_has_not_recorded_is_discarded(names, begun, tmp_path):
    apply_plan(begun, seek(begun, **discarding("file", file_sink(tmp_path / "out", *names))))
    assert not (begun / "offsets/3").exists()


def test_the_log_of_a_sink_is_found_on_the_storage_of_the_checkpoint(memory):
    root = write_checkpoint(memory, f"/{uuid.uuid4()}/cp", THREE | {3: 9}, [0, 1, 2])
    memory.pipe_file(f"{root}-out/_spark_metadata/3", b"v1\n")
    policy = CheckpointPolicy("discard", "file", sink_location=f"memory://{root}-out")
    checkpoint_plan = plan_seek(SparkCheckpoint(f"memory://{root}"), {"0": {ORDERS_0: 3}}, policy)
    assert "has recorded batch 3" in checkpoint_plan.refusals[0]


# Delta Lake


@pytest.fixture
def table(tmp_path):
    """table("delta-4.0.0") -> a copy of the recorded table."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(TABLES[0].parent / name, tmp_path / "table"))

    return copy


def delta_log(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def test_commits_of_others_to_a_delta_table_are_passed_over(table, begun):
    delta = table("delta-4.0.0")
    for version in (3, 4):
        delta_log(delta, version).write_text('{"commitInfo":{}}\n{"txn":{"appId":"other","version":9}}\n')
    assert seek(begun, **discarding("delta", delta)).refusals == ()
    delta_log(delta, 5).write_text(delta_log(delta, 2).read_text().replace('"version":2', '"version":3'))
    assert "has recorded batch 3" in seek(begun, **discarding("delta", delta)).refusals[0]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda table: delta_log(table, 2).unlink(), "has recorded no batch after 1"),
        (lambda table: delta_log(table, 4).write_text("{}\n"), "00000000000000000003.json: does not exist"),
        (lambda table: cleaned_up(table, 3), "00000000000000000002.json: does not exist"),
        (
            lambda table: write(table / "_delta_log/_staged_commits/00000000000000000003.6c3c.json"),
            "_staged_commits: is not empty, so a catalog keeps the table's newest commits",
        ),
        (
            lambda table: delta_log(table, 3).write_text(
                '{"protocol":{"writerFeatures":["appendOnly","catalogManaged"]}}\n'
            ),
            "00000000000000000003.json, line 1: a catalog keeps the table's newest commits",
        ),
        (
            lambda table: delta_log(table, 3).write_bytes(delta_log(table, 2).read_bytes()[:-20]),
            "00000000000000000003.json, line 2: found a text of",
        ),
        (lambda table: delta_log(table, 3).touch(), "00000000000000000003.json, line 1: found an empty text"),
    ],
    ids=["newest gone", "gap", "cleaned up", "staged", "catalog", "cut off", "empty"],
)
def test_a_delta_log_that_does_not_say_enough_is_refused(damage, says, table, begun, assert_refused):
    delta = table("delta-4.0.0")
    damage(delta)
    assert_refused(begun, seek(begun, **discarding("delta", delta)), says)


def cleaned_up(table: Path, before: int) -> None:
    """Leave only a commit of another writer."""
    delta_log(table, before).write_text("{}\n")
    for version in range(before):
        delta_log(table, version).unlink()


def write(path: Path) -> None:
    path.parent.mkdir()
    path.touch()


def test_the_search_of_a_delta_log_ends(table, begun):
    delta = table("delta-4.0.0")
    for version in range(3, 1_004):
        delta_log(delta, version).write_text("{}\n")
    assert "the newest 1,000 commits have no batch" in seek(begun, **discarding("delta", delta)).refusals[0]


# Iceberg


def iceberg(table: Path, version: int = 4) -> Path:
    return table / "metadata" / f"v{version}.metadata.json"


def of_catalog(table: Path) -> Path:
    """Give the files the names of a catalog that is not Hadoop's."""
    for version in range(1, 5):
        iceberg(table, version).rename(table / f"metadata/{version - 1:05}-{uuid.uuid4()}.metadata.json")
    return table


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def test_the_newest_metadata_of_an_iceberg_table_count_in_every_catalog(table, begun, assert_refused):
    root = of_catalog(table("iceberg-1.10.1"))
    assert seek(begun, **discarding("iceberg", root)).refusals == ()
    (newest,) = (root / "metadata").glob("00003-*")
    other = newest.with_name("00003-11111111-2222-3333-4444-555555555555.metadata.json")
    other.write_text(newest.read_text().replace('epochId":"2"', 'epochId":"3"'))
    assert_refused(begun, seek(begun, **discarding("iceberg", root)), "has recorded batch 3")


def test_a_branch_of_an_iceberg_catalog_with_more_metadata_hides_no_batch(table, begun, assert_refused):
    root = table("iceberg-1.10.1")
    text = iceberg(root).read_text()
    (root / "metadata/v6.metadata.json").write_text(text)
    assert seek(begun, **discarding("iceberg", root)).refusals == ()
    iceberg(root, 5).write_text(text.replace('epochId":"2"', 'epochId":"3"'))
    assert_refused(begun, seek(begun, **discarding("iceberg", root)), "has recorded batch 3")


def test_metadata_of_an_iceberg_table_may_be_packed(table, begun):
    import gzip

    root = table("iceberg-1.10.1")
    for name, version in (("v5.gz.metadata.json", "2"), ("v6.metadata.json.gz", "3")):
        text = iceberg(root).read_text().replace('epochId":"2"', f'epochId":"{version}"')
        (root / "metadata" / name).write_bytes(gzip.compress(text.encode()))
        refusals = seek(begun, **discarding("iceberg", root)).refusals
        assert bool(refusals) == (version == "3")


def by_another_writer(metadata: dict[str, Any]) -> None:
    *_, newest = metadata["snapshots"]
    added = {
        "snapshot-id": 7,
        "parent-snapshot-id": newest["snapshot-id"],
        "summary": {"operation": "append"},
    }
    metadata["snapshots"].append(added)
    metadata["current-snapshot-id"] = 7


def expired(metadata: dict[str, Any]) -> None:
    by_another_writer(metadata)
    del metadata["snapshots"][:3]


def on_a_branch(metadata: dict[str, Any]) -> None:
    newest = metadata["snapshots"][-1]
    summary = newest["summary"] | {"spark.sql.streaming.epochId": "3"}
    metadata["snapshots"].append(newest | {"snapshot-id": 7, "summary": summary})


def test_snapshots_of_others_in_an_iceberg_table_are_passed_over(table, begun):
    root = table("iceberg-1.10.1")
    changed(iceberg(root), by_another_writer)
    assert seek(begun, **discarding("iceberg", root)).refusals == ()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda table: changed(iceberg(table), expired),
            "a snapshot that may belong to the query has expired",
        ),
        (lambda table: changed(iceberg(table), on_a_branch), "has recorded batch 3"),
        (lambda table: iceberg(table).unlink(), "has recorded no batch after 1"),
        (
            lambda table: changed(iceberg(table), lambda found: found.update({"format-version": 4})),
            "found 4 as",
        ),
        (lambda table: iceberg(table).write_bytes(iceberg(table).read_bytes()[:-9]), "the file is cut off"),
        (lambda table: (table / "metadata/latest.metadata.json").touch(), "a name that Iceberg does not use"),
        (
            lambda table: (table / "metadata/00000-1.metadata.json").touch(),
            "found the metadata of two tables or catalogs",
        ),
        (lambda table: iceberg(table, 5).write_bytes(b"\x1f\x8b\x08"), "found gzip that is cut off"),
    ],
    ids=["expired", "branch", "newest gone", "version", "cut off", "name", "catalogs", "gzip"],
)
def test_an_iceberg_table_that_does_not_say_enough_is_refused(damage, says, table, begun, assert_refused):
    root = table("iceberg-1.10.1")
    damage(root)
    assert_refused(begun, seek(begun, **discarding("iceberg", root)), says)


# Hudi


def newest_commit(table: Path) -> Path:
    return max(path for path in table.rglob("*.commit"))


@pytest.mark.parametrize("name", ["hudi-0.15.0", "hudi-1.1.1"])
def test_a_newer_batch_of_any_writer_of_a_hudi_table_counts(name, table, begun, assert_refused):
    root = table(name)
    path = newest_commit(root)
    data = path.read_bytes()
    assert b'"2' in data
    path.write_bytes(
        data.replace(b'"2', b'"3', 1) if name.endswith("1.1.1") else data.replace(b'"2\\', b'"3\\')
    )
    assert_refused(begun, seek(begun, **discarding("hudi", root)), "has recorded batch 3")


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        (
            "hudi-1.1.1",
            lambda table: properties(table, "layout.version=2", "layout.version=3"),
            "hoodie.properties: found 3 as hoodie.timeline.layout.version; expected 1 or 2",
        ),
        (
            "hudi-1.1.1",
            lambda table: properties(table, "layout.version=2", "x=2"),
            "hoodie.properties: found nothing as hoodie.timeline.layout.version",
        ),
        ("hudi-1.1.1", lambda table: cut(newest_commit(table), 1), "found Avro that is cut off"),
        ("hudi-1.1.1", lambda table: cut(newest_commit(table), 60), "found Avro that is cut off"),
        (
            "hudi-1.1.1",
            lambda table: replaced(newest_commit(table), b"HoodieCommitMeta", b"HoodieOtherXMeta"),
            "found Avro of another schema",
        ),
        (
            "hudi-1.1.1",
            lambda table: replaced(newest_commit(table), b"INSERT", b"_hudi_streaming_sink_checkpoint"),
            "found _hudi_streaming_sink_checkpoint 2 times; expected one key of that name",
        ),
        (
            "hudi-1.1.1",
            lambda table: replaced(
                newest_commit(table), b"Obj\x01\x02", b"Obj\x01\x04\x14avro.codec\x0edeflate"
            ),
            "found compressed Avro; expected it as Hudi writes it",
        ),
        ("hudi-0.15.0", lambda table: cut(newest_commit(table), 1), "the file is cut off"),
        ("hudi-0.15.0", lambda table: newest_commit(table).unlink(), "has recorded no batch after 1"),
    ],
    ids=[
        "layout",
        "no layout",
        "cut off",
        "cut in a text",
        "schema",
        "twice",
        "codec",
        "JSON cut off",
        "newest gone",
    ],
)
def test_a_hudi_table_that_does_not_say_enough_is_refused(name, damage, says, table, begun, assert_refused):
    root = table(name)
    damage(root)
    assert_refused(begun, seek(begun, **discarding("hudi", root)), says)


def properties(table: Path, old: str, new: str) -> None:
    path = table / ".hoodie/hoodie.properties"
    path.write_text(path.read_text().replace(old, new))


def cut(path: Path, most: int) -> None:
    path.write_bytes(path.read_bytes()[:-most])


def replaced(path: Path, old: bytes, new: bytes) -> None:
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))


def test_no_more_files_of_a_hudi_timeline_are_read_than_hudi_keeps(table, begun):
    root = table("hudi-1.1.1")
    for number in range(1_000):
        (root / f".hoodie/timeline/{number:017}_{number:017}.commit").touch()
    assert (
        "found 1,003 commits; expected at most 1,000" in seek(begun, **discarding("hudi", root)).refusals[0]
    )


def test_a_password_of_a_sink_is_not_shown():
    with pytest.raises(UsageError) as refused:
        CheckpointPolicy.parse(sink="kafka", sink_location="s3a://KEY:SeCrEt@lake/out")
    assert "SeCrEt" not in str(refused.value)
