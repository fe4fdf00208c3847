"""
The examples of planned windows, whole: two days of flights by the group's memory alone, and one of them
again.
"""

import os

import pytest
from pyarrow import parquet

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

FIRST, SECOND = "2013-01-01", "2013-01-02"
LEFT = {FIRST: 838, SECOND: 935}
GROUP = "flights-planned"


@pytest.fixture(scope="module")
def topic(two_days_of_flights):
    return two_days_of_flights


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("planned")


@pytest.fixture(scope="module")
def variables(topic, home):
    return {"FLIGHTS_TOPIC": topic, "FLIGHTS_HOME": str(home)}


@pytest.fixture(scope="module")
def planned(run_dag, variables):
    """
    The run of the third day, which has to read the two before it as well; with LONG_TESTS after the first.
    """
    days = (2, 4) if os.environ.get("LONG_TESTS") else (4,)
    midnights = [f"2013-01-{day:02d}T00:00:00-05:00" for day in days]
    return [
        run_dag("planned_window.py", logical_date=midnight, variables=variables) for midnight in midnights
    ]


def table(home, day):
    file = home / "planned" / "flights" / f"day={day}" / "flights.parquet"
    rows = parquet.read_table(file, partitioning=None)
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")])


def test_windows_meet_and_end_at_the_end_of_the_topic(planned, topic, kafka_tools):
    assert {run["state"] for run in planned} == {"success"}
    first, *others = plans = [run["results"]["plan"] for run in planned]
    assert first["start"] == {topic: {"0": 0, "1": 0, "2": 0}}
    assert first["committed"] == {topic: {"0": None, "1": None, "2": None}}
    assert sum(plan["records"] for plan in plans) == sum(LEFT.values())
    for second in others:
        assert second["start"] == first["end"]
        # One flight of the first day left after midnight.
        assert first["records"] == LEFT[FIRST] - 1
    assert all(run["results"]["commit"]["verified"] for run in planned)
    assert [row["lag"] for row in kafka_tools.describe_rows(GROUP)] == [0, 0, 0]


def test_every_flight_is_in_the_table_of_its_day(planned, home):
    for day, flights in LEFT.items():
        rows = table(home, day)
        assert rows.num_rows == len(set(rows.column("id").to_pylist())) == flights


@pytest.mark.long
def test_a_bad_day_is_read_again_and_no_group_moves(planned, run_dag, variables, home, topic, kafka_tools):
    good, before = {day: table(home, day) for day in LEFT}, kafka_tools.describe_rows(GROUP)
    file = home / "planned" / "flights" / f"day={SECOND}" / "flights.parquet"
    # What a wrong job may have left: half of the rows.
    parquet.write_table(good[SECOND].slice(0, LEFT[SECOND] // 2), file, use_deprecated_int96_timestamps=True)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    run = run_dag("replay_window.py", variables=variables)
    assert run["state"] == "success", run["states"]
    assert run["results"]["plan"]["source"]["group_id"] is None
    assert run["results"]["plan"]["start"] == planned[0]["results"]["plan"]["end"]
    assert {day: table(home, day) for day in LEFT} == good
    assert kafka_tools.describe_rows(GROUP) == before
