"""Unit tests have no server: what others do to a real Kafka, these do to the in-memory broker."""

from memory_kafka import (  # noqa: F401
    bootstrap_servers,
    broker,
    client,
    delete_records,
    grow,
    holds,
    make_topic,
    member,
    memory,
    memory_connected,
    produce,
    recreate,
    send_in_transaction,
)
from moved_pipeline import cli, commit, committed, new_query  # noqa: F401
