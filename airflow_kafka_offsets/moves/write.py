"""
Writes to groups: checks, commits or deletes, and reads back.

Only this module changes groups. The plan was checked before, and the group's commits are compared with it
again right before the write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import (
    BrokerError,
    CommitError,
    CommitProgress,
    GroupMovedError,
    PlanRefusedError,
)
from airflow_kafka_offsets.kafka.protocols import CommitPort
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import (
    Commit,
    Commits,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    positions_past_targets,
    summarize,
)
from airflow_kafka_offsets.model.plan import OffsetPlan, check_read_back
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.window import OffsetWindow

log = logging.getLogger(__name__)

Write = Callable[[OffsetsClient, OffsetPlan, Mapping[str, str]], None]
"""Commits one group's plan with metadata (topic -> text) and reads it back."""

AHEAD = "GROUP_AHEAD"
"""Error code of partitions in which the group is ahead of the offsets to commit."""


def commit_offsets(
    client: CommitPort,
    group_id: str,
    offsets: Offsets,
    texts: str | Mapping[str, str],
    check: Callable[[Commits], object] | None = None,
) -> None:
    """
    Commit offsets and read them back.

    :param texts: the commits' metadata, or topic -> metadata.
    :param check: called with the group's commits right before they are overwritten; an error that it raises
        ends the commit.
    :raises CommitError: if partitions were refused, or have other offsets when they are read back.
    """
    client.commit(group_id, offsets, texts, check)
    check_read_back(group_id, offsets, _read_back(client, group_id, offsets))


def _read_back(
    client: CommitPort, group_id: str, partitions: Iterable[TopicPartition], done: str = "committed"
) -> Positions:
    try:
        return committed_offsets(client.committed(group_id, partitions))
    except BrokerError as error:
        raise error.append(f"{done} before, but not read back: group {group_id}") from None


def write_plan(client: CommitPort, group_plan: OffsetPlan, texts: Mapping[str, str]) -> None:
    """Commit a plan's offsets to a group that has not moved since the plan was made."""
    commit_offsets(client, group_plan.group_id, group_plan.after, texts, group_plan.check_not_moved)


def overwrite(client: CommitPort, group_plan: OffsetPlan, texts: Mapping[str, str]) -> None:
    """Commit the offsets to which a checkpoint was moved, whatever the group's commits are."""
    commit_offsets(client, group_plan.group_id, group_plan.after, texts)


def commit_window(
    client: OffsetsClient,
    group_id: str,
    window: OffsetWindow,
    texts: str | Mapping[str, str] = "",
    *,
    fenced: bool = True,
    check: Callable[[Commits], object] | None = None,
) -> Offsets:
    """
    Commit a window's end to a group that is at the window's start or already at its end.

    :param fenced: whether to join the group, so that no other client commits between the check and the write.
        Without it, another commit could come in between; partitions that are already at the end are then
        written again, because Kafka measures the age of a commit from its last write.
    :param check: called with the group's commits right before they are overwritten; an error that it raises
        ends the commit.
    :return: the window's end in the partitions that have moved from the start.
    :raises WindowMismatchError: if the group is at another position; nothing was written.
    :raises GroupActiveError: if the group has other members.
    """

    def offsets_to_commit(found: Commits) -> Offsets:
        if check is not None:
            check(found)
        return window.to_commit(f"group {group_id!r}", found)

    if fenced:
        return client.commit_fenced(group_id, window.end, texts, offsets_to_commit)
    moves: list[Offsets] = []
    commit_offsets(client, group_id, window.end, texts, lambda found: moves.append(offsets_to_commit(found)))
    return moves[-1] if moves else {}


def commit_forward(
    client: CommitPort,
    group_id: str,
    offsets: Offsets,
    *,
    query: str,
    check: Callable[[Commits], Mapping[str, str]],
) -> None:
    """
    Commit the offsets that a running query has finished, without partitions in which the group is ahead.

    :param query: the query's name, for error texts.
    :param check: called with the group's commits; returns topic -> metadata of the new ones, or raises an
        error if the query must not commit to the group.
    """

    def check_again(now: Commits) -> None:
        check(now)
        if moved := positions_past_targets(committed_offsets(now), after):
            raise _ahead_of(group_id, query, moved, offsets)

    commits = client.committed(group_id, offsets)
    texts = check(commits)
    ahead = positions_past_targets(committed_offsets(commits), offsets)
    after = {tp: offset for tp, offset in offsets.items() if tp not in ahead}
    if after:
        client.commit(group_id, after, texts, check=check_again)
        found = _read_back(client, group_id, after)
        if lost := [tp for tp, offset in after.items() if (at := found[tp]) is None or at < offset]:
            raise CommitError(
                f"group {group_id!r} was committed, but does not hold the offsets of {summarize(lost)} when "
                "read back: another client writes to it",
                failed=dict.fromkeys(lost, "NOT_READ_BACK"),
                retriable=True,
            )
    # Raised after the other partitions were written, which must not wait for these.
    if ahead:
        raise _ahead_of(group_id, query, ahead, offsets, written=tuple(after))


