"""A dbt project that runs, by Cosmos, when the pipelines that feed it have read the day."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
from cosmos import DbtTaskGroup, ProfileConfig, ProjectConfig

from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor

with DAG(
    dag_id="dbt_cosmos",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "dbt"],
) as dag:
    # --8<-- [start:gate]
    gates = [
        OffsetsReachedSensor(
            task_id=f"{group}-is-complete",
            group_id=group,
            target="{{ data_interval_end }}",
            deferrable=True,
            poke_interval=60,
            timeout=2 * 3600,
        )
        for group in ("orders-etl", "payments-etl")
    ]

    project = Path(__file__).with_name("dbt")
    dbt = DbtTaskGroup(
        group_id="dbt",
        project_config=ProjectConfig(
            dbt_project_path=project, manifest_path=project / "target" / "manifest.json"
        ),
        profile_config=ProfileConfig(
            profile_name="lake", target_name="prod", profiles_yml_filepath=project / "profiles.yml"
        ),
    )

    gates >> dbt
    # --8<-- [end:gate]
