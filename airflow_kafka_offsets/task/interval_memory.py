"""
Keeps, from run to run, which intervals of an asset were emitted.

Airflow only records the events of a task when the task succeeds. So a task first keeps the intervals that it
is about to emit as *announced*. The next task determines whether they were emitted: a task that was killed
has announced intervals, but emitted none.

On Airflow 3.3 and later this state is kept with the asset (``asset_state_store``), on earlier versions in a
Variable. The asset's events show whether a task has emitted. Before Airflow 3.4 they cannot be read while a
run that was started by an event is queued (apache/airflow#71360): then the task's state and result decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import Asset, Context, Variable

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.interval import Interval, IntervalSchedule
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.readings.interval_feed import KEY, CompletedIntervals, Emitted, parse_moment
from airflow_kafka_offsets.task.airflow_errors import AirflowRuntimeError
from airflow_kafka_offsets.task.identity import commit_metadata, map_index


class IntervalMemory:
    """
    Keeps what was emitted for one asset, and emits more.

    :raises PlanRefusedError: if the kept state cannot be read. The error is retriable if another task is
        about to emit, or if Airflow cannot answer whether a task has emitted.
    """

    def __init__(self, context: Context, asset: Asset) -> None:
        stores: Any = context.get("asset_state_store")
        names = ("dag_id", "run_id", "task_id")
        self.asset = asset
        self._context = context
        self._found: Any = None
        self._store: Any = _VariableStore(asset.name) if stores is None else stores[asset]
        self._task = {name: getattr(context.get("ti"), name, None) for name in names}
        self._task |= {"map_index": map_index(context)}
        # Retries share it. A Clear, another loop iteration and a run that is created again have another one.
        self._task_token = commit_metadata(context).token
        self.emitted = self._recall()
        """``None`` if nothing is kept yet."""

    def _recall(self) -> Emitted | None:
        kept = self._found = self._store.get(KEY)
        if kept is None:
            return None
        emitted, announced = self._parse(kept)
        if announced is not None:
            if self._was_emitted(announced):
                emitted = replace(emitted, end=datetime.fromisoformat(announced["end"]))
            self._set(emitted.as_json())
        return emitted

    def keep(self, emitted: Emitted) -> None:
        """Keep what was emitted, if it has changed."""
        if emitted != self.emitted:
            self._set(emitted.as_json())
            self.emitted = emitted

    def emit(self, completed: CompletedIntervals, token: str) -> None:
        """Note that this try emits the intervals, and let Airflow send their events when it succeeds."""
        announced = {
            "end": completed.end.isoformat(),
            "token": token,
            "at": datetime.now(tz=timezone.utc).isoformat(),
            **self._task,
            "task_token": self._task_token,
        }
        self._set({**self._found, "announced": announced})
        events: Any = self._context["outlet_events"][self.asset]
        # All keys share one extra: each interval follows from its key.
        extra = {
            "version": 1,
            "every": completed.feed.schedule.every,
            "timezone": completed.feed.schedule.zone,
            "start": completed.intervals[0].start.isoformat(),
            "end": completed.end.isoformat(),
            "token": token,
        }
        if hasattr(events, "add_partitions"):
            events.add_partitions([interval.key for interval in completed.intervals])
        else:
            extra["intervals"] = [interval.as_json() for interval in completed.intervals]
        events.extra = extra

    def _set(self, value: dict[str, Any]) -> None:
        self.refuse_other_task()
        self._store.set(KEY, value)
        self._found = value

    def refuse_other_task(self) -> None:
        """Refuse to continue if another task has kept a value since: Airflow has no compare-and-set."""
        if self._store.get(KEY) != self._found:
            raise PlanRefusedError(
                f"another task has emitted for the asset {self.asset.name!r} since this task began: "
                "expected one task at a time; try again when that task has ended",
                retriable=True,
            )

    def _parse(self, kept: Any) -> tuple[Emitted, Mapping[str, Any] | None]:
        try:
            emitted = Emitted.parse(kept)
            announced = kept.get("announced")
            if announced is not None:
                parse_moment(announced["end"])
                parse_moment(announced["at"])
        except (KeyError, TypeError, ValueError):
            raise PlanRefusedError(
                f"found {shorten(kept)} as {KEY!r} of the asset {self.asset.name!r}; expected a value that "
                "this operator has kept: delete the value, and set start_from to a time in the first "
                "interval to emit"
            ) from None
        return emitted, announced

    def _was_emitted(self, announced: Mapping[str, Any]) -> bool:
        ti: Any = self._context.get("ti")
        is_own = {name: announced.get(name) for name in self._task} == self._task
        state = "" if is_own else self._state(ti, announced)
        if state == "running":
            raise PlanRefusedError(
                f"{_describe_task(announced)} is emitting the intervals of the asset {self.asset.name!r}: "
                "expected one task at a time; try again when that task has ended",
                retriable=True,
            )
        # A user may also mark a task as a success that has failed after its last step: the events decide.
        try:
            return self._is_in_events(announced)
        except PlanRefusedError:
            # An earlier try of this task has not succeeded, unless it was cleared or is another iteration.
            if is_own and announced.get("task_token") == self._task_token:
                return False
            # Airflow keeps the result after a task's last step.
            if state == "success" and self._returned_end(ti, announced) == announced["end"]:
                return True
            raise

    def _state(self, ti: Any, by: Mapping[str, Any]) -> str:
        index = by.get("map_index", -1)
        parameters = {} if index < 0 else {"map_index": index}
        found = ti.get_task_states(
            dag_id=by["dag_id"], task_ids=[by["task_id"]], run_ids=[by["run_id"]], **parameters
        )
        key = by["task_id"] if index < 0 else f"{by['task_id']}_{index}"
        return str(found.get(by["run_id"], {}).get(key))

    def _returned_end(self, ti: Any, by: Mapping[str, Any]) -> object:
        index = by.get("map_index", -1)
        result = ti.xcom_pull(
            dag_id=by["dag_id"],
            run_id=by["run_id"],
            task_ids=by["task_id"],
            **({} if index < 0 else {"map_indexes": index}),
        )
        assets = result.get("assets", {}) if isinstance(result, Mapping) else {}
        return assets.get(self.asset.name, {}).get("complete_until")

    def _is_in_events(self, announced: Mapping[str, Any]) -> bool:
        # Airflow's class for declared inlets is used because the asset is only an outlet of this task.
        events: Any = type(self._context["inlet_events"])([self.asset])
        # The clocks of two machines may differ.
        since = parse_moment(announced["at"]) - timedelta(hours=1)
        try:
            of_asset = events[self.asset]
            # Airflow 3.1 returns a list of all events.
            found = list(of_asset.after(since.isoformat()) if hasattr(of_asset, "after") else of_asset)
        except (AirflowRuntimeError, ValueError) as error:
            raise PlanRefusedError(
                f"it is not known whether {_describe_task(announced)} has emitted its intervals, because "
                f"Airflow does not return the events of the asset {self.asset.name!r} ({error}): before "
                "3.4, Airflow cannot return them while a run that was started by an event is queued; try "
                "again when these runs have started",
                retriable=True,
            ) from error
        return any((event.extra or {}).get("token") == announced["token"] for event in found)


def check_emitted_interval(context: Context, key: str, interval: Interval) -> None:
    """
    Refuse to read another interval than the one that ``CompletedIntervalsOperator`` has emitted.

    The same key names an hour and a day, and other moments in another time zone. If a mapper of Airflow has
    made the run's key, the interval must be a part of the emitted ones or end with them: otherwise records of
    it may still be missing.

    :param interval: the interval that the task's own ``every`` and ``timezone`` find for the run's key.
    """
    triggering: Mapping[Any, Any] = context.get("triggering_asset_events") or {}
    for asset, events in triggering.items():
        emitted = []
        for event in events:
            with suppress(UsageError, KeyError):
                # Events of other tasks have no token.
                every, zone, _ = ((event.extra or {})[name] for name in ("every", "timezone", "token"))
                emitted.append(
                    IntervalSchedule.parse(every, zone).of_key(getattr(event, "partition_key", None))
                )
        if not emitted:
            continue
        first, last = min(each.start for each in emitted), max(each.end for each in emitted)
        fits = last == interval.end or (first <= interval.start and interval.end <= last)
        if {each.key for each in emitted} == {key}:
            fits = (first, last) == (interval.start, interval.end)
        if not fits:
            raise UsageError(
                f"this run was started for the interval from {first.isoformat()} until {last.isoformat()} of "
                f"the asset {asset.name!r}, and this task would read from {interval.start.isoformat()} until "
                f"{interval.end.isoformat()}: use the every and timezone of the task that emits the events "
                f"({every!r}, {zone!r}), or an asset of longer intervals"
            )


class _VariableStore:
    """Keeps a value in a Variable: before 3.3, Airflow keeps no state with assets."""

    def __init__(self, name: str) -> None:
        # A Variable's key has at most 250 characters.
        self._name = name if len(name) <= 200 else hashlib.sha256(name.encode()).hexdigest()

    def get(self, key: str) -> object:
        return Variable.get(f"{key}.{self._name}", default=None, deserialize_json=True)

    def set(self, key: str, value: object) -> None:
        what = "Intervals that CompletedIntervalsOperator has emitted"
        Variable.set(f"{key}.{self._name}", value, description=what, serialize_json=True)
        # Airflow raises no error if it cannot set a Variable. It only logs it.
        if self.get(key) != value:
            raise PlanRefusedError(
                f"the Variable {key}.{self._name}, which records the emitted intervals, could not be set "
                "(see the error above), or another task has set it since: try again",
                retriable=True,
            )


def _describe_task(by: Mapping[str, Any]) -> str:
    return f"task {by.get('dag_id')}.{by.get('task_id')} of run {by.get('run_id')}"
