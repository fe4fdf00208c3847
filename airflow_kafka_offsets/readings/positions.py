"""Positions of groups in their topics, and the lag of positions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from airflow_kafka_offsets.annotation_types import OffsetsClient, OffsetsReader
from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    DriftError,
    KafkaOffsetsError,
    NoCommitError,
    UnknownTopicPartitionError,
)
from airflow_kafka_offsets.kafka.failures import NO_LEADER
from airflow_kafka_offsets.kafka.protocols import PositionsReader
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import CHECKPOINT, GroupSelection
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.offsets import (
    Commit,
    Commits,
    IsolationLevel,
    Logs,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    not_on_broker,
    summarize,
)
from airflow_kafka_offsets.model.text import escape_controls
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text
from airflow_kafka_offsets.readings.retention import read_headrooms

log = logging.getLogger(__name__)


def assign_offsets(
    selection: GroupSelection, sources: Mapping[str, Offsets], origin: str = CHECKPOINT
) -> dict[str, Offsets]:
    """Assign the offsets of sources to their groups, and name in the log what ``topics`` leaves out."""
    by_group = selection.assign_offsets(sources, origin)
    left_out = [tp for offsets in sources.values() for tp in sorted(offsets) if tp not in selection.scope]
    if left_out:
        log.info("Left out, because topics does not name these partitions: %s", summarize(left_out, limit=20))
    return by_group


def partitions_in_scope(client: PositionsReader, scope: TopicScope) -> list[TopicPartition]:
    """Return the broker's partitions of named topics, and those named by number even if they are missing."""
    topics = scope.topics
    if not topics:
        raise parameter_error("topics", " is missing: name the topics to read")
    on_broker = client.partitions(topics)
    missing = [topic for topic in topics if topic not in on_broker]
    if missing:
        raise UnknownTopicPartitionError(
            f"topic {', '.join(missing)} is not on the broker: correct "
            f"{parameter_text(scope.parameter, ...)}, or the connection",
            missing=[TopicPartition(topic, 0) for topic in missing],
        )
    return scope.partitions_on_broker(on_broker)


def refuse_missing_partitions(client: PositionsReader, partitions: Collection[TopicPartition]) -> None:
    """Refuse partitions that are not on the broker; needed if their logs are not read."""
    on_broker = client.partitions({tp.topic for tp in partitions})
    if missing := not_on_broker(partitions, on_broker):
        there = [TopicPartition(topic, number) for topic, numbers in on_broker.items() for number in numbers]
        has = f"; of the same topics it has {summarize(there)}" if there else ""
        raise UnknownTopicPartitionError(
            f"{summarize(missing)} is not on the broker{has}: correct {parameter_text('topics', ...)}, or "
            "the connection",
            missing=missing,
        )


