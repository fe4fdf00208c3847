"""What a table holds of a window, in real databases: every difference is found, and nothing else is."""

import os
import time
import uuid
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.errors import AuditError, UsageError
from airflow_kafka_offsets.model.audited_rows import AuditedTable, ForeignRows, TableRows
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.readings.table_rows import _Reading, read_rows

WINDOW = OffsetWindow(
    {
        TopicPartition("orders", 0): OffsetRange(100, 140),
        TopicPartition("orders", 1): OffsetRange(0, 25),
        TopicPartition("orders", 7): OffsetRange(2**40, 2**40 + 30),
        TopicPartition("payments", 1): OffsetRange(50, 60),
    }
)
ORDERS = WINDOW.only(tp for tp in WINDOW.ranges if tp.topic == "orders")
COMPLETE = TableRows(WINDOW.records)
EVERY = [(*tp, offset) for tp, (start, end) in WINDOW.ranges.items() for offset in range(start, end)]
# Other windows' rows, close to this one's.
OTHERS = [("orders", 0, 99), ("orders", 0, 140), ("orders", 1, 25), ("orders", 2, 105), ("payments", 0, 55)]


@pytest.fixture
def make_table(engine):
    """make_table(rows, **types) -> the name of a table with these rows, and the column run_id."""
    made = []

    def make(rows, columns='topic TEXT, partition INTEGER, "offset" BIGINT, run_id TEXT', name=None):
        name = name or f"events_{uuid.uuid4().hex[:12]}"
        quoted = engine.dialect.identifier_preparer.quote(name)
        with engine.begin() as connection:
            connection.execute(sa.text(f"CREATE TABLE {quoted} ({columns})"))
            if rows:
                full = [row if len(row) == 4 else (*row, "this") for row in rows]
                values = ", ".join(f":{number}" for number in range(4))
                connection.execute(
                    sa.text(f"INSERT INTO {quoted} VALUES ({values})"),
                    [dict(zip("0123", row, strict=True)) for row in full],
                )
        made.append(quoted)
        return name

    yield make
    with engine.begin() as connection:
        for quoted in made:
            connection.execute(sa.text(f"DROP TABLE {quoted}"))


def held(engine, table, window=WINDOW, **parameters):
    return read_rows(engine, AuditedTable(table, **parameters), window, window)


def test_a_table_that_is_whole_among_the_rows_of_other_windows(engine, make_table):
    found = held(
        engine, make_table([*EVERY, *OTHERS, (None, 0, 110), ("orders", None, 110), ("orders", 0, None)])
    )
    assert found == COMPLETE


def test_each_lost_and_each_double_record_is_found(engine, make_table):
    rows = [row for row in EVERY if row not in (("orders", 0, 100), ("orders", 1, 24), ("payments", 1, 55))]
    rows += [("orders", 7, 2**40), ("orders", 7, 2**40 + 29), ("orders", 7, 2**40 + 29)]
    missing = {
        TopicPartition("orders", 0): merge([(100, 101)]),
        TopicPartition("orders", 1): merge([(24, 25)]),
        TopicPartition("payments", 1): merge([(55, 56)]),
    }
    doubled = {TopicPartition("orders", 7): merge([(2**40, 2**40 + 1), (2**40 + 29, 2**40 + 30)])}
    assert held(engine, make_table([*rows, *OTHERS])) == TableRows(39 + 24 + 33 + 9, missing, doubled)


def test_a_lost_record_is_not_made_good_by_a_double_one(engine, make_table):
    rows = [row for row in EVERY if row != ("orders", 1, 5)] + [("orders", 1, 6)]
    tp = TopicPartition("orders", 1)
    found = held(engine, make_table(rows))
    assert found == TableRows(WINDOW.records, {tp: merge([(5, 6)])}, {tp: merge([(6, 7)])})


