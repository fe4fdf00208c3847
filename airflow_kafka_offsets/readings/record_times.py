"""Timestamps of the records at positions, for tables and receipts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.model.table import DELETED

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.offsets import TopicPartition
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.model.table import TimesByOffset

log = logging.getLogger(__name__)


def look_up_times(client: OffsetsClient, plan: PipelinePlan) -> PipelinePlan:
    """Return a plan with the timestamps of records at its positions, as far as they are read in time."""
    positions = {(tp, offset) for tp, offset in plan.table_positions() if offset >= 0}
    try:
        logs = client.log_ranges({tp for tp, _ in positions})
        deleted = {(tp, offset) for tp, offset in positions if offset < logs[tp].start}
        # The timestamps are only informative, so the time limit is short.
        known = read_times_at(client, positions - deleted, 5.0)
        times: TimesByOffset = {**known, **dict.fromkeys(deleted, DELETED)}
        return plan.with_times(times)
    except BrokerError as error:
        log.info("The timestamps of the records are not shown: %s", error)
        return plan


def read_times_at(
    client: OffsetsClient, positions: Iterable[tuple[TopicPartition, int]], within: float
) -> dict[tuple[TopicPartition, int], int | None]:
    """
    Return the timestamps of records at partitions and offsets, see :meth:`OffsetsClient.record_times`.

    :param within: time limit in seconds for all of them together.
    """
    times: dict[tuple[TopicPartition, int], int | None] = {}
    left, end = sorted(positions), time.monotonic() + within
    while left and (within := end - time.monotonic()) > 0:
        asked = dict(left)  # each partition once, at its last position
        left = [position for position in left if asked[position[0]] != position[1]]
        times |= {(tp, asked[tp]): at for tp, at in client.record_times(asked, within=within).items()}
    return times
