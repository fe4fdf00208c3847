"""What is known of the DAGs, shared by all who may read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_kafka_offsets.ui.airflow_api import AsUser
from airflow_kafka_offsets.ui.discovery import DagPipelines, find_all_pipelines, find_pipelines
from airflow_kafka_offsets.ui.single_flight_cache import SingleFlightCache
from airflow_kafka_offsets.ui.task_instances import TaskOutcomes

FRESH = 5.0
"""Seconds for which what was found of a DAG is shown on its own page."""

WITHIN = 2.0
"""Seconds after which a list shows what is known by then; the rest is read on."""

LISTED = 30.0
_WITHOUT = 600.0
"""Seconds for which a list shows what was found of a DAG with pipelines, and of one without."""

_SHARE = 10
"""A DAG is not read again before so many times the seconds have passed that reading all of them took."""

# Bounds the memory and the pages of Airflow's list.
_MOST_DAGS = 20_000
# What was read so far is there for a viewer after each part.
_AT_ONCE = 100


@dataclass(frozen=True)
class ListedPipelines:
    """
    The pipelines of several DAGs.

    :param problems: a sentence for each thing that is missing.
    """

    dags: Mapping[str, DagPipelines]
    problems: list[str]


class Dags:
    """
    Reads DAGs with the login of whoever asks first.

    Only a user who may read a DAG may ask for it, and gets what another's login has read.

    :param moves: what task instances have left.
    """

    def __init__(self, moves: TaskOutcomes) -> None:
        self.moves = moves
        self._found: SingleFlightCache[str, DagPipelines] = SingleFlightCache(FRESH, _MOST_DAGS)
        self._active: SingleFlightCache[frozenset[str], frozenset[str]] = SingleFlightCache(LISTED, 50)
        self._took = 0.0
        self._reading = asyncio.Lock()

    def clear(self) -> None:
        """Forget all DAGs."""
        self._found.clear()
        self._active.clear()

    async def get_one(self, ask: AsUser, dag_id: str, seconds: float = FRESH) -> DagPipelines:
        """Return what was found of a DAG at most so many seconds ago."""
        return await self._found.get(dag_id, lambda: find_pipelines(ask, self.moves, dag_id), seconds)

    def candidates(self, dag_ids: Iterable[str]) -> list[str]:
        """Return those of some DAGs of which it is not known that they have no pipelines."""
        known = {dag_id: self._found.get_known(dag_id, _WITHOUT) for dag_id in dag_ids}
        return [dag_id for dag_id, found in known.items() if found is None or found.tasks]

    async def get_all(
        self, ask: AsUser, dag_ids: Collection[str], seconds: float = LISTED
    ) -> ListedPipelines:
        """Return what is known of some DAGs; what takes longer is read on, and there the next time."""
        began = time.monotonic()
        active = await self._active.get(frozenset(dag_ids), lambda: _active(ask))
        wanted = sorted(active.intersection(dag_ids))
        seconds = max(seconds, _SHARE * self._took)
        failed: dict[str, Exception] = {}
        candidates = self.candidates(wanted)
        reading = asyncio.ensure_future(self._read(ask, candidates, seconds, failed))
        # Nobody may be waiting any more when it fails.
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait([reading], timeout=max(0.1, WITHIN - (time.monotonic() - began)))
        for each in done:
            each.result()
            # A slow reading counts for a while, so that Airflow is not asked again at once.
            self._took = max(self._took / 2, time.monotonic() - began)
        known = {dag_id: self._found.get_known(dag_id, float("inf")) for dag_id in candidates}
        found = {dag_id: its for dag_id, its in known.items() if its is not None}
        reasons = {str(error): dag_id for dag_id, error in failed.items() if dag_id not in found}
        problems = [f"DAG {dag_id} cannot be read: {reason}" for reason, dag_id in reasons.items()]
        if unread := len(candidates) - len(found.keys() | failed.keys()):
            problems.append(
                f"{unread:,} DAGs are not read yet: they appear when this page asks again, within minutes"
            )
        return ListedPipelines(found, problems)

    async def _read(
        self, ask: AsUser, dag_ids: Iterable[str], seconds: float, failed: dict[str, Exception]
    ) -> None:
        """Read those DAGs that nobody has read for so many seconds; who asks meanwhile finds them read."""
        async with self._reading:
            old = [dag_id for dag_id in dag_ids if self._found.get_known(dag_id, seconds) is None]
            for start in range(0, len(old), _AT_ONCE):
                these = await find_all_pipelines(ask, self.moves, old[start : start + _AT_ONCE])
                for dag_id, its in these.items():
                    if isinstance(its, Exception):
                        failed[dag_id] = its
                    else:
                        self._found.put(dag_id, its)


async def _active(ask: AsUser) -> frozenset[str]:
    """Return the DAGs that still are in a file."""
    listed = await ask.pages(_MOST_DAGS, "dags", of="dags", order_by="dag_id")
    return frozenset(dag["dag_id"] for dag in listed)
