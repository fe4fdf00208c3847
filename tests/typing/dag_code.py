"""A user's DAG file, as a type checker reads it. Nothing runs it."""

from datetime import datetime, timedelta
from typing import Any, assert_type

from airflow.sdk import DAG, Asset, AssetWatcher, Context, task
from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

import airflow_kafka_offsets
from airflow_kafka_offsets import (
    ApprovePlanOperator,
    CheckOffsetDriftOperator,
    CommitOffsetsOperator,
    CommitOffsetWindowOperator,
    ConsumerGroupLagSensor,
    KafkaOffsetsError,
    KafkaOffsetsHook,
    KafkaPipeline,
    KafkaSparkSubmitOperator,
    LagEventTrigger,
    OffsetsReachedSensor,
    PlanOffsetWindowOperator,
    PlanResetsOperator,
    ResetOffsetsOperator,
    RestoreOffsetsOperator,
    SparkCheckpoint,
    TopicReachedSensor,
)
from airflow_kafka_offsets.assets import create_asset
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import BrokerError, CheckpointError, PlanRefusedError, UsageError
from airflow_kafka_offsets.kafka.client import OffsetsClient

assert_type(airflow_kafka_offsets.__version__, str)
airflow_kafka_offsets.CommitOffsetOperator  # type: ignore[attr-defined]

orders = KafkaPipeline(
    group_id="orders-etl",
    topics=["orders", "refunds:0,1"],
    checkpoint_location="s3a://lake/checkpoints/orders",
    checkpoint_conn_id="lake",
    kafka_config_id="kafka_main",
    asset_name="orders",
)
by_topic = KafkaPipeline({"orders": "orders-etl", "source:0": "refunds-etl"}, "orders", asset_name={"a": "b"})
assert_type(KafkaPipeline.load("pipelines.yaml"), list[KafkaPipeline])
assert_type(orders.asset, Asset)
assert_type(orders.assets, list[Asset])
assert_type(orders.spark_conf(), dict[str, str])
assert_type(orders.spark_submit_parameters(), str)
assert_type(dict(orders), dict[str, Any])
assert_type(create_asset(group_id="orders-etl", kafka_config_id="kafka_main", extra={"a": 1}), Asset)

watched = Asset(
    "orders-waiting",
    watchers=[
        AssetWatcher(
            name="orders",
            trigger=LagEventTrigger(
                group_id="orders-etl",
                topics=["orders"],
                checkpoint_location=None,
                checkpoint_conn_id=None,
                kafka_config_id="kafka_main",
                min_lag=10_000,
                min_time_lag="30m",
                tolerance=1,
                refire_after=timedelta(hours=1),
                poll_interval=30.5,
                position="group",
                isolation_level="read_committed",
                on_no_commit="latest",
            ),
        )
    ],
)

