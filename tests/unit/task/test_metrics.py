"""Gauges, without a server that gets them."""

from datetime import datetime, timezone
from functools import partial

import pytest

from airflow_kafka_offsets.model.drift import DriftReport, NewestBatch
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.partition_state import PartitionState
from airflow_kafka_offsets.task import metrics


class Stats:
    def __init__(self, told):
        self.told = told

    def gauge(self, *named, **_):
        self.told.append(named)


def test_a_topic_with_a_partition_of_unknown_lag_has_no_gauge(monkeypatch):
    told = []
    monkeypatch.setattr(metrics, "_stats", lambda: Stats(told))
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    logs = {first: LogRange(0, 9), second: LogRange(0, 9)}
    metrics.report_lag([Lag.measure("g", {first: 9, second: None}, logs, "skip")])
    assert told == []
    metrics.report_lag([Lag.measure("g", {first: 9, second: 5}, logs, "skip")])
    assert len(told) == 1


@pytest.mark.parametrize(
    ("unfinished", "drifted"), [({}, 0), ({"unfinished_move": "m"}, 1), ({"unfinished_recovery": "r"}, 1)]
)
def test_what_is_unfinished_is_drift_of_each_partition(monkeypatch, unfinished, drifted):
    told = []
    monkeypatch.setattr(metrics, "_stats", lambda: Stats(told))
    row = PartitionState(TopicPartition("t", 0), 9, LogRange(0, 9), checkpoint=9)
    at = datetime.now(tz=timezone.utc)
    metrics.report_drift([DriftReport("g", NewestBatch("/data"), (row,), at, **unfinished)])
    assert ("kafka_offsets.drift", drifted) in told


@pytest.mark.parametrize(
    "report", [metrics.report_lag, metrics.report_drift, partial(metrics.count, "commit")]
)
def test_nothing_that_is_reported_raises(report):
    report([None])
