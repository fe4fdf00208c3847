"""What an audit leaves behind when Kafka cannot be asked."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.audited_rows import TableRows
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.operators.audit_window import AuditWindowOperator

TP = TopicPartition("orders", 0)
WINDOW = OffsetWindow({TP: OffsetRange(0, 10)})


def test_a_mistyped_kafka_connection_hides_nothing_of_the_table(context, monkeypatch):
    rows = TableRows(10, {TP: merge([(3, 4)])}, {TP: merge([(7, 8)])})
    names = {"conn_id": "lake", "table": "events", "kafka_config_id": "nowhere"}
    task = AuditWindowOperator(task_id="audit", window=WINDOW.as_json(), **names)
    monkeypatch.setattr(task, "_read_table", lambda *_: rows)
    with pytest.raises(UsageError, match="nowhere") as refused:
        task.execute(context)
    found = context["ti"].xcoms["return_value"]
    assert found["doubled"] == {"orders": {"0": [[7, 8]]}}
    assert found["undecided"] == {"not_read": {"orders": {"0": [[3, 4]]}}}
    assert found["problems"] == [str(refused.value)]


@pytest.mark.parametrize("name", ["oders", "orders:7", "orders:0,7"])
def test_a_name_that_the_window_does_not_have_is_refused(name, context):
    names = {"conn_id": "lake", "table": "events", "topics": name}
    task = AuditWindowOperator(task_id="audit", window=WINDOW.as_json(), **names)
    with pytest.raises(AirflowFailException, match="topics names .*, which the window does not have"):
        task.execute(context)
