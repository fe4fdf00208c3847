"""
The example of many pipelines on a real scheduler: one plan, one approval, waves, one way back.

``PIPELINES=60`` tries it with a fleet, which takes some minutes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from airflow_users import User, WithUsers, user_variables
from confluent_kafka import Consumer

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration, pytest.mark.timeout(1500)]

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "recover_pipelines.py"
MANY = int(os.environ.get("PIPELINES", "8"))
# In the second of four waves, or of eight.
FAILS = 2 if MANY == 8 else 11
READ, BACK, END = 8, 5, 10
SECONDS = 60 + 10 * MANY
ENDED = ("success", "failed", "upstream_failed", "skipped")
DAG_ID, TAKE_BACK = "recover_pipelines", "take_back_pipelines"


@pytest.fixture(scope="module")
def client(bootstrap_servers):
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        yield client


def read(spark, bootstrap_servers, topic, checkpoint):
    """Let a query of Spark read all there is."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
    records = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    query = records.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(60)


@pytest.fixture(scope="module")
def live(bootstrap_servers, make_topic, produce, client, spark, postgres, tmp_path_factory):
    """An Airflow with the example, for queries of Spark that have read 8 of 10 records, one a minute."""
    home = tmp_path_factory.mktemp("recover-pipelines")
    now = datetime.now(tz=timezone.utc)
    times = [int((now - timedelta(minutes=10 - minute)).timestamp() * 1000) for minute in range(10)]
    topic = make_topic(1)
    produce(topic, {0: READ}, {0: times[:READ]})
    names = [f"fleet-{number}-{topic}" for number in range(MANY)]
    lines = []
    for name in names:
        read(spark, bootstrap_servers, topic, home / "lake" / name)
        client.commit(name, {TopicPartition(topic, 0): READ})
        lines.append(f"- {{group_id: {name}, checkpoint_location: {home / 'lake' / name}}}")
    produce(topic, {0: len(times) - READ}, {0: times[READ:]})
    (home / "pipelines.yaml").write_text("\n".join(lines))
    example = Path(shutil.copy(EXAMPLE, home))
    with (
        WithUsers(
            home / "airflow",
            bootstrap_servers,
            [example, home / "pipelines.yaml"],
            postgres,
            # So that some indexes have not begun when one fails; a fleet goes in the example's waves.
            AIRFLOW__CORE__PARALLELISM="2" if MANY == 8 else "8",
            **user_variables(home),
        ) as airflow,
        contextlib.closing(User(airflow, "ada")) as ada,
        contextlib.closing(User(airflow, "bob")) as bob,
    ):
        to = datetime.fromtimestamp(times[BACK] / 1000, tz=timezone.utc).isoformat()
        vars(airflow).update(names=names, topic=topic, ada=ada, bob=bob, to=to, lake=home / "lake")
        yield airflow


def at(live, client):
    """Where each pipeline is; both of its stores are there."""
    tp = TopicPartition(live.topic, 0)
    groups = [client.committed(name, [tp])[tp].offset for name in live.names]
    states = [SparkCheckpoint(str(live.lake / name)).read().kafka_offsets["0"][tp] for name in live.names]
    assert groups == states
    return groups


@contextlib.contextmanager
def reading(live, bootstrap_servers, client, name):
    """Let a consumer be in a group, which commits nothing."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": name, "enable.auto.commit": False}
    consumer, stop = Consumer(settings), threading.Event()
    consumer.subscribe([live.topic])

    def poll():
        while not stop.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not client.describe_groups([name])[name].members:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield
    finally:
        stop.set()
        thread.join()
        consumer.close()


def instances(live, run, task, dag_id=DAG_ID):
    """The instances of a mapped task, by map index."""
    path = f"dags/{dag_id}/dagRuns/{run}/taskInstances/{task}/listMapped"
    found = live.api("GET", path, params={"limit": 100})["task_instances"]
    return sorted(found, key=lambda each: each["map_index"])


def state_of(live, run, task):
    """The state of a task that is not mapped."""
    return live.api("GET", f"dags/{DAG_ID}/dagRuns/{run}/taskInstances/{task}")["state"]


def took(task, found):
    """Print the seconds from the start of a task's first index to the end of its last one."""
    ran = [each for each in found if each["start_date"] and each["end_date"]]
    began, ended = (
        pick(datetime.fromisoformat(each[name]) for each in ran)
        for pick, name in ((min, "start_date"), (max, "end_date"))
    )
    print(f"@@ {task}: {len(ran)} task instances in {(ended - began).total_seconds():.1f} s")


