"""What does a broker's refusal look like, and does any of it give a credential away?"""

from __future__ import annotations

import threading
import time

import pytest

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
)
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def topic(secured_kafka, make_topic):
    return make_topic(on=secured_kafka.plain)


@pytest.fixture
def connect():
    clients = []

    def make(config):
        clients.append(OffsetsClient(config, timeout=20))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


METHODS = {
    "partitions": lambda client, *_: client.partitions(),
    "committed": lambda client, partition, group: client.committed(group, [partition]),
    "committed_everywhere": lambda client, _, group: client.committed_everywhere(group),
    "log_ranges": lambda client, partition, _: client.log_ranges([partition]),
    "offsets_for_time": lambda client, partition, _: client.offsets_for_time([partition], 0),
    "commit": lambda client, partition, group: client.commit(group, {partition: 0}),
    "describe_groups": lambda client, _, group: client.describe_groups([group]),
    "list_groups": lambda client, *_: client.list_groups(),
    "delete_groups": lambda client, _, group: client.delete_groups([group]),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_password_is_told_soon_and_not_shown(secured_kafka, connect, capfd, method):
    client = connect(secured_kafka.login("admin", "hunter2hunter2", listener="SASL_PLAINTEXT"))
    start = time.monotonic()
    with pytest.raises(BrokerAuthenticationError, match="refused the credentials") as caught:
        METHODS[method](client, ORDERS, "nightly")
    assert time.monotonic() - start < 10
    assert "sasl.password" in str(caught.value)
    assert caught.value.__cause__ is None
    shown = capfd.readouterr()
    assert "hunter2" not in str(caught.value) + shown.out + shown.err


LOOKS, COMMITS = r"grant it Describe on the group \(Read includes it", "grant it Read on the group"


@pytest.mark.parametrize(
    ("method", "right"), [("committed", LOOKS), ("commit", COMMITS), ("describe_groups", LOOKS)]
)
def test_a_group_that_is_not_allowed_says_what_to_grant_each_time(
    secured_kafka, connect, topic, new_group, method, right
):
    client, group = connect(secured_kafka.user("bob", ("topic", topic, "Read"))), new_group()
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(BrokerAuthenticationError, match=right) as caught:
            METHODS[method](client, TopicPartition(topic, 0), group)
        assert caught.value.code == "GROUP_AUTHORIZATION_FAILED"
        assert time.monotonic() - start < 10


def test_the_retention_of_offsets_is_told_to_those_who_may_see_the_brokers_settings(secured_kafka, connect):
    bob = secured_kafka.user("bob", ("cluster", "", "Describe"))
    assert connect(bob).offsets_retention_minutes() is None
    secured_kafka.grant(bob, ("cluster", "", "DescribeConfigs"))
    assert connect(bob).offsets_retention_minutes() == 10080


@pytest.mark.parametrize("method", METHODS)
def test_a_closed_port_is_named_within_the_deadline(method):
    servers = f"{LOOPBACK}:{free_port()}"
    start = time.monotonic()
    with OffsetsClient({"bootstrap.servers": servers}, timeout=1.5) as client:
        with pytest.raises(BrokerUnavailableError, match=r"check bootstrap\.servers") as caught:
            METHODS[method](client, ORDERS, "nightly")
        assert time.monotonic() - start < 3.5
    assert servers in str(caught.value)
    assert "Connection refused" in str(caught.value)
    assert caught.value.retriable


def test_a_setting_that_the_client_refuses_is_named_without_secrets():
    config = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.key.pem": "hunter2hunter2"}
    with OffsetsClient(config, timeout=5) as client:
        with pytest.raises(BrokerError, match=r"refused its configuration: .*ssl\.key\.pem") as caught:
            client.partitions()
        assert "hunter2" not in str(caught.value)
        with pytest.raises(BrokerError, match="correct the Kafka configuration") as caught:
            client.list_groups()
        assert "hunter2" not in str(caught.value)


def test_the_connections_own_error_callback_is_called_and_its_failure_does_not_matter(caplog):
    seen = []

    def error_cb(error):
        seen.append(error.name())
        raise ValueError("a bug of the user's")

    config = {"bootstrap.servers": f"{LOOPBACK}:{free_port()}", "error_cb": error_cb}
    with (
        OffsetsClient(config, timeout=1) as client,
        pytest.raises(BrokerUnavailableError, match="Connection refused"),
    ):
        client.partitions()
    assert "_TRANSPORT" in seen
    assert "error_cb of the Kafka configuration failed" in caplog.text


def test_a_token_function_that_fails_is_named_without_what_it_says():
    def oauth_cb(_):
        raise ValueError("hunter2hunter2")

    config = {"bootstrap.servers": "127.0.0.1:1", "oauth_cb": oauth_cb}
    with (
        OffsetsClient(config, timeout=5) as client,
        pytest.raises(BrokerAuthenticationError, match="returned no token") as caught,
    ):
        client.list_groups()
    assert "hunter2" not in str(caught.value)


def test_closing_does_not_wait_for_a_call_that_is_under_way():
    client = OffsetsClient({"bootstrap.servers": f"{LOOPBACK}:{free_port()}"}, timeout=5)
    outcome = []

    def ask():
        try:
            client.partitions()
        except BrokerError as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    start = time.monotonic()
    client.close()
    assert time.monotonic() - start < 4.5
    thread.join(20)
    assert [type(error) for error in outcome] == [BrokerUnavailableError]
