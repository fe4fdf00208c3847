"""The routes of the Offsets tab: what the user may read, as JSON, and the pages that show it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from datetime import datetime, timezone
from typing import Annotated, Any

from airflow.utils.session import create_session
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from pydantic import BaseModel

from airflow_kafka_offsets.model.text import is_plain
from airflow_kafka_offsets.ui import history, instance_now, instances
from airflow_kafka_offsets.ui.access import ReadableDags, ReadableDagsDep, may_read_dag
from airflow_kafka_offsets.ui.discovery import Found, find_pipelines
from airflow_kafka_offsets.ui.fresh import Fresh
from airflow_kafka_offsets.ui.live import Answer, Live
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
    TaskInstanceNow,
    TaskInstanceResponse,
)
from airflow_kafka_offsets.ui.store import has_run

UNMAPPED = "{MAP_INDEX}"
"""What Airflow leaves in the address of a task that is not mapped."""

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


@user_routes.get("/api/pipelines", response_model=Pipelines)
def all_pipelines(request: Request, readable: ReadableDagsDep) -> Response:
    """Return the pipelines of all DAGs that the user may read."""
    found = _found(request).get(frozenset(readable.ids()))
    named = {pipeline.dag_id for pipeline in found.pipelines} | {dag_id for dag_id, _ in found.problems}
    return as_json(_overview(request, found, readable.with_xcom(named)))


@dag_routes.get("/dags/{dag_id}", include_in_schema=False)
def dag_page(request: Request, dag_id: str) -> Response:  # noqa: ARG001  # the guard reads it
    """Show the pipelines of one DAG."""
    return shell_response(request)


@dag_routes.get("/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}", include_in_schema=False)
def task_instance_page(request: Request, dag_id: str, run_id: str, task_id: str, map_index: str) -> Response:  # noqa: ARG001
    """Show one task instance."""
    return shell_response(request)


@dag_routes.get("/api/dags/{dag_id}/pipelines", response_model=Pipelines)
def dag_pipelines(request: Request, dag_id: str) -> Response:
    """Return the pipelines of one DAG; an unknown DAG has none."""
    return as_json(_overview(request, _found(request).get(frozenset([dag_id])), {dag_id}))


# What waits for Kafka takes no thread meanwhile: a hundred pages must not keep the API server's threads busy.
# What reads the database or handles a large answer does it in a thread, and not in the server's loop.
@dag_routes.get("/api/dags/{dag_id}/pipelines/{key}/now", response_model=Now)
async def now(
    request: Request,
    dag_id: str,
    key: str,
    readable: ReadableDagsDep,
    partitions: Annotated[bool, Query()] = True,
) -> Response:
    """Return where a pipeline is: what was read in the last seconds, by whomever."""
    answer = await asyncio.wrap_future(await run_sync(_asked, request, dag_id, key))
    return await run_sync(_now, answer, dag_id, readable, partitions)


@dag_routes.get("/api/dags/{dag_id}/pipelines/{key}/history", response_model=History)
async def pipeline_history(
    request: Request,
    dag_id: str,
    key: str,
    readable: ReadableDagsDep,
    batches: Annotated[bool, Query()] = True,
) -> Response:
    """Return what is known of a pipeline's past; without ``batches`` only what Airflow's database has."""
    moves, problems, asked = await run_sync(_past, request, dag_id, key, readable, batches)
    answer = Answer() if asked is None else await asyncio.wrap_future(asked)
    return await run_sync(_history, moves, problems, answer)


@dag_routes.get(
    "/api/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}", response_model=TaskInstanceResponse
)
def task_instance(dag_id: str, run_id: str, task_id: str, map_index: str) -> Response:
    """Return what one task instance did, or saw."""
    with create_session(scoped=False) as session:
        found = instances.read(session, dag_id, run_id, task_id, _index(map_index))
    if found is None:
        raise HTTPException(404, "Not Found")
    return as_json(found)


@dag_routes.get(
    "/api/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}/now", response_model=TaskInstanceNow
)
async def task_instance_now(
    request: Request, dag_id: str, run_id: str, task_id: str, map_index: str
) -> Response:
    """Return what Kafka says about one task instance: times of its receipt's records, or its progress."""
    asked = await run_sync(_asked_of_instance, _live(request), dag_id, run_id, task_id, _index(map_index))
    answer = Answer() if asked.answer is None else await asyncio.wrap_future(asked.answer)
    return await run_sync(lambda: as_json(instance_now.response(asked, answer)))


