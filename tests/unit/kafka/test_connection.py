"""What a connection is refused with before it asks a broker, and which connections stay open."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from airflow_kafka_offsets.errors import BrokerError, UsageError
from airflow_kafka_offsets.kafka import admin_calls, connection
from airflow_kafka_offsets.kafka.connection import MAX_KEPT, OWN_GROUP, Connection, Connections

BROKER = {"bootstrap.servers": "127.0.0.1:1"}
_SETUP = "socket.connection.setup.timeout.ms"


def test_an_isolation_level_that_is_none_is_named():
    level: Any = "bogus"
    with pytest.raises(UsageError, match="^isolation_level='bogus': expected one of 'read_uncommitted'"):
        Connection(BROKER, "g", level)


def test_a_refused_setting_may_be_the_connections_or_a_files():
    with pytest.raises(BrokerError, match="SASLL.*; correct the Kafka connection, or the file or option"):
        Connection({**BROKER, "security.protocol": "SASLL"}, "g", "read_uncommitted")


@pytest.mark.parametrize(("group", "stays"), [(None, True), ("g", False), (OWN_GROUP, False)])
def test_only_who_joins_a_group_needs_a_right_on_it(group, stays):
    opened = Connection(BROKER, group, "read_uncommitted")
    opened.add_error(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert opened.forget_errors() == stays
    opened.add_error(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))
    assert not opened.forget_errors()
    opened.consumer.close()


@pytest.mark.parametrize(("configured", "milliseconds"), [({}, 10_000), ({_SETUP: 9_000}, 9_000)])
def test_an_address_that_does_not_answer_leaves_time_for_the_next_one_of_its_name(
    monkeypatch, configured, milliseconds
):
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(connection, "Consumer", made.append)
    monkeypatch.setattr(admin_calls, "AdminClient", made.append)
    Connection({**BROKER, **configured}, None, "read_uncommitted")
    admin_calls.AdminSession({**BROKER, **configured}, None)._client()
    assert [settings[_SETUP] for settings in made] == [milliseconds, milliseconds]


class Made(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.fixture
def made(monkeypatch):
    """Counts the connections that are made, by group and isolation level."""
    counts: Counter[tuple[str | None, str]] = Counter()

    def make(_, group_id, isolation_level):
        counts[group_id, isolation_level] += 1
        return Made(consumer=SimpleNamespace(close=lambda: None), forget_errors=lambda: True)

    monkeypatch.setattr(connection, "Connection", make)
    return counts


@pytest.mark.parametrize("requests", [1, 2, 8, 40])
@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_each_request_has_one_up_to_a_limit_and_a_second_round_opens_none(made, requests, isolation_level):
    kept = Connections({})
    first = kept.get_several(requests, isolation_level)
    assert len(set(first)) == min(requests, MAX_KEPT)
    assert kept.get_several(requests, isolation_level) == first
    assert made == {(None, isolation_level): min(requests, MAX_KEPT)}


def test_those_that_are_missing_are_opened_at_once(monkeypatch):
    together = Barrier(3)

    def make(*_):
        together.wait(10)
        return Made(consumer=None, forget_errors=lambda: True)

    kept = Connections({})
    monkeypatch.setattr(connection, "Connection", make)
    monkeypatch.setattr(connection, "ThreadPoolExecutor", ThreadPoolExecutor)
    assert len(kept.get_several(3, "read_committed")) == 3


def test_a_connection_that_is_of_no_use_any_more_is_replaced(made):
    kept = Connections({}, "g")
    old = kept.get()
    old.forget_errors = lambda: False  # type: ignore[method-assign]
    assert kept.get() is not old
    assert made == {("g", "read_uncommitted"): 2}
