"""The example of many pipelines on a real scheduler: one plan, one approval, waves, one way back."""

import contextlib
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from airflow_users import User
from confluent_kafka import Consumer
from fleet_example import FEW, FLEET, pipeline_names
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration, pytest.mark.timeout(1500)]

# In the second of four waves, or of eight.
FAILS = 2 if FLEET == FEW else 11
READ, BACK, END = 8, 5, 10
SECONDS = 60 + 10 * FLEET
ENDED = ("success", "failed", "upstream_failed", "skipped")
DAG_ID, TAKE_BACK = "recover_pipelines", "take_back_pipelines"


@pytest.fixture(scope="module")
def live(airflow_with_users, produce, broker):
    """The Airflow with the example, for queries that have read 8 of 10 records, one a minute."""
    airflow = airflow_with_users
    topic, lake = airflow.variables["FLEET_TOPIC"], Path(airflow.variables["FLEET_HOME"])
    now = datetime.now(tz=timezone.utc)
    times = [int((now - timedelta(minutes=10 - minute)).timestamp() * 1000) for minute in range(10)]
    produce(topic, {0: len(times)}, {0: times})
    queries = {name: Query(lake / name) for name in pipeline_names(topic)}
    for name, query in queries.items():
        query.run(0, {topic: {0: READ}})
        broker.commit(name, {TopicPartition(topic, 0): READ})
    with contextlib.closing(User(airflow, "ada")) as ada, contextlib.closing(User(airflow, "bob")) as bob:
        to = datetime.fromtimestamp(times[BACK] / 1000, tz=timezone.utc).isoformat()
        vars(airflow).update(queries=queries, names=[*queries], topic=topic, ada=ada, bob=bob, to=to)
        yield airflow


def at(live, broker):
    """Where each pipeline is; both of its stores are there."""
    tp = TopicPartition(live.topic, 0)
    groups = [broker.committed(name, [tp])[tp].offset for name in live.names]
    assert groups == [query.stands()[0] for query in live.queries.values()]
    return groups


@contextlib.contextmanager
def reading(live, bootstrap_servers, broker, name):
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
        while not broker.describe_groups([name])[name].members:
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
    live, broker, bootstrap_servers
):
    run = live.ada.trigger(DAG_ID, {"to_datetime": live.to})
    asked = live.request_of(DAG_ID, run)
    assert (
        f"of {FLEET} pipelines: {FLEET * 3} records are read again, {FLEET * 5} until the log end"
        in asked["body"]
    )
    with reading(live, bootstrap_servers, broker, live.names[FAILS]):
        live.bob.respond(DAG_ID, run, asked["options"][0])
        live.ended(DAG_ID, run, SECONDS)
    took("plan", [live.api("GET", f"dags/{DAG_ID}/dagRuns/{run}/taskInstances/plan")])
    resets = instances(live, run, "reset")
    took("reset", resets)
    states = [each["state"] for each in resets]
    assert states[FAILS] == "failed"
    assert 2 <= states.count("failed") == FLEET - states.count("success") < FLEET
    assert live.api("GET", f"dags/{DAG_ID}/dagRuns/{run}")["state"] == "failed"
    assert at(live, broker) == [BACK if state == "success" else READ for state in states]
    # Cleared without the others that have not moved: the run must not succeed without them.
    live.clear(DAG_ID, run, ["reset", FAILS], downstream=True)
    live.ended(DAG_ID, run, SECONDS)
    assert live.api("GET", f"dags/{DAG_ID}/dagRuns/{run}")["state"] == "failed"
    assert at(live, broker) == [BACK if state == "success" else READ for state in states]
    named = [each["rendered_map_index"] for each in resets if each["state"] == "success"]
    assert set(named) <= set(live.names)

    back = live.ada.trigger(TAKE_BACK, {"run_id": run})
    live.ended(TAKE_BACK, back, SECONDS)
    took("restore", instances(live, back, "restore", TAKE_BACK))
    assert live.api("GET", f"dags/{TAKE_BACK}/dagRuns/{back}")["state"] == "success"
    assert at(live, broker) == [READ] * FLEET
    moved = [(query.root / "_kafka_offsets" / "0002-restore").exists() for query in live.queries.values()]
    assert moved == [state == "success" for state in states]


@pytest.mark.long
def test_all_are_moved_found_in_step_and_waited_for(live, broker):
    run = live.ada.trigger(DAG_ID, {"to_datetime": live.to})
    asked = live.request_of(DAG_ID, run)
    # A pipeline that is removed from the file after the plan is moved and waited for all the same.
    listed = live.dags / "pipelines.yaml"
    listed.write_text("\n".join(listed.read_text(encoding="utf-8").splitlines()[1:]), encoding="utf-8")
    live.bob.respond(DAG_ID, run, asked["options"][0])
    live.wait_until(lambda: state_of(live, run, "check") in ENDED, "the check", SECONDS)
    resets = instances(live, run, "reset")
    took("reset", resets)
    assert [each["state"] for each in resets] == ["success"] * FLEET
    assert state_of(live, run, "check") == "success"
    assert at(live, broker) == [BACK] * FLEET
    # Airflow 3.3 fails a task whose trigger fires before the scheduler has read that its process ended.
    waiting = ["deferred"] * FLEET
    live.wait_until(
        lambda: [each["state"] for each in instances(live, run, "wait")] == waiting, "the waits", SECONDS
    )
    for name, query in live.queries.items():
        newest = SparkCheckpoint(query.location).read().batch_id
        assert newest is not None
        query.run(newest + 1, {live.topic: {0: END}})
        broker.commit(name, {TopicPartition(live.topic, 0): END})
    assert at(live, broker) == [END] * FLEET
    live.ended(DAG_ID, run, SECONDS)
    waits = instances(live, run, "wait")
    took("wait", waits)
    assert [each["state"] for each in waits] == ["success"] * FLEET
    assert live.api("GET", f"dags/{DAG_ID}/dagRuns/{run}")["state"] == "success"
