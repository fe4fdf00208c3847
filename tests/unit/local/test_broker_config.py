from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.local.broker_config import Ports, choose_ports, properties_text, server_properties

PLAIN = Ports(1, 2, {})
MORE = {"SASL_PLAINTEXT": "SASL_PLAINTEXT", "OUTSIDE": "SASL_SSL"}


def test_every_listener_is_on_loopback():
    properties = server_properties(Ports(1, 2, {"SASL_PLAINTEXT": 3, "OUTSIDE": 4}), MORE, Path("/data"), {})
    clients = "PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:3,OUTSIDE://127.0.0.1:4"
    assert properties["listeners"] == f"{clients},CONTROLLER://127.0.0.1:2"
    assert properties["advertised.listeners"] == clients


def test_every_listener_for_users_has_a_login():
    properties = server_properties(Ports(1, 2, {"SASL_PLAINTEXT": 3, "OUTSIDE": 4}), MORE, Path("/data"), {})
    for name in ("sasl_plaintext", "outside"):
        assert "Scram" in properties[f"listener.name.{name}.scram-sha-512.sasl.jaas.config"]


def test_without_users_there_is_no_listener_for_them():
    assert "SASL" not in server_properties(PLAIN, {}, Path("/data"), {})["listeners"]


def test_given_properties_win():
    properties = server_properties(PLAIN, {}, Path("/data"), {"num.io.threads": "1", "x": "y"})
    assert (properties["num.io.threads"], properties["x"]) == ("1", "y")


@given(st.sampled_from([None, 20_001]), st.sampled_from([(), ("SASL_PLAINTEXT",), tuple(MORE)]))
def test_ports_differ_from_each_other(plain, others):
    found = choose_ports(plain, others)
    ports = [found.plain, found.controller, *found.others.values()]
    assert len(set(ports)) == len(ports) == 2 + len(others)
    assert list(found.others) == list(others)
    assert plain in (None, found.plain)


def test_properties_are_escaped_as_java_reads_them():
    assert properties_text({"a b": "C:\\x y=z"}) == "a\\ b=C:\\\\x y=z\n"
