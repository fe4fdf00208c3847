"""
Move a pipeline to another topic: orders was copied to orders-v2, and the producers write there now.

Trigger the DAG once, when the query is stopped. Then start the query with the new topic.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

orders = KafkaPipeline(
    group_id="orders-etl",
    checkpoint_location="s3a://lake/checkpoints/orders",
    checkpoint_conn_id="lake",
)

with DAG("move_to_other_topic", schedule=None, max_active_runs=1, tags=["kafka", "spark"]):
    # --8<-- [start:move]
    FailOverOperator(
        task_id="move",
        mirror={"kafka_config_id": orders.kafka_config_id, "topics": {"orders": "orders-v2"}},
        **orders,
    )
    # --8<-- [end:move]
