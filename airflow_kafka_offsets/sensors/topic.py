"""A sensor that waits until topics are complete up to a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import XComArg

from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.waits.topic import IdlePartitionPolicy, TopicWait


class TopicReachedSensor(OffsetsSensor):
    """
    Wait until every partition of topics has a record at or after a time, so that all older records are there.

    Use this sensor before a job that reads a window. The window is then complete, provided that producers
    write each partition in the order of record timestamps. No group is needed. With the names of a pipeline
    and no ``topics``, the topics are those that its checkpoint or its group reads.

    Returns the last reading: ``reached``, ``target``, ``offsets`` (the first record at or after the time, or
    ``null``), ``log_end`` and ``idle``.

    :param target: the time, such as ``{{ data_interval_end }}``. (templated)
    :param on_idle_partition: ``wait`` (default) waits for every partition; ``ignore`` ignores idle partitions
        if another partition of the topic has reached the time. (templated)
    :param idle_after: with ``ignore``: age of a partition's newest record after which the partition is idle:
        seconds, a timedelta or text such as ``10m``; 10 minutes by default. (templated)
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
