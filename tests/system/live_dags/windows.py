"""A window that is planned and committed at once."""

import os

from airflow.sdk import DAG

from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pipeline = KafkaPipeline(group_id=os.environ["WINDOWS_GROUP"], topics=[os.environ["WINDOWS_TOPIC"]])

with DAG("windows", schedule=None, max_active_runs=1):
    plan = PlanOffsetWindowOperator(task_id="plan", on_no_commit="earliest", **pipeline)
    CommitOffsetWindowOperator(task_id="commit", window=plan.output, outlets=[pipeline.asset], **pipeline)