def test_rows_of_the_selection_outside_the_window_are_foreign(engine, make_table):
    rows: list[tuple] = [
        *EVERY,
        *OTHERS,
        ("orders", 0, 141),
        (None, 1, 3),
        ("orders", None, 3),
        ("orders", 1, None),
    ]
    rows += [(*row, "other") for row in (("orders", 0, 99), ("orders", 1, 5))]
    found = held(engine, make_table(rows), where={"run_id": "this"})
    assert replace(found, foreign=()) == COMPLETE
    assert sorted(found.foreign, key=str) == sorted(
        [
            ForeignRows("orders", 0, 99, 141, 3),
            ForeignRows("orders", 1, 25, 25, 2),
            ForeignRows("orders", 2, 105, 105, 1),
            ForeignRows("payments", 0, 55, 55, 1),
            ForeignRows(None, 1, 3, 3, 1),
            ForeignRows("orders", None, 3, 3, 1),
        ],
        key=str,
    )


@pytest.mark.parametrize("where", [{"run_id": ["this", "that"]}, {"run_id": "this", "partition": [0, 1, 7]}])
def test_a_selection_by_several_values(engine, make_table, where):
    found = held(engine, make_table([*EVERY, *((*row, "other") for row in OTHERS)]), ORDERS, where=where)
    assert replace(found, foreign=()) == TableRows(ORDERS.records)
    # Without a value of another topic, the payments are in the selection.
    assert {each.topic for each in found.foreign} == {"payments"}


def test_a_selection_by_a_day_and_a_number(engine, make_table):
    columns = 'topic TEXT, partition INTEGER, "offset" BIGINT, day DATE'
    rows = [(*row, "2026-03-01") for row in EVERY if row[0] == "orders"] + [("orders", 1, 3, "2026-03-02")]
    table = make_table(rows, columns)
    assert held(engine, table, ORDERS, where={"day": "2026-03-01"}).foreign == ()
    assert held(engine, table, ORDERS).doubled == {TopicPartition("orders", 1): merge([(3, 4)])}


def test_the_table_of_one_topic_need_not_name_it(engine, make_table):
    rows = [("x", *row[1:]) for row in EVERY if row[0] == "orders"]
    table = make_table([*rows, ("x", 1, 25)])
    assert held(engine, table, ORDERS, topic_column=None).missing == {}
    assert held(engine, table, ORDERS, topic_column=None, where={"run_id": "this"}).foreign == [
        ForeignRows("orders", 1, 25, 25, 1)
    ]
    with pytest.raises(UsageError, match="topic_column=None: the window has 2 topics"):
        held(engine, table, topic_column=None)


@pytest.mark.parametrize("where", [{}, {"run_id": "nowhere"}])
def test_of_an_empty_table_or_selection_all_is_missing(engine, make_table, where):
    found = held(engine, make_table(EVERY if where else []), where=where)
    assert found.missing == {tp: (offsets,) for tp, offsets in WINDOW.ranges.items()}
    assert found.rows == 0


def test_a_window_without_records_has_nothing_to_miss_and_still_finds_foreign_rows(engine, make_table):
    window = OffsetWindow({tp: OffsetRange(end, end) for tp, end in WINDOW.end.items()})
    table = make_table(EVERY)
    assert held(engine, table, window).missing == {}
    assert sum(each.rows for each in held(engine, table, window, where={"run_id": "this"}).foreign) == len(
        EVERY
    )


@pytest.mark.parametrize(
    "names",
    [
        {"topic_column": "topik"},
        {"partition_column": "part"},
        {"offset_column": "ofset"},
        {"where": {"run": "this"}},
    ],
)
def test_a_mistyped_column_is_refused(engine, make_table, names):
    mistyped = "run" if "where" in names else next(iter(names.values()))
    with pytest.raises(UsageError, match=f"cannot be read .*{mistyped}.*: correct table"):
        held(engine, make_table(EVERY), **names)


@pytest.mark.parametrize("table", ["no_such_table", "no_such_schema.events"])
def test_a_mistyped_table_is_refused(engine, table):
    with pytest.raises(UsageError, match="cannot be read .*expected a table with the columns 'topic'"):
        held(engine, table)


@pytest.mark.parametrize(
    ("columns", "holds"),
    [
        ('topic TEXT, partition INTEGER, "offset" TEXT, run_id TEXT', "'offset' holds '1"),
        ('topic TEXT, partition TEXT, "offset" BIGINT, run_id TEXT', "'partition' holds '0'"),
    ],
)
@pytest.mark.parametrize("where", [{}, {"run_id": "this"}])
def test_numbers_as_text_are_refused(engine, make_table, columns, holds, where):
    by_type = {True: str, False: int}
    texts = [
        (topic, by_type["partition TEXT" in columns](number), by_type["BIGINT" not in columns](offset))
        for topic, number, offset in EVERY
    ]
    with pytest.raises(UsageError, match=f"column {holds}.* \\(str\\); expected whole numbers"):
        held(engine, make_table(texts, columns), where=where)


