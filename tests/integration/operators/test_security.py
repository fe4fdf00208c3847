import json
import logging

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from secured_kafka import PASSWORD

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

pytestmark = pytest.mark.integration


def test_the_right_password_commits_and_a_wrong_one_is_named_but_never_shown(
    secured_kafka, make_topic, produce, connect, context, caplog, capfd
):
    caplog.set_level(logging.DEBUG)
    topic = make_topic(on=secured_kafka.plain)
    produce(topic, {0: 3}, on=secured_kafka.plain)
    offsets = {topic: {"0": 3}}

    right = secured_kafka.user("flights", ("topic", topic, "Read"), ("group", "g", "Read"))
    connect(right)
    CommitOffsetsOperator(task_id="c", group_id="g", offsets=offsets).execute(context)
    ResetOffsetsOperator(task_id="r", group_id="g", to_offset=0).execute(context)
    ConsumerGroupLagSensor(task_id="s", group_id="g", max_lag=3).execute(context)

    connect({**right, "sasl.password": PASSWORD + "r"})
    tasks = (
        CommitOffsetsOperator(task_id="c", group_id="g", offsets=offsets),
        ResetOffsetsOperator(task_id="r", group_id="g", to_offset=0),
        ConsumerGroupLagSensor(task_id="s", group_id="g", max_lag=0),
    )
    errors = []
    for task in tasks:
        with pytest.raises(AirflowFailException, match="(?i)authentication") as refused:
            task.execute(context)
        errors.append(str(refused.value))
    shown = "\n".join([*errors, caplog.text, *capfd.readouterr(), json.dumps(context["ti"].xcoms)])
    assert PASSWORD not in shown
