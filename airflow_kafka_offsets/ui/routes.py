"""The routes of the Offsets tab: what the user may read, as JSON, and the pages that show it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from datetime import datetime, timezone
from typing import Annotated, Any

from airflow.utils.session import create_session
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from starlette.datastructures import State

from airflow_kafka_offsets.model.text import is_plain
from airflow_kafka_offsets.ui import history, instances
from airflow_kafka_offsets.ui.access import ReadableDags, ReadableDagsDep, may_read_dag
from airflow_kafka_offsets.ui.discovery import Found, find_pipelines
from airflow_kafka_offsets.ui.live import FRESH, Answer, Live
from airflow_kafka_offsets.ui.pages import shell_response, static_response
from airflow_kafka_offsets.ui.pipelines import Pipeline
from airflow_kafka_offsets.ui.responses import (
    Failure,
    History,
    MoveResponse,
    Now,
    PipelineResponse,
    Pipelines,
    Task,
    TaskInstanceResponse,
)

UNMAPPED = "{MAP_INDEX}"
"""What Airflow leaves in the address of a task that is not mapped."""

_MOST_KNOWN = 1_000

user_routes = APIRouter()
dag_routes = APIRouter(dependencies=[Depends(may_read_dag)])


@user_routes.get("/", include_in_schema=False)
def all_pipelines_page(request: Request) -> Response:
    """Show all pipelines."""
    return shell_response(request)


@user_routes.get("/static/{name}", include_in_schema=False)
def static_file(request: Request, name: str) -> Response:
    """Return a file that the pages load."""
    return static_response(request, name)


@user_routes.get("/api/pipelines")
def all_pipelines(request: Request, readable: ReadableDagsDep) -> Pipelines:
    """Return the pipelines of all DAGs that the user may read."""
    with create_session(scoped=False) as session:
        found = find_pipelines(session, readable.ids())
    named = {pipeline.dag_id for pipeline in found.pipelines} | {dag_id for dag_id, _ in found.problems}
    return _overview(request, found, readable.with_xcom(named))


@dag_routes.get("/dags/{dag_id}", include_in_schema=False)
def dag_page(request: Request, dag_id: str) -> Response:  # noqa: ARG001  # the guard reads it
    """Show the pipelines of one DAG."""
    return shell_response(request)


@dag_routes.get("/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}", include_in_schema=False)
def task_instance_page(request: Request, dag_id: str, run_id: str, task_id: str, map_index: str) -> Response:  # noqa: ARG001
    """Show one task instance."""
    return shell_response(request)


@dag_routes.get("/api/dags/{dag_id}/pipelines")
def dag_pipelines(request: Request, dag_id: str) -> Pipelines:
    """Return the pipelines of one DAG; an unknown DAG has none."""
    return _overview(request, _find(dag_id), {dag_id})


@dag_routes.get("/api/dags/{dag_id}/pipelines/{key}/now")
async def now(
    request: Request,
    dag_id: str,
    key: str,
    readable: ReadableDagsDep,
    partitions: Annotated[bool, Query()] = True,
) -> Now:
    """Return where a pipeline is: what was read in the last seconds, by whomever."""
    answer = await asyncio.wrap_future(await run_sync(_asked, request.app.state, dag_id, key))
    # All viewers share what was read, and each has rights of his own.
    value = dict(answer.value or {})
    value["provenance"] = await run_sync(visible_maker, value.get("provenance"), dag_id, readable)
    if not partitions:
        value["partitions"] = None
    error = None if answer.error is None else Failure(message=answer.error, since=answer.since or _now())
    return Now(**value, read_at=answer.read_at, stale_since=answer.read_at if error else None, error=error)


@dag_routes.get("/api/dags/{dag_id}/pipelines/{key}/history")
async def pipeline_history(
    request: Request,
    dag_id: str,
    key: str,
    readable: ReadableDagsDep,
    batches: Annotated[bool, Query()] = True,
) -> History:
    """Return what is known of a pipeline's past; without ``batches`` only what Airflow's database has."""
    moves, asked = await run_sync(_past, _live(request) if batches else None, dag_id, key, readable)
    answer = Answer() if asked is None else await asyncio.wrap_future(asked)
    return History(
        batches=(answer.value or {}).get("batches", []),
        moves=moves,
        problems=[answer.error] if answer.error else [],
    )


@dag_routes.get("/api/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}")
def task_instance(dag_id: str, run_id: str, task_id: str, map_index: str) -> TaskInstanceResponse:
    """Return what one task instance did, or saw."""
    index = "-1" if map_index == UNMAPPED else map_index
    if not index.removeprefix("-").isdecimal() or len(index) > 9:
        raise HTTPException(404, "Not Found")
    with create_session(scoped=False) as session:
        found = instances.read(session, dag_id, run_id, task_id, int(index))
    if found is None:
        raise HTTPException(404, "Not Found")
    return found


def visible_maker(
    provenance: Mapping[str, Any] | None, dag_id: str, readable: history.Readable
) -> Mapping[str, Any] | None:
    """Return who made a commit, without a DAG, run, task and user that the viewer may not read."""
    maker = (provenance or {}).get("dag_id")
    if provenance is None or maker is None or maker == dag_id:
        return provenance
    # The name comes from Kafka, and may be none that a database takes.
    if is_plain(maker) and maker in readable.with_xcom({maker}):
        return provenance
    return {name: provenance.get(name) for name in ("tool", "query", "batch", "at")}


def _live(request: Request) -> Live:
    live: Live = request.app.state.live
    return live


def _find(dag_id: str) -> Found:
    with create_session(scoped=False) as session:
        return find_pipelines(session, {dag_id})


def _named(dag_id: str, key: str) -> Pipeline:
    return _with_key(_find(dag_id), key)


def _with_key(found: Found, key: str) -> Pipeline:
    pipeline = found.with_key(key)
    if pipeline is None:
        raise HTTPException(404, "Not Found")
    return pipeline


def _asked(state: State, dag_id: str, key: str) -> Future[Answer]:
    """Ask about a pipeline that was found just now: open pages do so every few seconds."""
    known: dict[str, tuple[float, Found]] = state.found
    at, found = known.get(dag_id, (0.0, Found()))
    if time.monotonic() - at > FRESH or found.with_key(key) is None:
        if len(known) > _MOST_KNOWN:
            known.clear()
        found = _find(dag_id)
        known[dag_id] = (time.monotonic(), found)
    live: Live = state.live
    return live.ask("now", _with_key(found, key))


def _past(
    live: Live | None, dag_id: str, key: str, readable: ReadableDags
) -> tuple[list[MoveResponse], Future[Answer] | None]:
    pipeline = _named(dag_id, key)
    asked = None
    if live is not None and pipeline.checkpoint and not pipeline.unresolved:
        asked = live.ask("batches", pipeline)
    with create_session(scoped=False) as session:
        return history.moves(session, pipeline, readable), asked


def _overview(request: Request, found: Found, allowed: Collection[str]) -> Pipelines:
    pipelines = [_response(found, each) for each in found.pipelines if each.dag_id in allowed]
    if pipelines:
        # The page is about to ask where they are.
        _live(request).warm()
    return Pipelines(
        pipelines=pipelines, problems=[problem for dag_id, problem in found.problems if dag_id in allowed]
    )


def _response(found: Found, pipeline: Pipeline) -> PipelineResponse:
    move = found.last_move(pipeline)
    conn_id = pipeline.names.get("checkpoint_conn_id")
    return PipelineResponse(
        dag_id=pipeline.dag_id,
        key=pipeline.key,
        groups=pipeline.group_ids,
        topics=pipeline.topics,
        checkpoint=pipeline.checkpoint,
        kafka_config_id=pipeline.kafka_config_id,
        checkpoint_conn_id=conn_id,
        tasks=[Task(task_id=task.task_id, operator=task.operator) for task, _ in pipeline.tasks],
        last_move=None if move is None else history.response(move),
        found_in=sorted(pipeline.found_in),
        unresolved=pipeline.unresolved,
    )


def _now() -> datetime:
    return datetime.now(tz=timezone.utc)
