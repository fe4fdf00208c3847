"""Options that name a broker or a checkpoint, and the clients that are opened with them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.cli.options import (
    EXISTING_FILE,
    Option,
    combine_options,
    duration_option,
    option_name,
    refuse_unused,
    topics_option,
)
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.text import shorten

CALL_TIMEOUT = 30.0
"""Default seconds for one call."""

_CALLS = 4
"""Factor of ``--timeout`` for all calls of a command together."""

_VARIABLES = {
    "bootstrap_server": "AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER",
    "command_config": "AIRFLOW_KAFKA_OFFSETS_COMMAND_CONFIG",
    "kafka_config_id": "AIRFLOW_KAFKA_OFFSETS_KAFKA_CONFIG_ID",
}
"""Option -> its environment variable."""


@dataclass(frozen=True)
class BrokerOptions:
    """
    The cluster that the command line or the environment names, and the time limit of one call.

    :param prefix: first part of the options' parameters: ``to_`` for the mirror of a cluster.
    """

    timeout: float
    bootstrap_server: str | None = None
    command_config: Path | None = None
    kafka_config_id: str | None = None
    prefix: str = ""

    @classmethod
    def from_options(cls, **values: Any) -> BrokerOptions:
        """Return the options' values; a typed option replaces variables that contradict it."""
        context = click.get_current_context()
        source = context.get_parameter_source
        typed = {name for name in _VARIABLES if source(name) is ParameterSource.COMMANDLINE}
        if typed:
            connection = {"kafka_config_id"}
            contradict = {*_VARIABLES} - connection if typed & connection else connection
            # Otherwise a variable that is set for all shells would fail each command with another broker.
            values |= dict.fromkeys(contradict - typed)
            file = values["command_config"]
            if file and typed == {"command_config"}:
                from airflow_kafka_offsets.kafka.config import load_properties
                from airflow_kafka_offsets.model.broker_addresses import SERVERS

                if SERVERS in load_properties(file):
                    values["bootstrap_server"] = None
            # A saved plan has the command's parameters.
            context.params |= {name: values[name] for name in _VARIABLES}
        return cls(**values)

    @property
    def option_names(self) -> list[str]:
        """The options and variables that name the cluster."""
        source = click.get_current_context().get_parameter_source
        return [
            variable if source(option) is ParameterSource.ENVIRONMENT else option_name(option)
            for name, variable in _VARIABLES.items()
            if getattr(self, name) and (option := self.prefix + name)
        ]

    def client_config(self) -> dict[str, Any]:
        """Return the client's configuration."""
        if self.kafka_config_id:
            *others, connection = self.option_names
            if others:
                raise UsageError(f"{connection} replaces {' and '.join(others)}: leave one of them out")
            return connection_config(self.kafka_config_id, connection)
        from airflow_kafka_offsets.kafka.config import load_properties
        from airflow_kafka_offsets.model.broker_addresses import SERVERS

        config: dict[str, Any] = dict(load_properties(self.command_config)) if self.command_config else {}
        if self.bootstrap_server:
            config[SERVERS] = self.bootstrap_server
        if SERVERS not in config:
            server, file, connection = (option_name(self.prefix + name) for name in _VARIABLES)
            options = (
                f"give {server} HOST:PORT, {file} FILE with bootstrap.servers, or {connection} ID of an "
                "Airflow connection"
            )
            if self.prefix:
                raise UsageError(f"no mirror is named: {options}")
            raise UsageError(f"no broker is given: {options}; or set {_VARIABLES['bootstrap_server']}")
        return config

    def client_config_or(self, kafka_config_id: str, file_option: str) -> dict[str, Any]:
        """Return the configuration of this cluster, else that of the connection that a file names."""
        return self.client_config() if self.option_names else connection_config(kafka_config_id, file_option)

    def show_variables(self) -> None:
        """Show the cluster that variables name: the typed command does not show where it moves offsets."""
        from airflow_kafka_offsets.model.broker_addresses import SERVERS

        if variables := {*self.option_names} & {*_VARIABLES.values()}:
            servers = self.client_config()[SERVERS]
            click.echo(f"On {servers}, as {' and '.join(sorted(variables))} says.", err=True)

    def open_client(self, *, limited: bool = True) -> OffsetsClient:
        """Return a client of the cluster, see :func:`open_client`."""
        return open_client(self.client_config(), self.timeout, limited=limited)

    def client_of_each(
        self, connections: Collection[str], file: str, option: str, *, limited: bool = True
    ) -> Callable[[str], OffsetsClient]:
        """
        Return a function that opens a client for each Kafka connection that a file names, once.

        Only the pipelines of a connection fail with it. Call the function in the command's own thread, which
        also closes the clients.

        :raises UsageError: if this single cluster would replace several connections.
        """
        if self.option_names and len(connections) > 1:
            raise UsageError(
                f"{file} has {len(connections)} Kafka connections ({shorten(', '.join(connections))}), and "
                f"{' and '.join(self.option_names)} one broker for all: leave it out to use Airflow's "
                "connections, or give each cluster a separate file"
            )

        @cache
        def opened(name: str) -> OffsetsClient | KafkaOffsetsError:
            try:
                return open_client(self.client_config_or(name, option), self.timeout, limited=limited)
            except KafkaOffsetsError as error:
                return error

        def client_of(name: str) -> OffsetsClient:
            if isinstance(client := opened(name), KafkaOffsetsError):
                raise client
            return client

        return client_of


def open_client(config: Mapping[str, Any], timeout: float, *, limited: bool = True) -> OffsetsClient:
    """
    Return a client that closes when the command ends.

    :param limited: whether all calls of the client together have a time limit.
    """
    from airflow_kafka_offsets.kafka.client import OffsetsClient

    client = OffsetsClient(config, timeout=timeout, total=_CALLS * timeout if limited else None)
    return click.get_current_context().with_resource(client)