def as_json(found: BaseModel) -> Response:
    """Return a response that FastAPI does not write once more, in the server's loop."""
    return Response(found.model_dump_json(), media_type="application/json")


def visible_maker(
    provenance: Mapping[str, Any] | None, dag_id: str, readable: history.Readable
) -> Mapping[str, Any] | None:
    """Return who made a commit, without a DAG, run, task and user that the viewer may not read."""
    if provenance is None:
        return None
    maker, run_id = provenance.get("dag_id"), provenance.get("run_id")
    if maker == dag_id or (maker is None and run_id is None):
        return provenance
    # The names come from Kafka, and may be none that a database takes.
    if maker is not None and is_plain(maker) and maker in readable.with_xcom({maker}):
        return provenance
    if maker is None and run_id is not None and is_plain(run_id):
        # A commit of many partitions leaves out its DAG.
        with create_session(scoped=False) as session:
            if has_run(session, dag_id, run_id):
                return provenance
    return {name: provenance[name] for name in ("kind", "tool", "query", "batch", "at") if name in provenance}


def _live(request: Request) -> Live:
    live: Live = request.app.state.live
    return live


def find(dag_ids: frozenset[str]) -> Found:
    """Find the pipelines of some DAGs."""
    with create_session(scoped=False) as session:
        return find_pipelines(session, dag_ids)


def _found(request: Request) -> Fresh[frozenset[str], Found]:
    found: Fresh[frozenset[str], Found] = request.app.state.found
    return found


def _named(request: Request, dag_id: str, key: str) -> Pipeline:
    """Return a pipeline that was found just now: open pages ask about it every few seconds."""
    of_dag = frozenset([dag_id])
    pipeline = _found(request).get(of_dag).with_key(key) or find(of_dag).with_key(key)
    if pipeline is None:
        raise HTTPException(404, "Not Found")
    return pipeline


def _index(map_index: str) -> int:
    index = "-1" if map_index == UNMAPPED else map_index
    if not index.removeprefix("-").isdecimal() or len(index) > 9:
        raise HTTPException(404, "Not Found")
    return int(index)


def _asked(request: Request, dag_id: str, key: str) -> Future[Answer]:
    return _live(request).ask("now", _named(request, dag_id, key))


def _now(answer: Answer, dag_id: str, readable: ReadableDags, partitions: bool) -> Response:
    value = answer.value or {}
    # All viewers share what was read, and each has rights of his own.
    value["provenance"] = visible_maker(value.get("provenance"), dag_id, readable)
    value["commits"] = [visible_maker(made, dag_id, readable) for made in value.get("commits", ())]
    if not partitions:
        value["partitions"] = None
    error = None
    if answer.error is not None:
        error = Failure(message=answer.error, since=answer.since or datetime.now(tz=timezone.utc))
    stale_since = answer.read_at if error else None
    return as_json(Now(**value, read_at=answer.read_at, stale_since=stale_since, error=error))


def _past(
    request: Request, dag_id: str, key: str, readable: ReadableDags, batches: bool
) -> tuple[list[MoveResponse], list[str], Future[Answer] | None]:
    pipeline = _named(request, dag_id, key)
    asked = None
    if batches and pipeline.checkpoint and not pipeline.unresolved:
        asked = _live(request).ask("batches", pipeline)
    with create_session(scoped=False) as session:
        return *history.moves(session, pipeline, readable), asked


def _history(moves: list[MoveResponse], problems: list[str], answer: Answer) -> Response:
    found = answer.value or {}
    # Of the checkpoint: those that no task made are in no receipt.
    moves = [*moves, *map(MoveResponse.model_validate, found.get("moves", ()))]
    problems = [*problems, *([answer.error] if answer.error else [])]
    return as_json(
        History(
            batches=found.get("batches", []),
            moves=sorted(moves, key=lambda move: move.at),
            problems=problems,
            batches_known=answer.error is None,
        )
    )


def _asked_of_instance(
    live: Live, dag_id: str, run_id: str, task_id: str, map_index: int
) -> instance_now.Asked:
    with create_session(scoped=False) as session:
        asked = instance_now.ask(session, live, dag_id, run_id, task_id, map_index)
    if asked is None:
        raise HTTPException(404, "Not Found")
    return asked


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
