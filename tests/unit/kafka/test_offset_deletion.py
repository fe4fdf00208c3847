"""The settings of a connection, as kafka-python gets them."""

import importlib.machinery
import sys

import pytest

from airflow_kafka_offsets.errors import SetupError, UsageError
from airflow_kafka_offsets.kafka import offset_deletion
from airflow_kafka_offsets.kafka.offset_deletion import check_deletion, translate_settings

BROKER = {"bootstrap.servers": "kafka-1:9093"}


def test_settings_of_login_and_trust_are_translated():
    found = translate_settings(
        {
            **BROKER,
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "etl",
            "sasl.password": "secret",
            "ssl.ca.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "socket.keepalive.enable": "true",
        }
    )
    assert found == {
        "bootstrap_servers": "kafka-1:9093",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "etl",
        "sasl_plain_password": "secret",
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
    }


def test_each_name_is_a_setting_of_kafka_python():
    admin = pytest.importorskip("kafka.admin")
    known = admin.KafkaAdminClient.DEFAULT_CONFIG
    assert set(offset_deletion._NAMES.values()) | {"ssl_check_hostname"} <= set(known)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssl.keystore.location", "/keys.p12"),
        ("enable.ssl.certificate.verification", "false"),
        ("sasl.oauthbearer.config", "principal=secret"),
        ("oauth_cb", print),
        ("sasl.kerberos.service.name", "secret"),
    ],
)
def test_a_setting_that_kafka_python_does_not_have_is_refused(key, value):
    with pytest.raises(UsageError, match=f"does not have the setting {key} of this connection") as refused:
        translate_settings({**BROKER, key: value})
    assert "secret" not in str(refused.value)


def test_a_login_by_token_is_refused():
    with pytest.raises(UsageError, match="OAUTHBEARER; expected one of PLAIN"):
        translate_settings({**BROKER, "sasl.mechanism": "OAUTHBEARER"})


def test_without_kafka_python_the_extra_is_named(monkeypatch):
    find = importlib.machinery.PathFinder.find_spec
    for name in [name for name in sys.modules if name.split(".")[0] == "kafka"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(
        importlib.machinery.PathFinder,
        "find_spec",
        lambda name, *more: None if name == "kafka" else find(name, *more),
    )
    with pytest.raises(SetupError, match=r"airflow-kafka-offsets\[delete-offsets\]"):
        check_deletion(BROKER)
