"""Checks that offsets belong to the logs that the connection leads to, by the ids of cluster and topics."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from airflow_kafka_offsets.annotation_types import OffsetsClient, OffsetsReader
from airflow_kafka_offsets.errors import BrokerError, PlanRefusedError, SetupError
from airflow_kafka_offsets.kafka.protocols import PositionsReader
from airflow_kafka_offsets.model.commit_metadata import LISTENER, NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.commit_origins import commit_log_refusals, log_ids_of
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import Commits, Offsets, TopicPartition, flat, summarize
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.readings.batch_times import newer_record_refusals, newer_records, recreated_since

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
    from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
    from airflow_kafka_offsets.checkpoint.state import CheckpointState
    from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
    from airflow_kafka_offsets.model.plan import OffsetPlan

log = logging.getLogger(__name__)


def known_log_ids(client: PositionsReader, topics: Iterable[str], *, leaves: bool = False) -> LogIds:
    """
    Return the ids of the cluster and of topics; without topic ids if the broker cannot return them.

    A temporary error is raised: without an id, a topic that was recreated would pass for the earlier one.

    :param leaves: whether the pipeline leaves the cluster, which may be half down.
    """
    try:
        return client.log_ids(topics)
    except (BrokerError, SetupError) as error:
        if error.retriable and not leaves:
            raise
        cluster = LogIds(client.cluster_id())  # fails if the configuration was refused
        log.warning("A later deletion and re-creation of a topic will not be detected: %s", error)
        return cluster


def current_logs_refusals(
    client: PositionsReader, what: str, recorded: LogIds, *, remedy: str = ""
) -> list[str]:
    """
    Return why offsets of recorded logs are invalid on this broker, see :func:`other_logs_refusals`.

    Only recorded ids are requested: topic ids take a request of the admin process, which may raise a
    BrokerError.
    """
    if not recorded:
        return []
    now = LogIds(client.cluster_id())
    if recorded.topics and not recorded.is_other_cluster(now):
        now = client.log_ids(recorded.topics)
    return other_logs_refusals(what, recorded, now, remedy=remedy)


@dataclass(frozen=True)
class LogCheck:
    """
    Compares the logs that a move's offsets belong to with the logs that the connection leads to.

    :param allow_new_cluster: whether the caller confirms that the offsets belong to the current logs.
    :param old_offsets: whether the offsets are from before this move; see :func:`other_logs_refusals`.
    :param what: the origin of the offsets, such as ``the receipt``, and ``recorded``, its ids.
    :param moves: the moves of the checkpoint; the newest names its cluster, which counts if the group's
        commits do not name a cluster.
    :param state: the checkpoint's state with the offsets, to compare the times of records.
    :param read_at: when the offsets of a store were saved.
    :param whole_logs_only: see :func:`newer_records`; for offsets that no commit of the group confirms.
    """

    allow_new_cluster: bool = False
    what: str = ""
    recorded: LogIds = UNKNOWN_LOGS
    moves: ArchivedMoves | None = None
    remedy: str = ""
    state: CheckpointState | None = None
    read_at: int | None = None
    whole_logs_only: bool = False
    old_offsets: bool = True

    def refusals(self, current: LogIds, group_id: str = "", commits: Commits | None = None) -> list[str]:
        """Return why the offsets must not be written."""
        if self.allow_new_cluster:
            return []
        commits = commits or {}
        # Without recorded ids the commits decide. MirrorMaker copies their metadata, which names its source.
        others = (
            other_logs_refusals(self.what, self.recorded, current, remedy=self.remedy)
            if self.recorded
            else commit_log_refusals(
                group_id, commits, current, old_offsets=self.old_offsets, remedy=self.remedy
            )
        )
        return others or self._other_cluster(current, commits)

    def position_refusals(
        self,
        client: OffsetsClient,
        positions: Offsets,
        current: LogIds,
        group_id: str = "",
        commits: Commits | None = None,
    ) -> list[str]:
        """
        Return also why positions must not be used: their topic was created again since they were read.

        The query's commits since the newest move of its checkpoint show the topic, as does the move. Without
        both, the times of records are compared.
        """
        refusals = self.refusals(current, group_id, commits)
        if refusals or self.allow_new_cluster or not self.old_offsets:
            return refusals
        commits = commits or {}
        unconfirmed = (
            positions
            if self.whole_logs_only
            else unconfirmed_positions(positions, commits, of_store=self.moves is None)
        )
        if self.moves is None:
            return [] if self.read_at is None else newer_record_refusals(client, unconfirmed, self.read_at)
        moved = moved_topics(self.moves, {tp: commits.get(tp) for tp in positions})
        again = moved.recreated_topics(current)
        found = other_logs_refusals(_newest_move_text(self.moves, again), moved, current)
        if found:
            return found
        for read_at, last, ends in self.by_last_move(unconfirmed):
            found += newer_record_refusals(client, ends, read_at, whole_logs_only=self.whole_logs_only)
            if not found and not self.whole_logs_only:
                gone_on = recreated_since(client, self.moves.batches_after(last), positions, ends)
                found += [_recreated_text(self.moves, gone_on)] if gone_on else []
        return found

    def by_last_move(self, positions: Offsets) -> list[tuple[int, int, Offsets]]:
        """
        Return the positions grouped by the newest move of their topic.

        Each group has the time of the batch that has read the positions, and the newest batch that the move
        has written. Positions of a batch that the move itself has written are left out.
        """
        if self.moves is None or self.state is None or (read_at := self.state.batch_timestamp_ms) is None:
            return []
        found: dict[int, dict[TopicPartition, int]] = {}
        rewrites_of_batch = self.moves.rewrites_of_batch(self.state.batch_id)
        for topic, partitions in groupby(sorted(positions), key=attrgetter("topic")):
            if not any(move.concerns([topic]) for move in rewrites_of_batch):
                ends = found.setdefault(self.moves.last_written([topic]), {})
                ends.update((tp, positions[tp]) for tp in partitions)
        return [(read_at, last, ends) for last, ends in found.items()]

    def left_logs(
        self, client: OffsetsClient, sources: Mapping[str, Offsets], plans: Iterable[OffsetPlan]
    ) -> LogIds:
        """
        Return the ids of the logs that a checkpoint leaves if it moves to the offsets of plans.

        It leaves another cluster, or topics that were created again since its offsets were read. The ids are
        unknown if it leaves neither.
        """
        if self.moves is None:
            return UNKNOWN_LOGS
        plans = [*plans]
        current = LogIds.union(plan.log_ids for plan in plans)
        commits = {tp: plan.commits.get(tp) for plan in plans for tp in plan.after}
        recorded = LogIds(newest_cluster(self.moves, commits))
        if recorded.is_other_cluster(current):
            return recorded
        moved = moved_topics(self.moves, commits)
        again = {topic: moved.topics[topic] for topic in moved.recreated_topics(current)}
        here = {tp: at for (_, tp), at in flat(sources).items() if tp in commits}
        unmoved = {tp: at for tp, at in here.items() if tp.topic not in moved.topics}
        for read_at, _, ends in self.by_last_move(unconfirmed_positions(unmoved, commits)):
            newer = newer_records(client, ends, read_at, whole_logs_only=True)
            again |= {tp.topic: "unknown" for tp in newer}
        return LogIds(current.cluster, again) if again else UNKNOWN_LOGS

    def _other_cluster(self, current: LogIds, commits: Commits) -> list[str]:
        """Return why a checkpoint counts elsewhere, unless its query has committed its group here since."""
        topics = {tp.topic for tp in commits}
        if self.moves is None or (archive := self.moves.newest_with_cluster(topics)) is None:
            return []
        if newest_cluster(self.moves, commits) == current.cluster:
            return []
        what = _newest_move_text(self.moves, topics)
        return other_logs_refusals(what, LogIds(archive.log_ids.cluster), current, remedy=self.remedy)


def newest_cluster(moves: ArchivedMoves, commits: Commits) -> str:
    """
    Return the cluster of a checkpoint's offsets; empty if unknown.

    Its newest move names it, and so does each commit of its query since. Other commits, as of a reset without
    the checkpoint, say nothing about it, and neither do those of the move itself: a move that takes a
    failover back commits the group on the mirror, which the pipeline leaves.
    """
    archive = moves.newest_with_cluster({tp.topic for tp in commits})
    made = map(CommitMetadata.of, commits.values())
    since = [each for each in made if each.cluster and _follows(each, archive)]
    if archive is not None and not since:
        return archive.log_ids.cluster
    return max(since, key=lambda each: each.at or 0, default=NO_METADATA).cluster


def moved_topics(moves: ArchivedMoves, commits: Commits) -> LogIds:
    """Return the topic ids of a checkpoint's newest moves, without topics that the query committed since."""
    topics = {tp.topic for tp in commits}
    moved = {topic: found for topic in topics if (found := moves.newest_with_cluster([topic])) is not None}
    since = {
        tp.topic
        for tp, commit in commits.items()
        if (by := CommitMetadata.of(commit)).cluster and _follows(by, moved.get(tp.topic))
    }
    ids = {topic: each.log_ids.topics.get(topic, "") for topic, each in moved.items()}
    return LogIds("", {topic: found for topic, found in ids.items() if found and topic not in since})


