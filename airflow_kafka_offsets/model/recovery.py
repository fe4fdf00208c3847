"""
Judges a recovery: whether a reset was followed by the work it was made for.

The states of a run's tasks say what a cleared reset has to do. They do not say whether a recovery is
finished: Airflow's users mark, clear and delete tasks. That is decided by where the groups and the checkpoint
are now, by who has committed, and by whether the reset's own move is still the newest one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.formats import offsets_json, parse_positions
from airflow_kafka_offsets.model.offsets import Offsets, Positions, TopicPartition, summarize
from airflow_kafka_offsets.model.receipt import GroupReceipt, read_receipt
from airflow_kafka_offsets.model.wording import parameter_text

SUCCESS = "success"
FAILED = frozenset({"failed", "upstream_failed"})

TaskStates = Mapping[str, Sequence["str | None"]]
"""
Task id -> the states of its instances in this run, one for each map index; ``None`` for one that is to run.
"""


@dataclass(frozen=True)
class RecoveryTasks:
    """The tasks between a reset and its teardown: those that read again what was moved."""

    states: TaskStates
    downstream: Mapping[str, Collection[str]]
    """Task id -> the tasks of them that come after it."""

    @property
    def succeeded(self) -> list[str]:
        """Tasks all of whose instances have succeeded."""
        return sorted(task for task, states in self.states.items() if set(states) == {SUCCESS})

    @property
    def not_succeeded(self) -> list[str]:
        """The other tasks."""
        return sorted(set(self.states) - set(self.succeeded))

    @property
    def partly_succeeded(self) -> list[str]:
        """Tasks of which some instances have succeeded, and others have not."""
        return [task for task in self.not_succeeded if SUCCESS in self.states[task]]

    @property
    def failed(self) -> list[str]:
        """Tasks of which an instance has failed, or could not run because another one had."""
        return sorted(task for task, states in self.states.items() if FAILED.intersection(states))

    @property
    def outdated(self) -> list[str]:
        """
        Tasks that have succeeded although one before them is to run again.

        They were left out when that one was cleared, and would not notice what it does now. If every task has
        succeeded, the reset was cleared alone, and these are all of them.
        """
        # Airflow clears what comes after a task only if it is told to (Downstream).
        if not self.not_succeeded:
            return self.succeeded
        after = {later for task in self.not_succeeded for later in self.downstream.get(task, ())}
        return [task for task in self.succeeded if task in after]

    def describe(self, tasks: Collection[str]) -> str:
        """Name tasks with their states."""
        return ", ".join(
            f"{task}: {', '.join(sorted({state or 'not run' for state in self.states[task]}))}"
            for task in sorted(tasks)
        )


@dataclass(frozen=True)
class LastCommit:
    """The last commit of a partition: where it is, and who made it (``None`` if it does not say)."""

    offset: int
    by: CommitMetadata | None


def committed_by_others(commits: Mapping[TopicPartition, LastCommit | None], movers: Collection[str]) -> bool:
    """
    Return whether every partition was last committed by a task or client that does not move it on purpose.

    :param movers: the identities of the tasks that reset and restore.
    """
    # No commit at all proves nothing: all() of nothing would call that work done.
    return bool(commits) and all(
        commit is not None and not (commit.by and (commit.by.is_move or commit.by.identity in movers))
        for commit in commits.values()
    )


@dataclass(frozen=True)
class Recovery:
    """
    The tasks of one recovery, as their commits name them.

    :param resets: identities of the resets that the restore takes back.
    :param restore: the restore that judges; its token is that of its tries.
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
    :param after: source -> offsets that the reset has moved it to.
    :param now: source -> offsets of the newest batch that has finished.
    :param has_worked: the query has finished a batch since, or had nothing to read.
    :param number: which move of the checkpoint the reset was; ``None`` if it changed no file.
    :param made_by: identity of the task that made it.
    :param not_restorable: why the reset's move is no longer to be taken back; empty if it is the newest one.
    :param restored: an earlier try of the restore has taken the move back.
    :param other_moves: other moves of the same run that were not taken back.
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
        """What it has not reached; empty if it has passed where it was before, and where it went."""
        for source, offsets in self.after.items():
            before, now = self.before.get(source, {}), self.now.get(source, {})
            if missed := _short_of(self.name, before, offsets, now):
                return missed
        return "" if self.has_worked else f"{self.name}: the query has finished no batch since the reset"

    @property
    def name(self) -> str:
        """The checkpoint in a sentence."""
        return f"checkpoint {self.location}"


