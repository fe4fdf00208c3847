"""The benchmarks run, and everybody who is compared gives the same answer."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


@pytest.mark.integration
def test_a_quick_run_writes_its_tables(bootstrap_servers, tmp_path):
    pytest.importorskip("kafka", reason="kafka-python, to compare with")
    tables = tmp_path / "tables.md"
    options = ["--quick", "--rounds", "1", "--only", "lag", "--only", "process", "--only", "checkpoint"]
    done = subprocess.run(
        [
            sys.executable,
            str(RUN),
            *options,
            "--bootstrap-server",
            bootstrap_servers,
            "--markdown",
            str(tables),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    text = tables.read_text()
    assert "### Lag of one group" in text
    assert "| kafka-python |" in text
    assert "at most 1.5 times" in text
