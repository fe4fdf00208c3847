from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.commit_metadata import NO_METADATA, CommitMetadata
from airflow_kafka_offsets.model.commit_origins import is_partly_moved, other_query_refusal
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS
from airflow_kafka_offsets.model.offsets import Commit, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_metadata_is_compact_json_without_what_is_empty():
    assert CommitMetadata(dag="d", run="r", task="t", query="q", batch=0).text() == (
        '{"dag":"d","run":"r","task":"t","query":"q","batch":0}'
    )


@given(
    st.builds(
        CommitMetadata,
        dag=st.text(max_size=20),
        run=st.text(max_size=20),
        query=st.uuids().map(str),
        at=st.none() | st.integers(0, 2**33),
    )
)
def test_metadata_reads_back(value):
    assert CommitMetadata.parse(value.text()) == value


def test_a_commit_of_many_partitions_keeps_its_time_and_what_names_its_run():
    value = CommitMetadata(
        dag="d" * 80,
        run="r" * 60,
        task="t",
        query="q" * 36,
        token="0" * 12,
        at=1_767_225_600,
        cluster="c" * 22,
        topic="i" * 22,
    )
    assert CommitMetadata.parse(value.text(1)).at == 1_767_225_600
    many = CommitMetadata.parse(value.text(10_000))
    assert (many.at, many.run, many.task) == (1_767_225_600, "r" * 60, "")


@pytest.mark.parametrize("number", [2, 100, 101])
def test_a_move_of_at_most_100_partitions_names_the_offsets_before_it(number):
    before = {TopicPartition("t", each): 10**12 + each for each in range(number)} | {A: None}
    made = CommitMetadata.parse(
        CommitMetadata(dag="d" * 250, run="r" * 250, token="x").texts(before, UNKNOWN_LOGS, before)["t"]
    )
    assert made.offsets_before("t") == (before if number <= 100 else {})
    assert made.token == "x"


@pytest.mark.parametrize("before", ["", "x", "0", "0:x", "-1:5", "0:5;1:6", "99999999999:1"])
def test_offsets_before_a_move_in_another_form_are_unknown(before):
    assert CommitMetadata(before=before).offsets_before("t") == {}


@pytest.mark.parametrize("tool", ["reset", "restore", "failover"])
def test_a_move_of_many_partitions_is_still_known_as_one(tool):
    made = CommitMetadata(
        dag="recovery_of_all_orders",
        run="manual__2026-01-05T00:00:00.123456+00:00",
        task="reset_all_orders",
        user="admin",
        query="d9ad211a-c76f-41b5-aa99-ca097d9e9e8b",
        batch=12_345,
        move=3,
        tool=tool,
        token="5f0c6b1de2a9",
        at=1_767_398_400,
        cluster="4L6g3nShT-eMCtK--X86sw",
        topic="lkXRs0e3Qk6bJZ6Y0wq0aQ",
        started=1_767_398_390,
        clears=1,
        try_number=1,
        request="1c5f0b1de2a9",
    )
    found = CommitMetadata.parse(made.text(1_000))
    assert (found.kind, found.run, found.identity) == (tool, made.run, made.identity)


def test_another_query_is_foreign_and_none_is_not():
    other = CommitMetadata(dag="d", run="r", task="t", query="other").text()
    assert other_query_refusal("g", {A: Commit(0), B: Commit(0, "written by a consumer")}, "mine") is None
    assert other_query_refusal("g", {A: Commit(0, CommitMetadata(query="mine").text())}, "mine") is None
    refusal = other_query_refusal("g", {A: Commit(0), B: Commit(0, other)}, "mine")
    assert refusal is not None
    assert "t-1" in refusal
    assert "run r of d.t" in refusal
    assert "allow_new_query" in refusal


def test_metadata_that_could_not_be_read_counts_as_somebody_elses():
    refusal = other_query_refusal("g", {A: Commit(0, None)}, "mine")
    assert refusal is not None
    assert "could not be read" in refusal


@pytest.mark.parametrize("text", [None, "", "by a consumer", "[]", '{"offset": 3}', "[" * 70_000])
def test_a_commit_of_another_client_has_no_metadata(text):
    found = CommitMetadata.of(Commit(0, text))
    assert (found, bool(found)) == (NO_METADATA, False)
    assert not CommitMetadata.of(None)
    assert CommitMetadata(query="q")


def test_each_mapped_instance_of_a_task_is_another_task():
    first = CommitMetadata(dag="d", run="r", task="t", map_index=0)
    assert first.is_same_task(replace(first, token="another try"))
    assert not first.is_same_task(replace(first, map_index=1))
    assert not first.is_same_task(replace(first, iteration=0))


MINE, OTHERS = CommitMetadata(dag="d", run="r", task="t", at=9), CommitMetadata(tool="another", at=8)


@pytest.mark.parametrize(
    ("commits", "half_way"),
    [
        ([MINE, NO_METADATA], True),
        ([MINE, OTHERS], True),
        ([MINE, replace(OTHERS, at=10)], False),
        ([MINE, MINE], False),
        ([OTHERS, NO_METADATA], False),
        ([], False),
    ],
)
def test_a_move_of_all_partitions_has_not_stopped_half_way(commits, half_way):
    assert is_partly_moved(commits, MINE) is half_way


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("", "commit"),
        ("spark listener", "commit"),
        ("airflow-kafka-offsets group commit", "commit"),
        ("reset", "reset"),
        ("airflow-kafka-offsets group reset", "reset"),
        ("airflow-kafka-offsets recover apply", "reset"),
        ("airflow-kafka-offsets recover restore", "restore"),
        ("airflow-kafka-offsets failover apply", "failover"),
        ("airflow-kafka-offsets failover back", "failover"),
    ],
)
def test_what_a_task_or_command_has_made(tool, kind):
    made = CommitMetadata(tool=tool)
    assert (made.kind, made.is_move) == (kind, kind != "commit")
