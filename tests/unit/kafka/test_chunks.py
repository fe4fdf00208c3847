"""Partitions are cut into requests: large ones where the broker is far away."""

from __future__ import annotations

import math
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.kafka.session import Session
from airflow_kafka_offsets.model.offsets import TopicPartition

CONFIG = {"bootstrap.servers": "127.0.0.1:1"}


def session(*fastest, chunk_size=250):
    """A session whose connections have had such fastest responses, in seconds."""
    made = Session(CONFIG, timeout=1, total=None, chunk_size=chunk_size)
    kept: Any = {number: SimpleNamespace(fastest=each) for number, each in enumerate(fastest)}
    made.connections._kept = kept
    return made


def partitions(count):
    return [TopicPartition("orders", number) for number in range(count)]


@pytest.mark.parametrize(
    ("fastest", "size"),
    [
        ((), 500),
        ((math.inf,), 500),
        ((0.004,), 500),
        ((0.300, 0.004), 500),
        ((0.021, math.inf), 1_250),
        ((0.300, 0.021), 1_250),
    ],
)
def test_far_away_all_that_one_connection_asks_for_is_one_request(fastest, size):
    assert {len(chunk) for chunk in session(*fastest).chunks(partitions(10_000))} == {size}


@pytest.mark.parametrize("fastest", [0.004, 0.021])
def test_few_partitions_are_not_shared_out_more_than_needed(fastest):
    assert [len(chunk) for chunk in session(fastest).chunks(partitions(600))] == [250, 250, 100]


@given(st.integers(0, 3_000), st.integers(1, 600), st.lists(st.floats(0, 1) | st.just(math.inf), max_size=8))
def test_each_partition_is_in_one_chunk(count, chunk_size, fastest):
    wanted = partitions(count)
    chunks = session(*fastest, chunk_size=chunk_size).chunks(wanted)
    assert list(chain(*chunks)) == wanted
    assert all(0 < len(chunk) <= 5 * chunk_size for chunk in chunks)
