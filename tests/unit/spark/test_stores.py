"""Every record is counted once, whatever batches come and wherever they are interrupted."""

import sqlite3
from collections import Counter
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select, text, update
from sqlalchemy.pool import StaticPool

from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError, WindowMismatchError
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.spark.stores import SqlOffsetStore

PARTITIONS = 3
counts = Table(
    "counts",
    MetaData(),
    Column("partition", Integer, primary_key=True),
    Column("records", Integer, nullable=False),
)

batches = st.lists(st.integers(0, 5), min_size=1, max_size=PARTITIONS)
"""How many new records there are in each partition; one that no batch had before was added to the topic."""

crashes = st.lists(st.sampled_from(["before the commit", "after the commit"]), max_size=3)
"""Where the tries of a batch end, before the one that is not interrupted."""

odd_ranges = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=PARTITIONS)
"""Start and size of ranges from anywhere."""


class Job:
    """Adds the number of records of each partition to what is there, as a foreachBatch function does."""

    def __init__(self, engine):
        self.engine = engine
        self.store = SqlOffsetStore(engine)
        self.store.create_table()
        counts.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(insert(counts), [{"partition": n, "records": 0} for n in range(PARTITIONS)])

    def run(self, ranges, crash=None):
        with self.engine.connect() as connection:
            if self.store.save(connection, "shop", ranges):
                for tp, offsets in ranges.items():
                    row = update(counts).where(counts.c.partition == tp.partition)
                    connection.execute(row.values(records=counts.c.records + offsets.size))
            if crash == "before the commit":
                connection.rollback()
            else:
                connection.commit()

    def counted(self):
        with self.engine.connect() as connection:
            rows = connection.execute(select(counts.c.partition, counts.c.records)).all()
        return {TopicPartition("orders", partition): records for partition, records in rows}


@contextmanager
def new_job(**connect_args):
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args=connect_args)
    yield Job(engine)
    engine.dispose()


def ranges_after(ends, batch):
    partitions = [TopicPartition("orders", number) for number in range(len(batch))]
    return {tp: OffsetRange(ends[tp], ends[tp] + size) for tp, size in zip(partitions, batch, strict=True)}


@given(st.lists(st.tuples(batches, crashes), max_size=8))
def test_every_record_is_counted_once_however_often_a_batch_is_interrupted(planned):
    ends = Counter()
    with new_job() as job:
        for batch, interrupted in planned:
            ranges = ranges_after(ends, batch)
            for crash in [*interrupted, None]:
                job.run(ranges, crash)
            ends.update({tp: offsets.size for tp, offsets in ranges.items()})
        assert Counter(job.counted()) == ends
        assert Counter(job.store.load("shop")) == ends


def test_ranges_that_end_before_they_start_are_refused():
    with new_job() as job, pytest.raises(UsageError, match="ranges end before they start on orders-0"):
        job.run({TopicPartition("orders", 0): OffsetRange(8, 2)})


@given(st.lists(batches, max_size=3), st.lists(odd_ranges, max_size=6))
@example([], [[(0, 5), (0, 5)], [(0, 5), (5, 3)]])  # one was saved, the other one comes next
def test_ranges_from_anywhere_are_counted_whole_or_refused(regular, odd):
    ends, begin = Counter(), {}
    with new_job() as job:

        def run(ranges):
            for tp in ranges.keys() - job.store.load("shop").keys():
                begin[tp] = ranges[tp].start
            job.run(ranges)
            stored = job.store.load("shop")
            # Answered, and so counted up to the end: now, or before.
            assert all(offsets.end <= stored.get(tp, offsets.end) for tp, offsets in ranges.items())

        for batch in regular:
            ranges = ranges_after(ends, batch)
            run(ranges)
            ends.update({tp: offsets.size for tp, offsets in ranges.items()})
        for bounds in odd:
            before = job.store.load("shop")
            try:
                run(
                    {
                        TopicPartition("orders", n): OffsetRange(at, at + size)
                        for n, (at, size) in enumerate(bounds)
                    }
                )
            except WindowMismatchError:
                assert job.store.load("shop") == before
        counted = job.counted()
        for tp, offset in job.store.load("shop").items():
            assert counted[tp] == offset - begin[tp]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("until_offset", -1),
        ("until_offset", "many"),
        ("until_offset", 1.5),
        ("partition", -1),
        ("partition", 2**31),
        ("partition", "zero"),
        ("topic", "or ders"),
        ("topic", b"orders"),
    ],
)
def test_a_row_that_no_job_has_saved_is_refused(column, value):
    row = {"pipeline": "shop", "topic": "orders", "partition": 0, "until_offset": 5, column: value}
    with new_job() as job:
        with job.engine.begin() as connection:
            # SQLite takes whatever comes.
            names = ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO kafka_offsets ({', '.join(row)}) VALUES ({names})"), row)
        with pytest.raises(OffsetsFormatError, match="pipeline 'shop' of the store: found the row"):
            job.store.load("shop")
        with pytest.raises(OffsetsFormatError), job.engine.begin() as connection:
            job.store.save(connection, "shop", {TopicPartition("orders", 0): OffsetRange(5, 6)})


def test_a_driver_of_mysql_that_commits_each_statement_is_refused():
    class Driver(sqlite3.Connection):
        autocommit = sqlite3.Connection.commit
        """A method in these drivers."""

        def get_autocommit(self):
            return True

    with new_job(factory=Driver) as job, pytest.raises(UsageError, match="AUTOCOMMIT"):
        job.run({TopicPartition("orders", 0): OffsetRange(0, 10)})


def test_a_table_without_a_primary_key_in_which_a_partition_has_two_rows_is_refused():
    with new_job() as job:
        with job.engine.begin() as connection:
            connection.execute(text("DROP TABLE kafka_offsets"))
            connection.execute(
                text("CREATE TABLE kafka_offsets (pipeline, topic, partition, until_offset, updated_at)")
            )
            for until in (5, 10):
                row = f"('shop', 'orders', 0, {until}, '2026-03-01 00:00:00')"
                connection.execute(text(f"INSERT INTO kafka_offsets VALUES {row}"))
        with pytest.raises(OffsetsFormatError, match="pipeline 'shop'.*orders-0.*primary key"):
            job.store.load("shop")
        with pytest.raises(OffsetsFormatError):
            job.run({TopicPartition("orders", 0): OffsetRange(10, 12)})
