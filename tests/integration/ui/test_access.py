"""Who may read what: every route of the app is asked."""

import asyncio
from urllib.parse import quote

import pytest
from offsets_receipts import receipt

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.ui.app import HEADERS

pytestmark = pytest.mark.integration

UNKNOWN = "no-such-dag"


@pytest.fixture
def two_dags(metadata):
    for name in ("orders", "secret"):
        with metadata.new_dag(name):
            CommitOffsetsOperator(task_id="commit", group_id=f"{name}-group", offsets={"t": {"0": 1}})
        metadata.add_run(name, {"commit": receipt(f"{name}-group", 40, 60)}, run_id=f"run-of-{name}")


@pytest.fixture
def shared(metadata):
    """The DAG orders, whose group shared other DAGs move too."""
    with metadata.new_dag("orders"):
        CommitOffsetsOperator(task_id="commit", group_id="shared", offsets={"t": {"0": 1}})
    metadata.add_run("orders")


def addresses(browser, dag_id="orders", key="0" * 16):
    """One address of each route of the app, and no other."""
    values = {
        "dag_id": dag_id,
        "run_id": f"run-of-{dag_id}",
        "task_id": "commit",
        "map_index": "-1",
        "key": key,
        "name": "offsets.js",
    }
    return [route.path.replace(":path", "").format(**values) for route in browser.routes]


def test_every_route_only_reads_and_refuses_who_is_not_logged_in(browser, two_dags):
    asked = addresses(browser)

    assert len(asked) == 10
    for address in asked:
        assert browser.get(address, user=None).status_code == 401, address
        forged = browser.get(address, user=None, headers={"Authorization": "Bearer not.a.token"})
        assert forged.status_code in (401, 403), address
        assert browser.client("ann").post(f"/kafka-offsets{address}").status_code == 405, address


def test_a_frame_logs_in_with_airflows_cookie(browser, two_dags):
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN

    token = browser.client("ann").headers["Authorization"].removeprefix("Bearer ")
    client = browser.client(None)
    client.cookies.set(COOKIE_NAME_JWT_TOKEN, token)

    assert client.get("/kafka-offsets/dags/orders").status_code == 200
    assert client.get("/kafka-offsets/api/pipelines").json()["pipelines"] != []


def test_an_airflow_that_takes_a_login_from_a_header_only_has_no_tab(monkeypatch, caplog):
    from airflow_kafka_offsets.ui import access
    from airflow_kafka_offsets.ui.plugin import KafkaOffsetsPlugin

    async def get_user(oauth_token=None, bearer_credentials=None):
        """As it is in Airflow 3.1.0."""

    monkeypatch.setattr(access, "get_user", get_user)
    plugin = KafkaOffsetsPlugin()

    assert (plugin.fastapi_apps, plugin.external_views) == ([], [])


def test_who_may_read_one_of_two_dags_sees_nothing_of_the_other(browser, two_dags, rights):
    everything = browser.get("/api/pipelines").json()["pipelines"]
    key = next(each["key"] for each in everything if each["dag_id"] == "secret")
    rights.readable = {"bob": {"orders"}}

    listed = browser.get("/api/pipelines", "bob")
    hidden = [
        (address, browser.get(address, "bob"), browser.get(address.replace("secret", UNKNOWN), "bob"))
        for address in addresses(browser, "secret", key)
        if "secret" in address
    ]

    assert [each["dag_id"] for each in everything] == ["orders", "secret"]
    assert [each["dag_id"] for each in listed.json()["pipelines"]] == ["orders"]
    assert "secret" not in listed.text
    assert browser.get("/api/dags/orders/pipelines", "bob").json()["pipelines"] != []
    assert len(hidden) == 7
    for address, secret, unknown in hidden:
        # Whether there is such a DAG does not show.
        assert (secret.status_code, secret.text) == (unknown.status_code, unknown.text), address
        assert secret.status_code == 403, address


def test_a_key_of_another_dag_is_not_found_in_the_own_one(browser, two_dags, rights):
    key = browser.get("/api/dags/secret/pipelines").json()["pipelines"][0]["key"]
    rights.readable = {"bob": {"orders"}}

    for what in ("now", "history"):
        assert browser.get(f"/api/dags/orders/pipelines/{key}/{what}", "bob").status_code == 404
    assert browser.get("/api/dags/orders/runs/run-of-secret/tasks/commit/-1", "bob").status_code == 404


def test_without_the_right_to_the_xcom_of_a_dag_it_has_no_pipelines(browser, two_dags, rights):
    rights.without_xcom = {"bob": {"secret"}}

    assert [each["dag_id"] for each in browser.get("/api/pipelines", "bob").json()["pipelines"]] == ["orders"]
    assert browser.get("/api/dags/secret/pipelines", "bob").status_code == 403


