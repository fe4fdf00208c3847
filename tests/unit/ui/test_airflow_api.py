"""Questions to Airflow's API: how they are asked, in turn, and what answers become."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request

from airflow_kafka_offsets.ui import airflow_api, instances
from airflow_kafka_offsets.ui.airflow_api import (
    AirflowError,
    AmbiguousError,
    AsUser,
    FindAirflow,
    RefusedError,
    Turns,
    run_in_thread,
    turns,
)
from airflow_kafka_offsets.ui.discovery import DagPipelines
from airflow_kafka_offsets.ui.history import PipelineHistory
from airflow_kafka_offsets.ui.pipelines import NamedTask, Pipeline
from airflow_kafka_offsets.ui.task_instances import TaskOutcomes

HEADERS = [(b"authorization", b"Bearer ann's"), (b"cookie", b"_token=x"), (b"x-other", b"kept back")]


def airflow(root_path="/team"):
    app = FastAPI(root_path=root_path)
    app.state.asked = []

    @app.get("/api/v2/{path:path}")
    async def answer(path: str, request: Request, limit: int = 100, offset: int = 0) -> Any:
        assert request.app is app
        app.state.asked.append((path, dict(request.headers), request.url.query))
        if path.isdecimal():
            raise HTTPException(int(path))
        if path == "breaks":
            raise ValueError("it breaks")
        return {"rows": list(range(250))[offset : offset + min(limit, 40)], "total_entries": 250}

    return app


def as_user(app, user="ann", headers=HEADERS):
    """Return what asks for a request that has come through Airflow's app."""
    scope = {"type": "http", "app": app, "root_path": app.root_path, "headers": headers}

    async def mounted(scope, receive, send):
        scope["app"] = "what is mounted"

    asyncio.run(FindAirflow(mounted).__call__(scope, None, None))  # type: ignore[arg-type]
    of = SimpleNamespace(get_id=lambda: user, get_name=lambda: user)
    found = AsUser.for_request(Request(scope), of)
    # The middleware is the innermost one: what it passes on to is the router.
    object.__setattr__(found, "app", app.build_middleware_stack())
    return found


def test_the_login_is_passed_on_and_nothing_else():
    app = airflow()

    found = asyncio.run(as_user(app).get("dags", "a b", "tasks", states=["x", "y"], none=None))

    ((path, headers, query),) = app.state.asked
    assert found["total_entries"] == 250
    assert (path, query) == ("dags/a b/tasks", "states=x&states=y")
    assert headers == {"authorization": "Bearer ann's", "cookie": "_token=x"}


def test_a_list_is_read_to_its_end_also_where_airflow_gives_less_than_was_asked_for():
    app = airflow()

    assert asyncio.run(as_user(app).pages(1_000, "rows", of="rows")) == list(range(250))
    assert asyncio.run(as_user(app).pages(90, "rows", of="rows")) == list(range(90))


@pytest.mark.parametrize(
    ("step", "error", "text"),
    [
        ("401", RefusedError, "refuses it to your login"),
        ("403", RefusedError, "refuses it to your login"),
        ("500", AirflowError, "status 500"),
        ("400", AmbiguousError, "status 400"),
        ("409", AmbiguousError, "status 409"),
        ("breaks", AirflowError, "ValueError"),
    ],
)
def test_what_is_no_answer(step, error, text):
    with pytest.raises(error, match=text):
        asyncio.run(as_user(airflow()).get(step))


@pytest.mark.parametrize("step", ["404", "", ".", "..", "a/b", "a\0b"])
def test_what_there_is_not_and_what_is_no_name_is_none(step):
    assert (
        asyncio.run(as_user(airflow()).get("dags", step) if step != "404" else as_user(airflow()).get(step))
        is None
    )


ROW = {"id": "1", "dag_id": "d", "dag_run_id": "r", "task_id": "t", "map_index": -1, "state": "success"}


def test_a_result_that_is_too_large_is_none_of_this_package_and_is_read_once(monkeypatch):
    monkeypatch.setattr(airflow_api, "_MOST_BYTES", 100)
    app, outcomes = airflow(), TaskOutcomes()

    for _ in range(2):
        assert asyncio.run(outcomes.read(as_user(app), ROW)) is None
    assert len(app.state.asked) == 1


