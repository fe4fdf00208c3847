import pytest

from airflow_kafka_offsets.local.environment import check_broker

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
