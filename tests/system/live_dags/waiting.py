"""Two sensors that wait in the triggerer."""

import os

from airflow.sdk import DAG

from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor

pipeline = KafkaPipeline(group_id=os.environ["WAITING_GROUP"], topics=[os.environ["WAITING_TOPIC"]])
waiting = {"deferrable": True, "poke_interval": 1, "timeout": 120, **pipeline}

with DAG("waiting", schedule=None):
    ConsumerGroupLagSensor(task_id="lag", max_lag=0, **waiting)
    OffsetsReachedSensor(task_id="reached", target="latest", **waiting)
