"""Many pipelines as one: what is written down of them."""

import json
from dataclasses import replace

import pytest

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.fleet import Fleet, Refused
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan


def plan(group, to=40):
    receipt = {
        "version": 1,
        "group_id": group,
        "before": {"orders": {"0": 50}},
        "after": {"orders": {"0": to}},
        "logs": {"cluster": "c", "topics": {"orders": "t"}},
    }
    return SavedPlan.make(receipt, Names(group), CheckpointPolicy())


@pytest.fixture
def fleet():
    return Fleet.of([plan("a"), plan("b"), plan("c")])


def test_a_fleet_reads_back_as_it_was_written(fleet):
    fleet = fleet.with_member(1, stage="applied", receipt={"version": 1}, error=None)
    fleet = replace(fleet.with_member(2, error="the broker was away"), refused=(Refused("d", "no mirror"),))
    again = Fleet.parse(json.loads(json.dumps(fleet.as_json())), "file")
    assert again == fleet == Fleet.parse(json.loads(fleet.as_text()), "file")
    assert [member.name for member in again.begun] == ["b"]


def test_the_digest_is_of_all_plans_in_whatever_order():
    plans = [plan("a"), plan("b")]
    assert Fleet.of(plans).digest == Fleet.of(plans[::-1]).digest
    assert Fleet.of(plans).digest != Fleet.of([plan("a"), plan("b", 41)]).digest
    assert Fleet.of(plans[:1]).digest == plans[0].digest


def test_how_far_it_has_come_does_not_change_the_digest(fleet):
    assert fleet.with_member(0, stage="applying").digest == fleet.digest


@pytest.mark.parametrize("expected", ["00000000", "", "abc"])
def test_another_digest_is_refused_and_so_is_a_short_one(fleet, expected):
    with pytest.raises(PlanRefusedError, match="at least 8 digits"):
        fleet.check_digest(expected)
    with pytest.raises(PlanRefusedError, match="at least 8 digits"):
        fleet.check_digest(fleet.digest[:7])
    fleet.check_digest(fleet.digest[:8])


def change(value, **changes):
    return {**value, **changes}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda value: [],
        lambda value: change(value, version=2),
        lambda value: change(value, pipelines=[]),
        lambda value: change(value, pipelines="abc"),
        lambda value: change(value, pipelines=value["pipelines"][:2]),
        lambda value: change(value, digest="0"),
        lambda value: change(value, refused=[{"pipeline": "d"}]),
        lambda value: change(value, refused=3),
        lambda value: change(value, pipelines=[{**value["pipelines"][0], "stage": "done"}]),
        lambda value: change(value, pipelines=[{**value["pipelines"][0], "receipt": 3}]),
        lambda value: change(value, pipelines=[{**value["pipelines"][0], "error": {}}]),
    ],
)
def test_what_is_no_recovery_or_was_changed_is_refused(fleet, wrong):
    with pytest.raises(OffsetsFormatError, match="file.*: found .*; expected|the file was changed after"):
        Fleet.parse(wrong(fleet.as_json()), "file")
