"""
A pipeline that is named once, its commit, a gate for the tasks after it, and resets on request.

Storage and Kafka cluster come from Airflow connections.
"""

from __future__ import annotations

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor

# --8<-- [start:pipeline]
orders = KafkaPipeline(
    group_id="orders-etl",
    checkpoint_location="s3a://lake/checkpoints/orders",
    checkpoint_conn_id="lake",
    kafka_config_id="kafka_main",
)
# --8<-- [end:pipeline]

with DAG(
    dag_id="commit_and_gate",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark"],
):
    # --8<-- [start:gate]
    spark = SparkSubmitOperator(
        task_id="spark",
        application="s3a://lake/jobs/orders.py",
        conf=orders.spark_conf(),
    )

    commit = CommitOffsetsOperator(task_id="commit", outlets=[orders.asset], **orders)

    gate = OffsetsReachedSensor(
        task_id="gate",
        target="{{ data_interval_end }}",
        deferrable=True,
        poke_interval=30,
        timeout=3600,
        **orders,
    )

    @task
    def publish() -> None:
        """Placeholder for a task that needs complete data."""

    spark >> commit >> gate >> publish()
    # --8<-- [end:gate]

# --8<-- [start:asset]
with DAG(dag_id="after_orders", schedule=[orders.asset], catchup=False):

    @task
    def count() -> None:
        """Placeholder for work that follows each commit of the group."""

    count()
# --8<-- [end:asset]

with DAG(dag_id="several_sources", schedule=None, catchup=False):
    # --8<-- [start:groups]
    by_topic = CommitOffsetsOperator(
        task_id="by_topic",
        group_id={"orders": "orders-etl", "payments": "payments-etl"},
        checkpoint_location="s3a://lake/checkpoints/orders_and_payments",
    )

    by_source = CommitOffsetsOperator(
        task_id="by_source",
        group_id={"source:0": "orders-fast", "source:1": "orders-slow"},
        checkpoint_location="s3a://lake/checkpoints/orders_twice",
    )
    # --8<-- [end:groups]

with DAG(dag_id="always_on_query", schedule=None, catchup=False):
    # --8<-- [start:always_on]
    caught_up = OffsetsReachedSensor(
        task_id="caught_up",
        checkpoint_location="s3a://lake/checkpoints/clicks",
        target="latest",
        deferrable=True,
    )
    # --8<-- [end:always_on]

with DAG(dag_id="wait_for_lag", schedule=None, catchup=False):
    # --8<-- [start:lag]
    near_the_end = ConsumerGroupLagSensor(
        task_id="near_the_end",
        group_id="orders-etl",
        max_lag=1000,
        max_partition_lag=200,
        deferrable=True,
    )
    # --8<-- [end:lag]

with DAG(
    dag_id="reset_group",
    schedule=None,
    catchup=False,
    params={"to_datetime": Param("2026-01-01T00:00:00Z", type="string", format="date-time")},
):
    # --8<-- [start:reset]
    plan = ResetOffsetsOperator(
        task_id="plan",
        group_id="reports",
        topics="orders",
        to_datetime="{{ params.to_datetime }}",
        plan_only=True,
    )

    reset = ResetOffsetsOperator(
        task_id="reset",
        group_id="reports",
        topics="orders",
        to_datetime="{{ params.to_datetime }}",
    )

    plan >> reset
    # --8<-- [end:reset]

with DAG(dag_id="given_offsets", schedule=None, catchup=False):
    # --8<-- [start:given]
    given = CommitOffsetsOperator(
        task_id="given",
        group_id="orders-etl",
        offsets={"orders": {"0": 120, "1": 95, "2": 110}},
    )
    # --8<-- [end:given]
