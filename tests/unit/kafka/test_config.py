from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.config import client_config, dropped_keys, load_properties, scrubber
from airflow_kafka_offsets.model.text import escape_controls

if TYPE_CHECKING:
    from pathlib import Path

SERVER = {"bootstrap.servers": "kafka-1:9092"}


@pytest.mark.parametrize(
    "setting",
    [
        {"client.id": "orders"},
        {"security.protocol": "SASL_SSL"},
        {"sasl.mechanisms": "SCRAM-SHA-512"},
        {"sasl.username": "alice", "sasl.password": "secret"},
        {"ssl.ca.location": "/etc/ca.pem"},
        {"enable.ssl.certificate.verification": False},
        {"socket.timeout.ms": 4000},
        {"broker.address.family": "v4"},
        {"client.dns.lookup": "use_all_dns_ips"},
        # As they are, whatever their type and the spaces in them.
        {"sasl.password": "hunter 2 "},
        {"ssl.ca.pem": "\n-----BEGIN CERTIFICATE-----\n"},
        {"socket.timeout.ms": " 4000"},
        {"socket.timeout.ms": 4000.0},
        {"socket.max.fails": "-1"},
        {"sasl.kerberos.principal": "airflow/worker-1.example.com@EXAMPLE.COM"},
        {"sasl.kerberos.keytab": "/etc/security/airflow_1.keytab"},
    ],
)
def test_what_says_how_to_reach_the_broker_is_kept(setting):
    assert client_config({**SERVER, **setting}) == {**SERVER, **setting}


@pytest.mark.parametrize(
    "setting",
    [
        {"group.id": "orders"},
        {"enable.auto.commit": True},
        {"auto.offset.reset": "earliest"},
        {"isolation.level": "read_committed"},
        {"group.protocol": "consumer"},
        {"session.timeout.ms": 6000},
        # Valid beside settings of a consumer, or the client's own defaults, which are not these.
        {"receive.message.max.bytes": 2_000_000},
        {"reconnect.backoff.ms": 5_000},
        {"acks": "all"},
        {"linger.ms": 5},
        {"on_commit": print},
        {"log_cb": print},
        {"debug": "security"},
        {"client.id": ""},
        {"sasl.username": None},
        {"oauth_cb": "module.function"},
        {"default.topic.config": {"acks": 1}},
    ],
)
def test_what_says_how_to_consume_or_is_refused_by_clients_is_dropped_and_named(setting):
    assert client_config({**SERVER, **setting}) == SERVER
    assert dropped_keys({**SERVER, **setting}) == list(setting)


BY_TOKEN = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "OAUTHBEARER"}


@pytest.mark.parametrize(
    "method",
    [
        {},
        {"sasl.oauthbearer.method": "default"},
        {"sasl.oauthbearer.metadata.authentication.type": "none"},
    ],
)
def test_a_login_by_token_without_a_source_of_tokens_is_refused(method):
    # The client would wait for a token, and then blame the broker's address.
    with pytest.raises(UsageError, match="OAUTHBEARER and nothing that gives a token .* oauth_cb"):
        client_config({**SERVER, **BY_TOKEN, **method})


@pytest.mark.parametrize(
    "source", [{"sasl.oauthbearer.method": "OIDC"}, {"enable.sasl.oauthbearer.unsecure.jwt": True}]
)
def test_a_login_by_token_of_the_client_is_kept(source):
    assert client_config({**SERVER, **BY_TOKEN, **source}) == {**SERVER, **BY_TOKEN, **source}


def test_callbacks_for_tokens_and_errors_are_kept():
    config = {**SERVER, **BY_TOKEN, "oauth_cb": lambda _: ("token", 0.0), "error_cb": print}
    assert client_config(config) == config


@pytest.mark.parametrize(
    "login",
    [{}, {**BY_TOKEN, "sasl.mechanisms": "PLAIN"}, {**BY_TOKEN, "security.protocol": "SSL"}],
)
def test_a_callback_for_tokens_that_the_login_does_not_use_is_left_out(login):
    """The official provider adds it for each cluster of Google; the client would wait for it, and fail."""
    config = {**SERVER, **login}
    assert client_config({**config, "oauth_cb": print}) == config


def test_the_old_name_of_the_brokers_counts():
    assert client_config({"metadata.broker.list": "kafka-1:9092"}) == SERVER
    assert client_config({**SERVER, "metadata.broker.list": "kafka-1:9092"}) == SERVER