def unconfirmed_positions(positions: Offsets, commits: Commits, *, of_store: bool = False) -> Offsets:
    """
    Return the positions of a query, or of a job's own store, that no commit confirms.

    A commit that names its cluster confirms them if the query has made it, or a task that commits what is
    stored. A commit of given offsets, or a reset of the group alone, confirms its own offset only.
    """

    def is_confirmed(tp: TopicPartition) -> bool:
        commit = commits.get(tp)
        made = CommitMetadata.of(commit)
        if commit is None or not made.cluster:
            return False
        # The commit of a store names no query.
        own = not made.is_move if of_store else bool(made.query)
        return own or commit.offset == positions[tp]

    return {tp: offset for tp, offset in positions.items() if not is_confirmed(tp)}


def recreated_partitions(
    client: OffsetsReader,
    moves: ArchivedMoves,
    state: CheckpointState,
    offsets: Offsets,
    commits: Commits,
    now: LogIds,
    *,
    whole_logs_only: bool = False,
) -> set[TopicPartition]:
    """
    Return the partitions whose topic was created again since a checkpoint, or the group's commit, was in it.

    :param offsets: the checkpoint's, in partitions that the broker has.
    :param now: the present ids of the logs.
    :param whole_logs_only: see :func:`newer_records`.
    """
    every = {tp: commits.get(tp) for tp in {*commits, *offsets}}
    since_move = moved_topics(moves, every).recreated_topics(now)
    found = {
        tp
        for tp, commit in every.items()
        if tp.topic in since_move or log_ids_of({tp: commit}, now).recreated_topics(now)
    }
    unconfirmed = {tp: at for tp, at in unconfirmed_positions(offsets, commits).items() if tp not in found}
    for read_at, last, ends in LogCheck(moves=moves, state=state).by_last_move(unconfirmed):
        found |= newer_records(client, ends, read_at, whole_logs_only=whole_logs_only).keys()
        found.update(recreated_since(client, moves.batches_after(last), offsets, ends))
    return found


