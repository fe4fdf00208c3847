"""What does a broker's refusal look like, and does any of it give a credential away?"""

from __future__ import annotations

import threading
import time

import pytest

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    CommitError,
)
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.model.offsets import Commit, LogRange, OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.write import commit_window

pytestmark = pytest.mark.integration

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def topics(secured_kafka, make_topic, produce):
    names = [make_topic(on=secured_kafka.plain) for _ in range(2)]
    produce(names[0], {0: 1}, on=secured_kafka.plain)
    return names


@pytest.fixture
def connect():
    clients = []

    def make(config):
        clients.append(OffsetsClient(config, timeout=20))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def every_method(client, partition, group):
    return {
        "partitions": client.partitions,
        "committed": lambda: client.committed(group, [partition]),
        "committed_everywhere": lambda: client.committed_everywhere(group),
        "log_ranges": lambda: client.log_ranges([partition]),
        "offsets_for_time": lambda: client.offsets_for_time([partition], 0),
        "commit": lambda: client.commit(group, {partition: 0}),
        "describe_groups": lambda: client.describe_groups([group]),
        "list_groups": client.list_groups,
        "delete_groups": lambda: client.delete_groups([group]),
    }


METHODS = [
    "partitions",
    "committed",
    "committed_everywhere",
    "log_ranges",
    "offsets_for_time",
    "commit",
    "describe_groups",
    "list_groups",
    "delete_groups",
]


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_password_is_told_soon_and_not_shown(secured_kafka, connect, capfd, method):
    client = connect(secured_kafka.login("admin", "hunter2hunter2", listener="SASL_PLAINTEXT"))
    start = time.monotonic()
    with pytest.raises(BrokerAuthenticationError, match="refused the credentials") as caught:
        every_method(client, ORDERS, "nightly")[method]()
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
    secured_kafka, connect, topics, new_group, method, right
):
    client, group = connect(secured_kafka.user("bob", ("topic", topics[0], "Read"))), new_group()
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(BrokerAuthenticationError, match=right) as caught:
            every_method(client, TopicPartition(topics[0], 0), group)[method]()
        assert caught.value.code == "GROUP_AUTHORIZATION_FAILED"
        assert time.monotonic() - start < 10


def test_a_group_that_may_only_be_looked_at_is_not_committed_to(secured_kafka, connect, topics, new_group):
    group, partition = new_group(), TopicPartition(topics[0], 0)
    window = OffsetWindow({partition: OffsetRange(0, 0)}, frozenset({partition}))
    bob = secured_kafka.user("bob", ("topic", partition.topic, "Read"), ("group", group, "Describe"))
    client = connect(bob)
    assert client.committed(group, [partition]) == {partition: None}
    assert client.describe_groups([group])[group].state == "Dead"
    for commit in (
        lambda: client.commit(group, {partition: 0}),
        lambda: commit_window(client, group, window),
        lambda: commit_window(client, group, window, fenced=False),
    ):
        with pytest.raises(BrokerAuthenticationError, match=f"{COMMITS}; nothing was written") as caught:
            commit()
        assert "fenced" not in str(caught.value)
    secured_kafka.grant(bob, ("group", group, "Read"))
    assert commit_window(client, group, window) == {partition: 0}


def test_a_topic_that_is_not_allowed_says_what_to_grant(secured_kafka, connect, topics, new_group):
    group = new_group()
    allowed, hidden = (TopicPartition(topic, 0) for topic in topics)
    bob = secured_kafka.user("bob", ("group", group, "Read"), ("topic", allowed.topic, "Read"))
    client = connect(bob)
    for look in (
        lambda: client.log_ranges([hidden]),
        lambda: client.offsets_for_time([hidden], 0),
        lambda: client.partitions([hidden.topic]),
        lambda: client.committed(group, [hidden]),
    ):
        with pytest.raises(
            BrokerAuthenticationError, match=r"grant it Describe on the topics \(Read includes"
        ):
            look()
    with pytest.raises(
        BrokerAuthenticationError, match=f"{hidden}.*grant it Read on the topics; nothing was written"
    ):
        client.commit(group, {allowed: 0, hidden: 0})
    assert client.committed(group, [allowed]) == {allowed: None}
    secured_kafka.grant(bob, ("topic", hidden.topic, "Describe"))
    with pytest.raises(CommitError, match="grant it Read on the topics") as caught:
        client.commit(group, {allowed: 0, hidden: 0})
    assert caught.value.failed == {hidden: "TOPIC_AUTHORIZATION_FAILED"}
    assert caught.value.written == (allowed,)


def test_a_topic_that_may_only_be_looked_at_shows_offsets_but_neither_times_nor_takes_commits(
    secured_kafka, connect, topics, new_group
):
    group, partition = new_group(), TopicPartition(topics[0], 0)
    with OffsetsClient(secured_kafka.admin) as admin:
        admin.commit(group, {partition: 0})
    client = connect(
        secured_kafka.user("bob", ("group", group, "Read"), ("topic", partition.topic, "Describe"))
    )
    assert client.committed(group, [partition]) == {partition: Commit(0, "")}
    assert client.log_ranges([partition]) == {partition: LogRange(0, 1)}
    assert client.offsets_for_time([partition], 0) == {partition: 0}
    with pytest.raises(BrokerAuthenticationError, match="grant it Read on the topics$"):
        client.record_times({partition: 0})
    # Also what the group holds already, which changes nothing.
    with pytest.raises(BrokerAuthenticationError, match="grant it Read on the topics; nothing was written"):
        client.commit(group, {partition: 0})


def test_a_group_is_listed_and_deleted_by_those_who_may(secured_kafka, connect, topics, new_group):
    group, partition = new_group(), TopicPartition(topics[0], 0)
    with OffsetsClient(secured_kafka.admin) as admin:
        admin.commit(group, {partition: 0})
    bob = secured_kafka.user("bob")
    client = connect(bob)
    assert client.list_groups() == []
    assert "grant it Delete on the group" in client.delete_groups([group])[group]
    secured_kafka.grant(bob, ("cluster", "", "Describe"))
    assert group in [listed.group_id for listed in client.list_groups()]
    secured_kafka.grant(bob, ("group", group, "Delete"))
    assert client.delete_groups([group]) == {group: None}


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
            every_method(client, ORDERS, "nightly")[method]()
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
