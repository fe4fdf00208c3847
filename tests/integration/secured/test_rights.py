"""Each move and wait needs just the rights that the documentation has for it."""

from collections.abc import Callable
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset
from interval_runs import FakeAirflow
from rights import each_lacking, is_named, rights_of, rights_table
from secured_kafka import PASSWORD

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator
from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.readings.missing_records import find_missing
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor

pytestmark = pytest.mark.integration

PAST = "2020-01-01T00:00:00Z"


def lag(pipeline, context, **parameters):
    thresholds = parameters or {"max_lag": 9}
    sensor = ConsumerGroupLagSensor(task_id="t", **pipeline.names, **thresholds)
    reading = sensor.execute(context)
    assert reading is not None
    assert reading["total_lag"] == 9


def time_lag(pipeline, context):
    # Records that are late enough to count are read for their times.
    sensor = ConsumerGroupLagSensor(task_id="t", max_time_lag=0.001, **pipeline.names)
    reading = sensor.poke(context).xcom_value
    assert reading is not None
    assert reading["time_lag"]
    sensor._close()


def reached(pipeline, context):
    target = {pipeline.topic: {"0": 1}}
    sensor = OffsetsReachedSensor(task_id="t", target=target, group_id=pipeline.group)
    assert sensor.execute(context)["reached"]


def topic_reached(pipeline, context):
    sensor = TopicReachedSensor(task_id="t", target=PAST, topics=[pipeline.topic])
    assert sensor.execute(context)["reached"]


def completed_intervals(pipeline, context):
    task = CompletedIntervalsOperator(
        task_id="t", outlets=[Asset("hours")], start_from=PAST, max_intervals=1, **pipeline.names
    )
    FakeAirflow().run(task, "run")


def drift(pipeline, context):
    task = CheckOffsetDriftOperator(
        task_id="t", pipelines=[pipeline.with_checkpoint], grace=0, on_drift="warn"
    )
    assert task.execute(context)


def plan_window(pipeline, context):
    task = PlanOffsetWindowOperator(task_id="t", start="committed", end="latest", **pipeline.names)
    assert task.execute(context)["records"] == 9


def audit(pipeline, _):
    (tp, offsets) = (TopicPartition(pipeline.topic, 0), merge([(1, 3)]))
    window = OffsetWindow({tp: OffsetRange(0, 4)})
    with KafkaOffsetsHook().get_offsets_client() as client:
        found = find_missing(
            client, window, {tp: offsets}, lambda ranges: client.record_offsets(ranges, within=10)
        )
    assert found.lost == {tp: offsets}


def commit(pipeline, context):
    CommitOffsetsOperator(task_id="t", **pipeline.with_checkpoint).execute(context)
    assert pipeline.offsets() == {0: 3, 1: 2, 2: 1}


def commit_window(pipeline, context, **parameters):
    window = OffsetWindow({TopicPartition(pipeline.topic, number): OffsetRange(1, 2) for number in range(3)})
    task = CommitOffsetWindowOperator(
        task_id="t", group_id=pipeline.group, window=window.as_json(), **parameters
    )
    task.execute(context)
    assert pipeline.offsets() == {0: 2, 1: 2, 2: 2}


def commit_windows(pipeline, context):
    commit_window(pipeline, context, fenced=False)
    commit_window(pipeline, context, fenced=True)


def reset(pipeline, context):
    task = ResetOffsetsOperator(task_id="t", to_offset="earliest", quiet_period=0, **pipeline.with_checkpoint)
    receipt = task.execute(context)
    assert pipeline.offsets() == {0: 0, 1: 0, 2: 0} == pipeline.query.stands()
    return receipt


def plan_resets(pipeline, context):
    before = pipeline.state()
    task = PlanResetsOperator(
        task_id="t", to_offset="earliest", pipelines=[KafkaPipeline(**pipeline.with_checkpoint)]
    )
    (plan,) = task.execute(context)
    assert plan["estimate"]["lag"]
    assert pipeline.state() == before


def restore(pipeline, context):
    file = pipeline.query.root.parent / "before.csv"
    file.write_text("".join(f"{pipeline.topic},{number},0\n" for number in range(3)))
    task = RestoreOffsetsOperator(
        task_id="t", from_file=str(file), restore_when="always", quiet_period=0, **pipeline.with_checkpoint
    )
    task.execute(context)
    assert pipeline.offsets() == {0: 0, 1: 0, 2: 0} == pipeline.query.stands()


def delete(pipeline, _):
    (failure,) = KafkaOffsetsHook().delete_groups([pipeline.group]).values()
    if failure:
        raise BrokerError(failure)
    assert pipeline.offsets() == {0: None, 1: None, 2: None}


def describe(pipeline, _):
    (described,) = KafkaOffsetsHook().describe_groups([pipeline.group]).values()
    assert described["state"] == "Empty"


USES: dict[str, Callable[..., None]] = {
    "group describe": describe,
    "ConsumerGroupLagSensor": lag,
    "max_time_lag": time_lag,
    "min_headroom": partial(lag, min_headroom="PT1H"),
    "OffsetsReachedSensor": reached,
    "TopicReachedSensor": topic_reached,
    "CompletedIntervalsOperator": completed_intervals,
    "PlanOffsetWindowOperator": plan_window,
    "CheckOffsetDriftOperator": drift,
    "AuditWindowOperator": audit,
    "CommitOffsetsOperator": commit,
    "CommitOffsetWindowOperator": commit_windows,
    "ResetOffsetsOperator": reset,
    "PlanResetsOperator": plan_resets,
    "RestoreOffsetsOperator": restore,
    "group delete": delete,
}
QUICK = {"CommitOffsetsOperator", "PlanResetsOperator", "ResetOffsetsOperator"}
SPARKS = {"KafkaOffsetCommitterListener", "read_window"}
# In tests/integration/cli/test_cli_delete_offsets.py.
DELETIONS = {"group delete-offsets"}
# Not tried: each test would need a secured cluster with a secured mirror.
MIRRORS = {"mirror", "FailOverOperator", "CheckMirrorOperator"}


def test_every_row_of_the_table_is_tested():
    for rows in rights_table():
        assert not (USES.keys() | SPARKS | DELETIONS | MIRRORS).isdisjoint(rows), rows


@pytest.mark.parametrize(
    "use", [use if use in QUICK else pytest.param(use, marks=pytest.mark.long) for use in USES]
)
def test_it_works_with_the_rights_of_the_table_and_without_one_names_it_and_changes_nothing(
    secured_cluster, pipeline, connect, context, use
):
    rights = rights_of(use, pipeline.group, pipeline.topic)
    user = secured_cluster.user("bob", *rights)
    connect(user)
    before = pipeline.state()
    for lacking in each_lacking(rights):
        with secured_cluster.without(user, *lacking):
            with pytest.raises((AirflowFailException, BrokerError)) as refused:
                USES[use](pipeline, context)
        assert is_named(lacking, str(refused.value)), (lacking, refused.value)
        assert PASSWORD not in str(refused.value)
        assert pipeline.state() == before, lacking
    USES[use](pipeline, context)


def test_an_outcome_is_said_once(secured_cluster, pipeline, connect, context):
    user = secured_cluster.user(
        "bob", ("group", pipeline.group, "Read"), ("topic", pipeline.topic, "Describe")
    )
    connect(user)
    with pytest.raises(AirflowFailException) as refused:
        commit_window(pipeline, context, fenced=True)
    assert str(refused.value).endswith("grant it Read on the topics; nothing was written")
