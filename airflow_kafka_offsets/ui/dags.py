"""Caches the pipelines of DAGs for all users who may read these DAGs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable

from airflow_kafka_offsets.ui.airflow_api import AsUser
from airflow_kafka_offsets.ui.discovery import DagPipelines, find_all_pipelines, find_pipelines
from airflow_kafka_offsets.ui.single_flight_cache import SingleFlightCache
from airflow_kafka_offsets.ui.task_instances import TaskOutcomes

FRESH = 5.0
"""Seconds for which a DAG's page shows the cached pipelines of the DAG."""

WITHIN = 2.0
"""Seconds after which a list shows the DAGs read so far; the others are read in the background."""

LISTED = 30.0
_WITHOUT = 600.0
"""Seconds for which a list uses the cached result of a DAG with pipelines, and of a DAG without."""

_SHARE = 10
"""After lists have read DAGs, they read none again for this multiple of the time that it took."""

# Bounds the memory and the pages of Airflow's list.
_MOST_DAGS = 20_000
# DAGs are read in parts of this size; a viewer sees the result after each part.
_AT_ONCE = 100


class Dags:
    """
    Reads DAGs with the login of the first user who requests them.

    Only a user who may read a DAG may request it. The result may have been read with another user's login.
    """

    def __init__(self) -> None:
        self.outcomes = TaskOutcomes()
        """Results of task instances."""
        self._found: SingleFlightCache[str, DagPipelines] = SingleFlightCache(FRESH, _MOST_DAGS)
        self._active: SingleFlightCache[frozenset[str], frozenset[str]] = SingleFlightCache(LISTED, 50)
        self._rests_until = 0.0
        """When lists may read DAGs again; a DAG that was never read is read at once."""
        self._reading = asyncio.Lock()

    async def get_one(self, ask: AsUser, dag_id: str, seconds: float = FRESH) -> DagPipelines:
        """Return the pipelines of a DAG, read at most ``seconds`` ago."""
        return await self._found.get(dag_id, lambda: find_pipelines(ask, self.outcomes, dag_id), seconds)

    def candidates(self, dag_ids: Iterable[str]) -> list[str]:
        """Return the given DAGs without those that are known to have no pipelines."""
        known = {dag_id: self._found.get_known(dag_id, _WITHOUT) for dag_id in dag_ids}
        return [dag_id for dag_id, found in known.items() if found is None or found.tasks]

    async def get_all(
        self, ask: AsUser, dag_ids: Collection[str], seconds: float = LISTED
    ) -> tuple[dict[str, DagPipelines], list[str]]:
        """
        Return the pipelines of DAGs that can be read in time; read the other DAGs in the background.

        :return: the DAGs, and a sentence for each missing part.
        """
        began = time.monotonic()
        active = await self._active.get(frozenset(dag_ids), lambda: _active(ask))
        wanted = sorted(active.intersection(dag_ids))
        failed: dict[str, Exception] = {}
        reading = asyncio.ensure_future(self._read(ask, wanted, seconds, failed))
        # Retrieve the exception: it may be raised after the request has ended.
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait([reading], timeout=max(0.1, WITHIN - (time.monotonic() - began)))
        for each in done:
            each.result()
        known = {dag_id: self._found.get_known(dag_id, float("inf")) for dag_id in wanted}
        found = {dag_id: its for dag_id, its in known.items() if its is not None}
        reasons = {str(error): dag_id for dag_id, error in failed.items() if dag_id not in found}
        problems = [f"DAG {dag_id} cannot be read: {reason}" for reason, dag_id in reasons.items()]
        if unread := len(wanted) - len(found.keys() | failed.keys()):
            problems.append(
                f"{unread:,} DAGs are not read yet: they appear when this page refreshes, within minutes"
            )
        return found, problems

    async def _read(
        self, ask: AsUser, dag_ids: Collection[str], seconds: float, failed: dict[str, Exception]
    ) -> None:
        """Read the DAGs that were not read in the last ``seconds``; concurrent requests share the result."""
        async with self._reading:
            began = time.monotonic()
            rests = began < self._rests_until
            seconds = float("inf") if rests else seconds
            old = [dag_id for dag_id in dag_ids if self._found.get_known(dag_id, seconds) is None]
            for start in range(0, len(old), _AT_ONCE):
                these = await find_all_pipelines(ask, self.outcomes, old[start : start + _AT_ONCE])
                # Also if the request has ended. A reading in a rest does not prolong the rest: a DAG that can
                # never be read would do so for ever.
                now = time.monotonic()
                if not rests:
                    self._rests_until = now + _SHARE * (now - began)
                for dag_id, its in these.items():
                    if isinstance(its, Exception):
                        failed[dag_id] = its
                    else:
                        self._found.put(dag_id, its)


async def _active(ask: AsUser) -> frozenset[str]:
    """Return the active DAGs: those that are still in a DAG file."""
    listed = await ask.pages(_MOST_DAGS, "dags", of="dags", order_by="dag_id")
    return frozenset(dag["dag_id"] for dag in listed)
