"""Saved plans on a broker in memory: carried out exactly, finished, or refused."""

import json
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from memory_clients import open_client
from written_query import NEW_QUERY_ID, Query

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.estimate import Estimate
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.plan_markdown import plan_markdown
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.fleet import check_disjoint
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.saved import has_moved, plan_saved
from airflow_kafka_offsets.readings.estimate import estimate

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
GROUPS: dict[str, Any] = {"group_id": "g", "topics": "orders"}
TASK = CommitMetadata(run="r", task="t", token="a")


class Pipeline:
    """A group at 50 and 60, and a query that has read as far, if it has one."""

    def __init__(self, client, broker, root=None):
        self.client, self.broker, self.root = client, broker, root
        client.commit("g", {FIRST: 50, SECOND: 60})
        self.query = None
        if root is not None:
            self.query = Query(root)
            self.query.run(0, {"orders": {0: 20, 1: 20}})
            self.query.run(1, {"orders": {0: 50, 1: 60}})

    @property
    def checkpoint(self):
        return None if self.query is None else SparkCheckpoint(self.query.location)

    def plan(self, name="shift_by", value=-10, now=NOW, **how):
        location = None if self.query is None else self.query.location
        names = Names(**GROUPS, checkpoint_location=location)
        plan = plan_reset(
            self.client,
            self.checkpoint,
            GroupSelection.parse("g", "orders"),
            Place.parse(value, name),
            now=now,
            **how,
        )
        plan.check()
        saved = SavedPlan.make(plan.make_receipt(plan_only=True), names, CheckpointPolicy(), now=now)
        # As it comes through XCom, or out of a file.
        return SavedPlan.parse(json.loads(json.dumps(saved.value)))

    def carry_out(self, saved, by=TASK, now=NOW, **how):
        plan = plan_saved(self.client, self.checkpoint, saved, now=now, metadata=by, **how)
        return apply_pipeline(self.client, plan, replace(by, plan=saved.digest), self.checkpoint, 0)

    def at(self):
        groups = [*committed_offsets(self.client.committed("g", [FIRST, SECOND])).values()]
        return groups if self.query is None else (groups, list(self.query.stands().values()))


@pytest.fixture
def groups_only(client, broker):
    return Pipeline(client, broker)


@pytest.fixture
def with_checkpoint(client, broker, tmp_path):
    return Pipeline(client, broker, tmp_path / "checkpoint")


@pytest.fixture(params=["groups_only", "with_checkpoint"])
def pipeline(request):
    return request.getfixturevalue(request.param)


def both(pipeline, *offsets):
    return list(offsets) if pipeline.query is None else (list(offsets), list(offsets))


def test_a_saved_plan_moves_to_its_offsets_and_its_receipt_names_it(pipeline):
    saved = pipeline.plan()
    receipt = pipeline.carry_out(saved)
    assert pipeline.at() == both(pipeline, 40, 50)
    assert receipt["before"] == {"orders": {"0": 50, "1": 60}}
    assert (receipt["plan"], receipt["plan_only"], receipt["verified"]) == (saved.digest, False, True)
    assert (receipt["source"]["shift_by"], receipt["source"]["plan"]) == (-10, saved.digest)
    made = CommitMetadata.parse(pipeline.client.committed("g", [FIRST])[FIRST].metadata)
    assert (made.plan, made.run) == (saved.digest, "r")


def test_a_latest_that_was_planned_is_not_evaluated_again(pipeline):
    saved = pipeline.plan("to_offset", "latest")
    pipeline.broker.append("orders", 0, range(10))
    pipeline.carry_out(saved)
    assert pipeline.at() == both(pipeline, 100, 100)


def test_the_same_move_has_the_same_digest_whenever_it_is_planned_and_another_one_has_another(pipeline):
    first = pipeline.plan()
    assert pipeline.plan("to_offset", {"orders": {"0": 40, "1": 50}}).digest == first.digest
    assert pipeline.plan(now=NOW + timedelta(hours=1)).digest == first.digest
    assert pipeline.plan("shift_by", -11).digest != first.digest


def test_a_log_start_that_has_moved_and_holds_every_target_does_not_matter(pipeline):
    saved = pipeline.plan()
    pipeline.broker.delete_records("orders", 0, 40)
    pipeline.carry_out(saved)
    assert pipeline.at() == both(pipeline, 40, 50)


