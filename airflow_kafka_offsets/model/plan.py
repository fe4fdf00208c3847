"""Plan of a group's move, partition by partition, with refusals; all checks use it before the first write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from airflow_kafka_offsets.errors import CommitError, GroupMovedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.lag import Lag
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import (
    Commits,
    LogRange,
    Logs,
    Offsets,
    Positions,
    TopicPartition,
    committed_offsets,
    positions_past_targets,
    summarize,
)
from airflow_kafka_offsets.model.parameters import OutOfRangePolicy
from airflow_kafka_offsets.model.table import (
    TimesByOffset,
    furthest_moves,
    offset_cell,
    plan_text,
    time_cells,
)
from airflow_kafka_offsets.model.text import escape_controls, plural
from airflow_kafka_offsets.model.wording import parameter_text


def lost_remedy() -> str:
    """Return the remedy for an offset below the log start."""
    policy = parameter_text("on_out_of_range")
    return (
        f"set {policy} to 'clamp' to continue from the log start, or to 'skip' to leave the partition alone"
    )


class PartitionMove(NamedTuple):
    """The move of one partition."""

    topic_partition: TopicPartition
    before: int | None
    """The committed offset; ``None`` without a commit."""
    after: int
    log: LogRange
    """The range of the partition's log when the plan was made."""

    @property
    def moved_by(self) -> int:
        """Difference of offsets, negative for a move back; without a commit, from the log start."""
        return self.after - (self.log.start if self.before is None else self.before)


