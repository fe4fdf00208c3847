"""Two movers of one group or pipeline, in every order of their reads and writes that a schedule asks for."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from concurrent_movers import BEFORE, CHECKPOINT_AT, GROUP_AT, PARTITIONS, RECORDS, Task, World
from concurrent_movers import group_pairs as pairs_on_group
from concurrent_movers import pipeline_pairs as pairs_on_pipeline
from judged_pairs import Pair, run_pair

from airflow_kafka_offsets.kafka import client
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

INTERLEAVINGS = int(os.environ.get("INTERLEAVINGS", "50"))
SEED = int(os.environ.get("INTERLEAVINGS_SEED", "1"))
UNTIL = float(os.environ.get("INTERLEAVINGS_UNTIL", "inf"))
PAIRS = [("group", Pair(*pair)) for pair in pairs_on_group()]
PAIRS += [("pipeline", Pair(*pair)) for pair in pairs_on_pipeline()]
CHOSEN = [
    (where, pair) for where, pair in PAIRS if os.environ.get("INTERLEAVINGS_PAIRS", "") in f"{where}: {pair}"
]
SHORT = {
    "group: commit, commit",
    "group: commit, fenced window",
    "pipeline: commit, reset",
    "pipeline: reset, reset",
    "pipeline: reset, listener",
}
A_FEW = 5
"""Enough to stop each mover of a pair right before it writes to the group, and one before its first write."""


def _named(pairs):
    return pytest.mark.parametrize(
        ("where", "pair"), pairs, ids=[f"{where}: {pair}" for where, pair in pairs]
    )


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(len(PARTITIONS))
    produce(name, dict.fromkeys(PARTITIONS, RECORDS))
    return name


@pytest.fixture(scope="module")
def kept_admins() -> Iterator[None]:
    """Keep one admin process for each mover: to start one takes longer than all the rest of a move."""
    kept: dict[str, Admin] = {}

    class KeptAdmin(Admin):
        def close(self) -> None:
            """Stay, for the next client of the same thread."""

    def admin(config: Any) -> Admin:
        return kept.setdefault(threading.current_thread().name, KeptAdmin(config))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "Admin", admin)
        yield
    for each in kept.values():
        Admin.close(each)


@pytest.fixture
def new_world(
    kept_admins, broker, bootstrap_servers, oracle, topic, new_query, commit, new_group, tmp_path, monkeypatch
):
    """new_world("group") or ("pipeline"), which a reset has moved once before."""
    extra = {"bootstrap.servers": bootstrap_servers}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    made: dict[str, Any] = {}

    def first_reset(kind: str) -> dict[str, Any]:
        group = new_group()
        commit(group, topic, dict.fromkeys(PARTITIONS, BEFORE))
        query = new_query({topic: dict.fromkeys(PARTITIONS, BEFORE)}) if kind == "pipeline" else None
        to = CHECKPOINT_AT if query else GROUP_AT
        names: dict[str, Any] = {"group_id": group}
        names |= {"checkpoint_location": query.location, "quiet_period": 0} if query else {}
        offsets = {topic: {str(number): to for number in PARTITIONS}}
        reset = ResetOffsetsOperator(task_id="reset", to_offset=offsets, **names)
        context: Any = {"ti": Task("reset", "first")}
        return {"receipt": reset.execute(context), "template": query and query.root}

    def make(kind: str) -> World:
        if kind not in made:
            made[kind] = first_reset(kind)
        template: Path | None = made[kind]["template"]
        checkpoint = (template, tmp_path) if template else None
        return World(broker, bootstrap_servers, oracle, topic, made[kind]["receipt"], checkpoint)

    return make


@_named([(where, pair) for where, pair in PAIRS if f"{where}: {pair}" in SHORT])
def test_a_few_pairs_end_where_one_of_them_has_put_them(where, pair, new_world, monkeypatch):
    _, wrong = run_pair(pair, lambda: new_world(where), monkeypatch, A_FEW, SEED)
    assert not wrong, wrong[0]


@pytest.mark.timeout(1800)
@pytest.mark.long
@_named(CHOSEN)
def test_each_pair_ends_where_one_of_them_has_put_it(where, pair, new_world, monkeypatch, record_property):
    if time.time() > UNTIL:
        pytest.skip("no time is left")
    counts, wrong = run_pair(pair, lambda: new_world(where), monkeypatch, INTERLEAVINGS, SEED, UNTIL)
    record_property(f"{where}: {pair}", dict(counts))
    assert not wrong, f"{len(wrong)} of {counts['interleavings']}, the first: {wrong[0]}"
