import json
from dataclasses import replace
from string import ascii_letters, ascii_lowercase, digits
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.checkpoint_plan import (
    CheckpointPlan,
    Step,
    read_sources,
    sources_json,
)
from airflow_kafka_offsets.model.checkpoint_policy import (
    QUIET_PERIOD,
    RECORDING_SINKS,
    CheckpointPolicy,
    Sink,
    parse_quiet_period,
)
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, LogRange, TopicPartition, as_commits
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.table import DELETED

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
PAID = TopicPartition("paid", 0)
BEFORE = {"0": {B: 7, A: 10}, "1": {PAID: 3}}
AFTER = {"0": {A: 4, B: 7}, "1": {PAID: 5}}

sources_of_offsets = st.dictionaries(
    st.text(f"{ascii_letters}{digits}_", min_size=1, max_size=12),
    st.dictionaries(
        st.builds(
            TopicPartition,
            st.text(f"{ascii_lowercase}{digits}_-", min_size=1, max_size=20),
            st.integers(0, 2**31 - 1),
        ),
        st.integers(0, MAX_OFFSET),
        min_size=1,
        max_size=5,
    ),
    max_size=3,
)


def checkpoint_plan(**changes):
    values: dict[str, Any] = {
        "kind": "seek",
        "location": "s3a://lake/cp",
        "query_id": "975d5cb5",
        "batch_id": 7,
        "before": BEFORE,
        "after": AFTER,
        "steps": (Step("offsets/7", b"v1"),),
        "file_contents": {"offsets/7": b"v1\n"},
        "archive": "0001-seek",
    }
    return CheckpointPlan(**(values | changes))


def line(table, *cells):
    return any(row.split() == list(cells) for row in table.splitlines())


# --- policy


def test_a_policy_allows_nothing_by_default_and_names_no_sink():
    nothing = CheckpointPolicy("fail", None, idempotent_sink=False, sink_location=None, allow_stateful=False)
    assert CheckpointPolicy() == CheckpointPolicy.parse("fail", None, False, None, False) == nothing


@pytest.mark.parametrize("nothing", ["", "None"])
def test_a_sink_that_a_template_left_empty_is_none_of_the_sinks(nothing):
    with pytest.raises(UsageError, match="sink="):
        CheckpointPolicy.parse("fail", nothing, None, False)


@pytest.mark.parametrize("sink", get_args(Sink))
def test_a_policy_is_read_from_texts(sink):
    location = "s3a://lake/out" if sink in RECORDING_SINKS else None
    expected = CheckpointPolicy("discard", sink, sink_location=location, allow_stateful=True)
    assert CheckpointPolicy.parse("discard", sink, "false", location, "true") == expected


@pytest.mark.parametrize("sink", ["kafka", "noop", None])
def test_a_location_of_a_sink_that_records_no_batches_is_refused_as_nobody_reads_it(sink):
    with pytest.raises(UsageError, match=f"sink_location='/out' would be ignored with sink={sink!r}"):
        CheckpointPolicy.parse("fail", sink, sink_location="/out")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            ("ignore", None, False, None, False),
            r"on_pending_batch='ignore': expected one of 'fail', 'discard'",
        ),
        (("", None, False, None, False), r"on_pending_batch='': expected one of"),
        ((None, None, False, None, False), r"on_pending_batch=None: expected one of"),
        (
            ("fail", "parquet", False, None, False),
            r"sink='parquet': expected 'kafka', 'noop', 'file' \(parquet, .*'delta', 'iceberg' or 'hudi'; "
            "for any other sink set idempotent_sink=True .*; otherwise only a seek",
        ),
        (("fail", "ForeachBatch", False, None, False), r"sink='ForeachBatch': expected 'kafka'"),
        (("fail", None, False, None, "no"), r"allow_stateful='no': expected true or false"),
        (("fail", None, False, None, None), r"allow_stateful=None: expected true or false"),
        (("fail", None, False, None, 1), r"allow_stateful=1: expected true or false"),
        (("fail", None, "yes", None, False), r"idempotent_sink='yes': expected true or false"),
        (("fail", "kafka", True, None, False), r"sink='kafka' and idempotent_sink are both given"),
    ],
)
def test_a_value_outside_its_choices_is_refused_with_the_choices(values, says):
    with pytest.raises(UsageError, match=says):
        CheckpointPolicy.parse(*values)


# --- plan


def test_a_table_shows_every_partition_of_every_source_and_its_change():
    table = checkpoint_plan().table()

    assert table.startswith("checkpoint s3a://lake/cp: moves (seek, batch 7)\n")
    assert line(table, "SOURCE", "TOPIC", "PARTITION", "FROM", "TO", "CHANGE")
    assert line(table, "0", "orders", "0", "10", "4", "-6")
    assert line(table, "0", "orders", "1", "7", "7", "+0")
    assert line(table, "1", "paid", "0", "3", "5", "+2")
    assert table.endswith("archive 0001-seek keeps the files that are overwritten")


def test_a_table_shows_the_times_of_the_log_where_they_are_known():
    table = checkpoint_plan(times={(A, 10): None, (A, 4): 1_767_268_800_000}).table()

    assert line(table, "SOURCE", "TOPIC", "PARTITION", "FROM", "TO", "CHANGE", "FROM-TIME", "TO-TIME")
    assert line(table, "0", "orders", "0", "10", "4", "-6", "end", "2026-01-01T12:00:00Z")
    assert line(table, "0", "orders", "1", "7", "7", "+0", "-", "-")


def test_a_table_names_the_unfinished_batches_that_go():
    assert "discarded: unfinished batch 8, 9" in checkpoint_plan(discarded=(8, 9)).table().splitlines()


