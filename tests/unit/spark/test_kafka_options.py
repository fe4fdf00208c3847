import json
import logging

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.spark import spark_kafka_options

PEM, FORMAT = serialization.Encoding.PEM, serialization.PrivateFormat
NO_PASSWORD = serialization.NoEncryption()
CHAIN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
TLS = {"bootstrap.servers": "host:9093", "security.protocol": "SSL"}


@pytest.fixture(scope="module")
def key():
    return rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize("name", ["py4j", "py4j.clientserver", "py4j.java_gateway"])
def test_py4j_does_not_log_the_options(name, caplog):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger=name)
    spark_kafka_options(TLS)
    logging.getLogger("py4j.clientserver").debug("Command to send: %s", "password")
    logging.getLogger("py4j.java_gateway").debug("Command to send: %s", "password")
    assert not caplog.records
    logging.getLogger("py4j.clientserver").warning("The JVM is gone")
    assert caplog.messages == ["The JVM is gone"]


def test_files_are_read_and_the_systems_place_is_javas_default(tmp_path):
    (tmp_path / "ca.pem").write_text(CHAIN)
    options = spark_kafka_options({**TLS, "ssl.ca.location": str(tmp_path / "ca.pem")})
    assert options["kafka.ssl.truststore.certificates"] == CHAIN
    assert options["kafka.ssl.truststore.type"] == "PEM"
    assert spark_kafka_options({**TLS, "ssl.ca.location": "probe"}) == {
        "kafka.bootstrap.servers": "host:9093",
        "kafka.security.protocol": "SSL",
    }


@pytest.mark.parametrize(
    ("form", "encryption"),
    [
        (FORMAT.PKCS8, serialization.BestAvailableEncryption(b"a-password")),
        (FORMAT.TraditionalOpenSSL, serialization.BestAvailableEncryption(b"a-password")),
        (FORMAT.TraditionalOpenSSL, NO_PASSWORD),
    ],
    ids=["PKCS#8 encrypted", "PKCS#1 encrypted", "PKCS#1"],
)
def test_any_key_becomes_one_that_java_reads(key, form, encryption):
    pem = "a comment\n" + key.private_bytes(PEM, form, encryption).decode()
    certificate = {"ssl.certificate.pem": CHAIN, "ssl.key.pem": pem, "ssl.key.password": "a-password"}
    options = spark_kafka_options({**TLS, **certificate})
    plain = key.private_bytes(PEM, FORMAT.PKCS8, NO_PASSWORD).decode()
    assert options["kafka.ssl.keystore.key"].endswith(plain)
    assert "kafka.ssl.key.password" not in options


@pytest.mark.parametrize("password", ["wrong-password", None])
def test_a_key_that_cannot_be_read_is_refused_without_its_password(key, password):
    encryption = serialization.BestAvailableEncryption(b"a-password")
    pem = key.private_bytes(PEM, FORMAT.PKCS8, encryption).decode()
    with pytest.raises(UsageError, match="ssl.key.password") as refused:
        spark_kafka_options({**TLS, "ssl.key.pem": pem, "ssl.key.password": password})
    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "found"), [(None, "No such file"), ("directory", "Is a directory"), (b"\xff", "is not text")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, found):
    path = tmp_path / "ca.pem"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(UsageError, match=rf"ssl\.ca\.location=.*ca\.pem.*{found}"):
        spark_kafka_options({**TLS, "ssl.ca.location": str(path)})


def test_a_file_and_its_content_are_not_given_both(tmp_path):
    with pytest.raises(UsageError, match=r"ssl\.ca\.location and ssl\.ca\.pem are both given"):
        spark_kafka_options({**TLS, "ssl.ca.location": str(tmp_path), "ssl.ca.pem": "ca"})


def test_a_job_reads_what_was_handed_over(tmp_path, monkeypatch):
    monkeypatch.delenv("AIRFLOW_KAFKA_OFFSETS_OPTIONS_FILE", raising=False)
    with pytest.raises(UsageError, match="no Kafka options were passed .* KafkaSparkSubmitOperator"):
        spark_kafka_options()
    file = tmp_path / "options.json"
    monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_OPTIONS_FILE", str(file))
    with pytest.raises(UsageError, match="cannot be read on this machine"):
        spark_kafka_options()
    file.write_text(json.dumps({"kafka.bootstrap.servers": "host:9092"}))
    assert spark_kafka_options() == {"kafka.bootstrap.servers": "host:9092"}
