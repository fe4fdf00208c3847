"""
How are consumer groups and the Spark checkpoint that they follow moved as one?

Everything is checked and saved before the first write; then the checkpoint is moved, then the groups are committed,
and both are read back. A move that was interrupted in between is finished by running it again: the checkpoint's
archive has kept where it was to go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.rewind import apply_rewind, verify_rewind
from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.kafka.apply import apply_plans
from airflow_kafka_offsets.model.rewind import QUIET_PERIOD

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.joint import JointPlan
    from airflow_kafka_offsets.model.metadata import CommitMetadata
    from airflow_kafka_offsets.model.offsets import TopicPartition

log = logging.getLogger(__name__)

_SHOWN_WITHIN = 5.0
"""Seconds for the times of a table: they are for the reader, and nothing waits for them."""


def look_up_times(client: OffsetsClient, plan: JointPlan) -> JointPlan:
    """Return a plan with the times that the log has at its positions, as far as the broker tells them soon."""
    times: dict[tuple[TopicPartition, int], int | None] = {}
    left = sorted(plan.positions())
    while left:
        asked = dict(left)  # a partition once, at its last position
        left = [position for position in left if asked[position[0]] != position[1]]
        try:
            found = client.record_times(asked, within=_SHOWN_WITHIN)
        except BrokerError as error:
            log.info("The times of the log are not shown: %s", error)
            break
        times |= {(tp, asked[tp]): time for tp, time in found.items()}
    return plan.with_times(times)


def apply_joint(
    client: OffsetsClient | None,
    checkpoint: SparkCheckpoint | None,
    plan: JointPlan,
    metadata: CommitMetadata,
    *,
    quiet_period: float = QUIET_PERIOD,
) -> None:
    """
    Carry out a joint plan: the checkpoint first, then the groups, and read both back.

    :raises PlanRefusedError: if a part of it must not be carried out; nothing was written.
    :raises CheckpointError: if the checkpoint could not be moved; the groups were not touched.
    :raises BrokerError: if a commit failed; says that the checkpoint has moved already.
    """
    plan.check()
    rewind = plan.rewind
    if rewind is None or checkpoint is None:
        if client is not None:
            apply_plans(client, plan.groups, metadata)
        return
    apply_rewind(
        checkpoint, rewind, quiet_period=quiet_period, token=metadata.token, attachments=plan.images()
    )
    try:
        if client is not None:
            apply_plans(client, plan.groups, metadata)
    except BrokerError as error:
        if rewind.steps:
            moved = (
                f"{error}; the checkpoint {rewind.location} was moved before: running it again finishes the rest, undoing "
                f"archive {rewind.archive} takes it back"
            )
            error.args = (moved, *error.args[1:])
        raise
    verify_rewind(checkpoint, rewind)
