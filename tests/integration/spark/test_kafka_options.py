"""Java's Kafka client reaches a secured Kafka with what the settings of librdkafka were translated to."""

import logging
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from breakable_kafka import create_users
from canaries import Canaries
from cryptography.hazmat.primitives import serialization
from deadlines import until

from airflow_kafka_offsets.errors import BrokerError, UsageError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark import committing, spark_kafka_options
from airflow_kafka_offsets.spark.broker import kafka_settings, librdkafka_config
from airflow_kafka_offsets.spark.jvm_client import JvmOffsetsClient

HOSTILE = "a \"b\" 'c' \\d\\n\t;=#{}\u00e9\u4f60 \\\\"


@pytest.fixture(scope="module")
def topic(secured_kafka, make_topic, produce):
    name = make_topic(on=secured_kafka.plain)
    produce(name, {0: 3}, on=secured_kafka.plain)
    return name


@pytest.fixture
def log_end(spark, topic):
    """log_end(config) -> what Java's client reads with the options for the settings."""

    def read(config):
        with closing(JvmOffsetsClient(spark._jvm, kafka_settings(spark_kafka_options(config)), 10)) as kafka:
            return kafka.log_ranges([TopicPartition(topic, 0)]).popitem()[1].end

    return read


def test_scram_with_any_password_and_back_again_for_confluents_client(secured_kafka, topic, log_end):
    create_users(secured_kafka.plain, {"hostile": HOSTILE})
    secured_kafka.grant("hostile", ("topic", topic, "Read"))
    config = secured_kafka.login("hostile", HOSTILE)
    until(lambda: log_end(config) == 3)
    with OffsetsClient(librdkafka_config(spark_kafka_options(config))) as client:
        assert client.log_ranges([TopicPartition(topic, 0)]).popitem()[1].end == 3


def test_a_client_certificate_with_an_encrypted_key(secured_kafka, log_end):
    key = serialization.load_pem_private_key((secured_kafka.certificates / "client.pem").read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(HOSTILE.encode()),
    ).decode()
    chain = str(secured_kafka.certificates / "client.pem")
    config = secured_kafka.tls("MTLS", ssl_certificate_location=chain, ssl_key_password=HOSTILE)
    assert log_end({**config, "ssl.key.pem": encrypted}) == 3
    with pytest.raises(UsageError, match="cannot be read: correct ssl.key.pem with ssl.key.password"):
        log_end({**config, "ssl.key.pem": encrypted, "ssl.key.password": "wrong"})


@pytest.mark.parametrize("listener", ["WRONG_HOST", "EXPIRED"])
def test_a_certificate_that_librdkafka_refuses_is_refused_by_java_too(secured_kafka, log_end, listener):
    with pytest.raises(BrokerError):
        log_end(secured_kafka.tls(listener))


def test_an_unknown_authority_is_refused_and_a_host_name_is_not_checked_if_librdkafka_does_not(
    secured_kafka, log_end
):
    with pytest.raises(BrokerError):
        log_end(secured_kafka.tls("SSL", ssl_ca_location=str(secured_kafka.other_ca)))
    assert log_end(secured_kafka.tls("WRONG_HOST", ssl_endpoint_identification_algorithm="none")) == 3


@pytest.mark.parametrize("granted", [True, False], ids=["commits", "may not commit"])
def test_the_listener_shows_no_secret(
    secured_kafka, topic, spark, start, location, caplog, capfd, new_group, granted
):
    caplog.set_level(logging.DEBUG)
    canaries, group = Canaries(), new_group()
    create_users(secured_kafka.plain, {group: canaries("password")})
    secured_kafka.grant(group, ("topic", topic, "Read"), *([("group", group, "Read")] if granted else []))
    # Spark's own groups of the source.
    reading = secured_kafka.login(group, canaries("password"))
    source = {**spark_kafka_options(reading), "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**source, **{"consumer.commit.groupid": group}).load()
    with committing(spark) as listener:
        query = start(records, location, availableNow=True)
        assert query.awaitTermination(60)
    assert bool(listener.errors) is not granted
    shown = [caplog.text, *capfd.readouterr(), repr(listener.errors), repr(vars(listener)), repr(listener)]
    assert canaries.found_in("\n".join(shown)) == []


def test_oidc_asks_the_token_endpoint_with_the_clients_secret(secured_kafka, log_end):
    asked = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self):  # http.server's name
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            asked.append((self.headers["Authorization"], body))
            self.send_error(401)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        config = {
            **secured_kafka.login("nobody"),
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "spark",
            "sasl.oauthbearer.client.secret": "a-secret",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{server.server_port}/token",
        }
        with pytest.raises(BrokerError) as refused:
            log_end(config)
        server.shutdown()
    # Base64 of spark:a-secret.
    assert asked[0] == ("Basic c3Bhcms6YS1zZWNyZXQ=", "grant_type=client_credentials&scope=kafka")
    assert "a-secret" not in str(refused.value)
