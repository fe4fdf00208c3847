"""Departures counted in a database: the example, and what happens when Spark runs a batch again."""

from __future__ import annotations

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
def flights(run_days, output):
    """{(day, airport): departures} of all that is in the topic, as the daily DAG has them."""
    if not (output / "published" / f"{DAY}.json").exists():
        run_days(DAY)
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


def test_flights_are_counted_once_also_in_a_batch_that_runs_again(
    flights,
    run_dag,
    airflow,
    postgres,
    database,
    broker_end,
    kafka_tools,
):
    variables = {"AIRFLOW_CONN_DEPARTURES": json.dumps(postgres.airflow_connection)}

    first = run_dag("exactly_once.py", variables=variables)
    assert first["state"] == "success", first["states"]
    assert counts(database) == flights

    # What a crash leaves after the database's commit: the batch is begun in the checkpoint, and not done.
    checkpoint = airflow.home / "flights" / "counted" / "checkpoint"
    last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    again = run_dag("exactly_once.py", variables=variables)
    assert again["state"] == "success", again["states"]
    assert (checkpoint / "commits" / f"{last}").exists()
    assert counts(database) == flights

    ends = {TopicPartition("flights", number): end for number, end in broker_end("flights").items()}
    assert SqlOffsetStore(database).load(GROUP) == ends
    assert [row["lag"] for row in kafka_tools.describe_rows(GROUP)] == [0, 0, 0]
