"""How does a task wait until a consumer group is near enough to the end of its topics?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, check_number, parse_seconds
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.task.given import check_duration
from airflow_kafka_offsets.task.wait_memory import WaitMemory
from airflow_kafka_offsets.waits.lag import LagWait

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger
    from airflow_kafka_offsets.waits.wait import Wait


class ConsumerGroupLagSensor(OffsetsSensor):
    """
    Wait until the lag of a consumer group is at or below thresholds.

    The lag is live: with a producer that never stops, ``max_lag=0`` may never be true at the moment of a look.
    To wait until everything that was there is read, use
    :class:`~airflow_kafka_offsets.sensors.reached.OffsetsReachedSensor`.

    Without a group the lag is that of a Spark checkpoint's newest committed batch.

    Returns the last reading: ``total_lag``, ``max_lag``, ``lost``, ``topics`` and ``partitions`` (``groups`` for
    several groups), and ``time_lag`` with ``max_time_lag``. There ``max_lag`` is that of the partition that is furthest
    behind.

    :param max_lag: records in all partitions together. ``0`` when no threshold is given.
    :param max_partition_lag: records in each partition.
    :param max_time_lag: how long ago the oldest record that was not read may have been written: seconds, a timedelta
        or ISO 8601 text such as ``PT10M``. The record's own time counts. (templated)
    :param tolerance: a partition that is at most so many records behind counts as caught up, for the markers that end
        transactions; one that is further behind counts with all its records. ``0``.
    :param on_no_commit: what a partition without a commit counts as: ``fail`` (default), ``earliest`` (its
        whole log), ``latest`` or ``zero`` (nothing), ``skip`` (it is not looked at). (templated)
    """

    template_fields: Sequence[str] = (*OffsetsSensor.template_fields, "on_no_commit", "max_time_lag")

    def __init__(
        self,
        *,
        max_lag: int | None = None,
        max_partition_lag: int | None = None,
        max_time_lag: float | timedelta | str | None = None,
        tolerance: int = 0,
        on_no_commit: MissingCommitPolicy = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_lag = max_lag
        self.max_partition_lag = max_partition_lag
        self.max_time_lag = max_time_lag
        self.tolerance = tolerance
        self.on_no_commit = on_no_commit
        for name in ("max_lag", "max_partition_lag", "tolerance"):
            check_number(getattr(self, name), name)
        check_duration(max_time_lag, "max_time_lag")

    def make_wait(self, context: Context, memory: WaitMemory) -> LagWait:  # noqa: ARG002
        """Return the wait for the thresholds."""
        max_time_lag = parse_seconds(self.max_time_lag, "max_time_lag")
        given = (self.max_lag, self.max_partition_lag, max_time_lag)
        return LagWait(
            **self.wait_parameters(),
            max_lag=0 if all(threshold is None for threshold in given) else self.max_lag,
            max_partition_lag=self.max_partition_lag,
            max_time_lag=max_time_lag,
            tolerance=self.tolerance,
            on_no_commit=self.on_no_commit,
        )

    def make_trigger(self, wait: Wait, **pace: Any) -> ConsumerGroupLagTrigger:
        """Return the trigger that goes on with the wait."""
        from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger

        return ConsumerGroupLagTrigger(**pace, **wait.parameters)
