"""Headroom where the user may read the records of some topics only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_kafka_offsets.errors import BrokerAuthenticationError
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.readings import retention
from airflow_kafka_offsets.readings.retention import read_headrooms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_kafka_offsets.kafka.reader import OffsetsReader

MINE, THEIRS = TopicPartition("mine", 0), TopicPartition("theirs", 0)
POSITIONS = {MINE: 5, THEIRS: 5}
LOGS = dict.fromkeys(POSITIONS, LogRange(0, 10))


class Broker:
    """Lets nobody read ``theirs``."""

    def topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        settings = {"cleanup.policy": "delete", "retention.ms": "3600000", "retention.bytes": "-1"}
        return dict.fromkeys(topics, settings)

    def record_times(self, offsets: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, int]:
        if THEIRS in offsets:
            raise BrokerAuthenticationError("grant it Read on theirs")
        return dict.fromkeys(offsets, 0)


CLIENT = cast("OffsetsReader", Broker())


def test_a_topic_that_may_not_be_read_hides_no_other() -> None:
    found = read_headrooms(CLIENT, POSITIONS, LOGS, strict=False)
    assert (found[MINE].state, found[MINE].seconds) == ("time", 0)
    assert (found[THEIRS].state, found[THEIRS].reason) == ("unknown", "grant it Read on theirs")
    with pytest.raises(BrokerAuthenticationError):
        read_headrooms(CLIENT, POSITIONS, LOGS)


def test_topic_by_topic_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BY_TOPIC", 0)
    found = read_headrooms(CLIENT, POSITIONS, LOGS, strict=False)
    assert {each.reason for each in found.values()} == {
        "the time of the oldest unread record could not be read"
    }
