"""What kafka start --secured gives its users, and nobody else."""

import stat
import subprocess

import pytest

from airflow_kafka_offsets.errors import BrokerAuthenticationError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.config import load_properties
from airflow_kafka_offsets.local.background import start_background, stop_background
from airflow_kafka_offsets.local.secured import USERS
from airflow_kafka_offsets.local.tools import CONSUMER_GROUPS, run_tool

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    directory = tmp_path_factory.mktemp("secured") / "Jörg's Kafka"
    yield start_background(directory, brokers=1, secured=True)
    stop_background(directory)


def settings(running, user):
    return load_properties(running.clients / f"{user}.properties")


def test_what_it_writes_is_readable_by_its_owner_only(running):
    private = [running.directory, *running.clients.iterdir(), *(running.directory / "certificates").iterdir()]
    for file in [*private, running.directory / "broker-1"]:
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_no_password_is_an_argument_of_a_process_or_in_the_log(running):
    arguments = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout
    written = (running.directory / "broker-1" / "kafka.log").read_text()
    for user in USERS:
        assert settings(running, user)["sasl.password"] not in arguments + written


def test_each_user_is_let_in_and_nobody_else(running):
    for user in USERS:
        with OffsetsClient(settings(running, user)) as client:
            client.partitions()
    with OffsetsClient({"bootstrap.servers": running.bootstrap_servers}) as client:
        with pytest.raises(BrokerAuthenticationError, match="is SASL_SSL, and the connection has"):
            client.partitions()
    wrong = settings(running, "airflow") | {"sasl.password": settings(running, "admin")["sasl.password"]}
    with OffsetsClient(wrong) as client:
        with pytest.raises(BrokerAuthenticationError, match="refused the credentials"):
            client.partitions()


def test_kafkas_own_tool_takes_the_file_for_java(running):
    config = str(running.clients / "airflow.java.properties")
    servers = ("--bootstrap-server", running.bootstrap_servers)
    done = run_tool(CONSUMER_GROUPS, *servers, "--command-config", config, "--list")
    assert done.returncode == 0, done.stderr


def test_a_restart_keeps_users_and_their_passwords(running):
    before = {user: settings(running, user) for user in USERS}
    assert stop_background(running.directory)
    again = start_background(running.directory)
    assert again.clients == running.clients
    assert {user: settings(again, user) for user in USERS} == before
    with OffsetsClient(settings(again, "airflow")) as client:
        client.list_groups()
