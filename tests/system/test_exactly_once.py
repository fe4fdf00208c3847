"""Departures counted in a database, with the offsets they come from, and published to the group."""

import json
from collections import Counter

import pytest
from pyarrow import parquet
from sqlalchemy import create_engine, text

from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark.stores import SqlOffsetStore

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

DAY = "2013-01-01"
GROUP = "flights-counted"


@pytest.fixture(scope="module")
def flights(first_day, output):
    """{(day, airport): departures} of all that is in the topic, as the daily DAG has them."""
    counted = Counter()
    for file in output.glob("flights/day=*/flights.parquet"):
        for row in parquet.read_table(file, partitioning=None).to_pylist():
            counted[row["day"], row["origin"]] += 1
    return counted


@pytest.fixture(scope="module")
def database(postgres):
    engine = create_engine(postgres.url)
    yield engine
    engine.dispose()


def counts(database):
    with database.connect() as connection:
        rows = connection.execute(text("SELECT day, origin, flights FROM departures")).all()
    return {(day, origin): number for day, origin, number in rows}


def test_flights_are_added_to_the_counts_and_the_group_is_where_the_database_is(
    flights, run_dag, postgres, database, broker_end, kafka_tools
):
    connection = json.dumps(postgres.airflow_connection)
    with database.begin() as there:
        there.execute(
            text(
                "CREATE TABLE departures "
                "(day TEXT, origin TEXT, flights BIGINT, late BIGINT, PRIMARY KEY (day, origin))"
            )
        )
        there.execute(text("INSERT INTO departures VALUES (:day, 'JFK', 1000, 0)"), {"day": DAY})

    done = run_dag("exactly_once.py", variables={"AIRFLOW_CONN_DEPARTURES": connection})

    assert done["state"] == "success", done["states"]
    assert counts(database) == flights + Counter({(DAY, "JFK"): 1000})
    ends = {TopicPartition("flights", number): end for number, end in broker_end("flights").items()}
    assert SqlOffsetStore(database).load(GROUP) == ends
    assert [row["lag"] for row in kafka_tools.describe_rows(GROUP)] == [0, 0, 0]
