"""A sensor for the lag of a consumer group."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.model.parameters import MissingCommitPolicy
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.waits.lag import LagWait

if TYPE_CHECKING:
    from airflow_kafka_offsets.waits.wait import PositionSource


class ConsumerGroupLagSensor(OffsetsSensor):
    """
    Wait until the lag of a consumer group is at or below thresholds.

    The lag is live: with a producer that never stops, ``max_lag=0`` may not be true in any poll.
    To wait until everything that was there is read, use
    :class:`~airflow_kafka_offsets.sensors.reached.OffsetsReachedSensor`.

    Without a group the lag is that of a Spark checkpoint's newest committed batch.

    Returns the last reading: ``total_lag``, ``max_partition_lag``, ``lost``, ``topics`` and ``partitions``
    (``groups`` for several groups), ``time_lag`` with ``max_time_lag``, and ``headroom`` with
    ``min_headroom``.

    At least one threshold is needed, and all that are given have to hold.

    :param max_lag: records in all partitions together. (templated)
    :param max_partition_lag: records in each partition. (templated)
    :param max_time_lag: how long ago the oldest record that was not read may have been written: seconds, a
        timedelta or text such as ``10m`` or ``PT10M``. The record's own time counts. (templated)
    :param min_headroom: how long retention leaves the oldest record that was not read, at least: a duration
        as above. Where that cannot be known the wait goes on, and the reading says why; a right that is
        missing fails the task. (templated)
    :param tolerance: a partition that is at most so many records behind counts as caught up, for the markers
        that end transactions; one that is further behind counts with all its records. ``0``. (templated)
    :param on_no_commit: what a partition without a commit counts as: ``fail`` (default), ``earliest`` (its
        whole log), ``latest`` (nothing), ``skip`` (left out; an error if no partition is left). (templated)
    :param position: the position that is read: ``group`` or ``checkpoint``; by default the group's where both
        are given. (templated)
    """

    wait_class = LagWait
    template_fields = tuple(LagWait.parsers)

    def __init__(
        self,
        *,
        max_lag: int | str | None = None,
        max_partition_lag: int | str | None = None,
        max_time_lag: float | timedelta | str | None = None,
        min_headroom: float | timedelta | str | None = None,
        tolerance: int | str = 0,
        on_no_commit: MissingCommitPolicy | str = "fail",
        position: PositionSource | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_lag = max_lag
        self.max_partition_lag = max_partition_lag
        self.max_time_lag = max_time_lag
        self.min_headroom = min_headroom
        self.tolerance = tolerance
        self.on_no_commit = on_no_commit
        self.position = position
        self.check_parameters()