# Only SQLite has values of several types in a column.
@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_one_offset_as_text_among_numbers_is_refused(engine, make_table):
    table = make_table(
        [*EVERY[:-1], (*EVERY[-1][:2], "fifty-nine")], 'topic TEXT, partition, "offset", run_id TEXT'
    )
    found = held(engine, table)
    assert found.missing == {TopicPartition("payments", 1): merge([(59, 60)])}
    with pytest.raises(UsageError, match="holds 'fifty-nine'"):
        held(engine, table, where={"run_id": "this"})


def test_offsets_may_be_decimal_numbers(engine, make_table):
    table = make_table(EVERY, 'topic TEXT, partition SMALLINT, "offset" NUMERIC(20, 0), run_id TEXT')
    assert held(engine, table) == COMPLETE


def test_another_column_taken_for_the_partition_is_refused(engine, make_table):
    rows = [("orders", 0, offset, str(offset)) for offset in range(10_050)]
    table = make_table(rows, 'topic TEXT, zero INTEGER, "offset" BIGINT, run_id TEXT')
    window = OffsetWindow({TopicPartition("orders", 0): OffsetRange(0, 10_050)})
    with pytest.raises(UsageError, match="more than 10,000 topics and partitions .* correct topic_column"):
        held(engine, table, window, partition_column="offset")