def test_events_of_another_dag_show_to_those_who_may_read_it(browser, metadata, shared, rights):
    with metadata.new_dag("secret"):
        pass
    metadata.add_event("kafka-group://kafka_default/shared", "secret", "run 1", "commit", moved_by=7)
    rights.readable = {"bob": {"orders"}}

    assert [move["moved_by"] for move in browser.moves("orders")] == [7]
    assert browser.moves("orders", "bob") == []


@pytest.mark.parametrize("missing", ["without_assets", "without_aliases"])
def test_events_that_one_viewer_may_read_are_not_kept_for_another(browser, metadata, shared, rights, missing):
    metadata.add_event("kafka-group://kafka_default/shared", "orders", "run 1", "commit", moved_by=7)
    setattr(rights, missing, {"bob"})
    path = f"/kafka-offsets{browser.address('orders', 'history')}"

    found = [browser.client(user).get(path).json() for user in ("bob", "ann", "bob")]

    assert [[move["moved_by"] for move in each["moves"]] for each in found] == [[], [7], []]


def test_the_right_to_assets_is_asked_for_once_by_the_requests_of_a_page(monkeypatch):
    """A history that is there already must not wait for its turn."""
    from airflow_kafka_offsets.ui import access
    from airflow_kafka_offsets.ui.airflow_api import AsUser

    asked: list[str] = []
    for name in ("requires_access_asset", "requires_access_asset_alias"):
        monkeypatch.setattr(access, name, lambda method: lambda *_: asked.append(method))
    rights = access.new_rights()

    async def ask() -> list[bool]:
        readable = access.ReadableDags(None, None, AsUser(None, {}, "ann"), rights)  # type: ignore[arg-type]
        return [await readable.may_read_assets() for _ in range(3)]

    assert asyncio.run(ask()) == [True, True, True]
    assert asked == ["GET", "GET"]


def test_an_event_that_airflow_cannot_list_hides_no_receipt(browser, metadata, two_dags):
    """As Airflow 3.3 cannot while a run that the event triggers is queued."""
    from airflow.models.asset import AssetEvent
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with metadata.new_dag("consumer"):
        pass
    run_id = metadata.add_run("consumer")
    uri = "kafka-group://kafka_default/orders-group"
    metadata.add_event(uri, "orders", "run-of-orders", "commit", moved_by=20)
    with create_session() as session:
        run = session.scalars(select(DagRun).filter_by(dag_id="consumer", run_id=run_id)).one()
        run.state, run.start_date = "queued", None
        event = session.scalars(select(AssetEvent)).one()
        event.created_dagruns.append(run)

    found = browser.get(browser.address("orders", "history")).json()

    assert [move["moved_by"] for move in found["moves"]] == [20]
    assert all(each.startswith("the events of group orders-group cannot") for each in found["problems"])


def test_a_reset_by_another_dag_is_shown_as_what_it_was(browser, metadata, shared):
    with metadata.new_dag("recovery"):
        ResetOffsetsOperator(task_id="reset", group_id="shared", to_offset="earliest")
        ResetOffsetsOperator(task_id="reset_two", group_id={"a": "shared", "b": "another"}, to_offset=3)
    two = {"version": 1, "changed": 2, "moved_by": -9, "plan_only": False, "verified": True, "source": {}}
    two["groups"] = [receipt("shared", 8, 3), receipt("another", 7, 3)]
    run = metadata.add_run("recovery", {"reset": receipt("shared", 60, 10), "reset_two": two})
    metadata.add_event("kafka-group://kafka_default/shared", "recovery", run, "reset", moved_by=-50)
    metadata.add_event("kafka-group://kafka_default/shared", "recovery", run, "reset_two", moved_by=-5)

    names = ("kind", "dag_id", "offset", "lag", "state")
    shown = {move["task_id"]: [move[name] for name in names] for move in browser.moves("orders")}

    assert shown["reset"] == ["reset", "recovery", 10, 90, "success"]
    # The totals of its receipt are those of both groups.
    assert shown["reset_two"] == ["reset", "recovery", None, None, "success"]


def test_a_reset_by_another_dag_without_outlets_is_shown_too(browser, metadata, shared, rights):
    with metadata.new_dag("recovery"):
        ResetOffsetsOperator(task_id="reset", group_id="shared", to_offset="earliest")
        ResetOffsetsOperator(task_id="reset_other", group_id="another", to_offset="earliest")
        ResetOffsetsOperator(
            task_id="reset_there", group_id="shared", kafka_config_id="kafka_eu", to_offset="earliest"
        )
    groups = {"reset": "shared", "reset_other": "another", "reset_there": "shared"}
    metadata.add_run("recovery", {task: receipt(group, 60, 10) for task, group in groups.items()})
    rights.readable = {"bob": {"orders"}}
    rights.without_xcom = {"eve": {"recovery"}}
    names = ("task_id", "kind", "offset", "lag")

    assert [[move[name] for name in names] for move in browser.moves("orders")] == [
        ["reset", "reset", 10, 90]
    ]
    assert browser.moves("orders", "bob") == browser.moves("orders", "eve") == []


