import pytest

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.broker_config import free_port
from airflow_kafka_offsets.local.environment import check_broker
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


def test_kafka_s_default_retention_is_fine(kafka):
    checks = check_broker({"bootstrap.servers": kafka.bootstrap_servers})
    assert [(check.name, check.status) for check in checks] == [
        ("broker", "ok"),
        ("offsets.retention.minutes", "ok"),
    ]
    assert checks[0].found == f"{kafka.bootstrap_servers} answers (1 broker)"
    assert "loses its offsets 7 d after the last commit" in checks[1].found


def test_a_wrong_password_is_named_as_the_cause_and_not_shown(secured_kafka):
    (check,) = check_broker(secured_kafka.login("admin", "geheim"), timeout=3)
    assert check.status == "fail"
    assert "Authentication failed" in check.found
    assert "geheim" not in str(check)
    assert [check.status for check in check_broker(secured_kafka.admin)] == ["ok", "ok"]


def test_a_broker_that_advertises_an_address_at_which_it_is_not_is_named_with_the_address(own_kafka):
    port = free_port()
    advertised = f"PLAINTEXT://127.0.0.1:{port},WRONG://127.0.0.1:1"
    kafka = own_kafka(
        port=port, listeners={"WRONG": "PLAINTEXT"}, properties={"advertised.listeners": advertised}
    )
    config = {"bootstrap.servers": kafka.servers("WRONG")}
    (check,) = check_broker(config, timeout=4)
    found = [str(check)]
    with OffsetsClient(config, timeout=4) as client:
        for call in (
            lambda: client.committed("g", [TopicPartition("t", 0)]),
            lambda: client.commit("g", {TopicPartition("t", 0): 1}),
            lambda: client.describe_groups(["g"]),
            client.list_groups,
        ):
            with pytest.raises(BrokerUnavailableError) as raised:
                call()
            found.append(str(raised.value))
    assert check.status == "fail"
    assert [text for text in found if "127.0.0.1:1/1: Connect to" not in text] == []
