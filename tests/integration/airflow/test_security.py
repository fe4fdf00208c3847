from __future__ import annotations

import json
import logging

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

pytestmark = pytest.mark.integration

PASSWORD = "correct-horse-battery-staple"


@pytest.fixture
def connect(monkeypatch):
    def use(broker, password):
        extra = {
            "bootstrap.servers": broker.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "flights",
            "sasl.password": password,
        }
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))

    return use


def test_the_right_password_commits_and_a_wrong_one_is_named_but_never_shown(
    own_kafka, make_topic, produce, connect, context, caplog, capfd
):
    caplog.set_level(logging.DEBUG)
    broker = own_kafka(users={"flights": PASSWORD})
    topic = make_topic(on=broker.bootstrap_servers)
    produce(topic, {0: 3}, on=broker.bootstrap_servers)
    offsets = {topic: {"0": 3}}

    connect(broker, PASSWORD)
    CommitOffsetsOperator(task_id="c", group_id="g", offsets=offsets).execute(context)
    ResetOffsetsOperator(task_id="r", group_id="g", to_offset=0).execute(context)
    ConsumerGroupLagSensor(task_id="s", group_id="g", max_lag=3).execute(context)

    wrong = PASSWORD + "r"
    connect(broker, wrong)
    tasks = (
        CommitOffsetsOperator(task_id="c", group_id="g", offsets=offsets),
        ResetOffsetsOperator(task_id="r", group_id="g", to_offset=0),
        ConsumerGroupLagSensor(task_id="s", group_id="g"),
    )
    errors = []
    for task in tasks:
        with pytest.raises(AirflowFailException, match="(?i)authentication") as refused:
            task.execute(context)
        errors.append(str(refused.value))
    shown = "\n".join([*errors, caplog.text, *capfd.readouterr(), json.dumps(context["ti"].xcoms)])
    assert PASSWORD not in shown