def connection_config(kafka_config_id: str, option: str) -> dict[str, Any]:
    """Return the client configuration of an Airflow connection."""
    with airflow_errors(option):
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

        return KafkaOffsetsHook(kafka_config_id).client_config()


def _open_admin_client(**values: Any) -> OffsetsClient:
    """Return a client for a command that describes or moves groups."""
    broker = BrokerOptions.from_options(**values)
    # Open the client first: it refuses an address that contains a password.
    client = broker.open_client()
    if "execute" in click.get_current_context().params:
        broker.show_variables()
    return client


@contextmanager
def airflow_errors(option: str) -> Iterator[None]:
    """Turn Airflow's errors about a connection into a usage error that names the option."""
    # As Airflow's own commands do: without it the SDK does not search the metadata database.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    # Airflow logs a traceback whenever it reads an extra that is not JSON; the error is enough.
    logging.disable(logging.ERROR)
    try:
        # Airflow logs to standard output, which is reserved for the result.
        with redirect_stdout(sys.stderr):
            yield
    except UsageError as error:
        home = os.environ.get("AIRFLOW_HOME", "~/airflow")
        raise UsageError(f"{option}: {error}; Airflow's home is {home} (AIRFLOW_HOME)") from error
    except KafkaOffsetsError:
        raise
    except ImportError as error:
        raise UsageError(
            f"{option}: Airflow, or a library that its hook needs, cannot be imported ({error}): install "
            "it, or leave the connection out"
        ) from error
    except Exception as error:  # a broken configuration raises many types; some texts contain passwords
        known = type(error).__module__.startswith("airflow.")
        raise UsageError(
            f"{option}: Airflow is not configured ({error if known else type(error).__name__}): run "
            "'airflow info' to check it"
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def open_checkpoint(
    uri: str, checkpoint_conn_id: str | None, option: str = "--checkpoint-conn-id"
) -> SparkCheckpoint:
    """Return the checkpoint at a location; import Airflow only for an Airflow connection."""
    if checkpoint_conn_id:
        with airflow_errors(option):
            from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint

            return spark_checkpoint(uri, checkpoint_conn_id)
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint

    return SparkCheckpoint(uri)


def _open_named_checkpoint(uri: str | None, checkpoint_conn_id: str | None) -> SparkCheckpoint | None:
    if uri is not None:
        return open_checkpoint(uri, checkpoint_conn_id)
    if checkpoint_conn_id:
        raise UsageError(
            "--checkpoint-conn-id is for the storage of a checkpoint: give --checkpoint URI as well"
        )
    return None


def _cluster_option(name: str, text: str, **how: Any) -> Option:
    return click.option(option_name(name), help=text, envvar=_VARIABLES[name], show_envvar=True, **how)


_properties = "File of librdkafka properties, such as security.protocol=SASL_SSL."
_broker_options = (
    _cluster_option("bootstrap_server", "The Kafka cluster.", metavar="HOST:PORT[,...]"),
    _cluster_option("command_config", _properties, type=EXISTING_FILE),
    _cluster_option("kafka_config_id", "Airflow connection; replaces the two options above.", metavar="ID"),
    duration_option(
        "--timeout",
        f"{CALL_TIMEOUT:g}s",
        "for each call; four times as long for all calls together.",
        allow_zero=False,
        maximum=timedelta(hours=1),  # that of a client
    ),
)

broker_options = combine_options("broker", BrokerOptions.from_options, *_broker_options)
named_broker_options = combine_options(
    "broker",
    lambda **values: BrokerOptions.from_options(timeout=CALL_TIMEOUT, **values),
    *_broker_options[:-1],
)
"""The broker options of a command that defines ``--timeout`` differently."""
admin_client_options = combine_options("client", _open_admin_client, *_broker_options)

checkpoint_conn_id_option = click.option(
    "--checkpoint-conn-id",
    metavar="ID",
    help="Airflow connection of the checkpoint's storage. Default: the storage driver's own credentials.",
)

checkpoint_argument = combine_options(
    "checkpoint", _open_named_checkpoint, click.argument("uri"), checkpoint_conn_id_option
)


def checkpoint_option(text: str, *, required: bool = False) -> Option:
    """Return the options that name a checkpoint; ``text`` is their help text."""
    uri = click.option("--checkpoint", "uri", metavar="URI", required=required, help=text)
    return combine_options("checkpoint", _open_named_checkpoint, uri, checkpoint_conn_id_option)


def pipeline_or_file_options(file_option: Option, flag: str) -> Option:
    """
    Return the options that name a checkpoint and its groups, or a file instead, as one value ``named``.

    :param file_option: its value is returned if it is given.
    :param flag: the option as the user writes it.
    """

    def read(
        uri: str | None,
        group_id: str | None,
        topics: Sequence[str] | None,
        checkpoint_conn_id: str | None,
        **file: Any,
    ) -> object:
        (found,) = file.values()
        if found is not None:
            if uri is not None:
                raise UsageError(f"{flag} replaces URI and GROUP: leave these out")
            refuse_unused(f"with {flag}, whose file names them", "topics", "checkpoint_conn_id")
            return found
        if uri is None or group_id is None:
            raise UsageError(f"give the URI of a checkpoint and its GROUP, or {flag} FILE")
        return open_checkpoint(uri, checkpoint_conn_id), GroupSelection.parse(group_id, topics)

    return combine_options(
        "named",
        read,
        click.argument("uri", required=False),
        click.argument("group_id", metavar="[GROUP]", required=False),
        file_option,
        topics_option,
        checkpoint_conn_id_option,
    )
