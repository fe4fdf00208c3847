"""What a window's commit has written that was interrupted, refused or not answered, and what it says."""

from collections import deque
from itertools import chain, repeat

import pytest

from airflow_kafka_offsets.errors import BrokerAuthenticationError, BrokerUnavailableError, CommitError
from airflow_kafka_offsets.kafka import commits, fenced
from airflow_kafka_offsets.kafka.admin import Admin
from airflow_kafka_offsets.kafka.failures import CallError, Failure
from airflow_kafka_offsets.kafka.group_commits import GroupCommits
from airflow_kafka_offsets.kafka.requests import send_commit
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.write import commit_window

MOVED = CallError(Failure("NOT_COORDINATOR", "moved"))


@pytest.fixture
def partitions(make_topic):
    topic = make_topic(4)
    return [TopicPartition(topic, number) for number in range(4)]


@pytest.fixture
def group(new_group):
    return new_group()


@pytest.fixture
def window(partitions):
    """window(start, end) -> a range in each partition; without a start, for a group without commits."""

    def make(start, end):
        ranges = {tp: OffsetRange(start or 0, end) for tp in partitions}
        return OffsetWindow(ranges, frozenset(partitions if start is None else ()))

    return make


@pytest.fixture
def small_requests(monkeypatch):
    """Two partitions in one commit, so that these windows take two."""
    monkeypatch.setattr(commits, "MAX_PARTITIONS", 2)


@pytest.fixture
def sending(monkeypatch):
    """sending(None, error): the first commit is made, and the error comes in place of the second one."""
    real = send_commit

    def arrange(*errors):
        left = deque(errors)

        def send(*arguments):
            error = left.popleft() if left else None
            if error is not None:
                raise error
            return real(*arguments)

        monkeypatch.setattr(fenced, "send_commit", send)
        return left

    return arrange


@pytest.fixture
def answered(monkeypatch):
    """answered(*codes): nothing is written; all partitions get these codes in turn, the last one again."""

    def arrange(*codes):
        answers = chain(codes, repeat(codes[-1]))

        def answer(_, offsets, *__):
            return dict.fromkeys(offsets, Failure(next(answers), "the answer"))

        monkeypatch.setattr(fenced, "send_commit", answer)

    return arrange


@pytest.fixture
def readable(monkeypatch):
    """readable(times): so often a group's commits can be read, and then no more."""
    read = GroupCommits.read

    def arrange(times):
        left = [None] * times

        def read_some(*given):
            if not left:
                raise BrokerUnavailableError("no usable answer")
            left.pop()
            return read(*given)

        monkeypatch.setattr(GroupCommits, "read", read_some)

    return arrange


@pytest.fixture
def before_each_attempt(monkeypatch):
    """before_each_attempt(do) does something whenever a fenced commit has looked for members."""
    look = fenced.FencedCommit._refuse_members

    def arrange(do):
        def look_and_do(self, call):
            look(self, call)
            do()

        monkeypatch.setattr(fenced.FencedCommit, "_refuse_members", look_and_do)

    return arrange


