"""Commits the offsets that a Spark job has read, after it has written its output."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.commit_origins import check_group_follows
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, other_logs_refusals
from airflow_kafka_offsets.model.offsets import OffsetRange, Offsets, TopicPartition, check_ranges
from airflow_kafka_offsets.model.parameters import parse_choice
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.window_commit import check_not_read_by_others
from airflow_kafka_offsets.moves.write import commit_window
from airflow_kafka_offsets.readings.log_checks import known_log_ids
from airflow_kafka_offsets.spark.broker import librdkafka_config

MissingCommit = Literal["begin", "fail"]
"""How a partition without a commit counts."""


def commit_ranges(
    group_id: str,
    ranges: OffsetWindow | Mapping[TopicPartition, OffsetRange],
    *,
    options: Mapping[str, Any] | None = None,
    client_config: Mapping[str, Any] | None = None,
    on_no_commit: MissingCommit = "begin",
    query: str = "",
    batch: int | None = None,
    allow_new_query: bool = False,
    allow_new_cluster: bool = False,
    fenced: bool = True,
    timeout: float = 30.0,
) -> Offsets:
    """
    Commit the ends of ranges to a group that is at their starts.

    All partitions are compared together: at the start -> committed; already at the end -> nothing to do;
    anything else -> refused, and nothing is written. So a batch that runs again commits nothing twice, and a
    late batch cannot move the group back. A window with ``start="committed"`` is refused if another run has
    committed its end, because that run has read the same records.

    The function may be called from any thread, and needs confluent-kafka.

    The group must have no members. With ``fenced``, each commit joins the group for a moment: 0.1 s, plus the
    broker's ``group.initial.rebalance.delay.ms`` (3 s by default). Without it, another client could commit
    between the comparison and the write.

    :param group_id: the consumer group.
    :param ranges: the result of :func:`~airflow_kafka_offsets.spark.batch.batch_ranges`, or a planned window.
    :param options: options of Spark's Kafka source, to reach the brokers.
    :param client_config: librdkafka's settings; used instead of ``options``.
    :param on_no_commit: ``begin`` (default): a partition without a commit counts as at the start of its
        range, because it is new or Kafka has forgotten the group. ``fail``: refuse it. A window already names
        the partitions that had no commit.
    :param query: id of the Spark query for the commit's metadata; refused if the group follows another query.
    :param batch: id of the batch for the commit's metadata.
    :param allow_new_query: whether the query may take over a group that another query followed.
    :param allow_new_cluster: whether to commit although the cluster or topic is not the one of the group's
        last commit, for example because the topic was created again: the ranges are known to be right there.
    :param fenced: join the group, so that no other commit can come between the comparison and the write.
    :param timeout: seconds for each of two steps: reading group and log, and the commit.
    :return: partition -> committed offset: the end of each range whose start the group was at.
    :raises WindowMismatchError: if the group is at another position.
    :raises UsageError: if a range ends before it starts.
    :raises PlanRefusedError: if the group follows another query or belongs to another cluster or topic, if a
        range ends beyond the log, or if another run has read the same window.
    :raises GroupActiveError: if the group has members.
    :raises BrokerError: if the commit failed completely or in part; another call finishes it.
    """
    from airflow_kafka_offsets.kafka.client import OffsetsClient

    parse_choice(on_no_commit, MissingCommit, "on_no_commit")
    if options is None and client_config is None:
        found = "neither options nor client_config is given"
        raise UsageError(f"{found}: give options or client_config, to reach the brokers")
    config = librdkafka_config(options or {}) if client_config is None else client_config
    window = ranges if isinstance(ranges, OffsetWindow) else OffsetWindow(dict(ranges))
    check_ranges(window.ranges)
    with OffsetsClient(config, timeout=timeout) as client:
        commits = client.committed(group_id, window.ranges)
        # Read the ids before the logs: a topic that is created again in between must not pass for the old
        # one.
        log_ids = known_log_ids(client, {tp.topic for tp in window.ranges})
        PlanRefusedError.raise_if(
            other_logs_refusals("the window", window.log_ids, log_ids, remedy="trigger a new run")
        )
        PlanRefusedError.raise_if(window.end_refusals(client.log_ranges(window.ranges)))
        if not isinstance(ranges, OffsetWindow) and on_no_commit == "begin":
            missing = frozenset(tp for tp, commit in commits.items() if commit is None)
            window = OffsetWindow(window.ranges, without_commit=missing)
        known = UNKNOWN_LOGS if allow_new_cluster else log_ids
        check_group_follows(group_id, commits, "" if allow_new_query else query, known)
        metadata = driver_metadata("commit_ranges", query=query, batch=batch)
        if not metadata.run and (run := window.source.get("run_id")):
            # A driver on a cluster has no environment of a task, but a planned window names its run.
            metadata = replace(metadata, dag=str(window.source.get("dag_id") or ""), run=str(run))
        texts = metadata.texts(window.ranges, log_ids)
        check = partial(check_not_read_by_others, window, group_id, metadata)
        return commit_window(client, group_id, window, texts, fenced=fenced, check=check)


def driver_metadata(tool: str, *, query: str = "", batch: int | None = None) -> CommitMetadata:
    """
    Return the metadata of a commit from a Spark driver.

    Airflow sets ``AIRFLOW_CTX_*`` for the processes that its tasks start, such as a driver in client mode.
    """
    return CommitMetadata(
        dag=os.environ.get("AIRFLOW_CTX_DAG_ID", ""),
        run=os.environ.get("AIRFLOW_CTX_DAG_RUN_ID", ""),
        task=os.environ.get("AIRFLOW_CTX_TASK_ID", ""),
        query=query,
        batch=batch,
        tool=tool,
        at=int(time.time()),
    )
