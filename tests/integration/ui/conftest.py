"""Airflow's own FastAPI app with the Offsets tab, on a database with DAGs and runs."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_metadata import Metadata
from anyio.from_thread import start_blocking_portal
from running_airflow import QUICK, make_sqlite

from airflow_kafka_offsets.local.demo import demo_environment, migrate_airflow

DATABASE = "AIRFLOW_DATABASE"
SQL_ALCHEMY_CONN = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"


@pytest.fixture(scope="session")
def database(
    request: pytest.FixtureRequest, run_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The database of this process's Airflow: SQLite, or with AIRFLOW_DATABASE=postgresql a PostgreSQL."""
    scratch = tmp_path_factory.mktemp("empty")
    (scratch / "dags").mkdir()
    environment = demo_environment(scratch, scratch / "dags", "127.0.0.1:1")
    kind = os.environ.get(DATABASE, "sqlite")
    # Airflow must not be imported before its home is set.
    from airflow import settings

    if kind == "postgresql":
        url = request.getfixturevalue("postgres").create_database("tab")
        migrate_airflow({**environment, SQL_ALCHEMY_CONN: url}, scratch)
        with pytest.MonkeyPatch.context() as ours:
            ours.setenv(SQL_ALCHEMY_CONN, url)
            settings.configure_vars()
            settings.configure_orm()
            yield kind
            settings.dispose_orm()
        return
    make_sqlite(environment, scratch, run_directory)
    home = Path(os.environ["AIRFLOW_HOME"])
    # An earlier test of this process may have opened the empty database: its log would hide the new one.
    settings.dispose_orm()
    for file in home.glob("airflow.db*"):
        file.unlink()
    shutil.copy(scratch / "airflow" / "airflow.db", home / "airflow.db")
    settings.configure_orm()
    yield kind


@pytest.fixture
def metadata(database) -> Any:
    made = Metadata()
    yield made
    made.clear()


@pytest.fixture
def rights(database) -> Iterator[Any]:
    """What users may read: DAGs by user, and users without assets; others may read all."""
    # Airflow must not be imported before its home is set.
    from some_dags_only import SomeDagsOnly

    yield SomeDagsOnly
    SomeDagsOnly.readable = {}
    SomeDagsOnly.without_xcom = {}
    SomeDagsOnly.without_assets = SomeDagsOnly.without_aliases = ()


@pytest.fixture
def statements(database) -> Iterator[list[Any]]:
    """The statements that are sent to the database, with their parameters."""
    from airflow import settings
    from sqlalchemy import event

    sent: list[Any] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    event.listen(settings.engine, "before_cursor_execute", note)
    yield sent
    event.remove(settings.engine, "before_cursor_execute", note)


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

    def address(self, dag_id: str, what: str) -> str:
        """Return the address of what there is about the first pipeline of a DAG."""
        pipeline, *_ = self.get(f"/api/dags/{dag_id}/pipelines").json()["pipelines"]
        return f"/api/dags/{dag_id}/pipelines/{pipeline['key']}/{what}"

    def moves(self, dag_id: str, user: str = "ann") -> list[Any]:
        """Return the moves in the history of a DAG's first pipeline."""
        moves: list[Any] = self.get(self.address(dag_id, "history"), user).json()["moves"]
        return moves

    def forget(self) -> None:
        """Forget what was found and asked a moment ago."""
        state = self.tab.state
        for cache in (state.rights, state.dags._found, state.dags._active, state.histories):
            cache._values.clear()

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

    from airflow_kafka_offsets.ui import dags, history

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
        # A machine that is busy has no time to spare.
        ours.setattr(dags, "WITHIN", 60.0)
        ours.setattr(history, "READING_WITHIN", 60.0)
        ours.setenv("AIRFLOW__API_AUTH__JWT_SECRET", QUICK["AIRFLOW__API_AUTH__JWT_SECRET"])
        yield start
        for browser in started:
            browser.tab.state.live.close()


@pytest.fixture(scope="session")
def browser(start_browser) -> Browser:
    return start_browser()
