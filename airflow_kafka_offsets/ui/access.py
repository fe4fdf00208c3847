"""
Guards of the routes: they check what a user may read. An app with a route without a guard is refused.

Remove when Airflow documents how a plugin's app checks a user's permissions: until then the imports from
``airflow.api_fastapi`` are the functions behind Airflow's own routes. No other module uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    get_user,
    requires_access_asset,
    requires_access_asset_alias,
    requires_access_dag,
)
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.ui.airflow_api import AsUser, run_in_thread
from airflow_kafka_offsets.ui.single_flight_cache import SingleFlightCache

REMEMBERED = 5.0
"""Seconds for which a user's permissions are cached."""

# Bounds the memory: a permission that was dropped is checked again.
_MOST_RIGHTS = 100_000

# The tab shows data of a DAG from these entities.
_SHOWN = (DagAccessEntity.XCOM, DagAccessEntity.TASK_INSTANCE, DagAccessEntity.TASK)

Rights = SingleFlightCache[tuple[str, Hashable], frozenset[str]]
"""What users may read, by user and what was asked; a user's simultaneous requests check it once."""


def new_rights() -> Rights:
    """Return an empty cache of permissions."""
    return SingleFlightCache(REMEMBERED, _MOST_RIGHTS, lambda readable: 1 + len(readable))


def as_user(request: Request, user: GetUserDep) -> AsUser:
    """Return a client of Airflow's API with the login of a request."""
    return AsUser.for_request(request, user)


LOGGED_IN = Depends(get_user)
"""The guard of every route: a user of Airflow."""

AsUserDep = Annotated[AsUser, Depends(as_user)]


@dataclass(frozen=True)
class ReadableDags:
    """The DAGs for which a user may read everything that the tab shows, by Airflow's own guards."""

    request: Request
    user: Any
    ask: AsUser
    rights: Rights

    async def ids(self) -> frozenset[str]:
        """Return the DAGs that Airflow's own lists show to the user."""
        listed = get_auth_manager().get_authorized_dag_ids
        return await self._ask("ids", lambda: listed(user=self.user, method="GET"))

    async def filter_readable(self, dag_ids: Collection[str]) -> frozenset[str]:
        """Return the given DAGs that the user may read."""
        wanted = frozenset(dag_ids)
        # One page sends several requests for the same DAGs at once.
        return await self._ask(wanted, lambda: filter(self._may_read, wanted))

    def _may_read(self, dag_id: str) -> bool:
        # In Airflow's API, a tilde means all DAGs.
        return dag_id != "~" and self._passes(*(requires_access_dag("GET", each, dag_id) for each in _SHOWN))

    async def may_read_assets(self) -> bool:
        """Return whether the user may list assets, whose events are in a pipeline's history."""
        # Airflow's list names the aliases of each asset.
        guards = (requires_access_asset("GET"), requires_access_asset_alias("GET"))
        return bool(await self._ask("assets", lambda: {"assets"} if self._passes(*guards) else ()))

    async def _ask(self, what: Hashable, answer: Callable[[], Iterable[str]]) -> frozenset[str]:
        key = self.ask.identity, what
        return await self.rights.get(key, lambda: run_in_thread(lambda: frozenset(answer())))

    def _passes(self, *guards: Callable[..., None]) -> bool:
        try:
            for guard in guards:
                guard(self.request, self.user)
        except HTTPException:
            return False
        return True


def readable_dags(request: Request, user: GetUserDep, ask: AsUserDep) -> ReadableDags:
    """Return the DAGs that the user of a request may read."""
    return ReadableDags(request, user, ask, request.app.state.rights)


ReadableDagsDep = Annotated[ReadableDags, Depends(readable_dags)]


async def may_read_dag(dag_id: str, readable: ReadableDagsDep) -> None:
    """Guard of the routes below ``dags/{dag_id}``."""
    if not await readable.filter_readable([dag_id]):
        raise HTTPException(403, "Forbidden")


def check_frames() -> None:
    """Refuse Airflow 3.1.0, which accepts a token only in a header, which a frame cannot send."""
    if "request" not in signature(get_user).parameters:
        raise SetupError("the login of this Airflow does not reach the tab's frame: 3.1.1 or later is needed")


def check_guards(app: FastAPI) -> None:
    """Refuse an app with a route without a guard, which the SetupError names."""
    for route in app.routes:
        if not isinstance(route, APIRoute) or route.methods != {"GET"}:
            raise SetupError(f"route {getattr(route, 'path', route)} is not one of the tab's GET routes")
        wanted: set[Any] = {get_user, may_read_dag} if "{dag_id}" in route.path else {get_user}
        if not wanted.issubset(_calls(route.dependant)):
            raise SetupError(f"route {route.path} has no guard")


def _calls(dependant: Dependant) -> Iterable[Any]:
    for each in dependant.dependencies:
        yield each.call
        yield from _calls(each)
