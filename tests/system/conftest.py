from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_offsets.local.demo import demo_environment, migrate_airflow
from airflow_kafka_offsets.local.demo_days import MARK

EXAMPLES = Path(__file__).parents[2] / "dags_examples"


@pytest.fixture(scope="session")
def airflow(bootstrap_servers, tmp_path_factory):
    """An Airflow of the tests' own, with connections to the real Kafka and to a Spark on this machine."""
    home = tmp_path_factory.mktemp("airflow")
    environment = demo_environment(home, EXAMPLES, bootstrap_servers)
    migrate_airflow(environment, home)

    def run(*arguments, log=None, **variables):
        """Run Python; with a log the output goes there, to be watched meanwhile."""
        with log.open("w") if log else contextlib.nullcontext(subprocess.PIPE) as output:
            return subprocess.run(
                [sys.executable, *arguments],
                env={**environment, **variables},
                cwd=home,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                timeout=300,
                check=False,
            )

    run.home = home
    run.environment = environment
    return run


@pytest.fixture(scope="session")
def run_days(airflow):
    """Runs the daily DAG for days, and returns what its tasks left in XCom."""

    def run(*days):
        done = airflow(
            "-m", "airflow_kafka_offsets.local.demo_days", str(EXAMPLES / "daily_flights.py"), *days
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        told = [
            json.loads(line.removeprefix(MARK)) for line in done.stdout.splitlines() if line.startswith(MARK)
        ]
        return [results for results in told if "state" in results]

    return run


@pytest.fixture(scope="session")
def output(airflow):
    """What the daily DAG has written."""
    return airflow.home / "flights" / "output"
