"""What does a broker's refusal look like, and does any of it give a credential away?"""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    CommitError,
)
from airflow_kafka_offsets.kafka.client import Committed, OffsetsClient
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.model.offset_window import OffsetWindow
from airflow_kafka_offsets.model.offsets import LogRange, OffsetRange, TopicPartition

pytestmark = pytest.mark.integration

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def guarded_kafka():
    with EmbeddedKafka(
        users={"alice": "wonderland", "bob": "can-we-fix-it"},
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice",
        },
    ) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def topics(guarded_kafka, make_topic):
    return [make_topic(on=guarded_kafka.bootstrap_servers) for _ in range(2)]


@pytest.fixture
def grant(guarded_kafka):
    admin = AdminClient({"bootstrap.servers": guarded_kafka.bootstrap_servers})

    def allow(kind, name, operation):
        binding = AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:bob", "*", operation, AclPermissionType.ALLOW
        )
        admin.create_acls([binding])[binding].result(20)

    return allow


@pytest.fixture
def connect(guarded_kafka):
    clients = []

    def make(user, password, timeout=20.0):
        config = {
            "bootstrap.servers": guarded_kafka.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        }
        clients.append(OffsetsClient(config, timeout=timeout))
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
def test_a_wrong_password_is_told_soon_and_not_shown(connect, capfd, method):
    client = connect("alice", "hunter2hunter2")
    start = time.monotonic()
    with pytest.raises(BrokerAuthenticationError, match="refused the credentials") as caught:
        every_method(client, ORDERS, "nightly")[method]()
    assert time.monotonic() - start < 10
    assert "sasl.password" in str(caught.value)
    assert caught.value.__cause__ is None
    shown = capfd.readouterr()
    assert "hunter2" not in str(caught.value) + shown.out + shown.err


def test_the_right_password_does_it(connect, topics, new_group):
    client, group, partition = connect("alice", "wonderland"), new_group(), TopicPartition(topics[0], 0)
    client.commit(group, {partition: 0})
    assert client.committed(group, [partition]) == {partition: Committed(0, "")}
    assert client.log_ranges([partition]) == {partition: LogRange(0, 0)}
    assert client.describe_groups([group])[group].state == "Empty"


@pytest.mark.parametrize("method", ["committed", "commit", "describe_groups"])
def test_a_group_that_is_not_allowed_says_what_to_grant(connect, topics, new_group, grant, method):
    grant(ResourceType.TOPIC, topics[0], AclOperation.READ)
    client = connect("bob", "can-we-fix-it")
    with pytest.raises(BrokerAuthenticationError, match="grant it Read on the group") as caught:
        every_method(client, TopicPartition(topics[0], 0), new_group())[method]()
    assert caught.value.code == "GROUP_AUTHORIZATION_FAILED"


def test_a_group_that_may_only_be_looked_at_is_not_committed_to(connect, topics, new_group, grant):
    group, partition = new_group(), TopicPartition(topics[0], 0)
    grant(ResourceType.TOPIC, topics[0], AclOperation.READ)
    grant(ResourceType.GROUP, group, AclOperation.DESCRIBE)
    client = connect("bob", "can-we-fix-it")
    assert client.committed(group, [partition]) == {partition: None}
    with pytest.raises(BrokerAuthenticationError, match=r"grant it Read on the group.*; nothing was written"):
        client.commit(group, {partition: 0})


def test_a_window_of_a_group_that_is_not_allowed_says_what_to_grant(connect, topics, new_group, grant):
    group, partition = new_group(), TopicPartition(topics[0], 0)
    window = OffsetWindow({partition: OffsetRange(0, 0)}, frozenset({partition}))
    grant(ResourceType.TOPIC, topics[0], AclOperation.READ)
    grant(ResourceType.GROUP, group, AclOperation.DESCRIBE)
    client = connect("bob", "can-we-fix-it")
    with pytest.raises(
        BrokerAuthenticationError, match=r"grant it Read on the group.*fenced=False.*; nothing was written"
    ):
        client.commit_window(group, window)
    grant(ResourceType.GROUP, group, AclOperation.READ)
    assert client.commit_window(group, window) == {partition: 0}


def test_a_topic_that_is_not_allowed_says_what_to_grant(connect, topics, new_group, grant):
    group = new_group()
    allowed, hidden = (TopicPartition(topic, 0) for topic in topics)
    grant(ResourceType.GROUP, group, AclOperation.READ)
    grant(ResourceType.TOPIC, allowed.topic, AclOperation.READ)
    client = connect("bob", "can-we-fix-it")
    with pytest.raises(BrokerAuthenticationError, match="grant it Read on the topics"):
        client.log_ranges([hidden])
    with pytest.raises(BrokerAuthenticationError, match="grant it Read on the topics"):
        client.partitions([hidden.topic])
    with pytest.raises(BrokerAuthenticationError, match=f"{hidden}.*grant it Read.*; nothing was written"):
        client.commit(group, {allowed: 0, hidden: 0})
    assert client.committed(group, [allowed]) == {allowed: None}
    grant(ResourceType.TOPIC, hidden.topic, AclOperation.DESCRIBE)
    with pytest.raises(CommitError, match="grant it Read on the topics") as caught:
        client.commit(group, {allowed: 0, hidden: 0})
    assert caught.value.failed == {hidden: "TOPIC_AUTHORIZATION_FAILED"}
    assert caught.value.written == (allowed,)


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


def test_a_client_that_wants_tls_from_a_plain_listener_says_so(bootstrap_servers):
    config = {"bootstrap.servers": bootstrap_servers, "security.protocol": "ssl"}
    with OffsetsClient(config, timeout=1.5) as client:
        with pytest.raises(BrokerUnavailableError, match=r"security\.protocol \(a PLAINTEXT broker listener"):
            client.partitions()


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
        pytest.raises(BrokerAuthenticationError, match="gave no token") as caught,
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
