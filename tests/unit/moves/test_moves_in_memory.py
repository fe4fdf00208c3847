"""The writer on a broker in memory: what is committed over, what is kept, what is refused."""

from datetime import datetime, timezone

import pytest
from memory_clients import open_client
from written_query import NEW_QUERY_ID

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    CheckpointError,
    CommitProgress,
    GroupActiveError,
    GroupMovedError,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.apply import apply_groups, apply_pipeline
from airflow_kafka_offsets.moves.groups import plan_group_resets
from airflow_kafka_offsets.moves.reset import plan_reset
from airflow_kafka_offsets.moves.write import commit_groups, delete_groups

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)


def holds(client, group="g"):
    return [*committed_offsets(client.committed(group, [FIRST, SECOND])).values()]


def plan_to(client, offset, group="g"):
    scenario = Place.parse({"orders": {"0": offset, "1": offset}}, "to_offset")
    return PipelinePlan(plan_group_resets(client, {group: TopicScope()}, scenario, now=NOW))


def test_a_reset_is_committed_and_its_receipt_has_what_was_there(client):
    client.commit("g", {FIRST: 50, SECOND: 60})
    receipt = apply_groups(client, plan_to(client, 20), CommitMetadata(run="r"))
    assert holds(client) == [20, 20]
    assert receipt["before"] == {"orders": {"0": 50, "1": 60}}
    made = CommitMetadata.parse(client.committed("g", [FIRST])[FIRST].metadata)
    assert made == CommitMetadata(run="r", partitions=2, cluster=client.cluster_id(), topic="orders-id-1")


def test_a_group_that_was_committed_since_the_plan_stays_where_it_is(client):
    client.commit("g", {FIRST: 50, SECOND: 50})
    plan = plan_to(client, 20)
    client.commit("g", {SECOND: 51}, CommitMetadata(run="other").text())
    with pytest.raises(GroupMovedError, match=r"orders-1 while its move .* \(by run other\)"):
        apply_groups(client, plan, CommitMetadata())
    assert holds(client) == [50, 51]


@pytest.mark.parametrize(("which", "lacking"), [("pipeline", "orders"), ("two_groups", "refunds")])
def test_a_right_that_is_missing_on_a_topic_is_found_before_the_first_write(which, lacking, request, broker):
    moved = request.getfixturevalue(which)
    before = moved.query.files(), moved.at()
    topics = [("topic", topic, "Describe" if topic == lacking else "Read") for topic in ("orders", "refunds")]
    client = open_client(broker, [("group", "*", "Read"), *topics])
    plan = plan_reset(client, moved.checkpoint, moved.group, Place.parse(20, "to_offset"), now=NOW)
    for apply in (
        lambda: apply_pipeline(client, plan, CommitMetadata(), moved.checkpoint, 0),
        lambda: apply_groups(client, PipelinePlan(plan.group_plans), CommitMetadata()),
    ):
        with pytest.raises(BrokerAuthenticationError, match="grant it Read on the topics; nothing was"):
            apply()
        assert (moved.query.files(), moved.at()) == before


def test_nothing_is_written_where_the_plan_of_one_group_is_refused(client):
    client.commit("g", {FIRST: 50, SECOND: 50})
    with pytest.raises(PlanRefusedError, match="outside its log, which holds 0 to 100"):
        apply_groups(client, plan_to(client, 101), CommitMetadata())
    assert holds(client) == [50, 50]


def test_an_error_says_which_groups_were_written(client, broker):
    for group in ("a", "b"):
        client.commit(group, {FIRST: 50, SECOND: 50})
    plans = PipelinePlan([*plan_to(client, 20, "a").group_plans, *plan_to(client, 20, "b").group_plans])
    broker.join("b", "m", "reader", ("orders",))
    with pytest.raises(
        GroupActiveError, match="written before: group a; run the task or command again to finish the rest"
    ) as raised:
        apply_groups(client, plans, CommitMetadata())
    assert raised.value.progress == CommitProgress("b", ("a",))
    assert holds(client, "a") == [20, 20]
    assert holds(client, "b") == [50, 50]


def test_an_error_after_the_first_group_does_not_say_that_nothing_was_changed(client):
    def write(_, plan, __):
        if plan.group_id == "b":
            raise PlanRefusedError("the group has moved")

    plans = [*plan_to(client, 20, "a").group_plans, *plan_to(client, 20, "b").group_plans]
    with pytest.raises(PlanRefusedError, match="^the group has moved; written before: group a"):
        commit_groups(client, plans, CommitMetadata(), write)
    with pytest.raises(PlanRefusedError, match="^nothing was changed: the group has moved$"):
        commit_groups(client, plans[1:], CommitMetadata(), write)


def test_groups_are_saved_before_they_are_deleted_and_read_back(client):
    client.commit("g", {FIRST: 50})
    saved = []
    found = delete_groups(
        client, {"g": {FIRST: 50}, "none": {}}, lambda kept: saved.append((kept, holds(client)))
    )
    assert saved == [({"g": {FIRST: 50}, "none": {}}, [50, None])]
    assert found == {"g": None, "none": None}
    assert holds(client) == [None, None]


def test_a_checkpoint_is_not_taken_back_without_its_group_if_the_file_with_its_offsets_is_lost(pipeline):
    pipeline.reset(20, CommitMetadata(tool="group reset"))
    (pipeline.query.root / "_kafka_offsets" / "0001-seek" / "groups.json").unlink()
    with pytest.raises(CheckpointError, match=r"0001-seek/groups.json: is gone .*\(before.csv has their"):
        pipeline.take_back("0001-seek")
    assert pipeline.at() == [20] * 4


def test_a_group_that_follows_another_query_than_the_checkpoint_is_named_in_the_plan(pipeline, client):
    other = CommitMetadata(query=NEW_QUERY_ID, batch=7).text()
    client.commit("g", {SECOND: 90}, other)
    place = Place.parse("earliest", "to_offset")
    plan = plan_reset(client, pipeline.checkpoint, pipeline.group, place, now=NOW)
    assert plan.refusals == []  # a new query may take the group's position over
    assert plan.group_plans[0].notes == (
        "the last commit is of another query, and not of the checkpoint's: correct the name of the group or "
        "the location of the checkpoint, unless this query replaces that one: orders-1",
    )
