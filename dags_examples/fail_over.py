"""
Three DAGs: commits that prepare a failover to a mirror of the Kafka cluster, a drill every morning, and the
failover.

The commits keep the data for a failover beside each checkpoint. The drill plans the move and changes nothing.
The DAG fail_over moves all pipelines; trigger it when the queries are stopped.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from airflow_kafka_offsets.operators.check_mirror import CheckMirrorOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pipelines = KafkaPipeline.load(Path(__file__).with_name("mirrored_pipelines.yaml"))

# --8<-- [start:ready]
with DAG(
    "commit_mirrored", schedule="*/10 * * * *", catchup=False, max_active_runs=1, tags=["kafka", "spark"]
):
    CommitOffsetsOperator.partial(task_id="commit").expand_kwargs([dict(pipeline) for pipeline in pipelines])
# --8<-- [end:ready]

# --8<-- [start:drill]
with DAG("failover_drill", schedule="0 6 * * *", catchup=False, tags=["kafka", "spark"]):
    check = CheckMirrorOperator.partial(task_id="check", max_again=1_000, max_behind=100_000).expand_kwargs(
        [dict(pipeline) for pipeline in pipelines]
    )
    # Shows the plan of a failover at this moment, and changes nothing.
    drill = FailOverOperator.partial(task_id="drill", plan_only=True, on_pending_batch="discard", sink="noop")
    check >> drill.expand_kwargs([dict(pipeline) for pipeline in pipelines])
# --8<-- [end:drill]

# --8<-- [start:move]
with DAG("fail_over", schedule=None, max_active_runs=1, tags=["kafka", "spark"]):
    FailOverOperator.partial(
        task_id="fail_over", max_active_tis_per_dag=8, retries=3, ask_source=False
    ).expand_kwargs([dict(pipeline) for pipeline in pipelines])
# --8<-- [end:move]
