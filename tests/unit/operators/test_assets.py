"""Which of its outlets a task sends an event for: those of the groups that it has committed to."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors
from written_query import Query

from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.usefixtures("memory")

REPORT = Asset("report", uri="s3://lake/report")


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic(1)
    produce(name, {0: 5})
    return name


@pytest.fixture
def orders(topic, new_group):
    return KafkaPipeline(group_id=new_group(), topics=[topic])


@pytest.fixture
def context(context):
    return context | {"outlet_events": OutletEventAccessors()}


def told(task, context):
    """The outlets that Airflow finds when the task has ended."""
    task.execute(context)
    return task.outlets


def commit(orders, outlets, offset=3, **parameters):
    offsets = {orders.topics[0]: {"0": offset}}
    return CommitOffsetsOperator(
        task_id="commit", offsets=offsets, outlets=outlets, **{**orders, **parameters}
    )


def test_a_commit_tells_its_groups_asset_with_the_totals_also_in_the_process_of_another_try(orders, context):
    task = commit(orders, [REPORT, orders.asset])
    assert told(task, context) == [REPORT, orders.asset]
    assert context["outlet_events"][orders.asset].extra["moved_by"] == 3
    assert told(task, context) == [REPORT, orders.asset]


def test_another_groups_asset_is_refused_before_the_commit(orders, new_group, broker, context):
    other = KafkaPipeline(group_id=new_group()).asset
    with pytest.raises(AirflowFailException, match=f"nothing was changed: outlets names {other.uri}"):
        commit(orders, [other]).execute(context)
    with pytest.raises(AirflowFailException, match="outlets names"):
        # The same name on another cluster.
        commit(orders, [KafkaPipeline(orders.group_id, kafka_config_id="kafka_dr").asset]).execute(context)
    assert broker.committed_everywhere(orders.group_id) == {}


def test_what_moves_nothing_tells_nothing(orders, context):
    named = {"outlets": [orders.asset, REPORT], **orders}
    commit(orders, []).execute(context)
    for task in (
        ResetOffsetsOperator(task_id="t", to_offset="earliest", plan_only=True, **named),
        PlanOffsetWindowOperator(task_id="t", **named),
    ):
        assert told(task, context) == [REPORT]


def test_a_reset_that_moves_the_group_tells_it(orders, context):
    commit(orders, []).execute(context)
    reset = ResetOffsetsOperator(task_id="t", to_offset="earliest", outlets=[orders.asset], **orders)
    assert told(reset, context) == [orders.asset]
    assert context["outlet_events"][orders.asset].extra["moved_by"] == -3


def test_a_drift_check_sends_no_event_for_its_group(orders, broker, context, tmp_path):
    query = Query(tmp_path / "checkpoint")
    query.run(0, {orders.topics[0]: {0: 3}})
    broker.commit(orders.group_id, {TopicPartition(orders.topics[0], 0): 3})
    pipeline = {**orders, "checkpoint_location": query.location}
    check = CheckOffsetDriftOperator(task_id="check", outlets=[REPORT, orders.asset], **pipeline)
    assert told(check, context) == [REPORT]
