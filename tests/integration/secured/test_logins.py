"""Who is let in moves what the rights allow; who is not reads why, and moves nothing."""

from __future__ import annotations

import base64
import json
import re
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


def own(kafka, name, key=None):
    """A certificate of the client in place of the one that the broker knows."""
    directory = kafka.certificates
    return kafka.tls(
        "MTLS",
        ssl_certificate_location=str(directory / f"{name}.pem"),
        ssl_key_location=str(directory / f"{key or name}.pem"),
    )


def at(kafka, listener, config):
    return config | {"bootstrap.servers": kafka.listeners[listener]}


REFUSED = "refused the credentials .*invalid credentials.*correct user name, password"
MECHANISM = "the listener uses another login: set sasl.mechanisms to SCRAM-SHA-512$"
CLIENT = "requires a client certificate that it trusts and that has not expired: set ssl.certificate.location"
CASES = {
    "a certificate that has expired": (
        lambda kafka: kafka.tls("EXPIRED"),
        "or one that signed it, has expired: ",
    ),
    "a certificate of another host": (
        lambda kafka: kafka.tls("WRONG_HOST"),
        "is for another name .IP address mis",
    ),
    "another authority": (
        lambda kafka: kafka.admin | {"ssl.ca.location": str(kafka.other_ca)},
        r"is not signed by ssl.ca.location=\S+/other/ca.pem .*: set ssl.ca.location to",
    ),
    "a wrong password": (lambda kafka: kafka.login("admin", "hunter2"), REFUSED),
    "an unknown user": (lambda kafka: kafka.login("nobody"), REFUSED),
    "PLAIN": (lambda kafka: kafka.admin | {"sasl.mechanisms": "PLAIN"}, MECHANISM),
    "SCRAM-SHA-256": (lambda kafka: kafka.admin | {"sasl.mechanisms": "SCRAM-SHA-256"}, MECHANISM),
    "a token where a password is wanted": (
        lambda kafka: at(kafka, "SASL_SSL", kafka.by_token("admin")),
        MECHANISM,
    ),
    "no TLS where it is wanted": (
        lambda kafka: {"bootstrap.servers": kafka.listeners["SSL"]},
        "is SSL, and the connection has security.protocol=PLAINTEXT: set security.protocol=SSL",
    ),
    "no TLS where it and a login are wanted": (
        lambda kafka: kafka.admin | {"security.protocol": "SASL_PLAINTEXT"},
        "is SASL_SSL, and the connection has security.protocol=SASL_PLAINTEXT: set security.pro",
    ),
    "TLS where there is none": (
        lambda kafka: at(kafka, "PLAINTEXT", kafka.tls("SSL")),
        "is PLAINTEXT, and the connection has security.protocol=SSL: name another listener",
    ),
    "TLS where a login without it is wanted": (
        lambda kafka: at(kafka, "SASL_PLAINTEXT", kafka.admin),
        "is SASL_PLAINTEXT, and the connection has security.protocol=SASL_SSL: name another listener",
    ),
    "a login where none is wanted": (
        lambda kafka: at(kafka, "SSL", kafka.admin),
        "is SSL, and the connection has security.protocol=SASL_SSL: set security.protocol=SSL",
    ),
    "no certificate of the client": (lambda kafka: kafka.tls("MTLS"), CLIENT),
    "one of another authority": (lambda kafka: own(kafka, "other/client"), CLIENT),
    "one that has expired": (lambda kafka: own(kafka, "expired"), f"{CLIENT}.*, or renew the certificate"),
    "one with the key of another": (
        lambda kafka: own(kafka, "client", "expired"),
        "the Kafka client refused .*ssl.key.location.*key values mismatch.*: correct the Kafka configuration",
    ),
}
QUICK = {
    "a certificate that has expired",
    "a wrong password",
    "PLAIN",
    "no TLS where it and a login are wanted",
}


@pytest.mark.parametrize(
    "case", [one if one in QUICK else pytest.param(one, marks=pytest.mark.long) for one in CASES]
)
def test_who_is_not_let_in_reads_why_and_moves_nothing(secured_cluster, pipeline, connect, context, case):
    config, reason = CASES[case]
    connect(config(secured_cluster))
    before, start = pipeline.state(), time.monotonic()
    with pytest.raises(AirflowFailException, match=reason) as refused:
        reset(pipeline, context)
    assert time.monotonic() - start < 15
    assert "\n" not in str(refused.value)
    assert not re.search(f"hunter2|{PASSWORD}", str(refused.value))
    assert pipeline.state() == before


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            token_that_has_expired,
            "invalid_token.*: the broker does not accept the token: correct its source",
        ),
        (
            no_token,
            r"oauth_cb of the Kafka configuration returned no token .RuntimeError.: correct the connection",
        ),
    ],
)
def test_a_token_that_is_not_accepted_or_not_made_is_called_that(
    pipeline, connect, context, by_callback, function, reason
):
    connect(by_callback(function))
    before = pipeline.state()
    with pytest.raises(AirflowFailException, match=reason) as refused:
        reset(pipeline, context)
    assert "sasl.password" not in str(refused.value)
    assert PASSWORD not in str(refused.value)
    assert pipeline.state() == before
