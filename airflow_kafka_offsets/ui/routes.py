"""The routes of the Offsets tab: JSON data that the user may read, and the pages that show it."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from datetime import datetime, timezone
from operator import itemgetter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from pydantic_core import to_json

from airflow_kafka_offsets.model.text import is_plain
from airflow_kafka_offsets.ui import history, instances
from airflow_kafka_offsets.ui.access import AsUserDep, ReadableDags, ReadableDagsDep, may_read_dag
from airflow_kafka_offsets.ui.airflow_api import AsUser, RefusedError, run_in_thread
from airflow_kafka_offsets.ui.dags import FRESH, LISTED, Dags
from airflow_kafka_offsets.ui.discovery import DagPipelines
from airflow_kafka_offsets.ui.live_client import Answer, LiveClient
from airflow_kafka_offsets.ui.pages import page, static_file
from airflow_kafka_offsets.ui.pipelines import Pipeline
from airflow_kafka_offsets.ui.single_flight_cache import SingleFlightCache

_UNMAPPED = "{MAP_INDEX}"
"""Placeholder that Airflow leaves in the address of a task that is not mapped."""

_NAMED = 180.0
"""Seconds for which a pipeline's names, and the other DAGs that name it, are cached."""

user_routes = APIRouter()
dag_routes = APIRouter(dependencies=[Depends(may_read_dag)])


async def find_pipeline(request: Request, dag_id: str, key: str, ask: AsUserDep) -> Pipeline:
    """Return a pipeline from the cache, because open pages request it every few seconds."""
    # If the pipeline is not in the cache, a task may have named it since: read the DAG again.
    for seconds in (_NAMED, FRESH):
        for pipeline in (await _dags(request).get_one(ask, dag_id, seconds)).pipelines:
            if pipeline.key == key:
                return pipeline
    raise HTTPException(404, "Not Found")


async def find_instance(
    dag_id: str, run_id: str, task_id: str, map_index: str, ask: AsUserDep
) -> instances.InstanceResult:
    """Return a task instance and its result."""
    index = "-1" if map_index == _UNMAPPED else map_index
    instance = None
    if index.removeprefix("-").isdecimal() and len(index) <= 9:
        instance = await instances.find_instance(ask, dag_id, run_id, task_id, int(index))
    if instance is None:
        raise HTTPException(404, "Not Found")
    return instance


PipelineDep = Annotated[Pipeline, Depends(find_pipeline)]
InstanceDep = Annotated[instances.InstanceResult, Depends(find_instance)]


user_routes.get("/")(page)
user_routes.get("/static/{name}")(static_file)
dag_routes.get("/dags/{dag_id}")(page)
dag_routes.get("/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}")(page)


@user_routes.get("/api/pipelines")
async def all_pipelines(readable: ReadableDagsDep) -> Response:
    """Return the pipelines of all DAGs that the user may read."""
    return json_response(_overview(*await _all_pipelines(readable)))


@dag_routes.get("/api/dags/{dag_id}/pipelines")
async def dag_pipelines(request: Request, dag_id: str, ask: AsUserDep) -> Response:
    """Return the pipelines of one DAG; an unknown DAG has none."""
    found = await _dags(request).get_one(ask, dag_id)
    return json_response(_overview({dag_id: found}, []))


# No route waits in one of the API server's threads, which a hundred open pages would keep busy. Large answers
# are processed in the tab's own thread, not in the server's event loop.
@dag_routes.get("/api/dags/{dag_id}/pipelines/{key}/now")
async def now(
    request: Request, pipeline: PipelineDep, readable: ReadableDagsDep, partitions: bool = True
) -> Response:
    """Return the current position of a pipeline, which was read for any viewer in the last seconds."""
    answer = await _live(request).ask("now", pipeline.names)
    value = await run_in_thread(lambda: answer.value or {})
    # All viewers share the reading, but each viewer has different permissions.
    makers = value.get("commits", ())
    value["commits"] = [await visible_maker(made, pipeline.dag_id, readable) for made in makers]
    return await run_in_thread(_now, answer, value, partitions)


@dag_routes.get("/api/dags/{dag_id}/pipelines/{key}/history")
async def pipeline_history(request: Request, pipeline: PipelineDep, readable: ReadableDagsDep) -> Response:
    """Return a pipeline's past batches and moves."""
    ids, (dags, unread) = await readable.ids(), await _all_pipelines(readable, _NAMED)
    elsewhere = {other: found for other, found in dags.items() if other != pipeline.dag_id}
    histories: SingleFlightCache[tuple[Any, ...], bytes] = request.app.state.histories

    async def read() -> bytes:
        asked = None
        if pipeline.checkpoint and not pipeline.unresolved_parameters:
            asked = asyncio.ensure_future(_live(request).ask("batches", pipeline.names))
        past = history.PipelineHistory(readable.ask, _dags(request).outcomes, pipeline, ids, elsewhere)
        moves, problems = await past.read()
        answer = Answer() if asked is None else await asked
        return await run_in_thread(lambda: gzip_json(_history(moves, [*problems, *unread], answer)))

    # Made once for all users who may read the same DAGs and assets, because these users see the same moves.
    assets = await readable.may_read_assets()
    viewed = (pipeline.dag_id, pipeline.key, ids, frozenset(elsewhere), assets)
    return packed_response(request, await histories.get(viewed, read))