@dataclass(frozen=True)
class RecoveryVerdict:
    """
    What became of a recovery, part by part; a part is a group or the checkpoint.

    :param shortfalls: what has not passed where it was before the reset, and where the reset moved it.
    :param passed: the parts that have.
    :param groups: group -> partitions to put back.
    :param checkpoint: whether the checkpoint is to be put back.
    :param not_restored: the parts that are not to be put back, each with the reason.
    :param restored: whether an earlier try of the restore has put something back.
    """

    shortfalls: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    groups: Mapping[str, Collection[TopicPartition]] = field(default_factory=dict)
    checkpoint: bool = False
    not_restored: tuple[str, ...] = ()
    restored: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether every part has passed where it was."""
        return not (self.shortfalls or self.not_restored or self.restored)

    @property
    def to_restore(self) -> bool:
        """Whether anything is to be put back."""
        return self.checkpoint or bool(self.groups)

    def receipt_to_restore(self, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a receipt says of the parts that are to be put back."""
        groups = []
        for group in receipt.get("groups", [receipt]):
            partitions = self.groups.get(group["group_id"], ())
            before = parse_positions(group["before"]) if partitions else {}
            kept = {tp: offset for tp, offset in before.items() if tp in partitions}
            if kept:
                groups.append({**group, "before": offsets_json(kept)})
        narrowed = {name: value for name, value in receipt.items() if name in ("version", "plan_only")}
        if self.checkpoint:
            narrowed["checkpoint"] = receipt["checkpoint"]
        return {**narrowed, "groups": groups}

    def describe_outcome(self, receipt: Mapping[str, Any], restored: Mapping[str, Any] | None) -> str:
        """
        Say what was put back and what was not.

        :param receipt: of the reset.
        :param restored: the receipt of the restore; ``None`` if it had nothing to put back.
        """
        names = [f"group {group!r}" for group in sorted(self.groups)]
        left = [
            *self.not_restored,
            *(f"{name} has passed where it was, and stays there" for name in self.passed),
        ]
        if restored is not None:
            left += _not_as_before(self.receipt_to_restore(receipt), restored)
            names += [f"checkpoint {receipt['checkpoint']['location']}"] if self.checkpoint else []
        elif not self.restored:
            return ": ".join(["nothing was put back", *(["; ".join(left)] if left else [])])
        if not left:
            return "everything was put back"
        return (
            f"put back: {', '.join(names) or 'the rest, by an earlier try'}; not put back: {'; '.join(left)}"
        )


def _not_as_before(receipt: Mapping[str, Any], restored: Mapping[str, Any]) -> list[str]:
    """Return what a restore has left elsewhere than a receipt says it was."""
    elsewhere = parameter_text("on_out_of_range")
    at = {group.group_id: group.after for group in read_receipt(restored)}
    found = []
    for group in read_receipt(receipt):
        reached = at.get(group.group_id, {})
        if others := [tp for tp, offset in group.before.items() if reached.get(tp) != offset]:
            found.append(
                f"group {group.group_id!r} on {summarize(others)}, which had no commit, or which "
                f"{elsewhere} moves elsewhere"
            )
    wanted, put_back = receipt.get("checkpoint"), restored.get("checkpoint")
    if wanted is not None and (put_back is None or put_back["after"] != wanted["before"]):
        found.append(f"checkpoint {wanted['location']} where {elsewhere} moves it elsewhere")
    return found


