"""Stores in real databases: a PostgreSQL, and SQLite's files."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_postgres import OwnPostgres
from sqlalchemy import Engine, create_engine

from airflow_kafka_offsets.spark.stores import SqlOffsetStore


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "postgresql":
        engine = create_engine(request.getfixturevalue("postgres").url)
    else:
        engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    yield engine
    engine.dispose()


@pytest.fixture
def connections(postgres: OwnPostgres, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections ``kafka_default``, and ``results`` with the database."""
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    monkeypatch.setenv("AIRFLOW_CONN_RESULTS", json.dumps(postgres.airflow_connection))


@pytest.fixture
def store(engine: Engine) -> SqlOffsetStore:
    """A store that is empty."""
    store = SqlOffsetStore(engine, f"offsets_{uuid.uuid4().hex[:12]}")
    store.create_table()
    return store
