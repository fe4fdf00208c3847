"""Finds topics that were created again: a query that has read them does not notice this."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry
from airflow_kafka_offsets.errors import DriftError, PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds, other_logs_refusals
from airflow_kafka_offsets.readings.batch_times import recreated_since
from airflow_kafka_offsets.readings.log_checks import known_log_ids, unconfirmed_positions
from airflow_kafka_offsets.spark.listener.runs import Attempt, answer_or_none


def identify_topics(attempt: Attempt, *, compares: bool) -> LogIds:
    """
    Return the ids of the cluster and the topics from when the run began to read them.

    :param compares: whether topics that were created again before the run get an unknown id.
    """
    run, target = attempt.run, attempt.target
    topics = {tp.topic for tp in attempt.offsets}
    identified, log_ids = run.log_ids.get(target, (None, UNKNOWN_LOGS))
    if topics != identified:
        now, before = known_log_ids(attempt.client, topics), UNKNOWN_LOGS
        if identified is None and compares and attempt.batch is not None:
            _refuse_left_cluster(attempt, now)
            before = _logs_before(attempt, attempt.batch, now)
        # A topic keeps its id while it is read: the query does not notice that it was created again.
        log_ids = now | before | log_ids.restricted_to(topics)
        run.log_ids[target] = topics, log_ids
    return log_ids


def _refuse_left_cluster(attempt: Attempt, now: LogIds) -> None:
    """Refuse to commit a query that reads a cluster which its checkpoint has left, as by a failover."""
    query, offsets = attempt.run.query, attempt.offsets
    moved = answer_or_none(partial(query.moved_to, {tp.topic for tp in offsets}))
    if moved is None or not LogIds(moved.cluster).is_other_cluster(now):
        return
    commits = attempt.client.committed(attempt.target.group_id, offsets).values()
    # A commit that allow_new_cluster has allowed since.
    if any(
        (by.query, by.cluster) == (query.query_id, now.cluster) and (by.batch or 0) > moved.newest_finished
        for by in map(CommitMetadata.of, commits)
    ):
        return
    what = f"the newest move of the checkpoint (archive {moved.archive})"
    PlanRefusedError.raise_if(other_logs_refusals(what, LogIds(moved.cluster), now))


def check_topics_at_end(attempt: Attempt) -> None:
    """Raise an error if a run has read on in a topic that was created again before or while it ran."""
    # Spark does not notice it if the new log is long enough, and Kafka deletes commits with their topic.
    topics, log_ids = attempt.run.log_ids[attempt.target]
    what = f"what query {attempt.run.query.name} has read"
    DriftError.raise_if(other_logs_refusals(what, log_ids, known_log_ids(attempt.client, topics)))


def _logs_before(attempt: Attempt, batch: int, now: LogIds) -> LogIds:
    """
    Return the ids of topics that no commit confirms, as the checkpoint's newest moves have recorded them.

    The id of a topic that was created again since a batch before the first one of the run is unknown.
    """
    run, client = attempt.run, attempt.client
    # Without an id nothing can be compared; the topic may be deleted.
    offsets = {tp: offset for tp, offset in attempt.offsets.items() if tp.topic in now.topics}
    unconfirmed = unconfirmed_positions(offsets, client.committed(attempt.target.group_id, offsets))
    first = batch if run.first_batch is None else run.first_batch
    found = dict[str, str]()
    for since in (
        answer_or_none(partial(run.query.since_moves, first, {tp.topic for tp in unconfirmed})) or ()
    ):
        moved = {} if since.logs.is_other_cluster(now) else since.logs.restricted_to(since.topics).topics
        unmoved = {
            tp: at for tp, at in unconfirmed.items() if tp.topic in since.topics and tp.topic not in moved
        }
        again = recreated_since(client, _answered(since.batches), offsets, unmoved)
        found |= {**moved, **{tp.topic: "unknown" for tp in again}}
    return LogIds("", found)


def _answered(batches: Iterator[OffsetLogEntry]) -> Iterator[OffsetLogEntry]:
    """Yield the batches that Spark can still read."""
    while (batch := answer_or_none(partial(next, batches, None))) is not None:
        yield batch