def existing_partitions(
    client: PositionsReader, partitions: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Return the partitions that are on the broker: asking for the log of a missing partition takes long."""
    on_broker = client.partitions({tp.topic for tp in partitions})
    return set(partitions).difference(not_on_broker(partitions, on_broker))


def group_positions(client: OffsetsReader, group_id: str, scope: TopicScope) -> Positions:
    """Return the group's position in each partition in scope, see :func:`group_commits`."""
    return committed_offsets(group_commits(client, group_id, scope))


def group_commits(client: OffsetsReader, group_id: str, scope: TopicScope) -> Commits:
    """
    Return the group's last commit in each partition in scope; ``None`` without a commit.

    Without named topics, the scope is all topics with at least one commit of the group. So the result
    includes partitions that were added to these topics and have no commit yet.
    """
    if scope.topics is None:
        everywhere = client.committed_everywhere(group_id)
        if not client.sees_all_topics():
            _check_hidden(client, group_id, everywhere)
        if not everywhere:
            raise _no_commits(group_id)
        topics = scope.restricted_to(tp.topic for tp in everywhere)
        return {tp: everywhere.get(tp) for tp in partitions_in_scope(client, topics)}
    return client.committed(group_id, partitions_in_scope(client, scope))


def _no_commits(group_id: str) -> NoCommitError:
    return NoCommitError(
        f"group {group_id!r} has no committed offsets on this broker: correct {parameter_text('group_id')} "
        "or the connection; Kafka also deletes the offsets of a group without members, by default 7 days "
        f"after its last commit; if the group has not committed yet, name {parameter_text('topics', ...)}"
    )


def _check_hidden(client: OffsetsReader, group_id: str, everywhere: Mapping[TopicPartition, Commit]) -> None:
    # A broker hides commits on topics that the user may not see. It does not hide the partitions of the
    # group's members and the metadata of other commits.
    if read := {tp.topic for tp in client.assigned(group_id)}:
        # A request that names a hidden topic raises an error with the missing right; a list of topics does
        # not.
        client.partitions(read)
    parsed = map(CommitMetadata.of, everywhere.values())
    committed = max((metadata.partitions or 0 for metadata in parsed), default=0)
    if committed > len(everywhere):
        raise BrokerAuthenticationError(
            f"one commit of group {group_id!r} had {committed} partitions, but this user sees only "
            f"{len(everywhere)} ({summarize(everywhere)}): grant the user Describe on all topics of the "
            f"group, or name the topics to read with {parameter_text('topics', ...)}"
        )
    if not everywhere:
        raise NoCommitError(
            f"group {group_id!r} has no committed offsets on the topics that this user may see: correct "
            f"{parameter_text('group_id')}, grant the user Describe on the topics of the group, or name "
            f"{parameter_text('topics', ...)}"
        )


def measure_lag(
    client: OffsetsReader,
    name: str,
    positions: Positions,
    *,
    isolation_level: IsolationLevel = "read_uncommitted",
    headroom: bool = False,
    logs: Logs | None = None,
) -> Lag:
    """
    Return the lag of positions; a headroom that the broker refuses is unknown.

    :param logs: the logs of the positions; by default they are read now.
    :raises DriftError: if a position is beyond the log end.
    """
    if logs is None:
        logs = client.log_ranges(positions, isolation_level=isolation_level)
    check_in_log(client, name, positions, logs)
    lag = Lag.measure(name, positions, logs)
    if not headroom:
        return lag
    # Retention deletes records up to the log end, committed or not.
    if isolation_level == "read_committed":
        logs = client.log_ranges(positions)
    return lag.with_headroom(read_headrooms(client, lag.counted_positions, logs, strict=False))


def check_in_log(client: OffsetsReader, name: str, positions: Positions, logs: Logs) -> None:
    """
    Raise a DriftError for positions beyond the log end, which would seem to have no lag.

    :param logs: may end at the last stable offset, which a position may be past.
    """
    doubtful = {tp: at for tp, at in positions.items() if at is not None and tp in logs and at > logs[tp].end}
    ends = {tp: log.end for tp, log in client.log_ranges(doubtful).items()} if doubtful else {}
    if beyond := {tp: at for tp, at in doubtful.items() if at > ends[tp]}:
        tp = min(beyond)
        raise DriftError(
            f"{escape_controls(name)} is beyond the log end in {summarize(beyond)} (at {beyond[tp]} in {tp}, "
            f"which ends at {ends[tp]}): the topic was deleted and created again, an unclean leader election "
            "has cut off its log, or the connection leads to another cluster; correct the connection, or "
            "reset the pipeline"
        )


def refuse_no_commit(group_id: str, positions: Positions) -> None:
    """Refuse positions without any commit: the lag of the group is unknown, and not 0."""
    if all(offset is None for offset in positions.values()):
        raise NoCommitError(
            f"group {group_id!r} has no committed offset on {summarize(positions)}, so its lag is unknown: "
            "correct the names, or commit first"
        )


def measure_group_lags(
    client: OffsetsClient,
    group_ids: Iterable[str] | None = None,
    *,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> dict[str, Lag | KafkaOffsetsError]:
    """
    Return the lag of groups, or an error for each group whose lag is unknown; one request reads all groups.

    :param group_ids: ``None`` for all groups of the cluster.
    :return: group -> its lag. A group without commits has a lag without partitions, or a NoCommitError if it
        was named.
    """
    names = [group.group_id for group in client.list_groups()] if group_ids is None else list(group_ids)
    found = client.committed_groups(dict.fromkeys(names))
    # Positions are read before the logs: the lag of an active group is then never too low.
    read = {tp.topic for each in found.values() if not isinstance(each, BrokerError) for tp in each}
    on_broker = client.partitions(read)
    sees_all = client.sees_all_topics()
    results: dict[str, Lag | KafkaOffsetsError] = {}
    positions: dict[str, Positions] = {}
    for group_id, commits in sorted(found.items()):
        try:
            found_at = _positions_of_all(client, group_id, commits, on_broker, sees_all)
            if group_ids is not None and not found_at:
                raise _no_commits(group_id)
            positions[group_id] = found_at
        except KafkaOffsetsError as error:  # noqa: PERF203  # each group has its own
            results[group_id] = error
    logs: Logs | None = None
    try:
        logs = client.log_ranges(set().union(*positions.values()), isolation_level=isolation_level)
    except BrokerError as error:
        # If the broker is unavailable, each group would wait for its own timeout. A topic that was just
        # deleted or has no leader must fail only the groups that read it.
        if isinstance(error, BrokerUnavailableError) and error.code != NO_LEADER:
            raise
    for group_id, each in positions.items():
        try:
            results[group_id] = measure_lag(
                client, group_id, each, isolation_level=isolation_level, logs=logs
            )
        except KafkaOffsetsError as own:  # noqa: PERF203  # each group has its own
            results[group_id] = own
    return dict(sorted(results.items()))


def _positions_of_all(
    client: OffsetsClient,
    group_id: str,
    commits: Mapping[TopicPartition, Commit] | BrokerError,
    on_broker: Mapping[str, Sequence[int]],
    sees_all: bool,
) -> Positions:
    if isinstance(commits, BrokerError):
        raise commits
    if not sees_all:
        _check_hidden(client, group_id, commits)
    topics = {tp.topic for tp in commits}
    if missing := topics - on_broker.keys():
        raise UnknownTopicPartitionError(
            f"the group has commits on topic {', '.join(sorted(missing))}, which is not on the broker",
            missing=[tp for tp in commits if tp.topic in missing],
        )
    partitions = (TopicPartition(topic, number) for topic in topics for number in on_broker[topic])
    return committed_offsets({tp: commits.get(tp) for tp in partitions})
