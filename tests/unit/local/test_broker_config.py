from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.local.broker_config import free_port, properties_text, server_properties


def test_every_listener_is_on_loopback():
    properties = server_properties(1, 2, Path("/data"))
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1"


@given(st.sets(st.integers(20_000, 31_999), max_size=50))
def test_a_port_that_is_promised_elsewhere_is_not_chosen(taken):
    assert free_port(taken) not in taken


def test_properties_are_escaped_as_java_reads_them():
    assert properties_text({"a.b": "C:\\x y=z"}) == "a.b=C:\\\\x y=z\n"
