from __future__ import annotations

import pytest
from airflow_task import group  # noqa: F401

from airflow_kafka_offsets.triggers import poll, shared_poller


@pytest.fixture
def fast_polls(monkeypatch):
    """Polls may follow one another at once."""
    for module in (poll, shared_poller):
        monkeypatch.setattr(module, "FLOOR", 0.02)
    monkeypatch.setattr(shared_poller, "GATHER", 0.01)
