import json

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, as_commits
from airflow_kafka_offsets.model.pipeline_plan import GROUPS_FILE, PipelinePlan, read_groups_file
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import Receipt

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOG = {A: LogRange(10, 100), B: LogRange(0, 50)}
REWIND = CheckpointPlan("seek", "/c", "975d5cb5", 7, before={"0": {A: 40, B: 9}}, after={"0": {A: 30, B: 5}})
GROUPS = [
    OffsetPlan.make("g", {A: 30}, as_commits({A: 20}), LOG),
    OffsetPlan.make("h", {B: 5}, {B: None}, LOG),
]


def test_the_commits_say_which_query_and_batch_they_go_with():
    metadata = CommitMetadata(dag="flights")
    assert PipelinePlan(GROUPS).stamp(metadata) == metadata
    assert PipelinePlan(GROUPS, REWIND).stamp(metadata) == CommitMetadata(
        "flights", query="975d5cb5", batch=7
    )


def test_the_receipt_has_the_checkpoints_part_and_its_name_in_each_groups_source():
    receipt = json.loads(json.dumps(PipelinePlan.combine(GROUPS, REWIND).make_receipt()))
    where = {"checkpoint": "/c", "query_id": "975d5cb5", "batch_id": 7}
    assert [group["source"] for group in receipt["groups"]] == [where, where]
    assert receipt["checkpoint"]["after"] == {"0": {"orders": {"0": 30, "1": 5}}}
    assert "checkpoint" not in PipelinePlan(GROUPS).make_receipt()


def test_the_receipt_names_connections_once_and_outside_airflow_none():
    ids = {"kafka_config_id": "kafka_eu", "checkpoint_conn_id": "lake"}
    receipt = PipelinePlan(GROUPS, provenance=ids).make_receipt(plan_only=True)
    assert {name: receipt[name] for name in ids} == ids
    for part in (*receipt["groups"], PipelinePlan(GROUPS).make_receipt()):
        assert not ids.keys() & part.keys()


@pytest.mark.parametrize("groups", [[], GROUPS[:1], GROUPS])
@pytest.mark.parametrize("plan_only", [False, True])
def test_a_plan_is_known_by_its_receipt_also_without_a_group(groups, plan_only):
    value = PipelinePlan(groups, REWIND).make_receipt(plan_only=plan_only)
    assert Receipt.parse(value).plan_only == plan_only


def test_a_refusal_of_either_part_refuses_both_and_is_given_once():
    refused = OffsetPlan.make("g", {B: 60}, as_commits({B: 1}), LOG)
    plan = PipelinePlan([refused], REWIND.with_group_plans([refused]))
    assert plan.refusals
    with pytest.raises(PlanRefusedError) as error:
        plan.check()
    assert len(error.value.refusals) == 1


def test_what_an_archive_keeps_of_the_groups_reads_back():
    images = PipelinePlan(GROUPS).archive_files()
    assert read_groups_file(images[GROUPS_FILE]) == (
        {"g": {A: 20}, "h": {B: None}},
        {"g": {A: 30}, "h": {B: 5}},
    )
    assert images["before.csv"].split() == ["g,orders,0,20"]
    assert PipelinePlan([]).archive_files() == {}


def test_a_plan_of_which_nothing_is_left_to_write_is_refused_with_what_was_left_alone():
    skipped = OffsetPlan.make("g", {A: 200}, as_commits({A: 20}), LOG, on_out_of_range="skip")
    plan = PipelinePlan([skipped])
    assert plan.is_empty
    assert plan.refusals
    with pytest.raises(PlanRefusedError, match="nothing is left to write: offset 200 of orders-0 is outside"):
        plan.check()
    may = PipelinePlan([skipped], may_be_empty=True).with_times({})
    assert not may.refusals
    may.check()
    some = PipelinePlan([skipped, GROUPS[1]])
    assert not some.refusals
    some.check()