HOSTILE = ["o'rders", 'or"ders', "x; DROP TABLE users", "select", "Große Tabelle", "a\\b", "100%", "%(a)s :b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_quoted_and_values_are_bound(engine, name):
    kinds = (sa.Text, sa.Integer, sa.BigInteger, sa.Text)
    columns = [sa.Column(f"{name}{number}", kind) for number, kind in enumerate(kinds)]
    table = sa.Table(name, sa.MetaData(), *columns)
    with engine.begin() as connection:
        table.create(connection)
        for row in EVERY:
            values = zip(table.c.keys(), (*row, name), strict=True)
            connection.execute(table.insert().values(dict(values)))
    names = {f"{of}_column": f"{name}{number}" for number, of in enumerate(("topic", "partition", "offset"))}
    try:
        found = held(engine, name, **names, where={f"{name}3": name})
    finally:
        with engine.begin() as connection:
            table.drop(connection)
    assert found == COMPLETE


def test_a_value_is_no_sql(engine, make_table):
    found = held(engine, make_table(EVERY), where={"run_id": "this' OR '1'='1"})
    assert found.rows == 0


# SQLite's only schema is main.
@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_view_of_a_schema(engine, make_table):
    table = make_table(EVERY)
    schema = f"Lake_{uuid.uuid4().hex[:8]}"
    with engine.begin() as connection:
        connection.execute(sa.text(f'CREATE SCHEMA "{schema}"'))
        connection.execute(sa.text(f'CREATE VIEW "{schema}".events AS SELECT * FROM {table}'))
    assert held(engine, f"{schema}.events") == COMPLETE
    with engine.begin() as connection:
        connection.execute(sa.text(f'DROP SCHEMA "{schema}" CASCADE'))


@pytest.fixture
def between(engine):
    """between(statement): it runs in another transaction after the sums, before the differences are read."""
    done = []

    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            # With this journal a writer does not wait for those who read.
            connection.execute(sa.text("PRAGMA journal_mode = WAL"))

    def make(statement):
        def after(connection, cursor, executed, *_):
            if " lag(" in executed or "count(*)" not in executed or done:
                return
            done.append(statement)
            with engine.connect() as other:
                other.execute(sa.text(statement))
                other.commit()

        sa.event.listen(engine, "after_cursor_execute", after)

    return make


def test_a_table_that_grows_meanwhile_is_seen_at_one_moment_or_is_an_error(engine, make_table, between):
    late = [("orders", 0, 120)]
    table = make_table([row for row in EVERY if row not in late])
    between(f"INSERT INTO {table} VALUES ('orders', 0, 120, 'this'), ('orders', 0, 121, 'this')")
    if engine.dialect.name == "postgresql":
        found = held(engine, table)
        assert found.missing == {TopicPartition("orders", 0): merge([(120, 121)])}
        assert found.doubled == {}
    else:
        with pytest.raises(AuditError, match="changed while it was read") as error:
            held(engine, table)
        assert error.value.retriable


def test_a_selection_that_grows_meanwhile_is_seen_at_one_moment_or_is_an_error(engine, make_table, between):
    table = make_table(EVERY)
    between(f"INSERT INTO {table} VALUES ('orders', 0, 120, 'this')")
    if engine.dialect.name == "postgresql":
        assert held(engine, table, where={"run_id": "this"}) == COMPLETE
    else:
        with pytest.raises(AuditError, match="changed while it was read") as error:
            held(engine, table, where={"run_id": "this"})
        assert error.value.retriable


def test_a_database_that_does_not_answer_may_answer_later(tmp_path):
    engine = sa.create_engine(f"postgresql+psycopg://postgres@/postgres?host={tmp_path}")
    with pytest.raises(AuditError, match="could not be read .*check that the database is up") as error:
        held(engine, "events")
    assert error.value.retriable


def test_many_partitions_in_one_statement(engine, make_table):
    window = OffsetWindow(
        {TopicPartition("orders", number): OffsetRange(number % 5, number % 7 + 5) for number in range(1_000)}
    )
    rows = [(*tp, offset) for tp, (start, end) in window.ranges.items() for offset in range(12)]
    assert held(engine, make_table(rows), window) == TableRows(window.records)


def test_more_differences_than_are_read_are_said(engine, make_table, monkeypatch):
    monkeypatch.setattr("airflow_kafka_offsets.readings.table_rows.MOST_DIFFERENCES", 10)
    window = OffsetWindow({TopicPartition("orders", 0): OffsetRange(0, 100)})
    table = make_table([("orders", 0, offset) for offset in range(0, 100, 2)])
    found, (tp,) = held(engine, table, window), window.ranges
    assert found.missing == {tp: merge((offset, offset + 1) for offset in range(1, 20, 2))}
    assert found.unlisted == {tp: merge([(20, 100)])}


def test_decimals_with_a_fraction_are_no_offsets():
    from airflow_kafka_offsets.model.audited_rows import whole_number

    assert whole_number(Decimal(7), "offset") == 7
    for value in (Decimal("7.5"), Decimal("NaN"), Decimal("Infinity"), 7.0, True, "7", b"7"):
        with pytest.raises(UsageError, match="column 'offset' holds .* expected whole numbers"):
            whole_number(value, "offset")


ROWS = 10_000_000 if os.environ.get("LONG_TESTS") else 30_000


@pytest.fixture
def large(engine):
    """A table of many rows, and its window; it has rows of a neighbour, too."""
    name = f"large_{uuid.uuid4().hex[:12]}"
    third = ROWS // 3
    numbers = (
        f"WITH RECURSIVE g(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM g WHERE n < {ROWS - 1})"
        if engine.dialect.name == "sqlite"
        else f"WITH g(n) AS (SELECT generate_series(0, {ROWS - 1}))"
    )
    with engine.begin() as connection:
        connection.execute(
            sa.text(f'CREATE TABLE {name} (topic TEXT, partition INTEGER, "offset" BIGINT, value TEXT)')
        )
        connection.execute(
            sa.text(
                f"INSERT INTO {name} {numbers} SELECT 'orders', n % 3, n / 3, "
                "'some hundred characters of a record, as a table has them: ' || n FROM g"
            )
        )
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text(f"VACUUM ANALYZE {name}"))
    yield name, OffsetWindow({TopicPartition("orders", at): OffsetRange(0, third) for at in range(3)})
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {name}"))


