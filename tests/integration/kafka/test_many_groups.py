"""What concerns groups is asked and committed in an admin process that stays."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from deadlines import until

from airflow_kafka_offsets.errors import (
    BrokerUnavailableError,
)
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import Commit, TopicPartition

pytestmark = pytest.mark.integration

OFFSET_FETCH = 9
NOT_COORDINATOR = 16


def admin_processes():
    children = psutil.Process().children()
    return [child for child in children if "admin_worker" in " ".join(child.cmdline())]


@pytest.fixture
def workers(python_workers):
    """workers() -> the admin processes that this process has started since the test began."""
    before = set(admin_processes())
    return lambda: [each for each in admin_processes() if each not in before]


@pytest.fixture
def groups(client, make_topic, new_group):
    """Thirty groups that have committed one of two partitions each, and the partitions."""
    topic = make_topic(2)
    names = {new_group(): number for number in range(30)}
    for name, number in names.items():
        client.commit(name, {TopicPartition(topic, number % 2): number}, f"text {number}")
    return names, [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def deleted(bootstrap_servers, topic):
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([topic])[topic].result(20)


def test_all_of_one_group_are_without_those_of_deleted_topics_and_of_kafka(
    client, groups, make_topic, bootstrap_servers
):
    names, partitions = groups
    gone = make_topic(1)
    group = next(iter(names))
    offsets = {partitions[0]: 3, partitions[1]: 4, TopicPartition("__consumer_offsets", 0): 5}
    client.commit(group, {**offsets, TopicPartition(gone, 0): 6}, "text")
    deleted(bootstrap_servers, gone)
    until(lambda: not client.partitions([gone]), "the topic to be deleted", 30)
    assert client.committed_everywhere(group) == {
        partitions[0]: Commit(3, "text"),
        partitions[1]: Commit(4, "text"),
    }


def test_groups_that_are_read_and_committed_one_by_one_need_one_process_and_no_connection_here(
    bootstrap_servers, groups, workers
):
    names, partitions = groups
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        for name, number in names.items():
            other = partitions[1 - number % 2]
            found = client.committed(name, partitions)
            assert found == {partitions[number % 2]: Commit(number, f"text {number}"), other: None}
            client.commit(name, {other: number})
        assert not client._session.connections._kept
        assert len(workers()) == 1


def test_the_process_stays_and_ends_with_its_client(bootstrap_servers, new_group, workers):
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        client.list_groups()
        (worker,) = workers()
        client.describe_groups([new_group()])
        client.committed_groups({new_group(): None})
        assert workers() == [worker]
    assert not worker.is_running()


def test_a_process_that_died_is_replaced(client, new_group, workers):
    group = new_group()
    client.list_groups()
    (worker,) = workers()
    worker.kill()
    assert client.committed_groups({group: None}) == {group: {}}
    assert workers() != [worker]


def test_a_process_that_does_not_answer_is_replaced_at_the_deadline(bootstrap_servers, new_group, workers):
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=3) as client:
        client.list_groups()
        (worker,) = workers()
        worker.suspend()
        began = time.monotonic()
        with pytest.raises(BrokerUnavailableError, match="within 3 s"):
            client.describe_groups([new_group()])
        assert time.monotonic() - began < 7
        assert not worker.is_running()
        assert client.list_groups()


def test_a_copy_of_the_process_gets_a_worker_of_its_own(client, workers):
    client.list_groups()
    (worker,) = workers()
    pid = os.fork()
    if not pid:
        # Neither answers of the other one's worker are taken, nor is it ended.
        status = 1
        try:
            client.list_groups()
            mine = workers()
            client._admin.close()
            status = 0 if len(mine) == 1 and worker not in mine else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert workers() == [worker]
    assert client.list_groups()


def test_the_child_finds_the_package_from_any_directory(bootstrap_servers, tmp_path, monkeypatch):
    # Neither the working directory nor what lies in it matters.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=20) as client:
        assert isinstance(client.list_groups(), list)


def test_the_process_ends_with_one_that_was_killed(bootstrap_servers):
    program = (
        "import sys, time\n"
        "from airflow_kafka_offsets.kafka.client import OffsetsClient\n"
        f"client = OffsetsClient({{'bootstrap.servers': '{bootstrap_servers}'}})\n"
        "client.list_groups()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        (worker,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "the worker to end")
