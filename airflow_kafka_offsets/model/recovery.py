"""
Verdict on a recovery: whether the tasks after a reset have read the records again.

The states of a run's tasks decide what a cleared reset does. They do not decide whether a recovery is
finished, because users of Airflow mark, clear and delete tasks. Three facts decide it: the current positions
of the groups and the checkpoint, the tasks or tools that committed last, and whether the reset's move is
still the newest one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import (
    Commit,
    Commits,
    Offsets,
    TopicPartition,
    committed_offsets,
    summarize,
)
from airflow_kafka_offsets.model.receipt import GroupReceipt, Receipt
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.wording import parameter_text


def committed_by_others(commits: Commits, movers: Collection[str]) -> bool:
    """Return whether each last commit is from none of the ``movers``, the tasks that reset or restore."""
    # Without any commit nothing is proven, but all() of an empty sequence would be true.
    return bool(commits) and all(
        commit is not None
        and not ((by := CommitMetadata.of(commit)) and (by.is_move or by.identity in movers))
        for commit in commits.values()
    )


@dataclass(frozen=True)
class Recovery:
    """
    The tasks of one recovery, as their commits identify them.

    :param resets: identities of the resets that the restore undoes.
    :param restore: metadata of the restore that judges; all its tries have the same token.
    :param groups: the groups that the restore may move.
    """

    resets: Collection[str]
    restore: CommitMetadata
    groups: Collection[str]


@dataclass(frozen=True)
class MovedCheckpoint:
    """
    The checkpoint that a reset has moved.

    :param before: source -> offsets before the reset.
    :param after: source -> offsets after the reset.
    :param now: source -> offsets of the newest finished batch.
    :param has_worked: whether the query has finished a batch since the reset, or had no records to read.
    :param number: the reset's number among the moves of the checkpoint; ``None`` if it changed no file.
    :param made_by: identity of the task that made the move.
    :param not_restorable: why the move must not be undone any more; empty if it is the newest move.
    :param restored: whether an earlier try of the restore has undone the move.
    :param other_moves: other moves of the same run that were not undone.
    """

    location: str
    before: Mapping[str, Offsets]
    after: Mapping[str, Offsets]
    now: Mapping[str, Offsets] = field(default_factory=dict)
    has_worked: bool = True
    number: int | None = None
    made_by: str = ""
    not_restorable: str = ""
    restored: bool = False
    other_moves: tuple[str, ...] = ()

    @property
    def shortfall(self) -> str:
        """Why the recovery is unfinished; empty if the checkpoint has passed both offsets of the reset."""
        for source, offsets in self.after.items():
            before, now = self.before.get(source, {}), self.now.get(source, {})
            if missed := shortfall(self.name, before, offsets, now):
                return missed
        return "" if self.has_worked else f"{self.name}: the query has finished no batch since the reset"

    @property
    def name(self) -> str:
        """The checkpoint's name in a sentence."""
        return f"checkpoint {self.location}"


@dataclass(frozen=True)
class RecoveryVerdict:
    """
    The outcome of a recovery, part by part; a part is a group or the checkpoint.

    :param shortfalls: a sentence for each part that has not passed its offsets before and after the reset.
    :param passed: the parts that have passed these offsets.
    :param groups: group -> partitions to restore.
    :param checkpoint: whether to restore the checkpoint.
    :param not_restored: the parts that must not be restored, each with the reason.
    :param restored: whether an earlier try of the restore has restored a part.
    """

    shortfalls: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    groups: Mapping[str, Collection[TopicPartition]] = field(default_factory=dict)
    checkpoint: bool = False
    not_restored: tuple[str, ...] = ()
    restored: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether every part has passed its offsets before and after the reset."""
        return not (self.shortfalls or self.not_restored or self.restored)

    @property
    def to_restore(self) -> bool:
        """Whether there is a part to restore."""
        return self.checkpoint or bool(self.groups)

    def receipt_to_restore(self, receipt: Receipt) -> Receipt:
        """Return a receipt limited to the parts to restore."""
        groups = []
        for group in receipt.groups:
            partitions = self.groups.get(group.group_id, ())
            if kept := {tp: offset for tp, offset in group.before.items() if tp in partitions}:
                groups.append(replace(group, before=kept))
        checkpoint = receipt.checkpoint if self.checkpoint else None
        return replace(receipt, groups=tuple(groups), checkpoint=checkpoint)

    def describe_outcome(self, receipt: Receipt, restored: Receipt | None) -> str:
        """Describe which parts were restored; ``restored`` is ``None`` if no part was to restore."""
        names = [f"group {group!r}" for group in sorted(self.groups)]
        left = [
            *self.not_restored,
            *(f"{name} has passed its earlier position, and stays where it is" for name in self.passed),
        ]
        if restored is not None:
            wanted = self.receipt_to_restore(receipt)
            left += _not_as_before(wanted, restored)
            names += [f"checkpoint {wanted.checkpoint.location}"] if wanted.checkpoint else []
        elif not self.restored:
            return ": ".join(["nothing was put back", *(["; ".join(left)] if left else [])])
        if not left:
            return "everything was put back"
        return (
            f"put back: {', '.join(names) or 'the rest, by an earlier try'}; not put back: {'; '.join(left)}"
        )


def _not_as_before(receipt: Receipt, restored: Receipt) -> list[str]:
    """Return the parts that a restore has left at other offsets than the receipt's ``before``."""
    elsewhere = parameter_text("on_out_of_range")
    found = []
    for group in receipt.groups:
        reached = restored.group(group.group_id).after
        if others := [tp for tp, offset in group.before.items() if reached.get(tp) != offset]:
            found.append(
                f"group {group.group_id!r} on {summarize(others)}, which had no commit, or which {elsewhere} "
                "moved to another offset"
            )
    wanted, put_back = receipt.checkpoint, restored.checkpoint
    if wanted is not None and (put_back is None or put_back.after != wanted.before):
        found.append(f"checkpoint {wanted.location} where {elsewhere} moved it to another offset")
    return found


