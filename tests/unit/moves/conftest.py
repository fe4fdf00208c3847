from __future__ import annotations

import pytest
from memory_broker import MemoryBroker, MemoryClient


@pytest.fixture
def broker():
    """A broker with the topic orders: two partitions of 100 records each."""
    broker = MemoryBroker()
    broker.create("orders", 2)
    for number in range(2):
        broker.append("orders", number, range(100))
    return broker


@pytest.fixture
def client(broker):
    return MemoryClient(broker)