@dag_routes.get("/api/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}")
async def task_instance(request: Request, instance: InstanceDep) -> Response:
    """Return the result of one task instance."""
    return packed_response(request, await run_in_thread(lambda: gzip_json(instances.read_instance(instance))))


@dag_routes.get("/api/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}/now")
async def task_instance_now(request: Request, instance: InstanceDep) -> Response:
    """Return data from Kafka for one task instance: times of its receipt's records, or its progress."""
    question = await run_in_thread(instances.instance_question, instance)
    answer = Answer() if question is None else await _live(request).ask(**question)
    return await run_in_thread(_instance_now, instance.row["state"], answer)


def json_response(found: Mapping[str, Any]) -> Response:
    """Return a response that FastAPI does not serialize again in the server's event loop."""
    return Response(_to_json(found), media_type="application/json")


def gzip_json(found: Mapping[str, Any]) -> bytes:
    """Return compressed JSON; Airflow would compress it in the server's event loop, for each viewer."""
    # The level of Airflow's own middleware.
    return gzip.compress(_to_json(found), 5)


def _to_json(found: Mapping[str, Any]) -> bytes:
    # Times in UTC; a number that JSON does not have becomes null.
    return to_json(found, inf_nan_mode="null")


def packed_response(request: Request, body: bytes) -> Response:
    """Return a response with compressed JSON, decompressed for a client that does not accept gzip."""
    # Airflow's middleware does not change a response that has an encoding.
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        body, headers = gzip.decompress(body), {"Vary": "Accept-Encoding"}
    return Response(body, headers=headers, media_type="application/json")


async def visible_maker(made_by: Mapping[str, Any], dag_id: str, readable: ReadableDags) -> Mapping[str, Any]:
    """Return the maker of a commit, without a DAG, run, task and user that the viewer may not read."""
    maker, run_id = made_by["dag_id"], made_by["run_id"]
    if maker == dag_id or (maker is None and run_id is None):
        return made_by
    # The names come from Kafka, and may contain characters that a database refuses.
    if maker is not None and is_plain(maker) and await readable.filter_readable([maker]):
        return made_by
    if maker is None and run_id != "~" and await _has_run(readable.ask, dag_id, run_id):
        # The metadata of a commit of many partitions has no DAG.
        return made_by
    return dict.fromkeys(made_by) | {name: made_by[name] for name in ("kind", "tool", "at")}


async def _has_run(ask: AsUser, dag_id: str, run_id: str) -> bool:
    try:
        return await ask.get("dags", dag_id, "dagRuns", run_id) is not None
    except RefusedError:
        return False


def _live(request: Request) -> LiveClient:
    live: LiveClient = request.app.state.live
    return live


def _dags(request: Request) -> Dags:
    dags: Dags = request.app.state.dags
    return dags


async def _all_pipelines(
    readable: ReadableDags, seconds: float = LISTED
) -> tuple[dict[str, DagPipelines], list[str]]:
    dags = _dags(readable.request)
    dag_ids = await readable.filter_readable(dags.candidates(await readable.ids()))
    return await dags.get_all(readable.ask, dag_ids, seconds)


def _now(answer: Answer, value: Mapping[str, Any], partitions: bool) -> Response:
    error = None
    if answer.error is not None:
        error = {"message": answer.error, "since": answer.since or datetime.now(tz=timezone.utc)}
    found = {**value, "read_at": answer.read_at, "error": error}
    return json_response(found if partitions else {**found, "partitions": None})


def _instance_now(state: str | None, answer: Answer) -> Response:
    # After an error there are no earlier values.
    known = {"problems": []} | (answer.value or {}) if answer.error is None else {"problems": [answer.error]}
    found = {**dict.fromkeys(("times", "since", "wait")), **known}
    return json_response({**found, "state": state, "read_at": answer.read_at})


def _history(moves: list[dict[str, Any]], problems: list[str], answer: Answer) -> dict[str, Any]:
    found = answer.value or {}
    # Moves in the checkpoint's archives that were not made by a task, so they have no receipt in XCom.
    archived = [
        {**history.EMPTY_MOVE, **move, "at": datetime.fromtimestamp(move["at"], tz=timezone.utc)}
        for move in found.get("moves", ())
    ]
    return {
        "batches": found.get("batches", []),
        "moves": sorted([*moves, *archived], key=itemgetter("at")),
        "problems": [*problems, *([answer.error] if answer.error else [])],
        "batches_known": answer.error is None,
    }


def _overview(dags: Mapping[str, DagPipelines], problems: list[str]) -> dict[str, Any]:
    founds = [dags[dag_id] for dag_id in sorted(dags)]
    return {
        "pipelines": [each.as_json() for found in founds for each in found.pipelines],
        "problems": [*(problem for found in founds for problem in found.problems), *problems],
    }
