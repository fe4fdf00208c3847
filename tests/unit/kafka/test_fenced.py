"""What the error of a window's commit says of what was written, where the broker's answer was lost."""

from itertools import chain, repeat

import pytest

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka import fenced
from airflow_kafka_offsets.kafka.failures import Failure
from airflow_kafka_offsets.kafka.group_commits import GroupCommits
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.write import commit_window


@pytest.mark.parametrize(
    ("codes", "outcome"),
    [
        (["REQUEST_TIMED_OUT"], "it is not known whether all offsets were written"),
        # The coordinator has written the commit, and shows it once its replicas have it.
        (["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"], "it is not known whether all offsets were"),
        (["COORDINATOR_LOAD_IN_PROGRESS"], "nothing was written"),
    ],
)
def test_after_an_answer_that_leaves_the_outcome_open_nobody_reads_that_nothing_was_written(
    client, make_topic, new_group, monkeypatch, codes, outcome
):
    first, answers = TopicPartition(make_topic(1), 0), chain(codes, repeat(codes[-1]))
    monkeypatch.setattr(
        fenced,
        "send_commit",
        lambda _, offsets, *__: dict.fromkeys(offsets, Failure(next(answers), "no answer")),
    )
    window = OffsetWindow({first: OffsetRange(0, 5)}, frozenset({first}))
    with pytest.raises(BrokerUnavailableError, match=outcome):
        commit_window(client, new_group(), window)


@pytest.mark.parametrize(
    ("reads", "outcome"),
    [(0, "nothing was written"), (1, r"1 of 1 partitions were written .*; committing the window again")],
)
def test_a_group_that_cannot_be_read_any_more_is_an_error_with_what_was_written(
    client, make_topic, new_group, monkeypatch, reads, outcome
):
    first, read, left = TopicPartition(make_topic(1), 0), GroupCommits.read, [None] * reads

    def read_some(*given):
        if not left:
            raise BrokerUnavailableError("no usable answer")
        left.pop()
        return read(*given)

    monkeypatch.setattr(GroupCommits, "read", read_some)
    window = OffsetWindow({first: OffsetRange(0, 5)}, frozenset({first}))
    with pytest.raises(BrokerUnavailableError, match=f"no usable answer; {outcome}"):
        commit_window(client, new_group(), window)


def test_a_refused_commit_that_cannot_be_read_back_does_not_say_that_nothing_was_written(
    client, make_topic, new_group, monkeypatch
):
    """The client reports the refusal of one partition for all of them."""
    first, read, left = TopicPartition(make_topic(1), 0), GroupCommits.read, [None]

    def read_once(*given):
        if not left:
            raise BrokerUnavailableError("no usable answer")
        left.pop()
        return read(*given)

    refused = Failure("OFFSET_METADATA_TOO_LARGE", "too large")
    monkeypatch.setattr(fenced, "send_commit", lambda _, offsets, *__: dict.fromkeys(offsets, refused))
    monkeypatch.setattr(GroupCommits, "read", read_once)
    window = OffsetWindow({first: OffsetRange(0, 5)}, frozenset({first}))
    with pytest.raises(BrokerUnavailableError, match="no usable answer; it is not known whether all offsets"):
        commit_window(client, new_group(), window)