def _follows(made: CommitMetadata, archive: ArchivedMove | None) -> bool:
    """Return whether a commit shows where a checkpoint is since its newest move."""
    if archive is None:
        return True
    if made.query != archive.query_id:
        return False
    # The clocks of two machines may differ. The listener knows only the moves that the group's commits show.
    if made.tool == LISTENER:
        if made.batch is not None and made.batch <= archive.newest_finished:
            return False
    elif made.move is not None and made.move < archive.number:
        return False
    if made.is_move or made.at is None:  # an early commit of many partitions has no time
        return (made.move or 0) >= archive.number + made.is_move
    return made.at >= archive.created_at


def _newest_move_text(moves: ArchivedMoves, topics: Collection[str]) -> str:
    archive = moves.newest_with_cluster(topics)
    name = "" if archive is None else f" (archive {archive.name})"
    return f"the newest move of {moves.checkpoint.location}{name}"


def check_logs_again(client: OffsetsClient, plan: PipelinePlan) -> None:
    """Check right before the first write that the logs have the planned ids and hold the planned offsets."""
    # Sources of one topic, and their groups, may have different offsets.
    targets: set[tuple[TopicPartition, int]] = set()
    then = UNKNOWN_LOGS
    if (moved := plan.checkpoint_plan) is not None and not moved.undoes_failover:
        then = moved.log_ids
        for source, offsets in moved.after.items():
            # Unchanged offsets are not checked: retention may have deleted their records long ago.
            targets |= offsets.items() - moved.before.get(source, {}).items()
    for group_plan in plan.group_plans:
        targets |= group_plan.after.items()
        then |= group_plan.log_ids if moved is not None and moved.undoes_failover else UNKNOWN_LOGS
    now = known_log_ids(client, {tp.topic for tp, _ in targets})
    PlanRefusedError.raise_if(other_logs_refusals("the plan", then, now))
    logs = client.log_ranges({tp for tp, _ in targets})
    if outside := [(tp, offset) for tp, offset in sorted(targets) if offset not in logs[tp]]:
        first, target = outside[0]
        where = summarize({tp for tp, _ in outside})
        raise PlanRefusedError(
            f"since the plan was made the log has changed on {where} ({first}: the target is {target}, the "
            f"log now holds {logs[first].start} to {logs[first].end}): retention has deleted records, the "
            "topic was deleted and created again, or an unclean leader election has cut off its log; run the "
            "move again to plan it again",
            retriable=True,
        )


def _recreated_text(moves: ArchivedMoves, again: Collection[TopicPartition]) -> str:
    return (
        f"{moves.checkpoint.location}: its query kept its offsets on {summarize(again)}, but all records "
        "there are newer than an earlier batch of the query: the topic was deleted and created again, and "
        "the first records of the new topic may not have been read; reset group and checkpoint to 'earliest' "
        "or to a time. If the records have been read, or producers set other times than the time of writing, "
        f"set {parameter_text('allow_new_cluster', True)} once"
    )