def _ahead_of(
    group_id: str, query: str, ahead: Offsets, offsets: Offsets, written: Sequence[tuple[str, int]] = ()
) -> CommitError:
    first = min(ahead)
    return CommitError(
        f"group {group_id!r} is ahead of query {query} on {summarize(ahead)} ({first}: {ahead[first]}, the "
        f"query has finished {offsets[first]}), and this commit never moves a group back: the group follows "
        "again when the query has reached that offset, or after a reset of the group",
        failed=dict.fromkeys(ahead, AHEAD),
        written=written,
    )


def prove_commits(client: OffsetsClient, group_plans: Sequence[OffsetPlan]) -> None:
    """Check that this user may commit to every group and topic of plans, without writing."""
    for group_plan in group_plans:
        client.prove_commit(group_plan.group_id, sorted({tp.topic for tp in group_plan.after}))


def commit_groups(
    client: OffsetsClient, group_plans: Sequence[OffsetPlan], metadata: CommitMetadata, write: Write
) -> None:
    """Commit checked plans, one after another; an error names the groups that were written."""
    written: list[str] = []
    for group_plan in group_plans:
        before = group_plan.before if metadata.is_move else None
        try:
            write(client, group_plan, metadata.texts(group_plan.after, group_plan.log_ids, before))
        except (BrokerError, GroupMovedError, PlanRefusedError) as error:
            error.progress = CommitProgress(group_plan.group_id, tuple(written))
            if written:
                rest = "run the task or command again to finish the rest"
                # A command without a checkpoint leaves nothing by which its next run would find these moved.
                if "shift_by" in group_plan.source and not (
                    metadata.token or metadata.plan or metadata.query
                ):
                    rest = "run the command again for the others only, since it would shift these twice"
                error.append(f"written before: group {', '.join(written)}; {rest}")
            raise
        written.append(group_plan.group_id)
        partitions = plural(len(group_plan.after), "partition")
        log.info("Committed and read back: group %r, %s", group_plan.group_id, partitions)


def delete_groups(
    client: OffsetsClient, before: Mapping[str, Positions], save: Callable[[Mapping[str, Positions]], object]
) -> dict[str, str | None]:
    """
    Delete groups with all their offsets, and check that they no longer exist.

    :param save: saves ``before``, the offsets of each group; called before the first deletion.
    :return: group -> ``None`` if it was deleted, or the reason why it was not.
    :raises PlanRefusedError: if a group has other offsets by now.
    """
    if not before:
        return {}
    found = {group_id: client.committed_everywhere(group_id) for group_id in before}
    changed = [_changed(group_id, positions, found[group_id]) for group_id, positions in before.items()]
    PlanRefusedError.raise_if([why for why in changed if why])
    # Saved before the first deletion, because the offsets cannot be read afterwards.
    save(before)
    errors = dict(client.delete_groups(before))
    gone = [group_id for group_id, error in errors.items() if error is None]
    try:
        left = client.describe_groups(gone) if gone else {}
    except BrokerError as error:
        raise error.append(f"deleted before, but not read back: group {', '.join(gone)}") from None
    for group_id, group in left.items():
        if group.state != "Dead":
            errors[group_id] = (
                f"the group was deleted and is {group.state} again: another client commits to it"
            )
    return errors


def delete_offsets(
    client: OffsetsClient, group_id: str, before: Positions, save: Callable[[Mapping[str, Positions]], object]
) -> dict[TopicPartition, str | None]:
    """
    Delete some of a group's offsets, and read back that they are gone.

    :param save: saves ``before``; called before the first deletion.
    :return: partition -> ``None`` if it has no commit any more, else why.
    :raises PlanRefusedError: if the group has other offsets there by now.
    """
    if why := _changed(group_id, before, client.committed(group_id, before)):
        raise PlanRefusedError(why)
    save({group_id: before})
    errors = client.delete_offsets(group_id, before)
    left = _read_back(client, group_id, before, "deleted in part")
    again = "it was deleted and has an offset again: another client commits to the group"
    return {tp: None if left[tp] is None else error or again for tp, error in errors.items()}


def _changed(group_id: str, before: Positions, now: Mapping[TopicPartition, Commit | None]) -> str | None:
    """Return why the offsets of a plan must not be deleted; ``None`` if the group still has them."""
    found = committed_offsets(now)
    changed = sorted(tp for tp in {*before, *found} if before.get(tp) != found.get(tp))
    if not changed:
        return None
    return (
        f"the offsets of group {group_id!r} on {summarize(changed)} have changed since the plan was made: "
        "another client commits to the group; stop it, then try again"
    )
