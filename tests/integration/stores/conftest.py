"""Stores in real databases: a PostgreSQL, and SQLite's files."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine

from airflow_kafka_offsets.spark.stores import SqlOffsetStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "postgresql":
        engine = create_engine(request.getfixturevalue("postgres").url)
    else:
        engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> SqlOffsetStore:
    """A store that is empty."""
    store = SqlOffsetStore(engine, f"offsets_{uuid.uuid4().hex[:12]}")
    store.create_table()
    return store
