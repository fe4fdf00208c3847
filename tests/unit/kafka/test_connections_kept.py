"""Which connections stay open when large groups, and many groups, are asked in turn."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from airflow_kafka_offsets.kafka import connection
from airflow_kafka_offsets.kafka.connection import MAX_KEPT, OWN_GROUP, Connections


class Made(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.fixture
def made(monkeypatch):
    """Counts the connections that are made, by group."""
    counts: Counter[str] = Counter()

    def make(_, group_id, __):
        counts[group_id] += 1
        return Made(consumer=SimpleNamespace(close=lambda: None), reuse=lambda: True)

    monkeypatch.setattr(connection, "Connection", make)
    return counts


@pytest.mark.parametrize(
    ("groups", "chunks", "isolation_level"),
    [
        (1, 8, "read_committed"),
        (1, 40, "read_uncommitted"),
        (2, 8, "read_uncommitted"),
        (3, 3, "read_uncommitted"),
        (6, 2, "read_uncommitted"),
    ],
)
def test_a_second_round_opens_none(made, groups, chunks, isolation_level):
    kept = Connections({})

    def ask_all():
        for number in range(groups):
            assert len(kept.several(chunks, f"g{number}")) <= MAX_KEPT
        assert len(kept.for_logs(chunks, 2 * chunks, isolation_level)) <= MAX_KEPT

    ask_all()
    ask_all()
    before = made.total()
    ask_all()
    assert made.total() == before


def test_further_connections_make_room_for_other_groups(made):
    kept = Connections({})
    assert len(kept.several(8, "large")) == 8
    for number in range(7):
        kept.get(f"g{number}")
    assert kept.get("large") is kept.several(1, "large")[0]
    assert made["large"] == 8
    assert kept.crowded("another")
    assert not kept.crowded("large")


def test_logs_are_asked_over_the_connections_of_groups(made):
    kept = Connections({})
    of_group = kept.several(4, "g")
    assert set(of_group) < set(kept.for_logs(4, 8, "read_uncommitted"))
    assert made == {"g": 4, OWN_GROUP: 1}
