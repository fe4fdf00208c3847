"""What does a client see of a broker with TLS, users and ACLs?"""

import time
from contextlib import contextmanager

import pytest
from client_calls import CALLS
from faulty_proxy import Proxy
from secured_kafka import PASSWORD

from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.write import commit_window

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def topic(secured_kafka, make_topic):
    return make_topic(on=secured_kafka.plain)


def test_every_listener_lets_in_who_has_what_it_wants(secured_kafka, topic, new_group):
    for config in (
        secured_kafka.admin,
        secured_kafka.login("admin", listener="SASL_PLAINTEXT"),
        secured_kafka.tls("SSL"),
        secured_kafka.by_certificate(),
        secured_kafka.by_token("admin"),
    ):
        with OffsetsClient(config) as offsets:
            offsets.commit(new_group(), {TopicPartition(topic, 0): 0})


def test_a_right_that_was_revoked_is_missing_at_once(secured_kafka, topic, new_group):
    group, partition = new_group(), TopicPartition(topic, 0)
    bob = secured_kafka.user("bob", ("topic", topic, "Read"), ("group", group, "Read"))
    with OffsetsClient(bob) as client:
        client.commit(group, {partition: 0})
        secured_kafka.revoke(bob, ("topic", topic, "Read"))
        with pytest.raises(BrokerAuthenticationError, match="TOPIC_AUTHORIZATION_FAILED"):
            client.commit(group, {partition: 0})


@pytest.fixture
def behind_proxy(secured_kafka):
    """
    behind_proxy() -> a proxy before the listener for users without TLS, and a configuration that leads there:
    clients leave it once they know the broker's address.
    """
    proxies = []

    def make():
        config = secured_kafka.login("admin", listener="SASL_PLAINTEXT")
        proxies.append(Proxy(int(config["bootstrap.servers"].rpartition(":")[2])))
        return proxies[-1], config | {"bootstrap.servers": proxies[-1].bootstrap_servers}

    yield make
    for proxy in proxies:
        proxy.close()


SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


class TestAConnectionLostWhileItLogsIn:
    @pytest.mark.parametrize("api_key", [SASL_HANDSHAKE, SASL_AUTHENTICATE])
    def test_is_made_again(self, behind_proxy, topic, new_group, api_key):
        group, partition = new_group(), TopicPartition(topic, 0)
        calls = {
            "committed": lambda client: client.committed(group, [partition]),
            "commit": lambda client: client.commit(group, {partition: 0}),
            "window": lambda client: commit_window(
                client, group, OffsetWindow({partition: OffsetRange(0, 1)})
            ),
            "describe": lambda client: client.describe_groups([group]),
            "times": lambda client: client.record_times({partition: 0}),
        }
        for call in calls.values():
            proxy, config = behind_proxy()
            proxy.cut(api_key, 1)
            with OffsetsClient(config) as client:
                call(client)
            assert proxy.cuts_left == 0

    def test_is_worth_another_try_when_it_is_lost_each_time(self, behind_proxy):
        proxy, config = behind_proxy()
        proxy.cut(SASL_HANDSHAKE, 1_000_000)
        with OffsetsClient(config, timeout=1.5) as client:
            for call in (client.partitions, client.list_groups):
                with pytest.raises(BrokerUnavailableError, match="handshake failed: Local: "):
                    call()


def committed_in_nowhere(client):
    return client.committed("nobody", [TopicPartition("nowhere", 0)])


@contextmanager
def refused_at_once(config, call=OffsetsClient.partitions):
    """What a call is told within seconds, not at the end of its deadline."""
    with OffsetsClient(config, timeout=30) as client:
        start = time.monotonic()
        with pytest.raises(BrokerError) as caught:
            call(client)
        assert time.monotonic() - start < 10
        assert not caught.value.retriable
        assert caught.value.__cause__ is None
        assert PASSWORD not in str(caught.value)
        yield str(caught.value)


class TestARefusalToLogIn:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"sasl.password": "hunter2"}, "invalid credentials"),
            ({"sasl.username": "nobody"}, "invalid credentials"),
            ({"sasl.mechanisms": "PLAIN"}, "set sasl.mechanisms to SCRAM-SHA-512"),
            ({"sasl.mechanisms": "SCRAM-SHA-256"}, "set sasl.mechanisms to SCRAM-SHA-512"),
        ],
    )
    def test_is_final_at_once(self, secured_kafka, change, reason):
        with refused_at_once({**secured_kafka.admin, **change}) as said:
            assert reason in said
            assert "hunter2" not in said

    @pytest.mark.parametrize(
        "method", ["log_ranges", "committed", "commit", "describe_groups", "delete_groups"]
    )
    def test_for_a_wrong_password_is_told_by_each_way_to_ask_and_shown_by_none(
        self, secured_kafka, capfd, method
    ):
        config = secured_kafka.login("admin", "hunter2hunter2", listener="SASL_PLAINTEXT")
        asked = ("nightly", TopicPartition("orders", 0))
        with refused_at_once(config, lambda client: CALLS[method](client, *asked)) as said:
            assert "refused the credentials" in said
            assert "sasl.password" in said
        assert "hunter2" not in said + "".join(capfd.readouterr())

    def test_by_token_names_the_mechanism_to_use(self, secured_kafka):
        config = secured_kafka.by_token("admin") | {"bootstrap.servers": secured_kafka.listeners["SASL_SSL"]}
        with refused_at_once(config) as said:
            assert "the listener uses another login: set sasl.mechanisms to SCRAM-SHA-512" in said


