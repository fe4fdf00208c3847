"""
Moves many pipelines together: one plan, one approval, moves in waves, and a DAG that restores all of them.

The pipelines are listed in a file beside this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Param, task

from airflow_kafka_offsets.operators.approve import ApprovePlanOperator
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor

# --8<-- [start:recover]
pipelines = KafkaPipeline.load(Path(__file__).with_name("pipelines.yaml"))

with DAG(
    "recover_pipelines",
    schedule=None,
    params={"to_datetime": Param("2026-01-02T00:00:00Z", type="string", format="date-time")},
    max_active_runs=1,
) as dag:
    # --8<-- [start:plan]
    plans = PlanResetsOperator(task_id="plan", pipelines=pipelines, to_datetime="{{ params.to_datetime }}")
    # --8<-- [end:plan]

    approve = ApprovePlanOperator(task_id="approve", plan=plans.output)

    # Eight at a time. If one fails, all that have not begun fail too.
    reset = ResetOffsetsOperator.partial(
        task_id="reset",
        approval=approve.output,
        allow_self_approval=False,
        stop_after_failure=True,
        max_active_tis_per_dag=8,
    ).expand(plan=plans.output)

    # Check that group and checkpoint of each planned pipeline are at the planned offsets.
    check = CheckOffsetDriftOperator(task_id="check", pipelines=plans.output)

    # Start the queries now. Each instance waits until one pipeline has read all records from before this run.
    wait = OffsetsReachedSensor.partial(
        task_id="wait",
        target="{{ dag_run.start_date.isoformat() }}",
        deferrable=True,
        poke_interval=10,
        timeout=86_400,
        retries=3,
    ).expand_kwargs(plans.output.map(lambda plan: plan["names"]))

    approve >> reset >> check >> wait
# --8<-- [end:recover]

# --8<-- [start:back]
with DAG(
    "take_back_pipelines",
    schedule=None,
    params={"run_id": Param(type="string", minLength=1, description="The run of recover_pipelines")},
    max_active_runs=1,
) as back:

    @task
    def receipts(ti: Any = None, params: Any = None) -> list[Any]:
        """Return the receipts of the pipelines that the run has moved."""
        found = ti.xcom_pull(dag_id="recover_pipelines", run_id=params["run_id"], task_ids="reset")
        moved = [found] if isinstance(found, dict) else [each for each in found or () if each is not None]
        if not moved:
            raise AirflowFailException(f"Run {params['run_id']!r} of recover_pipelines has left no receipt")
        return moved

    RestoreOffsetsOperator.partial(task_id="restore", restore_when="always", max_active_tis_per_dag=8).expand(
        receipt=receipts()
    )
# --8<-- [end:back]
