"""The example of an audited window, whole: a good day is committed, and a day with a loss is not."""

from __future__ import annotations

import json
import runpy
from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from airflow_kafka_offsets.model.certificate import Certificate

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
DAYS = ("2013-01-01", "2013-01-02")
GROUP = "flights-audited"
# A sink that drops one record without a word.
LOSE = (
    "CREATE FUNCTION lose() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql",
    "CREATE TRIGGER lossy BEFORE INSERT ON flights_bronze FOR EACH ROW "
    'WHEN (NEW.partition = 1 AND NEW."offset" = 400) EXECUTE FUNCTION lose()',
)
MEND = ("DROP TRIGGER lossy ON flights_bronze", "DROP FUNCTION lose()")


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    """Two days of flights, in the order in which they left."""
    flights = runpy.run_path(str(EXAMPLES / "daily_flights.py"))
    events = [event for day in DAYS for event in flights["departures"](date.fromisoformat(day))]
    name = make_topic(3, config={"retention.ms": "-1"})
    produce(
        name,
        [
            {
                "partition": flights["AIRPORTS"].index(event["origin"]),
                "value": json.dumps(event),
                "timestamp": event["timestamp"],
            }
            for event in sorted(events, key=lambda event: event["timestamp"])
        ],
    )
    return name


@pytest.fixture
def database(postgres):
    """database(statement, ...) runs statements; the table is dropped at the end."""
    engine = create_engine(postgres.url)

    def run(*statements):
        with engine.begin() as connection:
            return [connection.execute(text(each)) for each in statements][-1]

    yield run
    run("DROP TABLE IF EXISTS flights_bronze CASCADE")
    engine.dispose()


def test_a_good_day_is_certified_and_committed_and_a_loss_stops_the_commit(
    run_dag, topic, postgres, database, kafka_tools
):
    variables = {"FLIGHTS_TOPIC": topic, "AIRFLOW_CONN_LAKE": json.dumps(postgres.airflow_connection)}

    def run(day):
        return run_dag("audited_window.py", logical_date=f"{day}T00:00:00-05:00", variables=variables)

    first = run("2013-01-02")
    assert first["state"] == "success", first["states"]
    found = Certificate.parse(first["results"]["audit"])
    assert found.verdict == "complete"
    assert found.counts["rows"] == found.counts["offsets"] == first["results"]["plan"]["records"] > 800
    print(found.as_text())
    committed = {row["partition"]: row["current_offset"] for row in kafka_tools.describe_rows(GROUP)}
    assert {topic: {str(number): at for number, at in committed.items()}} == first["results"]["plan"]["end"]

    database(*LOSE)
    second = run("2013-01-04")
    assert second["state"] == "failed"
    assert second["states"] == {
        "plan": "success", "load": "success", "audit": "failed", "commit": "upstream_failed"
    }  # fmt: skip
    found = Certificate.parse(second["results"]["audit"])
    assert found.verdict == "incomplete"
    assert found.as_json()["lost"] == {topic: {"1": [[400, 401]]}}
    print(found.summary(), found.findings())
    after = {row["partition"]: row["current_offset"] for row in kafka_tools.describe_rows(GROUP)}
    assert after == committed

    database(*MEND)
    third = run("2013-01-05")
    assert third["state"] == "success"
    assert third["results"]["plan"]["start"] == first["results"]["plan"]["end"]
    assert Certificate.parse(third["results"]["audit"]).verdict == "complete"
