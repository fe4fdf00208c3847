"""How does a task wait until a topic is complete up to a time?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.parameters import iso_time, parse_seconds, parse_time, timestamp_ms
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.task.given import check_duration
from airflow_kafka_offsets.task.wait_memory import WaitMemory
from airflow_kafka_offsets.waits.topic import IDLE_AFTER, IdlePartitionPolicy, TopicWait

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.triggers.wait import TopicReachedTrigger
    from airflow_kafka_offsets.waits.wait import Wait


class TopicReachedSensor(OffsetsSensor):
    """
    Wait until topics hold a record at or after a time in every partition, so that what is older is there as well.

    Put it before the job that reads a window: the window is complete then, as far as a producer writes each
    partition in the order of its records' times. No group is needed; with the names of a pipeline and no ``topics``
    the topics are those that its checkpoint or its group reads.

    Returns the last reading: ``reached``, ``target``, ``offsets`` (the first record at or after the time, ``null`` where
    there is none), ``log_end`` and ``idle``.

    :param target: the time, such as ``{{ data_interval_end }}``. (templated)
    :param on_idle_partition: ``wait`` (default) for every partition; ``ignore`` those that are idle, as long as
        another partition of the topic has reached the time. (templated)
    :param idle_after: a partition is idle when its newest record is older than this: seconds, a timedelta or ISO 8601
        text. 10 minutes. (templated)
    """

    template_fields: Sequence[str] = (
        *OffsetsSensor.template_fields,
        "target",
        "on_idle_partition",
        "idle_after",
    )
    needs_position: ClassVar[bool] = False

    def __init__(
        self,
        *,
        target: str | datetime,
        on_idle_partition: IdlePartitionPolicy = "wait",
        idle_after: float | timedelta | str = IDLE_AFTER,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.on_idle_partition = on_idle_partition
        self.idle_after = idle_after
        check_duration(idle_after, "idle_after")
        if self.topics is None and self.group_id is None and self.checkpoint_location is None:
            raise UsageError(f"task {self.task_id}: no topic to look at: give topics, or **pipeline")

    def make_wait(self, context: Context, memory: WaitMemory) -> TopicWait:  # noqa: ARG002
        """Return the wait for the time."""
        idle_after = parse_seconds(self.idle_after, "idle_after")
        return TopicWait(
            **self.wait_parameters(),
            target=iso_time(timestamp_ms(parse_time(self.target, "target"))),
            on_idle_partition=self.on_idle_partition,
            idle_after=IDLE_AFTER if idle_after is None else idle_after,
        )

    def make_trigger(self, wait: Wait, **pace: Any) -> TopicReachedTrigger:
        """Return the trigger that goes on with the wait."""
        from airflow_kafka_offsets.triggers.wait import TopicReachedTrigger

        return TopicReachedTrigger(**pace, **wait.parameters)