def test_a_result_that_airflow_cannot_give_hides_no_other_and_is_asked_for_again():
    broken = as_user(airflow())

    async def pages(*_, of, **__):
        ids.append(str(len(ids)))
        return [{**ROW, "id": ids[-1], "start_date": None}] if of == "task_instances" else []

    ids: list[str] = []
    ask: Any = SimpleNamespace(get=lambda *_, **__: broken.get("500"), pages=pages)
    tasks = tuple((NamedTask("d", name, "CommitOffsetsOperator"), None) for name in ("one", "two"))
    history = PipelineHistory(ask, TaskOutcomes(), Pipeline("d", {}, tasks), frozenset(), {})

    found = asyncio.run(history.read())
    assert found == ([], ["cannot read 2 results of tasks: Airflow's API answered with status 500"])


def test_a_result_of_another_dag_is_asked_for_once_although_it_has_an_event_too():
    broken = as_user(airflow())
    event = {"source_dag_id": "d", "source_run_id": "r", "source_task_id": "t", "source_map_index": -1}
    listed = {
        "assets": [{"id": 1, "uri": "kafka-group://kafka_default/g"}],
        "asset_events": [{**event, "timestamp": "2026-01-01T00:00:00Z", "extra": {}}],
        "task_instances": [{**ROW, "start_date": None}],
    }

    async def pages(*_, of, **__):
        return listed[of]

    ask: Any = SimpleNamespace(get=lambda *_, **__: broken.get("500"), pages=pages)
    task = NamedTask("d", "t", "ResetOffsetsOperator")
    other = DagPipelines([task], [Pipeline("d", {"group_id": "g"}, ((task, None),))])
    pipeline = Pipeline("own", {"group_id": "g"})
    history = PipelineHistory(ask, TaskOutcomes(), pipeline, frozenset({"d"}), {"d": other})

    moves, problems = asyncio.run(history.read())
    assert [move["kind"] for move in moves] == ["move"]
    assert problems == ["cannot read 1 result of tasks: Airflow's API answered with status 500"]


def test_two_users_are_two():
    app = airflow()
    other = [(b"authorization", b"Bearer bob's")]

    identities = {as_user(app).identity, as_user(app, "bob").identity, as_user(app, headers=other).identity}

    assert len(identities) == 3
    assert as_user(app).identity in identities


def test_questions_are_asked_one_at_a_time_and_leave_time_for_others():
    async def ask():
        turns, at_once, most = Turns(share=0.5, burst=0.0), 0, 0

        async def question():
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.02)
            at_once -= 1

        began = time.monotonic()
        await asyncio.gather(*(turns.take(question) for _ in range(5)))
        return most, time.monotonic() - began

    most, took = asyncio.run(ask())

    assert most == 1
    # Five questions, and four pauses as long.
    assert took >= 0.17


def test_a_call_waits_for_work_in_a_thread():
    async def ask():
        begun, ended = threading.Event(), threading.Event()

        def work():
            begun.set()
            time.sleep(0.05)
            ended.set()

        async def call():
            return ended.is_set()

        working = asyncio.ensure_future(run_in_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        found = await turns().take(call)
        await working
        return found

    assert asyncio.run(ask())


def test_of_the_iterations_of_a_loop_the_newest_is_shown():
    row = ROW | {"operator": "X", "try_number": 1, "rendered_fields": {}, "region_id": "q", "region_index": 3}
    asked = []

    class Loop:
        async def get(self, *steps, **parameters):
            asked.append((steps[-1], parameters))
            if steps[-1] == "t":
                raise AmbiguousError("Airflow's API answered with status 400")
            return

        async def pages(self, most, *steps, **parameters):
            return [row]

    left = asyncio.run(instances.find_instance(Loop(), "d", "r", "t", -1))  # type: ignore[arg-type]

    assert left is not None
    assert asked[-1] == ("return_value", {"region_id": "q", "region_index": 3})
    assert "newest iteration of a loop" in instances.read_instance(left)["problems"][0]
