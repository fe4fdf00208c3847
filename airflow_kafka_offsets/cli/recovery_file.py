"""What the commands ``recover`` share: the pipelines' file, the file of their progress, and connections."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from airflow_kafka_offsets.annotation_types import SparkCheckpoint
from airflow_kafka_offsets.cli.connections import BrokerOptions, open_checkpoint, open_client
from airflow_kafka_offsets.cli.execution import REFUSED
from airflow_kafka_offsets.cli.mirror_connections import open_if_reachable
from airflow_kafka_offsets.cli.options import EXISTING_FILE, Option, StrictCommand
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.fleet import Failure, Fleet, Member
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.saved_plan import Names
from airflow_kafka_offsets.model.text import plural, shorten

if TYPE_CHECKING:
    from airflow_kafka_offsets.moves.fleet import BothClusters, Open, Opened


class FileCommand(StrictCommand):
    """A command on a file of pipelines."""

    keys: ClassVar[Mapping[str, str]] = {
        **{name: name for name in ("group_id", "topics", "checkpoint_location", "checkpoint_conn_id")},
        "kafka_config_id": "kafka_config_id",
        **{name: f"mirror.{name}" for name in ("prefix", "without", "syncs_topic", "syncs_on")},
        "topic_map": "mirror.topics",
    }


file_argument = click.argument("file", type=EXISTING_FILE)


def at_once_option(default: int, verb: str = "move") -> Option:
    """Return the option of how many pipelines are planned or moved at the same time."""
    return click.option(
        "--max-active",
        type=click.IntRange(1, 64),
        default=default,
        show_default=True,
        help=f"Pipelines to {verb} at the same time.",
    )


class StateFile:
    """The file with the progress of a recovery, beside the file that lists the pipelines."""

    def __init__(self, pipelines: Path) -> None:
        self.path = pipelines.with_name(f"{pipelines.name}.recovery.json")

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

    def begun(self) -> list[Member]:
        """Return the pipelines that may have moved; a new plan must not lose their receipts."""
        try:
            fleet = self.read()
        except KafkaOffsetsError as error:
            raise UsageError(f"{error}; its progress cannot be read, so move the file away first") from None
        return [] if fleet is None else fleet.begun

    def refuse_begun(self, others: str) -> None:
        """Refuse to plan again once a pipeline may have moved; ``others`` is the remedy for all others."""
        if begun := self.begun():
            raise UsageError(
                f"{self.path}: a recovery of {plural(len(begun), 'pipeline')} has begun, and was not undone "
                f"({shorten(', '.join(member.name for member in begun))}): undo it with 'recover "
                f"restore', {others}, or move the file away if the recovery is complete"
            )

    def require(self) -> Fleet:
        """Return the recovery, or raise an error if no recovery was planned."""
        fleet = self.read()
        if fleet is None:
            raise UsageError(
                f"{self.path}: the file does not exist: plan the recovery first, with 'recover plan' "
                "or 'recover plan-failover'"
            )
        return fleet

    def write(self, fleet: Fleet) -> None:
        """Replace the file atomically, so that it survives a crash of this process or a power failure."""
        from airflow_kafka_offsets.storage import open_location, replace_file

        fs, path = open_location(str(self.path))
        replace_file(fs, path, fleet.as_text().encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes on this machine from moving the pipelines of the same recovery."""
        with self.path.with_name(self.path.name + ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise KafkaOffsetsError(
                    f"{self.path}: another process is running this recovery: wait until it has ended"
                ) from None
            except OSError as error:
                why = f"{self.path}: cannot be locked ({error.strerror})"
                raise UsageError(f"{why}: copy FILE and its progress to a disk of this machine") from None
            yield


def read_names(file: Path) -> list[Names]:
    """Return the names of the pipelines that a file lists."""
    from airflow_kafka_offsets.pipeline import KafkaPipeline

    return [Names.of(pipeline) for pipeline in KafkaPipeline.load(file)]


def refuse_removed(file: Path, fleet: Fleet) -> None:
    """Refuse to move planned pipelines that are no longer in the file."""
    listed = [names[:3] for names in read_names(file)]
    planned = [member for member in fleet.members if member.stage == "planned"]
    if gone := [member.name for member in planned if member.plan.names[:3] not in listed]:
        raise UsageError(
            f"{file}: group {shorten(', '.join(gone))} is in the plan, but no longer in the file: add it as "
            "it was planned, or plan again if nothing has moved"
        )


def connect(broker: BrokerOptions, pipelines: Sequence[Names]) -> Open:
    """
    Open a client for each connection; return a function from a pipeline to its client and checkpoint.

    A connection that cannot be opened is an error of its pipelines; if there is no other, of the command.
    """
    connections = dict.fromkeys(map(_connection_of, pipelines))
    client_of = broker.client_of_each(connections, _file(), _file(), limited=False)

    def error_of(connection: str) -> KafkaOffsetsError | None:
        try:
            client_of(connection)
        except KafkaOffsetsError as error:
            return error
        return None

    failures = [error for error in map(error_of, connections) if error]
    if failures and len(failures) == len(connections):
        raise failures[0]
    broker.show_variables()

    def open_one(names: Names) -> Opened:
        checkpoint = None if names.checkpoint_location is None else checkpoint_of(names)
        return client_of(_connection_of(names)), checkpoint

    return open_one


def connect_both(
    broker: BrokerOptions, to: BrokerOptions, pipelines: Sequence[Names], number: int, *, ask_source: bool
) -> list[BothClusters]:
    """Open ``number`` clients of the cluster that pipelines leave, if it answers, and of their mirror."""
    left_ids = {_connection_of(names) for names in pipelines}
    mirror_ids = {Mirror.parse(names.mirror).kafka_config_id for names in pipelines}
    for key, ids in (("kafka_config_id", left_ids), ("mirror.kafka_config_id", mirror_ids)):
        if len(ids) > 1:
            raise UsageError(
                f"{_file()} has several {key} ({shorten(', '.join(sorted(ids)))}): write a separate file for "
                "each pair of clusters"
            )
    left = broker.client_config_or(left_ids.pop(), _file()) if ask_source else None
    if left is not None:
        left = left if open_if_reachable(left, broker.timeout) else None
        broker.show_variables()
    mirror = to.client_config_or(mirror_ids.pop(), _file())

    def open_both() -> BothClusters:
        source = None if left is None else open_client(left, broker.timeout, limited=False)
        return source, open_client(mirror, broker.timeout, limited=False)

    return [open_both() for _ in range(number)]


def checkpoint_of(names: Names) -> SparkCheckpoint:
    """Return the checkpoint of a pipeline that has one."""
    return open_checkpoint(str(names.checkpoint_location), names.checkpoint_conn_id, _file())


def _file() -> str:
    return str(click.get_current_context().params["file"])


def _connection_of(names: Names) -> str:
    return names.kafka_config_id or "kafka_default"


def report_failures(failures: Sequence[Failure], what: str) -> None:
    """Print the errors of pipelines; exit 1 if there are any."""
    for failure in failures:
        click.echo(f"Error: group {failure}", err=True)
    if failures:
        click.echo(f"{len(failures)} {what}", err=True)
        raise SystemExit(REFUSED)
