"""A commit that is refused."""

import os

from airflow.sdk import DAG

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

with DAG("refused", schedule=None):
    CommitOffsetsOperator(
        task_id="commit", group_id="refused", offsets={os.environ["IDLE_TOPIC"]: {"0": 1_000_000, "1": 0}}
    )