def test_two_names_of_the_brokers_with_different_brokers_are_refused():
    for config in (
        {**SERVER, "metadata.broker.list": "other:9092"},
        {"metadata.broker.list": "other:9092", **SERVER},
    ):
        with pytest.raises(UsageError, match=r"bootstrap\.servers .* and its old name .* differ"):
            client_config(config)


@pytest.mark.parametrize(
    "config", [{}, {"bootstrap.servers": ""}, {"bootstrap.servers": " "}, {"client.id": "x"}]
)
def test_without_brokers_the_missing_key_is_named(config):
    with pytest.raises(UsageError, match=r"has no bootstrap\.servers; expected host:port"):
        client_config(config)


def test_a_key_of_java_clients_names_the_key_to_use():
    with pytest.raises(
        UsageError, match=r"sasl\.jaas\.config .* use sasl\.username and sasl\.password"
    ) as caught:
        client_config({**SERVER, "sasl.jaas.config": 'ScramLoginModule required password="hunter2";'})
    assert "hunter2" not in str(caught.value)


def write(path: Path, text: str) -> Path:
    file = path / "client.properties"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_properties_file_is_read_as_java_does(tmp_path):
    text = r"""
# for the tests
! also a comment
bootstrap.servers = kafka-1:9092,\
    kafka-2:9092
security.protocol:SASL_SSL
client.id  orders
sasl.password=a\\b=c\u0021 #1
ssl.key.pem=one\ntwo
sasl.username=
"""
    assert load_properties(write(tmp_path, text)) == {
        "bootstrap.servers": "kafka-1:9092,kafka-2:9092",
        "security.protocol": "SASL_SSL",
        "client.id": "orders",
        "sasl.password": "a\\b=c! #1",
        "ssl.key.pem": "one\ntwo",
        "sasl.username": "",
    }


def test_a_mark_at_the_beginning_of_a_file_is_not_part_of_a_name(tmp_path):
    assert load_properties(write(tmp_path, "\ufeffbootstrap.servers=kafka-1:9092\n")) == SERVER


def test_the_old_name_of_the_brokers_counts_in_a_file(tmp_path):
    assert load_properties(write(tmp_path, "metadata.broker.list=kafka-1:9092\n")) == SERVER
    both = write(tmp_path, "metadata.broker.list=other:9092\nbootstrap.servers=kafka-1:9092\n")
    with pytest.raises(UsageError, match=rf"bootstrap\.servers of {both} and its old name .* differ"):
        load_properties(both)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hunter2", "line 2: expected key=value"),
        ("=hunter2", "line 2: expected key=value"),
        (r"sasl.password=hunter2\u12", "line 2: expected four hexadecimal digits"),
        (
            "ssl.truststore.location=hunter2",
            r"line 2: ssl\.truststore\.location .* ssl\.ca\.location, a PEM file",
        ),
    ],
)
def test_a_wrong_line_is_named_without_its_value(tmp_path, line, expected):
    file = write(tmp_path, f"client.id=x\n{line}\n")
    with pytest.raises(UsageError, match=expected) as caught:
        load_properties(file)
    assert str(file) in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.properties cannot be read"):
        load_properties(tmp_path / "nowhere.properties")


def test_credentials_are_taken_out_of_a_text():
    scrub = scrubber(
        {**SERVER, "sasl.password": "hunter2", "ssl.key.password": "hunter2more", "sasl.mechanisms": "PLAIN"}
    )
    assert (
        scrub("PLAIN on kafka-1:9092 refused hunter2more, hunter2")
        == "PLAIN on kafka-1:9092 refused ***, ***"
    )


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"client.id": "a\0b"}, "client.id of the Kafka configuration has a NUL"),
        ({"client.id": " a"}, "client.id .* begins with whitespace"),
        ({"client.id": "\t"}, "client.id .* is blank"),
        ({"client.rack": "\ud800"}, "client.rack .* half of a surrogate pair"),
        ({"bootstrap.servers": "kafka-1:9092\0,kafka-2:9092"}, "bootstrap.servers .* has a NUL"),
        ({"security.protocol": " "}, "security.protocol .* is blank"),
        ({"sasl.password": " hunter2"}, "sasl.password .* begins with whitespace"),
        ({"ssl.key.password": "hunter2\0"}, "ssl.key.password .* has a NUL"),
        (
            {"socket.timeout.ms": 2**32 + 4000},
            "socket.timeout.ms .* is not a whole number of at most 32 bits",
        ),
        ({"bootstrap.servers": "kafka-1:9092, kafka-2:90922"}, "bootstrap.servers .* above 65535"),
        ({"bootstrap.servers": "[::1]:65536"}, "bootstrap.servers .* above 65535"),
        ({"socket.timeout.ms": "4e3"}, "socket.timeout.ms .* is not a whole number"),
        ({"socket.timeout.ms": 4000.5}, "socket.timeout.ms .* is not a whole number"),
        ({"connections.max.idle.ms": "9" * 5_000}, "connections.max.idle.ms .* is not a whole number"),
        ({"connections.max.idle.ms": float("nan")}, "connections.max.idle.ms .* is not a whole number"),
    ],
)
def test_a_value_that_the_client_would_change_is_refused_and_not_repeated(setting, says):
    with pytest.raises(UsageError, match=says) as refused:
        client_config({**SERVER, **setting})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "servers",
    [
        *("kafka-1:9092/", "kafka_1", " kafka-1:9092 , kafka-2:9093,", "PLAINTEXT://kafka-1:9092"),
        *("[::1]:9092", "[fe80::1%eth0]:9092", "::1", "plaintext://127.0.0.1:9092/"),
    ],
)
def test_an_address_that_the_client_reads_is_kept(servers):
    assert client_config({"bootstrap.servers": servers}) == {"bootstrap.servers": servers}


