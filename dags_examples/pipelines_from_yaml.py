"""
Many Spark jobs, each with a checkpoint and a group, listed in a file beside this one.

If the jobs run outside of Airflow, their offsets are committed every ten minutes. If Airflow starts the jobs,
each job is followed by its commit. A failed pipeline does not affect the others, and is retried separately.
The check then reports all pipelines together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task_group

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

# --8<-- [start:yaml]
pipelines = KafkaPipeline.load(Path(__file__).with_name("pipelines.yaml"))

with DAG("pipelines_from_yaml", schedule="*/10 * * * *", catchup=False, max_active_runs=1) as dag:
    commit = CommitOffsetsOperator.partial(
        task_id="commit", max_active_tis_per_dagrun=8, outlets=[each for p in pipelines for each in p.assets]
    ).expand_kwargs([dict(pipeline) for pipeline in pipelines])

    check = CheckOffsetDriftOperator(
        task_id="check", pipelines=pipelines, grace="30m", trigger_rule="all_done"
    )
    # The last tasks decide the state of the run, and the check runs also after a failed commit.
    commit >> [check, EmptyOperator(task_id="all_committed")]
# --8<-- [end:yaml]

# --8<-- [start:jobs]
with DAG("jobs_from_yaml", schedule="@hourly", catchup=False, max_active_runs=1) as jobs:

    @task_group
    def pipeline(
        group_id: Any, topics: Any, checkpoint_location: str, checkpoint_conn_id: str, kafka_config_id: str
    ) -> None:
        """One job with trigger(availableNow=True), and the commit of its offsets."""
        job = SparkSubmitOperator(
            task_id="job",
            application="s3a://lake/jobs/copy.py",
            application_args=[checkpoint_location],
        )
        job >> CommitOffsetsOperator(
            task_id="commit",
            group_id=group_id,
            topics=topics,
            checkpoint_location=checkpoint_location,
            checkpoint_conn_id=checkpoint_conn_id,
            kafka_config_id=kafka_config_id,
        )

    pipeline.expand_kwargs([dict(each) for each in pipelines])
# --8<-- [end:jobs]
