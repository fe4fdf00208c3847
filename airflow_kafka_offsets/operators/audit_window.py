"""Proves that a table contains each record of an offset window exactly once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, ClassVar, Literal

from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.errors import KafkaOffsetsError, MisnamedError
from airflow_kafka_offsets.model.audited_rows import AuditedTable, TableRows, parse_where
from airflow_kafka_offsets.model.certificate import Certificate, MissingOffsets
from airflow_kafka_offsets.model.parameters import choice_parser, parse_seconds, parse_text
from airflow_kafka_offsets.model.text import quote
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.operators.base import OffsetsOperator, Parser
from airflow_kafka_offsets.pipeline import parse_location
from airflow_kafka_offsets.readings.missing_records import find_missing
from airflow_kafka_offsets.task.outcome import push_result
from airflow_kafka_offsets.task.parameter_checks import is_template
from airflow_kafka_offsets.task.windows import load_window, split_window, write_certificate

LONGEST_TIMEOUT = 3_600.0
"""Maximum seconds for reading from Kafka."""

UndecidedPolicy = Literal["fail", "warn"]
"""Action if the audit cannot decide whether records are lost."""


class AuditWindowOperator(OffsetsOperator):
    """
    Prove that a table contains each record of an offset window exactly once, or report what differs.

    The table has columns for topic, partition and offset, as in Spark's Kafka source. One SQL statement
    aggregates the rows of the window, and only partitions that differ are read again. The task then reads the
    offsets without a row, and only these, from Kafka. Transaction markers, aborted records and compacted
    records do not count as lost. The task does not change the table or Kafka, and does not read the groups'
    offsets.

    The task fails if a record is lost or duplicated, or if ``where`` selects a row outside the window. By
    default it also fails if it cannot decide, because retention has deleted the records or a transaction is
    still open.

    Returns the certificate (:meth:`airflow_kafka_offsets.model.certificate.Certificate.as_json`): plain JSON
    with verdict, counts, the first ranges, the window and a digest. The certificate is in XCom even if the
    task fails.

    Needs the extra ``sql``: ``pip install 'airflow-kafka-offsets[sql]'``.

    :param window: the result of ``PlanOffsetWindowOperator``, its JSON, or the URI of its file. With
        ``topics`` only these topics of the window are audited. (templated)
    :param conn_id: Airflow connection of the database, of any type whose hook is a ``DbApiHook``. (templated)
    :param table: name of the table or view, or ``schema.table``. (templated)
    :param topic_column: name of the column with the topic; ``None`` for a table of one topic without a topic
        column. (templated)
    :param partition_column: name of the column with the partition, an integer. (templated)
    :param offset_column: name of the column with the offset, an integer. (templated)
    :param where: ``{column: value}`` or ``{column: [values]}`` that selects the rows of this window's job,
        such as ``{"run_id": "{{ run_id }}"}``. A selected row outside the window, with all its topics, is
        then an error. By default only rows with offsets of the window are read, so the table may contain
        other windows. (templated, except the column names)
    :param on_undecided: action if the audit cannot decide: ``fail`` (default), or ``warn`` to succeed with a
        warning. (templated)
    :param read_timeout: maximum time for reading from Kafka: a timedelta, seconds, or text such as ``10m``;
        10 minutes by default. Offsets that were not read in this time are undecided. (templated)
    :param save_to: URI of a file for the certificate; use a different file for each run. (templated)
    :param save_conn_id: Airflow connection of the file's storage. (templated)
    :param window_conn_id: Airflow connection of the window file's storage. (templated)
    """

    template_fields_renderers: ClassVar[dict[str, str]] = {
        **OffsetsOperator.template_fields_renderers,
        "where": "json",
    }
    parsers: ClassVar[Mapping[str, Parser]] = {
        "window": lambda value, _: split_window(value),
        "window_conn_id": parse_text,
        **dict.fromkeys(
            ("conn_id", "table", "topic_column", "partition_column", "offset_column"), parse_text
        ),
        "where": parse_where,
        "on_undecided": choice_parser(UndecidedPolicy),
        "read_timeout": partial(parse_seconds, maximum=LONGEST_TIMEOUT, allow_zero=False),
        "save_to": lambda value, name: parse_location(value, name, "save_conn_id"),
        "save_conn_id": parse_text,
    }
    template_fields: Sequence[str] = (*OffsetsOperator.template_fields, *parsers)
    ui_color = "#f4f1e8"
    needs_group: ClassVar[bool] = False
    calls_timeout: ClassVar[float | None] = 2 * LONGEST_TIMEOUT

    def __init__(
        self,
        *,
        window: Mapping[str, Any] | str | XComArg | None = None,
        conn_id: str | None = None,
        table: str | None = None,
        topic_column: str | None = "topic",
        partition_column: str = "partition",
        offset_column: str = "offset",
        where: Mapping[str, Any] | str | XComArg | None = None,
        on_undecided: UndecidedPolicy | str = "fail",
        read_timeout: float | timedelta | str = 600,
        save_to: str | None = None,
        save_conn_id: str | None = None,
        window_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.window: Any = window
        self.conn_id = conn_id
        self.table = table
        self.topic_column = topic_column
        self.partition_column = partition_column
        self.offset_column = offset_column
        self.where: Any = where
        self.on_undecided = on_undecided
        self.read_timeout = read_timeout
        self.save_to = save_to
        self.save_conn_id = save_conn_id
        self.window_conn_id = window_conn_id
        self.check_parameters()

    def check_parameters(self) -> None:
        """Check also that window and table are named, and that no parameter is ignored."""
        for name, expected in (
            ("window", "give the output of PlanOffsetWindowOperator"),
            ("conn_id", "name the Airflow connection of the database"),
            ("table", "name the table to which the window's job writes"),
        ):
            if getattr(self, name) is None:
                raise self.parameter_error(f"{name} is missing: {expected}")
        super().check_parameters()
        if self.save_to is None:
            self.refuse_unused_unless_default("without save_to", "save_conn_id")
        if not is_template(self.window) and not split_window(self.window)[1]:
            self.refuse_unused_unless_default("with a window that is not in a file", "window_conn_id")

    def execute(self, context: Context) -> dict[str, Any]:
        """Audit the table, and return the certificate."""
        with self.run_checked():
            undecided_is_good = self.parse_parameter("on_undecided") == "warn"
            whole = load_window(self.window, self.window_conn_id)
            window = self._selected_part(whole)
            at = datetime.now(tz=timezone.utc)
            names = ("table", "topic_column", "partition_column", "offset_column")
            where = {} if self.where is None else self.parse_parameter("where")
            table = AuditedTable(**{name: getattr(self, name) for name in names}, where=where)
            rows = self._read_table(table, window, whole)
            missing, failure = self._look_up(window, rows)
            audited = {
                "conn_id": self.conn_id,
                **vars(table),
                "kafka_config_id": self.kafka_config_id,
                "where": where or None,
            }
            certificate = Certificate.issue(window, rows, missing, audited, at)
            result = certificate.as_json()
            # Pushed first, so that the certificate is in XCom even if the task fails.
            push_result(context, result)
            level = logging.INFO if certificate.verdict == "complete" else logging.WARNING
            self.log.log(level, "%s", "\n  ".join([certificate.summary(), *certificate.findings()]))
            if self.save_to is not None:
                write_certificate(self.save_to, certificate, self.save_conn_id)
            if failure is not None:
                raise failure
            # The run of the window: a window in a file may be of another DAG.
            run_id = window.source.get("run_id")
            remedy = f"read the window again: clear its job in run {quote(run_id)} with the tasks after it"
            certificate.require_complete(remedy if run_id else "", undecided=undecided_is_good)
            return result

    def _selected_part(self, window: OffsetWindow) -> OffsetWindow:
        """Return the part of the window that ``topics`` selects."""
        selection, _ = self.selection().restricted_to_window(window.ranges, window.source)
        MisnamedError.raise_if(
            selection.unmatched_names({"window": window.end}, "the window", partitions=True)
        )
        return window.only(tp for tp in window.ranges if tp in selection.scope)

    def _read_table(self, table: AuditedTable, window: OffsetWindow, whole: OffsetWindow) -> TableRows:
        # Imported here so that a DAG file needs neither the extra nor SQLAlchemy.
        from airflow_kafka_offsets.hooks.store import sql_engine, without_sqlalchemy

        try:
            from airflow_kafka_offsets.readings.table_rows import read_rows
        except ImportError as error:
            raise without_sqlalchemy(error) from error
        engine = sql_engine(str(self.conn_id), "conn_id")
        try:
            return read_rows(engine, table, window, whole)
        finally:
            engine.dispose()

    def _look_up(
        self, window: OffsetWindow, rows: TableRows
    ) -> tuple[MissingOffsets, KafkaOffsetsError | None]:
        """Look up the offsets without a row in Kafka; return the result, and the error if reading failed."""
        if not rows.missing:
            return MissingOffsets(), None
        within = self.parse_parameter("read_timeout")
        try:
            with self.open_client() as client:
                read = partial(client.record_offsets, within=within)
                return find_missing(client, window, rows.missing, read), None
        # A mistyped connection must not hide what the table shows.
        except KafkaOffsetsError as error:
            return MissingOffsets(undecided={"not_read": rows.missing}, problems=[str(error)]), error
