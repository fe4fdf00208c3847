"""Airflow's own FastAPI app with the Offsets tab, on a database with DAGs and runs."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from anyio.from_thread import start_blocking_portal
from running_airflow import QUICK, make_database

from airflow_kafka_offsets.local.demo import demo_environment, migrate_airflow

if TYPE_CHECKING:
    from collections.abc import Iterator

DATABASE = "AIRFLOW_DATABASE"
SQL_ALCHEMY_CONN = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(scope="session")
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The database of this process's Airflow: SQLite, or with AIRFLOW_DATABASE=postgresql a PostgreSQL."""
    scratch = tmp_path_factory.mktemp("empty")
    (scratch / "dags").mkdir()
    environment = demo_environment(scratch, scratch / "dags", "127.0.0.1:1")
    kind = os.environ.get(DATABASE, "sqlite")
    if kind == "postgresql":
        from airflow import settings

        url = request.getfixturevalue("postgres").new_database("tab")
        migrate_airflow({**environment, SQL_ALCHEMY_CONN: url}, scratch)
        with pytest.MonkeyPatch.context() as ours:
            ours.setenv(SQL_ALCHEMY_CONN, url)
            settings.configure_vars()
            settings.configure_orm()
            yield kind
            settings.dispose_orm()
        return
    make_database(environment, scratch)
    home = Path(os.environ["AIRFLOW_HOME"])
    shutil.copy(scratch / "airflow" / "airflow.db", home / "airflow.db")
    yield kind


