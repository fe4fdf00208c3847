"""
Plan of a checkpoint's move: offsets before and after, refusals, and the files to write and remove.

The order of the files matters: after an interruption at any step, Spark can start from the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.formats import offsets_json, parse_offsets
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, flat
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.table import (
    TimesByOffset,
    furthest_moves,
    offset_cell,
    plan_text,
    time_cells,
    times_json,
)
from airflow_kafka_offsets.model.text import DescribeValue, shorten

MoveKind = Literal["seek", "truncate", "restore", "failover"]

_SOURCE = re.compile(r"[A-Za-z0-9_]{1,100}")


class Step(NamedTuple):
    """One file to write or remove."""

    path: str
    """Path under the checkpoint, such as ``offsets/7``."""
    data: bytes | None
    """New content; ``None`` removes the file."""


@dataclass(frozen=True)
class CheckpointPlan:
    """
    The move of one checkpoint, before anything is written.

    :param batch_id: the newest committed batch when the plan was made.
    :param before: source -> offsets at the end of that batch.
    :param after: source -> offsets from which the query will continue.
    :param derived: files that are removed first and not archived, because Spark can recreate them.
    :param steps: files to change, in this order.
    :param file_contents: current content of each file in the steps; ``None`` for a file that does not exist.
    :param discarded: unfinished batches that are removed.
    :param batches: the batch ids in ``offsets/`` and in ``commits/`` when the plan was made.
    :param refusals: why the plan must not be applied; empty if it may be applied.
    :param archive: name of the archive for the files that are overwritten; ``None`` if no file changes.
    :param request: identifies the request, so that only the same request resumes an interrupted move.
    :param carried: whether ``before`` is the start of an earlier move that this move continues.
    :param resumes: whether an earlier try has already written the archive.
    :param repeats: whether the resumed move was finished when the plan was made.
    :param undoes: name of the archive that is restored.
    :param copies: whether a restore copies the archived files back; otherwise it moves to the archived
        offsets.
    :param group_plans: the targets compared with the logs, one plan a source; empty if not compared.
    :param recovery: whether a teardown task restores the checkpoint if the tasks after the move do not
        finish.
    :param times: the timestamps of records at offsets of the plan, as far as they are known.
    :param log_ids: ids of the cluster and the topics that the offsets belong to, as far as they are known.
    :param left_logs: for a move to another cluster, or in a topic that was created again, ids of the cluster
        and the topics that the offsets belonged to before.
    """

    kind: MoveKind
    location: str
    query_id: str
    batch_id: int
    before: Mapping[str, Offsets]
    after: Mapping[str, Offsets]
    derived: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    file_contents: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)
    discarded: tuple[int, ...] = ()
    batches: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    archive: str | None = None
    request: str = ""
    carried: bool = False
    resumes: bool = False
    repeats: bool = False
    undoes: str | None = None
    copies: bool = False
    group_plans: tuple[OffsetPlan, ...] = field(default=(), repr=False)
    recovery: bool = False
    times: TimesByOffset = field(default_factory=dict, repr=False)
    log_ids: LogIds = UNKNOWN_LOGS
    left_logs: LogIds = UNKNOWN_LOGS

    @property
    def undoes_failover(self) -> bool:
        """Whether it takes a failover back: its offsets belong to the cluster that the failover left."""
        return self.copies and bool(self.left_logs)

    @property
    def number(self) -> int | None:
        """The number of the move among the moves of the checkpoint; ``None`` if no file changes."""
        # An archive is named by its number and its kind, see checkpoint/archived_moves.py.
        return None if self.archive is None else int(self.archive.partition("-")[0])

    def offsets_moved(self, with_groups: Collection[TopicPartition]) -> dict[str, Offsets]:
        """Return the offsets before of the partitions that it moves, or that move with their groups."""
        after, moved = flat(self.after), dict[str, Offsets]()
        for (source, tp), offset in flat(self.before).items():
            if tp in with_groups or after.get((source, tp)) != offset:
                moved.setdefault(source, {})[tp] = offset
        return moved

    def with_group_plans(self, group_plans: Iterable[OffsetPlan]) -> CheckpointPlan:
        """Return the plan with the findings of plans that compared its targets with the logs."""
        compared = tuple(group_plans)
        return replace(
            self,
            refusals=(*(refusal for plan in compared for refusal in plan.refusals), *self.refusals),
            notes=(*(note for plan in compared for note in plan.notes), *self.notes),
            group_plans=compared,
            log_ids=LogIds.union([self.log_ids, *(plan.log_ids for plan in compared)]),
        )

    def make_receipt(self) -> dict[str, Any]:
        """
        Return the plan as plain JSON.

        ``kind``, ``location``, ``query_id``, ``batch_id``, ``before`` and ``after`` (``{source: offsets}``),
        ``discarded`` (batch ids), ``archive`` (``null`` if no file changes) and ``logs`` (the ids of
        ``cluster`` and ``topics``). If the checkpoint moves without a group, the receipt also has
        ``skipped``, ``clamped``, ``lost`` and ``times`` by source, as in a group's receipt.
        """
        shown, _ = self.table_rows()
        plans = self.group_plans
        compared = {
            "skipped": {plan.group_id: offsets_json(plan.skipped) for plan in plans if plan.skipped},
            "clamped": {plan.group_id: offsets_json(plan.clamped) for plan in plans if plan.clamped},
            "lost": sum(plan.lost for plan in plans),
        }
        times = {
            source: times_json(self.times, (move[1:] for move in shown if move[0] == source))
            for source in self.before
        }
        return {
            "kind": self.kind,
            "location": self.location,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "before": sources_json(self.before),
            "after": sources_json(self.after),
            "discarded": list(self.discarded),
            "archive": self.archive,
            "logs": self.log_ids.as_json(),
            **(compared if plans else {}),
            **({"times": times} if self.times else {}),
        }

    @classmethod
    def parse(cls, value: object, *, describe: DescribeValue = shorten) -> CheckpointPlan:
        """Read the plan in a receipt; any other value raises an OffsetsFormatError."""
        known: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        location, query_id, archive = (known.get(name) for name in ("location", "query_id", "archive"))
        batch_id, discarded = known.get("batch_id", -1), known.get("discarded", ())
        texts = isinstance(location, str) and isinstance(query_id, str) and isinstance(archive, str | None)
        batches = isinstance(batch_id, int) and isinstance(discarded, list | tuple)
        if not (texts and batches and {"before", "after"} <= known.keys()):
            raise OffsetsFormatError(f"receipt: found {describe(value)}; expected the checkpoint's part")
        return cls(
            kind=known.get("kind", "seek"),
            location=str(location),
            query_id=str(query_id),
            batch_id=batch_id,
            before=read_sources(known["before"], "receipt, checkpoint, before", describe=describe),
            after=read_sources(known["after"], "receipt, checkpoint, after", describe=describe),
            discarded=tuple(discarded),
            archive=archive,
            log_ids=LogIds.parse(known.get("logs"), "receipt, checkpoint, logs", describe=describe),
        )

    def table_rows(self) -> tuple[list[tuple[str, TopicPartition, int | None, int | None]], str]:
        """Return the rows of a table (source, partition, before, after), and a line about the others."""
        moves = [
            (source, tp, offsets.get(tp), self.after.get(source, {}).get(tp))
            for source, offsets in self.before.items()
            for tp in sorted({*offsets, *self.after.get(source, {})})
        ]
        return furthest_moves(moves, lambda move: _change(*move[2:]) or 0)

    def table(self, *, refused: bool = False) -> str:
        """Return the plan as lines for a log, see :func:`~airflow_kafka_offsets.model.table.plan_text`."""
        header = ["SOURCE", "TOPIC", "PARTITION", "FROM", "TO", "CHANGE"]
        rows = [[*header, "FROM-TIME", "TO-TIME"] if self.times else header]
        moves, more = self.table_rows()
        for source, tp, offset, after in moves:
            change = _change(offset, after)
            moved = [offset_cell(offset), offset_cell(after), "-" if change is None else f"{change:+d}"]
            times = time_cells(self.times, tp, offset, after)
            rows.append([source, tp.topic, str(tp.partition), *moved, *times])
        unmade = refused or bool(self.refusals)
        # No step is left: an earlier try has applied the steps, or the checkpoint is already at the target.
        if not self.steps and (self.resumes or not self.refusals or self.before == self.after):
            moved_before = self.resumes or self.before != self.after
            does = "was moved by an earlier try" if moved_before else "stays as it is"
        elif self.kind == "truncate":
            does = f"{'would go' if unmade else 'goes'} back from batch {self.batch_id}"
        else:
            does = f"{'would move' if unmade else 'moves'} ({self.kind}, batch {self.batch_id})"
        remarks = [more]
        if self.discarded:
            remarks.append(f"discarded: unfinished batch {', '.join(map(str, self.discarded))}")
        if self.steps and not self.refusals and not refused:
            remarks.append(f"archive {self.archive} keeps the files that are overwritten")
        name = f"checkpoint {self.location}"
        return plan_text(name, does, rows, [*remarks, *self.notes], self.refusals, refused=refused)


def _change(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def sources_json(sources: Mapping[str, Offsets]) -> dict[str, Any]:
    """Return the offsets of sources as plain JSON, ``{source: {topic: {partition: offset}}}``."""
    return {source: offsets_json(offsets) for source, offsets in sources.items()}


def read_sources(value: object, what: str, *, describe: DescribeValue = shorten) -> dict[str, Offsets]:
    """Read the result of :func:`sources_json`; any other value raises an OffsetsFormatError."""
    if not isinstance(value, Mapping) or not all(isinstance(source, str) for source in value):
        raise OffsetsFormatError(f"{what}: found {describe(value)}; expected offsets by source")
    sources: dict[str, Offsets] = {}
    for number, (source, offsets) in enumerate(value.items(), 1):
        # An unchecked name may contain anything, so the error text gives the source's number instead.
        name = source if _SOURCE.fullmatch(source) else f"source number {number}"
        sources[source] = parse_offsets(offsets, f"{what}, {name}", describe=describe)
    return sources
