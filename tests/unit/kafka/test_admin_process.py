"""A call of the admin process that kills it leaves ours alone, and the worker is ended in time."""

import errno
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deadlines import until

from airflow_kafka_offsets.errors import BrokerError, ClientCrashedError, SetupError
from airflow_kafka_offsets.kafka import admin_calls, admin_process, worker
from airflow_kafka_offsets.kafka.admin_process import AdminProcess
from airflow_kafka_offsets.kafka.admin_worker import _codes
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import Failure

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "hunter2hunter2"}


@pytest.fixture
def python(tmp_path, monkeypatch):
    """python(script) makes group calls run that shell script in place of Python."""

    def use(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return use


def test_a_child_that_dies_by_a_signal_is_a_retriable_error(python, tmp_path):
    python(
        f"echo x >> {tmp_path}/runs; read -r settings; read -r line; echo 'rd_kafka: Assertion `x` hunter2hunter2' >&2; "
        "kill -ABRT $$"
    )
    with OffsetsClient(CONFIG, timeout=10) as client:
        with pytest.raises(
            ClientCrashedError, match=r"describing group g: .*died by SIGABRT.*Assertion"
        ) as caught:
            client.describe_groups(["g"])
    assert caught.value.retriable
    assert "hunter2" not in str(caught.value)
    assert (tmp_path / "runs").read_text().count("x") == 3


def test_a_part_that_is_a_failure_itself_is_no_result_that_failed():
    answer = {"number": 1, "retention": None, "failure": Failure("CLUSTER_AUTHORIZATION_FAILED", "no")}
    assert _codes(answer) == []
    assert _codes({"g": (None, Failure("NOT_COORDINATOR", "moved"))}) == ["NOT_COORDINATOR"]


def test_a_child_that_hangs_is_killed_at_the_deadline(python, tmp_path, monkeypatch):
    python(f"echo $$ > {tmp_path}/pid; exec sleep 60")
    start = time.monotonic()
    monkeypatch.setattr(admin_process, "GRACE", 0.0)
    with OffsetsClient(CONFIG, timeout=0.5) as client:
        with pytest.raises(BrokerError, match=r"within 0\.5 s"):
            client.list_groups()
    assert time.monotonic() - start < 4
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    "script",
    [
        "read -r settings; read -r line; echo no module >&2; exit 1",
        "read -r settings; read -r line; echo hello",
    ],
)
def test_a_python_that_cannot_do_it_is_named(python, script):
    python(script)
    with OffsetsClient(CONFIG, timeout=5) as client:
        with pytest.raises(SetupError, match=r"without an answer .*group calls need a Python"):
            client.list_groups()


@pytest.mark.parametrize("executable", [None, "", "/no/such/python"])
def test_without_a_python_to_run_the_error_says_so(monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with OffsetsClient(CONFIG, timeout=5) as client:
        with pytest.raises(SetupError, match="group calls"):
            client.list_groups()


@pytest.mark.parametrize("busy", [True, False])
def test_a_machine_without_room_for_a_process_is_a_temporary_error(monkeypatch, busy):
    def start(*_, **__):
        raise OSError(errno.EAGAIN if busy else errno.ENOEXEC, "no")

    monkeypatch.setattr(worker, "start_child", start)
    with OffsetsClient(CONFIG, timeout=5) as client, pytest.raises(SetupError, match="group calls") as caught:
        client.list_groups()
    assert caught.value.retriable is busy


def test_credentials_are_neither_in_the_arguments_nor_in_the_environment_of_the_child(python, tmp_path):
    python(
        f'echo "$@" > {tmp_path}/seen; env >> {tmp_path}/seen; head -n 2 > {tmp_path}/stdin; kill -KILL $$'
    )
    with OffsetsClient(CONFIG, timeout=5) as client:
        with pytest.raises(ClientCrashedError):
            client.list_groups()
    assert "hunter2" not in (tmp_path / "seen").read_text()
    assert "hunter2" in (tmp_path / "stdin").read_text()


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="looks into /proc")
@pytest.mark.usefixtures("python_workers")
def test_a_child_that_aborts_leaves_no_core_file_with_its_credentials(tmp_path, monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_CORE)
    if before[1] == 0:
        pytest.skip("this machine writes no core files")
    monkeypatch.chdir(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
        process, channel = worker.start_child(worker.MODULE, os.environ)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    limit = re.compile(r"^Max core file size +1 ", re.MULTILINE)
    with channel:
        until(lambda: limit.search(Path(f"/proc/{process.pid}/limits").read_text()), "the limit", 30)
        process.send_signal(signal.SIGABRT)
        assert process.wait(10) == -signal.SIGABRT
    assert list(tmp_path.iterdir()) == []


def test_the_child_gets_the_token_of_a_function_that_only_we_have(python, tmp_path):
    python(f"head -n 2 > {tmp_path}/stdin; kill -KILL $$")
    config = {
        **CONFIG,
        "sasl.oauthbearer.config": "scope=x",
        "oauth_cb": lambda said: (f"token for {said}", 1.5),
    }
    with pytest.raises(ClientCrashedError):
        AdminProcess(config).run(Call("listing", "kafka-1:9092", 5), "list")
    assert '["token for scope=x", 1.5]' in (tmp_path / "stdin").read_text()


ABSENT = {"state": "Dead", "type": "classic"}
EMPTY = {"state": "Empty", "type": "classic"}


@pytest.mark.parametrize(
    ("described", "listed", "type_"),
    [
        ([ABSENT], [], "classic"),
        ([ABSENT, ABSENT], ["g"], "other"),
        # Another client has made its first commit between the two questions.
        ([ABSENT, EMPTY], ["g"], "classic"),
        ([EMPTY], ["g"], "classic"),
    ],
)
def test_a_group_that_is_being_made_is_not_one_of_another_kind(monkeypatch, described, listed, type_):
    answers = iter(described)
    monkeypatch.setattr(
        admin_calls,
        "_describe_consumer_groups",
        lambda _, names: {name: (next(answers), None) for name in names},
    )
    groups = [SimpleNamespace(id=name) for name in listed]
    session: Any = SimpleNamespace(admin=SimpleNamespace(list_groups=lambda *_: groups), seconds_left=1.0)

    ((value, failure),) = admin_calls._describe_groups(session, {"g": None}).values()

    assert failure is None
    assert value["type"] == type_
    assert not list(answers)