def test_one_plan_and_one_approval_a_failure_stops_what_has_not_begun_and_one_restore_takes_all_back(
    live, client, bootstrap_servers
):
    run = live.ada.trigger(DAG_ID, {"to_datetime": live.to})
    asked = live.request_of(DAG_ID, run)
    assert (
        f"of {MANY} pipelines: {MANY * 3} records are read again, {MANY * 5} until the log end"
        in asked["body"]
    )
    with reading(live, bootstrap_servers, client, live.names[FAILS]):
        live.bob.respond(DAG_ID, run, asked["options"][0])
        live.ended(DAG_ID, run, SECONDS)
    took("plan", [live.api("GET", f"dags/{DAG_ID}/dagRuns/{run}/taskInstances/plan")])
    resets = instances(live, run, "reset")
    took("reset", resets)
    states = [each["state"] for each in resets]
    assert states[FAILS] == "failed"
    assert states.count("skipped") >= 1
    assert states.count("success") + states.count("skipped") == MANY - 1
    assert live.api("GET", f"dags/{DAG_ID}/dagRuns/{run}")["state"] == "failed"
    assert at(live, client) == [BACK if state == "success" else READ for state in states]
    named = [each["rendered_map_index"] for each in resets if each["state"] == "success"]
    assert set(named) <= set(live.names)

    back = live.ada.trigger(TAKE_BACK, {"run_id": run})
    live.ended(TAKE_BACK, back, SECONDS)
    took("restore", instances(live, back, "restore", TAKE_BACK))
    assert live.api("GET", f"dags/{TAKE_BACK}/dagRuns/{back}")["state"] == "success"
    assert at(live, client) == [READ] * MANY
    moved = [(live.lake / name / "_kafka_offsets" / "0002-restore").exists() for name in live.names]
    assert moved == [state == "success" for state in states]


@pytest.mark.long
def test_all_are_moved_found_in_step_and_waited_for(live, client, spark, bootstrap_servers):
    run = live.ada.trigger(DAG_ID, {"to_datetime": live.to})
    asked = live.request_of(DAG_ID, run)
    live.bob.respond(DAG_ID, run, asked["options"][0])
    live.wait_until(lambda: state_of(live, run, "check") in ENDED, "the check", SECONDS)
    resets = instances(live, run, "reset")
    took("reset", resets)
    assert [each["state"] for each in resets] == ["success"] * MANY
    assert state_of(live, run, "check") == "success"
    assert at(live, client) == [BACK] * MANY
    # Airflow 3.3 fails a task whose trigger fires before the scheduler has read that its process ended.
    waiting = ["deferred"] * MANY
    live.wait_until(
        lambda: [each["state"] for each in instances(live, run, "wait")] == waiting, "the waits", SECONDS
    )
    for name in live.names:
        read(spark, bootstrap_servers, live.topic, live.lake / name)
        client.commit(name, {TopicPartition(live.topic, 0): END})
    assert at(live, client) == [END] * MANY
    live.ended(DAG_ID, run, SECONDS)
    waits = instances(live, run, "wait")
    took("wait", waits)
    assert [each["state"] for each in waits] == ["success"] * MANY
    assert live.api("GET", f"dags/{DAG_ID}/dagRuns/{run}")["state"] == "success"
