"""Proves that a DataFrame has each record of an offset window exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from airflow_kafka_offsets.annotation_types import DataFrame, SparkSession
from airflow_kafka_offsets.errors import AuditError, UsageError
from airflow_kafka_offsets.model.audited_rows import (
    MOST_DIFFERENCES,
    Difference,
    ForeignRows,
    Sums,
    compare_rows,
    enclosing_range,
)
from airflow_kafka_offsets.model.certificate import Certificate, MissingOffsets
from airflow_kafka_offsets.model.fingerprint import PRIME, Fingerprint
from airflow_kafka_offsets.model.offset_ranges import RangesByPartition, covering_ranges, merge, subtract
from airflow_kafka_offsets.model.offsets import OffsetRanges, TopicPartition, refuse_invalid_partitions
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.readings.missing_records import Found, find_missing
from airflow_kafka_offsets.spark.broker import open_broker_client, refuse_other_ranges
from airflow_kafka_offsets.spark.read import Window, load_window

__all__ = ["audit_window"]

_MOST_LOST = 100_000
"""Maximum number of lost records to list; the certificate names far fewer."""
_MOST_READS = 8
"""Maximum number of reads of Kafka for offsets without a row; a read takes one range of each partition."""
_LARGEST_GAP_READ = 50_000
"""Gaps up to this number of offsets are read together."""
_MOST_FOREIGN = 10_000

_NO_OPTIONS = (
    "options= was not given, so Kafka could not be asked which offsets have a record: give the options of "
    "Spark's Kafka source, such as spark_kafka_options()"
)


def audit_window(
    df: DataFrame,
    window: Window | None = None,
    *,
    topic_column: str = "topic",
    partition_column: str = "partition",
    offset_column: str = "offset",
    exclusive: bool = False,
    options: Mapping[str, Any] | None = None,
    client_config: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Certificate:
    """
    Return the certificate of an offset window: whether each of its records is a row exactly once.

    It works with tables that Spark reads: Delta, Iceberg, Hudi, Parquet. One aggregation adds up the rows of
    the window. Only partitions that differ are read again, and only offsets without a row are looked up in
    Kafka. ``certificate.require_complete()`` raises an error unless the window is complete.

    :param df: the table, or some of its rows; read a table that another job writes to at a fixed version.
    :param window: default: the value of ``spark.kafkaOffsets.window`` in the session's configuration.
    :param topic_column: name of the column with the topic, a string.
    :param partition_column: name of the column with the partition, a whole number.
    :param offset_column: name of the column with the offset, a whole number.
    :param exclusive: whether ``df`` has only the output of this window, so that other rows are foreign. By
        default rows outside the window are ignored: the table may have other windows.
    :param options: options of Spark's Kafka source, to look up the offsets without a row. Without options
        these offsets stay undecided.
    :param client_config: librdkafka's settings to read the log's ends, for a session without a JVM whose
        options have no counterpart in librdkafka.
    :param name: name of the table in the certificate.
    :raises UsageError: if there is no window, or a column is missing or has another type.
    :raises AuditError: if the table changed while it was read; a retry may succeed.
    :raises BrokerError: if the log could not be read.
    """
    spark = df.sparkSession
    if options is not None:
        refuse_other_ranges(options)
    planned = load_window(spark, window)
    ranges = dict(planned.ranges)
    if not ranges:
        raise UsageError("the window has no partitions, so there is nothing to audit")
    refuse_invalid_partitions(ranges)  # their names become part of conditions
    at = datetime.now(tz=timezone.utc)
    columns = (topic_column, partition_column, offset_column)
    rows = _rows(df, columns)
    fingerprint = Fingerprint.random(enclosing_range(ranges))
    sums = _sums(rows, ranges, fingerprint)
    found = compare_rows(ranges, fingerprint, sums, partial(_differences, rows, ranges))
    if exclusive:
        found = replace(found, foreign=_foreign(rows, ranges))
    if not found.missing:
        missing = MissingOffsets()
    elif options is None:
        missing = MissingOffsets(undecided={"not_read": found.missing}, problems=[_NO_OPTIONS])
    else:
        with open_broker_client(options, spark=spark, client_config=client_config) as kafka:
            read = partial(_records, spark, dict(options), rows)
            missing = find_missing(kafka, planned, found.missing, read)
    audited = {"table": name or "DataFrame", "columns": list(columns), "exclusive": exclusive}
    return Certificate.issue(planned, found, missing, audited, at)


def _rows(df: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the three columns under the names of Spark's Kafka source."""
    # Spark's own error for a missing column is pages long.
    there = {column.lower() for column in df.columns}
    if absent := [column for column in columns if column.lower() not in there]:
        raise UsageError(
            f"the DataFrame has no column {', '.join(map(repr, absent))} (it has "
            f"{shorten(', '.join(map(repr, df.columns)), 300)}): correct topic_column, partition_column or "
            "offset_column"
        )
    quoted = [f"`{column.replace('`', '``')}`" for column in columns]
    rows = df.selectExpr(f"{quoted[0]} AS topic", f"{quoted[1]} AS partition", f"{quoted[2]} AS offset")
    types = dict(rows.dtypes)
    for column, (name, (expected, accepted)) in zip(columns, _TYPES.items(), strict=True):
        if types[name] not in accepted:
            raise UsageError(
                f"column {column!r} is of type {types[name]}; expected {expected}: correct its name, or "
                "cast it in the DataFrame that is audited"
            )
    return rows


