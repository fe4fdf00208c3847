"""
The package on an Airflow of several machines' parts: two schedulers, two triggerers, with LocalExecutor and
with Celery.

Run it with ``LONG_TESTS=yes pytest tests/system/test_large_airflow.py``. What is missing for Celery, and how
to install it, is the reason of the skipped tests.
"""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from large_airflow import CELERY, EXECUTORS, LargeAirflow, missing_for, redis
from running_airflow import SCHEDULER, SECOND, TRIGGERER
from written_query import Query

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
NAMES = ("committed", "moved", "awaited", "woken")
PARTITIONS = (0, 1)
SEVERAL_POLLS = 8.0
GONE = 60.0


@pytest.fixture(scope="module", params=EXECUTORS)
def large(request, postgres, bootstrap_servers, make_topic, tmp_path_factory):
    executor = request.param
    if reason := missing_for(executor):
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("large")
    topics = {name: make_topic(len(PARTITIONS)) for name in NAMES}
    with ExitStack() as stack:
        broker = stack.enter_context(redis(home / "redis")) if executor == CELERY else None
        airflow = LargeAirflow(
            home,
            bootstrap_servers,
            [HERE / "large_dags" / "large.py"],
            postgres,
            broker=broker,
            LAKE=str(home / "lake"),
            **{f"{name.upper()}_TOPIC": topics[name] for name in NAMES},
        )
        airflow.topics = topics
        yield stack.enter_context(airflow)
        print(f"{executor}: {airflow.figures()}")


@pytest.fixture(scope="module")
def topics(large):
    return large.topics


@pytest.fixture
def group_at(broker, topics):
    """group_at(name) -> the offsets that its group has committed."""

    def committed(name):
        wanted = [TopicPartition(topics[name], number) for number in PARTITIONS]
        found = broker.committed(topics[name], wanted)
        return [None if commit is None else commit.offset for commit in found.values()]

    return committed


@pytest.fixture
def commit(broker, topics):
    def to(name, *offsets):
        partitions = [TopicPartition(topics[name], number) for number in PARTITIONS]
        broker.commit(topics[name], dict(zip(partitions, offsets, strict=True)))

    return to


def write_checkpoint(root, topic, *batches):
    """A checkpoint whose batches ended at these offsets."""
    query = Query(root, root.name)
    for number, offsets in enumerate(batches):
        query.run(number, {topic: dict(enumerate(offsets))})
    return query


def test_a_commit_a_deferred_wait_a_check_and_the_dag_that_follows(large, topics, produce, group_at):
    before = len(large.runs("follows"))
    produce(topics["committed"], {0: 4, 1: 3})
    write_checkpoint(large.home / "lake" / "checkpoints" / "committed", topics["committed"], (1, 1), (4, 3))
    run_id = large.trigger("committed")
    large.wait_for_runs("committed", 1)
    assert set(large.states("committed", run_id).values()) == {"success"}
    assert group_at("committed") == [4, 3]
    assert large.xcom("committed", run_id, "fresh")["total_lag"] == 0
    assert large.xcom("committed", run_id, "check")["drifted"] is False
    assert len(large.wait_for_runs("follows", 1)) == before + 1


def test_a_failed_run_puts_its_reset_back(large, topics, produce, group_at, commit):
    produce(topics["moved"], {0: 4, 1: 3})
    checkpoint = large.home / "lake" / "checkpoints" / "moved"
    query = write_checkpoint(checkpoint, topics["moved"], (1, 1), (4, 3))
    commit("moved", 4, 3)
    run_id = large.trigger("moved")
    large.wait_for_runs("moved", 1, "failed")
    # The restore fails too, when all is put back: else its success would be that of the run.
    states = large.states("moved", run_id)
    assert states == {"reset": "success", "process": "failed", "restore": "failed"}
    assert large.xcom("moved", run_id, "reset")["after"] == {topics["moved"]: {"0": 0, "1": 0}}
    assert group_at("moved") == [4, 3]
    assert query.stands() == {0: 4, 1: 3}


