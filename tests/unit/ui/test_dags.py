"""The pipelines of all DAGs, which take their time."""

import asyncio
from types import SimpleNamespace

from airflow_kafka_offsets.ui import dags
from airflow_kafka_offsets.ui.dags import Dags
from airflow_kafka_offsets.ui.discovery import DagPipelines

NAMES = [f"dag{number:02}" for number in range(20)]


def test_dags_that_take_long_to_read_are_not_read_again_all_the_time(monkeypatch):
    read = []

    async def find_all_pipelines(_, __, dag_ids):
        await asyncio.sleep(0.02 * len(dag_ids))
        read.extend(dag_ids)
        return {dag_id: DagPipelines() for dag_id in dag_ids}

    async def pages(*_, **__):
        return [{"dag_id": name} for name in NAMES]

    async def list_often():
        found, ask = Dags(), SimpleNamespace(pages=pages)
        unread: object = True
        while unread or len(read) < len(NAMES):
            _, unread = await found.get_all(ask, NAMES, seconds=0.05)  # type: ignore[arg-type]
        for _ in range(5):
            await found.get_all(ask, NAMES, seconds=0.05)  # type: ignore[arg-type]
            await asyncio.sleep(0.05)

    monkeypatch.setattr(dags, "find_all_pipelines", find_all_pipelines)
    # Much shorter than reading all of them takes.
    monkeypatch.setattr(dags, "WITHIN", 0.0)
    monkeypatch.setattr(dags, "_AT_ONCE", 5)
    asyncio.run(list_often())

    assert sorted(read) == NAMES
