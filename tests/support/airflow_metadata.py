"""Writes DAGs, runs and what their tasks have left into the database of this process's Airflow."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from inspect import signature
from typing import Any
from uuid import uuid4

_WRITTEN = {
    *("asset", "asset_event", "dagrun_asset_event", "xcom", "xcom_v1", "xcom_v2", "rtif_v1", "rtif_v2"),
    *("rendered_task_instance_fields", "task_instance_history", "legacy_task_data_owner"),
    *("task_instance", "dag_run", "serialized_dag", "dag_version", "dag"),
}
"""The tables of Airflow 3.1 to 3.4 that are written to."""

BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)

RENDERED = 30
"""Runs of which Airflow keeps what a task has rendered."""


class Metadata:
    """Writes DAGs, runs and what their tasks have left into Airflow's database."""

    def __init__(self) -> None:
        self._runs = 0
        self._dags: dict[str, Any] = {}

    @contextmanager
    def new_dag(self, dag_id: str) -> Iterator[Any]:
        """Add the DAG with the tasks that are made in the block."""
        from airflow.sdk import DAG

        with DAG(dag_id, start_date=datetime(2026, 1, 1), schedule=None) as dag:
            yield dag
        self.add_dag(dag)

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
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from airflow.utils.state import DagRunState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType
        from sqlalchemy import update

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
            rendered = self._rendered(dag_id) if rendered is None else rendered
            for name in {*rendered, *(results or {})}:
                if isinstance(name, tuple):
                    _map(session, dag_id, run_id, *name)
            for left, kind in ((rendered, "rendered_fields"), (results or {}, "value")):
                for name, value in left.items():
                    task_id, index = name if isinstance(name, tuple) else (name, -1)
                    its = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": index}
                    (instance,) = _instances(session, **its)
                    row = {**its, "task_instance_id": instance["id"], "dag_run_id": dag_run_id, kind: value}
                    _leave(session, [row])
        return run_id

    def add_runs(self, dag_id: str, count: int, results: dict[str, Any]) -> list[str]:
        """
        Add many runs at once, the oldest first, each with the same results of its tasks.

        Of the newest there is what these tasks have rendered.
        """
        from airflow.models.dagrun import DagRun
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.models.taskinstance import TaskInstance
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
            index = _index_column(TaskInstance.__table__)
            for run_id, number, at in zip(run_ids, numbers, times, strict=True):
                for task_id, value in results.items():
                    its: dict[str, Any] = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
                    instance_id = _new_id(TaskInstance.__table__.c.id)
                    instances.append(
                        {
                            **its, index: -1, "id": instance_id, "state": "success", "try_number": 1,
                            "pool": "default_pool", "pool_slots": 1, "dag_version_id": version,
                            "executor_config": {},
                            "operator": operators[task_id], "start_date": at, "end_date": at,
                        }
                    )  # fmt: skip
                    its |= {"map_index": -1, "task_instance_id": instance_id, "dag_run_id": number}
                    values.append({**its, "value": value, "timestamp": at})
            session.execute(insert(TaskInstance.__table__), instances)
            _leave(session, values)
            rendered = self._rendered(dag_id)
            kept = values[-RENDERED * len(results) :]
            _leave(
                session,
                [
                    {name: row[name] for name in row if name not in ("value", "timestamp")}
                    | {"rendered_fields": rendered[row["task_id"]]}
                    for row in kept
                    if row["task_id"] in rendered
                ],
            )
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
            # Since Airflow 3.4 the next try is another row.
            instance = instance.prepare_db_for_next_try(session) or instance
            instance.state = "success"
            instance.start_date = instance.end_date = datetime.now(tz=timezone.utc)
            XComModel.set(
                "return_value",
                value,
                dag_id=dag_id,
                task_id=task_id,
                run_id=run_id,
                session=session,
                # Airflow 3.1 always makes text of a value, and its API reads either.
                **({"serialize": False} if "serialize" in signature(XComModel.set).parameters else {}),
            )

    def set_state(self, state: str, run_id: str, task_id: str, index: int) -> None:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import update

        table = TaskInstance.__table__
        its = (table.c.run_id == run_id, table.c.task_id == task_id, table.c[_index_column(table)] == index)
        with create_session() as session:
            session.execute(update(table).where(*its).values(state=state))

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
        from airflow.models.base import Base
        from airflow.utils.session import create_session
        from sqlalchemy import delete

        with create_session() as session:
            for table in reversed(Base.metadata.sorted_tables):
                if table.name in _WRITTEN:
                    session.execute(delete(table))


def _new_id(column: Any) -> Any:
    """Return an id for a column of UUIDs; Airflow 3.1 keeps those of task instances as text."""
    return column.type.python_type(str(uuid4()))


def _index_column(table: Any) -> str:
    """Return what the map index is called: another name since Airflow 3.4."""
    return "map_index" if "map_index" in table.c else "region_index"


def _instances(session: Any, **values: Any) -> list[dict[str, Any]]:
    """Return the rows of task instances."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    table = TaskInstance.__table__
    index = _index_column(table)
    named = {index if name == "map_index" else name: value for name, value in values.items()}
    found = session.execute(select(table).where(*(table.c[name] == value for name, value in named.items())))
    return [dict(row) for row in found.mappings()]


def _leave(session: Any, rows: list[dict[str, Any]]) -> None:
    """Write what instances have rendered or returned, in the columns that there are."""
    from airflow.models import renderedtifields, xcom
    from sqlalchemy import insert

    if not rows:
        return
    if "value" in rows[0]:
        # Airflow 3.4 keeps values by attempt.
        table = getattr(xcom, "XComModelV2", xcom.XComModel).__table__
    else:
        table = renderedtifields.RenderedTaskInstanceFields.__table__
    made = [{"id": uuid4(), "key": "return_value", **row} for row in rows]
    session.execute(insert(table), [{name: row[name] for name in row if name in table.c} for row in made])


def _map(session: Any, dag_id: str, run_id: str, task_id: str, index: int) -> None:
    """Make one more instance of a mapped task, as the scheduler does."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import insert

    table = TaskInstance.__table__
    column = _index_column(table)
    have = _instances(session, dag_id=dag_id, run_id=run_id, task_id=task_id)
    if all(row[column] != index for row in have):
        # Before Airflow 3.2 the ids are texts.
        own_id = type(have[0]["id"])(str(uuid4()))
        session.execute(insert(table).values({**have[0], "id": own_id, column: index}))
