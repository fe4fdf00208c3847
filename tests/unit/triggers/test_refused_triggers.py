"""
A trigger that cannot be used is an error where a DAG file or a task makes it, and never the end of a
triggerer.
"""

import asyncio
import json
import logging
from types import MappingProxyType
from typing import Any

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.triggers.event import LagEventTrigger
from airflow_kafka_offsets.triggers.wait import (
    TRIGGERS,
    ConsumerGroupLagTrigger,
    OffsetsReachedTrigger,
    TopicReachedTrigger,
)

BLANK: dict[str, Any] = {"group_id": {"orders": " "}}
REFUSED = [
    (LagEventTrigger, {**BLANK, "min_lag": 1}),
    (LagEventTrigger, {"group_id": "\ud800", "min_lag": 1}),
    (LagEventTrigger, {"group_id": "g", "min_lag": 1, "poll_interval": float("nan")}),
    (LagEventTrigger, {"group_id": "g", "min_lag": 1, "refire_after": "inf"}),
    (ConsumerGroupLagTrigger, {**BLANK, "max_lag": 0}),
    (ConsumerGroupLagTrigger, {"group_id": " orders", "max_lag": 0}),
    (OffsetsReachedTrigger, {**BLANK, "target": {"orders": {"0": 1}}}),
    (TopicReachedTrigger, {"topics": ["orders"], "target": "a while ago"}),
]
WAITS = [(kind, parameters) for kind, parameters in REFUSED if kind is not LagEventTrigger]


def test_each_trigger_of_a_wait_is_tried_here():
    assert {kind for kind, _ in WAITS} == {*TRIGGERS.values()}


def made_by_a_triggerer(kind, parameters):
    """As Airflow's triggerer makes it, which ends at an error of a constructor."""

    async def make():
        return kind(**parameters)

    return asyncio.run(make())


@pytest.mark.parametrize(("kind", "parameters"), REFUSED)
def test_it_is_refused_where_it_is_made(kind, parameters):
    with pytest.raises(UsageError, match="expected"):
        kind(**parameters)


@pytest.mark.parametrize(("kind", "parameters"), REFUSED)
def test_a_triggerer_makes_it_and_its_parameters_stay(kind, parameters):
    trigger = made_by_a_triggerer(kind, parameters)
    assert trigger.serialize() == (f"{kind.__module__}.{kind.__qualname__}", parameters)


@pytest.mark.parametrize(("kind", "parameters"), WAITS)
def test_the_task_that_waits_fails_with_the_reason(kind, parameters):
    async def run():
        return (await anext(kind(**parameters).run())).payload

    event = asyncio.run(run())
    assert event["status"] == "failed"
    assert "expected" in event["message"]


def test_an_event_trigger_says_once_why_it_never_fires(caplog):
    async def run():
        trigger = LagEventTrigger(**BLANK, min_lag=1)
        first = asyncio.ensure_future(anext(trigger.run()))
        while not caplog.records:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not first.done()
        first.cancel()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    (record,) = caplog.records
    assert "group_id['orders'] is blank" in record.getMessage()


@pytest.mark.parametrize(
    ("kind", "parameters"), [(LagEventTrigger, {"min_lag": 1}), (ConsumerGroupLagTrigger, {"max_lag": 1})]
)
def test_names_of_any_kind_are_serialised_as_json(kind, parameters):
    _, kept = kind(group_id=MappingProxyType({"orders": "g"}), topics={"orders"}, **parameters).serialize()
    assert (kept["group_id"], kept["topics"]) == ({"orders": "g"}, ["orders"])
    assert json.dumps(kept)
