"""Who may see what: every route has one of these guards, or there is no app."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from inspect import signature
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from airflow_kafka_offsets.errors import SetupError

may_read_dag = requires_access_dag("GET", DagAccessEntity.XCOM)
"""Guard of the routes below ``dags/{dag_id}``: what they show is in the DAG's XCom."""


class ReadableDags:
    """The DAGs of which a user may read the XCom."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._manager: BaseAuthManager[Any] = get_auth_manager()

    def ids(self) -> set[str]:
        """Return the DAGs that the user may read, as Airflow's own lists do."""
        return set(self._manager.get_authorized_dag_ids(user=self._user, method="GET"))

    def with_xcom(self, dag_ids: Collection[str]) -> set[str]:
        """Return those of some DAGs of which the user may read the XCom too."""
        return {dag_id for dag_id, team in self._teams(dag_ids) if self._may_read(dag_id, team)}

    def _may_read(self, dag_id: str, team: str | None) -> bool:
        details = DagDetails(id=dag_id, team_name=team) if team else DagDetails(id=dag_id)
        return self._manager.is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.XCOM, details=details, user=self._user
        )

    @staticmethod
    def _teams(dag_ids: Collection[str]) -> Iterator[tuple[str, str | None]]:
        names = sorted(dag_ids)
        # Airflow 3.1 has no call for several DAGs.
        of_all = getattr(DagModel, "get_dag_id_to_team_name_mapping", None)
        with create_session(scoped=False) as session:
            teams = of_all(names, session=session) if of_all else {}
            for name in names:
                yield name, teams.get(name) if of_all else DagModel.get_team_name(name, session=session)


def readable_dags(user: GetUserDep) -> ReadableDags:
    """Return the DAGs that the user of a request may read."""
    return ReadableDags(user)


ReadableDagsDep = Annotated[ReadableDags, Depends(readable_dags)]


def check_frames() -> None:
    """
    Refuse an Airflow of which no login reaches a frame.

    :raises SetupError: on Airflow 3.1.0: it takes a token from a header only, which a frame cannot send.
    """
    if "request" not in signature(get_user).parameters:
        raise SetupError("the login of this Airflow does not reach the tab's frame: 3.1.1 or later is needed")


def check_guards(app: FastAPI) -> None:
    """
    Refuse an app with a route that anybody could ask.

    :raises SetupError: naming the first such route.
    """
    for route in app.routes:
        if not isinstance(route, APIRoute) or route.methods != {"GET"}:
            raise SetupError(f"route {getattr(route, 'path', route)} is not one of ours that only reads")
        wanted: set[Any] = {get_user, may_read_dag} if "{dag_id}" in route.path else {get_user}
        if not wanted.issubset(_calls(route.dependant)):
            raise SetupError(f"route {route.path} has no guard")


def _calls(dependant: Dependant) -> Iterable[Any]:
    for each in dependant.dependencies:
        yield each.call
        yield from _calls(each)
