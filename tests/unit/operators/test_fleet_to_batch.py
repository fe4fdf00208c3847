"""The resets of many pipelines to the end of a batch, which each checkpoint has for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from memory_broker import MemoryBroker, MemoryClient
from written_query import Query

from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator

TI = SimpleNamespace(
    dag_id="d", run_id="r", task_id="plans", map_index=-1, try_number=1, xcom_push=lambda **_: None
)


@pytest.fixture
def pipeline(tmp_path):
    query = Query(tmp_path / "checkpoint")
    query.run(0, {"orders": {0: 30}})
    query.run(1, {"orders": {0: 70}})
    return {"group_id": "g", "checkpoint_location": query.location}


def plans(pipelines, **parameters: Any):
    broker = MemoryBroker()
    broker.create("orders")
    broker.append("orders", 0, range(100))
    operator: Any = PlanResetsOperator(task_id="plans", pipelines=pipelines, **parameters)
    operator.open_client = lambda *_: MemoryClient(broker)
    return operator.execute({"ti": TI})


def test_each_pipeline_is_planned_to_the_end_of_its_own_batch(pipeline):
    (plan,) = plans([pipeline], to_batch=0)
    assert plan["after"] == {"orders": {"0": 30}}


def test_a_pipeline_without_a_checkpoint_has_no_batch(pipeline):
    with pytest.raises(AirflowFailException, match="group h: checkpoint_location is missing: to_batch is a"):
        plans([pipeline, {"group_id": "h", "topics": "orders"}], to_batch=0)