def test_every_route_of_the_offsets_tab(large, topics):
    found = large.tab("/api/pipelines")
    assert found["problems"] == []
    pipelines = {pipeline["groups"][0]: pipeline for pipeline in found["pipelines"]}
    assert pipelines.keys() >= {topics["committed"], topics["moved"]}
    newest = {}
    for dag_id, kinds in (("committed", {"commit"}), ("moved", {"reset", "restore"})):
        (pipeline,) = large.tab(f"/api/dags/{dag_id}/pipelines")["pipelines"]
        past = large.tab(f"/api/dags/{dag_id}/pipelines/{pipeline['key']}/history")
        assert past["problems"] == []
        assert {move["kind"] for move in past["moves"]} >= kinds
        newest[dag_id] = past["moves"][-1]
        assert past["batches"]
        now = large.tab(f"/api/dags/{dag_id}/pipelines/{pipeline['key']}/now")
        assert now["error"] is None
        assert large.tab(f"/dags/{dag_id}").startswith("<!")
    move = newest["moved"]
    assert move["kind"] == "restore"
    of = f"/dags/moved/runs/{move['run_id']}/tasks/reset/-1"
    assert large.tab(of).startswith("<!")
    instance = large.tab(f"/api{of}")
    assert (instance["operator"], instance["receipt"]["totals"]["partitions"]) == ("ResetOffsetsOperator", 2)
    assert large.tab(f"/api{of}/now")["problems"] == []
    assert large.tab("/").startswith("<!")
    assert large.tab("/static/offsets.js")


def test_a_backlog_wakes_a_dag_once_and_the_dag_reads_a_window(large, topics, produce, group_at):
    before = len(large.runs("woken"))
    for number in range(1, 4):
        produce(topics["woken"], {0: 60, 1: 60})
        large.wait_for_runs("woken", before + number)
        large.wait_until(lambda: not fired(large), "the trigger to see that the lag has fallen")
    time.sleep(SEVERAL_POLLS)
    assert len(large.runs("woken")) == len(large.events("large_backlog")) == before + 3
    assert len(set(group_at("woken"))) == 1


def test_waits_end_on_the_other_triggerer_and_scheduler(large, topics, produce, commit, group_at):
    produce(topics["awaited"], {0: 5, 1: 5})
    commit("awaited", 1, 1)
    run_id = large.trigger("awaited")
    large.wait_until(
        lambda: large.states("awaited", run_id) == {"lag": "deferred", "reached": "deferred"}, "both deferred"
    )
    large.wait_until(lambda: None not in large.triggerer_of("awaited", run_id), "a triggerer")
    (holder, *more) = large.triggerer_of("awaited", run_id)
    assert not more
    produce(topics["awaited"], {0: 3, 1: 3})
    other = TRIGGERER if holder != TRIGGERER else TRIGGERER + SECOND
    large.kill(holder)
    large.kill(SCHEDULER)
    large.wait_until(lambda: large.triggerer_of("awaited", run_id) == {other}, "the other triggerer")
    commit("awaited", 5, 5)
    large.wait_until(lambda: large.states("awaited", run_id)["reached"] == "success", "the target")
    assert large.states("awaited", run_id)["lag"] == "deferred"
    commit("awaited", 8, 8)
    large.wait_until(lambda: large.states("awaited", run_id)["lag"] == "success", "the lag")
    # The log end when the wait began, and not that of the second triggerer.
    target = {topics["awaited"]: {"0": 5, "1": 5}}
    assert large.xcom("awaited", run_id, "reached")["target"] == target
    assert large.xcom("awaited", run_id, "lag")["total_lag"] == 0
    # What watches has moved too.
    before = len(large.runs("woken"))
    produce(topics["woken"], {0: 60, 1: 60})
    large.wait_for_runs("woken", before + 1)
    time.sleep(SEVERAL_POLLS)
    assert len(large.runs("woken")) == before + 1
    large.add(holder)
    large.add(SCHEDULER)


def test_a_triggerer_that_was_frozen_goes_on_beside_the_other_one(large, topics, produce):
    """Both have the trigger then, and an event may come twice: the second run finds nothing to do."""
    before = len(large.runs("woken"))
    (frozen,) = large.watchers()
    signal_all(large, frozen, signal.SIGSTOP)
    large.wait_until(lambda: len(large.alive(TRIGGERER)) == 1, "the frozen one to be missed")
    produce(topics["woken"], {0: 60, 1: 60})
    large.wait_for_runs("woken", before + 1)
    signal_all(large, frozen, signal.SIGCONT)
    large.wait_until(lambda: len(large.alive(TRIGGERER)) == 2, "both")
    for number in (2, 3):
        produce(topics["woken"], {0: 60, 1: 60})
        large.wait_for_runs("woken", before + number)
        time.sleep(SEVERAL_POLLS)
    runs = large.runs("woken")
    print(f"{len(runs) - before} runs for 3 backlogs, and a triggerer that was frozen during the first one")
    assert {run["state"] for run in runs} == {"success"}
    assert before + 3 <= len(runs) <= before + 4


def fired(airflow):
    return any(kept["fired_at"] for kept in airflow.asset_state("large_backlog").values())


def signal_all(airflow, component, how):
    parent = psutil.Process(airflow.pid(component))
    for each in (parent, *parent.children(recursive=True)):
        os.kill(each.pid, how)
