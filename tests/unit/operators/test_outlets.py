"""Which asset events a task sends: those of the groups that it has committed to."""

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType  # noqa: TID251
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetResult, ErrorResponse
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.plan import OffsetPlan, PartitionMove
from airflow_kafka_offsets.model.receipt import make_receipt
from airflow_kafka_offsets.operators.outlets import GroupOutlets, event_extra
from airflow_kafka_offsets.pipeline import KafkaPipeline

PIPELINES = [KafkaPipeline(group_id=f"orders-{number}") for number in range(40)]
ASSETS = [pipeline.asset for pipeline in PIPELINES]
REPORT = Asset("report", uri="s3://lake/report")


class TaskInstance:
    def __init__(self, map_index):
        self.map_index = map_index


def context(map_index=-1):
    return {"ti": TaskInstance(map_index), "outlet_events": OutletEventAccessors()}


@pytest.fixture
def supervisor(monkeypatch):
    """supervisor(answer) stands for what asks Airflow for the asset of a URI."""

    class Supervisor:
        def __init__(self, answer):
            self.send = lambda message: answer(message.uri)

    return lambda answer: monkeypatch.setattr(
        task_runner, "SUPERVISOR_COMMS", Supervisor(answer), raising=False
    )


def extra_of(*moves, group="orders-3", batch_id=None):
    return event_extra(make_receipt([OffsetPlan(group, moves)]), batch_id)


def move(group, batch_id=7):
    moved = PartitionMove(TopicPartition("orders", 0), 5, 8, LogRange(0, 9))
    return extra_of(moved, group=group, batch_id=batch_id)


def told(outlets, group_id, context, *committed):
    outlets.check_groups(context, "kafka_default", [group_id])
    outlets.set_events(context, "kafka_default", [move(group) for group in committed or (group_id,)])
    return outlets.outlets_with_events


def test_nothing_is_told_before_anything_is_committed():
    assert GroupOutlets([*ASSETS, REPORT]).outlets_with_events == [REPORT]


def test_forty_mapped_commits_tell_forty_events():
    events = [told(GroupOutlets(ASSETS), f"orders-{number}", context(number)) for number in range(40)]
    assert events == [[asset] for asset in ASSETS]


def test_an_event_has_the_totals_of_its_group():
    known = context()
    told(GroupOutlets([ASSETS[3]]), "orders-3", known)
    assert known["outlet_events"][ASSETS[3]].extra == {
        "version": 1,
        "group_id": "orders-3",
        "partitions": 1,
        "changed": 1,
        "moved_by": 3,
        "topics": {"orders": {"from": 5, "until": 8, "partitions": 1}},
        "batch_id": 7,
    }


def test_the_offsets_of_a_topic_are_summed_so_that_their_difference_is_the_records():
    orders, payments = "orders", "payments"
    extra = extra_of(
        PartitionMove(TopicPartition(orders, 0), 5, 8, LogRange(0, 9)),
        # Without a commit it is counted from the log start.
        PartitionMove(TopicPartition(orders, 1), None, 7, LogRange(2, 9)),
        PartitionMove(TopicPartition(payments, 0), 9, 4, LogRange(0, 9)),
    )
    assert extra["topics"] == {
        orders: {"from": 7, "until": 15, "partitions": 2},
        payments: {"from": 9, "until": 4, "partitions": 1},
    }
    assert extra["moved_by"] == sum(topic["until"] - topic["from"] for topic in extra["topics"].values())


def test_an_event_of_many_topics_has_the_totals_of_the_group_only():
    moves = [PartitionMove(TopicPartition(f"t{number}", 0), 0, 1, LogRange(0, 1)) for number in range(51)]
    assert len(extra_of(*moves[:50])["topics"]) == 50
    extra = extra_of(*moves)
    assert "topics" not in extra
    assert (extra["partitions"], extra["moved_by"]) == (51, 51)
    assert len(str(extra)) < 200


@pytest.mark.parametrize("map_index", [-1, None])
def test_the_asset_of_another_group_is_refused_where_the_task_is_not_mapped(map_index):
    with pytest.raises(
        PlanRefusedError, match="nothing was changed: outlets names kafka-group://.*/orders-4"
    ):
        told(GroupOutlets([ASSETS[3], ASSETS[4]]), "orders-3", context(map_index))


def test_a_group_of_the_task_that_has_nothing_to_commit_this_time_is_not_told():
    outlets = GroupOutlets(ASSETS[:2])
    outlets.check_groups(context(), "kafka_default", ["orders-0", "orders-1"])
    outlets.set_events(context(), "kafka_default", [move("orders-1")])
    assert outlets.outlets_with_events == [ASSETS[1]]


def test_an_alias_stands_for_the_groups_that_are_committed(supervisor):
    named = KafkaPipeline(group_id="orders-3", asset_name="orders of Asia").asset

    supervisor(
        lambda uri: (
            AssetResult(name=named.name, uri=uri, group="asset")
            if uri == named.uri
            else ErrorResponse(error=ErrorType.ASSET_NOT_FOUND)
        )
    )
    alias, run = AssetAlias("all orders"), context()
    outlets = GroupOutlets([alias])
    # A commit that finds its checkpoint moved begins again.
    for batch_id in (1, 2):
        moves = [move("orders-3", batch_id), move("orders-4", batch_id)]
        outlets.set_events(run, "kafka_default", moves)
    assert outlets.outlets_with_events == [alias]
    assert [event.extra["batch_id"] for event in run["outlet_events"][alias].asset_alias_events] == [2, 2]
    added = {
        event.dest_asset_key.name: event.extra for event in run["outlet_events"][alias].asset_alias_events
    }
    # By the name that the asset has; one that no DAG names gets its URI.
    assert {name: extra["group_id"] for name, extra in added.items()} == {
        "orders of Asia": "orders-3",
        "kafka-group://kafka_default/orders-4": "orders-4",
    }


def test_a_trouble_with_airflow_is_not_taken_for_an_asset_that_is_not_there(supervisor):
    supervisor(lambda uri: ErrorResponse(error=ErrorType.API_SERVER_ERROR))
    with pytest.raises(AirflowRuntimeError):
        told(GroupOutlets([AssetAlias("all orders")]), "orders-9", context())
