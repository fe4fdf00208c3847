"""Finds topics that were created again: a query that has read them does not notice this."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow_kafka_offsets.checkpoint.log import OffsetLogEntry
from airflow_kafka_offsets.errors import DriftError
from airflow_kafka_offsets.kafka.protocols import CommitPort
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.readings.batch_times import recreated_since
from airflow_kafka_offsets.readings.log_checks import known_log_ids, unconfirmed
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
        if identified is None and compares and batch is not None:
            # Without an id nothing can be compared; the topic may be deleted.
            there = {tp: offset for tp, offset in offsets.items() if tp.topic in now.topics}
            before = _logs_before(run, batch, client, target.group_id, there, now)
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


def _logs_before(
    run: Run, batch: int, client: CommitPort, group_id: str, offsets: Offsets, now: LogIds
) -> LogIds:
    """
    Return the ids of topics that no commit confirms, as the checkpoint's newest moves have recorded them.

    The id of a topic that was created again since a batch before the first one of the run is unknown.
    """
    silent = unconfirmed(offsets, client.committed(group_id, offsets))
    first = batch if run.first is None else run.first
    found = dict[str, str]()
    for since in answer_of(partial(run.query.since_moves, first, {tp.topic for tp in silent})) or ():
        moved = {} if since.logs.is_other_cluster(now) else since.logs.restricted_to(since.topics).topics
        unmoved = {tp: at for tp, at in silent.items() if tp.topic in since.topics and tp.topic not in moved}
        again = recreated_since(client, _answered(since.batches), offsets, unmoved)
        found |= {**moved, **{tp.topic: "unknown" for tp in again}}
    return LogIds("", found)


def _answered(batches: Iterator[OffsetLogEntry]) -> Iterator[OffsetLogEntry]:
    """Yield the batches that Spark can still read."""
    while (batch := answer_of(partial(next, batches, None))) is not None:
        yield batch
