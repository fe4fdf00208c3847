import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest
from breakable_kafka import BreakableKafka
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deadlines import until

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker import find_brokers
from airflow_kafka_offsets.local.kafka import EmbeddedKafka

pytestmark = pytest.mark.integration


def log_end(bootstrap_servers, topic):
    client = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "log_level": 0})
    try:
        return client.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
    finally:
        client.close()


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.parametrize(
    "victim", ["parent", pytest.param("parent of a fork that lives on", marks=pytest.mark.long)]
)
def test_nothing_is_left_when_the_parent_is_killed(victim, tmp_path):
    program = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from airflow_kafka_offsets.local.kafka import EmbeddedKafka\n"
        f"kafka = EmbeddedKafka(Path({str(tmp_path)!r})).start()\n"
        # Such a fork holds the parent's end of the pipe.
        f"child = os.fork() if {victim != 'parent'} else None\n"
        "if child != 0: print(kafka.pid, child or 0, flush=True)\n"
        "time.sleep(120)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid, child = (int(number) for number in parent.stdout.readline().split())
    try:
        assert [broker.pid for broker in find_brokers(tmp_path)] == [pid]
        parent.kill()
        parent.wait(10)
        until(lambda: not find_brokers(tmp_path))
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
        parent.communicate()


@pytest.mark.usefixtures("ctrl_c_is_heard")
@pytest.mark.parametrize(
    "moment", ["starting Kafka on", pytest.param("Kafka is ready on", marks=pytest.mark.long)]
)
def test_ctrl_c_during_the_start_leaves_nothing(moment, tmp_path):
    program = (
        "import logging, sys\n"
        "from airflow_kafka_offsets.local.kafka import EmbeddedKafka\n"
        "logging.basicConfig(format='%(message)s', level=logging.INFO, stream=sys.stdout)\n"
        "with EmbeddedKafka(): sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        # A group of its own stands for the terminal's foreground group.
        start_new_session=True,
    )
    assert parent.stdout
    while not (line := parent.stdout.readline()).startswith(moment):
        assert line
    port = int(line.rpartition(":")[2])
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    # No process or socket of ours is left open. An interrupt between Python's own open() and with cannot be
    # helped.
    assert "ResourceWarning: subprocess" not in errors
    assert "ResourceWarning: unclosed <socket" not in errors
    assert list(tmp_path.iterdir()) == []
    assert not listens(port)


def test_ctrl_c_in_the_terminal_does_not_reach_the_broker(kafka):
    assert os.getsid(kafka.pid) != os.getsid(0)
    assert os.getpgid(kafka.pid) != os.getpgid(0)


@pytest.mark.long
def test_the_broker_is_ended_even_when_the_one_who_watches_it_was_killed(own_kafka, tmp_path):
    kafka = own_kafka(directory=tmp_path)
    pid = kafka.pid
    watcher = int(
        subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True).stdout
    )
    os.kill(watcher, signal.SIGKILL)
    kafka.stop()
    until(lambda: not find_brokers(tmp_path))


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"log.retention.bytes": "plenty"}, r"Invalid value plenty for configuration log.retention.bytes"),
        (
            {"authorizer.class.name": "org.example.NoSuchAuthorizer"},
            r"(?s)before it was ready.*kafka\.log.*NoSuchAuthorizer",
        ),
    ],
    ids=["a bad property", "a broker that dies, with the end of its log"],
)
def test_a_start_that_fails_shows_what_kafka_said_and_leaves_nothing(tmp_path, properties, said):
    kafka = EmbeddedKafka(tmp_path, properties=properties)
    with pytest.raises(SetupError, match=said):
        kafka.start()
    assert not kafka.running


class LosesItsPort(EmbeddedKafka):
    """Another program listens on a port of the third broker before the first attempt's brokers start."""

    other: socket.socket | None = None

    def server_properties(self, number):
        if number == 3 and self.other is None:
            self.other = socket.create_server(("127.0.0.1", self._ports[2]["PLAINTEXT"]))
        return super().server_properties(number)


@pytest.mark.long
def test_a_port_that_another_program_takes_meanwhile_is_replaced_by_another_one():
    kafka = LosesItsPort(brokers=3, heap="256m")
    with contextlib.ExitStack() as ends:
        ends.enter_context(kafka)
        assert kafka.other is not None
        ends.enter_context(kafka.other)
        assert kafka.running
        assert str(kafka.other.getsockname()[1]) not in kafka.bootstrap_servers


class LosesItsPortToAKafka(EmbeddedKafka):
    """Another Kafka listens on the port before the first attempt's broker starts."""

    def __init__(self, other):
        super().__init__()
        self.others = [int(other.rpartition(":")[2])]

    def server_properties(self, number):
        if self.others:
            self._ports[0]["PLAINTEXT"] = self.others.pop()
        return super().server_properties(number)


def test_another_kafka_on_its_port_is_not_taken_for_its_own_and_its_stop_leaves_nothing(bootstrap_servers):
    with LosesItsPortToAKafka(bootstrap_servers) as own:
        assert own.running
        assert own.bootstrap_servers != bootstrap_servers
        assert [broker.pid for broker in find_brokers(own.directory)] == [own.pid]
    assert find_brokers(own.directory) == []
    assert not listens(int(own.bootstrap_servers.rpartition(":")[2]))
    assert not own.directory.exists()


@pytest.mark.long
def test_a_port_that_was_asked_for_is_used(own_kafka):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    assert own_kafka(port=port).bootstrap_servers == f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def three():
    with BreakableKafka(brokers=3, heap="256m") as three:
        yield three


@pytest.mark.long
class TestThreeBrokers:
    def test_each_has_a_replica_and_is_named(self, three, make_topic):
        topic = make_topic(on=three.bootstrap_servers)
        seen = AdminClient({"bootstrap.servers": three.bootstrap_servers}).list_topics(timeout=20)
        assert sorted(seen.brokers) == [1, 2, 3]
        addresses = {f"{broker.host}:{broker.port}" for broker in seen.brokers.values()}
        assert addresses == set(three.bootstrap_servers.split(","))
        for partition in seen.topics[topic].partitions.values():
            assert sorted(partition.replicas) == [1, 2, 3]

    def test_a_start_of_the_rest_is_refused_and_stops_no_broker(self, three):
        three.kill(2)
        alive = [three.brokers[number].process.pid for number in (1, 3)]
        pids = ", ".join(map(str, alive))
        with pytest.raises(SetupError, match=rf"already \(pid {pids}\).*kafka stop --directory"):
            three.start()
        assert [broker.pid for broker in find_brokers(three.directory)] == alive
        three.restart(2)

    def test_two_serve_while_one_is_killed_or_frozen(self, three, make_topic, produce):
        topic = make_topic(partitions=1, on=three.bootstrap_servers)
        three.kill(2)
        assert [broker.pid for broker in find_brokers(three.directory)] == [
            three.brokers[number].process.pid for number in (1, 3)
        ]
        produce(topic, {0: 5}, on=three.bootstrap_servers)
        three.restart(2)
        assert three.running
        three.freeze(3)
        others = ",".join(three.bootstrap_servers.split(",")[:2])
        admin = AdminClient({"bootstrap.servers": others, "log_level": 0})
        until(lambda: admin.list_topics(topic, timeout=20).topics[topic].partitions[0].leader in (1, 2))
        assert log_end(others, topic) == 5
        three.thaw(3)
        until(lambda: sorted(admin.list_topics(timeout=20).brokers) == [1, 2, 3])