@pytest.mark.parametrize(
    "name", ["../app.py", "..%2Fapp.py", "/etc/passwd", ".gitkeep%00.js", "offsets.html/.."]
)
def test_no_file_but_the_pages_own_can_be_asked_for(browser, database, name):
    assert browser.get(f"/static/{name}").status_code in (404, 405)


def test_every_response_has_the_security_headers(browser, two_dags, monkeypatch):
    responses = {address: browser.get(address) for address in [*addresses(browser), "/nothing"]}
    monkeypatch.setattr("airflow_kafka_offsets.ui.routes._overview", None)
    responses["failed"] = failed = browser.get("/api/pipelines")
    assert (failed.status_code, failed.json()) == (500, {"detail": "Internal Server Error"})
    for address, response in responses.items():
        for name, value in HEADERS.items():
            assert response.headers[name] == value, address


def test_an_app_with_a_route_without_a_guard_is_refused():
    from fastapi import APIRouter, Depends

    from airflow_kafka_offsets.errors import SetupError
    from airflow_kafka_offsets.ui.access import check_guards, may_read_dag
    from airflow_kafka_offsets.ui.app import make_app

    for path, dependencies, method in [
        ("/dags/{dag_id}/more", [], "GET"),
        ("/dags/{dag_id}/more", [Depends(may_read_dag)], "POST"),
    ]:
        app = make_app()
        more = APIRouter(dependencies=dependencies)
        more.add_api_route(path, lambda: None, methods=[method])
        app.include_router(more)
        with pytest.raises(SetupError):
            check_guards(app)


def test_names_with_slashes_and_tags_are_only_names(browser, metadata, monkeypatch):
    monkeypatch.setenv("AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN", ".*")
    group, run_id = "<script>alert('x')</script>/\"ü", "manual__2026-01-01T00:00:00+00:00//x/"
    with metadata.new_dag("hostile"):
        CommitOffsetsOperator(task_id="commit", group_id=group, offsets={"t": {"0": 1}})
    plain = metadata.add_run("hostile", {"commit": receipt(group, 1, 2)})
    metadata.add_run("hostile", {"commit": receipt(group, 2, 3)}, run_id=run_id)

    listed = browser.get("/api/dags/hostile/pipelines")
    instance = browser.get(f"/api/dags/hostile/runs/{plain}/tasks/commit/%7BMAP_INDEX%7D")
    slashes = browser.get(f"/api/dags/hostile/runs/{quote(run_id, safe='')}/tasks/commit/%7BMAP_INDEX%7D")

    (pipeline,) = listed.json()["pipelines"]
    assert pipeline["groups"] == [group]
    assert listed.headers["content-type"] == "application/json"
    # Airflow's API has no address for such a run.
    assert slashes.status_code == 404
    assert instance.json()["receipt"]["groups"] == [group]
    assert browser.moves("hostile")[0]["run_id"] == plain


@pytest.mark.parametrize("map_index", ["x", "1e3", "--1", "99999999999999999999", "-"])
def test_an_index_that_is_none_is_not_found(browser, two_dags, map_index):
    assert browser.get(f"/api/dags/orders/runs/run-of-orders/tasks/commit/{map_index}").status_code == 404


def test_who_committed_shows_to_those_who_may_read_that_dag(browser, two_dags, monkeypatch, rights):
    from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
    from airflow_kafka_offsets.ui.live_client import Answer, pack_json
    from airflow_kafka_offsets.ui.provenance import as_provenance

    names = {"kind": "commit", "dag_id": "secret", "run_id": "r", "task_id": "t", "by": "eve"}
    made_by = {**as_provenance(CommitMetadata()), **names, "tool": "x"}

    async def ask(*_):
        return Answer(pack_json({"commits": [made_by], "totals": {"lag": 1}}))

    monkeypatch.setattr(browser.tab.state.live, "ask", ask)
    rights.readable = {"bob": {"orders"}}
    path = browser.address("orders", "now")

    def seen(user):
        (made,) = browser.get(path, user).json()["commits"]
        return {name: value for name, value in made.items() if value is not None}

    assert seen("bob") == {"kind": "commit", "tool": "x"}
    assert (seen("ann")["dag_id"], seen("ann")["by"]) == ("secret", "eve")
    made_by["dag_id"] = "no\0name"
    assert "by" not in seen("ann")
    made_by["dag_id"] = None
    assert "run_id" not in seen("ann")
    made_by["run_id"] = "run-of-orders"
    assert seen("bob")["run_id"] == "run-of-orders"
