"""What the error of a window's commit says where the broker's answer was lost."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka import fenced
from airflow_kafka_offsets.kafka.failures import Failure
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.write import commit_window


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("REQUEST_TIMED_OUT", "it is not known whether all offsets were written"),
        ("COORDINATOR_LOAD_IN_PROGRESS", "nothing was written"),
    ],
)
def test_after_an_answer_that_leaves_the_outcome_open_nobody_reads_that_nothing_was_written(
    client, make_topic, new_group, monkeypatch, code, outcome
):
    first = TopicPartition(make_topic(1), 0)
    monkeypatch.setattr(
        fenced, "send_commit", lambda _, offsets, *__: dict.fromkeys(offsets, Failure(code, "no answer"))
    )
    window = OffsetWindow({first: OffsetRange(0, 5)}, frozenset({first}))
    with pytest.raises(BrokerUnavailableError, match=outcome):
        commit_window(client, new_group(), window)
