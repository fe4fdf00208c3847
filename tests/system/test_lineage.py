"""
Lineage as the OpenLineage provider and Spark's own OpenLineage agent emit it: one graph.

The events of a whole run of the daily DAG, each side in a file of its own, and those of a commit that fails.
"""

import json

import pytest
from openlineage_schemas import check_event

from airflow_kafka_offsets.model.lineage import LAG, MOVE, RANGES

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

DEPARTURES, PARTITIONS = 838, 3


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
def events(first_day, bootstrap_servers):
    """The events of one day of flights, and of a commit that is refused."""
    return Events(
        f"kafka://{bootstrap_servers}", read(first_day.airflow_events), read(first_day.spark_events)
    )


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
