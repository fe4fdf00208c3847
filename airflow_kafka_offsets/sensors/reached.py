"""How does a task wait until everything up to a certain point was read?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.parameters import check_number
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.task.wait_memory import WaitMemory
from airflow_kafka_offsets.waits.reached import ReachedWait

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.triggers.wait import OffsetsReachedTrigger
    from airflow_kafka_offsets.waits.wait import Wait


class OffsetsReachedSensor(OffsetsSensor):
    """
    Wait until a position is at or past a target that no longer moves.

    The target is worked out once, when the wait begins, so the wait ends also with a live producer. It stays
    the same over deferrals, and over reschedules and retries where Airflow keeps a task's state (3.3 and
    later); clearing the task begins a new wait.

    Returns the last reading: ``reached``, ``target``, ``current``, ``remaining`` and ``lost``.

    The log end when the wait begins is reached only if something reads up to it while this task waits. After a
    batch job, with a producer that goes on, give the time up to which the job has read.

    :param target: ``latest`` (default), the log end when the wait begins; a time, such as
        ``{{ data_interval_end }}``: each partition's first record at or after it, else its log end when the
        wait begins; offsets, ``{"topic": {"0": 42}}``; or the receipt of an operator of this package.
        (templated)
    :param tolerance: offsets that each partition may be short of the target, for the markers that end transactions. ``0``.
    """

    template_fields: Sequence[str] = (*OffsetsSensor.template_fields, "target")

    def __init__(
        self, *, target: str | datetime | Mapping[str, Any] = "latest", tolerance: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.tolerance = tolerance
        check_number(tolerance, "tolerance")

    def make_wait(self, context: Context, memory: WaitMemory) -> ReachedWait:  # noqa: ARG002
        """Return the wait for the target, which is worked out here unless it was before."""
        wait = ReachedWait(**self.wait_parameters(), tolerance=self.tolerance)
        kept = memory.target
        if kept is not None:
            return replace(wait, target=kept)
        if self.target == "latest" and self._forgets(memory):
            raise UsageError(
                "target='latest' with mode='reschedule' needs Airflow 3.3 or later, since nothing here would remember the "
                "target from one look to the next: use deferrable=True, mode='poke', or a time as the target"
            )
        with wait.open() as client:
            target = offsets_json(wait.freeze(client, self.target))
        memory.target = target
        return replace(wait, target=target)

    def make_trigger(self, wait: Wait, **pace: Any) -> OffsetsReachedTrigger:
        """Return the trigger that goes on with the wait."""
        from airflow_kafka_offsets.triggers.wait import OffsetsReachedTrigger

        return OffsetsReachedTrigger(**pace, **wait.parameters)
