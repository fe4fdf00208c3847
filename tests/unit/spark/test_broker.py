import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.spark.broker import (
    fails_on_data_loss,
    isolation_level,
    kafka_settings,
    librdkafka_config,
    refuse_other_ranges,
)

SERVERS = {"kafka.bootstrap.servers": "host:9092"}
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    "option", ["assign", "subscribe", "SubscribePattern", "startingoffsetsbytimestamp", "endingTimestamp"]
)
def test_options_that_say_what_is_read_are_refused(option):
    with pytest.raises(UsageError, match=f"options has {option}, but the offsets alone"):
        refuse_other_ranges({**SERVERS, option: "x"})


@pytest.mark.parametrize("value", [False, "false", "FALSE"])
def test_skipping_lost_records_is_refused(value):
    with pytest.raises(UsageError, match="failOnDataLoss=false"):
        refuse_other_ranges({**SERVERS, "failondataloss": value})
    assert not fails_on_data_loss({"failOnDataLoss": value})


@pytest.mark.parametrize("options", [{"minPartitions": 3}, {"kafka.bootstrap.servers": " "}])
def test_the_brokers_must_be_named(options):
    with pytest.raises(UsageError, match=r"options has no kafka\.bootstrap\.servers"):
        refuse_other_ranges(options)


def test_options_that_only_say_how_are_let_through():
    refuse_other_ranges(
        {
            **SERVERS,
            "minPartitions": 8,
            "includeHeaders": True,
            "failOnDataLoss": "true",
            "groupIdPrefix": "p",
        }
    )


def test_the_isolation_level_is_the_consumers_unless_it_is_named():
    assert isolation_level(SERVERS) == "read_uncommitted"
    assert isolation_level({"kafka.isolation.level": "READ_COMMITTED"}) == "read_committed"


def test_kafkas_settings_are_those_with_the_prefix_in_any_case_as_in_spark():
    options = {
        **SERVERS,
        "Kafka.Security.Protocol": "SSL",
        "subscribe": "t",
        "kafkaConsumer.pollTimeoutMs": 5,
    }
    assert kafka_settings(options) == {"bootstrap.servers": "host:9092", "security.protocol": "SSL"}


def test_user_and_password_are_taken_out_of_the_login():
    jaas = f'{MODULE} required\n  username="flights" password="a\\"b\\\\c;d" tokenauth=true;'
    config = librdkafka_config({**SERVERS, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas})
    assert config == {
        "bootstrap.servers": "host:9092",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "flights",
        "sasl.password": 'a"b\\c;d',
    }


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n")), st.sampled_from("'\""))
def test_any_password_is_read_as_java_reads_it(password, quote):
    written = password.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    jaas = f"{MODULE} required username={quote}u{quote} password={quote}{written}{quote};"
    config = librdkafka_config({**SERVERS, "kafka.sasl.jaas.config": jaas})
    assert config["sasl.password"] == password


@pytest.mark.parametrize(
    "option",
    [
        {"kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;"},
        {"kafka.sasl.jaas.config": f'{MODULE} required username="only a user";'},
        {"kafka.sasl.client.callback.handler.class": "org.example.Handler"},
        {"kafka.ssl.truststore.location": "trust.jks", "kafka.ssl.truststore.password": "a-secret"},
        {"kafka.ssl.keystore.location": "key.jks", "kafka.ssl.keystore.type": "JKS"},
    ],
    ids=str,
)
def test_what_only_java_can_do_is_refused_with_what_to_give_instead(option):
    with pytest.raises(UsageError, match="has no counterpart in librdkafka.* give client_config=") as refused:
        librdkafka_config({**SERVERS, **option})
    assert "a-secret" not in str(refused.value)


def test_pem_and_pkcs12_stores_have_counterparts():
    pem = {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": "client.pem",
        "kafka.ssl.key.password": "p",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    assert librdkafka_config({**SERVERS, **pem}) == {
        "bootstrap.servers": "host:9092",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "client.pem",
        "ssl.key.location": "client.pem",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
    }
    pkcs12 = {"kafka.ssl.keystore.type": "PKCS12", "kafka.ssl.keystore.location": "client.p12"}
    assert librdkafka_config(pkcs12) == {"ssl.keystore.location": "client.p12"}
