"""What several groups and partitions are together."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import get_args

from airflow_kafka_offsets.model.drift import DriftReport, NewestBatch
from airflow_kafka_offsets.model.drift_verdict import PartitionDrift, Verdict
from airflow_kafka_offsets.model.headroom import Headroom, headrooms_json
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.ui.now import MOVE_UNFINISHED, WORST_FIRST, _drift

TP = TopicPartition("t", 0)


def report(group, checkpoint, committed, start=0):
    row = PartitionDrift(TP, checkpoint, committed, LogRange(start, 100))
    return DriftReport(group, NewestBatch("/data"), (row,), datetime.now(tz=timezone.utc))


def test_the_worst_verdict_of_several_groups_counts():
    behind, lost = report("a", 20, 10), report("b", 20, 20, start=50)

    assert list(behind.drift) == ["group behind"]
    assert [_drift(each)["verdict"] for each in ([behind, lost], [lost, behind])] == ["records lost"] * 2
    assert _drift([report("c", 20, 20)])["verdict"] == "in step"


def test_each_verdict_of_drift_has_a_place():
    assert {*WORST_FIRST} == {*get_args(Verdict)} - {"in step"} | {MOVE_UNFINISHED}


def test_a_headroom_that_is_not_known_does_not_hide_the_least_that_is():
    found = [Headroom("unknown"), Headroom("time", 50.0), Headroom("time", 90.0)]

    assert headrooms_json(found) == {"headroom": 50.0, "headroom_state": "unknown"}
