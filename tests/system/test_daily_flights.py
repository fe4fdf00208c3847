"""The example DAG, whole: real events, a real Kafka, a real Spark; days in order, and one of them twice."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pyarrow import parquet

from airflow_kafka_offsets.local.demo_days import MARK

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

DAG_FILE = Path(__file__).parents[2] / "dags_examples" / "daily_flights.py"
GROUP = "flights-daily"
FIRST, SECOND = "2013-01-01", "2013-01-02"
LEFT = {FIRST: 838, SECOND: 935}


@pytest.fixture(scope="module")
def run_days(airflow):
    """Runs the DAG for days, and returns what its tasks left in XCom."""

    def run(*days):
        done = airflow("-m", "airflow_kafka_offsets.local.demo_days", str(DAG_FILE), *days)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        told = [
            json.loads(line.removeprefix(MARK)) for line in done.stdout.splitlines() if line.startswith(MARK)
        ]
        return [results for results in told if "state" in results]

    return run


@pytest.fixture(scope="module")
def two_days(run_days):
    return run_days(FIRST, SECOND)


@pytest.fixture(scope="module")
def output(airflow):
    return airflow.home / "flights" / "output"


def checksums(output):
    files = sorted(output.rglob("*.*"))
    return {
        file.relative_to(output): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }


def test_each_day_commits_its_departures_and_is_published(two_days, output):
    for day in two_days:
        assert day["state"] == "success"
        records = LEFT[day["day"]]
        assert day["produce"] == {"day": day["day"], "records": records, "written": records}
        assert day["commit"]["records"] == records
        assert day["publish"] == {"day": day["day"], "rows": records}
        table = parquet.read_table(
            output / "flights" / f"day={day['day']}" / "flights.parquet", partitioning=None
        )
        assert len(set(table.column("id").to_pylist())) == table.num_rows == records


def test_the_offsets_of_one_day_begin_where_those_of_the_day_before_end(two_days):
    first, second = (day["commit"] for day in two_days)
    assert second["before"] == first["after"]
    assert first["source"]["query_id"] == second["source"]["query_id"]
    assert sum(second["after"]["flights"].values()) == sum(LEFT.values())


def test_the_gate_saw_the_end_of_the_topic(two_days):
    assert all(day["gate"]["reached"] and day["gate"]["remaining"] == 0 for day in two_days)


def test_a_summary_has_the_departures_of_each_airport(two_days, output):
    summary = parquet.read_table(output / "summary" / f"day={FIRST}" / "summary.parquet", partitioning=None)
    assert summary.column("origin").to_pylist() == ["EWR", "JFK", "LGA"]
    assert sum(summary.column("flights").to_pylist()) == LEFT[FIRST]


def test_kafkas_own_tool_shows_lag_0(two_days, kafka_tools):
    rows = kafka_tools.describe_rows(GROUP)
    assert sum(row["current_offset"] for row in rows) == sum(LEFT.values())
    assert [row["lag"] for row in rows] == [0, 0, 0]


def test_a_day_run_twice_gives_the_same_records_files_and_offsets(two_days, run_days, output, kafka_tools):
    files, offsets = checksums(output), kafka_tools.describe_rows(GROUP)
    (again,) = run_days(SECOND)
    assert again["produce"]["written"] == 0
    assert again["commit"]["changed"] == 0
    assert checksums(output) == files
    assert kafka_tools.describe_rows(GROUP) == offsets
