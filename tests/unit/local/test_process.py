import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from breakable_kafka import freeze

from airflow_kafka_offsets.local import broker
from airflow_kafka_offsets.local.process import SupervisedProcess, end_processes, find_processes

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


DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
)
HEARING = "import signal; print('hears', flush=True); signal.pause()"


def test_of_processes_that_are_ended_together_the_rest_is_killed_soon_after_most_have_ended(monkeypatch):
    monkeypatch.setattr(end_processes.__module__ + "._GRACE_AFTER_HALF", 0.5)
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        for program in (HEARING, DEAF, HEARING, HEARING)
    ]
    frozen = started[0]
    try:
        for process in started:
            assert process.stdout
            process.stdout.readline()
        freeze(frozen.pid)
        since = time.monotonic()
        end_processes([psutil.Process(process.pid) for process in started])
        assert time.monotonic() - since < 10
        assert [process.wait(10) for process in started] == [
            -signal.SIGTERM,
            -signal.SIGKILL,
            -signal.SIGTERM,
            -signal.SIGTERM,
        ]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_program_whose_supervisor_was_killed_has_ended_when_end_returns(monkeypatch, tmp_path):
    """The next start in the directory of a Kafka would find it otherwise."""
    command = [sys.executable, "-c", "import signal; signal.pause()", str(tmp_path)]
    process = SupervisedProcess(command, tmp_path / "log", tmp_path)
    kill = os.kill
    try:
        supervisor = psutil.Process(process.pid).parent()
        assert supervisor is not None
        supervisor.kill()
        # A busy machine takes its time.
        monkeypatch.setattr(os, "kill", lambda *to: threading.Timer(0.5, kill, to).start())
        process.end()
        assert find_processes(str(tmp_path)) == []
    finally:
        for each in find_processes(str(tmp_path)):
            kill(each.pid, signal.SIGKILL)


def test_a_broker_that_ends_while_it_is_looked_for_is_no_error(monkeypatch, tmp_path):
    def then_ends(*wanted):
        def ended(self):
            raise psutil.ZombieProcess(self.pid)

        found = find_processes(*wanted)
        monkeypatch.setattr(psutil.Process, "cmdline", ended)
        return found

    monkeypatch.setattr(broker, "find_processes", then_ends)
    monkeypatch.setattr(broker, "kafka_classpath", list)
    command = [
        sys.executable,
        "-c",
        "import time; print(flush=True); time.sleep(60)",
        *broker.broker_command(tmp_path, "1m")[1:],
    ]
    with subprocess.Popen([*command, "kafka.Kafka"], stdout=subprocess.PIPE) as process:
        try:
            # Until the program runs, the process has no command line to find it by.
            assert process.stdout
            process.stdout.readline()
            assert [each.pid for each in broker.find_brokers(tmp_path)] == [process.pid]
        finally:
            process.kill()
