"""How does a task wait until everything up to a certain point was read?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.hooks.waits import ReachedWait, Wait
from airflow_kafka_offsets.model.offsets import offsets_json
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.triggers.wait import OffsetsReachedTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class OffsetsReachedSensor(OffsetsSensor):
    """
    Wait until a position is at or past a target that no longer moves.

    The target is worked out once, when the wait begins, so the wait ends also with a live producer. It stays
    the same over deferrals, and over reschedules and retries where Airflow keeps a task's state (3.3 and
    later); clearing the task begins a new wait.

    Returns the last reading: ``reached``, ``target``, ``current`` and ``remaining``.

    The log end when the wait begins is reached only if something reads up to it while this task waits. After a
    batch job, with a producer that goes on, give the time up to which the job has read.

    :param target: ``latest`` (default), the log end when the wait begins; a time, such as
        ``{{ data_interval_end }}``: each partition's first record at or after it, else its log end when the
        wait begins; offsets, ``{"topic": {"0": 42}}``; or the receipt of an operator of this package.
        (templated)
    """

    template_fields: Sequence[str] = (*OffsetsSensor.template_fields, "target")

    def __init__(self, *, target: str | datetime | Mapping[str, Any] = "latest", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target

    def make_wait(self, context: Context) -> ReachedWait:
        """Return the wait for the target, which is worked out here unless it was before."""
        parameters = self.wait_parameters()
        store, key = context.get("task_state_store"), _state_key(context)
        kept = store.get(key) if store is not None else None
        if isinstance(kept, Mapping):
            return ReachedWait(**parameters, target=kept)
        if store is None and self.reschedule and not self.deferrable and self.target == "latest":
            raise UsageError(
                "target='latest' with mode='reschedule' needs Airflow 3.3 or later, since nothing here would remember the "
                "target from one look to the next: use deferrable=True, mode='poke', or a time as the target"
            )
        wait = ReachedWait(**parameters)
        with wait.open() as client:
            target = offsets_json(wait.freeze(client, self.target))
        if store is not None:
            store.set(key, cast("Any", target))
        return replace(wait, target=target)

    def wait_is_over(self, context: Context) -> None:
        """Forget the target: a later run of the task waits for a new one."""
        store, key = context.get("task_state_store"), _state_key(context)
        if store is not None and store.get(key) is not None:
            store.delete(key)

    def make_trigger(self, wait: Wait) -> OffsetsReachedTrigger:
        """Return the trigger that goes on with the wait."""
        return OffsetsReachedTrigger(poll_interval=self.poke_interval, **wait.parameters)


def _state_key(context: Context) -> str:
    """Return the key of the frozen target: a Clear begins a new wait, a retry or reschedule does not."""
    dag_run = context.get("dag_run")
    return f"kafka_offsets.target.{getattr(dag_run, 'clear_number', 0) or 0}"
