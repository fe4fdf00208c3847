from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    ClientCrashedError,
    CommitError,
    GroupActiveError,
    GroupMovedError,
    PlanRefusedError,
    UsageError,
)
from airflow_kafka_offsets.kafka import group_writes
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.commits import MAX_BYTES, MAX_PARTITIONS, check_commit, commit_chunks
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import CallError, Failure
from airflow_kafka_offsets.kafka.group_commits import GroupCommits
from airflow_kafka_offsets.kafka.group_writes import GroupWrite
from airflow_kafka_offsets.kafka.groups import GroupDescription, GroupMember
from airflow_kafka_offsets.model.offsets import MAX_OFFSET, Commit, TopicPartition

EMPTY = GroupDescription("g", "Empty")
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


@pytest.fixture
def group_of(monkeypatch):
    """
    group_of(send, read) -> commits to a group, as ``commit(offsets, check)``.

    ``send(parts)`` answers each attempt, and ``read(what, offsets)`` each look at the group.
    """

    def make(send, read, *, seconds=1.0, **asked):
        asked = {"describe_groups": lambda *_: {"g": EMPTY}} | asked
        admin: Any = SimpleNamespace(commit=lambda _, parts, *__: send(parts), **asked)
        session: Any = SimpleNamespace(connections=SimpleNamespace(get=lambda: None))
        monkeypatch.setattr(GroupCommits, "read", lambda _, call, offsets, *__: read(call.what, offsets))

        def commit(offsets, check=None):
            call = Call("committing", "kafka-1:9092", seconds)
            return GroupWrite(session, admin, "g", offsets, "mine", check).run(call)

        return commit

    return make


def refusing(code):
    """Return a ``send`` that refuses all partitions."""
    return lambda parts: {tp: Failure(code, "no") for part in parts for tp in part}


def holding(offsets):
    """Return a ``read`` of a group with these offsets, all committed by this commit."""
    found = {tp: Commit(offset, "mine") for tp, offset in offsets.items()}
    return lambda _, wanted: {tp: found.get(tp) for tp in wanted}


def test_a_refused_commit_is_read_back_because_the_client_blames_all_partitions(group_of):
    commit = group_of(refusing("TOPIC_AUTHORIZATION_FAILED"), holding({A: 5}))
    with pytest.raises(CommitError, match="grant it Read on the topics") as failed:
        commit({A: 5, OTHER: 5})
    assert (failed.value.written, [*failed.value.failed], failed.value.retriable) == ((A,), [OTHER], False)


def test_a_refused_commit_that_cannot_be_read_back_may_be_written(group_of):
    def read(what, offsets):
        if "reading back" in what:
            raise BrokerUnavailableError("no usable answer")
        return dict.fromkeys(offsets)

    commit = group_of(refusing("TOPIC_AUTHORIZATION_FAILED"), read)
    with pytest.raises(BrokerUnavailableError, match="no usable answer; it is not known whether it was"):
        commit({A: 5, OTHER: 5})


def test_a_refused_commit_to_one_topic_is_not_taken_for_what_is_there_already(group_of):
    commit = group_of(refusing("TOPIC_AUTHORIZATION_FAILED"), holding({A: 5, B: 5}))
    with pytest.raises(BrokerAuthenticationError, match="nothing was written"):
        commit({A: 5, B: 5})


@pytest.mark.parametrize("missing", [[], [A]])
def test_an_unknown_partition_is_tried_again_unless_the_broker_does_not_know_it_either(
    group_of, monkeypatch, missing
):
    monkeypatch.setattr(group_writes, "missing_partitions", lambda *_: missing)
    answers = [{A: Failure("UNKNOWN_TOPIC_OR_PART", "no")}, {A: None}]
    commit = group_of(lambda _: answers.pop(0), holding({}), seconds=5.0)
    if missing:
        with pytest.raises(CommitError, match="correct the topic") as failed:
            commit({A: 5})
        assert not failed.value.retriable
    else:
        commit({A: 5})
    assert len(answers) == len(missing)


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


