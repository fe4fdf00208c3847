"""Values that viewers share."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_kafka_offsets.ui.fresh import Fresh


def test_a_hundred_viewers_make_a_value_once():
    made, go = [], threading.Event()

    def make(key):
        go.wait(10)
        made.append(key)
        return key.upper()

    values = Fresh(make, 60.0, 10)
    with ThreadPoolExecutor(100) as viewers:
        asked = [viewers.submit(values.get, "a") for _ in range(100)]
        go.set()
        assert {each.result(10) for each in asked} == {"A"}
    assert made == ["a"]


def test_a_value_is_made_again_after_a_while_and_after_a_failure():
    answers = iter([ValueError("the database is away"), 1, 2])

    def make(_):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    values = Fresh(make, 0.2, 10)
    with pytest.raises(ValueError, match="away"):
        values.get("a")

    assert (values.get("a"), values.get("a")) == (1, 1)
    time.sleep(0.3)
    assert values.get("a") == 2


def test_the_values_that_were_asked_for_last_are_kept():
    made = []
    values = Fresh(lambda key: made.append(key), 60.0, 2)

    for key in ("a", "b", "a", "c", "a", "b"):
        values.get(key)

    assert made == ["a", "b", "c", "b"]