def judge(
    groups: Sequence[GroupReceipt],
    commits: Mapping[str, Commits],
    moved: MovedCheckpoint | None,
    recovery: Recovery,
) -> RecoveryVerdict:
    """
    Judge a recovery by the current positions of its groups and its checkpoint.

    :param commits: group -> the last commits of the partitions that the reset has moved.
    """
    missed: list[str] = []
    passed: list[str] = []
    left: list[str] = []
    back: dict[str, Collection[TopicPartition]] = {}
    restored = moved is not None and moved.restored
    goes_back = moved is not None and not (moved.not_restorable or moved.restored) and bool(moved.shortfall)
    if moved is not None:
        left += [*([moved.not_restorable] if moved.not_restorable else []), *moved.other_moves]
        if goes_back:
            missed.append(moved.shortfall)
        elif not (moved.not_restorable or moved.restored):
            passed.append(moved.name)
    for group in groups:
        name = f"group {group.group_id!r}"
        last = commits[group.group_id]
        goals = _goals(group.before, group.after)
        found = {
            tp: _verdict(last.get(tp), goal, group.before.get(tp), moved, recovery)
            for tp, goal in goals.items()
        }
        restored = restored or "restored" in found.values()
        for tp, verdict in found.items():
            if verdict == "moved again":
                left.append(
                    f"{name} was moved again or restored on {tp} by {CommitMetadata.of(last.get(tp))}"
                )
                break
        unfinished = {tp: goals[tp] for tp, verdict in found.items() if verdict == "unfinished"}
        if unfinished:
            missed.append(_missed(name, committed_offsets(last), unfinished))
        if goes_back:
            unfinished |= {tp: goals[tp] for tp, verdict in found.items() if verdict == "passed"}
        if unfinished and group.group_id not in recovery.groups:
            known = ", ".join(sorted(recovery.groups))
            left.append(f"{name} is not put back: {parameter_text('group_id')} names {known}")
        elif unfinished:
            back[group.group_id] = frozenset(unfinished)
        elif "passed" in found.values():
            passed.append(name)
    return RecoveryVerdict(tuple(missed), tuple(passed), back, goes_back, tuple(left), restored)


_Verdict = Literal["passed", "unfinished", "restored", "moved again", "superseded"]


def _verdict(
    commit: Commit | None, goal: int, before: int | None, moved: MovedCheckpoint | None, recovery: Recovery
) -> _Verdict:
    if commit is None:
        return "unfinished"
    by, own = CommitMetadata.of(commit), recovery.restore
    number, made_by = (None, "") if moved is None else (moved.number, moved.made_by)
    # The reset's own commit is still the last one, so the pipeline has not continued.
    if by.identity and by.identity in (*recovery.resets, made_by):
        return "unfinished"
    if own.is_same_task(by) and by.token == own.token and commit.offset == before:
        return "restored"
    # Checked after "restored": a commit of another run of this restore counts as another move.
    if by.is_move or own.is_same_task(by):
        return "moved again"
    # A commit with a lower move number comes from a position before the move.
    overtaken = by.move is not None and number is not None and by.move < number
    if commit.offset >= goal and not overtaken:
        return "passed"
    # If the reset's move is no longer the newest one, later commits belong to the newer move.
    return "superseded" if moved is not None and moved.not_restorable and not overtaken else "unfinished"


def shortfall(
    name: str,
    before: Mapping[TopicPartition, int | None],
    after: Offsets,
    now: Mapping[TopicPartition, int | None],
) -> str:
    """Return why the recovery of a group or checkpoint is unfinished; empty if it has passed both offsets."""
    goals = _goals(before, after)
    behind = {tp: goal for tp, goal in goals.items() if (at := now.get(tp)) is None or at < goal}
    return _missed(name, now, behind) if behind else ""


def _goals(before: Mapping[TopicPartition, int | None], after: Offsets) -> Offsets:
    # After a move forward the goal is the target of the reset, after a move back the position before it.
    return {tp: max(offset, before.get(tp) or 0) for tp, offset in after.items()}


def _missed(name: str, at: Mapping[TopicPartition, int | None], goals: Mapping[TopicPartition, int]) -> str:
    tp, goal = min(goals.items())
    more = f", like {plural(len(goals) - 1, 'more partition')}" if len(goals) > 1 else ""
    offset = at.get(tp)
    if offset is None:
        return f"{name} has no position on {tp}{more}"
    if offset >= goal:
        return f"{name} was not committed since the reset"
    return f"{name} is at {offset} on {tp}, before {goal}{more}"