def test_a_target_that_retention_has_deleted_is_refused(pipeline):
    saved = pipeline.plan()
    pipeline.broker.delete_records("orders", 0, 41)
    with pytest.raises(PlanRefusedError, match="offset 40 of orders-0 is outside its log.*; plan again$"):
        pipeline.carry_out(saved)
    assert pipeline.at() == both(pipeline, 50, 60)


def test_a_topic_that_is_gone_is_no_reason_for_a_parameter_that_a_plan_does_not_take(pipeline):
    saved = pipeline.plan()
    pipeline.broker.delete_topic("orders")
    with pytest.raises(PlanRefusedError, match="correct the connection, or plan again$"):
        pipeline.carry_out(saved)


def test_a_group_that_has_moved_since_is_refused_and_the_text_says_where_and_by_whom(pipeline):
    saved = pipeline.plan()
    pipeline.client.commit("g", {SECOND: 61}, CommitMetadata(run="other", dag="d").text())
    with pytest.raises(
        PlanRefusedError,
        match=r"'g' has changed on orders-1 \(orders-1: 60 when the plan was made, 61 now, by run other",
    ):
        pipeline.carry_out(saved)


def test_a_group_that_was_at_the_target_already_by_other_hands_is_refused(groups_only):
    saved = groups_only.plan()
    groups_only.client.commit("g", {FIRST: 40})
    with pytest.raises(PlanRefusedError, match="has changed on orders-0"):
        groups_only.carry_out(saved)


def truncate(pipeline):
    plan = plan_truncate(pipeline.checkpoint, 0, CheckpointPolicy(idempotent_sink=True))
    apply_checkpoint_plan(pipeline.checkpoint, plan, quiet_period=0)


def replace_query(pipeline):
    Query(pipeline.root, NEW_QUERY_ID)


def move_by_another_run(pipeline):
    pipeline.carry_out(pipeline.plan("shift_by", -1), CommitMetadata(run="other"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda it: it.query.run(2, {"orders": {0: 50, 1: 60}}), "newest finished batch is 2, and was 1"),
        (lambda it: it.query.plan(2, {"orders": {0: 70, 1: 70}}), "unfinished batches are 2, and were none"),
        (truncate, "batch is 0, and was 1 .*: batches were removed since then"),
        (replace_query, "the checkpoint was replaced"),
        (move_by_another_run, "was moved after the plan was made, and has other offsets on orders-0"),
    ],
    ids=["a-batch-was-finished", "a-batch-was-begun", "truncated", "replaced", "moved-by-another-run"],
)
def test_a_checkpoint_that_has_changed_since_is_refused(with_checkpoint, change, says):
    saved = with_checkpoint.plan()
    change(with_checkpoint)
    at = with_checkpoint.query.files(), with_checkpoint.at()
    with pytest.raises(PlanRefusedError, match=says):
        with_checkpoint.carry_out(saved)
    assert (with_checkpoint.query.files(), with_checkpoint.at()) == at


def test_a_topic_that_was_created_again_is_refused(pipeline):
    saved = pipeline.plan()
    pipeline.broker.create("orders", 2)
    for tp in (FIRST, SECOND):
        pipeline.broker.append("orders", tp.partition, range(100))
    pipeline.client.commit("g", {FIRST: 50, SECOND: 60})
    with pytest.raises(
        PlanRefusedError, match="topic 'orders' was deleted and created again.*s; plan again$"
    ):
        pipeline.carry_out(saved)


def test_another_cluster_is_refused(pipeline):
    saved = pipeline.plan()
    pipeline.broker.cluster_id = "another"
    pipeline.client = open_client(pipeline.broker)
    with pytest.raises(
        PlanRefusedError, match="is of cluster cluster-in-memory, and the connection leads to"
    ):
        pipeline.carry_out(saved)


def test_a_plan_that_is_too_old_is_refused_unless_it_was_begun(groups_only):
    saved, later = groups_only.plan(), NOW + timedelta(days=2)
    with pytest.raises(PlanRefusedError, match="was made 2 d ago, and max_age is 1 d"):
        groups_only.carry_out(saved, now=later)
    groups_only.client.commit("g", {FIRST: 40}, CommitMetadata(plan=saved.digest).text())
    receipt = groups_only.carry_out(saved, now=later)
    assert groups_only.at() == [40, 50]
    assert receipt["before"] == {"orders": {"0": 50, "1": 60}}