@dataclass(frozen=True)
class OffsetPlan:
    """
    The move of one group's offsets, before anything is written.

    :param moves: one move per partition, in order.
    :param source: origin of the offsets, as plain JSON, for the receipt.
    :param refusals: why the plan must not be applied; empty if it may be applied.
    :param notes: remarks on partitions that were clamped or left alone, as the caller allowed.
    :param times: timestamps of the records at offsets of the plan, as far as they are known.
    :param commits: the commits when the plan was made; ``before`` may be from an earlier, interrupted try.
    :param skipped: partitions that are left alone -> their position; ``None`` without a commit.
    :param clamped: partitions that move to an end of their log -> the requested offset outside the log;
        ``None`` if a time was requested.
    :param already_done: whether an earlier try has applied it and the group has moved on: nothing is written.
    :param log_ids: ids of the cluster and the topics that the offsets belong to.
    """

    group_id: str
    moves: tuple[PartitionMove, ...]
    source: Mapping[str, Any] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    times: TimesByOffset = field(default_factory=dict, repr=False)
    commits: Commits = field(default_factory=dict, repr=False)
    skipped: Positions = field(default_factory=dict, repr=False)
    clamped: Positions = field(default_factory=dict, repr=False)
    already_done: bool = False
    log_ids: LogIds = UNKNOWN_LOGS

    @classmethod
    def make(
        cls,
        group_id: str,
        targets: Mapping[TopicPartition, int],
        commits: Commits,
        logs: Logs,
        *,
        source: Mapping[str, Any] | None = None,
        on_out_of_range: OutOfRangePolicy = "fail",
        allow_rewind: bool = True,
        may_go_back: Collection[TopicPartition] = (),
        clamped: Collection[TopicPartition] = (),
        refusals: Sequence[str] = (),
        notes: Sequence[str] = (),
        log_ids: LogIds = UNKNOWN_LOGS,
        if_lost: str | None = None,
    ) -> OffsetPlan:
        """
        Compare the targets with the committed offsets and the logs, and apply the policies.

        :param commits: the present commits; partitions that are not in ``targets`` are left alone.
        :param may_go_back: partitions that may always move back.
        :param clamped: partitions whose target is an end of their log, which has no record at the requested
            time.
        :param refusals: earlier refusals, which the plan keeps; ``notes`` likewise.
        :param if_lost: remedy for an offset below the log start, see :func:`lost_remedy`.
        """
        found, remarks, before = [*refusals], [*notes], committed_offsets(commits)
        asked: dict[TopicPartition, int | None] = dict.fromkeys(clamped)
        moves: list[PartitionMove] = []
        for tp, target in sorted(targets.items()):
            log, committed = logs[tp], before[tp]
            if target not in log:
                text = f"offset {target} of {tp} is outside its log, which holds {log.start} to {log.end}"
                if on_out_of_range == "fail":
                    found.append(f"{text}: {_outside_remedy(target, log, if_lost)}")
                elif on_out_of_range == "skip":
                    remarks.append(f"{text}: left alone")
                    continue
                else:
                    asked[tp] = target
                    target = min(max(target, log.start), log.end)
                    remarks.append(f"{text}: moved to {target}")
            moves.append(PartitionMove(tp, committed, target, log))
        positions = {move.topic_partition: move.before for move in moves}
        after = {move.topic_partition: move.after for move in moves}
        passed = {} if allow_rewind else positions_past_targets(positions, after)
        if goes_back := passed.keys() & set(may_go_back):
            remarks.append(
                "was committed from the checkpoint before the checkpoint moved, and moves back with it: "
                f"{summarize(goes_back)}"
            )
        if backwards := passed.keys() - goes_back:
            first = next(move for move in moves if move.topic_partition in backwards)
            found.append(
                f"group {group_id!r} would go backwards on {summarize(backwards)} ({first.topic_partition}: "
                f"{first.before} to {first.after}): another task or tool moved the group, or the group "
                f"follows another checkpoint; check both, then set {parameter_text('allow_rewind', True)}"
            )
        return cls(
            group_id,
            tuple(moves),
            dict(source or {}),
            tuple(found),
            tuple(remarks),
            commits=commits,
            skipped={tp: at for tp, at in before.items() if tp not in positions},
            clamped=asked,
            log_ids=log_ids.restricted_to(tp.topic for tp in positions),
        )

    @cached_property
    def before(self) -> Positions:
        """The committed offsets that would be overwritten."""
        return {move.topic_partition: move.before for move in self.moves}

    @cached_property
    def committed(self) -> Positions:
        """The committed offsets of the same partitions when the plan was made."""
        return committed_offsets({tp: self.commits.get(tp) for tp in self.after})

    @cached_property
    def after(self) -> Offsets:
        """The offsets to commit."""
        return {move.topic_partition: move.after for move in self.moves}

    @property
    def changed(self) -> int:
        """Number of partitions whose committed offset will change."""
        return sum(move.before != move.after for move in self.moves)

    @property
    def moved_by(self) -> int:
        """Sum of the partitions' differences, see :attr:`PartitionMove.moved_by`."""
        return sum(move.moved_by for move in self.moves)

    @property
    def lost(self) -> int:
        """Records that retention deleted between the requested offsets and the log start, as far as known."""
        logs = {move.topic_partition: move.log for move in self.moves}
        return sum(logs[tp].lost(max(0, at)) for tp, at in self.clamped.items() if at is not None)

    @property
    def lag(self) -> Lag:
        """The lag after the plan was applied, without topics in which a partition is left alone."""
        # Without some partitions of a topic, the sum would look like a smaller lag.
        partial = {tp.topic for tp in self.skipped}
        moves = [move for move in self.moves if move.topic_partition.topic not in partial]
        logs = {move.topic_partition: move.log for move in moves}
        return Lag.measure(self.group_id, {move.topic_partition: move.after for move in moves}, logs)

    def table_moves(self) -> tuple[list[PartitionMove], str]:
        """Return the moves that a table shows, and a line about the others."""
        return furthest_moves(self.moves, lambda move: move.moved_by)

    def with_before(self, before: Mapping[TopicPartition, int | None]) -> OffsetPlan:
        """Return the plan with the group's positions before an interrupted try of the same move."""
        moves = (move._replace(before=before.get(move.topic_partition, move.before)) for move in self.moves)
        return replace(self, moves=tuple(moves))

    def with_note(self, partitions: Iterable[TopicPartition], remark: str) -> OffsetPlan:
        """Return the plan with a remark on partitions, if there are any."""
        names = list(partitions)
        return replace(self, notes=(*self.notes, f"{remark}: {summarize(names)}")) if names else self

    def partitions_of_other_query(self, query: str) -> list[TopicPartition]:
        """Return the partitions whose last commit is of another query."""
        made = {tp: CommitMetadata.of(self.commits.get(tp)).query for tp in self.after}
        return [tp for tp, maker in made.items() if maker not in ("", query)]

    def check_not_moved(self, commits: Commits) -> None:
        """Raise a GroupMovedError if the group has moved since the plan was made."""
        # Compared with `committed`, because `before` may be from an interrupted try.
        now = committed_offsets(commits)
        moved = [tp for tp, offset in self.committed.items() if tp in now and now[tp] != offset]
        if moved:
            by = CommitMetadata.of(commits[min(moved)])
            raise GroupMovedError(
                f"the commits of group {self.group_id!r} changed on {summarize(moved)} while its move was "
                f"being prepared{f' (by {by})' if by else ''}; no offset was written there; run the move "
                "again to plan it from the current offsets"
            )

    def table(self, *, refused: bool = False) -> str:
        """Return the plan as lines for a log, see :func:`~airflow_kafka_offsets.model.table.plan_text`."""
        header = ["TOPIC", "PARTITION", "FROM", "TO", "CHANGE", "LOG-START", "LOG-END"]
        rows = [[*header, "FROM-TIME", "TO-TIME"] if self.times else header]
        moves, more = self.table_moves()
        for tp, before, after, log in moves:
            change = "-" if before is None else f"{after - before:+d}"
            row = [tp.topic, str(tp.partition), offset_cell(before), str(after), change, *map(str, log)]
            rows.append([*row, *time_cells(self.times, tp, before, after)])
        total = f", moved by {self.moved_by:+d} offsets" if self.changed else ""
        exceptions = {
            "left alone": len(self.skipped),
            "moved to an end of the log instead": len(self.clamped),
            f"record{'s' * (self.lost > 1)} deleted by retention": self.lost,
        }
        rest = "".join(f"; {number} {what}" for what, number in exceptions.items() if number)
        group = f"group {escape_controls(self.group_id)}"
        does = f"{self.changed} of {len(self.moves)} partitions change{total}{rest}"
        return plan_text(group, does, rows, [more, *self.notes], self.refusals, refused=refused)


