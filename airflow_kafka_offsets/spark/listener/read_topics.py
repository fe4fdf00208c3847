"""Finds topics that were created again, where a query that has read them goes on without noticing it."""

from __future__ import annotations

from functools import partial

from airflow_kafka_offsets.errors import DriftError
from airflow_kafka_offsets.kafka.protocols import CommitPort
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import Offsets, furthest_behind
from airflow_kafka_offsets.readings.log_checks import known_log_ids, newer_logs, unconfirmed
from airflow_kafka_offsets.spark.listener.queries import Target
from airflow_kafka_offsets.spark.listener.runs import Run, answer_of


def identify_topics(
    run: Run, target: Target, client: CommitPort, offsets: Offsets, batch: int | None, *, compares: bool
) -> LogIds:
    """
    Return the ids of the cluster and the topics from when a run began to read them.

    :param batch: the newest batch that the run has finished.
    :param compares: whether topics that were created again before the run get an unknown id.
    """
    topics = {tp.topic for tp in offsets}
    identified, log_ids = run.log_ids.get(target, (None, UNKNOWN_LOGS))
    if topics != identified:
        now, before = known_log_ids(client, topics), UNKNOWN_LOGS
        if identified is None and compares:
            # Without an id nothing can be compared; the topic may be deleted.
            there = {tp: offset for tp, offset in offsets.items() if tp.topic in now.topics}
            before = _recreated_before(run, batch, client, target.group_id, there)
        # A topic keeps its id while it is read: the query does not notice that it was created again.
        log_ids = now | before | log_ids.restricted_to(topics)
        run.log_ids[target] = topics, log_ids
    return log_ids


def check_topics_at_end(run: Run, target: Target, client: CommitPort) -> None:
    """Raise an error if a run has read on in a topic that was created again before or while it ran."""
    # Spark does not notice it if the new log is long enough, and Kafka deletes commits with their topic.
    topics, log_ids = run.log_ids[target]
    what = f"what query {run.query.name} has read"
    DriftError.raise_if(other_logs_refusals(what, log_ids, known_log_ids(client, topics)))


def _recreated_before(
    run: Run, batch: int | None, client: CommitPort, group_id: str, offsets: Offsets
) -> LogIds:
    """Return the topics created again since the batch before the first one of a run, with unknown ids."""
    first = batch if run.first is None else run.first
    plan = None if first is None else answer_of(partial(run.query.planned, first - 1, moved=False))
    if plan is None or plan.batch_timestamp_ms is None:
        return UNKNOWN_LOGS
    # Two sources may read a partition; each has read the records before the smaller offset.
    ends = furthest_behind(plan.kafka_offsets.values())
    read = {tp: end for tp, end in ends.items() if end is not None and tp in offsets}
    newer = newer_logs(client, read, plan.batch_timestamp_ms)
    commits = client.committed(group_id, newer) if newer else {}
    again = unconfirmed({tp: read[tp] for tp in newer}, commits)
    return LogIds("", {tp.topic: "unknown" for tp in again})
