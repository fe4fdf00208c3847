import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.kafka.config import load_properties
from airflow_kafka_offsets.local.broker_config import (
    free_port,
    listener_ports,
    properties_text,
    server_properties,
    write_private,
)

PORTS = [{"SASL_SSL": 1, "CONTROLLER": 2}, {"SASL_SSL": 3, "CONTROLLER": 4}, {"SASL_SSL": 5, "CONTROLLER": 6}]
PROTOCOLS = {"SASL_SSL": "SASL_SSL", "CONTROLLER": "SSL"}


def test_every_listener_is_on_loopback():
    properties = server_properties(2, PORTS, PROTOCOLS, Path("/data"))
    assert properties["listeners"] == "SASL_SSL://127.0.0.1:3,CONTROLLER://127.0.0.1:4"
    assert properties["advertised.listeners"] == "SASL_SSL://127.0.0.1:3"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:2,2@127.0.0.1:4,3@127.0.0.1:6"


@pytest.mark.parametrize(("brokers", "copies", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2")])
def test_with_three_copies_one_broker_may_fail(brokers, copies, in_sync):
    properties = server_properties(1, PORTS[:brokers], PROTOCOLS, Path("/data"))
    assert properties["offsets.topic.replication.factor"] == copies
    assert properties["min.insync.replicas"] == in_sync


def test_the_ports_of_the_last_start_are_read_from_its_configuration(tmp_path):
    file = tmp_path / "server.properties"
    assert listener_ports(file) == {}
    file.write_text(properties_text(server_properties(1, PORTS, PROTOCOLS, tmp_path)))
    assert listener_ports(file) == PORTS[0]
    file.write_text("listeners=")
    assert listener_ports(file) == {}


@given(st.sets(st.integers(20_000, 31_999), max_size=50))
def test_a_port_that_is_promised_elsewhere_is_not_chosen(taken):
    assert free_port(taken) not in taken


def test_what_is_written_is_read_by_the_commands(tmp_path):
    file, settings = tmp_path / "airflow.properties", {"ssl.ca.location": "/Jörg's \\ #1 100% 💾/ca.pem"}
    file.write_text(properties_text(settings))
    assert load_properties(file) == settings


def test_properties_are_escaped_as_java_reads_them():
    assert properties_text({"a.b": "C:\\x y=z", "c": "ü💾"}) == "a.b=C:\\\\x y=z\nc=\\u00fc\\ud83d\\udcbe\n"


@pytest.mark.parametrize("before", [b"the password of the last start", None])
def test_a_full_disk_leaves_a_private_file_as_it_was(tmp_path, before):
    """The next start read an empty file of a user, and ended with a KeyError."""
    file = tmp_path / "airflow.properties"
    if before is not None:
        write_private(file, before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_private(file, b"x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if before is None else [before])
    write_private(file, b"x" * 200)
    assert (file.stat().st_mode & 0o777, file.stat().st_size) == (0o600, 200)