_WHOLE = ("a whole number, such as bigint", ("tinyint", "smallint", "int", "bigint"))
_TYPES = {"topic": ("string", ("string",)), "partition": _WHOLE, "offset": _WHOLE}


# The aggregations are built as SQL text, because the columns of pyspark.sql.functions fit only one kind of
# session, and a process may have both a classic session and one of Spark Connect. Topic names contain no
# characters that need quoting.


def _sums(rows: DataFrame, ranges: OffsetRanges, fingerprint: Fingerprint) -> dict[TopicPartition, Sums]:
    topics = sorted({tp.topic for tp in ranges})
    # Grouping by a number is much faster than grouping by a text.
    keys = ["partition"] if len(topics) == 1 else ["topic", "partition"]
    residue = f"CAST(offset AS BIGINT) + {fingerprint.shift}L"
    if not fingerprint.small:
        residue = f"({residue}) % {PRIME}L"
    found = (
        rows.where(_near(ranges))
        .selectExpr(*keys, "offset AS low", "offset AS high", f"{residue} AS residue")
        .selectExpr(*keys, "low", "high", f"residue * residue % {PRIME}L AS square")
        .selectExpr(*keys, "low", "high", f"square * square % {PRIME}L AS summand", "1L AS n")
        .groupBy(*keys)
        .agg({"n": "sum", "summand": "sum", "low": "min", "high": "max"})
    )
    sums: dict[TopicPartition, Sums] = {}
    for row in found.collect():
        tp = TopicPartition(topics[0] if len(topics) == 1 else row["topic"], row["partition"])
        # The rows may include partitions outside the window.
        if tp in ranges:
            sums[tp] = Sums(row["sum(n)"], row["sum(summand)"], row["min(low)"], row["max(high)"])
    return sums


def _differences(
    rows: DataFrame, ranges: OffsetRanges, partitions: Sequence[TopicPartition]
) -> Iterator[Difference]:
    """Return each row of some partitions whose offset is not the previous row's offset plus one."""
    found = (
        rows.where(_inside({tp: ranges[tp] for tp in partitions}))
        .selectExpr("*", "lag(offset) OVER (PARTITION BY topic, partition ORDER BY offset) AS before")
        .where("offset - before <> 1")
        .orderBy("topic", "partition", "offset")
        .limit(MOST_DIFFERENCES + 1)
    )
    for row in found.collect():
        yield Difference(TopicPartition(row["topic"], row["partition"]), row["before"], row["offset"])


def _foreign(rows: DataFrame, ranges: OffsetRanges) -> Sequence[ForeignRows]:
    found = (
        rows.where(f"NOT coalesce({_inside(ranges)}, false)")
        .selectExpr("topic", "partition", "offset AS low", "offset AS high", "1L AS n")
        .groupBy("topic", "partition")
        .agg({"n": "sum", "low": "min", "high": "max"})
        .orderBy("sum(n)", ascending=False)
        .limit(_MOST_FOREIGN + 1)
        .collect()
    )
    if len(found) > _MOST_FOREIGN:
        raise UsageError(
            f"the DataFrame names more than {_MOST_FOREIGN:,} topics and partitions that are not in the "
            "window: correct topic_column, partition_column, or the filter of the DataFrame"
        )
    return [
        ForeignRows(row["topic"], row["partition"], row["min(low)"], row["max(high)"], row["sum(n)"])
        for row in found
    ]


