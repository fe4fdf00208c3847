"""The progress file and the connections of the commands ``recover``."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from airflow_kafka_offsets.cli.connections import BrokerOptions, open_checkpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.fleet import Fleet
from airflow_kafka_offsets.model.saved_plan import Names
from airflow_kafka_offsets.model.text import shorten

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.moves.fleet import Opened

SUFFIX = ".recovery.json"
"""Suffix of the progress file, after the name of the pipelines' file."""


class StateFile:
    """
    The file with the progress of a recovery.

    :param pipelines: the file that lists the pipelines.
    """

    def __init__(self, pipelines: Path) -> None:
        self.path = pipelines.with_name(pipelines.name + SUFFIX)

    def read(self) -> Fleet | None:
        """Return the recovery; ``None`` if no recovery was planned."""
        name = str(self.path)
        try:
            # Without the limits of other files: it is our own, and grows with each receipt.
            value = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            raise UsageError(
                f"{name}: is not JSON; expected a recovery, as 'recover plan' writes it"
            ) from None
        except OSError as error:
            raise UsageError(f"{name}: cannot be read ({error.strerror})") from None
        return Fleet.parse(value, name)

    def require(self) -> Fleet:
        """Return the recovery, or raise an error if no recovery was planned."""
        fleet = self.read()
        if fleet is None:
            raise UsageError(
                f"{self.path}: the file does not exist: plan the recovery first, with 'recover plan'"
            )
        return fleet

    def write(self, fleet: Fleet) -> None:
        """Replace the file atomically, so that it survives a crash of this process or a power failure."""
        from airflow_kafka_offsets.storage import open_location, replace_file

        fs, path = open_location(str(self.path))
        replace_file(fs, path, json.dumps(fleet.as_json(), indent=1).encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes on this machine from moving the pipelines of the same recovery."""
        with self.path.with_name(self.path.name + ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise KafkaOffsetsError(
                    f"{self.path}: another process is running this recovery: wait until it has ended"
                ) from None
            yield


class Connections:
    """
    The clients of a recovery, one for each Kafka connection, and its checkpoints.

    :param broker: the broker of the command line, which replaces the connection in the file.
    :param pipelines: the names of the pipelines.
    """

    def __init__(self, broker: BrokerOptions, pipelines: Sequence[Names]) -> None:
        names = dict.fromkeys(map(_connection_of, pipelines))
        if broker.option_names and len(names) > 1:
            raise UsageError(
                f"the pipelines have {len(names)} Kafka connections ({shorten(', '.join(names))}), and "
                f"{' and '.join(broker.option_names)} names a single broker: omit it to use "
                "Airflow's connections, or give each cluster its own file"
            )
        # Open them here, in the command's own thread, which also closes them. Each connection is read once.
        self._clients = {name: broker.open_connection(name, "FILE", limited=False) for name in names}
        if broker.option_names:
            broker.show_variables(broker.client_config())
        self._lock = Lock()
        self._checkpoints: dict[tuple[str, str | None], SparkCheckpoint] = {}

    def open(self, names: Names) -> Opened:
        """Return the client and the checkpoint of a pipeline."""
        return self._clients[_connection_of(names)], self._checkpoint(names)

    def _checkpoint(self, names: Names) -> SparkCheckpoint | None:
        location, conn_id = names.checkpoint_location, names.checkpoint_conn_id
        if location is None:
            return None
        with self._lock:
            if (location, conn_id) not in self._checkpoints:
                self._checkpoints[location, conn_id] = open_checkpoint(location, conn_id, option="FILE")
            return self._checkpoints[location, conn_id]


def _connection_of(names: Names) -> str:
    """Return the Kafka connection that a pipeline names."""
    return names.kafka_config_id or "kafka_default"
