"""What is refused before a process is started that asks the broker about groups."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.client import OffsetsClient


@pytest.fixture
def client():
    with OffsetsClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=1) as client:
        yield client


@pytest.mark.parametrize("call", ["describe_groups", "settled_groups", "delete_groups"])
def test_one_name_is_no_list_of_groups(client, call):
    with pytest.raises(UsageError, match="group_ids='gs': expected a list of groups"):
        getattr(client, call)("gs")


@pytest.mark.parametrize("states", ["Empty", ["Emptyy"], ["Empty", 3]])
def test_a_state_that_no_group_has_is_refused(client, states):
    with pytest.raises(UsageError, match="states.*expected .*'Empty'"):
        client.list_groups(states)