def _near(ranges: OffsetRanges) -> str:
    """
    Return a condition that is true for rows in their partition's range; other partitions are not checked.

    Its first parts are pushed down to the files.
    """
    bounds = enclosing_range(ranges)
    topics = sorted({tp.topic for tp in ranges})
    conditions = [
        f"offset >= {bounds.start}L AND offset < {bounds.end}L",
        f"topic IN ({', '.join(repr(topic) for topic in topics)})",
    ]
    for name, comparison in (("start", ">="), ("end", "<")):
        offsets = {tp: getattr(each, name) for tp, each in ranges.items()}
        if len(set(offsets.values())) > 1:
            conditions.append(f"offset {comparison} {_by_partition(offsets)}")
    return " AND ".join(conditions)


def _inside(ranges: OffsetRanges) -> str:
    """Return a condition that is true for rows in the window."""
    numbers: dict[str, list[str]] = {}
    for tp in sorted(ranges):
        numbers.setdefault(tp.topic, []).append(str(tp.partition))
    known = [f"(topic = '{topic}' AND partition IN ({', '.join(its)}))" for topic, its in numbers.items()]
    return f"({_near(ranges)} AND ({' OR '.join(known)}))"


def _by_partition(offsets: Mapping[TopicPartition, int]) -> str:
    """Return an expression for the offset of a row's partition."""
    trees = {
        topic: _search([(tp.partition, at) for tp, at in sorted(offsets.items()) if tp.topic == topic])
        for topic in sorted({tp.topic for tp in offsets})
    }
    if len(trees) == 1:
        return next(iter(trees.values()))
    cases = " ".join(f"WHEN topic = '{topic}' THEN {tree}" for topic, tree in trees.items())
    return f"CASE {cases} END"


def _search(offsets: Sequence[tuple[int, int]]) -> str:
    if len({at for _, at in offsets}) == 1:
        return f"{offsets[0][1]}L"
    middle = len(offsets) // 2
    low, high = _search(offsets[:middle]), _search(offsets[middle:])
    return f"(CASE WHEN partition < {offsets[middle][0]} THEN {low} ELSE {high} END)"


def _records(
    spark: SparkSession, options: Mapping[str, Any], rows: DataFrame, ranges: RangesByPartition
) -> Found:
    """Return which offsets without a row have a committed record in Kafka, read by Spark's own source."""
    from pyspark.errors import PySparkException

    pieces = {tp: covering_ranges(each, _MOST_READS, _LARGEST_GAP_READ) for tp, each in ranges.items()}
    keys = ["topic", "partition", "offset"]
    fixed = {"failOnDataLoss": "true", "kafka.isolation.level": "read_committed"}
    lost: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in pieces}
    read: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in pieces}
    left = _MOST_LOST
    for number in range(max(map(len, pieces.values()))):
        if left <= 0:
            break
        piece = {tp: each[number] for tp, each in pieces.items() if number < len(each)}
        plan = OffsetWindow(piece).spark_options()
        records = spark.read.format("kafka").options(**{**options, **plan, **fixed}).load()
        try:
            held = rows.where(_inside(piece))
            found = records.select(*keys).join(held, on=keys, how="left_anti").limit(left + 1).collect()
        except PySparkException as error:
            raise AuditError(
                f"the offsets without a row could not be read from Kafka "
                f"({shorten(str(error).partition(chr(10))[0], 300)}): audit the window again",
                retriable=True,
            ) from error
        for row in found:
            lost[TopicPartition(row["topic"], row["partition"])].append((row["offset"], row["offset"] + 1))
        left -= len(found)
        if left >= 0:
            for tp, offsets in piece.items():
                read[tp].append(offsets)
    unread = {tp: subtract(each, merge([*read[tp], *lost[tp]])) for tp, each in ranges.items()}
    found_at = {tp: merge(each) for tp, each in lost.items() if each}
    return found_at, {tp: each for tp, each in unread.items() if each}