def check_read_back(group_id: str, planned: Offsets, found: Mapping[TopicPartition, int | None]) -> None:
    """Raise a CommitError if the offsets read back after a commit differ from the planned ones."""
    differs = {
        tp: f"planned {offset}, read back {found.get(tp)}"
        for tp, offset in planned.items()
        if found.get(tp) != offset
    }
    if differs:
        first = next(iter(differs))
        raise CommitError(
            f"group {group_id!r}: the offsets read back after the commit differ from those committed on "
            f"{summarize(differs)} ({first}: {differs[first]}): another process commits to this group "
            "(give each pipeline its own group), or has deleted the group or the topic",
            failed=differs,
            written=[tp for tp in planned if tp not in differs],
        )


def _outside_remedy(target: int, log: LogRange, if_lost: str | None) -> str:
    if target < log.start:
        found = f"retention has deleted {plural(log.start - target, 'record')} from there to the log start"
        if target < 0:
            found = "no offset is below 0"
        return f"{found}; {if_lost or lost_remedy()}"
    return (
        "the log does not reach it; correct the target, or if the offset was in the log once, the connection "
        "(another cluster) or the topic (it was recreated, or an unclean leader election has cut off its "
        f"log); leave the topic out with {parameter_text('topics', ...)}, or set "
        f"{parameter_text('on_out_of_range')} to 'clamp' or 'skip' (a saved plan: plan again)"
    )
