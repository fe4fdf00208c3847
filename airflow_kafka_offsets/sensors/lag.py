"""A sensor for the lag of a consumer group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_kafka_offsets.model.parameters import MissingCommitPolicy
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.waits.lag import LagWait
from airflow_kafka_offsets.waits.wait import PositionSource


class ConsumerGroupLagSensor(OffsetsSensor):
    """
    Wait until the lag of a consumer group is at or below thresholds.

    The lag is live: with a producer that never stops, ``max_lag=0`` may not be true in any poll. To wait
    until all existing records are read, use
    :class:`~airflow_kafka_offsets.sensors.reached.OffsetsReachedSensor`.

    Without a group the sensor measures the lag of a Spark checkpoint's newest committed batch.

    Returns the last reading: ``total_lag``, ``max_partition_lag``, ``lost``, ``topics`` and ``partitions``
    (``groups`` for several groups), ``time_lag`` with ``max_time_lag``, and ``headroom`` with
    ``min_headroom``.

    At least one threshold is required. All given thresholds must be met.

    :param max_lag: maximum lag of all partitions together, in records. (templated)
    :param max_partition_lag: maximum lag of each partition, in records. (templated)
    :param max_time_lag: maximum age of the oldest unread record: seconds, a timedelta or text such as ``10m``
        or ``PT10M``. The age is measured from the record's timestamp. (templated)
    :param min_headroom: minimum time until retention deletes the oldest unread record: a duration as above.
        If the headroom is unknown, the wait continues and the reading gives the reason. A missing permission
        fails the task. (templated)
    :param tolerance: lag up to this number of records is treated as zero, because transaction markers count
        as lag; a greater lag counts in full. 0 by default. (templated)
    :param on_no_commit: lag of a partition without a commit: ``fail`` (default), ``earliest`` (its whole
        log), ``latest`` (zero), ``skip`` (left out; an error if no partition is left). (templated)
    :param position: which position to read: ``group`` or ``checkpoint``; by default the group's if both are
        given. (templated)
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
