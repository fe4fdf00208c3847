"""
Runs everything that has a Kafka connection, at DEBUG, and prints all that it gives: results, errors, fields,
the serialised DAG and triggers. Its standard input names the pipelines to run it for.
"""

import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_kafka_offsets.cli import main as command_line
from airflow_kafka_offsets.hooks import offsets
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor
from airflow_kafka_offsets.triggers.event import LagEventTrigger
from airflow_kafka_offsets.ui.live_client import LiveClient

AT = "2020-01-01T00:00:00Z"
DONE = "@@done "
_PATIENCE = 4.0


class TaskInstance:
    """As much of a task instance as an operator needs; what it pushes is printed."""

    dag_id, run_id, task_id, map_index, try_number = "canaries", "manual__1", "task", -1, 1

    def get_task_states(self, **_: Any) -> dict[str, Any]:
        return {}

    def xcom_push(self, key: str, value: object) -> None:
        print("XCOM", key, repr(value))


def tasks(names: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the operators and sensors of a pipeline; only some where nothing can work."""
    group = {key: names[key] for key in ("group_id", "topics", "kafka_config_id")}
    soon: Any = {"poke_interval": 1, "timeout": _PATIENCE}
    yield CommitOffsetsOperator(task_id="commit", **names)
    yield ConsumerGroupLagSensor(task_id="lag", max_lag=10**9, **group, **soon)
    if names["kafka_config_id"] != "right":
        return
    yield CheckOffsetDriftOperator(task_id="drift", pipelines=[dict(names)])
    yield ResetOffsetsOperator(task_id="reset", to_offset="earliest", **group)
    yield RestoreOffsetsOperator(task_id="restore", receipt="{{ receipt }}", restore_when="always", **group)
    yield PlanOffsetWindowOperator(task_id="plan", start="earliest", end="latest", **group)
    yield OffsetsReachedSensor(task_id="reached", target=AT, deferrable=True, **group)
    yield TopicReachedSensor(
        task_id="topic",
        target=AT,
        topics=names["topics"],
        kafka_config_id=names["kafka_config_id"],
        **soon,
    )
    yield KafkaSparkSubmitOperator(
        task_id="job", application="no-such-job.py", kafka_config_id=names["kafka_config_id"]
    )


def tried(what: str, call: Callable[[], object]) -> bool:
    """Print what a call returns or raises, and return whether it did not raise."""
    try:
        print(what, "RETURNED", repr(call()))
    except TaskDeferred as deferred:
        print(what, "DEFERRED", deferred.trigger.serialize(), deferred.kwargs)
        trigger = deferred.trigger
        tried(f"{what} trigger", lambda: first_event(trigger))
    except (Exception, SystemExit):  # noqa: BLE001  # whatever it is, it is shown
        print(what, "RAISED", traceback.format_exc())
        return False
    return True


def first_event(trigger: Any) -> object:
    """Return what a trigger sends first."""

    async def first() -> object:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                async for event in trigger.run():
                    return event
        return None

    return asyncio.run(first())


def run(names: dict[str, Any], config_file: str, ask: Callable[..., Any]) -> None:
    """Run everything for one pipeline."""
    conn_id = names["kafka_config_id"]
    with DAG(f"canaries-{conn_id}") as dag:
        parsed = tried(f"{conn_id} file", lambda: list(tasks(names)))
    if not parsed:  # Airflow stores and runs nothing of it
        return
    print(json.dumps(DagSerialization.to_dict(dag), default=str))
    made: list[Any] = list(dag.tasks)
    for operator in made:
        tried(f"{conn_id} {operator.task_id}", partial(operator.execute, {"ti": TaskInstance()}))
        print({name: getattr(operator, name) for name in operator.template_fields})
    tried(f"{conn_id} hook", partial(KafkaOffsetsHook(conn_id).describe_groups, [names["group_id"]]))
    watched = {key: names[key] for key in ("group_id", "topics", "kafka_config_id")}
    trigger = LagEventTrigger(min_lag=1, poll_interval=1, **watched)
    print(trigger.serialize())
    tried(f"{conn_id} event", lambda: first_event(trigger))
    for source in (("--kafka-config-id", conn_id), ("--command-config", config_file)):
        sys.argv = ["airflow-kafka-offsets", "group", "describe", names["group_id"], *source]
        sys.argv += ["--timeout", str(_PATIENCE), "--output", "json"]
        tried(f"{conn_id} command line", command_line)
    for question in ("now", "batches"):
        print(f"{conn_id} live", ask(question, names))


def main() -> None:
    """Run everything for each pipeline."""
    offsets.CALL_TIMEOUT = _PATIENCE
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, force=True)
    live = LiveClient()

    async def start() -> None:
        live._running()

    with asyncio.Runner() as runner:
        runner.run(start())
        for names, config_file in json.load(sys.stdin):
            run(names, config_file, lambda *asked: runner.run(live.ask(*asked)))
            print(DONE + names["kafka_config_id"])
        live.close()


if __name__ == "__main__":
    main()
