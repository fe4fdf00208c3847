"""Who is let in moves what the rights allow; who is not reads why, and moves nothing.

``tests/integration/kafka/test_secured.py`` has every login that is refused.
"""

import base64
import json
import time

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from secured_kafka import PASSWORD

from airflow_kafka_offsets.errors import BrokerUnavailableError
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
@pytest.mark.parametrize("way", ["a certificate", "a token", "the official provider's callback"])
def test_a_user_is_let_in_and_known_by(secured_cluster, pipeline, connect, context, by_callback, way):
    ways = {
        "a certificate": lambda: secured_cluster.by_certificate("bob"),
        "a token": lambda: secured_cluster.by_token("bob"),
        "the official provider's callback": lambda: by_callback(token_of_bob),
    }
    connect(ways[way]())
    reset(pipeline, context)
    assert pipeline.offsets() == {0: 0, 1: 0, 2: 0} == pipeline.query.stands()


@pytest.mark.parametrize(
    ("function", "error", "reason"),
    [
        (
            token_that_has_expired,
            AirflowFailException,
            "invalid_token.*: the broker does not accept the token: correct its source",
        ),
        # Airflow tries again, because the token service may be away.
        (no_token, BrokerUnavailableError, "oauth_cb of the Kafka configuration raised RuntimeError, so"),
    ],
)
def test_a_token_that_is_not_accepted_or_not_made_is_called_that(
    pipeline, connect, context, by_callback, function, error, reason
):
    connect(by_callback(function))
    before = pipeline.state()
    with pytest.raises(error, match=reason) as refused:
        reset(pipeline, context)
    assert "sasl.password" not in str(refused.value)
    assert PASSWORD not in str(refused.value)
    assert pipeline.state() == before
