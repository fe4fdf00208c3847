"""What is known of the DAGs, shared by all who may read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_kafka_offsets.ui.airflow_api import AsUser
from airflow_kafka_offsets.ui.discovery import Found, find_pipelines
from airflow_kafka_offsets.ui.fresh import Fresh
from airflow_kafka_offsets.ui.task_instances import Moves

FRESH = 5.0
"""Seconds for which what was found of a DAG is shown on its own page."""

WITHIN = 2.0
"""Seconds after which a list shows what is known by then; the rest is read on."""

_LISTED = 30.0
_WITHOUT = 600.0
"""Seconds for which a list shows what was found of a DAG with pipelines, and of one without."""

_SHARE = 10
"""A DAG is not read again before so many times the seconds have passed that reading all of them took."""

_MOST_DAGS = 20_000
_AT_ONCE = 4


@dataclass(frozen=True)
class Listed:
    """
    The pipelines of several DAGs.

    :param problems: a sentence for each thing that is missing.
    """

    dags: Mapping[str, Found]
    problems: list[str]


class Dags:
    """
    Reads DAGs with the login of whoever asks first.

    Only a user who may read a DAG may ask for it, and gets what another's login has read.

    :param moves: what task instances have left.
    """

    def __init__(self, moves: Moves) -> None:
        self.moves = moves
        self._found: Fresh[str, Found] = Fresh(FRESH, _MOST_DAGS)
        self._active: Fresh[frozenset[str], frozenset[str]] = Fresh(_LISTED, 50)
        self._took = 0.0
        # Of many DAGs: who asks about one thing does not wait for all of them.
        self._few = asyncio.Semaphore(_AT_ONCE)

    def clear(self) -> None:
        """Forget all DAGs."""
        self._found.clear()
        self._active.clear()

    async def one(self, ask: AsUser, dag_id: str, seconds: float = FRESH) -> Found:
        """Return what was found of a DAG at most so many seconds ago."""
        return await self._found.get(dag_id, lambda: find_pipelines(ask, self.moves, dag_id), seconds)

    async def _one_of_many(self, ask: AsUser, dag_id: str, seconds: float) -> Found:
        if (found := self._found.known(dag_id, seconds)) is not None:
            return found
        async with self._few:
            return await self.one(ask, dag_id, seconds)

    def candidates(self, dag_ids: Iterable[str]) -> list[str]:
        """Return those of some DAGs of which it is not known that they have no pipelines."""
        known = {dag_id: self._found.known(dag_id, _WITHOUT) for dag_id in dag_ids}
        return [dag_id for dag_id, found in known.items() if found is None or found.tasks]

    async def all(self, ask: AsUser, dag_ids: Collection[str]) -> Listed:
        """Return what is known of some DAGs; what takes longer is read on, and there the next time."""
        began = time.monotonic()
        active = await self._active.get(frozenset(dag_ids), lambda: _active(ask))
        wanted = sorted(active.intersection(dag_ids))
        seconds = max(_LISTED, _SHARE * self._took)
        reading = {
            dag_id: asyncio.ensure_future(self._one_of_many(ask, dag_id, seconds))
            for dag_id in self.candidates(wanted)
        }
        for task in reading.values():
            # Nobody may be waiting any more when it fails.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        if reading:
            await asyncio.wait(reading.values(), timeout=max(0.1, WITHIN - (time.monotonic() - began)))
        found: dict[str, Found] = {}
        failed: dict[str, str] = {}
        unread = 0
        for dag_id, task in reading.items():
            if task.done() and task.exception() is None:
                found[dag_id] = task.result()
            elif (before := self._found.known(dag_id, float("inf"))) is not None:
                found[dag_id] = before
            elif task.done():
                failed[str(task.exception())] = dag_id
            else:
                unread += 1
        if not unread:
            self._took = max(self._took / 2, time.monotonic() - began)
        problems = [f"DAG {dag_id} cannot be read: {reason}" for reason, dag_id in failed.items()]
        if unread:
            problems.append(
                f"{unread:,} DAGs are not read yet: they appear when this page asks again, within minutes"
            )
        return Listed(found, problems)


async def _active(ask: AsUser) -> frozenset[str]:
    """Return the DAGs that still are in a file."""
    listed = await ask.pages(_MOST_DAGS, "dags", of="dags", order_by="dag_id")
    return frozenset(dag["dag_id"] for dag in listed)
