"""Failovers between two clusters in memory: what has changed since a plan was saved."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from memory_broker import MemoryBroker, MemoryClient
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.failover_plan import FailoverPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.saved_plan import Names
from airflow_kafka_offsets.moves.failover import plan_failover
from airflow_kafka_offsets.moves.saved import save_plan
from airflow_kafka_offsets.moves.saved_failover import plan_saved_failover


@pytest.fixture
def clusters() -> dict[str, MemoryBroker]:
    """Two clusters with the same 100 records in their topics ``orders``."""
    found = {name: MemoryBroker() for name in ("source", "mirror")}
    for name, broker in found.items():
        broker.cluster_id = name
        broker.create("orders")
        broker.append("orders", 0, range(100))
    return found


def test_a_saved_plan_is_refused_once_the_mirror_has_a_topic_that_it_leaves_out(clusters, tmp_path):
    clusters["source"].create("payments")
    query = Query(tmp_path)
    query.run(0, {"orders": {0: 90}, "payments": {0: 5}})
    source, target = (MemoryClient(broker) for broker in clusters.values())
    checkpoint: Any = SparkCheckpoint(query.location)
    mirror = Mirror("standby")
    selection = GroupSelection.parse("etl", "orders")
    plan = plan_failover(source, target, checkpoint, selection, mirror, policy=FailoverPolicy())
    names = Names("etl", "orders", query.location, mirror=mirror.as_json())
    saved = save_plan(target, checkpoint, plan, names)
    now = datetime.now(tz=timezone.utc)
    assert plan_saved_failover(target, checkpoint, saved, now=now).refusals == []
    clusters["mirror"].create("payments")
    again = plan_saved_failover(target, checkpoint, saved, now=now)
    with pytest.raises(PlanRefusedError, match="leaves out payments-0, which the mirror has under the same"):
        again.check()
