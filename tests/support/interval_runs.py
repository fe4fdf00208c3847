"""
Runs of CompletedIntervalsOperator without a scheduler: what Airflow keeps, and what it records when a task
ends.

Events are recorded together with a task's success, and with nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from airflow.sdk import Asset
from waiting import as_kept

from airflow_kafka_offsets.operators.completed_intervals import CompletedIntervalsOperator


class KilledError(BaseException):
    """The process of a task has ended."""


class Event:
    """As much of an asset event as a task sees."""

    def __init__(self, extra: Mapping[str, Any], key: str | None, at: datetime) -> None:
        self.extra, self.partition_key, self.timestamp = dict(extra), key, at


class Accessor:
    """What a task notes for an asset; Airflow 3.1 and 3.2 know no partitions at run time."""

    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}
        self.keys: list[str] = []


class PartitionedAccessor(Accessor):
    def add_partitions(self, keys: Sequence[str]) -> None:
        assert all(0 < len(key) <= 250 for key in keys)
        self.keys += keys


class InletEvents:
    """The events of assets, which cannot be read while ``unreadable`` says why."""

    recorded: Mapping[str, Sequence[Event]] = {}
    unreadable: Exception | None = None

    def __init__(self, inlets: Sequence[Asset]) -> None:
        self._names = [asset.name for asset in inlets]
        self._after = datetime.min.replace(tzinfo=timezone.utc)

    def __getitem__(self, asset: Asset) -> InletEvents:
        assert self._names == [asset.name]
        return self

    def after(self, moment: str) -> InletEvents:
        self._after = datetime.fromisoformat(moment)
        return self

    def __iter__(self) -> Iterator[Event]:
        if self.unreadable is not None:
            raise self.unreadable
        (name,) = self._names
        return iter([event for event in self.recorded.get(name, ()) if event.timestamp >= self._after])


@dataclass
class FakeAirflow:
    """
    What Airflow keeps over the runs of tasks.

    :param partitions: whether tasks can name partitions (3.3).
    """

    partitions: bool = True
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    states: dict[tuple[str, str, str], str] = field(default_factory=dict)
    xcoms: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    unreadable: Exception | None = None
    steps: int = 0
    kill_at: int | None = None

    def step(self) -> None:
        """Count what a task does outside itself; it is killed at the step that was asked for."""
        self.steps += 1
        if self.steps == self.kill_at:
            raise KilledError

    def keys(self, asset: str = "hours") -> list[str]:
        """Return the keys of an asset's events, in the order in which they were recorded."""
        return [event.partition_key or "" for event in self.events.get(asset, ())]

    def run(
        self,
        operator: CompletedIntervalsOperator,
        run_id: str,
        *,
        kill_at: int | None = None,
        max_tries: int = 0,
        ends: str = "success",
        loop: int | None = None,
    ) -> Any:
        """
        Execute a task; return its result, ``None`` if it was killed.

        :param kill_at: the step at which the process ends.
        :param max_tries: a Clear raises it.
        :param ends: its state if nothing fails.
        :param loop: the iteration of a task loop.
        """
        ti = self.task_instance(operator.task_id, run_id, max_tries)
        self.steps, self.kill_at = 0, kill_at
        self.states[ti.key] = "running"
        self.xcoms.pop(ti.key, None)
        accessor = PartitionedAccessor if self.partitions else Accessor
        outlet_events = _ByAsset(lambda _: accessor())
        inlets = type("Inlets", (InletEvents,), {"recorded": self.events, "unreadable": self.unreadable})
        context: dict[str, Any] = {"ti": ti, "outlet_events": outlet_events, "inlet_events": inlets([])}
        if loop is not None:
            context["loop"] = SimpleNamespace(index=loop)
        if self.partitions:
            declared = [asset.name for asset in operator._group_outlets.declared or operator.outlets]
            context["asset_state_store"] = _ByAsset(
                lambda name: _Kept(self, name) if name in declared else None
            )
        try:
            result = operator.execute(context)  # type: ignore[arg-type]
            self.step()
            self.xcoms[ti.key] = json.loads(json.dumps(result))
            self.step()
        except KilledError:
            self.states[ti.key] = "failed"
            return None
        except BaseException:
            self.states[ti.key] = "failed"
            raise
        finally:
            self.kill_at = None
        self.states[ti.key] = ends
        if ends == "success":
            self._record(operator, outlet_events)
        return result

    def _record(self, operator: CompletedIntervalsOperator, outlet_events: _ByAsset) -> None:
        now = datetime.now(tz=timezone.utc)
        for asset in operator.outlets:
            noted = outlet_events[asset]
            # Airflow keeps the keys in a set.
            keys: list[str | None] = [*sorted(noted.keys)] or [None]
            extra = json.loads(json.dumps(noted.extra))
            self.events.setdefault(asset.name, []).extend(Event(extra, key, now) for key in keys)

    def task_instance(self, task_id: str, run_id: str, max_tries: int = 0) -> Any:
        return _TaskInstance(self, task_id, run_id, max_tries)


class _ByAsset:
    """Something for each asset, by its name: Airflow 3.1 has no hash for an asset with an extra."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make
        self._made: dict[str, Any] = {}

    def __getitem__(self, asset: Asset) -> Any:
        if asset.name not in self._made:
            self._made[asset.name] = self._make(asset.name)
        return self._made[asset.name]


class _Kept:
    def __init__(self, airflow: FakeAirflow, name: str) -> None:
        self._airflow, self._name = airflow, name

    def get(self, key: str) -> Any:
        self._airflow.step()
        return self._airflow.kept.get(self._name, {}).get(key)

    def set(self, key: str, value: Any) -> None:
        self._airflow.step()
        self._airflow.kept.setdefault(self._name, {})[key] = as_kept(value)
        self._airflow.step()


class _TaskInstance:
    map_index, try_number, dag_id = -1, 1, "stream"

    def __init__(self, airflow: FakeAirflow, task_id: str, run_id: str, max_tries: int) -> None:
        self._airflow, self.task_id, self.run_id, self.max_tries = airflow, task_id, run_id, max_tries

    @property
    def key(self) -> tuple[str, str, str]:
        return self.dag_id, self.run_id, self.task_id

    def get_task_states(
        self, dag_id: str, task_ids: Sequence[str], run_ids: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        (task,), (run,) = task_ids, run_ids
        state = self._airflow.states.get((dag_id, run, task))
        return {} if state is None else {run: {task: state}}

    def xcom_pull(self, dag_id: str, run_id: str, task_ids: str) -> Any:
        return self._airflow.xcoms.get((dag_id, run_id, task_ids))