class TestACertificate:
    @pytest.mark.parametrize("call", [OffsetsClient.partitions, OffsetsClient.list_groups])
    def test_that_has_expired_is_called_that(self, secured_kafka, call):
        address = secured_kafka.listeners["EXPIRED"]
        with refused_at_once(secured_kafka.tls("EXPIRED"), call) as said:
            assert f"the certificate of {address}, or one that signed it, has expired" in said
            assert "ssl.ca.location" not in said

    def test_of_another_host_is_called_that(self, secured_kafka):
        with refused_at_once(secured_kafka.tls("WRONG_HOST")) as said:
            assert "is for another name (IP address mismatch" in said
            assert "advertised.listeners" in said

    def test_whose_host_is_not_to_be_compared_is_taken(self, secured_kafka):
        config = secured_kafka.tls("WRONG_HOST") | {"ssl.endpoint.identification.algorithm": "none"}
        with OffsetsClient(config) as client:
            client.partitions()

    def test_of_an_unknown_authority_names_the_file_with_the_known_ones(self, secured_kafka):
        other = secured_kafka.other_ca
        with refused_at_once(secured_kafka.tls("SSL", ssl_ca_location=str(other))) as said:
            assert f"is not signed by ssl.ca.location={other} (" in said

    def test_of_an_unknown_authority_without_a_file_says_what_to_set(self, secured_kafka):
        config = secured_kafka.tls("SSL")
        del config["ssl.ca.location"]
        with refused_at_once(config) as said:
            assert "is not signed by the authorities that this machine trusts" in said
            assert "set ssl.ca.location" in said

    @pytest.mark.parametrize("name", [None, "other/client", "expired"])
    def test_of_the_client_that_is_not_accepted_is_asked_for(self, secured_kafka, name):
        file = str(secured_kafka.certificates / f"{name}.pem")
        own = {"ssl_certificate_location": file, "ssl_key_location": file} if name else {}
        with refused_at_once(secured_kafka.tls("MTLS", **own)) as said:
            assert "requires a client certificate that it trusts and that has not expired" in said
            assert "set ssl.certificate.location and ssl.key.location, or renew the certificate" in said

    def test_of_the_client_with_the_key_of_another_is_refused_by_the_client(self, secured_kafka):
        files = {
            "ssl_certificate_location": str(secured_kafka.certificates / "client.pem"),
            "ssl_key_location": str(secured_kafka.certificates / "expired.pem"),
        }
        with refused_at_once(secured_kafka.tls("MTLS", **files), OffsetsClient.list_groups) as said:
            assert "the Kafka client refused" in said
            assert "key values mismatch" in said
            assert "correct the Kafka configuration" in said

    @pytest.mark.parametrize("call", [OffsetsClient.partitions, OffsetsClient.list_groups])
    def test_whose_file_is_missing_is_named_with_its_path(self, secured_kafka, call, tmp_path):
        path = str(tmp_path / "ca.pem")
        with refused_at_once(secured_kafka.tls("SSL", ssl_ca_location=path), call) as said:
            assert f"ssl.ca.location={path} does not exist on this machine" in said


class TestASecurityProtocol:
    @pytest.mark.parametrize(
        ("listener", "configured", "found"),
        [
            ("SSL", "PLAINTEXT", "SSL"),
            ("SASL_SSL", "PLAINTEXT", "SASL_SSL"),
            ("SASL_SSL", "SSL", "SASL_SSL"),
            ("SSL", "SASL_SSL", "SSL"),
            ("SASL_PLAINTEXT", "PLAINTEXT", "SASL_PLAINTEXT"),
            ("SASL_PLAINTEXT", "SASL_SSL", "SASL_PLAINTEXT"),
            ("plain", "ssl", "PLAINTEXT"),
        ],
    )
    def test_that_is_not_the_listeners_is_named_beside_it(self, secured_kafka, listener, configured, found):
        address = secured_kafka.listeners.get(listener, secured_kafka.plain)
        config = secured_kafka.admin | {"bootstrap.servers": address, "security.protocol": configured}
        with_user = configured.startswith("SASL_")
        if not with_user:
            config = {key: value for key, value in config.items() if not key.startswith("sasl.")}
        with refused_at_once(config) as said:
            wrong = f"the listener at {address} is {found}, and the connection has security.protocol={configured.upper()}"
            without_tls = configured.upper().endswith("SSL") and not found.endswith("SSL")
            first = "name another listener in bootstrap.servers, or " if without_tls else ""
            assert f"{wrong}: {first}set security.protocol={found}" in said
            assert ("sasl.username" in said) == (found.startswith("SASL_") and not with_user)

    @pytest.mark.parametrize(
        ("others", "call"),
        [
            ("localhost:{port}", OffsetsClient.partitions),
            ("127.0.0.1:1", OffsetsClient.list_groups),
            ("127.0.0.1:1", committed_in_nowhere),
        ],
    )
    def test_that_is_not_the_listeners_is_named_where_several_brokers_are_given(
        self, secured_kafka, others, call
    ):
        address = secured_kafka.listeners["SASL_SSL"]
        servers = f"{address},{others.format(port=address.rpartition(':')[2])}"
        config = secured_kafka.admin | {"bootstrap.servers": servers, "security.protocol": "SSL"}
        with refused_at_once(config, call) as said:
            assert (
                "is SASL_SSL, and the connection has security.protocol=SSL: set security.protocol=SASL_SSL"
                in said
            )
