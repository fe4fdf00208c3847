import json
from dataclasses import replace

import pytest

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, as_commits
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import Receipt, check_restorable, make_receipt, outcome_lines

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOG = {A: LogRange(10, 100), B: LogRange(0, 50)}
IDS = LogIds("cluster", {"orders": "id"})


def make(group, targets):
    return OffsetPlan.make(
        group, targets, as_commits({A: 20, B: None}), LOG, source={"checkpoint": "/c"}, log_ids=IDS
    )


def test_the_receipt_is_plain_json_that_reads_back():
    plan = make("g", {A: 30, B: 50})
    value = json.loads(json.dumps(make_receipt([plan])))
    assert value["version"] == 1
    assert value["before"] == {"orders": {"0": 20, "1": None}}
    assert value["after"] == {"orders": {"0": 30, "1": 50}}
    assert value["log_start"] == {"orders": {"0": 10, "1": 0}}
    assert value["log_end"] == {"orders": {"0": 100, "1": 50}}
    assert value["changed"] == 2
    assert value["source"] == {"checkpoint": "/c"}
    assert Receipt.parse(value).log_ids == IDS
    (read,) = Receipt.parse(value).groups
    assert (read.group_id, read.before, read.after) == ("g", plan.before, plan.after)


def test_a_receipt_of_several_groups_keeps_them_apart():
    plans = [make("g", {A: 30}), make("h", {B: 5})]
    value = json.loads(json.dumps(make_receipt(plans, verified=True)))
    assert value["changed"] == 2
    assert [group.group_id for group in Receipt.parse(value).groups] == ["g", "h"]


def test_a_receipt_says_what_was_not_done_as_asked_and_the_times_of_the_records():
    plan = OffsetPlan.make("g", {A: 4}, as_commits({A: 20, B: None}), LOG, on_out_of_range="clamp")
    value = json.loads(json.dumps(make_receipt([replace(plan, times={(A, 20): None, (A, 10): 0})])))
    assert (value["clamped"], value["lost"]) == ({"orders": {"0": 4}}, 6)
    assert value["skipped"] == {"orders": {"1": None}}
    assert value["times"] == {
        "before": {"orders": {"0": "end"}},
        "after": {"orders": {"0": "1970-01-01T00:00:00Z"}},
    }
    assert make_receipt([plan, plan])["lost"] == 12


def test_an_old_receipt_reads_back():
    value = make_receipt([make("g", {A: 30})])
    for name in ("skipped", "clamped", "lost"):
        del value[name]
    assert Receipt.parse(value).groups[0].after == {A: 30}


def test_a_receipt_of_10000_partitions_that_did_not_move_as_asked_stays_small():
    at = {TopicPartition("orders", number): 5 for number in range(10_000)}
    logs = dict.fromkeys(at, LogRange(1_000, 2_000))
    plan = OffsetPlan.make("g", at, as_commits(at), logs, on_out_of_range="clamp")
    times = {(tp, offset): 1_772_344_800_000 for tp in at for offset in (5, 1_000)}
    assert len(json.dumps(make_receipt([replace(plan, times=times)]))) < 1_000_000


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (
            make_receipt([make("g", {A: 30, B: 5})]),
            [
                "group g: 2 partitions committed and read back (orders-0, orders-1), 2 changed, "
                "moved by +15 offsets"
            ],
        ),
        (
            make_receipt([make("g", {}), make("h", {})]),
            ["group g: nothing was committed", "group h: nothing was"],
        ),
        (
            {"checkpoint": {"location": "/c", "kind": "seek", "archive": "0001-seek"}, "groups": []},
            ["checkpoint /c was moved (seek) and read back; archive 0001-seek"],
        ),
        (
            {"checkpoint": {"location": "/c", "kind": "seek", "archive": None}, "groups": []},
            ["checkpoint /c was not changed"],
        ),
    ],
)
def test_what_was_done_is_said_in_the_past_tense(value, lines):
    for found, line in zip(outcome_lines(value), lines, strict=True):
        assert found.startswith(line)


def test_a_receipt_of_a_later_version_is_not_guessed_at():
    value = make_receipt([make("g", {A: 30})])
    with pytest.raises(OffsetsFormatError, match="expected a receipt of version 1"):
        Receipt.parse({**value, "version": 2})


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"version": 1},
        {"version": 1, "groups": [3]},
        {"version": 1, "groups": []},
        {"version": 1, "groups": [], "checkpoint": None},
        # The report of a drift check, or another result: a restore would end well and restore nothing.
        {"version": 1, "group_id": "g", "partitions": []},
        {"version": 1, "group_id": "g", "before": None, "after": {"orders": {"0": 1}}},
        {"version": 1, "drifted": False, "groups": [{"version": 1, "group_id": "g", "drifted": False}]},
        "x",
    ],
)
def test_what_is_no_receipt_is_refused(value):
    with pytest.raises(OffsetsFormatError, match="receipt"):
        Receipt.parse(value)


def test_a_move_of_which_the_receipt_could_not_be_read_back_is_refused():
    at = {TopicPartition("orders", number): 5 for number in range(1_000)}
    logs = dict.fromkeys(at, LogRange(0, 10))
    plans = [OffsetPlan.make(f"g{number}", at, as_commits(at), logs, source={}) for number in range(60)]
    with pytest.raises(PlanRefusedError, match="60,000 partitions are too many .* name fewer groups"):
        check_restorable(plans)
    with pytest.raises(OffsetsFormatError):
        load_json(json.dumps(make_receipt(plans)), "receipt")


def test_a_move_of_40000_partitions_can_be_restored():
    at = {TopicPartition("orders", number): 5 for number in range(40_000)}
    plan = OffsetPlan.make("g", at, as_commits(at), dict.fromkeys(at, LogRange(0, 10)), source={})
    check_restorable([plan])
    assert Receipt.parse(load_json(json.dumps(make_receipt([plan])), "receipt")).groups[0].before == at
