"""Gauges, without a server that gets them."""

from functools import partial

import pytest

from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
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
    "report", [metrics.report_lag, metrics.report_drift, partial(metrics.count, "commit")]
)
def test_nothing_that_is_reported_raises(report):
    report([None])
