"""
Reads the rows of an offset window from a database.

One statement aggregates the rows of all partitions in one scan. Only partitions that differ are read again,
in order of their offsets. SQLAlchemy quotes the names of tables and columns, and binds values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import CompileError, DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.errors import AuditError, UsageError
from airflow_kafka_offsets.model.audited_rows import (
    MOST_DIFFERENCES,
    AuditedTable,
    Difference,
    ForeignRows,
    Sums,
    TableRows,
    compare_rows,
    enclosing_range,
    whole_number,
)
from airflow_kafka_offsets.model.fingerprint import PRIME, Fingerprint
from airflow_kafka_offsets.model.offsets import OffsetRanges, TopicPartition
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text
from airflow_kafka_offsets.readings.database_errors import driver_error_text, is_temporary

_EXACT = {
    "sqlite": "BINARY",
    "postgresql": "C",
    "mssql": "Latin1_General_BIN2",
    # A collation would have to fit the character set of the column: the bytes are compared.
    "mysql": None,
    "mariadb": None,
}
"""Dialects with columns that ignore case -> a collation that does not."""

_MOST_FOREIGN = 10_000
"""Most topics and partitions outside the window; with more, the column names are probably wrong."""


def read_rows(engine: sa.Engine, table: AuditedTable, window: OffsetWindow, whole: OffsetWindow) -> TableRows:
    """
    Return the rows that a table has for a window.

    :param whole: the window that ``window`` is a part of; its rows are not foreign.
    :raises AuditError: if rows were added or removed between the two statements; a retry may succeed.
    """
    topics = {tp.topic for tp in window.ranges}
    if table.topic_column is None and len(topics) > 1:
        raise parameter_error(
            "topic_column",
            f": the window has {len(topics)} topics ({shorten(', '.join(sorted(topics)))}); name the column "
            f"with the topic, or limit the audit to one topic with {parameter_text('topics')}",
            None,
        )
    try:
        with engine.connect() as connection:
            if engine.dialect.name in ("postgresql", "mysql", "mariadb"):
                # All statements of the transaction must see the same rows.
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            if table.topic_column is None:
                whole = window
            return _Reading(connection, table, window, whole).read()
    except DBAPIError as error:
        reason = driver_error_text(error)
        if is_temporary(error):
            raise AuditError(
                f"table {table.table!r} could not be read ({reason}): check that the database is up, "
                "then try again",
                retriable=True,
            ) from error
        raise _unreadable(table, reason) from error
    except CompileError as error:
        raise UsageError(
            f"the database's dialect {engine.dialect.name!r} cannot express the audit "
            f"({shorten(str(error))}): audit the table in Spark with airflow_kafka_offsets.spark.audit_window"
        ) from error
    # Drivers raise these errors for a number or a text that they cannot send.
    except (SQLAlchemyError, OverflowError, UnicodeError) as error:
        raise _unreadable(table, shorten(str(error), 300)) from error


def _unreadable(table: AuditedTable, reason: str) -> UsageError:
    columns = [table.topic_column, table.partition_column, table.offset_column, *table.where]
    names = ", ".join(repr(name) for name in columns if name is not None)
    return UsageError(
        f"table {table.table!r} cannot be read ({reason}): expected a table with the columns {names}: "
        "correct table, topic_column, partition_column, offset_column or where"
    )


class _Reading:
    """The statements of one audit, in one transaction."""

    def __init__(
        self, connection: sa.Connection, table: AuditedTable, window: OffsetWindow, whole: OffsetWindow
    ) -> None:
        self._connection = connection
        self._table = table
        self._ranges: OffsetRanges = dict(window.ranges)
        self._whole: OffsetRanges = dict(whole.ranges)
        self._fingerprint = Fingerprint.random(enclosing_range(window.ranges))
        schema, _, name = table.table.rpartition(".")
        named = {table.topic_column, table.partition_column, table.offset_column, *table.where}
        columns: Any = (sa.column(each) for each in sorted(filter(None, named)))
        # The alias qualifies each column, because SQLite reads a quoted name that is not a column as a text.
        self._source = sa.table(name, *columns, schema=schema or None).alias("audited")
        self._topic = None if table.topic_column is None else self._source.c[table.topic_column]
        self._partition = self._source.c[table.partition_column]
        self._offset = self._source.c[table.offset_column]
        self._keys = [self._partition] if self._topic is None else [self._topic, self._partition]
        # Without a topic column, all rows are of the window's only topic.
        topic = sa.literal(next(iter(window.ranges)).topic) if self._topic is None else self._topic
        self._names = (topic.label("t"), self._partition.label("p"))
        self._whole_partition = partial(whole_number, column=table.partition_column)
        self._whole_offset = partial(whole_number, column=table.offset_column)
        self._ignores_case = False
        """Whether the database compares topics without regard to case, so that spellings must be compared."""

    def read(self) -> TableRows:
        self._check_columns()
        sums = self._sums()
        rows = compare_rows(self._ranges, self._fingerprint, sums, self._differences, MOST_DIFFERENCES)
        return replace(rows, foreign=self._foreign(rows.rows)) if self._table.where else rows

    def _check_columns(self) -> None:
        """Refuse columns of the wrong type by the first row, and learn from it how topics are compared."""
        columns: list[Any] = [self._partition, self._offset]
        if (topic := self._topic) is not None:
            same = sa.and_(topic == sa.func.upper(topic), topic == sa.func.lower(topic))
            columns += [topic, sa.case((topic.is_(None), _number(1)), (same, _number(1)), else_=_number(0))]
        row = self._connection.execute(sa.select(*columns).where(*self._selection()).limit(1)).first()
        if row is None:
            return
        number, offset, *named = row
        if number is not None:
            self._whole_partition(number)
        if offset is not None:
            self._whole_offset(offset)
        if named:
            found, ignores_case = named
            if found is not None and not isinstance(found, str):
                raise UsageError(
                    f"column {self._table.topic_column!r} holds {shorten(repr(found))} "
                    f"({type(found).__name__}); expected the names of topics: correct topic_column"
                )
            # Other databases distinguish case, and a name without letters does not show it.
            shows = found is not None and found.lower() != found.upper()
            self._ignores_case = bool(ignores_case) and (shows or self._connection.dialect.name in _EXACT)

    def _sums(self) -> dict[TopicPartition, Sums]:
        """Aggregate the rows of each partition of the window in one scan, for any number of partitions."""
        topics = self._topics(self._ranges)
        columns = [self._partition.label("p"), self._offset.label("o")]
        if named := self._topic is not None and len(topics) > 1:
            columns.append(self._names[0])
        conditions = [*self._selection(), *self._window(self._ranges)]
        rows = sa.select(*columns).where(*conditions).subquery("selected")
        keys = [rows.c.t, rows.c.p] if named else [rows.c.p]
        residue = sa.cast(rows.c.o, sa.BigInteger) + _number(self._fingerprint.shift)
        if not self._fingerprint.small:
            residue = residue % _number(PRIME)
        square = (residue * residue) % _number(PRIME)
        summand = (square * square) % _number(PRIME)
        aggregates = (sa.func.count(), sa.func.sum(summand), sa.func.min(rows.c.o), sa.func.max(rows.c.o))
        statement = sa.select(*keys, *aggregates).group_by(*keys).limit(len(self._ranges) + _MOST_FOREIGN + 1)
        sums: dict[TopicPartition, Sums] = {}
        found = self._connection.execute(statement).all()
        self._refuse_many(len(found) - len(self._ranges))
        for *names, count, total, first, last in found:
            number = names.pop()
            if number is None:
                continue
            tp = TopicPartition(str(names[0]) if named else topics[0], self._whole_partition(number))
            if tp.topic not in topics or tp in sums:
                raise UsageError(
                    f"column {self._table.topic_column!r} holds {shorten(repr(tp.topic))}, which the "
                    f"database treats as equal to a topic of the window ({shorten(', '.join(topics))}): "
                    "expected exactly that name"
                )
            bounds = (self._whole_offset(first), self._whole_offset(last))
            if tp in self._ranges:
                sums[tp] = Sums(count, int(total), *bounds)
        return sums

    def _foreign(self, inside: int) -> Sequence[ForeignRows]:
        """Return the selected rows that are outside the whole window; normally there are none."""
        selection = self._selection()
        every = sa.select(sa.func.count()).select_from(self._source).where(*selection)
        outside = self._connection.execute(every).scalar_one() - inside
        others = {tp: offsets for tp, offsets in self._whole.items() if tp not in self._ranges}
        if outside and others:
            outside -= self._connection.execute(every.where(self._inside(others))).scalar_one()
        if not outside:
            return ()
        # If a column is NULL, a row is neither inside nor outside in SQL.
        condition = sa.case((self._inside(self._whole), _number(1)), else_=_number(0)) == _number(0)
        aggregates = (sa.func.count().label("n"), sa.func.min(self._offset), sa.func.max(self._offset))
        statement = (
            sa.select(*self._names, *aggregates)
            .where(*selection, condition)
            .group_by(*self._keys)
            .order_by(sa.desc("n"))
            .limit(_MOST_FOREIGN + 1)
        )
        found = self._connection.execute(statement).all()
        self._refuse_many(len(found))
        rows = [
            ForeignRows(
                None if name is None else shorten(str(name), 249),
                None if number is None else self._whole_partition(number),
                None if first is None else self._whole_offset(first),
                None if last is None else self._whole_offset(last),
                count,
            )
            for name, number, count, first, last in found
        ]
        if (now := sum(each.rows for each in rows)) != outside:
            raise AuditError(
                f"table {self._table.table!r} changed while it was read: first {outside} of its rows were "
                f"outside the window, then {now}: audit it after the tasks that write to it have ended",
                retriable=True,
            )
        return rows

    def _refuse_many(self, others: int) -> None:
        if others > _MOST_FOREIGN:
            raise UsageError(
                f"the rows of table {self._table.table!r} name more than {_MOST_FOREIGN:,} topics and "
                "partitions that are not in the window: correct topic_column, partition_column or where"
            )

    def _differences(self, partitions: Sequence[TopicPartition]) -> Iterator[Difference]:
        """Return each row whose offset is not the previous row's offset plus one."""
        ranges = {tp: self._ranges[tp] for tp in partitions}
        before = sa.func.lag(self._offset).over(partition_by=self._keys, order_by=self._offset)
        rows = (
            sa.select(*self._names, self._offset.label("o"), before.label("b"))
            .where(*self._selection(), self._inside(ranges))
            .subquery("ordered")
        )
        statement = (
            sa.select(rows.c.t, rows.c.p, rows.c.b, rows.c.o)
            .where(rows.c.o - rows.c.b != _number(1))
            .order_by(rows.c.t, rows.c.p, rows.c.o)
            .limit(MOST_DIFFERENCES + 1)
        )
        for found, number, low, high in self._connection.execute(statement):
            bounds = (self._whole_offset(low), self._whole_offset(high))
            yield Difference(TopicPartition(str(found), int(number)), *bounds)

    def _selection(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of ``where``; the database converts the types of the values."""
        conditions: list[sa.ColumnElement[bool]] = []
        for name, value in self._table.where.items():
            column, several = self._source.c[name], isinstance(value, list | tuple)
            bound: Any = sa.bindparam(None, value, type_=sa.types.NullType(), expanding=several)
            conditions.append(column.in_(bound) if several else column == bound)
        return conditions

    def _window(self, ranges: OffsetRanges) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for a row to be in its partition's range; they do not exclude others."""
        bounds, topics = enclosing_range(ranges), self._topics(ranges)
        # An index or the partitioning of the table can serve these.
        conditions = [self._offset >= _number(bounds.start), self._offset < _number(bounds.end)]
        if self._topic is not None:
            conditions.append(self._topic == topics[0] if len(topics) == 1 else self._topic.in_(topics))
            if self._ignores_case:
                conditions.append(self._spelled(self._topic, topics))
        # Not by an equality: databases would then estimate few rows, and choose a slower plan with a sort.
        starts = {tp: each.start for tp, each in ranges.items()}
        if len({*starts.values()}) > 1:
            conditions.append(self._offset >= self._by_partition(starts))
        ends = {tp: each.end for tp, each in ranges.items()}
        if len({*ends.values()}) > 1:
            conditions.append(self._offset < self._by_partition(ends))
        return conditions

    def _spelled(self, topic: sa.ColumnElement[str], names: Sequence[str]) -> sa.ColumnElement[bool]:
        """Return the condition for a topic to be spelled like one of the names, whatever its collation."""
        dialect = self._connection.dialect.name
        if dialect not in _EXACT or len({name.lower() for name in names}) < len(names):
            raise UsageError(
                f"column {self._table.topic_column!r} does not distinguish upper and lower case, so rows of "
                "another topic could count: audit a view in which it does"
            )
        if (collation := _EXACT[dialect]) is None:
            return sa.cast(topic, sa.LargeBinary).in_([name.encode() for name in names])
        # citext of PostgreSQL ignores a collation.
        return sa.collate(sa.cast(topic, sa.Text) if dialect == "postgresql" else topic, collation).in_(names)

    def _inside(self, ranges: OffsetRanges) -> sa.ColumnElement[bool]:
        """Return the condition for a row to be in the window."""
        known = [
            sa.and_(
                *([] if self._topic is None else [self._topic == topic]),
                self._partition.in_([_number(tp.partition) for tp in sorted(ranges) if tp.topic == topic]),
            )
            for topic in self._topics(ranges)
        ]
        return sa.and_(*self._window(ranges), sa.or_(*known))

    def _by_partition(self, offsets: Mapping[TopicPartition, int]) -> sa.ColumnElement[int]:
        """Return an expression for the offset of a row's partition; any number outside the window."""
        trees = {
            topic: self._search(
                [(tp.partition, at) for tp, at in sorted(offsets.items()) if tp.topic == topic]
            )
            for topic in sorted({tp.topic for tp in offsets})
        }
        if len(trees) == 1 or self._topic is None:
            return next(iter(trees.values()))
        return sa.case(*((self._topic == topic, tree) for topic, tree in trees.items()), else_=_number(-1))

    def _search(self, offsets: Sequence[tuple[int, int]]) -> sa.ColumnElement[int]:
        """Return an expression that searches the partition in a binary tree: a topic may have many."""
        if len({at for _, at in offsets}) == 1:
            return _number(offsets[0][1])
        middle = len(offsets) // 2
        low, high = self._search(offsets[:middle]), self._search(offsets[middle:])
        return sa.case((self._partition < _number(offsets[middle][0]), low), else_=high)

    @staticmethod
    def _topics(ranges: OffsetRanges) -> list[str]:
        return sorted({tp.topic for tp in ranges})


def _number(value: int) -> sa.ColumnElement[int]:
    """Return a number as an SQL literal, so that an expression in GROUP BY equals the selected one."""
    return sa.literal_column(str(int(value)), sa.BigInteger)
