"""What names a task run in its commits: the same over its tries, and no other one's."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_offsets.task.identity import commit_metadata, iteration, map_index

BEGUN = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TI = {"dag_id": "orders", "run_id": "scheduled__1", "task_id": "reset", "map_index": -1, "max_tries": 2}
RUN = {"start_date": BEGUN, "clear_number": 0}


def context(
    ti: dict[str, Any] | None = None, run: dict[str, Any] | None = None, *, loop: int | None = None
) -> Any:
    return {
        "ti": SimpleNamespace(**(TI | {"try_number": 1} | (ti or {}))),
        "dag_run": SimpleNamespace(**(RUN | (run or {}))),
        **({} if loop is None else {"loop": SimpleNamespace(index=loop)}),
    }


FIRST = commit_metadata(context())


@pytest.mark.parametrize(
    "again",
    [context({"try_number": 2}), context({"try_number": 2}, {"clear_number": 1})],
    ids=["a retry", "a retry after another task of the run was cleared"],
)
def test_an_earlier_try_is_known_by_its_token(again):
    metadata = commit_metadata(again)
    assert (metadata.token, metadata.is_same_task(FIRST)) == (FIRST.token, True)


@pytest.mark.parametrize(
    ("other", "same_task"),
    [
        (context({"try_number": 2, "max_tries": 3}, {"clear_number": 1}), True),
        (
            context(
                {"try_number": 2, "max_tries": 3},
                {"clear_number": 1, "start_date": BEGUN + timedelta(hours=1)},
            ),
            True,
        ),
        (context(run={"start_date": BEGUN + timedelta(hours=1)}), False),
        (context({"try_number": 2}, {"start_date": BEGUN + timedelta(hours=1)}), False),
        (context({"map_index": 0}), False),
        (context({"run_id": "scheduled__2"}), False),
        # A task loop of Airflow 3.4 repeats a task that is not mapped.
        (context({"try_number": 2, "region_index": 1, "region_id": "a"}, loop=1), False),
    ],
    ids=[
        "cleared in a run that had not ended",
        "cleared in a run that had ended",
        "created again",
        "created again, and tried again",
        "another map index",
        "another run",
        "another iteration",
    ],
)
def test_what_is_no_retry_has_another_token(other, same_task):
    metadata = commit_metadata(other)
    assert metadata.token != FIRST.token
    assert metadata.is_same_task(FIRST) is same_task


def test_the_same_iteration_of_two_loops_has_two_tokens():
    tokens = {
        commit_metadata(context({"region_index": 0, "region_id": region})).token for region in ("a", "b")
    }
    assert len(tokens) == 2


def test_a_retry_of_a_mapped_task_in_a_loop_does_not_take_over_the_iteration_before():
    # Seen on 3.4.0b2: the index is the same in each iteration, and only the region is another one.
    region = {"map_index": 0, "region_index": 0}
    first = commit_metadata(context({**region, "region_id": "a"}, loop=0))
    retry = commit_metadata(context({**region, "region_id": "b", "try_number": 2}, loop=1))
    assert not retry.is_same_task(first)


def test_an_iteration_that_was_cleared_is_the_same_task():
    # Airflow gives it another region if it was cleared with an iteration before it.
    first = commit_metadata(context({"region_index": 1, "region_id": "a"}, loop=1))
    again = commit_metadata(context({"region_index": 1, "region_id": "b", "try_number": 2}, loop=1))
    assert again.token != first.token
    assert again.is_same_task(first)


@pytest.mark.parametrize(("ti", "index"), [({}, -1), ({"map_index": 3}, 3), ({"map_index": None}, -1)])
@pytest.mark.parametrize("loop", [None, 2])
def test_map_index_and_iteration_are_two_things(ti, index, loop):
    # Outside a mapped task the region's index is the iteration, in one it is the map index.
    metadata = commit_metadata(context({**ti, "region_index": 2}, loop=loop))
    assert (metadata.map_index, metadata.iteration) == (index, loop)


def test_outside_a_run_nothing_is_known():
    nothing: Any = {}
    assert (map_index(nothing), iteration(nothing)) == (-1, None)
    assert (commit_metadata(nothing).run_start, commit_metadata(nothing).token) == ((None, 0), "")
