"""A sensor that waits for a fixed target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from airflow.sdk import XComArg

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.task.wait_memory import WaitMemory
from airflow_kafka_offsets.waits.reached import ReachedWait
from airflow_kafka_offsets.waits.wait import PositionSource


class OffsetsReachedSensor(OffsetsSensor):
    """
    Wait until a position is at or past a fixed target.

    The target is frozen once, when the wait begins, so the wait can end even with a live producer. The target
    stays the same over deferrals, and on Airflow 3.3 and later, which keeps a task's state, also over
    reschedules and retries. Clearing the task begins a new wait.

    Returns the last reading: ``reached``, ``target``, ``current``, ``remaining`` and ``lost``.

    The target has no default. ``latest`` is reached only if a consumer reads up to the log end while this
    task waits. After a batch job has ended, a position behind ``latest`` does not move any more: use the time
    up to which the job has read, or the receipt of its commit.

    ``isolation_level`` selects the log end if the target is a log end: ``latest``, or a time after the last
    record. It has no effect if the target is offsets or a receipt.

    :param target: a time, such as ``{{ data_interval_end }}``, which must not be in the future: each
        partition's first record at or after this time, or its log end when the wait begins; offsets, as
        ``{"topic": {"0": 42}}``; the receipt of an operator of this package; or ``latest``, the log end when
        the wait begins. (templated)
    :param tolerance: number of offsets by which each partition may be behind the target, because of
        transaction markers; 0 by default. (templated)
    :param position: which position to read: ``group`` or ``checkpoint``; by default the group's if both are
        given. (templated)
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
        """Return the wait for the target; freeze the target unless an earlier call has."""
        wait = cast("ReachedWait", super().make_wait(memory))
        if isinstance(wait.target, Mapping):
            # Offsets and receipts do not move, so nothing is kept: a corrected target counts at once.
            return wait.freeze(self.open_client(), self.open_checkpoint())
        frozen_for = digest(self.asked(wait) | {"tolerance": None})
        kept = memory.target
        if kept is not None and kept.get("for") == frozen_for:
            return replace(wait, target=kept["offsets"], cluster=kept.get("cluster", ""))
        if wait.target == "latest" and self._loses_state(memory):
            raise UsageError(
                "target='latest' with mode='reschedule' needs Airflow 3.3 or later, because earlier versions "
                "do not keep the target between polls: use deferrable=True, mode='poke', or a time as the "
                "target"
            )
        frozen = wait.freeze(self.open_client(), self.open_checkpoint())
        memory.target = {"for": frozen_for, "offsets": frozen.target, "cluster": frozen.cluster}
        return frozen