class Metadata:
    """Writes DAGs, runs and what their tasks have left into Airflow's database."""

    def __init__(self) -> None:
        self._runs = 0
        self._dags: dict[str, Any] = {}

    def add_dag(self, dag: Any) -> str:
        from airflow.models.dagbundle import DagBundleModel
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.serialization.serialized_objects import LazyDeserializedDAG
        from airflow.utils.session import create_session

        try:
            from airflow.serialization.definitions.dag import SerializedDAG
        except ImportError:  # Airflow 3.1
            from airflow.serialization.serialized_objects import SerializedDAG  # type: ignore[attr-defined]

        lazy = LazyDeserializedDAG.from_dag(dag)
        with create_session() as session:
            if session.get(DagBundleModel, "tests") is None:
                session.add(DagBundleModel(name="tests"))
                session.flush()
            SerializedDAG.bulk_write_to_db("tests", None, [lazy], session=session)
            SerializedDagModel.write_dag(lazy, "tests", session=session)
        self._dags[dag.dag_id] = dag
        return str(dag.dag_id)

    def _rendered(self, dag_id: str) -> dict[str, dict[str, Any]]:
        """Return what a run renders of tasks without templates that are not mapped, as Airflow stores it."""
        from airflow.serialization.helpers import serialize_template_field

        found = {}
        for task in self._dags[dag_id].tasks:
            if not task.is_mapped:
                fields = {
                    name: serialize_template_field(getattr(task, name), name) for name in task.template_fields
                }
                if "{{" not in str(fields):
                    found[task.task_id] = fields
        return found

    def add_run(
        self,
        dag_id: str,
        results: dict[Any, Any] | None = None,
        *,
        run_id: str | None = None,
        rendered: dict[Any, dict[str, Any]] | None = None,
        state: str = "success",
    ) -> str:
        """
        Add a run; results and rendered fields are by task, or by (task, map index).

        Without rendered fields it has those of the tasks that name no template.
        """
        from airflow.models.renderedtifields import RenderedTaskInstanceFields
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from airflow.utils.state import DagRunState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType
        from sqlalchemy import insert, update

        self._runs += 1
        run_id = run_id or f"manual__{self._runs}"
        with create_session() as session:
            found = SerializedDagModel.get(dag_id, session=session)
            assert found is not None
            dag = found.dag
            when = BEGAN + timedelta(minutes=self._runs)
            dag_run_id = dag.create_dagrun(
                run_id=run_id,
                logical_date=when,
                data_interval=(when, when),
                run_after=when,
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.SUCCESS,
                session=session,
            ).id
            session.flush()
            session.execute(
                update(TaskInstance)
                .where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)
                .values(state=state, try_number=1, start_date=when, end_date=when)
            )
            for name in {*(rendered or {}), *(results or {})}:
                if isinstance(name, tuple):
                    _map(session, dag_id, run_id, *name)
            if rendered is None:
                rendered = self._rendered(dag_id)
            for name, fields in rendered.items():
                task_id, index = name if isinstance(name, tuple) else (name, -1)
                session.execute(
                    insert(RenderedTaskInstanceFields).values(
                        dag_id=dag_id, task_id=task_id, run_id=run_id, map_index=index, rendered_fields=fields
                    )
                )
            for name, value in (results or {}).items():
                task_id, index = name if isinstance(name, tuple) else (name, -1)
                # As the execution API does.
                session.add(
                    XComModel(
                        dag_run_id=dag_run_id,
                        key="return_value",
                        value=json.loads(json.dumps(value)),
                        dag_id=dag_id,
                        task_id=task_id,
                        run_id=run_id,
                        map_index=index,
                    )
                )
        return run_id

    def add_runs(self, dag_id: str, count: int, results: dict[str, Any]) -> list[str]:
        """Add many runs at once, the oldest first, each with the same results of its tasks."""
        from airflow.models.dagrun import DagRun
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import insert, select

        began = datetime.now(tz=timezone.utc) - timedelta(minutes=count)
        operators = {task.task_id: task.task_type for task in self._dags[dag_id].tasks}
        run_ids = [f"many__{number}" for number in range(count)]
        with create_session() as session:
            version = session.scalar(
                select(SerializedDagModel.dag_version_id).where(SerializedDagModel.dag_id == dag_id)
            )
            times = [began + timedelta(minutes=number) for number in range(count)]
            runs = [
                {
                    "dag_id": dag_id,
                    "run_id": run_id,
                    "run_type": "manual",
                    "state": "success",
                    "run_after": at,
                }
                for run_id, at in zip(run_ids, times, strict=True)
            ]
            table = DagRun.__table__
            adding = insert(table).returning(table.c.id, sort_by_parameter_order=True)
            numbers = session.scalars(adding, runs).all()
            instances, values = [], []
            for run_id, number, at in zip(run_ids, numbers, times, strict=True):
                for task_id, value in results.items():
                    its = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1}
                    instances.append(
                        {
                            **its, "id": uuid4(), "state": "success", "try_number": 1, "pool": "default_pool",
                            "pool_slots": 1, "dag_version_id": version, "executor_config": {},
                            "operator": operators[task_id], "start_date": at, "end_date": at,
                        }
                    )  # fmt: skip
                    values.append(
                        {**its, "dag_run_id": number, "key": "return_value", "value": value, "timestamp": at}
                    )
            for model, rows in ((TaskInstance, instances), (XComModel, values)):
                session.execute(insert(model.__table__), rows)
        self._runs += count
        return run_ids

    def run_again(self, dag_id: str, run_id: str, task_id: str, value: Any) -> None:
        """Leave what clearing a task and running it again leaves."""
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        mine = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
        with create_session() as session:
            instance = session.scalars(select(TaskInstance).filter_by(**mine)).one()
            instance.prepare_db_for_next_try(session)
            instance.state = "success"
            instance.start_date = instance.end_date = datetime.now(tz=timezone.utc)
            XComModel.set(
                "return_value",
                value,
                dag_id=dag_id,
                task_id=task_id,
                run_id=run_id,
                serialize=False,
                session=session,
            )

    def add_event(self, uri: str, dag_id: str, run_id: str, task_id: str, **extra: Any) -> None:
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            asset = session.scalar(select(AssetModel).where(AssetModel.uri == uri))
            if asset is None:
                asset = AssetModel(name=uri, uri=uri)
                session.add(asset)
                session.flush()
            source = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1}
            named = {f"source_{name}": value for name, value in source.items()}
            session.add(AssetEvent(asset_id=asset.id, extra=extra, timestamp=BEGAN, **named))

    def clear(self) -> None:
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.models.dag import DagModel
        from airflow.models.dag_version import DagVersion
        from airflow.models.dagrun import DagRun
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import delete

        tries = []
        with suppress(ImportError):  # Airflow 3.4 has none
            from airflow.models.taskinstancehistory import TaskInstanceHistory

            tries.append(TaskInstanceHistory)
        with create_session() as session:
            for model in (
                AssetEvent,
                AssetModel,
                XComModel,
                *tries,
                TaskInstance,
                DagRun,
                SerializedDagModel,
                DagVersion,
                DagModel,
            ):
                session.execute(delete(model))


