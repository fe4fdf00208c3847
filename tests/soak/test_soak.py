"""The soak, for twelve schedules."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

RUN = Path(__file__).with_name("run.py")


@pytest.mark.timeout(280)
def test_a_short_soak_breaks_no_promise():
    done = subprocess.run(
        [sys.executable, str(RUN), "--schedules", "12", "--seed", "15"],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "schedules: 12, failed: 0" in done.stdout
