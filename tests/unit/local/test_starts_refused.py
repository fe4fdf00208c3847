"""An embedded Kafka that is refused before a broker is started, and what is not taken for one that runs."""

import socket
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from airflow_kafka_offsets.errors import SetupError, UsageError
from airflow_kafka_offsets.local import background
from airflow_kafka_offsets.local.background import find_running, start_background, stop_background
from airflow_kafka_offsets.local.broker_config import free_port
from airflow_kafka_offsets.local.kafka import EmbeddedKafka


def test_a_port_that_is_taken_is_named_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SetupError, match=rf"port {port} .* is taken.*choose another port"):
            EmbeddedKafka(port=port).start()


def test_the_ports_that_were_asked_for_are_not_given_to_other_listeners(tmp_path):
    first = free_port()
    (tmp_path / "broker-1").mkdir()
    listeners = f"listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:{first + 1}\n"
    (tmp_path / "broker-1" / "server.properties").write_text(listeners)
    kafka = EmbeddedKafka(tmp_path, brokers=2, port=first)
    kafka._choose_ports()
    ports = [port for listeners in kafka._ports for port in listeners.values()]
    assert len(set(ports)) == 4
    assert kafka.bootstrap_servers == f"127.0.0.1:{first},127.0.0.1:{first + 1}"


@pytest.mark.parametrize(
    ("name", "encoding", "refused"),
    [
        ("a,b", "UTF-8", True),
        ("Jörg", "ANSI_X3.4-1968", True),
        ("Jörg", "UTF-8", False),
        ("Jörg", "", False),  # macOS, for a locale that it does not know
        ("a", "ANSI_X3.4-1968", False),
    ],
)
def test_a_directory_that_kafka_or_java_would_take_for_another_one_is_refused(
    tmp_path, monkeypatch, name, encoding, refused
):
    monkeypatch.setattr("locale.nl_langinfo", lambda _: encoding)
    with pytest.raises(UsageError, match="directory=.*: expected a path") if refused else nullcontext():
        EmbeddedKafka(tmp_path / name)


@pytest.mark.parametrize(("name", "port"), [("a,b", None), ("a", -1)])
def test_a_refused_start_makes_no_directory(tmp_path, name, port):
    with pytest.raises(UsageError):
        start_background(tmp_path / name, port)
    assert not (tmp_path / name).exists()


@pytest.fixture
def configuration(tmp_path):
    """That of the one broker in a directory, open to everybody."""
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / "server.properties").touch()
    return tmp_path / "broker-1" / "server.properties"


@pytest.mark.usefixtures("configuration")
def test_another_number_of_brokers_than_the_directory_has_is_refused(tmp_path):
    with pytest.raises(SetupError, match="has a Kafka of 1 broker, expected 3"):
        EmbeddedKafka(tmp_path, brokers=3).start()


@pytest.mark.usefixtures("configuration")
def test_a_kafka_that_is_open_to_everybody_does_not_become_a_secured_one(tmp_path):
    with pytest.raises(SetupError, match="is open without login, expected one with TLS and users"):
        start_background(tmp_path, secured=True)


def test_a_kafka_of_which_a_broker_has_died_does_not_count_as_running(tmp_path, monkeypatch):
    for number in (1, 2, 3):
        (tmp_path / f"broker-{number}").mkdir()
        listeners = f"listeners=PLAINTEXT://127.0.0.1:{9091 + number}\n"
        (tmp_path / f"broker-{number}" / "server.properties").write_text(listeners)
    alive = [SimpleNamespace(pid=11), SimpleNamespace(pid=13)]
    monkeypatch.setattr(background, "find_brokers", lambda _: alive)
    with pytest.raises(SetupError, match=r"\(pid 11, 13\), but only 2 of its 3 brokers: stop it first"):
        start_background(tmp_path)


def process_of(directory, *more):
    argument = f"-Dairflow_kafka_offsets.directory={directory}"
    program = "import sys; print('there', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", program, argument, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout
    other.stdout.readline()
    return other


def test_a_kafka_whose_files_were_removed_is_stopped(tmp_path):
    broker = process_of(tmp_path, "kafka.Kafka")
    assert stop_background(tmp_path)
    assert broker.wait(10) < 0
    broker.communicate()


def test_a_configuration_that_cannot_be_read_and_a_program_that_names_the_directory_are_no_broker(
    tmp_path, configuration
):
    configuration.write_text("listeners=")
    assert find_running(tmp_path) is None
    configuration.write_text("listeners=PLAINTEXT://127.0.0.1:9092\n")
    other = process_of(tmp_path)
    assert find_running(tmp_path) is None
    assert not stop_background(tmp_path)
    with pytest.raises(SetupError, match="mistyped has no Kafka; expected the directory of 'kafka start'"):
        stop_background(tmp_path / "mistyped")
    assert other.poll() is None
    other.communicate()