@pytest.mark.timeout(1_800)
def test_one_lost_one_double_and_one_foreign_row_among_many(engine, large):
    table, window = large
    third = ROWS // 3
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                f'DELETE FROM {table} WHERE partition = 1 AND "offset" = {third // 2} OR "offset" >= {third}'
            )
        )
        connection.execute(sa.text(f"INSERT INTO {table} VALUES ('orders', 2, {third // 4}, 'again')"))
    began = time.monotonic()
    found = held(engine, table, window)
    print(f"{engine.dialect.name}: {ROWS:,} rows with two differences in {time.monotonic() - began:.2f} s")
    assert found.missing == {TopicPartition("orders", 1): merge([(third // 2, third // 2 + 1)])}
    assert found.doubled == {TopicPartition("orders", 2): merge([(third // 4, third // 4 + 1)])}
    with engine.begin() as connection:
        connection.execute(sa.text(f"INSERT INTO {table} VALUES ('orders', 0, {third}, 'of another window')"))
    found = held(engine, table, window, where={"topic": "orders"})
    assert found.foreign == [ForeignRows("orders", 0, third, third, 1)]


@pytest.fixture
def ignores_case(engine):
    """A column's type that takes Orders for orders."""
    if engine.dialect.name == "sqlite":
        return "TEXT COLLATE NOCASE"
    statement = (
        "CREATE COLLATION ignores_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    try:
        with engine.begin() as connection:
            connection.execute(sa.text(statement))
    except sa.exc.NotSupportedError as error:
        pytest.skip(str(error.orig))
    return "TEXT COLLATE ignores_case"


@pytest.mark.parametrize("where", [{}, {"run_id": "this"}])
def test_rows_of_a_topic_in_other_letters_are_not_the_topics(engine, make_table, ignores_case, where):
    columns = f'topic {ignores_case}, partition INTEGER, "offset" BIGINT, run_id TEXT'
    other = [(topic.title(), *rest) for topic, *rest in EVERY]
    for window in (WINDOW, ORDERS):
        # Only rows of the other topics; a gap in the middle of the right ones, among the others; all rows.
        found = held(engine, make_table(other, columns), window, where=where)
        assert (found.rows, bool(found.foreign)) == (0, bool(where))
        gap = [row for row in EVERY if row != ("orders", 0, 120)]
        found = held(engine, make_table([*gap, *other], columns), window, where=where)
        assert found.missing == {TopicPartition("orders", 0): merge([(120, 121)])}
        assert held(engine, make_table(EVERY, columns), window) == TableRows(window.records)


def test_two_topics_that_the_column_does_not_distinguish_are_refused(engine, make_table, ignores_case):
    columns = f'topic {ignores_case}, partition INTEGER, "offset" BIGINT, run_id TEXT'
    window = OffsetWindow({TopicPartition(name, 0): OffsetRange(0, 1) for name in ("orders", "Orders")})
    with pytest.raises(UsageError, match="column 'topic' does not distinguish upper and lower case"):
        held(engine, make_table([("orders", 0, 0), ("Orders", 0, 0)], columns), window)


@pytest.mark.parametrize(
    ("dialect", "spelled"),
    [
        ("postgresql", '(CAST(topic AS TEXT) COLLATE "C") IN ('),
        ("mysql", "CAST(topic AS BINARY) IN ("),
        ("mssql", "(topic COLLATE Latin1_General_BIN2) IN ("),
    ],
)
def test_other_databases_compare_the_spelling_in_their_own_way(dialect, spelled):
    connection = SimpleNamespace(dialect=sa.create_mock_engine(f"{dialect}://", lambda *_: None).dialect)
    reading = _Reading(connection, AuditedTable("events"), ORDERS, ORDERS)  # type: ignore[arg-type]
    condition = reading._spelled(sa.column("topic"), ["orders"])
    assert spelled in str(condition.compile(dialect=connection.dialect))


def test_rows_of_the_other_topics_of_a_window_are_not_foreign(engine, make_table):
    rows = [*EVERY, ("orders", 0, 99)]
    audited = AuditedTable(make_table(rows), where={"run_id": "this"})
    found = read_rows(engine, audited, ORDERS, WINDOW)
    assert list(found.foreign) == [ForeignRows("orders", 0, 99, 99, 1)]


@pytest.mark.parametrize("value", [2**70, "\ud800"])
def test_a_value_that_the_driver_cannot_send_is_named(engine, make_table, value):
    if engine.dialect.name == "postgresql" and isinstance(value, int):
        assert held(engine, make_table(EVERY), where={"partition": value}).rows == 0
        return
    with pytest.raises(UsageError, match="cannot be read"):
        held(engine, make_table(EVERY), where={"partition": value})