@pytest.mark.parametrize(
    "address",
    [
        "http://broker:9092",
        *("['broker:9092']", '"broker:9092"', "broker:9092;other:9092", "broker:9092 other:9092"),
        *("broker:port", "broker:", "broker:0", ":7", "$BROKERS", "the broker:9092", "http//broker:9092"),
    ],
)
def test_an_address_that_no_broker_can_have_is_refused_and_not_repeated(address):
    """The client would report it as a broker that does not answer, and a sensor would wait."""
    with pytest.raises(UsageError, match="address 2 in bootstrap.servers is not host:port") as refused:
        client_config({"bootstrap.servers": f"kafka-0:9092,{address}"})
    assert address not in str(refused.value)


@pytest.mark.parametrize(
    ("servers", "protocol"),
    [("SASL_SSL://broker:9092", "PLAINTEXT"), ("SSL://k:1", "SASL_SSL")],
)
def test_an_address_of_another_protocol_is_refused(servers, protocol):
    given = {} if protocol == "PLAINTEXT" else {"security.protocol": protocol}
    with pytest.raises(UsageError, match=f"begins with another protocol than security.protocol, {protocol}"):
        client_config({"bootstrap.servers": servers, **given})


def test_only_commas_name_no_broker():
    with pytest.raises(UsageError, match="has no bootstrap.servers"):
        client_config({"bootstrap.servers": " ,, "})


def test_what_is_in_a_login_of_java_is_taken_out_of_texts():
    jaas = 'ScramLoginModule required username="flights" password="a-\\"secret";'
    scrub = scrubber({"sasl.jaas.config": jaas})
    assert scrub('flights may not, with a-\\"secret') == "*** may not, with ***"


def test_what_is_in_a_token_s_configuration_is_taken_out_of_texts():
    scrub = scrubber({"sasl.oauthbearer.config": "principal=x s3cr3t=word,scope=reading"})
    assert scrub("Unrecognized principal configuration: s3cr3t=word, reading") == (
        "Unrecognized principal configuration: ***=***, ***"
    )


@pytest.mark.parametrize(
    "text",
    [
        "extension keys must only consist of A-Z or a-z characters: tenant-1 (-)",
        r"extension values must only consist of visible characters: se\x01cret (\x01)",
        r"se\x01cret",
    ],
)
def test_names_and_values_of_a_token_s_extensions_are_taken_out_of_texts(text):
    for config in (
        {"sasl.oauthbearer.extensions": "cluster=a,tenant-1=b,other=se\x01cret"},
        {"sasl.oauthbearer.config": "principal=x extension_tenant-1=b extension_c=se\x01cret"},
    ):
        shown = scrubber(config)(text)
        assert "***" in shown
        assert "tenant" not in shown
        assert "cret" not in shown


@pytest.mark.parametrize("password", ["pass\tword", "pass\u202eword", "\x7fpassword"])
def test_a_password_is_taken_out_where_it_was_made_printable(password):
    assert scrubber({"sasl.password": password})(escape_controls(f"refused {password}")) == "refused ***"


@pytest.mark.parametrize("value", [["SASL_SSL"], {"value": "SSL"}])
def test_a_setting_that_is_no_text_is_not_left_out(value):
    with pytest.raises(UsageError, match="security.protocol .* neither a text nor a number"):
        client_config({"bootstrap.servers": "a:1", "security.protocol": value})
