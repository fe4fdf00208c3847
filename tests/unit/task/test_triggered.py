"""Which runs and events speak of offsets that a plan takes back."""

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.saved_plan import Names, SavedPlan
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.task import triggered
from airflow_kafka_offsets.task.triggered import triggered_by_commits

ORDERS = KafkaPipeline("orders-etl")


def plan(to):
    receipt = {
        "version": 1,
        "group_id": "orders-etl",
        "before": {"orders": {"0": 100}},
        "after": {"orders": {"0": to}},
    }
    return SavedPlan.make(receipt, Names("orders-etl"), CheckpointPolicy())


class Events(list):
    """The events of an asset, the oldest first, as Airflow 3.3 gives them."""

    def ascending(self, ascending):
        return Events(self if ascending else self[::-1])

    def limit(self, number):
        return Events(self[:number])


def event(number, until, *runs, partitions=1):
    at = datetime(2026, 3, 2, number, tzinfo=timezone.utc)
    made = [SimpleNamespace(dag_id=dag, run_id=f"asset__{number}", state="success") for dag in runs]
    extra = {"version": 1, "topics": {"orders": {"from": 0, "until": until, "partitions": partitions}}}
    return SimpleNamespace(timestamp=at, extra=extra, created_dagruns=made)


class InletEvents:
    """As Airflow gives them to a task; an asset of Airflow 3.1 cannot be the key of a dict."""

    def __init__(self, asset, events):
        self.asset, self.events = asset, events

    def __getitem__(self, asset):
        assert asset == self.asset
        return self.events


EVENTS = Events([event(1, 50, "reports"), event(2, 80, "reports", "alerts"), event(3, 100)])


def listed(to, events=EVENTS, inlets=tuple(ORDERS.assets)):
    context: Any = {"inlet_events": InletEvents(ORDERS.asset, events)}
    return triggered_by_commits(context, SimpleNamespace(inlets=list(inlets)), plan(to))


def test_events_of_commits_beyond_the_plan_are_listed_with_their_runs():
    waits = {"dag_id": None, "run_id": None, "state": None, "at": "2026-03-02T03:00:00+00:00"}
    assert listed(80) == [waits]
    assert [each["dag_id"] for each in listed(79)] == [None, "reports", "alerts"]
    assert [each["dag_id"] for each in listed(40)] == [None, "reports", "alerts", "reports"]
    assert listed(100) == []


@pytest.mark.parametrize("events", [list(EVENTS), Events(EVENTS)], ids=["3.1", "3.3"])
def test_it_works_with_the_events_of_each_airflow(events):
    assert len(listed(79, events)) == 3


def test_a_group_whose_asset_is_no_inlet_is_not_known():
    assert listed(79, inlets=[]) is None
    assert listed(79, inlets=[Asset("other")]) is None
    assert triggered_by_commits({}, SimpleNamespace(inlets=ORDERS.assets), plan(79)) is None


def test_an_airflow_that_does_not_answer_is_not_known_and_no_error():
    class Broken(Events):
        def ascending(self, ascending):
            raise RuntimeError("500")

    assert listed(79, Broken(EVENTS)) is None


def test_a_list_that_is_cut_says_so(monkeypatch, caplog):
    monkeypatch.setattr(triggered, "MOST_EVENTS", 2)
    assert len(listed(79)) == 3
    assert "at least 2 commits beyond the plan" in caplog.text
    caplog.clear()
    assert len(listed(80)) == 1
    assert not caplog.text


def test_sums_over_other_partitions_are_not_known():
    other = event(1, 500, "reports", partitions=3)
    assert listed(0, Events([other])) is None
    assert [each["dag_id"] for each in listed(0, Events([other, event(2, 80, "alerts")]))] == ["alerts"]
    assert listed(0, Events([SimpleNamespace(timestamp=None, extra=None, created_dagruns=[])])) == []
