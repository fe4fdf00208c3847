"""A job of the Spark operator for Kubernetes, and the commit of what it has read."""

from __future__ import annotations

from typing import Any

from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

with DAG(
    dag_id="spark_on_kubernetes",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["kafka", "spark", "kubernetes"],
) as dag:
    # --8<-- [start:job]
    orders = KafkaPipeline(
        group_id="orders-etl",
        topics="orders",
        checkpoint_location="s3a://lake/checkpoints/orders",
        checkpoint_conn_id="aws_default",
    )

    application: dict[str, Any] = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "orders", "namespace": "spark"},
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "image": "registry.example.com/spark-jobs:4.0.0",
            "sparkVersion": "4.0.0",
            "mainApplicationFile": "local:///app/orders.py",
            "sparkConf": orders.spark_conf(),
            "restartPolicy": {"type": "Never"},
            "driver": {"cores": 1, "memory": "1g", "serviceAccount": "spark"},
            "executor": {"instances": 2, "cores": 1, "memory": "2g"},
        },
    }
    job = SparkKubernetesOperator(task_id="job", namespace="spark", template_spec={"spark": application})

    job >> CommitOffsetsOperator(task_id="commit", **orders)
    # --8<-- [end:job]
