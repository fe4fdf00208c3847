"""A pipeline to move: a checkpoint as Spark leaves it, and a consumer that may be in the way."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from command_line import cli  # noqa: F401
from group_members import member_of
from moved_pipeline import commit, committed, new_query  # noqa: F401
from spark_session import grow  # noqa: F401
from transactions import send_in_transaction  # noqa: F401

from airflow_kafka_offsets.kafka.client import OffsetsClient


@pytest.fixture
def client(bootstrap_servers: str) -> Iterator[OffsetsClient]:
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=20) as client:
        yield client


@pytest.fixture
def member(bootstrap_servers: str) -> Iterator[Callable[[str, str], None]]:
    """member(group, topic) lets a consumer with client id a-reader join the group until the test ends."""
    with ExitStack() as members:
        yield lambda group, topic: members.enter_context(member_of(bootstrap_servers, group, topic))
