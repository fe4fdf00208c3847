"""The example of an audited window, whole: a day with a loss is not committed, and is once it is mended."""

import json

import pytest
from sqlalchemy import create_engine, text

from airflow_kafka_offsets.model.certificate import Certificate
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

GROUP = "flights-audited"
# A sink that drops one record without a word.
LOSE = (
    'CREATE TABLE flights_bronze (topic TEXT, partition INTEGER, "offset" BIGINT, value TEXT, run_id TEXT)',
    "CREATE FUNCTION lose() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql",
    "CREATE TRIGGER lossy BEFORE INSERT ON flights_bronze FOR EACH ROW "
    'WHEN (NEW.partition = 1 AND NEW."offset" = 200) EXECUTE FUNCTION lose()',
)
MEND = ("DROP TRIGGER lossy ON flights_bronze", "DROP FUNCTION lose()")


@pytest.fixture(scope="module")
def topic(two_days_of_flights):
    return two_days_of_flights


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


def test_a_loss_stops_the_commit_and_the_mended_window_is_certified_and_committed(
    run_dag, topic, postgres, database, broker, kafka_tools
):
    variables = {"FLIGHTS_TOPIC": topic, "AIRFLOW_CONN_LAKE": json.dumps(postgres.airflow_connection)}

    def run(day):
        return run_dag("audited_window.py", logical_date=f"{day}T00:00:00-05:00", variables=variables)

    def committed():
        rows = kafka_tools.describe_rows(GROUP)
        return {topic: {str(row["partition"]): row["current_offset"] for row in rows}}

    broker.commit(GROUP, dict.fromkeys((TopicPartition(topic, number) for number in range(3)), 0))
    database(*LOSE)
    first = run("2013-01-02")
    assert first["state"] == "failed"
    assert first["states"] == {
        "plan": "success", "load": "success", "audit": "failed", "commit": "upstream_failed"
    }  # fmt: skip
    found = Certificate.parse(first["results"]["audit"])
    assert found.verdict == "incomplete"
    assert found.as_json()["lost"] == {topic: {"1": [[200, 201]]}}
    print(found.summary(), found.findings())
    assert committed() == first["results"]["plan"]["start"]

    database(*MEND)
    second = run("2013-01-03")
    assert second["state"] == "success", second["states"]
    assert second["results"]["plan"]["start"] == first["results"]["plan"]["start"]
    found = Certificate.parse(second["results"]["audit"])
    assert found.verdict == "complete"
    assert found.counts["rows"] == found.counts["offsets"] == second["results"]["plan"]["records"] > 800
    print(found.as_text())
    assert committed() == second["results"]["plan"]["end"]
