"""The pipelines of all DAGs, which take their time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_offsets.ui import dags
from airflow_kafka_offsets.ui.airflow_api import AirflowError
from airflow_kafka_offsets.ui.dags import Dags
from airflow_kafka_offsets.ui.discovery import DagPipelines

NAMES = [f"dag{number:02}" for number in range(20)]


@pytest.fixture
def reading(monkeypatch):
    """What is read, what cannot be, and how many seconds a DAG takes: much longer than a request waits."""
    reading = SimpleNamespace(read=[], takes=0.02, broken="")

    async def find_all_pipelines(_, __, dag_ids):
        await asyncio.sleep(reading.takes * len(dag_ids))
        reading.read.extend(dag_ids)
        found = {dag_id: DagPipelines() for dag_id in dag_ids}
        return found | ({reading.broken: AirflowError("no answer")} if reading.broken in found else {})

    monkeypatch.setattr(dags, "find_all_pipelines", find_all_pipelines)
    monkeypatch.setattr(dags, "WITHIN", 0.0)
    monkeypatch.setattr(dags, "_AT_ONCE", 5)
    return reading


def listing():
    """Return a function that lists DAGs, and returns the sentence about those that are not read yet."""

    async def pages(*_, **__):
        return [{"dag_id": name} for name in NAMES]

    found = Dags()
    ask: Any = SimpleNamespace(pages=pages)

    async def list_dags(names):
        _, unread = await found.get_all(ask, names, seconds=0.3)
        return unread

    return list_dags


def test_dags_that_take_long_to_read_are_not_read_again_all_the_time(reading):
    async def list_often():
        list_dags = listing()
        while await list_dags(NAMES) or len(reading.read) < len(NAMES):
            pass
        for _ in range(5):
            await list_dags(NAMES)
            await asyncio.sleep(0.1)

    asyncio.run(list_often())
    assert sorted(reading.read) == NAMES


def test_one_dag_that_took_long_to_read_does_not_keep_a_long_list_from_being_read_again(reading):
    async def list_after_a_slow_one():
        list_dags = listing()
        reading.takes = 0.0
        while await list_dags(NAMES[1:]):
            pass
        reading.takes = 0.05
        while await list_dags(NAMES):
            pass
        reading.takes = 0.0
        # Ten times as long as the slow one took.
        await asyncio.sleep(1.0)
        await list_dags(NAMES)

    asyncio.run(list_after_a_slow_one())
    assert sorted(reading.read) == sorted([*NAMES, *NAMES])


def test_a_slow_dag_that_can_never_be_read_does_not_keep_the_others_from_being_read_again(reading):
    async def list_often():
        list_dags = listing()
        reading.takes, reading.broken = 0.04, NAMES[0]
        for _ in range(6):
            await list_dags(NAMES[:2])
            await asyncio.sleep(0.25)

    asyncio.run(list_often())
    assert reading.read.count(NAMES[1]) > 1
