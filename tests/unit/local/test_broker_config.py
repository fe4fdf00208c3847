from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.local.broker_config import Ports, choose_ports, properties_text, server_properties


def test_every_listener_is_on_loopback():
    properties = server_properties(Ports(1, 2, 3), Path("/data"), {})
    assert properties["listeners"] == (
        "PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:3,CONTROLLER://127.0.0.1:2"
    )
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:3"


def test_without_users_there_is_no_listener_for_them():
    assert "SASL" not in server_properties(Ports(1, 2, None), Path("/data"), {})["listeners"]


def test_given_properties_win():
    properties = server_properties(Ports(1, 2, None), Path("/data"), {"num.io.threads": "1", "x": "y"})
    assert (properties["num.io.threads"], properties["x"]) == ("1", "y")


@given(st.sampled_from([None, 20_001]), st.booleans())
def test_ports_differ_from_each_other(plain, sasl):
    ports = [port for port in choose_ports(plain, sasl=sasl) if port is not None]
    assert len(set(ports)) == len(ports) == (3 if sasl else 2)
    assert plain in (None, ports[0])


def test_properties_are_escaped_as_java_reads_them():
    assert properties_text({"a b": "C:\\x y=z"}) == "a\\ b=C:\\\\x y=z\n"
