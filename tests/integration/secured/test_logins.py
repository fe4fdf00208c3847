"""Who is let in moves what the rights allow; who is not reads why, and moves nothing."""

from __future__ import annotations

import base64
import json
import time

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from secured_kafka import PASSWORD

from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.integration


def reset(pipeline, context):
    task = ResetOffsetsOperator(task_id="t", to_offset="earliest", quiet_period=0, **pipeline.with_checkpoint)
    return task.execute(context)


def encoded(part):
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def token(user, seconds=600):
    now = time.time()
    claims = {"sub": user, "iat": now - 1000, "exp": now + seconds}
    return f"{encoded({'alg': 'none'})}.{encoded(claims)}.", now + 600


def token_of_bob(_):
    return token("bob")


def token_that_has_expired(_):
    return token("bob", -900)


def no_token(_):
    raise RuntimeError(f"the service has refused {PASSWORD}")


@pytest.fixture
def by_callback(secured_cluster, monkeypatch):
    """by_callback(function) -> a connection whose token this function of the module makes."""

    def make(function):
        path = f"{__name__}.{function.__name__}"
        monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", path)
        config = secured_cluster.by_token("bob")
        return {key: value for key, value in config.items() if "oauthbearer" not in key} | {"oauth_cb": path}

    return make


@pytest.fixture
def bob(secured_cluster, pipeline):
    """Grants bob, who is the same by password, certificate and token, what a reset needs."""
    rights = [("group", pipeline.group, "Read"), ("topic", pipeline.topic, "Read")]
    secured_cluster.grant("bob", *rights)
    yield
    secured_cluster.revoke("bob", *rights)


@pytest.mark.usefixtures("bob")
@pytest.mark.parametrize(
    "way", ["a certificate", "a token of librdkafka", "a token of the official provider's callback"]
)
def test_a_user_is_let_in_and_known_by(secured_cluster, pipeline, connect, context, by_callback, way):
    ways = {
        "a certificate": lambda: secured_cluster.by_certificate("bob"),
        "a token of librdkafka": lambda: secured_cluster.by_token("bob"),
        "a token of the official provider's callback": lambda: by_callback(token_of_bob),
    }
    connect(ways[way]())
    reset(pipeline, context)
    assert pipeline.offsets() == {0: 0, 1: 0, 2: 0} == pipeline.query.stands()


def first_of(address):
    return address.split(",")[0]


CASES = {
    "a certificate that has expired": lambda kafka: (kafka.tls("EXPIRED"), "XXX"),
    "a certificate of another host": lambda kafka: (kafka.tls("WRONG_HOST"), "XXX"),
    "another authority": lambda kafka: (
        kafka.admin | {"ssl.ca.location": str(kafka.other_ca)},
        "XXX",
    ),
    "a wrong password": lambda kafka: (kafka.login("admin", "hunter2"), "XXX"),
    "an unknown user": lambda kafka: (kafka.login("nobody"), "XXX"),
    "PLAIN": lambda kafka: (kafka.admin | {"sasl.mechanisms": "PLAIN"}, "XXX"),
    "SCRAM-SHA-256": lambda kafka: (kafka.admin | {"sasl.mechanisms": "SCRAM-SHA-256"}, "XXX"),
    "OAUTHBEARER where it is not": lambda kafka: (
        kafka.by_token("admin") | {"bootstrap.servers": kafka.listeners["SASL_SSL"]},
        "XXX",
    ),
    "no TLS where it is wanted": lambda kafka: (
        {"bootstrap.servers": kafka.listeners["SSL"]},
        "XXX",
    ),
    "no TLS where TLS and a login are wanted": lambda kafka: (
        kafka.admin | {"security.protocol": "SASL_PLAINTEXT"},
        "XXX",
    ),
    "TLS where there is none": lambda kafka: (kafka.tls("SSL") | {"bootstrap.servers": kafka.plain}, "XXX"),
    "TLS where a login without it is wanted": lambda kafka: (
        kafka.admin | {"bootstrap.servers": kafka.listeners["SASL_PLAINTEXT"]},
        "XXX",
    ),
    "no certificate of the client": lambda kafka: (kafka.tls("MTLS"), "XXX"),
    "a client's certificate of another authority": lambda kafka: (
        kafka.tls(
            "MTLS",
            ssl_certificate_location=str(kafka.other_ca.parent / "client.pem"),
            ssl_key_location=str(kafka.other_ca.parent / "client.pem"),
        ),
        "XXX",
    ),
    "a client's certificate that has expired": lambda kafka: (
        kafka.tls(
            "MTLS",
            ssl_certificate_location=str(kafka.certificates / "expired.pem"),
            ssl_key_location=str(kafka.certificates / "expired.pem"),
        ),
        "XXX",
    ),
    "a certificate without its key": lambda kafka: (
        kafka.tls("MTLS", ssl_certificate_location=str(kafka.certificates / "client.pem")),
        "XXX",
    ),
    "a key of another certificate": lambda kafka: (
        kafka.tls(
            "MTLS",
            ssl_certificate_location=str(kafka.certificates / "client.pem"),
            ssl_key_location=str(kafka.certificates / "expired.pem"),
        ),
        "XXX",
    ),
    "a login where none is wanted": lambda kafka: (
        kafka.admin | {"bootstrap.servers": kafka.listeners["SSL"]},
        "XXX",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_not_let_in_reads_why_and_moves_nothing(secured_cluster, pipeline, connect, context, case):
    config, reason = CASES[case](secured_cluster)
    connect(config)
    before = pipeline.state()
    start = time.monotonic()
    with pytest.raises(AirflowFailException) as refused:
        reset(pipeline, context)
    print("###", case, round(time.monotonic() - start, 1), refused.value)
    assert time.monotonic() - start < 15
    assert pipeline.state() == before


@pytest.mark.parametrize("function", [token_that_has_expired, no_token])
def test_token(secured_cluster, pipeline, connect, context, by_callback, function):
    connect(by_callback(function))
    start = time.monotonic()
    with pytest.raises(Exception) as refused:
        reset(pipeline, context)
    print("###", function, round(time.monotonic() - start, 1), type(refused.value), refused.value)
