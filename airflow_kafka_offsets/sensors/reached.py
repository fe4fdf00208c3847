"""A sensor for a target that no longer moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.task.wait_memory import WaitMemory
from airflow_kafka_offsets.waits.reached import ReachedWait

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from airflow_kafka_offsets.waits.wait import PositionSource


class OffsetsReachedSensor(OffsetsSensor):
    """
    Wait until a position is at or past a target that no longer moves.

    The target is frozen once, when the wait begins, so the wait ends also with a live producer. It stays
    the same over deferrals, and over reschedules and retries where Airflow keeps a task's state (3.3 and
    later); clearing the task begins a new wait.

    Returns the last reading: ``reached``, ``target``, ``current``, ``remaining`` and ``lost``.

    The target has no default: ``latest`` is reached only if something reads up to the log end while this task
    waits. After a batch job that has ended, with a producer that goes on, it never is: give the time up to
    which the job has read, or the receipt of its commit.

    ``isolation_level`` decides which log end the target is, where it is one: ``latest``, or a time after the
    last record. With offsets or a receipt as the target it has no effect.

    :param target: a time, such as ``{{ data_interval_end }}``: each partition's first record at or after it,
        else its log end when the wait begins, and never a time in the future; offsets,
        ``{"topic": {"0": 42}}``; the receipt of an operator of this package; or ``latest``, the log end when
        the wait begins. (templated)
    :param tolerance: offsets that each partition may be short of the target, for the markers that end
        transactions. ``0``. (templated)
    :param position: the position that is read: ``group`` or ``checkpoint``; by default the group's where both
        are given. (templated)
    """

    wait_class = ReachedWait
    template_fields = tuple(ReachedWait.parsers)

    def __init__(
        self,
        *,
        target: str | datetime | Mapping[str, Any] | XComArg | None = None,
        tolerance: int | str = 0,
        position: PositionSource | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.tolerance = tolerance
        self.position = position
        self.check_parameters()

    def make_wait(self, memory: WaitMemory) -> ReachedWait:
        """Return the wait for the target, which is frozen here unless it was before."""
        wait = cast("ReachedWait", super().make_wait(memory))
        if memory.target is not None:
            return replace(wait, target=memory.target)
        if wait.target == "latest" and self._forgets(memory):
            raise UsageError(
                "target='latest' with mode='reschedule' needs Airflow 3.3 or later, since nothing here would "
                "remember the target from one poll to the next: use deferrable=True, mode='poke', or a time "
                "as the target"
            )
        checkpoint = self.open_checkpoint()
        frozen = wait.freeze(self.open_client(), checkpoint)
        memory.target = cast("Mapping[str, Any]", frozen.target)
        return frozen
