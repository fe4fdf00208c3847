"""Queries of Airflow's database: few statements, however many pipelines there are, and never a write."""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import Text, and_, cast, false, func, or_, select

from airflow_kafka_offsets.ui.pipelines import NamedTask, Names, named_tasks

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

RESULT = "return_value"
MOST_ROWS = 2_000
"""Rows that one statement returns at most."""

_CHUNK = 200
_KEPT = 20_000

TaskName = tuple[str, str]
"""DAG and task."""


class Kept:
    """Values that were read once and do not change, the last used ones of them."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._lock = Lock()
        self._values: OrderedDict[Any, Any] = OrderedDict()

    def known(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return the values of those keys that have one."""
        found = {}
        with self._lock:
            for key in keys:
                if key in self._values:
                    found[key] = self._values[key]
                    self._values.move_to_end(key)
        return found

    def put(self, values: Mapping[Any, Any]) -> None:
        """Keep values."""
        with self._lock:
            self._values.update(values)
            while len(self._values) > self._most:
                self._values.popitem(last=False)


_tasks_of_dags = Kept()


def all_named_tasks(session: Session, dag_ids: Collection[str]) -> list[NamedTask]:
    """Return the tasks of some DAGs that name pipelines, by the newest version of each DAG."""
    serialized = SerializedDagModel.__table__.c
    newest = func.row_number().over(partition_by=serialized.dag_id, order_by=DagVersion.version_number.desc())
    few = [serialized.dag_id.in_(list(dag_ids))] if len(dag_ids) <= _CHUNK else []
    ranked = (
        select(serialized.dag_id, serialized.id, serialized.dag_hash, newest.label("place"))
        .join(DagVersion, DagVersion.id == serialized.dag_version_id)
        .join(DagModel, DagModel.dag_id == serialized.dag_id)
        .where(DagModel.is_stale == false(), *few)
    ).subquery()
    rows = session.execute(select(ranked).where(ranked.c.place == 1)).all()
    versions = {(row.dag_id, row.id, row.dag_hash): row.id for row in rows if row.dag_id in dag_ids}
    tasks = _tasks_of_dags.known(versions)
    unknown = [key for key in versions if key not in tasks]
    for start in range(0, len(unknown), _CHUNK):
        chunk = unknown[start : start + _CHUNK]
        text = cast(serialized.data, Text)
        own = or_(serialized.data_compressed.is_not(None), text.contains("kafka_config_id", autoescape=True))
        named = {
            row.id: tuple(named_tasks(row.dag_id, _data(row.data, row.data_compressed)))
            for row in session.execute(
                select(serialized.id, serialized.dag_id, serialized.data, serialized.data_compressed).where(
                    serialized.id.in_([versions[key] for key in chunk]), own
                )
            )
        }
        found = {key: named.get(versions[key], ()) for key in chunk}
        _tasks_of_dags.put(found)
        tasks |= found
    return [task for key in versions for task in tasks[key]]


def rendered_names(
    session: Session, tasks: Collection[TaskName]
) -> list[tuple[TaskName, int, Mapping[str, Any]]]:
    """Return what the newest run of each task has rendered: task, map index and fields."""
    if not tasks:
        return []
    of = (Rendered.dag_id, Rendered.task_id, Rendered.run_id, Rendered.map_index)
    newest = func.rank().over(partition_by=(Rendered.dag_id, Rendered.task_id), order_by=DagRun.id.desc())
    # The fields of older runs are not read: Airflow may keep those of all runs.
    ranked = (
        select(*of, newest.label("place"))
        .join(DagRun, and_(DagRun.dag_id == Rendered.dag_id, DagRun.run_id == Rendered.run_id))
        .where(
            Rendered.dag_id.in_({dag_id for dag_id, _ in tasks}),
            Rendered.task_id.in_({task_id for _, task_id in tasks}),
        )
    ).subquery()
    same = and_(*(column == ranked.c[column.name] for column in of))
    wanted = select(*of, Rendered.rendered_fields).join(ranked, same).where(ranked.c.place == 1)
    rows = session.execute(wanted.order_by(*of).limit(MOST_ROWS))
    return [
        ((row.dag_id, row.task_id), row.map_index, row.rendered_fields)
        for row in rows
        if (row.dag_id, row.task_id) in tasks and isinstance(row.rendered_fields, Mapping)
    ]


def group_events(session: Session, uris: Collection[str], most: int) -> list[tuple[str, Any]]:
    """Return the newest events of groups' assets: the asset's URI and the event."""
    if not uris:
        return []
    columns = (
        AssetEvent.timestamp,
        AssetEvent.extra,
        AssetEvent.source_dag_id,
        AssetEvent.source_run_id,
        AssetEvent.source_task_id,
        AssetEvent.source_map_index,
    )
    wanted = (
        select(AssetModel.uri, *columns)
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .where(AssetModel.uri.in_(list(uris)))
        .order_by(AssetEvent.timestamp.desc())
        .limit(most)
    )
    return [(row.uri, row) for row in session.execute(wanted)]


def task_instance(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> Any:
    """
    Return operator, state, try, version of the DAG, the value in XCom and its time.

    :return: ``None`` if there is no such instance.
    """
    of = TaskInstance
    mine = (of.dag_id == dag_id, of.run_id == run_id, of.task_id == task_id, of.map_index == map_index)
    result = and_(
        XComModel.dag_id == of.dag_id,
        XComModel.run_id == of.run_id,
        XComModel.task_id == of.task_id,
        XComModel.map_index == of.map_index,
        XComModel.key == RESULT,
    )
    columns = (of.operator, of.state, of.try_number, of.dag_version_id, XComModel.value, XComModel.timestamp)
    return session.execute(select(*columns).outerjoin(XComModel, result).where(*mine)).first()


def has_run(session: Session, dag_id: str, run_id: str) -> bool:
    """Whether a run is one of a DAG."""
    mine = (DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    return session.execute(select(DagRun.id).where(*mine)).first() is not None


def rendered_of(
    session: Session, dag_id: str, run_id: str, task_id: str, map_index: int
) -> Mapping[str, Any]:
    """Return what one task instance has rendered; empty if Airflow does not keep it any more."""
    mine = (Rendered.dag_id == dag_id, Rendered.run_id == run_id)
    its = (Rendered.task_id == task_id, Rendered.map_index == map_index)
    found = session.execute(select(Rendered.rendered_fields).where(*mine, *its)).scalar()
    return found if isinstance(found, Mapping) else {}


def names_in_version(session: Session, version_id: Any, dag_id: str, task_id: str, map_index: int) -> Names:
    """Return what a version of a DAG says that one task instance names; empty if it does not say."""
    of = SerializedDagModel.__table__.c
    wanted = select(of.data, of.data_compressed).where(of.dag_version_id == version_id, of.dag_id == dag_id)
    for row in session.execute(wanted):
        for task in named_tasks(dag_id, _data(row.data, row.data_compressed)):
            if task.task_id == task_id:
                return task.names_of(map_index)
    return {}


def _data(data: Any, compressed: bytes | None) -> Mapping[str, Any]:
    if data is None and compressed:
        data = zlib.decompress(compressed)
    data = json.loads(data) if isinstance(data, str | bytes) else data
    return data if isinstance(data, Mapping) else {}