def test_half_of_a_commit_that_was_killed_is_finished(
    client, group, partitions, window, holds, sending, small_requests
):
    sending(None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        commit_window(client, group, window(None, 5))
    assert holds(group) == {0: 5, 1: 5}
    assert commit_window(client, group, window(None, 5)) == dict.fromkeys(partitions[2:], 5)
    assert holds(group) == dict.fromkeys(range(4), 5)


def test_a_commit_whose_answer_was_lost_is_looked_up(client, group, window, holds, monkeypatch):
    real, sent = send_commit, []

    def send(*arguments):
        sent.append(real(*arguments))
        raise CallError(Failure("_TIMED_OUT", "no answer to the commit"))

    monkeypatch.setattr(fenced, "send_commit", send)
    assert commit_window(client, group, window(None, 5)) == window(None, 5).end
    assert len(sent) == 1
    assert holds(group) == dict.fromkeys(range(4), 5)


def test_what_somebody_else_commits_between_two_attempts_is_not_moved_by_this_one(
    client, group, partitions, window, holds, sending, before_each_attempt
):
    left = sending(MOVED)
    before_each_attempt(lambda: left or client.commit(group, {partitions[0]: 5}, "another's"))
    assert commit_window(client, group, window(None, 5), "mine") == dict.fromkeys(partitions[1:], 5)
    assert holds(group) == dict.fromkeys(range(4), 5)


def test_what_was_written_is_told_when_the_rest_is_refused(
    client, group, partitions, window, sending, small_requests, before_each_attempt
):
    """The coordinator moves in the middle, and somebody commits before this one is back."""
    left = sending(None, MOVED)
    before_each_attempt(lambda: left or client.commit(group, {partitions[3]: 7}))
    with pytest.raises(CommitError, match="known whether the rest was;.* the rest was refused") as refused:
        commit_window(client, group, window(None, 5))
    assert refused.value.written == tuple(partitions[:2])


def test_a_refusal_after_an_attempt_that_may_be_written_does_not_say_that_nothing_was_changed(
    client, group, partitions, window, sending, before_each_attempt
):
    left = sending(MOVED)
    before_each_attempt(lambda: left or client.commit(group, {partitions[3]: 7}))
    with pytest.raises(CommitError, match="^committing.*not known whether it was.*; the rest .* found 7"):
        commit_window(client, group, window(None, 5))


def test_without_a_fence_the_group_is_compared_again_before_each_attempt(
    client, group, partitions, window, holds, monkeypatch
):
    real, meanwhile = Admin.commit, []

    def send(*arguments):
        if not meanwhile:
            return real(*arguments)
        client.commit(group, {partitions[0]: meanwhile.pop()})
        raise MOVED

    monkeypatch.setattr(Admin, "commit", send)
    meanwhile.append(5)
    moved = commit_window(client, group, window(None, 5), "mine", fenced=False)
    assert moved == dict.fromkeys(partitions[1:], 5)
    meanwhile.append(7)
    with pytest.raises(
        CommitError, match="not known whether it was written.*; the rest .*-0: found 7"
    ) as refused:
        commit_window(client, group, window(5, 9), fenced=False)
    assert refused.value.retriable
    assert holds(group) == {0: 7, 1: 5, 2: 5, 3: 5}


@pytest.mark.parametrize(
    ("codes", "outcome"),
    [
        (["REQUEST_TIMED_OUT"], "it is not known whether it was written"),
        # The coordinator has written the commit, and shows it once its replicas have it.
        (["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"], "it is not known whether it was"),
        (["COORDINATOR_LOAD_IN_PROGRESS"], "nothing was written"),
    ],
)
def test_after_an_answer_that_leaves_the_outcome_open_nobody_reads_that_nothing_was_written(
    client, group, window, answered, codes, outcome
):
    answered(*codes)
    with pytest.raises(BrokerUnavailableError, match=outcome):
        commit_window(client, group, window(None, 5))


@pytest.mark.parametrize(
    ("reads", "outcome"),
    [(0, "nothing was written"), (1, r"4 of 4 partitions were written \(")],
)
def test_a_group_that_cannot_be_read_any_more_is_an_error_with_what_was_written(
    client, group, window, readable, reads, outcome
):
    readable(reads)
    with pytest.raises(BrokerUnavailableError, match=f"no usable answer; {outcome}"):
        commit_window(client, group, window(None, 5))


def test_a_refused_commit_that_cannot_be_read_back_does_not_say_that_nothing_was_written(
    client, group, window, answered, readable
):
    """The client reports the refusal of one partition for all of them."""
    answered("OFFSET_METADATA_TOO_LARGE")
    readable(1)
    with pytest.raises(BrokerUnavailableError, match="no usable answer; it is not known whether it was"):
        commit_window(client, group, window(None, 5))


def test_what_a_refused_commit_has_written_all_the_same_is_read_back(
    client, group, partitions, window, monkeypatch
):
    real, first = send_commit, partitions[0]

    def send(connection, offsets, texts, seconds):
        real(connection, {first: offsets[first]}, texts, seconds)
        return dict.fromkeys(offsets, Failure("OFFSET_METADATA_TOO_LARGE", "too large"))

    monkeypatch.setattr(fenced, "send_commit", send)
    with pytest.raises(CommitError, match="3 of 4 partitions were not committed") as refused:
        commit_window(client, group, window(None, 5))
    assert refused.value.written == (first,)


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (
            "OFFSET_METADATA_TOO_LARGE",
            CommitError,
            r"4 of 4 .* \(topic-\w+-0, topic-\w+-1: OFF.*; topic-\w+-2",
        ),
        ("TOPIC_AUTHORIZATION_FAILED", BrokerAuthenticationError, "grant it Read on the topics; nothing"),
    ],
)
def test_partitions_whose_request_was_not_sent_after_a_refusal_are_not_said_to_have_timed_out(
    client, group, window, answered, small_requests, code, error, text
):
    answered(code)
    with pytest.raises(error, match=text) as refused:
        commit_window(client, group, window(None, 5))
    assert "TIMED_OUT" not in str(refused.value)
    if error is CommitError:
        assert ": not sent after that): raise the brokers' offset.metadata.max.bytes" in str(refused.value)
        assert [*refused.value.failed.values()] == [code, code, "NOT_SENT", "NOT_SENT"]
