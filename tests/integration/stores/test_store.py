"""The three answers of a store, in real databases, and what two jobs at once get."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError, WindowMismatchError
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.spark.stores import SqlOffsetStore

pytestmark = pytest.mark.integration

DEADLINE = 30.0
in_postgres = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
FIRST, SECOND, THIRD = (TopicPartition("orders", number) for number in range(3))


def ranges(*bounds):
    """The ranges of orders-0, orders-1, ..., each as (start, end)."""
    return {TopicPartition("orders", number): OffsetRange(*pair) for number, pair in enumerate(bounds)}


@pytest.fixture
def save(engine, store):
    """save((0, 10), (0, 5)) -> the answer, in a transaction of its own."""

    def in_one_transaction(*bounds, pipeline="shop"):
        with engine.begin() as connection:
            return store.save(connection, pipeline, ranges(*bounds))

    return in_one_transaction


def test_the_first_save_begins_the_pipeline_wherever_it_starts(save, store):
    assert store.load("shop") == {}
    assert save((100, 110), (7, 7)) is True
    assert store.load("shop") == {FIRST: 110, SECOND: 7}


@pytest.mark.parametrize(
    ("again", "answer", "stored"),
    [
        pytest.param([(10, 12), (5, 9)], True, [12, 9], id="the next ranges"),
        pytest.param([(0, 10), (0, 5)], False, [10, 5], id="saved before"),
        pytest.param([(0, 10), (5, 5)], False, [10, 5], id="saved before, one is empty"),
        pytest.param([(10, 12), (5, 5)], True, [12, 5], id="the next range, one is empty"),
        pytest.param([(10, 10), (5, 5)], True, [10, 5], id="all are empty"),
        pytest.param([(10, 11)], True, [11, 5], id="a part of the partitions"),
        pytest.param([(10, 12), (5, 5), (0, 4)], True, [12, 5, 4], id="a partition was added"),
        pytest.param([], True, [10, 5], id="nothing to save"),
    ],
)
def test_the_answer_to_a_second_save(save, store, again, answer, stored):
    assert save((0, 10), (0, 5)) is True
    assert save(*again) is answer
    assert store.load("shop") == {TopicPartition("orders", number): end for number, end in enumerate(stored)}


def test_an_empty_range_elsewhere_is_a_mismatch(save):
    save((0, 10), (0, 5))
    with pytest.raises(WindowMismatchError) as raised:
        save((10, 12), (6, 6))
    assert raised.value.found == {SECOND: (5, 6, 6)}


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        pytest.param(((11, 20), (5, 9)), {FIRST: (10, 11, 20)}, id="gap"),
        pytest.param(((8, 20), (5, 9)), {FIRST: (10, 8, 20)}, id="overlap"),
        pytest.param(((0, 8), (0, 5)), {FIRST: (10, 0, 8)}, id="older"),
        pytest.param(((0, 10), (5, 9)), {FIRST: (10, 0, 10), SECOND: (5, 5, 9)}, id="mixture"),
        pytest.param(
            ((0, 10), (0, 5), (0, 3)),
            {FIRST: (10, 0, 10), SECOND: (5, 0, 5), THIRD: (None, 0, 3)},
            id="saved, with a partition that is not stored",
        ),
    ],
)
def test_anything_else_is_refused_and_names_what_is_stored(save, store, bounds, found):
    save((0, 10), (0, 5))
    with pytest.raises(WindowMismatchError, match="pipeline 'shop'") as raised:
        save(*bounds)
    assert raised.value.found == found
    assert store.load("shop") == {FIRST: 10, SECOND: 5}


def test_pipelines_do_not_see_one_another(save, store):
    save((0, 10))
    assert save((3, 4), pipeline="audit") is True
    assert store.load("shop") == {FIRST: 10}
    assert store.load("audit") == {FIRST: 4}


def test_a_window_is_saved_as_its_ranges_are(engine, store):
    window = OffsetWindow(ranges((0, 10), (0, 5)), frozenset({SECOND}))
    answers = []
    for _ in range(2):
        with engine.begin() as connection:
            answers.append(store.save(connection, "shop", window))
    assert answers == [True, False]
    assert store.load("shop") == window.end


def test_a_range_that_ends_before_it_starts_is_refused(save, store):
    save((0, 10))
    with pytest.raises(UsageError, match="orders-0"):
        save((10, 4))
    assert store.load("shop") == {FIRST: 10}


def test_a_transaction_that_is_rolled_back_leaves_nothing(engine, store):
    with engine.connect() as connection:
        assert store.save(connection, "shop", ranges((0, 10))) is True
        connection.rollback()
    assert store.load("shop") == {}


def test_a_session_is_as_good_as_a_connection(engine, store):
    with Session(engine) as session, session.begin():
        assert store.save(session, "shop", ranges((0, 10))) is True
        assert SqlOffsetStore(session, store.table.name).load("shop") == {FIRST: 10}
    assert store.load("shop") == {FIRST: 10}


def test_a_url_is_enough_to_load(engine, save, store):
    save((0, 10))
    by_url = SqlOffsetStore(engine.url, store.table.name)
    by_url.create_table()  # it is there: nothing happens
    assert by_url.load("shop") == {FIRST: 10}


def test_ten_thousand_partitions(save, store):
    many = 10_000
    assert save(*[(0, 10)] * many) is True
    assert save(*[(0, 10)] * many) is False
    assert save(*[(10, 20)] * many) is True
    assert sum(store.load("shop").values()) == 20 * many


@pytest.mark.parametrize("of_connection", [True, False])
def test_a_connection_that_commits_each_statement_is_refused(engine, store, of_connection):
    make = engine.execution_options if of_connection else functools.partial(create_engine, engine.url)
    at_once = make(isolation_level="AUTOCOMMIT")
    with at_once.connect() as connection, pytest.raises(UsageError, match="AUTOCOMMIT"):
        store.save(connection, "shop", ranges((0, 10)))
    at_once.dispose()
    assert store.load("shop") == {}


@in_postgres
def test_a_table_in_a_schema(engine):
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS audit")
    store = SqlOffsetStore(engine, "audit.what_was_read")
    store.create_table()
    assert inspect(engine).has_table("what_was_read", schema="audit")
    with engine.begin() as connection:
        assert store.save(connection, "shop", ranges((0, 10))) is True
    assert store.load("shop") == {FIRST: 10}


def test_a_table_without_a_name_is_refused(engine):
    with pytest.raises(UsageError, match=r"schema\.table"):
        SqlOffsetStore(engine, "audit.")


@pytest.fixture
def at_once(engine, store):
    """
    at_once(count, *bounds) -> the answers or errors of so many transactions that save the same ranges at
    once.

    The first of them that gets through waits until the others have begun to save.
    """

    def run(count, *bounds):
        begin = threading.Barrier(count)

        def one(_):
            begin.wait(DEADLINE)
            try:
                with engine.begin() as connection:
                    return store.save(connection, "shop", ranges(*bounds))
            except (PlanRefusedError, DBAPIError) as error:
                return type(error)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))

    return run


def test_of_two_jobs_with_the_same_batch_one_writes(save, store, at_once):
    save((0, 10), (0, 5))
    for start in range(10, 50, 10):
        answers = at_once(2, (start, start + 10), (5, 5))
        assert sorted(answers) == [False, True]
    assert store.load("shop") == {FIRST: 50, SECOND: 5}


def test_of_two_first_batches_one_wins(store, at_once):
    answers = at_once(4, (0, 10), (0, 5))
    assert answers.count(True) == 1
    assert set(answers) <= {True, False, PlanRefusedError}
    assert store.load("shop") == {FIRST: 10, SECOND: 5}


@pytest.fixture
def second_of_two(engine, store):
    """
    second_of_two(*bounds) -> the answer to the second of two transactions that save the same: PostgreSQL
    makes it wait for the first one's commit.
    """

    def save(*bounds):
        def second():
            with engine.begin() as connection:
                return store.save(connection, "shop", ranges(*bounds))

        with ThreadPoolExecutor(1) as pool, engine.connect() as first, engine.connect() as looking:
            assert store.save(first, "shop", ranges(*bounds)) is True
            waiting = pool.submit(second)
            while not looking.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar():
                assert not waiting.done(), "the second save did not wait for the first"
            first.commit()
            return waiting.result(DEADLINE)

    return save


@in_postgres
def test_who_is_refused_a_first_batch_says_what_to_do(store, second_of_two):
    with pytest.raises(PlanRefusedError, match=r"orders-0 at the same time.*run the batch again"):
        second_of_two((0, 10))
    assert store.load("shop") == {FIRST: 10}


@in_postgres
def test_a_job_that_waits_for_the_same_ranges_of_an_added_partition_gets_false(save, store, second_of_two):
    save((0, 5))
    assert second_of_two((5, 9), (0, 3)) is False
    assert store.load("shop") == {FIRST: 9, SECOND: 3}


def test_a_store_needs_the_name_of_a_pipeline(save):
    with pytest.raises(UsageError, match="pipeline: found NoneType; expected text"):
        save((0, 10), pipeline=None)
