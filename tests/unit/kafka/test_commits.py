from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import (
    BrokerError,
    BrokerUnavailableError,
    ClientCrashedError,
    CommitError,
    GroupMovedError,
    PlanRefusedError,
    UsageError,
)
from airflow_kafka_offsets.kafka import group_commits
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.commits import (
    MAX_BYTES,
    MAX_PARTITIONS,
    CommitState,
    check_commit,
    commit_chunks,
)
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import CallError, Failure
from airflow_kafka_offsets.kafka.groups import GroupDescription, GroupMember
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Commit, TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
OTHER = TopicPartition("payments", 0)


@given(
    count=st.integers(0, 5000),
    group=st.text(min_size=1, max_size=100),
    metadata=st.text(max_size=1000),
)
def test_parts_are_all_of_it_once_and_each_fits_into_one_batch(count, group, metadata):
    offsets = {TopicPartition("orders", number): number for number in range(count)}
    parts = list(commit_chunks(group, offsets, {"orders": metadata}))
    joined = [item for part in parts for item in part.items()]
    assert sorted(joined) == sorted(offsets.items())
    record = 44 + len(group.encode()) + len("orders") + len(metadata.encode())
    most = min(MAX_PARTITIONS, MAX_BYTES // record)
    assert all(len(part) == most for part in parts[:-1])
    assert all(0 < len(part) <= most for part in parts[-1:])


@pytest.mark.parametrize(
    ("group", "offset", "metadata", "expected"),
    [
        ("", 1, "", "group_id is empty"),
        ("g", -1, "", "offset -1 of orders-0 cannot be committed"),
        ("g", MAX_OFFSET + 1, "", "cannot be committed"),
        ("g", 1, "x" * 4096, "metadata of 4096 bytes; expected at most 4095"),
        ("g", 1, "é" * 2048, "metadata of 4096 bytes"),
        ("g", 1, "a\0b", "without NUL"),
    ],
)
def test_what_cannot_be_committed_is_refused_before_anything_is_sent(group, offset, metadata, expected):
    with pytest.raises(UsageError, match=expected):
        check_commit(group, {A: offset}, metadata)


def nothing(_):
    return []


def test_a_refused_commit_is_read_back_because_the_client_blames_all_partitions():
    state = CommitState({A: 1, OTHER: 2}, read_back=lambda _: [A])
    refused = Failure("TOPIC_AUTHORIZATION_FAILED", "no")
    state.take_results({A: refused, OTHER: refused}, nothing)
    assert state.written == [A]
    assert state.failures == {OTHER: refused}


def test_a_refused_commit_that_cannot_be_read_back_may_be_written():
    def unreadable(_):
        raise BrokerUnavailableError("no usable answer")

    state = CommitState({A: 1, OTHER: 2}, unreadable)
    refused = Failure("TOPIC_AUTHORIZATION_FAILED", "no")
    with pytest.raises(BrokerUnavailableError):
        state.take_results({A: refused, OTHER: refused}, nothing)
    assert state.uncertain


def test_a_refused_commit_to_one_topic_is_not_taken_for_what_is_there_already():
    state = CommitState({A: 1, B: 2}, read_back=lambda _: [A, B])
    refused = Failure("TOPIC_AUTHORIZATION_FAILED", "no")
    state.take_results({A: refused, B: refused}, nothing)
    assert state.written == []
    assert state.failures == {A: refused, B: refused}


def test_an_unknown_partition_is_tried_again_unless_the_broker_does_not_know_it_either():
    unknown = Failure("UNKNOWN_TOPIC_OR_PART", "no")
    state = CommitState({A: 1}, read_back=nothing)
    with pytest.raises(CallError):
        state.take_results({A: unknown}, nothing)
    state.take_results({A: unknown}, lambda partitions: partitions)
    assert state.refused == {A: unknown}


@pytest.fixture
def group_of(monkeypatch):
    """
    group_of(send, read) -> commits of a group, as ``commit(offsets, check)``.

    ``send(parts)`` answers each attempt, and ``read(what, offsets)`` each look at the group.
    """

    def make(send, read, *, seconds=1.0, **asked):
        admin: Any = SimpleNamespace(commit=lambda _, parts, *__: send(parts), **asked)
        commits = group_commits.GroupCommits(SimpleNamespace(), admin, "g")  # type: ignore[arg-type]
        monkeypatch.setattr(commits, "read", lambda call, offsets, *_: read(call.what, offsets))
        call = Call("committing", "kafka-1:9092", seconds)
        return lambda offsets, check=None: commits.commit(call, offsets, {"orders": "mine"}, check)

    return make


@pytest.mark.parametrize("code", ["_TIMED_OUT", "_TRANSPORT", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"])
@pytest.mark.parametrize("appears", [True, False])
def test_a_commit_without_a_clear_response_may_appear_at_any_later_read(group_of, code, appears):
    """Kafka shows a commit once its replicas have it, which may be after the coordinator's time for it."""
    codes = [code, "COORDINATOR_LOAD_IN_PROGRESS"]
    sent = []

    def send(parts):
        sent.append(parts)
        return {tp: Failure(codes[min(len(sent), 2) - 1], "x") for part in parts for tp in part}

    def read(_, offsets):
        return dict.fromkeys(offsets, Commit(5, "mine") if appears and len(sent) == len(codes) else None)

    def check(found):
        if any(found.values()):
            raise GroupMovedError("the group has moved")

    commit = group_of(send, read)
    if appears:
        commit({A: 5, B: 5}, check)
        assert len(sent) == len(codes)
    else:
        with pytest.raises(BrokerUnavailableError, match="it is not known whether it was written"):
            commit({A: 5, B: 5}, check)


def test_a_part_without_a_response_is_looked_up_although_another_is_refused(group_of):
    group = GroupDescription("g", "Stable", "classic", (GroupMember("m", "x-window-commit", "h", ()),))
    assert group.is_occupied
    reads = []

    def send(parts):
        codes = ["_TIMED_OUT", "UNKNOWN_MEMBER_ID"]
        return {tp: Failure(codes[n], "") for n, part in enumerate(parts) for tp in part}

    def read(what, offsets):
        reads.append(what)
        return dict.fromkeys(offsets)

    commit = group_of(send, read, describe_groups=lambda *_: {"g": group})
    offsets = {TopicPartition("orders", number): 5 for number in range(MAX_PARTITIONS + 1)}
    with pytest.raises(BrokerError, match="it is not known whether"):
        commit(offsets)
    assert sum("reading back" in what for what in reads) > 1


def test_a_commit_without_a_response_is_found_by_reading_it(client, make_topic, new_group, monkeypatch):
    partition, group = TopicPartition(make_topic(1), 0), new_group()
    real, sent = Admin.commit, []

    def answer_is_lost(self, *arguments):
        sent.append(real(self, *arguments))
        raise ClientCrashedError("it died")

    monkeypatch.setattr(Admin, "commit", answer_is_lost)
    client.commit(group, {partition: 5}, "mine")
    assert sent == [{partition: None}]
    assert client.committed(group, [partition]) == {partition: Commit(5, "mine")}


@pytest.mark.parametrize(
    "refusal", [PlanRefusedError(["the group has moved"]), GroupMovedError("the group has moved")]
)
def test_a_further_attempt_is_checked_again_and_a_refusal_names_what_was_written(group_of, refusal):
    held: dict[TopicPartition, Commit | None] = {A: None, B: None}
    sent, checked = [], []

    def send(parts):
        sent.append(parts)
        held[A], held[B] = Commit(5, "mine"), Commit(9, "another's")
        return {A: None, B: Failure("NOT_COORDINATOR", "moved")}

    def check(found):
        checked.append(found)
        if found[B] is not None:
            raise refusal

    with pytest.raises(CommitError) as failed:
        group_of(send, lambda _, offsets: {tp: held[tp] for tp in offsets}, seconds=5.0)({A: 5, B: 5}, check)
    assert str(failed.value) == (
        "committing: 1 of 2 partitions were written (orders-0), and it is not known whether the rest was; "
        "committing the same offsets again is safe; the rest was refused: the group has moved"
    )
    assert (failed.value.written, [*failed.value.failed], failed.value.retriable) == ((A,), [B], True)
    assert len(sent) == 1
    # What it has written itself is not what the check is about.
    assert checked == [{A: None, B: None}, {A: None, B: Commit(9, "another's")}]


def test_an_open_outcome_stays_open_if_the_topics_of_other_partitions_cannot_be_looked_up():
    def no_answer(_):
        raise CallError(Failure("_TIMED_OUT", "no answer"))

    state = CommitState({A: 5, OTHER: 6}, nothing)
    results = {A: Failure("REQUEST_TIMED_OUT", "x"), OTHER: Failure("UNKNOWN_TOPIC_OR_PART", "y")}
    with pytest.raises(CallError):
        state.take_results(results, no_answer)
    assert state.uncertain


def test_a_partition_that_was_refused_for_good_ends_the_commit_although_another_one_may_pass():
    state = CommitState({A: 5, OTHER: 6}, lambda offsets: [])
    results = {
        A: Failure("COORDINATOR_LOAD_IN_PROGRESS", "x"),
        OTHER: Failure("TOPIC_AUTHORIZATION_FAILED", "y"),
    }
    state.take_results(results, lambda _: [])
    assert list(state.refused) == [OTHER]
    assert state.failures.keys() == {A, OTHER}
