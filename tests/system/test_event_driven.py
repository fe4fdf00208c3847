"""
DAGs that wait for lag, DAGs that lag or a commit wakes, and a refusal: on a real scheduler and a real
triggerer.
"""

import time
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from running_airflow import TRIGGERER, RunningAirflow, needs_asset_state
from written_query import Query

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(400)]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "dags_examples"
DEADLINE = 30.0
CROSSINGS = 3
REGIONS = ("asia", "europe", "america")
REFIRE_AFTER = timedelta(seconds=25)
SEVERAL_POLLS = 5.0


@pytest.fixture(scope="module")
def names(make_topic):
    """What the DAGs find in their environment: a topic and a group for each."""
    dags = ("CROSSINGS", "IDLE", "LEFT", "WAITING")
    topics = {f"{dag}_TOPIC": make_topic(2) for dag in dags}
    return topics | {f"{dag}_GROUP": topics[f"{dag}_TOPIC"] for dag in dags}


@pytest.fixture(scope="module")
def live(
    bootstrap_servers, names, make_topic, wait_for_topic, produce, spark_settings, postgres, tmp_path_factory
):
    """The Airflow of this module. The connector that the example names is fetched for spark_settings."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    new = NewTopic("clicks", num_partitions=2)
    admin.create_topics([new], request_timeout=DEADLINE)["clicks"].result(DEADLINE)
    wait_for_topic("clicks", 2)
    home = tmp_path_factory.mktemp("live")
    quick = spark_settings["spark.driver.extraJavaOptions"]
    java = dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), quick)
    dags = [
        *(HERE / "live_dags").glob("*.py"),
        *(EXAMPLES / name for name in ("event_driven.py", "many_pipelines.py")),
    ]
    orders = make_topic(1)
    produce(orders, {0: len(REGIONS)})
    for number, region in enumerate(REGIONS, 1):
        query = Query(home / "lake" / "checkpoints" / f"orders-{region}", f"orders-{region}")
        query.run(0, {orders: {0: number}})
    with RunningAirflow(
        home,
        bootstrap_servers,
        dags,
        postgres,
        LAKE=str(home / "lake"),
        REGIONS=",".join(REGIONS),
        CLEARS_NOTES=str(home / "clears.txt"),
        POLL_INTERVAL="1",
        REFIRE_AFTER=str(REFIRE_AFTER.seconds),
        **names,
        **java,
    ) as airflow:
        # What these start goes on while the first tests run.
        produce(names["IDLE_TOPIC"], {0: 60, 1: 60})
        produce(names["LEFT_TOPIC"], {0: 1})
        produce("clicks", {0: 5_000, 1: 5_000})
        for dag_id in ("many_pipelines", "refused"):
            airflow.trigger(dag_id)
        yield airflow


@pytest.fixture(scope="module")
def spark_has_run(live, produce):
    """The run after 10,000 records; and when 100 more came after it."""
    (run,) = live.wait_for_runs("event_driven", 1)
    produce("clicks", {0: 50, 1: 50})
    return run, time.monotonic()


def above(live, asset):
    """
    Whether the trigger of an asset has written down that it has fired, and the lag has not fallen since.
    """
    return any(kept["fired_at"] for kept in live.asset_state(asset).values())


def offsets(topic, offset):
    return dict.fromkeys([TopicPartition(topic, 0), TopicPartition(topic, 1)], offset)


def test_a_trigger_that_cannot_be_used_does_not_end_the_triggerer(live):
    run_id = live.trigger("left_behind")
    live.wait_for_runs("left_behind", 1, "failed")
    assert live.states("left_behind", run_id) == {"lag": "failed"}
    said = live.log_file(TRIGGERER)
    live.wait_until(
        lambda: "This trigger cannot be used" in said.read_text(), "what is wrong with the watcher"
    )
    # The same triggerer serves the others: from the beginning, and all tests that follow.
    live.wait_until(lambda: live.events("idle_backlog"), "the event of another watcher")
    assert live.runs("never") == []
    assert said.read_text().count("This trigger cannot be used") == 1


@needs_asset_state
@pytest.mark.long
def test_what_waits_in_the_triggerer_outlives_it(live, names, produce, broker):
    topic, group = names["WAITING_TOPIC"], names["WAITING_GROUP"]
    produce(topic, {0: 5, 1: 5})
    broker.commit(group, offsets(topic, 1))
    run_id = live.trigger("waiting")
    live.wait_until(
        lambda: live.states("waiting", run_id) == {"lag": "deferred", "reached": "deferred"}, "both deferred"
    )
    produce(topic, {0: 3, 1: 3})
    # A restart between an event and the note of it would fire again.
    live.wait_until(
        lambda: above(live, "clicks_backlog") and above(live, "idle_backlog"), "notes of both events"
    )

    live.restart_triggerer()

    broker.commit(group, offsets(topic, 5))
    live.wait_until(lambda: live.states("waiting", run_id)["reached"] == "success", "the target")
    assert live.states("waiting", run_id)["lag"] == "deferred"
    broker.commit(group, offsets(topic, 8))
    live.wait_for_runs("waiting", 1)
    reached, lag = (live.xcom("waiting", run_id, task) for task in ("reached", "lag"))
    # The log end when the wait began, and not that of the second triggerer.
    assert reached["target"] == reached["current"] == {topic: {"0": 5, "1": 5}}
    assert lag["total_lag"] == 0


def test_spark_runs_once_for_ten_thousand_records(live, spark_has_run):
    run, _ = spark_has_run
    assert run["run_type"] == "asset_triggered"
    (event,) = live.events("clicks_backlog")
    assert event["extra"]["payload"]["total_lag"] >= 10_000
    receipt = live.xcom("event_driven", run["dag_run_id"], "commit")
    assert receipt["after"] == {"clicks": {"0": 5_000, "1": 5_000}}


@needs_asset_state
def test_each_crossing_starts_one_run(live, names, produce):
    topic = names["CROSSINGS_TOPIC"]
    for number in range(1, CROSSINGS + 1):
        produce(topic, {0: 40, 1: 40})  # not enough yet
        produce(topic, {0: 40, 1: 40})
        live.wait_until(lambda: above(live, "backlog"), "the trigger to see that the lag has risen")
        live.wait_for_runs("crossings", number)
        live.wait_until(lambda: not above(live, "backlog"), "the trigger to see that the lag has fallen")
    assert len(live.runs("crossings")) == CROSSINGS
    assert len(live.events("backlog")) == CROSSINGS


def test_a_mapped_commit_tells_the_asset_of_its_own_group(live):
    live.wait_for_runs("many_pipelines", 1)
    for number, region in enumerate(REGIONS, 1):
        (event,) = live.events(f"orders of {region}")
        assert event["extra"]["group_id"] == f"orders-{region}"
        assert event["extra"]["moved_by"] == number
        assert len(live.wait_for_runs(f"after_orders_of_{region}", 1)) == 1


def test_an_alias_stands_for_the_asset_of_the_group_that_is_committed(live):
    live.trigger("pipelines_of_a_list")
    live.wait_for_runs("pipelines_of_a_list", 1)
    for region in REGIONS:
        _, event = live.events(f"orders of {region}")
        assert (event["extra"]["group_id"], event["source_dag_id"]) == (
            f"orders-{region}",
            "pipelines_of_a_list",
        )
        assert len(live.wait_for_runs(f"after_orders_of_{region}", 2)) == 2
    assert live.wait_for_runs("after_any_orders", 1)


def test_a_refusal_stands_in_the_log_once_and_its_plan_says_that_it_was_not_carried_out(live):
    live.wait_for_runs("refused", 1, "failed")
    (log,) = (live.home / "airflow" / "logs" / "dag_id=refused").rglob("*.log")
    plan = "group refused (refused, not applied): 2 of 2 partitions change"
    # Airflow tells a task's state before the last lines of its log.
    live.wait_until(lambda: plan in log.read_text(), "the plan in the log")
    assert log.read_text().count("is outside its log") == 1


def test_a_retry_and_a_clear_are_told_apart(live):
    run_id = live.trigger("clears")
    live.wait_for_runs("clears", 1)
    live.clear("clears", run_id, "note")
    notes = live.home / "clears.txt"
    live.wait_until(lambda: len(notes.read_text().split()) == 3, "the task to run again")
    first, retried, cleared = notes.read_text().split()
    assert first == retried != cleared


def test_a_backlog_that_stays_fires_again_after_a_while_and_not_before(live):
    live.wait_for_runs("idle", 3)
    times = [datetime.fromisoformat(event["timestamp"]) for event in live.events("idle_backlog")]
    # Also from one triggerer to the next. An event bears the time at which it was stored: late on a busy
    # machine. Too early would be at the next poll, after a second.
    assert min(later - earlier for earlier, later in pairwise(times)) > REFIRE_AFTER / 2


def test_a_hundred_records_run_nothing(live, spark_has_run):
    _, since = spark_has_run
    live.wait_until(lambda: time.monotonic() > since + SEVERAL_POLLS, "several polls of the trigger")
    assert len(live.runs("event_driven")) == 1
