"""What does a client see of a broker with TLS, users and ACLs?"""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.errors import BrokerAuthenticationError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def topic(secured_kafka, make_topic):
    return make_topic(on=secured_kafka.plain)


def test_every_listener_lets_in_who_has_what_it_wants(secured_kafka, topic, new_group):
    client = {
        "ssl_certificate_location": str(secured_kafka.certificates / "client.pem"),
        "ssl_key_location": str(secured_kafka.certificates / "client.key"),
    }
    for config in (
        secured_kafka.admin,
        secured_kafka.login("admin", listener="SASL_PLAINTEXT"),
        secured_kafka.tls("SSL"),
        secured_kafka.tls("MTLS", **client),
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
