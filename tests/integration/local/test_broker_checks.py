from __future__ import annotations

import socket
import time

import pytest
from breakable_kafka import BreakableKafka

from airflow_kafka_offsets.local.environment import check_broker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def forgetful_kafka():
    with BreakableKafka(users={"alice": "secret"}, properties={"offsets.retention.minutes": "90"}) as kafka:
        yield kafka


def test_kafka_s_default_retention_is_fine(kafka):
    checks = check_broker({"bootstrap.servers": kafka.bootstrap_servers})
    assert [(check.name, check.status) for check in checks] == [
        ("broker", "ok"),
        ("offsets.retention.minutes", "ok"),
    ]
    assert checks[0].found == f"{kafka.bootstrap_servers} answers (1 broker)"
    assert "loses its offsets 7 d after the last commit" in checks[1].found


def test_a_short_retention_is_a_warning(forgetful_kafka):
    _, retention = check_broker({"bootstrap.servers": forgetful_kafka.bootstrap_servers})
    assert retention.status == "warn"
    assert retention.found.startswith("90: a group without members loses its offsets 1 h 30 min after")


def test_a_wrong_password_is_named_as_the_cause_and_not_shown(forgetful_kafka):
    config = {
        "bootstrap.servers": forgetful_kafka.sasl_bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "geheim",
    }
    (check,) = check_broker(config, timeout=3)
    assert check.status == "fail"
    assert "Authentication failed" in check.found
    assert "geheim" not in str(check)
    assert [c.status for c in check_broker({**config, "sasl.password": "secret"})] == ["ok", "warn"]


def test_nobody_there_fails_within_the_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (check,) = check_broker({"bootstrap.servers": f"127.0.0.1:{port}"}, timeout=2)
    assert check.status == "fail"
    assert "Connection refused" in check.found


def test_a_server_that_says_nothing_fails_within_the_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        (check,) = check_broker({"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}, timeout=2)
    assert check.status == "fail"


def test_a_key_that_librdkafka_does_not_know_is_named():
    unused, check = check_broker({"bootstrap.servers": "127.0.0.1:9", "max.poll.recrods": 1}, 1)
    assert (unused.status, check.status) == ("warn", "fail")
    assert "max.poll.recrods" in unused.found


def test_what_the_listener_wants_is_named_at_once(secured_kafka):
    start = time.monotonic()
    (check,) = check_broker({"bootstrap.servers": secured_kafka.listeners["SASL_SSL"]}, timeout=30)
    assert time.monotonic() - start < 10
    assert check.status == "fail"
    assert "is SASL_SSL, and the connection has security.protocol=PLAINTEXT: set" in check.found
