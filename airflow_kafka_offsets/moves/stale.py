"""Refuses to take back a move that others have followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.archive import Archive, read_archives
from airflow_kafka_offsets.checkpoint.archive_names import number_of
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata, committer
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, summarize
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.stale import Followers, gone_on, moved_back

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint


def judge_stale(
    plan: PipelinePlan,
    moved_to: Mapping[str, Offsets],
    sources_to: Mapping[str, Offsets],
    *,
    checkpoint: SparkCheckpoint | None,
    archive: Archive | None,
    by: CommitMetadata,
    own: bool = False,
    allow: bool = False,
) -> PipelinePlan:
    """
    Refuse a plan that takes back a move which others have followed; a note says so where it is allowed.

    What a run has done since its own move does not count: it takes that back on purpose.

    :param moved_to: group -> where the move has put it; ``sources_to`` likewise for the checkpoint.
    :param archive: of the move, ``None`` if it changed no file of a checkpoint.
    :param by: who takes it back.
    :param own: whether the move is known to be of this run; else the archive says so.
    """
    later = [] if checkpoint is None or archive is None else _later(checkpoint, archive)
    own = own or (archive is not None and by.same_run(archive.by))
    found = [f"move {each} followed" for each in later if not by.same_run(each.by)]
    moves: list[tuple[int, int]] = []
    for group in plan.groups:
        found += _commits_of_others(group, moved_to.get(group.group_id, {}), by, own=own)
        moves += moved_back(group.found, group.after)
    if (of := plan.checkpoint) is not None:
        beyond: list[TopicPartition] = []
        of_query: list[tuple[int, int]] = []
        for source, back in of.after.items():
            at = of.before.get(source, {})
            beyond += gone_on(at, back, sources_to.get(source, {}))
            of_query += moved_back(at, back)
        moves = of_query if any(now != back for now, back in of_query) else moves
        if beyond and (found or not own):
            found.append(
                f"the query has finished batch {of.batch_id} and is elsewhere on {summarize(beyond)}"
            )
    followers = Followers(archive.name if archive else "the move of the receipt", tuple(found), tuple(moves))
    if not followers:
        return plan
    notes, refusals = ((str(followers),), ()) if allow else ((), (followers.refusal,))
    if of is not None:
        checkpoint_plan = replace(of, notes=(*of.notes, *notes), refusals=(*of.refusals, *refusals))
        return replace(plan, checkpoint=checkpoint_plan)
    # All refusals are shown together: one group may carry those of the whole plan.
    first, *others = plan.groups
    first = replace(first, notes=(*first.notes, *notes), refusals=(*first.refusals, *refusals))
    return replace(plan, groups=[first, *others])


def _later(checkpoint: SparkCheckpoint, archive: Archive) -> list[Archive]:
    """Return the moves after one that were not taken back."""
    return [
        each
        for each in read_archives(checkpoint)
        if each.number > archive.number
        and not each.undone
        and (each.undoes is None or number_of(each.undoes) < archive.number)
    ]


def _commits_of_others(group: OffsetPlan, moved_to: Offsets, by: CommitMetadata, *, own: bool) -> list[str]:
    """
    Return who has committed a group beyond its move.

    :param own: whether a commit that names no run counts as the run's, such as one from a Spark cluster.
    """
    of_others: dict[str, list[TopicPartition]] = {}
    for tp in gone_on(group.found, group.after, moved_to):
        text = group.metadata.get(tp)
        made = CommitMetadata.parse(text)
        if not (own if made is None or not made.run else by.same_run(made)):
            of_others.setdefault(committer(text) or "another client", []).append(tp)
    return [
        f"group {group.group_id!r} was committed on {summarize(partitions)} by {who}"
        for who, partitions in of_others.items()
    ]
