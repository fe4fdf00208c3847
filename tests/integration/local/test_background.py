import logging
import socket
import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.background import find_running, start_background, stop_background
from airflow_kafka_offsets.local.broker import find_brokers
from airflow_kafka_offsets.local.kafka import EmbeddedKafka

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A Kafka that one test has left running is the one that the next test finds."""
    directory = tmp_path_factory.mktemp("background") / "Jörg's Kafka"
    yield directory
    stop_background(directory)


def start_in_a_process_of_its_own(directory):
    program = (
        "import sys; from pathlib import Path\n"
        "from airflow_kafka_offsets.local.background import start_background\n"
        "print(start_background(Path(sys.argv[1])).pids[0])"
    )
    return int(subprocess.check_output([sys.executable, "-c", program, str(directory)], timeout=120))


def test_it_outlives_who_started_it_and_keeps_data_and_port_over_a_stop(directory, make_topic):
    pid = start_in_a_process_of_its_own(directory)
    found = find_running(directory)
    assert found is not None
    assert found.pids == [pid]
    assert found.directory == directory
    topic = make_topic(on=found.bootstrap_servers)

    assert stop_background(directory)
    assert find_brokers(directory) == []
    assert find_running(directory) is None
    assert not stop_background(directory)

    again = start_background(directory)
    assert again.bootstrap_servers == found.bootstrap_servers
    assert topic in AdminClient({"bootstrap.servers": again.bootstrap_servers}).list_topics(timeout=20).topics


def test_starting_twice_finds_the_first_one_also_through_a_link(directory, tmp_path, caplog):
    link = tmp_path / "link"
    link.symlink_to(directory, target_is_directory=True)
    first = start_background(directory)
    caplog.set_level(logging.INFO, "airflow_kafka_offsets.local.background")
    caplog.clear()
    for path in (directory, link):
        assert start_background(path) == find_running(path) == first
    assert caplog.messages == [f"Kafka already runs on {first.bootstrap_servers} (pid {first.pids[0]})"] * 2
    beginning = first.bootstrap_servers.rpartition(":")[2][:3]
    with pytest.raises(SetupError, match=rf"already runs on .* expected port {beginning}:"):
        start_background(directory, port=int(beginning))
    with pytest.raises(SetupError, match=r"already runs on .* with 1 broker, expected 3:"):
        start_background(directory, brokers=3)
    with pytest.raises(SetupError, match=rf"a Kafka runs in {directory} already \(pid {first.pids[0]}\)"):
        EmbeddedKafka(directory).start()
    assert find_running(directory) == first


@pytest.mark.long
def test_another_port_is_found_when_the_last_one_was_taken_meanwhile(directory, make_topic):
    first = start_background(directory)
    topic = make_topic(on=first.bootstrap_servers)
    stop_background(directory)
    with socket.create_server(("127.0.0.1", int(first.bootstrap_servers.rpartition(":")[2]))):
        second = start_background(directory)
        assert second.bootstrap_servers != first.bootstrap_servers
        topics = AdminClient({"bootstrap.servers": second.bootstrap_servers}).list_topics(timeout=20).topics
        assert topic in topics