def test_a_table_ends_with_notes_and_refusals_and_promises_no_archive_then():
    lines = checkpoint_plan(notes=("a note",), refusals=("one", "two")).table().splitlines()

    assert lines[-3:] == ["a note", "refused: one", "refused: two"]
    assert not any("archive" in text for text in lines)


def test_a_partition_that_a_truncated_batch_did_not_have_is_shown_without_an_offset():
    table = checkpoint_plan(kind="truncate", after={"0": {A: 4}}).table()

    assert table.startswith("checkpoint s3a://lake/cp: goes back from batch 7\n")
    assert line(table, "0", "orders", "1", "7", "-", "-")
    assert line(table, "1", "paid", "0", "3", "-", "-")


def test_a_table_shows_where_a_query_returns_to_that_goes_back_to_another_topic():
    table = checkpoint_plan(kind="restore", before={"0": {PAID: 3}}, after={"0": {A: 4}}).table()

    assert line(table, "0", "orders", "0", "-", "4", "-")
    assert line(table, "0", "paid", "0", "3", "-", "-")


def test_a_table_of_no_change_says_so():
    assert "stays as it is" in checkpoint_plan(steps=(), after=BEFORE, archive=None).table()
    assert "was moved by an earlier try" in checkpoint_plan(steps=()).table()


def test_a_table_of_a_refused_move_does_not_say_that_the_checkpoint_stays():
    table = checkpoint_plan(steps=(), archive=None, refusals=("outside",)).table(refused=True)
    assert table.startswith("checkpoint s3a://lake/cp (refused, not applied): would move (seek, batch 7)")


def test_a_receipt_says_what_was_not_done_as_asked_and_the_times_of_the_records():
    log = {A: LogRange(5, 100), B: LogRange(0, 50)}
    compared = OffsetPlan.make("0", {A: 1}, as_commits({A: 10, B: 7}), log, on_out_of_range="clamp")
    plan = replace(checkpoint_plan().with_group_plans([compared]), times={(A, 10): 0, (A, 4): DELETED})
    value = plan.make_receipt()
    assert (value["clamped"], value["skipped"], value["lost"]) == (
        {"0": {"orders": {"0": 1}}},
        {"0": {"orders": {"1": 7}}},
        4,
    )
    assert value["times"]["0"] == {
        "before": {"orders": {"0": "1970-01-01T00:00:00Z"}},
        "after": {"orders": {"0": "deleted"}},
    }


# --- receipt


def test_a_receipt_is_plain_json_without_the_content_of_files():
    assert checkpoint_plan(discarded=(8,)).make_receipt() == {
        "kind": "seek",
        "location": "s3a://lake/cp",
        "query_id": "975d5cb5",
        "batch_id": 7,
        "before": {"0": {"orders": {"0": 10, "1": 7}}, "1": {"paid": {"0": 3}}},
        "after": {"0": {"orders": {"0": 4, "1": 7}}, "1": {"paid": {"0": 5}}},
        "discarded": [8],
        "archive": "0001-seek",
        "logs": {"cluster": "", "topics": {}},
    }


@pytest.mark.parametrize("archive", ["0001-seek", None])
def test_a_receipt_reads_back(archive):
    part = json.loads(json.dumps(checkpoint_plan(archive=archive, discarded=(8,)).make_receipt()))

    kept = CheckpointPlan.parse(part)

    assert kept.make_receipt() == part
    assert (kept.before, kept.after) == (BEFORE, AFTER)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (5, "expected the checkpoint's part"),
        ("text", "expected the checkpoint's part"),
        ([1], "expected the checkpoint's part"),
        ({"location": None}, "expected the checkpoint's part"),
        ({"query_id": 5}, "expected the checkpoint's part"),
        ({"batch_id": "7"}, "expected the checkpoint's part"),
        ({"discarded": 8}, "expected the checkpoint's part"),
        ({"before": ...}, "expected the checkpoint's part"),
        ({"after": ...}, "expected the checkpoint's part"),
        ({"after": []}, r"receipt, checkpoint, after: found \[\]; expected offsets by source"),
        ({"before": None}, "receipt, checkpoint, before: found None; expected offsets by source"),
        ({"before": {"0": {"orders": {"0": -1}}}}, "receipt, checkpoint, before, 0: found -1"),
    ],
)
def test_a_damaged_part_of_a_receipt_is_refused(change, says):
    part = change
    if isinstance(change, dict):
        whole = checkpoint_plan().make_receipt() | change
        part = {name: value for name, value in whole.items() if value is not ...}

    with pytest.raises(OffsetsFormatError, match=says):
        Receipt.parse({"version": 1, "groups": [], "checkpoint": part})


@given(sources_of_offsets)
def test_offsets_of_sources_read_back_from_json(sources):
    assert read_sources(json.loads(json.dumps(sources_json(sources))), "x") == sources


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "x: found None; expected offsets by source"),
        ([], r"x: found \[\]; expected offsets by source"),
        ({"0": {}}, "x, 0: found"),
        ({"0": {"orders": {"0": 1}}, "1": {"orders": {"zero": 1}}}, "x, 1: found 'zero'"),
        ({"0": {"orders": {"0": None}}}, "x, 0: found no offset"),
        ({"0": "{"}, "x, 0: "),
    ],
)
def test_what_is_no_offsets_of_sources_is_refused_with_the_source(value, says):
    with pytest.raises(OffsetsFormatError, match=says):
        read_sources(value, "x")


def test_a_quiet_period_of_none_is_the_default_and_only_0_is_no_guard():
    assert parse_quiet_period(None) == QUIET_PERIOD
    assert parse_quiet_period(0) == 0