def test_a_part_without_a_response_may_be_written_although_another_is_refused(group_of):
    """A window is committed to the group from then on."""
    occupied = GroupDescription("g", "Stable", "classic", (GroupMember("m", "x-window-commit", "h", ()),))
    assert occupied.is_occupied
    described = chain([EMPTY], repeat(occupied))

    def send(parts):
        codes = ["_TIMED_OUT", "UNKNOWN_MEMBER_ID"]
        return {tp: Failure(codes[n], "") for n, part in enumerate(parts) for tp in part}

    commit = group_of(send, holding({}), describe_groups=lambda *_: {"g": next(described)})
    offsets = {TopicPartition("orders", number): 5 for number in range(MAX_PARTITIONS + 1)}
    with pytest.raises(GroupActiveError, match="a window was being committed.*it is not known whether"):
        commit(offsets)


def test_a_member_that_joins_right_before_the_commit_is_named(group_of):
    active = GroupDescription("g", "Stable", "classic", (GroupMember("m", "a-reader", "h", ()),))
    described = chain([EMPTY], repeat(active))
    asked = {"describe_groups": lambda *_: {"g": next(described)}}
    with pytest.raises(GroupActiveError, match=r"1 active member \(a-reader on h\).*; nothing was written"):
        group_of(refusing("UNKNOWN_MEMBER_ID"), holding({}), **asked)({A: 5})


@pytest.mark.parametrize("moved_on", [False, True])
def test_a_commit_that_was_done_without_a_response_is_done_although_members_have_joined_since(
    group_of, moved_on
):
    active = GroupDescription("g", "Stable", "classic", (GroupMember("m", "a-reader", "h", ()),))
    described, held = chain([EMPTY], repeat(active)), {}

    def send(parts):
        held.update({A: Commit(5, "mine"), B: Commit(9, "") if moved_on else Commit(5, "mine")})
        return {tp: Failure("NOT_COORDINATOR", "x") for part in parts for tp in part}

    asked = {"describe_groups": lambda *_: {"g": next(described)}}
    commit = group_of(send, lambda _, offsets: {tp: held.get(tp) for tp in offsets}, seconds=5.0, **asked)
    if moved_on:
        with pytest.raises(GroupActiveError, match="1 of 2 partitions were written .orders-0., and"):
            commit({A: 5, B: 5})
    else:
        commit({A: 5, B: 5})


def test_a_commit_is_not_done_if_members_that_have_joined_since_have_moved_a_part_of_it(group_of):
    active = GroupDescription("g", "Stable", "classic", (GroupMember("m", "a-reader", "h", ()),))
    described, held = chain([EMPTY], repeat(active)), {}

    def send(parts):
        held.update({A: Commit(9, ""), B: Commit(5, "mine")})
        return {A: None, B: Failure("NOT_COORDINATOR", "x")}

    asked = {"describe_groups": lambda *_: {"g": next(described)}}
    commit = group_of(send, lambda _, offsets: {tp: held.get(tp) for tp in offsets}, seconds=5.0, **asked)
    with pytest.raises(GroupActiveError, match="1 active member"):
        commit({A: 5, B: 5})


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


def test_an_open_outcome_stays_open_if_the_topics_of_other_partitions_cannot_be_looked_up(
    group_of, monkeypatch
):
    def no_answer(*_):
        raise CallError(Failure("_TIMED_OUT", "no answer"))

    monkeypatch.setattr(group_writes, "missing_partitions", no_answer)
    results = {A: Failure("REQUEST_TIMED_OUT", "x"), OTHER: Failure("UNKNOWN_TOPIC_OR_PART", "y")}
    commit = group_of(lambda _: results, holding({}))
    with pytest.raises(BrokerError, match="it is not known whether it was written"):
        commit({A: 5, OTHER: 5})


def test_a_partition_that_was_refused_for_good_ends_the_commit_although_another_one_may_pass(group_of):
    results = {
        A: Failure("COORDINATOR_LOAD_IN_PROGRESS", "x"),
        OTHER: Failure("TOPIC_AUTHORIZATION_FAILED", "y"),
    }
    sent = []

    def send(parts):
        sent.append(parts)
        return results

    with pytest.raises(CommitError) as failed:
        group_of(send, holding({}))({A: 5, OTHER: 5})
    assert len(sent) == 1
    assert failed.value.failed == {tp: failure.code for tp, failure in results.items()}
    assert not failed.value.retriable
