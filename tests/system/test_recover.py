"""
The two recipes for a bad day: everything since, through group and checkpoint; or that day alone, as a batch.
"""

import runpy
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException
from pyarrow import parquet

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
FIRST, SECOND, THIRD = "2013-01-01", "2013-01-02", "2013-01-03"
LEFT = {FIRST: 838, SECOND: 935, THIRD: 904}
GROUP = "flights-daily"
SINCE = f"{SECOND}T00:00:00-05:00"
SINCE_MS = 1357102800000


@pytest.fixture(scope="module")
def three_days(run_days, output):
    missing = [day for day in LEFT if not (output / "published" / f"{day}.json").exists()]
    if missing:
        run_days(*missing)
    return output


@pytest.fixture(scope="module")
def stands(airflow, broker):
    """stands() -> where group and checkpoint are."""
    partitions = [TopicPartition("flights", number) for number in range(3)]

    def look():
        committed = broker.committed(GROUP, partitions)
        state = SparkCheckpoint(str(airflow.home / "flights" / "checkpoint")).read()
        return {tp: commit and commit.offset for tp, commit in committed.items()}, state.kafka_offsets["0"]

    return look


def table(output, day):
    file = output / "flights" / f"day={day}" / "flights.parquet"
    rows = parquet.read_table(file, partitioning=None)
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")])


def spoil(output, day):
    """Leave half of a day's rows, with another number in them: what a wrong job may have written."""
    file = output / "flights" / f"day={day}" / "flights.parquet"
    rows = parquet.read_table(file, partitioning=None)
    rows = rows.slice(0, rows.num_rows // 2)
    number = rows.schema.get_field_index("flight")
    rows = rows.set_column(number, "flight", pa.array([0] * rows.num_rows, pa.int32()))
    parquet.write_table(rows, file, use_deprecated_int96_timestamps=True)  # as Spark has them
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def recovered(three_days, run_dag, stands, broker):
    """The first recipe after the second day was spoiled, with what was there before the day went bad."""
    good = {day: table(three_days, day) for day in LEFT}
    begin = stands()
    spoil(three_days, SECOND)
    run = run_dag("recover_flights.py", since=SINCE)
    target = broker.offsets_for_time([TopicPartition("flights", number) for number in range(3)], SINCE_MS)
    return {"run": run, "good": good, "begin": begin, "target": target}


def test_a_recovery_ends_well_and_everything_is_where_it_was(recovered, stands):
    assert recovered["run"]["state"] == "success", recovered["run"]["states"]
    assert stands() == recovered["begin"]
    assert recovered["run"]["results"]["restore"] is None


def test_a_recovery_reads_the_bad_day_and_all_later_ones_again(recovered):
    reset, commit = (recovered["run"]["results"][task] for task in ("reset", "commit"))
    ends, target = recovered["begin"][0], recovered["target"]
    assert reset["after"] == reset["checkpoint"]["after"]["0"] == offsets_json(target)
    assert commit["moved_by"] == sum(ends[tp] - target[tp] for tp in ends) == -reset["moved_by"]
    # Of the first day only what lies behind its one flight that left after midnight.
    assert LEFT[SECOND] + LEFT[THIRD] <= commit["moved_by"] < sum(LEFT.values())


def test_the_bad_day_is_corrected_and_the_others_come_out_identical(recovered, three_days):
    for day, rows in recovered["good"].items():
        assert table(three_days, day).equals(rows), day
        assert rows.num_rows == LEFT[day]
    compared = recovered["run"]["results"]["compare"]
    changed = [day for day in LEFT if compared["before"][day] != compared["after"][day]]
    assert changed == [SECOND]
    assert compared["before"][SECOND]["rows"] == LEFT[SECOND] // 2
    assert {day: found["rows"] for day, found in compared["after"].items()} == LEFT


@pytest.mark.long
def test_a_recovery_whose_job_fails_is_a_failed_run_and_everything_is_put_back(
    recovered, three_days, run_dag, stands, kafka_tools
):
    before = stands()
    file = three_days / "flights" / f"day={THIRD}" / "flights.parquet"
    content = file.read_bytes()
    file.write_bytes(b"no table")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    try:
        run = run_dag("recover_flights.py", since=SINCE)
    finally:
        file.write_bytes(content)
    assert run["state"] == "failed"
    assert run["states"]["process"] == "failed"
    assert run["states"]["restore"] == "failed"
    assert run["results"]["restore"]["checkpoint"]["discarded"]
    assert stands() == before
    rows = kafka_tools.describe_rows(GROUP)
    assert [row["lag"] for row in rows] == [0, 0, 0]


@pytest.fixture(scope="module")
def since():
    """The function of the first task of the recovery."""
    return runpy.run_path(str(EXAMPLES / "recover_flights.py"))["since"].function


class Run:
    """What the task sees of its run, and of the earlier ones that are active."""

    def __init__(self, run_type, **active):
        self.run_type, self.active = run_type, active

    def get_previous_dagrun(self, state):
        return self.active.get(state)


MIDNIGHT = datetime(2013, 1, 2, 5, tzinfo=timezone.utc)


def test_the_time_to_go_back_to_is_the_parameters_or_the_beginning_of_a_backfills_day(since):
    by_hand, backfill = Run("manual"), Run("backfill")
    assert since({"since": SINCE}, by_hand, by_hand) == SINCE
    assert since({"since": ""}, backfill, backfill, MIDNIGHT) == MIDNIGHT.isoformat()


@pytest.mark.parametrize("run_type", ["manual", "scheduled"])
def test_a_run_without_a_time_is_skipped(run_type, since):
    run = Run(run_type)
    with pytest.raises(AirflowSkipException, match="Nothing to recover"):
        since({"since": ""}, run, run, MIDNIGHT)


@pytest.mark.parametrize("state", ["running", "queued"])
def test_of_a_backfills_runs_the_earliest_moves_the_group(state, since):
    run = Run("backfill", **{state: SimpleNamespace(run_id="backfill__2013-01-01")})
    with pytest.raises(AirflowSkipException, match="backfill__2013-01-01 reads this day too"):
        since({"since": ""}, run, run, MIDNIGHT)


def test_one_bad_day_is_written_again_and_nothing_moves(three_days, run_dag, stands, recovered):
    before = stands()
    others = {day: table(three_days, day) for day in (FIRST, THIRD)}
    spoil(three_days, SECOND)
    run = run_dag("one_bad_day.py", day=SECOND)
    assert run["state"] == "success", run["states"]
    assert run["results"]["look"] == {"day": SECOND, "rows": LEFT[SECOND]}
    assert table(three_days, SECOND).equals(recovered["good"][SECOND])
    assert {day: table(three_days, day) for day in others} == others
    assert stands() == before


@pytest.mark.long
def test_a_day_without_a_record_fails_and_keeps_its_files(three_days, run_dag):
    days = {each: each.read_bytes() for each in three_days.rglob("*.parquet")}
    run = run_dag("one_bad_day.py", day="2014-01-01")
    assert run["states"]["process"] == "failed"
    assert {each: each.read_bytes() for each in three_days.rglob("*.parquet")} == days
