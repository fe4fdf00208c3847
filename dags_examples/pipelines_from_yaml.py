"""
Many Spark jobs that run elsewhere, each with a checkpoint and a group: every ten minutes the groups follow.

The pipelines are listed in a file beside this one. A pipeline that cannot be committed fails alone, and is
retried alone; the check then names it in one report with all the others.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.drift import CheckOffsetDriftOperator
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
    commit >> check
# --8<-- [end:yaml]
