from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_offsets.local.demo import demo_environment, migrate_airflow

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
