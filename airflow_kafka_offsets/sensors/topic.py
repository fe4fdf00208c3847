"""A sensor for a topic that is complete up to a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.waits.topic import IdlePartitionPolicy, TopicWait

if TYPE_CHECKING:
    from airflow.sdk import XComArg


class TopicReachedSensor(OffsetsSensor):
    """
    Wait until topics hold a record at or after a time in every partition, so that what is older is there as
    well.

    Put it before the job that reads a window: the window is complete then, as far as a producer writes each
    partition in the order of its records' times. No group is needed; with the names of a pipeline and no
    ``topics`` the topics are those that its checkpoint or its group reads.

    Returns the last reading: ``reached``, ``target``, ``offsets`` (the first record at or after the time,
    ``null`` where there is none), ``log_end`` and ``idle``.

    :param target: the time, such as ``{{ data_interval_end }}``. (templated)
    :param on_idle_partition: ``wait`` (default) for every partition; ``ignore`` those that are idle, as long
        as another partition of the topic has reached the time. (templated)
    :param idle_after: with ``ignore``: a partition is idle when its newest record is older than this:
        seconds, a timedelta or text such as ``10m``. 10 minutes. (templated)
    """

    wait_class = TopicWait
    template_fields = tuple(TopicWait.parsers)

    def __init__(
        self,
        *,
        target: str | datetime | XComArg | None = None,
        on_idle_partition: IdlePartitionPolicy | str = "wait",
        idle_after: float | timedelta | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.on_idle_partition = on_idle_partition
        self.idle_after = idle_after
        self.check_parameters()