@pytest.mark.parametrize("by", [TASK, CommitMetadata(tool="group reset")])
def test_a_plan_that_was_interrupted_between_checkpoint_and_group_is_finished_by_anybody(
    with_checkpoint, by, killed
):
    saved = with_checkpoint.plan()
    with killed():
        with_checkpoint.carry_out(saved)
    assert with_checkpoint.at() == ([50, 60], [40, 50])
    receipt = with_checkpoint.carry_out(saved, by, now=NOW + timedelta(days=9))
    assert with_checkpoint.at() == both(with_checkpoint, 40, 50)
    assert receipt["before"] == {"orders": {"0": 50, "1": 60}}
    assert receipt["checkpoint"]["before"] == {"0": {"orders": {"0": 50, "1": 60}}}


@pytest.mark.parametrize("committed", [[FIRST], [FIRST, SECOND]])
def test_a_plan_whose_checkpoint_is_at_the_target_already_is_finished_after_its_group_was_written(
    with_checkpoint, committed
):
    with_checkpoint.client.commit("g", {FIRST: 20, SECOND: 20})
    saved = with_checkpoint.plan("to_offset", {"orders": {"0": 50, "1": 60}})
    made = replace(TASK, plan=saved.digest).text()
    with_checkpoint.client.commit("g", {tp: saved.targets["g"][tp] for tp in committed}, made)
    receipt = with_checkpoint.carry_out(saved)
    assert with_checkpoint.at() == both(with_checkpoint, 50, 60)
    assert receipt["before"] == {"orders": {"0": 20, "1": 20}}


def test_it_is_unknown_whether_a_plan_has_moved_a_group_that_others_have_committed_since(pipeline):
    pipeline.client.commit("g", {FIRST: 20, SECOND: 20})
    saved = pipeline.plan("to_offset", {"orders": {"0": 50, "1": 60}})
    receipt = pipeline.carry_out(saved)
    pipeline.client.commit("g", {FIRST: 70, SECOND: 70}, CommitMetadata(run="other").text())
    with pytest.raises(PlanRefusedError, match="so it is unknown whether the plan has moved it"):
        has_moved(pipeline.client, pipeline.checkpoint, Receipt.parse(receipt))


def test_a_plan_that_was_carried_out_is_not_carried_out_twice(pipeline):
    saved = pipeline.plan()
    first = pipeline.carry_out(saved)
    second = pipeline.carry_out(saved, CommitMetadata(tool="group reset"))
    assert second["before"] == first["before"]
    assert pipeline.at() == both(pipeline, 40, 50)
    # Once the query has gone on, it is over.
    if pipeline.query is not None:
        pipeline.query.run(2, {"orders": {0: 70, 1: 70}})
    pipeline.client.commit("g", {FIRST: 70, SECOND: 70})
    with pytest.raises(PlanRefusedError, match="is no longer valid"):
        pipeline.carry_out(saved, CommitMetadata(tool="group reset"))


def test_a_new_plan_of_a_task_that_has_moved_before_begins_where_it_was_made(with_checkpoint):
    with_checkpoint.carry_out(with_checkpoint.plan())
    with_checkpoint.carry_out(with_checkpoint.plan(), replace(TASK, token="b"))
    assert with_checkpoint.at() == both(with_checkpoint, 30, 40)


def test_a_plan_that_was_changed_is_refused(pipeline):
    value = json.loads(json.dumps(pipeline.plan().value))
    value["after"]["orders"]["0"] = 0
    with pytest.raises(OffsetsFormatError, match="the plan was changed after it was made"):
        SavedPlan.parse(value)


def test_two_plans_of_a_fleet_do_not_move_the_same_checkpoint_or_partition(pipeline):
    saved = pipeline.plan()
    what = f"checkpoint {pipeline.query.location}" if pipeline.query else "orders-0 of group g"
    with pytest.raises(PlanRefusedError, match=f"two pipelines move {what}: give them one entry"):
        check_disjoint([saved, saved])
    receipt = replace(saved.receipt, checkpoint=None)
    same = replace(saved, names=saved.names._replace(kafka_config_id="other"), receipt=receipt)
    with pytest.raises(PlanRefusedError, match="two pipelines move orders-0 of group g"):
        check_disjoint([saved, same])
    groups = tuple(replace(each, log_ids=LogIds("other")) for each in same.groups)
    check_disjoint([saved, replace(same, receipt=replace(receipt, groups=groups))])


