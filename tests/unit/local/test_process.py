from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from breakable_kafka import freeze

BUSY = """
import threading
for _ in range(8):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
print("busy", flush=True)
threading.Event().wait(60)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at threads in /proc")
def test_a_frozen_process_has_stopped_with_all_its_threads_at_once():
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    assert process.stdout
    try:
        process.stdout.readline()
        for _ in range(5):
            freeze(process.pid)
            threads = Path(f"/proc/{process.pid}/task").glob("*/stat")
            assert {stat.read_text().rpartition(")")[2].split()[0] for stat in threads} == {"T"}
            os.kill(process.pid, signal.SIGCONT)
    finally:
        process.kill()
        process.wait(timeout=10)
        process.stdout.close()
