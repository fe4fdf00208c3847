"""
Lineage as the OpenLineage provider and Spark's own OpenLineage agent emit it: one graph.

The events of a whole run of the daily DAG, each side in a file of its own, and those of a commit that fails.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from breakable_kafka import BreakableKafka
from java_programs import openlineage_spark
from openlineage_schemas import check_event
from running_airflow import make_sqlite

from airflow_kafka_offsets.local.demo import demo_environment
from airflow_kafka_offsets.model.lineage import LAG, MOVE, RANGES

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
REFUSED = Path(__file__).parent / "lineage_dags" / "refused.py"
DAY, DEPARTURES, PARTITIONS = "2013-01-01", 838, 3
LONG = 300.0

RUN = """
import importlib, sys
from datetime import datetime, timezone
from airflow_kafka_offsets.local import demo_days

day_ended = demo_days.main(*sys.argv[1:2], sys.argv[3:])
run = importlib.import_module(sys.argv[2]).dag.test(logical_date=datetime.now(tz=timezone.utc))
print(f"\\n@@ {day_ended} {run.state}")
"""


def read(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


class Events:
    """The events of both sides."""

    def __init__(self, namespace, airflow, spark):
        self.namespace = namespace
        self.airflow = airflow
        self.spark = spark

    def of(self, task, kind):
        (event,) = (each for each in self.airflow if (each["job"]["name"], each["eventType"]) == (task, kind))
        return event


def kafka_inputs(events):
    return {
        (each["namespace"], each["name"])
        for event in events
        for each in event.get("inputs", ())
        if each["namespace"].startswith("kafka")
    }


@pytest.fixture(scope="module")
def events(run_directory, tmp_path_factory, spark_settings):
    """The events of one day of flights, and of a commit that is refused."""
    home = tmp_path_factory.mktemp("lineage")
    airflow_file, spark_file, conf = home / "airflow.jsonl", home / "spark.jsonl", home / "conf"
    conf.mkdir()
    settings = {
        "spark.driver.extraJavaOptions": spark_settings["spark.driver.extraJavaOptions"],
        "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
        "spark.jars": ",".join(map(str, openlineage_spark())),
        "spark.openlineage.transport.type": "file",
        "spark.openlineage.transport.location": str(spark_file),
    }
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (conf / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    # Airflow parses all of its folder at each run.
    dags = home / "dags"
    shutil.copytree(EXAMPLES / "jobs", dags / "jobs")
    flights = shutil.copy(EXAMPLES / "daily_flights.py", dags)
    refused = shutil.copy(REFUSED, dags)
    transport = {"type": "file", "log_file_path": str(airflow_file), "append": True}
    with BreakableKafka() as kafka:
        environment = demo_environment(home, dags, kafka.bootstrap_servers) | {
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "flights",
            "AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO": "True",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "SPARK_CONF_DIR": str(conf),
        }
        make_sqlite(environment, home, run_directory)
        done = subprocess.run(
            [sys.executable, "-c", RUN, flights, Path(refused).stem, DAY],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert "@@ 0 failed" in done.stdout.splitlines(), done.stdout[-4000:] + done.stderr[-2000:]
        yield Events(f"kafka://{kafka.bootstrap_servers}", read(airflow_file), read(spark_file))


def test_spark_and_the_commit_name_the_same_topic(events):
    flights = {(events.namespace, "flights")}
    assert kafka_inputs(events.spark) == flights
    assert kafka_inputs([events.of("daily_flights.commit", "COMPLETE")]) == flights


def test_no_event_names_a_dataset_that_joins_nothing(events):
    for event in events.airflow:
        assert not event.get("outputs"), event["job"]["name"]
        assert kafka_inputs([event]) <= {(events.namespace, "flights")}


def test_the_commit_tells_its_ranges_its_move_and_the_lag(events):
    event = events.of("daily_flights.commit", "COMPLETE")
    assert check_event(event) == {RANGES, MOVE, LAG}
    (flights,) = event["inputs"]
    (group,) = flights["inputFacets"][RANGES]["groups"]
    assert (group["groupId"], group["state"]) == ("flights-daily", "written")
    assert (group["partitions"], group["offsetDifference"]) == (PARTITIONS, DEPARTURES)
    assert sum(entry["until"] for entry in group["ranges"]) == DEPARTURES
    # The group had no commit: where the job began to read, nobody knows.
    assert "inputStatistics" not in flights["inputFacets"]
    move = event["run"]["facets"][MOVE]
    assert (move["operation"], move["verified"], move["batchId"]) == ("commit", True, 0)
    assert event["run"]["facets"][LAG]["groups"] == [
        {"groupId": "flights-daily", "topics": [{"topic": "flights", "lag": 0}]}
    ]


def test_spark_is_a_child_of_the_task_that_started_it(events):
    process = events.of("daily_flights.process", "COMPLETE")["run"]["runId"]
    assert process in {event["run"]["facets"]["parent"]["run"]["runId"] for event in events.spark}


def test_a_commit_that_fails_tells_what_it_has_not_written(events):
    event = events.of("refused.commit", "FAIL")
    assert check_event(event) == {RANGES, MOVE}
    (flights,) = event["inputs"]
    (group,) = flights["inputFacets"][RANGES]["groups"]
    assert group["state"] == "not written"
    assert [entry["until"] for entry in group["ranges"]] == [1, 1_000_000_000]
    move = event["run"]["facets"][MOVE]
    assert (move["verified"], move["groups"][0]["written"]) == (False, "none")
