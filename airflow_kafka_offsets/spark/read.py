"""Reads exactly the records of an offset window."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_kafka_offsets.annotation_types import DataFrame, SparkSession
from airflow_kafka_offsets.errors import UnknownTopicPartitionError, UsageError, WindowReadError
from airflow_kafka_offsets.kafka.protocols import PositionsReader
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.location import check_uri
from airflow_kafka_offsets.model.offsets import IsolationLevel, TopicPartition, summarize
from airflow_kafka_offsets.model.text import MAX_SIZE, describe_type, shorten, too_large_error
from airflow_kafka_offsets.model.window import WINDOW_CONF_KEY, OffsetWindow
from airflow_kafka_offsets.readings.log_checks import current_logs_refusals
from airflow_kafka_offsets.spark.broker import isolation_level, open_broker_client, refuse_other_ranges

__all__ = ["read_window", "reading_window"]

Window = OffsetWindow | Mapping[str, Any] | str
"""A window, the result of PlanOffsetWindowOperator (a mapping or JSON text), or the URI of a file with it."""

_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/")


def read_window(
    spark: SparkSession,
    window: Window | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    exact_count: bool = False,
    client_config: Mapping[str, Any] | None = None,
) -> DataFrame:
    """
    Return the records of an offset window, with the columns of Spark's Kafka source.

    The window is first compared with the log: a start that retention has deleted is refused, and so is an end
    that is not written yet. (Spark would fail in the middle of the read, or wait two minutes for the
    records.) While rows are read, Spark's source fails if records of the window are gone: ``failOnDataLoss``
    is always on. :func:`reading_window` also checks the log after the read.

    Fewer rows than offsets are normal: transaction markers take offsets,
    ``kafka.isolation.level=read_committed`` leaves out aborted records, and compaction removes records.

    :param window: default: the value of ``spark.kafkaOffsets.window`` in the session's configuration.
    :param options: options of Spark's Kafka source: ``kafka.bootstrap.servers`` and the other connection
        settings, ``minPartitions``, ``includeHeaders``. Options that select records are refused.
    :param exact_count: refuse a window without a record at every offset. This reads the window a second time.
    :param client_config: librdkafka's settings to read the log's ends, for a session without a JVM whose
        options have no counterpart in librdkafka.
    :raises WindowReadError: if records of the window are gone or not written yet; with ``exact_count``, if
        there are fewer records than offsets.
    :raises UsageError: if there is no window, or ``options`` contradict the window.
    :raises BrokerError: if the log could not be read.
    """
    return _reading(spark, window, options, exact_count, client_config)("nothing was read")


@contextmanager
def reading_window(
    spark: SparkSession,
    window: Window | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    exact_count: bool = False,
    client_config: Mapping[str, Any] | None = None,
) -> Iterator[DataFrame]:
    """
    Return the records of an offset window for a block, and check the log again at its end.

    A log only loses records. So if the whole window is still in the log after the block, it was there all the
    time, including for rows that were read twice or by several actions.

    The parameters are those of :func:`read_window`. ``exact_count`` counts before and after the block: two
    additional reads.

    :raises WindowReadError: as in :func:`read_window`, or at the end of the block if records were deleted in
        the meantime: the output is then incomplete, and the window must not be committed.
    """
    checked = _reading(spark, window, options, exact_count, client_config)
    yield checked("nothing was read")
    checked("it is not certain that the whole window was read, so do not commit it")


def _reading(
    spark: SparkSession,
    window: Window | None,
    options: Mapping[str, Any] | None,
    exact_count: bool,
    client_config: Mapping[str, Any] | None,
) -> Callable[[str], DataFrame]:
    """Return a function that checks the log and returns the records; its text begins the error text."""
    options = dict(options or {})
    refuse_other_ranges(options)
    planned = load_window(spark, window)
    if not planned.ranges:
        raise UsageError("the window has no partitions, so there is nothing to read")
    read_options = {**options, **planned.spark_options(), "failOnDataLoss": "true"}

    def checked(outcome: str) -> DataFrame:
        with open_broker_client(options, spark=spark, client_config=client_config) as kafka:
            refusals = _refusals(kafka, planned, isolation_level(options))
        if refusals:
            raise WindowReadError(f"{outcome}: {'; '.join(refusals)}")
        records = spark.read.format("kafka").options(**read_options).load()
        if exact_count and (missing := _missing(records, planned)):
            first = next(iter(missing))
            raise WindowReadError(
                f"{outcome}: {sum(missing.values())} of {planned.records} offsets of the window have no "
                f"record, on {summarize(missing)} ({first}: {missing[first]}), and exact_count requires one "
                "at each: the topic is compacted or written in transactions"
            )
        return records

    return checked


def _refusals(kafka: PositionsReader, window: OffsetWindow, level: IsolationLevel) -> list[str]:
    """Return why the records of a window cannot be read."""
    try:
        elsewhere = current_logs_refusals(kafka, "the window", window.log_ids, remedy="trigger a new run")
        logs = seen = kafka.log_ranges(window.ranges)
        if level == "read_committed":
            seen = kafka.log_ranges(window.ranges, isolation_level=level)
    except UnknownTopicPartitionError as error:
        return [str(error)]
    refusals = [*elsewhere, *window.refusals(logs)]
    held_back = [tp for tp, offsets in window.ranges.items() if seen[tp].end < offsets.end <= logs[tp].end]
    if held_back:
        refusals.append(
            f"with kafka.isolation.level={level} the window ends behind an open transaction, on "
            f"{summarize(held_back)} ({held_back[0]}: the window ends at "
            f"{window.end[held_back[0]]}, readable is up to {seen[held_back[0]].end}): wait until it ends"
        )
    return refusals


def _missing(records: DataFrame, window: OffsetWindow) -> dict[TopicPartition, int]:
    """Return how many offsets of each partition have no record, without partitions that have all."""
    counts = {
        TopicPartition(row["topic"], row["partition"]): row["count"]
        for row in records.groupBy("topic", "partition").count().collect()
    }
    missing = {tp: offsets.size - counts.get(tp, 0) for tp, offsets in window.ranges.items()}
    return {tp: count for tp, count in sorted(missing.items()) if count}


def load_window(spark: SparkSession, window: Window | None) -> OffsetWindow:
    what = "window"
    if window is None:
        what = WINDOW_CONF_KEY
        window = spark.conf.get(WINDOW_CONF_KEY, None)
        if not window:
            raise UsageError(
                f"no window was given, and the session's configuration has no {WINDOW_CONF_KEY}: expected "
                "the window's JSON there, or the URI of a file with it, as the DAG passes it to the job with "
                "conf="
            )
    if isinstance(window, OffsetWindow):
        return window
    if isinstance(window, str) and not window.lstrip().startswith("{"):
        return _window_in_file(spark, window, what)
    value = load_json(window, what) if isinstance(window, str) else window
    if not isinstance(value, Mapping) or "start" in value or "window_file" not in value:
        return OffsetWindow.parse(value, what)
    # The window is too large for an XCom: the plan names the window's file, and the digest of its ranges.
    uri = str(value["window_file"])
    planned = _window_in_file(spark, uri, what)
    source = value.get("source")
    if source not in (planned.source, {**planned.source, "ranges": planned.digest}):
        raise UsageError(
            f"{uri} contains another window than the planned one (of {shorten(planned.source)}): give "
            "each run a separate window_file"
        )
    return planned


def _window_in_file(spark: SparkSession, uri: str, what: str) -> OffsetWindow:
    return OffsetWindow.parse(_read_text(spark, uri), f"{what} in {shorten(uri)}", show=describe_type)


def _read_text(spark: SparkSession, uri: str) -> str:
    """Read a small file from this machine, or from a storage that Spark has credentials for."""
    from pyspark.errors import PySparkException

    try:
        if _REMOTE.match(uri):
            return str(spark.read.text(uri, wholetext=True).collect()[0][0])
        check_uri(uri)
        path = Path(unquote(urlsplit(uri).path) if uri.startswith("file:") else uri)
        if (size := path.stat().st_size) > MAX_SIZE:
            raise UsageError(too_large_error(f"the window's file {shorten(uri)}", size))
        return path.read_text(encoding="utf-8")
    except UsageError:
        raise
    except (OSError, ValueError, PySparkException, IndexError) as error:
        raise UsageError(
            f"the window's file {shorten(uri)} cannot be read ({type(error).__name__}): expected the URI of "
            "a file with a window's JSON that is reachable from the job"
        ) from error