@pytest.fixture
def metadata(database) -> Any:
    made = Metadata()
    yield made
    made.clear()
    # Airflow must not be imported before its home is set.
    from some_dags_only import SomeDagsOnly

    SomeDagsOnly.readable = {}
    SomeDagsOnly.without_xcom = {}


def _map(session: Any, dag_id: str, run_id: str, task_id: str, index: int) -> None:
    """Make one more instance of a mapped task, as the scheduler does."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import insert, select

    table = TaskInstance.__table__
    mine = (table.c.dag_id == dag_id, table.c.run_id == run_id, table.c.task_id == task_id)
    have = session.execute(select(table).where(*mine)).mappings().all()
    if all(row["map_index"] != index for row in have):
        session.execute(insert(table).values({**have[0], "id": uuid4(), "map_index": index}))


class Browser:
    """A client of Airflow's app, as one user or without a login."""

    def __init__(self, app: Any, prefix: str, portal: Any) -> None:
        self._portal = portal
        self.app = app
        self.prefix = prefix

    def client(self, user: str | None = "ann") -> Any:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from fastapi.testclient import TestClient

        headers = {}
        if user is not None:
            token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role="viewer"))
            headers["Authorization"] = f"Bearer {token}"
        client = TestClient(self.app, headers=headers, raise_server_exceptions=False)
        # All clients ask one event loop, as a server has.
        client.portal = self._portal
        return client

    def get(self, path: str, user: str | None = "ann", **how: Any) -> Any:
        """Ask as somebody for whom nothing is kept of what others have asked Airflow's database."""
        self.forget()
        return self.client(user).get(f"{self.prefix}/kafka-offsets{path}", **how)

    def found(self, dag_id: str) -> Any:
        """Return what was found of a DAG."""
        return self.tab.state.dags._found.known(dag_id)

    def forget(self) -> None:
        """Forget what was found and asked a moment ago."""
        for each in ("rights", "dags", "pasts", "receipts"):
            getattr(self.tab.state, each).clear()

    @property
    def routes(self) -> list[Any]:
        return list(self.tab.routes)

    @property
    def tab(self) -> Any:
        (mounted,) = (
            route.app for route in self.app.routes if getattr(route, "path", "") == "/kafka-offsets"
        )
        return mounted


@pytest.fixture(scope="session")
def start_browser(database) -> Any:
    """start_browser(base_url) -> Airflow's app behind an address."""
    from airflow import plugins_manager
    from airflow.api_fastapi import app as airflow_app

    started = []

    def start(base_url: str = "http://testserver") -> Browser:
        prefix = "/" + base_url.split("/", 3)[3].strip("/") if base_url.count("/") > 2 else ""
        ours.setenv("AIRFLOW__API__BASE_URL", base_url)
        ours.setattr(airflow_app, "API_ROOT_PATH", f"{prefix}/")
        for each in vars(plugins_manager).values():
            if callable(clear := getattr(each, "cache_clear", None)):
                clear()
        for name in ("plugins", "external_views", "fastapi_apps"):  # Airflow 3.1 has no caches, but globals
            if hasattr(plugins_manager, name):
                setattr(plugins_manager, name, None)
                plugins_manager.loaded_plugins.clear()  # type: ignore[attr-defined]
        browser = Browser(airflow_app.create_app(apps="core"), prefix, portal)
        started.append(browser)
        return browser

    with pytest.MonkeyPatch.context() as ours, start_blocking_portal() as portal:
        ours.setenv("AIRFLOW__CORE__AUTH_MANAGER", "some_dags_only.SomeDagsOnly")
        ours.setenv("AIRFLOW__API_AUTH__JWT_SECRET", QUICK["AIRFLOW__API_AUTH__JWT_SECRET"])
        yield start
        for browser in started:
            browser.tab.state.live.close()


@pytest.fixture(scope="session")
def browser(start_browser) -> Browser:
    return start_browser()
