"""Hours and days of a stream on a real scheduler: each runs once, again after a reset, and survives kills."""

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessor
from running_airflow import API_SERVER, DAG_PROCESSOR, SCHEDULER, RunningAirflow
from written_query import Query

pytestmark = [
    pytest.mark.system,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not hasattr(OutletEventAccessor, "add_partitions"), reason="partitions at run time came with 3.3"
    ),
]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "dags_examples"
DAY = datetime(2026, 3, 1, tzinfo=timezone.utc)
PARTS = (API_SERVER, SCHEDULER, DAG_PROCESSOR)


def key(hour: float) -> str:
    return (DAY + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%S")


class Orders:
    """A query that reads orders, and the Airflow that follows it."""

    def __init__(self, live, home, topic, produce, broker, bootstrap_servers):
        self.live, self.topic, self.broker = live, topic, broker
        self.lake, self.servers = home / "lake", bootstrap_servers
        self.query = Query(self.lake / "checkpoints" / "orders")
        self.batch = 0
        self._produce = produce
        self.written = Counter({0: 0, 1: 0})

    def write(self, hours):
        """Write two records of each hour into each partition."""
        for number in (0, 1):
            times = [
                int((DAY + timedelta(hours=hour, minutes=minute)).timestamp() * 1000)
                for hour in hours
                for minute in (5, 50)
            ]
            self._produce(self.topic, {number: len(times)}, {number: times})
            self.written[number] += len(times)

    def read(self, offsets=None):
        """Let the query finish a batch, by default of all there is."""
        self.query.run(self.batch, {self.topic: offsets or dict(self.written)})
        self.batch += 1

    def reset(self, offset):
        """Set query and group back, as an operator does it from a shell."""
        command = [
            *(sys.executable, "-m", "airflow_kafka_offsets.cli", "group", "reset", self.topic, "--to-offset"),
            *(str(offset), "--checkpoint", self.query.location, "--quiet-period", "0", "--execute"),
            *("--bootstrap-server", self.servers),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr

    def look(self):
        """Run the DAG that follows the query, and return what it has emitted."""
        run_id = self.live.trigger("orders_stream")
        state = {}

        def ended():
            state.update(self.live.states("orders_stream", run_id))
            return set(state) == {"commit", "complete"} and set(state.values()) <= {"success", "failed"}

        self.live.wait_until(ended, "the run of orders_stream")
        assert set(state.values()) == {"success"}, state
        assets = self.live.xcom("orders_stream", run_id, "complete")["assets"]
        return {name: [each["key"] for each in found["intervals"]] for name, found in assets.items()}

    def ran(self, dag_id, count):
        """Wait for so many runs, all of which must succeed; return their keys."""
        return Counter(run["partition_key"] for run in self.live.wait_for_runs(dag_id, count))

    def seconds_to_runs(self):
        """Return how long after the commit of its hours each hourly run has begun."""
        found = []
        for event in self.live.events("orders_hours"):
            path = f"dags/orders_stream/dagRuns/{event['source_run_id']}/taskInstances/commit"
            committed = datetime.fromisoformat(self.live.api("GET", path)["end_date"])
            found += [
                (datetime.fromisoformat(run["start_date"]) - committed).total_seconds()
                for run in event["created_dagruns"]
            ]
        return sorted(found)

    def published(self, directory):
        return {
            file.stem: json.loads(file.read_text())["records"]
            for file in (self.lake / directory).glob("*.json")
        }


@pytest.fixture
def orders(bootstrap_servers, make_topic, produce, broker, postgres, tmp_path, request):
    topic = make_topic(2, {"retention.ms": "-1"})
    # Its runs are started by the tests, and not every five minutes as well.
    example = (EXAMPLES / "hourly_from_stream.py").read_text()
    (followed := tmp_path / "hourly_from_stream.py").write_text(
        example.replace('schedule="*/5 * * * *"', "schedule=None")
    )
    files = [followed, EXAMPLES / "backfill_hours.py", *(HERE / "live_intervals").glob("*.py")]
    names = {"ORDERS_TOPIC": topic, "ORDERS_GROUP": topic, "LAKE": str(tmp_path / "lake")}
    start = getattr(request, "param", 0)
    variables = {"START_FROM": (DAY + timedelta(hours=start)).isoformat()}
    variables["LONG_TESTS"] = os.environ.get("LONG_TESTS", "")
    home = tmp_path / "airflow"
    with RunningAirflow(
        home, bootstrap_servers, files, postgres, components=PARTS, **names, **variables
    ) as live:
        yield Orders(live, tmp_path, topic, produce, broker, bootstrap_servers)


@pytest.mark.parametrize("orders", [20], indirect=True)
def test_hours_and_a_day_run_once_each_and_again_after_a_reset(orders):
    orders.write([19, 20, 21])
    orders.read()
    # Nothing shows yet that 21:00 is complete.
    assert orders.look() == {"orders_hours": [key(20)], "orders_days": []}
    orders.write([22, 23, 24, 25, 26])
    orders.read()
    assert orders.look() == {"orders_hours": [key(hour) for hour in range(21, 26)], "orders_days": [key(0)]}
    assert orders.look() == {"orders_hours": [], "orders_days": []}
    first = Counter({key(hour): 1 for hour in range(20, 26)})
    assert orders.ran("orders_hourly", 6) == first
    assert orders.ran("orders_daily", 1) == {key(0): 1}
    assert orders.published("hours") == {key(hour): 4 for hour in range(20, 26)}
    assert orders.published("days") == {key(0): 20}
    # The query is set back to 22:00, and has read all again before the next look.
    orders.reset(6)
    orders.read()
    again = [key(hour) for hour in range(22, 26)]
    assert orders.look() == {"orders_hours": again, "orders_days": [key(0)]}
    assert orders.ran("orders_hourly", 10) == first + Counter(again)
    assert orders.ran("orders_daily", 2) == {key(0): 2}
    seconds = orders.seconds_to_runs()
    assert len(seconds) == 10
    print(f"from a commit to its hours' runs: {seconds[0]:.1f} to {seconds[-1]:.1f} s")
    # The roll-up waits for the hours before 20:00.
    assert orders.live.runs("orders_daily_rollup") == []
    killed_at_each_step(orders)
    backfilled_hours(orders)


def killed_at_each_step(orders):
    """No asset has lost an hour, or has one twice, whenever the task was killed that emits them."""
    run_id = orders.live.trigger("killed_hours")
    orders.live.wait_for_runs("killed_hours", 1)
    found = orders.live.api("GET", f"dags/killed_hours/dagRuns/{run_id}/taskInstances")["task_instances"]
    tries = {task["task_id"]: task["try_number"] for task in found}
    # Airflow had recorded the success of one of them before the process was killed.
    assert tries.pop("after_SucceedTask_1") == 1
    assert {file.name for file in (orders.lake / "killed").iterdir()} == {*tries, "after_SucceedTask_1"}
    assert len(tries) == (15 if os.environ.get("LONG_TESTS") else 4)
    assert set(tries.values()) == {2}
    hours = [key(hour) for hour in range(20, 26)]
    for name in ("after_SucceedTask_1", *tries):
        events = orders.live.events(name)
        assert sorted(event["partition_key"] for event in events) == hours, name


def backfilled_hours(orders):
    """A backfill over partitions reads the hours that it names, and no others."""
    moments = {"from_date": key(21) + "Z", "to_date": key(23) + "Z"}
    orders.live.api(
        "POST",
        "backfills",
        json={"dag_id": "orders_again", **moments, "max_active_runs": 2, "run_backwards": False},
    )

    def again():
        # Its schedule has also started it, for the hour that has just ended.
        return {name: count for name, count in orders.published("again").items() if name < "2026-03-31"}

    orders.live.wait_until(lambda: len(again()) == 3, "the runs of the backfill")
    assert again() == {key(hour): 4 for hour in (21, 22, 23)}
    assert Counter(run["run_type"] for run in orders.live.runs("orders_again"))["backfill"] == 3


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_two_days_of_hours_and_then_a_morning_again(orders):
    count = 48
    for until in (5, 17, 30, count + 1):
        orders.write(range(sum(orders.written.values()) // 4, until))
        orders.read()
        orders.look()
    first = Counter({key(hour): 1 for hour in range(count)})
    assert orders.ran("orders_hourly", count) == first
    assert orders.ran("orders_daily", 2) == {key(0): 1, key(24): 1}
    assert orders.ran("orders_daily_rollup", 2) == {"2026-03-01": 1, "2026-03-02": 1}
    assert orders.published("hours") == {key(hour): 4 for hour in range(count)}
    # From 06:00 of the second day on all is read again, in two batches.
    orders.reset(60)
    orders.look()
    orders.read({0: 72, 1: 72})
    assert orders.look() == {"orders_hours": [key(hour) for hour in range(30, 36)], "orders_days": []}
    orders.read()
    rest = [key(hour) for hour in range(36, 48)]
    assert orders.look() == {"orders_hours": rest, "orders_days": [key(24)]}
    again = Counter({key(hour): 1 for hour in range(30, count)})
    assert orders.ran("orders_hourly", count + 18) == first + again
    assert orders.ran("orders_daily", 3) == {key(0): 1, key(24): 2}
    assert len(orders.live.runs("orders_daily_rollup")) == 2