def judge(
    groups: Sequence[GroupReceipt],
    commits: Mapping[str, Mapping[TopicPartition, LastCommit | None]],
    moved: MovedCheckpoint | None,
    recovery: Recovery,
) -> RecoveryVerdict:
    """
    Judge a recovery by where its groups and its checkpoint are now.

    :param groups: the groups of the reset's receipt.
    :param commits: group -> the last commits of the partitions that the reset has moved.
    :param moved: the checkpoint that moved along, ``None`` if none did.
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
        # Both: a recovery that went forward has to reach where it went, one that went back where it was.
        goals = {tp: max(offset, group.before.get(tp) or 0) for tp, offset in group.after.items()}
        found = {
            tp: _verdict(last.get(tp), goal, group.before.get(tp), moved, recovery)
            for tp, goal in goals.items()
        }
        restored = restored or "restored" in found.values()
        for tp, verdict in found.items():
            if verdict == "moved again" and (commit := last.get(tp)) is not None:
                left.append(f"{name} was moved again or taken back on {tp} by {commit.by}")
                break
        ours = {tp: goals[tp] for tp, verdict in found.items() if verdict == "ours"}
        if ours:
            at = {tp: commit.offset for tp, commit in last.items() if commit is not None}
            missed.append(_missed(name, at, ours))
        if goes_back:
            ours |= {tp: goals[tp] for tp, verdict in found.items() if verdict == "passed"}
        if ours and group.group_id not in recovery.groups:
            known = ", ".join(sorted(recovery.groups))
            left.append(f"{name} is not put back: {parameter_text('group_id')} names {known}")
        elif ours:
            back[group.group_id] = frozenset(ours)
        elif "passed" in found.values():
            passed.append(name)
    return RecoveryVerdict(tuple(missed), tuple(passed), back, goes_back, tuple(left), restored)


_Verdict = Literal["passed", "ours", "restored", "moved again", "another's"]


def _verdict(
    commit: LastCommit | None,
    goal: int,
    before: int | None,
    moved: MovedCheckpoint | None,
    recovery: Recovery,
) -> _Verdict:
    """Return what became of one partition of a group."""
    if commit is None:
        return "ours"
    by, own = commit.by, recovery.restore
    resets = {*recovery.resets, *([moved.made_by] if moved is not None and moved.made_by else [])}
    # The reset's own commit is still the last one: nothing was done since.
    if by is not None and by.identity and by.identity in resets:
        return "ours"
    if by is not None and own.is_same_task(by) and by.token == own.token and commit.offset == before:
        return "restored"
    # After "restored": another run of this restore is somebody else's move by now.
    if by is not None and (by.is_move or own.is_same_task(by)):
        return "moved again"
    # A commit that did not know the move was made from the position before it.
    number = None if moved is None else moved.number
    overtaken = by is not None and by.move is not None and number is not None and by.move < number
    if commit.offset >= goal and not overtaken:
        return "passed"
    # What was committed after another move of the checkpoint belongs to that one.
    return "another's" if moved is not None and moved.not_restorable and not overtaken else "ours"


def group_shortfall(group_id: str, before: Positions, after: Offsets, now: Positions) -> str:
    """Return what a group has not reached; empty if it has passed where it was before, and where it went."""
    return _short_of(f"group {group_id!r}", before, after, now)


def _short_of(
    name: str,
    before: Mapping[TopicPartition, int | None],
    after: Offsets,
    now: Mapping[TopicPartition, int | None],
) -> str:
    goals = {tp: max(offset, before.get(tp) or 0) for tp, offset in after.items()}
    behind = {tp: goal for tp, goal in goals.items() if (at := now.get(tp)) is None or at < goal}
    return _missed(name, now, behind) if behind else ""


def _missed(name: str, at: Mapping[TopicPartition, int | None], goals: Mapping[TopicPartition, int]) -> str:
    tp, goal = min(goals.items())
    more = f", as {len(goals) - 1} more partitions are" if len(goals) > 1 else ""
    offset = at.get(tp)
    if offset is None:
        return f"{name} has no position on {tp}{more}"
    if offset >= goal:
        return f"{name} was not committed since the reset"
    return f"{name} is at {offset} on {tp}, before {goal}{more}"
