"""DAGs for the Offsets pages: a pipeline with a history, one with a hostile name, forty of a drift check."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseHook, Param, task

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

CHECKPOINT, TOPIC = Path(os.environ["OFFSETS_CHECKPOINT"]), os.environ["OFFSETS_TOPIC"]
# The first partitions get most of the records.
BATCH = (90, 60, 40, 12, 6, 2)
HOSTILE = "<script>alert(1)</script>"

orders = KafkaPipeline(group_id=f"{TOPIC}-etl", topics=[TOPIC], checkpoint_location=str(CHECKPOINT))

with DAG(
    "orders", schedule=None, params={"batches": Param(8), "recover": Param(default=False)}
) as orders_dag:

    @task
    def process(params: dict[str, Any] | None = None) -> int:
        """Leave what a streaming query leaves: records read from Kafka, in batches of a few seconds."""
        from confluent_kafka import Producer

        assert params is not None
        newest = max(int(file.name) for file in (CHECKPOINT / "offsets").glob("[0-9]*"))
        head, meta, line = (CHECKPOINT / "offsets" / str(newest)).read_text().split("\n")
        offsets = json.loads(line)[TOPIC]
        producer = Producer(BaseHook.get_connection("kafka_default").extra_dejson)
        batches = params["batches"]
        # After those of the run before.
        began = max(time.time() - 5 * batches, json.loads(meta)["batchTimestampMs"] / 1000 + 5)
        between = (time.time() - began) / batches
        for number in range(batches):
            at = began + between * number
            for partition, count in enumerate(BATCH):
                records = count + (number * 7) % (count + 1)
                for _ in range(records):
                    producer.produce(TOPIC, b"{}", partition=partition, timestamp=int(at * 1000))
                offsets[str(partition)] += records
            producer.flush(30)
            batch = str(newest + 1 + number)
            planned = json.dumps({**json.loads(meta), "batchTimestampMs": int(at * 1000)})
            (CHECKPOINT / "offsets" / batch).write_text(
                "\n".join([head, planned, json.dumps({TOPIC: offsets})])
            )
            done = CHECKPOINT / "commits" / batch
            done.write_text('v1\n{"nextBatchWatermarkMs":0}')
            ended = at + between * (0.3 + number % 4 / 6)
            os.utime(done, (ended, ended))
        return newest + batches

    commit = CommitOffsetsOperator(task_id="commit", outlets=orders.assets, **orders)
    gate = ConsumerGroupLagSensor(task_id="gate", max_lag=100_000, **orders)
    drift = CheckOffsetDriftOperator(task_id="drift", pipelines=[orders], on_drift="warn")

    @task.short_circuit
    def recover(params: dict[str, Any] | None = None) -> bool:
        """Go on only if the run was asked to."""
        assert params is not None
        return bool(params["recover"])

    plan = ResetOffsetsOperator(task_id="plan", to_offset="earliest", plan_only=True, **orders)
    reset = ResetOffsetsOperator(
        task_id="reset", shift_by=-50, on_out_of_range="clamp", quiet_period=2, **orders
    )
    restore = RestoreOffsetsOperator(
        task_id="restore", receipt=reset.output, restore_when="always", quiet_period=2, **orders
    )

    process() >> commit >> gate >> drift >> recover() >> plan >> reset >> restore

with DAG("hostile", schedule=None) as hostile_dag:
    CommitOffsetsOperator(task_id="commit", group_id=HOSTILE, offsets={TOPIC: {"0": 5}})

with DAG("dead", schedule=None) as dead_dag:
    CommitOffsetsOperator(
        task_id="commit", group_id="dead-etl", offsets={TOPIC: {"0": 5}}, kafka_config_id="kafka_dead"
    )

many = [
    KafkaPipeline(group_id=f"group-{number}", topics=[TOPIC], checkpoint_location=str(CHECKPOINT))
    for number in range(40)
]

with DAG("many", schedule=None) as many_dag:
    CheckOffsetDriftOperator(task_id="drift", pipelines=many, on_drift="warn")
