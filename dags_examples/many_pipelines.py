"""
One mapped commit for many pipelines, and DAGs that each follow one of the pipelines.

LAKE and REGIONS come from the environment.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, AssetAlias, task

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

LAKE = os.environ.get("LAKE", "s3a://lake")
REGIONS = os.environ.get("REGIONS", "asia,europe,america").split(",")

# --8<-- [start:mapped]
pipelines = {
    region: KafkaPipeline(
        group_id=f"orders-{region}",
        checkpoint_location=f"{LAKE}/checkpoints/orders-{region}",
        asset_name=f"orders of {region}",
    )
    for region in REGIONS
}

with DAG("many_pipelines", schedule=None, max_active_runs=1):
    CommitOffsetsOperator.partial(
        task_id="commit", outlets=[pipeline.asset for pipeline in pipelines.values()]
    ).expand_kwargs([dict(pipeline) for pipeline in pipelines.values()])

for region, pipeline in pipelines.items():
    with DAG(f"after_orders_of_{region}", schedule=[pipeline.asset]):
        EmptyOperator(task_id="work_of_this_region")
# --8<-- [end:mapped]

# --8<-- [start:alias]
committed = AssetAlias("orders of any region")

with DAG("pipelines_of_a_list", schedule=None, max_active_runs=1):

    @task
    def from_a_catalogue() -> list[dict[str, Any]]:
        """Return the names of pipelines, which are not known when the DAG is parsed."""
        return [dict(pipeline) for pipeline in pipelines.values()]

    CommitOffsetsOperator.partial(task_id="commit", outlets=[committed]).expand_kwargs(from_a_catalogue())

with DAG("after_any_orders", schedule=[committed]):
    EmptyOperator(task_id="work_of_any_region")
# --8<-- [end:alias]
