"""How does a task wait until a consumer group is near enough to the end of its topics?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.hooks.waits import LagWait, Wait
from airflow_kafka_offsets.model.lag import NoCommitPolicy
from airflow_kafka_offsets.sensors.base import OffsetsSensor
from airflow_kafka_offsets.triggers.wait import ConsumerGroupLagTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class ConsumerGroupLagSensor(OffsetsSensor):
    """
    Wait until the lag of a consumer group is at or below thresholds.

    The lag is live: with a producer that never stops, ``max_lag=0`` may never be true at the moment of a look.
    To wait until everything that was there is read, use
    :class:`~airflow_kafka_offsets.sensors.reached.OffsetsReachedSensor`.

    Without a group the lag is that of a Spark checkpoint's newest committed batch.

    Returns the last reading: ``total_lag``, ``max_lag`` and ``partitions`` (``groups`` for several groups).

    :param max_lag: records in all partitions together. ``0`` when no threshold is given.
    :param max_partition_lag: records in each partition.
    :param on_no_commit: what a partition without a commit counts as: ``fail`` (default), ``earliest`` (its
        whole log), ``latest`` or ``zero`` (nothing), ``skip`` (it is not looked at). (templated)
    """

    template_fields: Sequence[str] = (*OffsetsSensor.template_fields, "on_no_commit")

    def __init__(
        self,
        *,
        max_lag: int | None = None,
        max_partition_lag: int | None = None,
        on_no_commit: NoCommitPolicy = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_lag = max_lag
        self.max_partition_lag = max_partition_lag
        self.on_no_commit = on_no_commit

    def make_wait(self, context: Context) -> LagWait:  # noqa: ARG002
        """Return the wait for the thresholds."""
        no_threshold = self.max_lag is None and self.max_partition_lag is None
        return LagWait(
            **self.wait_parameters(),
            max_lag=0 if no_threshold else self.max_lag,
            max_partition_lag=self.max_partition_lag,
            on_no_commit=self.on_no_commit,
        )

    def make_trigger(self, wait: Wait) -> ConsumerGroupLagTrigger:
        """Return the trigger that goes on with the wait."""
        return ConsumerGroupLagTrigger(poll_interval=self.poke_interval, **wait.parameters)
