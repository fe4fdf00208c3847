"""What is a pipeline called? Its five names, given once and passed on to every task that needs them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_kafka_offsets.errors import UsageError

if TYPE_CHECKING:
    from airflow.sdk import Asset

SPARK_CONF_KEY = "spark.kafka_offsets.pipeline"
"""Under which a Spark job finds the pipeline that its DAG named."""

KAFKA_GROUP_SCHEME = "kafka-group"


@dataclass(frozen=True, eq=False)
class KafkaPipeline(Mapping[str, Any]):
    """
    The names of one pipeline, as a frozen mapping to be unpacked into operators, sensors and triggers.

    ``CommitOffsetsOperator(task_id="commit", **orders)``, ``default_args=dict(orders)`` on a DAG or a task
    group, ``.expand_kwargs([dict(pipeline) for pipeline in pipelines])``.

    :param group_id: the consumer group, or ``{topic: group}``; a key ``"source:<index or name>"`` tells two
        sources of one topic apart.
    :param topics: allow-list of topics or ``topic:0,1``; by default all Kafka topics of the checkpoint, or
        all that the group has commits for.
    :param checkpoint_location: URI of the Spark checkpoint, exactly as the Spark job has it.
    :param checkpoint_conn_id: Airflow connection of that storage; without it the storage's own defaults.
    :param kafka_config_id: Airflow connection of the Kafka cluster.
    :raises UsageError: if the location holds a password: it would be shown wherever the location is.
    """

    group_id: str | Mapping[str, str]
    topics: str | Sequence[str] | None = None
    checkpoint_location: str | None = None
    checkpoint_conn_id: str | None = None
    kafka_config_id: str = "kafka_default"

    def __post_init__(self) -> None:
        check_location(self.checkpoint_location)

    def __getitem__(self, key: str) -> Any:
        if key not in PIPELINE_PARAMETERS:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(PIPELINE_PARAMETERS)

    def __len__(self) -> int:
        return len(PIPELINE_PARAMETERS)

    @property
    def asset(self) -> Asset:
        """
        The group's committed offsets as an Airflow asset, for ``outlets`` and ``schedule``.

        :raises UsageError: for a pipeline with several groups: use :attr:`assets`.
        """
        if len(self.assets) != 1:
            raise UsageError(
                f"the pipeline has {len(self.assets)} groups, so it has no single asset: use assets, a list of them"
            )
        return self.assets[0]

    @property
    def assets(self) -> list[Asset]:
        """An asset for each group of the pipeline."""
        from airflow.sdk import Asset

        groups = [self.group_id] if isinstance(self.group_id, str) else sorted(set(self.group_id.values()))
        return [Asset(name=group, uri=group_uri(self.kafka_config_id, group)) for group in groups]

    def spark_conf(self) -> dict[str, str]:
        """Return the configuration from which a Spark job reads the pipeline's names, for ``conf=``."""
        return {SPARK_CONF_KEY: json.dumps(dict(self), separators=(",", ":"))}


PIPELINE_PARAMETERS = tuple(field.name for field in fields(KafkaPipeline))
"""The parameters that have the same name, type and meaning everywhere."""


def group_uri(kafka_config_id: str, group_id: str) -> str:
    """Return the URI of a group's asset; no broker is asked."""
    return f"{KAFKA_GROUP_SCHEME}://{kafka_config_id}/{quote(group_id, safe='')}"


def check_location(
    location: object, parameter: str = "checkpoint_location", conn_parameter: str = "checkpoint_conn_id"
) -> None:
    """
    Refuse a location with a password in it.

    :param parameter: what the location was given as, for the error text.
    :param conn_parameter: what names the connection of its storage.
    :raises UsageError: without repeating the password.
    """
    # Old Hadoop wrote s3a://KEY:SECRET@bucket; a secret may hold slashes.
    if isinstance(location, str) and re.match(r"[A-Za-z0-9+.-]+://[^/@]*:[^@]*@", location):
        scheme = location.partition(":")[0]
        raise UsageError(
            f"{parameter} ({scheme}://...) holds a password, which logs and the UI would show: put the "
            f"credentials into an Airflow connection and name it with {conn_parameter}"
        )
