"""What a client refuses before it asks a broker."""

import time

import pytest

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    UsageError,
)
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.readings.log_checks import known_log_ids

ORDERS = TopicPartition("orders", 0)
GRACE = 3.0
"""Seconds, on a busy machine."""


@pytest.fixture
def client():
    with OffsetsClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=20) as client:
        yield client


@pytest.mark.parametrize("call", ["describe_groups", "settled_groups", "delete_groups"])
def test_one_name_is_no_list_of_groups(client, call):
    with pytest.raises(UsageError, match="group_ids='gs': expected a list of groups"):
        getattr(client, call)("gs")


@pytest.mark.parametrize("states", ["Empty", ["Emptyy"], ["Empty", 3], ["Reconciling"]])
def test_a_state_that_no_group_has_is_refused(client, states):
    with pytest.raises(UsageError, match="states.*expected .*'Empty'"):
        client.list_groups(states)


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_a_name_that_would_end_the_child_or_be_cut_is_not_handed_to_it(client, name):
    for call in (client.describe_groups, client.delete_groups):
        with pytest.raises(UsageError, match="expected the name of a consumer group"):
            call([name])


def test_a_refused_configuration_is_one_error_and_no_warning_about_topics(caplog):
    config = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.ca.location": "/nowhere"}
    with OffsetsClient(config) as refused, pytest.raises(BrokerError, match="refused its configuration"):
        known_log_ids(refused, ["orders"])
    assert not caplog.records


def test_a_commit_that_no_broker_would_take_is_not_sent(client):
    for group, offset in (("g", -1), ("", 0)):
        with pytest.raises(UsageError, match="cannot be committed|group_id is empty"):
            client.commit(group, {ORDERS: offset})


@pytest.mark.parametrize("topic", ["", " ", "a b", ".", "a\0b", "\ud800", "x" * 250, "x" * 70_000, "^a.*"])
def test_a_topic_that_cannot_be_is_not_handed_to_the_client(client, topic):
    partition = TopicPartition(topic, 0)
    for call in (
        lambda: client.partitions([topic]),
        lambda: client.committed("g", [partition]),
        lambda: client.log_ranges([partition]),
        lambda: client.offsets_for_time([partition], 0),
        lambda: client.record_times({partition: 0}),
        lambda: client.commit("g", {partition: 0}),
    ):
        with pytest.raises(UsageError, match="expected the name of a topic"):
            call()


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 0, -1, 3_601])
def test_a_client_has_a_time_that_the_calls_can_have(timeout):
    with pytest.raises(UsageError, match=r"^timeout=.*: expected seconds, .* above 0 and of at most 3600"):
        OffsetsClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=timeout)


def test_no_time_for_records_is_refused(client):
    with pytest.raises(UsageError, match="within=0 leaves no time"):
        client.record_times({ORDERS: 0}, within=0)


def test_a_setting_that_the_client_refuses_is_named_without_secrets():
    config = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.key.pem": "hunter2hunter2"}
    with OffsetsClient(config, timeout=5) as client:
        with pytest.raises(BrokerError, match=r"refused its configuration: .*ssl\.key\.pem") as caught:
            client.partitions()
        assert "hunter2" not in str(caught.value)
        with pytest.raises(BrokerError, match="correct the Kafka configuration") as caught:
            client.list_groups()
        assert "hunter2" not in str(caught.value)


def test_a_login_without_a_mechanism_is_not_sent_to_kerberos():
    login = {"security.protocol": "SASL_SSL", "sasl.username": "orders", "sasl.password": "hunter2hunter2"}
    with OffsetsClient({"bootstrap.servers": "127.0.0.1:1", **login}, timeout=5) as client:
        for call in (client.partitions, client.list_groups):
            with pytest.raises(BrokerError, match=r"sasl\.mechanism is missing"):
                call()


def token_from(outcome):
    """Return the configuration of a login whose function raises an error or returns a value."""

    def oauth_cb(_):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER", "oauth_cb": oauth_cb}
    return {"bootstrap.servers": "127.0.0.1:1", **login}


BY_TOKEN = pytest.mark.parametrize(
    "ask",
    [lambda client: client.list_groups(), lambda client: client.partitions()],
    ids=["admin", "consumer"],
)


@BY_TOKEN
@pytest.mark.parametrize("failure", [ConnectionRefusedError("hunter2"), ValueError("hunter2 is no JSON")])
def test_a_token_service_that_is_away_is_a_temporary_error_at_once(ask, failure):
    start = time.monotonic()
    with (
        OffsetsClient(token_from(failure), timeout=5) as client,
        pytest.raises(BrokerUnavailableError, match=f"raised {type(failure).__name__}") as caught,
    ):
        ask(client)
    assert "hunter2" not in str(caught.value)
    assert time.monotonic() - start < GRACE


@BY_TOKEN
@pytest.mark.parametrize("returned", [None, "hunter2", ("hunter2", "tomorrow"), (b"hunter2", 1.0)])
def test_a_token_function_that_returns_no_token_is_to_be_corrected(ask, returned):
    with (
        OffsetsClient(token_from(returned), timeout=5) as client,
        pytest.raises(BrokerAuthenticationError, match="returned no token and expiry time") as caught,
    ):
        ask(client)
    assert "hunter2" not in str(caught.value)