with DAG("orders", schedule=[watched], default_args=dict(orders)) as dag:
    spark = KafkaSparkSubmitOperator(task_id="spark", kafka_config_id="kafka_main", application="job.py")
    commit = CommitOffsetsOperator(
        task_id="commit",
        outlets=[orders.asset],
        retries=3,
        allow_rewind="{{ params.rewind }}",
        on_out_of_range="clamp",
        **orders,
    )
    given = CommitOffsetsOperator(task_id="given", group_id="orders-etl", offsets={"orders": {"0": 42}})
    stored = CommitOffsetsOperator(
        task_id="stored", store_conn_id="warehouse", store_table="offsets", store_pipeline="orders", **orders
    )
    reset = ResetOffsetsOperator(task_id="reset", to_datetime=datetime(2026, 3, 1), plan_only=True, **orders)
    to_output = ResetOffsetsOperator(task_id="to_output", to_offset=reset.output, **orders)
    by_duration = ResetOffsetsOperator(task_id="back", by_duration=timedelta(hours=-1), **orders)
    to_batch = ResetOffsetsOperator(task_id="to_batch", to_batch=41, quiet_period=0, **orders)
    approve = ApprovePlanOperator(
        task_id="approve", plan=reset.output, response_timeout=timedelta(hours=8), retries=0
    )
    approved = ResetOffsetsOperator(
        task_id="approved",
        plan=reset.output,
        max_age="8h",
        approval=approve.output,
        allow_self_approval=False,
        **orders,
    )
    plans = PlanResetsOperator(task_id="plans", pipelines=[orders, by_topic], to_offset="earliest")
    planned = ResetOffsetsOperator.partial(task_id="planned", stop_after_failure=True).expand(
        plan=plans.output
    )
    restore = RestoreOffsetsOperator(
        task_id="restore", receipt=reset.output, restore_when="always", on_pending_batch="discard", **orders
    )
    drift = CheckOffsetDriftOperator(
        task_id="drift", pipelines=[orders, by_topic], grace="10m", on_drift="warn"
    )
    plan = PlanOffsetWindowOperator(
        task_id="plan",
        start="{{ data_interval_start }}",
        end={"orders": {"0": 100}},
        max_records=1_000,
        on_empty="fail",
        **orders,
    )
    window = CommitOffsetWindowOperator(task_id="window", window=plan.output, fenced=False, **orders)
    reached = OffsetsReachedSensor(task_id="reached", target=datetime(2026, 3, 1), deferrable=True, **orders)
    lag = ConsumerGroupLagSensor(task_id="lag", max_lag=0, max_time_lag="10m", min_headroom=timedelta(1))
    complete = TopicReachedSensor(
        task_id="complete", target="{{ data_interval_end }}", on_idle_partition="ignore", topics="orders"
    )
    each = ResetOffsetsOperator.partial(task_id="each", to_offset="earliest")
    mapped = each.expand_kwargs([dict(orders), dict(by_topic)])

    @task
    def waiting() -> dict[str, Any]:
        hook = KafkaOffsetsHook("kafka_main", timeout=10)
        try:
            return hook.lag("orders-etl", ["orders"], "read_committed", headroom=True)
        except (BrokerError, CheckpointError, PlanRefusedError, UsageError) as error:
            assert_type(error.retriable, bool)
            raise KafkaOffsetsError("no answer", retriable=True) from error

    spark >> commit >> reached >> lag >> complete >> restore.as_teardown(setups=reset)

assert_type(each, OperatorPartial)
assert_type(mapped, MappedOperator)
assert_type(planned, MappedOperator)
assert_type(plan.spark_conf(), dict[str, str])
assert_type(restore.as_teardown(setups=[reset]), RestoreOffsetsOperator)


def results(context: Context) -> None:
    """What a subclass or a test of the user gets back."""
    assert_type(commit.execute(context), dict[str, Any])
    assert_type(window.execute(context), dict[str, Any])
    assert_type(plan.execute(context), dict[str, Any])
    assert_type(reset.execute(context), dict[str, Any])
    assert_type(restore.execute(context), dict[str, Any] | None)
    assert_type(drift.execute(context), dict[str, Any])
    assert_type(spark.execute(context), None)


def answers(hook: KafkaOffsetsHook) -> None:
    """Plain data, with text for keys."""
    assert_type(hook.client_config(), dict[str, Any])
    assert_type(hook.get_offsets_client(total=60), OffsetsClient)
    assert_type(hook.committed_offsets("g", "orders"), dict[str, dict[str, int | None]])
    assert_type(hook.lag("g"), dict[str, Any])
    assert_type(hook.log_offsets(["orders"]), dict[str, dict[str, dict[str, int | None]]])
    assert_type(hook.offsets_for_time("orders", datetime(2026, 3, 1)), dict[str, dict[str, int | None]])
    assert_type(hook.describe_groups(["g"]), dict[str, dict[str, Any]])
    assert_type(hook.list_groups(["Empty"]), list[dict[str, Any]])
    assert_type(hook.delete_groups(["g"]), dict[str, str | None])
    assert_type(
        hook.check_drift({"orders": "g"}, "s3a://lake/c", topics="orders", grace=60, min_headroom="1d"),
        dict[str, Any],
    )


def checkpoint() -> None:
    """A checkpoint, read without a task."""
    state = SparkCheckpoint("s3a://lake/checkpoints/orders", storage_options={"anon": True}).read()
    assert_type(state, CheckpointState)
    assert_type(state.batch_id, int | None)
    assert_type(state.pending_batch_id, int | None)
    assert_type(state.query_id, str)
    assert_type(state.as_json(), dict[str, Any])
