"""The hook for consumer groups and offsets of a Kafka connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.sdk import (
    AirflowNotFoundException,
    AirflowOptionalProviderFeatureException,
)

from airflow_kafka_offsets.errors import SetupError, UsageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.config import client_config as check_config
from airflow_kafka_offsets.model.broker_addresses import SERVERS
from airflow_kafka_offsets.model.drift import parse_grace, reports_json
from airflow_kafka_offsets.model.formats import format_csv, log_json, offsets_json
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import IsolationLevel, Positions
from airflow_kafka_offsets.model.parameters import parse_interval, parse_time
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.wording import parameter_text
from airflow_kafka_offsets.moves.deletion import plan_deletion
from airflow_kafka_offsets.moves.write import delete_groups
from airflow_kafka_offsets.readings.drift import pipeline_drift
from airflow_kafka_offsets.readings.places import place_offsets
from airflow_kafka_offsets.readings.positions import (
    group_positions,
    measure_lag,
    partitions_in_scope,
    refuse_missing_partitions,
    refuse_no_commit,
)

CALL_TIMEOUT = 30.0
"""Default seconds after which a call fails."""

OFFICIAL_PROVIDER = "apache-airflow-providers-apache-kafka"
KNOWN_TO_WORK = "2.1.0"
"""Version of the official provider with which the tests run."""


class KafkaOffsetsHook(KafkaBaseHook):
    """
    Offsets of consumer groups, through a ``kafka`` connection of the official provider.

    Every method except :meth:`client_config` and :meth:`get_offsets_client` opens a client, closes it, and
    returns plain data: JSON with string keys. For several calls in a row use :meth:`get_offsets_client`.

    :param kafka_config_id: the Kafka connection; its extra is librdkafka configuration.
    :param timeout: seconds after which a call fails; 30 by default.
    """

    def __init__(self, kafka_config_id: str = "kafka_default", timeout: float | None = None) -> None:
        super().__init__(kafka_config_id)  # type: ignore[no-untyped-call]
        self.timeout = CALL_TIMEOUT if timeout is None else timeout

    def _build_config(self) -> dict[str, Any]:
        # This method is private in the provider, and the only one that adds the logins of MSK and Google.
        # Remove when KafkaBaseHook has a public method that returns the configuration.
        build: Any = getattr(super(), "_build_config", lambda: None)
        try:
            config = build()
            if not isinstance(config, dict):
                raise SetupError(
                    f"{OFFICIAL_PROVIDER} {version(OFFICIAL_PROVIDER)} builds a connection's configuration "
                    "differently (KafkaBaseHook._build_config is missing, or returns no dictionary): version "
                    f"{KNOWN_TO_WORK} is known to work, install '{OFFICIAL_PROVIDER}=={KNOWN_TO_WORK}'"
                )
            check_config(config)
        except AirflowNotFoundException as error:
            raise UsageError(
                f"connection {self.kafka_config_id!r} is not defined: correct "
                f"{parameter_text('kafka_config_id')}, or add a connection of type kafka (in a variable: as "
                f"valid JSON) whose extra has {SERVERS}",
                parameter="kafka_config_id",
                # Airflow also reports a connection as not defined while its secrets backend does not answer.
                retriable=True,
            ) from error
        except (ValueError, AttributeError, ImportError, AirflowOptionalProviderFeatureException) as error:
            raise UsageError(self._what_is_wrong(error)) from error
        return config

    def _what_is_wrong(self, error: Exception) -> str:
        connection = self.get_connection(self.kafka_config_id)
        extra: object = connection.extra_dejson
        servers = extra.get(SERVERS) if isinstance(extra, Mapping) else None
        found = f"connection {self.kafka_config_id!r} of type {connection.conn_type!r}"
        if isinstance(servers, str) and servers.strip():
            return f"{found}: {error}"
        return (
            f"{found} has no {SERVERS} as text in its extra (host and port are not used): set the extra of a "
            "connection of type 'kafka' to "
            f'{{"{SERVERS}": "host:port"}} and the broker\'s other settings, or correct '
            f"{parameter_text('kafka_config_id')}"
        )

    def client_config(self) -> dict[str, Any]:
        """
        Return the connection's librdkafka configuration as the official provider builds it.

        No broker is called. The configuration contains credentials, callbacks such as ``oauth_cb``, and keys
        that :meth:`get_offsets_client` leaves out. Do not log it.

        :raises UsageError: if the connection does not exist, or a client cannot use it.
        """
        return self._build_config()

    def get_offsets_client(self, total: float | None = None) -> OffsetsClient:
        """
        Return a client for the connection. It is a context manager; the caller closes it.

        Keys for consuming or producing (``group.id``, ``enable.auto.commit``, ...) are left out.

        :param total: total seconds for all calls of the client; no limit by default.
        """
        return OffsetsClient(self._build_config(), timeout=self.timeout, total=total)

    def committed_offsets(
        self, group_id: str, topics: str | Sequence[str] | None = None
    ) -> dict[str, dict[str, int | None]]:
        """
        Return the committed offsets of a group as ``{topic: {partition: offset}}``; ``None`` means no commit.

        :param topics: topics or ``topic:0,1``; by default all topics that the group has commits for.
        """
        scope = TopicScope.parse(topics)
        with self.get_offsets_client() as client:
            positions = group_positions(client, group_id, scope)
            refuse_missing_partitions(client, scope.explicit_partitions)
        return offsets_json(positions)

    def lag(
        self,
        group_id: str,
        topics: str | Sequence[str] | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
        *,
        headroom: bool = False,
    ) -> dict[str, Any]:
        """
        Return the lag of a group: ``version``, ``group_id``, ``total_lag``, ``max_partition_lag``, ``lost``,
        ``topics`` and ``partitions``.

        Each partition has ``topic``, ``partition``, ``committed``, ``log_start``, ``log_end``, ``lag`` and
        ``lost``; ``committed`` and ``lag`` are ``None`` without a commit, which the totals do not count.

        :param headroom: also return ``headroom`` and ``headroom_state``, for the group and for each
            partition; each partition also has ``headroom_reason``. See
            :mod:`airflow_kafka_offsets.model.headroom`.
        :raises NoCommitError: if the group has no commit at all on the topics.
        :raises DriftError: if a committed offset is beyond the log end.
        """
        with self.get_offsets_client() as client:
            positions = group_positions(client, group_id, TopicScope.parse(topics))
            lag = measure_lag(client, group_id, positions, isolation_level=isolation_level, headroom=headroom)
        refuse_no_commit(group_id, positions)
        return {"version": 1, "group_id": group_id, **lag.as_json()}

    def log_offsets(
        self, topics: str | Sequence[str], isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[str, dict[str, dict[str, int | None]]]:
        """Return ``log_start`` and ``log_end`` of topics, each as ``{topic: {partition: offset}}``."""
        with self.get_offsets_client() as client:
            partitions = partitions_in_scope(client, TopicScope.parse(topics))
            return log_json(client.log_ranges(partitions, isolation_level=isolation_level))

    def offsets_for_time(
        self, topics: str | Sequence[str], time: datetime | str
    ) -> dict[str, dict[str, int | None]]:
        """
        Return the offsets of topics at a time: the first record at or after the time, or the log end.

        :param time: a datetime or ISO 8601 text; without a zone it is UTC.
        """
        place = Place("time", parse_time(time, "time"))
        with self.get_offsets_client() as client:
            partitions = partitions_in_scope(client, TopicScope.parse(topics))
            return offsets_json(place_offsets(client, place, partitions, client.log_ranges(partitions)))

    def check_drift(
        self,
        group_id: str | Mapping[str, str],
        checkpoint_location: str,
        *,
        topics: str | Sequence[str] | None = None,
        checkpoint_conn_id: str | None = None,
        grace: timedelta | float | str = 0,
        min_headroom: timedelta | float | str | None = None,
    ) -> dict[str, Any]:
        """
        Compare the groups of a pipeline with its checkpoint, and both with the log. The method only reads.

        :param grace: time after a batch's end in which a missing commit is not yet drift: a timedelta,
            seconds, or text such as ``10m``.
        :param min_headroom: minimum time until retention deletes the oldest unread record; not checked by
            default.
        :return: ``version``, ``drifted`` and ``groups``, see
            :meth:`airflow_kafka_offsets.model.drift.DriftReport.as_json`.
        """
        checkpoint = spark_checkpoint(checkpoint_location, checkpoint_conn_id)
        selection, wait = GroupSelection.parse(group_id, topics), parse_grace(grace)
        least = parse_interval(min_headroom, "min_headroom")
        with self.get_offsets_client() as client:
            reports = pipeline_drift(client, checkpoint, selection, grace=wait, min_headroom=least)
        return reports_json(reports)

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return ``state`` (Dead if the group does not exist), ``type`` and ``members`` of each group."""
        with self.get_offsets_client() as client:
            return {name: group.as_json() for name, group in client.describe_groups(group_ids).items()}

    def list_groups(self, states: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return ``group_id``, ``state`` and ``type`` of all groups, or of the groups in given states."""
        with self.get_offsets_client() as client:
            return [listing.as_json() for listing in client.list_groups(states)]

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, str | None]:
        """
        Delete groups; return ``None`` for each deleted group, or the reason why it was not deleted.

        Their offsets are logged first, in the format that ``group restore --from-file`` reads.
        """
        with self.get_offsets_client() as client:
            before, refusals = plan_deletion(client, group_ids)
            return {**refusals, **delete_groups(client, before, self._log_offsets)}

    def _log_offsets(self, groups: Mapping[str, Positions]) -> None:
        self.log.info("Deleting group %s, with these offsets:\n%s", ", ".join(groups), format_csv(groups))
