"""The example DAG, whole: real events, a real Kafka, a real Spark; days in order, and one of them twice."""

import hashlib
import json
import runpy
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from pyarrow import parquet

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.demo_days import MARK
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

DAG_FILE = Path(__file__).parents[2] / "dags_examples" / "daily_flights.py"
GROUP = "flights-daily"
FIRST, SECOND, THIRD = "2013-01-01", "2013-01-02", "2013-01-03"
LEFT = {FIRST: 838, SECOND: 935, THIRD: 904}
AIRPORTS = ("EWR", "JFK", "LGA")

DAY_WITHOUT_COMMIT = """
import sys
from airflow_kafka_offsets.local import demo_days

run_day = demo_days.run_day

class WithoutCommit:
    def __init__(self, dag):
        self.dag = dag

    def test(self, **parameters):
        return self.dag.test(mark_success_pattern="commit", **parameters)

demo_days.run_day = lambda dag, day: run_day(WithoutCommit(dag), day)
raise SystemExit(demo_days.main(sys.argv[1], sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def two_days(first_day, run_days):
    return [first_day.results, *run_days(SECOND)]


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
        assert day["commit"]["moved_by"] == records
        assert day["publish"] == {"day": day["day"], "rows": records}
        table = parquet.read_table(
            output / "flights" / f"day={day['day']}" / "flights.parquet", partitioning=None
        )
        assert len(set(table.column("id").to_pylist())) == table.num_rows == records


def test_the_offsets_of_one_day_begin_where_those_of_the_day_before_end(two_days):
    first, second = (day["commit"] for day in two_days)
    assert second["before"] == first["after"]
    assert first["source"]["query_id"] == second["source"]["query_id"]
    assert sum(second["after"]["flights"].values()) == LEFT[FIRST] + LEFT[SECOND]


def test_the_gate_saw_the_end_of_the_topic(two_days):
    assert all(day["gate"]["reached"] and day["gate"]["remaining"] == 0 for day in two_days)


def test_a_summary_has_the_departures_of_each_airport(two_days, output):
    summary = parquet.read_table(output / "summary" / f"day={FIRST}" / "summary.parquet", partitioning=None)
    assert summary.column("origin").to_pylist() == ["EWR", "JFK", "LGA"]
    assert sum(summary.column("flights").to_pylist()) == LEFT[FIRST]


def test_kafkas_own_tool_shows_lag_0(two_days, kafka_tools):
    rows = kafka_tools.describe_rows(GROUP)
    assert sum(row["current_offset"] for row in rows) == LEFT[FIRST] + LEFT[SECOND]
    assert [row["lag"] for row in rows] == [0, 0, 0]


@pytest.mark.long
def test_a_day_run_twice_gives_the_same_records_files_and_offsets(two_days, run_days, output, kafka_tools):
    files, offsets = checksums(output), kafka_tools.describe_rows(GROUP)
    (again,) = run_days(SECOND)
    assert again["produce"]["written"] == 0
    assert again["commit"]["changed"] == 0
    assert checksums(output) == files
    assert kafka_tools.describe_rows(GROUP) == offsets


def tables(output):
    """Rows in their order, and types; not bytes: a JVM lists a column's encodings in an order of its own."""
    return {
        file.relative_to(output): parquet.read_table(file, partitioning=None)
        for file in sorted(output.rglob("*.parquet"))
    }


@pytest.fixture(scope="module")
def third_day():
    return list(runpy.run_path(str(DAG_FILE))["departures"](date.fromisoformat(THIRD)))


@pytest.fixture(scope="module")
def ids_of_third_day(output):
    def read():
        file = output / "flights" / f"day={THIRD}" / "flights.parquet"
        return sorted(parquet.read_table(file, partitioning=None).column("id").to_pylist())

    return read


@pytest.fixture(scope="module")
def half_a_day(two_days, third_day, run_days, output, produce):
    """
    Spark was killed after it wrote the second day's batch, and the producer in the middle of the third day.

    The second day is run again. Returns the tables before and after.
    """
    before = tables(output)
    commits = output.parent / "checkpoint" / "commits"
    newest = max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink()
    records = [
        {
            "partition": AIRPORTS.index(event["origin"]),
            "key": event["origin"],
            "value": json.dumps(event),
            "timestamp": event["timestamp"],
        }
        for event in third_day[: LEFT[THIRD] // 2]
    ]
    produce("flights", records)
    run_days(SECOND)
    assert newest.exists()
    return before, tables(output)


@pytest.mark.long
def test_a_batch_that_spark_replays_gives_the_same_rows(half_a_day):
    before, after = half_a_day
    assert {file: after[file] for file in before} == before


@pytest.mark.long
def test_half_a_day_is_completed_and_the_gate_is_deferred_until_somebody_commits(
    airflow, half_a_day, third_day, ids_of_third_day, bootstrap_servers
):
    half = LEFT[THIRD] // 2
    assert ids_of_third_day() == [event["id"] for event in third_day[:half]]
    command = [sys.executable, "-c", DAY_WITHOUT_COMMIT, str(DAG_FILE), THIRD]
    said, deferred = [], False
    with subprocess.Popen(
        command,
        env=airflow.environment,
        cwd=airflow.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout
        for line in run.stdout:
            said.append(line)
            if "running trigger in line" in line:
                deferred = True
                with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
                    logs = client.log_ranges([TopicPartition("flights", number) for number in range(3)])
                    client.commit(GROUP, {tp: log.end for tp, log in logs.items()})
    assert run.returncode == 0, "".join(said)[-4000:]
    assert deferred
    (told,) = [json.loads(line.removeprefix(MARK)) for line in said if line.startswith(MARK + '{"day"')]
    assert told["produce"] == {"day": THIRD, "records": LEFT[THIRD], "written": LEFT[THIRD] - half}
    assert told["gate"]["reached"] is True
    assert told["publish"] == {"day": THIRD, "rows": LEFT[THIRD]}
    assert ids_of_third_day() == [event["id"] for event in third_day]
