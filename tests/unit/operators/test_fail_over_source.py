"""When does a failover count the old cluster as gone?"""

from contextlib import ExitStack
from typing import Any

import click
import pytest

from airflow_kafka_offsets.cli.mirror_connections import open_if_reachable
from airflow_kafka_offsets.errors import TokenUnavailableError
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.operators.fail_over import FailOverOperator


def away(_: str) -> Any:
    raise ConnectionRefusedError


LOGIN: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT"}
BY_FUNCTION = LOGIN | {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": away}
BY_SERVICE = LOGIN | {
    "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "client",
    "sasl.oauthbearer.client.secret": "secret",
    "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
}


@pytest.fixture
def command():
    with click.Context(click.Command("failover")).scope():
        yield


@pytest.mark.parametrize("config", [BY_FUNCTION, BY_SERVICE], ids=["function", "service"])
@pytest.mark.usefixtures("command")
def test_on_the_command_line_a_cluster_without_a_token_to_log_in_with_is_not_gone(config):
    with pytest.raises(TokenUnavailableError, match="give --source-is-down if the old cluster is gone"):
        open_if_reachable(config, 1)


def test_in_a_task_a_cluster_without_a_token_to_log_in_with_is_not_gone(monkeypatch, tmp_path):
    monkeypatch.setattr(KafkaOffsetsHook, "_build_config", lambda _: BY_FUNCTION)
    task = FailOverOperator(
        task_id="move",
        group_id="etl",
        checkpoint_location=str(tmp_path),
        mirror={"kafka_config_id": "mirror"},
    )
    with (
        ExitStack() as clients,
        pytest.raises(TokenUnavailableError, match="set ask_source=False if the old cluster is gone"),
    ):
        task._source(clients)


@pytest.mark.usefixtures("command")
def test_a_cluster_that_does_not_answer_is_gone(capsys):
    assert open_if_reachable(LOGIN | {"security.protocol": "PLAINTEXT"}, 0.2) is None
    assert "The old cluster does not answer" in capsys.readouterr().err
