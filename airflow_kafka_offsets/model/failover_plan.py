"""Plan of a failover: the move of a checkpoint and its groups to a mirror."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, summarize
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.table import FURTHEST, ROWS, plan_text
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.translation import Search, Translation

FAILOVER_FILE = "failover.json"
"""File in the archive of a checkpoint that holds the translation of its position."""


UnknownPolicy = Literal["fail", "earliest"]
"""What to do with a partition whose position on the mirror is unknown."""
DeletedPolicy = Literal["fail", "clamp"]
"""What to do with a position that the mirror has deleted, or does not reach."""


@dataclass(frozen=True)
class FailoverPolicy:
    """The permissions of a failover."""

    on_unknown: UnknownPolicy = "fail"
    on_out_of_range: DeletedPolicy = "fail"
    allow_running_mirror: bool = False
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)


@dataclass(frozen=True)
class TranslatedPartition:
    """
    The position of a query in one partition, on both clusters.

    :param source: index or name of the query's source.
    :param partition: the partition on the old cluster; ``position`` is the next offset to read from it.
    :param mirrored: the partition on the mirror; ``translation`` is the position there, ``log`` its log
        range, ``None`` if the mirror has no such partition.
    :param unmirrored: most records of the old log that were never copied; ``None`` if unknown.
    :param searches: the searches on the mirror for records before the position.
    """

    source: str
    partition: TopicPartition
    position: int
    mirrored: TopicPartition
    translation: Translation
    log: LogRange | None = None
    unmirrored: int | None = None
    searches: Sequence[Search] = ()

    @property
    def deleted(self) -> bool:
        """Whether the mirror has deleted the position."""
        offset = self.translation.offset
        return offset is not None and self.log is not None and offset < self.log.start

    def or_from_start(self) -> TranslatedPartition:
        """Return the partition, read from the mirror's log start if its position is unknown."""
        if self.translation.offset is not None or self.log is None:
            return self
        start, end = self.log
        return replace(self, translation=replace(self.translation, offset=start, again=end - start))


@dataclass(frozen=True)
class FailoverPlan(PipelinePlan):
    """
    The moves of a checkpoint and its groups to a mirror.

    :param notes: remarks, such as that a cluster did not answer.
    :param was: translation of an interrupted try or of a saved plan, as plain JSON.
    """

    may_be_empty: bool = True
    translated: Sequence[TranslatedPartition] = ()
    notes: Sequence[str] = ()
    was: Mapping[str, Any] | None = None

    @property
    def again(self) -> int:
        """Most records that may be read again."""
        return most_again(self.translated)

    def table_positions(self) -> set[tuple[TopicPartition, int]]:
        """Return the positions in the groups' tables; the checkpoint's old offsets are of another cluster."""
        return PipelinePlan(self.group_plans).table_positions()

    def tables(self) -> list[str]:
        """Return the translation, and the groups' tables."""
        refused = bool(self.refusals)
        return [self._table(refused=refused), *(plan.table(refused=refused) for plan in self.group_plans)]

    def make_receipt(self, *, plan_only: bool = False, verified: bool = False) -> dict[str, Any]:
        """Return the receipt, with the translation under ``failover``."""
        value = super().make_receipt(plan_only=plan_only, verified=verified)
        left = {} if self.checkpoint_plan is None else {"left": self.checkpoint_plan.left_logs.as_json()}
        return {**value, "failover": {**self.as_json(), **left}}

    def archive_files(self) -> dict[str, str]:
        """Return the files for the archive."""
        return {**super().archive_files(), FAILOVER_FILE: json.dumps(self.as_json(), indent=2)}

    def as_json(self) -> dict[str, Any]:
        """
        Return the translation as plain JSON.

        ``exact``, ``again`` (most records), ``unmirrored`` (most records; ``null`` if unknown for every
        partition), ``kinds`` (number of partitions that are ``exact (sync)``, ``exact (record)``,
        ``exact (empty)``, ``safe`` and ``unknown``), by topic and partition of the old cluster ``not_exact``
        (most records that are read again) and ``unknown`` (why), and ``notes`` (remarks, such as that a
        cluster did not answer).
        """
        if self.was is not None:
            return dict(self.was)
        again = {each.partition: each.translation.again for each in self.translated}
        unknown = [each for each in self.translated if each.translation.offset is None]
        unmirrored = [each.unmirrored for each in self.translated if each.unmirrored is not None]
        return {
            "exact": all(each.translation.exact for each in self.translated),
            "again": self.again,
            "unmirrored": sum(unmirrored) if unmirrored else None,
            "kinds": count_kinds(self.translated),
            "not_exact": offsets_json({tp: records for tp, records in again.items() if records}),
            "unknown": {str(each.partition): each.translation.why for each in unknown},
            "notes": list(self.notes),
        }

    def _table(self, *, refused: bool) -> str:
        of = self.checkpoint_plan
        if of is None:
            return ""
        header = ["SOURCE", "TOPIC", "PARTITION", "FROM", "MIRROR-TOPIC", "TO", "TRANSLATION", "NOT-MIRRORED"]
        shown, more = _shown(self.translated)
        rows = [header, *(_row(each) for each in shown)]
        left, entered = (ids.cluster or "(unknown)" for ids in (of.left_logs, of.log_ids))
        way = f"from cluster {left} to {entered}"
        if left == entered and of.left_logs.cluster:
            way = f"to other topics of cluster {left}"
        if self.was is not None:
            saved = self.provenance.get("plan")
            rows, more = [], "the positions are those of an earlier try, which this one finishes"
            if saved:
                more = f"the positions are those of the saved plan {saved}: {kinds_text(self.was['kinds'])}"
        remarks = [more, *_whys(self.translated), *self.notes]
        if of.discarded:
            remarks.append(f"discarded: unfinished batch {', '.join(map(str, of.discarded))}")
        if of.steps and not refused:
            remarks.append(f"what is overwritten is kept in archive {of.archive}")
        name, does = f"checkpoint {of.location}", f"batch {of.batch_id}, {way}"
        return plan_text(name, does, rows, remarks, of.refusals, refused=refused)


