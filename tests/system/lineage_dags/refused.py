"""A commit of offsets that the log does not hold: it fails after its receipt was stored."""

from airflow.sdk import DAG

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

with DAG("refused", schedule=None) as dag:
    CommitOffsetsOperator(
        task_id="commit", group_id="flights-refused", offsets={"flights": {"0": 1, "1": 1_000_000_000}}
    )