@pytest.mark.parametrize("mirror", ["standby", {"topics": ["orders"]}, {"prefix": 3}])
def test_a_mirror_that_was_edited_by_hand_is_refused(groups_only, mirror):
    value = json.loads(json.dumps(groups_only.plan().value))
    value["names"]["mirror"] = mirror
    with pytest.raises(OffsetsFormatError, match=r"names\.mirror.*expected"):
        SavedPlan.parse(value)
    value["names"]["mirror"] = {"prefix": "primary."}  # as the command line saves it
    SavedPlan.parse(value)


@pytest.mark.parametrize("times", [3, {"before": 3}, {"before": {"orders": []}, "after": None}])
def test_a_plan_with_times_that_were_edited_by_hand_is_shown_without_them(groups_only, times):
    value = {**groups_only.plan().value, "times": times, "estimate": Estimate(10, 0, 10, 10).as_json()}
    assert "| From | unknown |" in plan_markdown(SavedPlan.parse(value))


def test_a_plan_with_a_checkpoint_is_refused_for_a_task_that_names_none(with_checkpoint, groups_only):
    (refusal,) = with_checkpoint.plan().name_refusals("g", None)
    assert "checkpoint_location is missing" in refusal
    assert groups_only.plan().name_refusals("g", None) == []


def test_a_plan_fits_a_task_that_spells_its_location_otherwise(with_checkpoint):
    saved = with_checkpoint.plan()
    assert saved.name_refusals("g", f"file:{saved.checkpoint.location}/") == []
    assert "the plan moves" in saved.name_refusals("g", f"{saved.checkpoint.location}2")[0]


@pytest.mark.parametrize(
    "value", ["", "[]", "{}", {"plan_only": True}, {"digest": "x", "plan_only": True}, None, 3]
)
def test_what_is_no_plan_is_refused(value):
    with pytest.raises(OffsetsFormatError, match="expected"):
        SavedPlan.parse(value)


def test_partitions_that_were_left_alone_stay_so_and_the_receipt_names_them(pipeline):
    saved = pipeline.plan("to_offset", {"orders": {"0": 40, "1": 101}}, on_out_of_range="skip")
    receipt = pipeline.carry_out(saved)
    assert pipeline.at() == both(pipeline, 40, 60)
    assert receipt["skipped"] == {"orders": {"1": 60}}


def test_the_estimate_of_a_query_that_reads_a_topic_twice_counts_both_sources(client, tmp_path):
    query = Query(tmp_path / "checkpoint")
    query.run(0, {"orders": {0: 20, 1: 20}}, {"orders": {0: 20, 1: 20}})
    query.run(1, {"orders": {0: 90, 1: 90}}, {"orders": {0: 40, 1: 40}})
    client.commit("first", {FIRST: 90, SECOND: 90})
    client.commit("second", {FIRST: 40, SECOND: 40})
    checkpoint, groups = SparkCheckpoint(query.location), {"source:0": "first", "source:1": "second"}
    plan = plan_reset(client, checkpoint, GroupSelection.parse(groups), Place.parse(30, "to_offset"), now=NOW)
    found = estimate(client, plan, checkpoint)
    assert (found.records_again, found.lag, found.partition_lag) == (2 * (60 + 10), 4 * 70, 70)


def test_the_estimate_has_the_pace_of_the_finished_batches(client, tmp_path):
    query, at = Query(tmp_path / "checkpoint"), int(NOW.timestamp())
    for batch in range(6):
        query.run(batch, {"orders": {0: 15 * (batch + 1)}}, at=at)
        for directory, written in (("offsets", at), ("commits", at + 5)):
            os.utime(query.root / directory / str(batch), (written, written))
    client.commit("g", {FIRST: 90})
    checkpoint, group = SparkCheckpoint(query.location), GroupSelection.parse("g", "orders:0")
    plan = plan_reset(client, checkpoint, group, Place.parse(10, "to_offset"), now=NOW)
    found = estimate(client, plan, checkpoint)
    assert found.seconds is not None
    assert found.seconds.most == pytest.approx(found.lag * 5 / 15)
