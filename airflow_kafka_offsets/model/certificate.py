"""The certificate of an offset window: whether a table holds each of its records exactly once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from airflow_kafka_offsets.errors import AuditError, OffsetsFormatError
from airflow_kafka_offsets.model.audited_rows import ForeignRows, TableRows
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.formats import load_json, offsets_json
from airflow_kafka_offsets.model.offset_ranges import (
    RangesByPartition,
    count_offsets,
    first_ranges,
    merge,
    ranges_json,
    ranges_text,
)
from airflow_kafka_offsets.model.offsets import by_partition
from airflow_kafka_offsets.model.text import DescribeValue, escape_controls, join_first, plural, shorten
from airflow_kafka_offsets.model.window import OffsetWindow

CERTIFICATE_VERSION = 1
MOST_LISTED = 100
"""Largest number of listed ranges of each kind; the counts in a certificate include the unlisted ones."""

CertificateVerdict = Literal["complete", "incomplete", "undecided"]
"""
``complete``: each record of the window is in the table exactly once. ``incomplete``: records are lost or
doubled, or rows are foreign. ``undecided``: no error was found, but some offsets could not be checked.
"""

Reason = Literal["retention", "open_transaction", "other_log", "not_read", "too_many"]
"""Why the audit cannot decide whether the record of an offset without a row is lost."""

REASONS: Mapping[Reason, str] = {
    "retention": "retention has deleted these records from the log, so they can no longer be compared",
    "open_transaction": "a transaction is still open there: audit again after it has ended",
    "other_log": (
        "the window was planned on another log: the topic was recreated, or the cluster is another one"
    ),
    "not_read": "the log could not be read at these offsets",
    "too_many": "the table differs at too many places: audit a window of fewer records",
}

_TEMPORARY: frozenset[Reason] = frozenset({"open_transaction", "not_read"})
"""Reasons that a retry of the task may remove."""

COUNTS = ("offsets", "rows", "lost", "doubled", "foreign", "without_record", "undecided")


@dataclass(frozen=True)
class MissingOffsets:
    """
    The result of looking up the offsets without a row in Kafka.

    :param lost: offsets at which the log has a record.
    :param undecided: offsets that could not be checked, by reason.
    :param problems: a sentence for each cause.
    """

    lost: RangesByPartition = field(default_factory=dict)
    undecided: Mapping[Reason, RangesByPartition] = field(default_factory=dict)
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class Certificate:
    """
    The result of an audit.

    :param counts: totals over all partitions: ``offsets`` in the window; ``rows`` in the window; offsets that
        are ``lost``, ``doubled``, ``without_record`` (transaction markers, aborted records, compaction) or
        ``undecided``; and ``foreign`` rows.
    :param lost: the first ranges of offsets whose record is not in the table.
    :param doubled: the first ranges of offsets that have several rows.
    :param foreign: the first rows that are outside the window.
    :param undecided: the first ranges that could not be checked, by reason.
    :param problems: a sentence for each part of the log that could not be read.
    :param window: ``start``, ``end``, ``logs`` (ids of the cluster and the topics) and ``source`` (the task
        that planned the window).
    :param audited: names the table and its rows, such as ``conn_id``, ``table`` and ``where``.
    :param at: when the audit began to read the table.
    """

    counts: Mapping[str, int]
    lost: RangesByPartition
    doubled: RangesByPartition
    foreign: Sequence[ForeignRows]
    undecided: Mapping[Reason, RangesByPartition]
    problems: Sequence[str]
    window: Mapping[str, Any]
    audited: Mapping[str, Any]
    at: datetime

    @classmethod
    def issue(
        cls,
        window: OffsetWindow,
        rows: TableRows,
        missing: MissingOffsets,
        audited: Mapping[str, Any],
        at: datetime,
    ) -> Certificate:
        """Return the certificate of a window."""
        undecided: dict[Reason, RangesByPartition] = dict(missing.undecided)
        if rows.unlisted:
            undecided["too_many"] = rows.unlisted
        doubtful = sum(map(count_offsets, undecided.values()))
        lost = count_offsets(missing.lost)
        counts = {
            "offsets": window.records,
            "rows": rows.rows,
            "lost": lost,
            "doubled": count_offsets(rows.doubled),
            "foreign": sum(each.rows for each in rows.foreign),
            "without_record": count_offsets(rows.missing) + count_offsets(rows.unlisted) - doubtful - lost,
            "undecided": doubtful,
        }
        return cls(
            counts,
            first_ranges(missing.lost, MOST_LISTED),
            first_ranges(rows.doubled, MOST_LISTED),
            tuple(sorted(rows.foreign, key=lambda each: -each.rows)[:MOST_LISTED]),
            {reason: first_ranges(ranges, MOST_LISTED) for reason, ranges in undecided.items() if ranges},
            tuple(missing.problems),
            _identity(window),
            json.loads(json.dumps(dict(audited), default=str)),
            at.astimezone(timezone.utc).replace(microsecond=0),
        )

    @property
    def verdict(self) -> CertificateVerdict:
        """The verdict that follows from the counts."""
        if any(self.counts[name] for name in ("lost", "doubled", "foreign")):
            return "incomplete"
        return "undecided" if self.counts["undecided"] else "complete"

    @property
    def digest(self) -> str:
        """The fingerprint of the certificate's other fields."""
        return str(self.as_json()["digest"])

    def as_json(self) -> dict[str, Any]:
        """
        Return plain JSON with string keys.

        Ranges are ``{topic: {partition: [[start, end], ...]}}`` with exclusive ends, at most
        :data:`MOST_LISTED` of each kind; ``counts`` include the unlisted ranges.
        """
        content = {
            "version": CERTIFICATE_VERSION,
            "verdict": self.verdict,
            "counts": {name: self.counts[name] for name in COUNTS},
            "lost": ranges_json(self.lost),
            "doubled": ranges_json(self.doubled),
            "foreign": [each._asdict() for each in self.foreign],
            "undecided": {reason: ranges_json(ranges) for reason, ranges in sorted(self.undecided.items())},
            "problems": list(self.problems),
            "window": dict(self.window),
            "audited": dict(self.audited),
            "at": self.at.isoformat().replace("+00:00", "Z"),
        }
        return {**content, "digest": digest(content, length=64)}

    def as_text(self) -> str:
        """Return :meth:`as_json` as indented text."""
        return json.dumps(self.as_json(), indent=2)

    def findings(self) -> list[str]:
        """Return a sentence for each error, and for each reason why offsets could not be checked."""
        found = []
        counts = self.counts
        if counts["lost"]:
            found.append(f"{plural(counts['lost'], 'record')} lost ({ranges_text(self.lost)})")
            if not counts["rows"]:
                names = "table and where are" if self.audited.get("where") else "the table is"
                found[0] += f", and no row is in the window: check whether {names} correct"
        if counts["doubled"]:
            found.append(f"{plural(counts['doubled'], 'record')} doubled ({ranges_text(self.doubled)})")
        if counts["foreign"]:
            listed = join_first(self.foreign, show=_foreign, more="more partitions")
            found.append(f"{plural(counts['foreign'], 'row')} from outside the window ({listed})")
        found += [
            f"the audit cannot decide whether a record is lost at {ranges_text(ranges)}: "
            f"{REASONS.get(reason, reason)}"
            for reason, ranges in self.undecided.items()
        ]
        return found + list(self.problems)

    def summary(self) -> str:
        """Return the verdict and the counts in one line."""
        counts = self.counts
        parts = [plural(counts["offsets"], "offset"), plural(counts["rows"], "row")]
        parts += [f"{counts[name]:,} {name.replace('_', ' ')}" for name in COUNTS[2:] if counts[name]]
        return f"{self.verdict}: {', '.join(parts)}"

    def require_complete(self, remedy: str = "", *, undecided: bool = False) -> None:
        """
        Raise an error unless the certificate is complete.

        :param remedy: how to read the window again, for the error text.
        :param undecided: whether to accept an undecided certificate too.
        :raises AuditError: the text names the first ranges and the remedy.
        """
        if self.verdict == "complete" or (undecided and self.verdict == "undecided"):
            return
        what = shorten(self.audited.get("table") or "the table")
        text = f"{what} is {self.verdict}: {'; '.join(self.findings())}"
        if self.counts["lost"]:
            again = remedy or (
                "read the window again (read_window(spark, window) reads exactly its records), and audit the "
                "table again"
            )
            text += f"; {again}. If the job does not replace the rows that it wrote before, first delete them"
        elif self.verdict == "incomplete":
            text += (
                "; delete the additional rows, or limit the audit to the rows that this window's job has "
                "written, and audit the table again"
            )
        temporary = self.verdict == "undecided" and self.undecided.keys() <= _TEMPORARY
        raise AuditError(text, retriable=temporary)

    @classmethod
    def parse(
        cls, value: object, what: str = "certificate", *, describe: DescribeValue = shorten
    ) -> Certificate:
        """
        Read the result of :meth:`as_json`, as a mapping or as JSON text.

        :raises OffsetsFormatError: if the value has another form or version, or was changed after it was
            issued, so that its digest does not match.
        """
        if isinstance(value, str):
            value = load_json(value, what, describe=describe)
        if not isinstance(value, Mapping) or value.get("version") != CERTIFICATE_VERSION:
            raise OffsetsFormatError(
                f"{what}: found {describe(value)}; expected a certificate of version "
                f"{CERTIFICATE_VERSION}, as AuditWindowOperator returns it"
            )
        try:
            certificate = cls(
                {name: value["counts"][name] for name in COUNTS},
                _ranges(value["lost"]),
                _ranges(value["doubled"]),
                tuple(ForeignRows(*(row[name] for name in ForeignRows._fields)) for row in value["foreign"]),
                {reason: _ranges(ranges) for reason, ranges in value["undecided"].items()},
                tuple(map(str, value["problems"])),
                dict(value["window"]),
                dict(value["audited"]),
                datetime.fromisoformat(value["at"].replace("Z", "+00:00")),  # Python 3.10 knows no Z
            )
            # The content as given, because a later version may have more keys.
            content = {name: part for name, part in value.items() if name != "digest"}
            unchanged = digest(content, length=64) == value["digest"]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise OffsetsFormatError(
                f"{what}: found {describe(value)}; expected a certificate ({type(error).__name__}: "
                f"{shorten(str(error))})"
            ) from None
        if not unchanged:
            raise OffsetsFormatError(
                f"{what}: its content does not match its digest: the certificate was changed after it was "
                "issued; audit the window again"
            )
        return certificate


def _identity(window: OffsetWindow) -> dict[str, Any]:
    names = ("group_id", "dag_id", "run_id", "task_id", "map_index", "iteration", "planned_at")
    return {
        "start": offsets_json(window.start),
        "end": offsets_json(window.end),
        "logs": window.log_ids.as_json(),
        "source": json.loads(
            json.dumps({name: window.source[name] for name in names if name in window.source}, default=str)
        ),
    }


def _foreign(row: ForeignRows) -> str:
    topic, partition, first, last, number = row
    if topic is None or partition is None or first is None:
        return f"{plural(number, 'row')} with NULL for topic, partition or offset"
    where = f"offset {first}" if first == last else f"offsets {first} to {last}"
    return f"{escape_controls(topic)}-{partition}: {where}"


def _ranges(value: Mapping[str, Any]) -> RangesByPartition:
    return {
        tp: merge((int(start), int(end)) for start, end in ranges)
        for tp, ranges in by_partition(value).items()
    }
