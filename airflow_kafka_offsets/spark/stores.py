"""
Saves a job's offsets in its own database, in the transaction that writes the results.

A checkpoint and a database cannot be written at the same moment: after a crash in between, Spark repeats a
batch whose results are already in the database. Here the offsets are saved in the transaction that writes the
results, and a range that was saved before is recognized. So every record counts exactly once, even if results
are added up.

The store is one table, ``kafka_offsets`` unless named otherwise::

    pipeline      VARCHAR(255)   the name that the job saves under
    topic         VARCHAR(249)
    partition     INTEGER
    until_offset  BIGINT         the next record to read: the end of the last saved range
    updated_at    TIMESTAMP      when the row was saved, by the database's clock
    PRIMARY KEY (pipeline, topic, partition)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, UsageError, WindowMismatchError
from airflow_kafka_offsets.model.offsets import (
    MAX_PARTITION,
    OffsetRange,
    Offsets,
    TopicPartition,
    check_ranges,
    is_topic_name,
    summarize,
)
from airflow_kafka_offsets.model.parameters import parse_text
from airflow_kafka_offsets.model.text import is_int, quote, shorten
from airflow_kafka_offsets.model.window import OffsetWindow

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_WITHOUT_ROW_LOCKS = ("sqlite", "mssql")
"""Databases for which SQLAlchemy leaves out SELECT ... FOR UPDATE."""


class SqlOffsetStore:
    """
    Offsets in a table of the results' database.

    :param bind: the database: an engine, a connection, a session, or a URL that is opened for each call.
        :meth:`save` does not use it: it writes in the transaction that it is given.
    :param table: name of the table, or ``schema.table``.
    """

    def __init__(self, bind: Engine | Connection | Session | URL | str, table: str = "kafka_offsets") -> None:
        self.bind = bind
        schema, _, name = table.rpartition(".")
        if not name:
            raise UsageError(f"table: found {table!r}; expected the name of a table, or schema.table")
        self.table = sa.Table(
            name,
            sa.MetaData(schema=schema or None),
            sa.Column("pipeline", sa.String(255), primary_key=True),
            sa.Column("topic", sa.String(249), primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("until_offset", sa.BigInteger, nullable=False),
            sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        )
        """The SQLAlchemy table, for Alembic or your own ``CREATE TABLE``."""

    def create_table(self) -> None:
        """Create the table unless it exists. Do this once, before any job runs."""
        with self._connection() as connection:
            connection.execute(CreateTable(self.table, if_not_exists=True))

    def load(self, pipeline: str) -> Offsets:
        """
        Return the next offset of each partition that was ever saved; empty if none was.

        :raises OffsetsFormatError: if a row has a value that no job has saved.
        """
        with self._connection() as connection:
            return self._read_rows(connection, pipeline)

    def saved_at(self, pipeline: str) -> datetime | None:
        """
        Return when the pipeline has saved last, by the database's clock.

        :return: ``None`` if nothing was saved, or if the database's times have no zone.
        """
        newest = sa.select(sa.func.max(self.table.c.updated_at)).where(self.table.c.pipeline == pipeline)
        with self._connection() as connection:
            found = connection.execute(newest).scalar()
            if isinstance(found, datetime) and found.tzinfo is None and connection.dialect.name == "sqlite":
                return found.replace(tzinfo=timezone.utc)  # SQLite's clock is in UTC
        return found if isinstance(found, datetime) and found.tzinfo is not None else None

    def save(
        self,
        connection: Connection | Session,
        pipeline: str,
        ranges: Mapping[TopicPartition, OffsetRange] | OffsetWindow,
    ) -> bool:
        """
        Save that these ranges were read, in the transaction that writes their results.

        All partitions together have one answer:

        * The stored offset is the start of every range: the ends are written, and the job writes its results
          and commits.
        * The stored offset is the end of every range: the ranges were saved before, with their results.
          Nothing is written, and the job rolls back everything that it wrote in this transaction.
        * Anything else is an error, and the job rolls back as well.

        A partition without a stored offset counts as at its start: it is the pipeline's first save, or the
        partition was added later. An empty range does not show whether the others were saved before; it only
        has to be at the partition's position. If all ranges are empty, the answer is ``True``, and there is
        nothing to count.

        The pipeline's rows stay locked until the transaction ends. So of two jobs with the same ranges, the
        second waits and then gets ``False``. Call this before writing the results: then a waiting job holds
        no locks. ``READ COMMITTED`` is enough; stricter isolation does no harm.

        :param connection: a connection with the transaction; the caller commits it. The table must be in the
            same database as the results.
        :param pipeline: a name for this job only. Two jobs that read the same records need two names.
        :param ranges: all partitions of the batch or of the window.
        :return: ``True`` if written, ``False`` if the ranges were saved before.
        :raises WindowMismatchError: if the stored offsets are neither; names each partition and its stored
            offset.
        :raises PlanRefusedError: if another transaction saved the first offsets at the same time.
        :raises OffsetsFormatError: if a row of the pipeline has something other than offsets.
        :raises UsageError: if the connection commits each statement automatically, a range ends before it
            starts, or the name is empty.
        """
        if not isinstance(connection, Connection):
            connection = connection.connection()
        if isinstance(ranges, OffsetWindow):
            ranges = ranges.ranges
        check_ranges(ranges)
        parse_text(pipeline, "pipeline")
        stored = self._read_locked_rows(connection, pipeline)
        _refuse_autocommit(connection)
        if all(stored.get(tp, offsets.start) == offsets.start for tp, offsets in ranges.items()):
            self._write(connection, pipeline, {tp: offsets.end for tp, offsets in ranges.items()}, stored)
            return True
        if all(stored.get(tp, offsets.start) == offsets.end for tp, offsets in ranges.items()):
            return False
        raise _mismatch(pipeline, ranges, stored)

    def _read_locked_rows(self, connection: Connection, pipeline: str) -> Offsets:
        if connection.dialect.name in _WITHOUT_ROW_LOCKS:
            # A write locks the rows. SQLite locks the whole file, even if no row is written.
            mine = sa.false() if connection.dialect.name == "sqlite" else self.table.c.pipeline == pipeline
            connection.execute(sa.update(self.table).where(mine).values(updated_at=self.table.c.updated_at))
        else:
            # A job that waited here sees the changed rows, but not rows that were added meanwhile.
            self._read_rows(connection, pipeline, lock=True)
        return self._read_rows(connection, pipeline, lock=True)

    def _read_rows(self, connection: Connection, pipeline: str, *, lock: bool = False) -> Offsets:
        columns = self.table.c
        rows = sa.select(columns.topic, columns.partition, columns.until_offset)
        # In order, so that two jobs that lock the same rows do not deadlock.
        rows = rows.where(columns.pipeline == pipeline).order_by(columns.topic, columns.partition)
        if lock:
            rows = rows.with_for_update()
        found = [_offset(pipeline, *row) for row in connection.execute(rows)]
        if again := [tp for (tp, _), (other, _) in pairwise(found) if tp == other]:
            raise OffsetsFormatError(
                f"pipeline {pipeline!r} of the store: found several rows of {summarize(again)}; expected "
                "one: remove the wrong rows, and give the table the primary key of create_table()"
            )
        return dict(found)

    def _write(self, connection: Connection, pipeline: str, ends: Offsets, stored: Offsets) -> None:
        rows = {
            tp: {"of_pipeline": pipeline, "of_topic": tp.topic, "of_partition": tp.partition, "until": end}
            for tp, end in sorted(ends.items())
            # An empty range of a known partition changes nothing.
            if stored.get(tp) != end
        }
        columns = self.table.c
        keys: dict[str, Any] = {
            name: sa.bindparam(f"of_{name}") for name in ("pipeline", "topic", "partition")
        }
        until: Any = sa.bindparam("until")
        new = rows.keys() - stored.keys()
        if moved := [row for tp, row in rows.items() if tp not in new]:
            where = [columns[name] == value for name, value in keys.items()]
            moving = sa.update(self.table).where(*where).values(until_offset=until, updated_at=sa.func.now())
            connection.execute(moving, moved)
        if new:
            try:
                adding = sa.insert(self.table).values(**keys, until_offset=until)
                connection.execute(adding, [rows[tp] for tp in sorted(new)])
            # Before the first save there is no row to lock, so two first saves collide only here.
            except IntegrityError as error:
                reason = shorten(str(error.orig).partition("\n")[0])
                raise PlanRefusedError(
                    f"another job may have saved the first offsets of pipeline {pipeline!r} in "
                    f"{summarize(new)} at the same time ({reason}): roll this transaction back and run the "
                    "batch again; if that does not help, correct the table"
                ) from error

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        bind = self.bind
        if isinstance(bind, str | URL):
            # Open a connection for each call: nothing would close the connections of a pool.
            bind = sa.create_engine(bind, poolclass=NullPool)
        if isinstance(bind, Engine):
            with bind.begin() as connection:
                yield connection
        else:
            yield bind if isinstance(bind, Connection) else bind.connection()


def _offset(pipeline: str, topic: object, partition: object, until: object) -> tuple[TopicPartition, int]:
    """Parse a row; refuse values that no job has saved: the table was edited, or is another one."""
    named = isinstance(topic, str) and is_topic_name(topic)
    if named and is_int(partition, most=MAX_PARTITION) and is_int(until):
        return TopicPartition(str(topic), partition), until
    # Quotes show that '4' is not a number.
    found = ", ".join(quote(value) for value in (topic, partition, until))
    raise OffsetsFormatError(
        f"pipeline {pipeline!r} of the store: found the row {found}; expected a topic, a partition and an "
        "offset from 0: the table was edited, is another one, or its columns have other types than "
        "create_table() gives them; correct the row, or remove it and save the offsets again"
    )


def _refuse_autocommit(connection: Connection) -> None:
    """Refuse a connection without a transaction, after its rows were locked."""
    driver = connection.connection.dbapi_connection
    if (
        connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        # The setting of sa.create_engine(isolation_level=...) is only visible at the driver's connection.
        or getattr(driver, "autocommit", None) is True
        or getattr(driver, "get_autocommit", bool)()  # MySQL's drivers
        # SQLite's driver does not report autocommit, but then no transaction is open after a write.
        or getattr(driver, "in_transaction", None) is False
    ):
        raise UsageError(
            "the connection is in AUTOCOMMIT mode, so that offsets and results are not written together: use "
            "a connection with another isolation level, such as engine.begin() of an engine without "
            "AUTOCOMMIT"
        )


def _mismatch(
    pipeline: str, ranges: Mapping[TopicPartition, OffsetRange], stored: Offsets
) -> WindowMismatchError:
    elsewhere = [tp for tp, (start, end) in ranges.items() if stored.get(tp, start) not in (start, end)]
    # If each partition is at its start or its end, the mixture is wrong.
    named = elsewhere or [tp for tp, offsets in ranges.items() if offsets.size]
    return WindowMismatchError(
        f"pipeline {pipeline!r}", {tp: (stored.get(tp), ranges[tp].start, ranges[tp].end) for tp in named}
    )