def _row(each: TranslatedPartition) -> list[str]:
    to, unmirrored = each.translation.offset, each.unmirrored
    return [
        each.source,
        each.partition.topic,
        str(each.partition.partition),
        str(each.position),
        each.mirrored.topic,
        "-" if to is None else str(to),
        str(each.translation),
        "?" if unmirrored is None else str(unmirrored),
    ]


def _shown(translated: Sequence[TranslatedPartition]) -> tuple[Sequence[TranslatedPartition], str]:
    if len(translated) <= ROWS:
        return translated, ""
    ordered = sorted(
        translated, key=lambda each: (each.translation.offset is not None, -each.translation.again)
    )
    rest = ordered[FURTHEST:]
    exact, again = sum(each.translation.exact for each in rest), most_again(rest)
    return ordered[:FURTHEST], (
        f"... and {plural(len(rest), 'more partition')}: {exact} exact, the others at most {again} again "
        "together"
    )


def _whys(translated: Iterable[TranslatedPartition]) -> list[str]:
    found: dict[str, list[TopicPartition]] = {}
    for each in translated:
        if each.translation.why:
            found.setdefault(each.translation.why, []).append(each.partition)
    return [f"{summarize(partitions)}: {why}" for why, partitions in found.items()]


def most_again(translated: Iterable[TranslatedPartition]) -> int:
    """Return the most records that may be read again."""
    return sum(each.translation.again for each in translated)


def count_kinds(translated: Iterable[TranslatedPartition]) -> dict[str, int]:
    """Return the number of partitions with each kind of translation, such as ``exact (sync)``."""
    return dict(sorted(Counter(str(each.translation).partition(":")[0] for each in translated).items()))


def kinds_text(kinds: Mapping[str, int]) -> str:
    """Return the result of :func:`count_kinds` as text."""
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def again_text(translated: Iterable[TranslatedPartition]) -> str:
    """Return a sentence about the records that may be read again; empty if no record may be."""
    # An unknown position is refused, or counted from the log start.
    again = {each.partition: each.translation.again for each in translated if each.translation.again}
    if not again:
        return ""
    return f"at most {plural(sum(again.values()), 'record')} may be read again on {summarize(again)}"
