"""The names of a pipeline, defined once and passed to every task."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.groups import parse_group_id
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.names import SPARK_CONF_KEY, parse_group
from airflow_kafka_offsets.model.parameters import has_template, parse_text
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import TopicScope, plain_names

if TYPE_CHECKING:
    from airflow.sdk import Asset

KAFKA_GROUP_SCHEME = "kafka-group"


@dataclass(frozen=True, eq=False)
class KafkaPipeline(Mapping[str, Any]):
    """
    The names of one pipeline, as a frozen mapping to unpack into operators, sensors and triggers.

    ``CommitOffsetsOperator(task_id="commit", **orders)``, ``default_args=dict(orders)`` on a DAG or a task
    group, ``.expand_kwargs([dict(pipeline) for pipeline in pipelines])``.

    :param group_id: the consumer group, or ``{topic: group}``; a key ``"source:<index or name>"``
        distinguishes two sources of one topic.
    :param topics: allow-list of topics or ``topic:0,1``; by default all Kafka topics of the checkpoint, or
        all topics with commits of the group.
    :param checkpoint_location: URI of the Spark checkpoint, exactly as in the Spark job.
    :param checkpoint_conn_id: Airflow connection of the checkpoint's storage; by default the storage's own
        configuration is used.
    :param kafka_config_id: Airflow connection of the Kafka cluster.
    :param asset_name: name of the group's asset in Airflow; by default its URI, because Airflow requires
        unique names. With several groups, ``{group: name}``; a group without a name keeps its URI. It is not
        passed to tasks.
    :param mirror: the mirror of the cluster, see :class:`~airflow_kafka_offsets.model.mirror.Mirror`, as an
        object such as ``{"kafka_config_id": "kafka_standby", "prefix": "primary."}``. Each commit of the
        checkpoint then also keeps the data for a failover. Tasks get the mirror too; it is not templated.
    :raises UsageError: if ``group_id`` is ``None``, if the location contains a password, which would be shown
        with the location, or if ``asset_name`` does not match the groups.
    """

    group_id: str | Mapping[str, str]
    topics: str | Sequence[str] | None = None
    checkpoint_location: str | None = None
    checkpoint_conn_id: str | None = None
    kafka_config_id: str = "kafka_default"
    _: KW_ONLY
    asset_name: str | Mapping[str, str] | None = None
    mirror: Mapping[str, Any] | Mirror | None = None

    def __post_init__(self) -> None:
        if self.group_id is None:
            raise UsageError("group_id is missing: name the consumer group", parameter="group_id")
        if self.kafka_config_id is None:
            object.__setattr__(self, "kafka_config_id", type(self).kafka_config_id)
        check_location(self.checkpoint_location)
        self._check_asset_name()
        if self.mirror is not None:
            if self.checkpoint_location is None:
                raise UsageError(
                    "mirror would be ignored without checkpoint_location, which it translates: give both",
                    parameter="mirror",
                )
            object.__setattr__(self, "mirror", Mirror.parse(self.mirror).as_json())

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> list[KafkaPipeline]:
        """
        Read a file that lists pipelines by the five names, as YAML or, with the extension ``.json``, as JSON.

        Shared values are under ``defaults``, next to the list under ``pipelines``.

        ``.expand_kwargs([dict(pipeline) for pipeline in KafkaPipeline.load(...)])``,
        ``CheckOffsetDriftOperator(pipelines=KafkaPipeline.load(...))``.

        :param file: path of the file; in a DAG, ``Path(__file__).with_name("pipelines.yaml")``, because
            Airflow parses DAGs in another working directory.
        :raises UsageError: for an unknown or duplicate key; for a value that is missing, of another type or a
            template; and for a group in two entries that do not have different ``topics``. The text names the
            file, the entry and the key.
        """
        from airflow_kafka_offsets.model.pipelines_file import read_entries
        from airflow_kafka_offsets.storage import read_text

        name = os.fspath(file)
        text = read_text(name)
        if text is None:
            raise UsageError(f"{name}: there is no such file")
        pipelines = [cls(**entry) for entry in read_entries(text, name, FILE_PARSERS)]
        _check_shared_groups(pipelines, name)
        return pipelines

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def _keys(self) -> tuple[str, ...]:
        return PIPELINE_PARAMETERS if self.mirror is None else (*PIPELINE_PARAMETERS, "mirror")

    @property
    def asset(self) -> Asset:
        """
        The group's committed offsets as an Airflow asset, for ``outlets`` and ``schedule``.

        :raises UsageError: for a pipeline with several groups (use :attr:`assets`), or for a group that is a
            template.
        """
        if len(self._groups) != 1:
            raise UsageError(
                f"the pipeline has {len(self._groups)} groups, so it has no single asset: use assets, a list"
            )
        return self.assets[0]

    @property
    def assets(self) -> list[Asset]:
        """
        An asset for each group of the pipeline.

        :raises UsageError: for a group that is a template, because its asset is unknown before the task runs.
        """
        from airflow.sdk import Asset

        if templates := [*filter(has_template, (*self._groups, self.kafka_config_id))]:
            raise UsageError(
                f"{templates[0]!r} is a template, but Airflow does not render an asset's name: give the task "
                "outlets=[AssetAlias(...)], which represents the groups that the task commits to"
            )
        named = self.asset_name or {}
        names = dict.fromkeys(self._groups, named) if isinstance(named, str) else named
        uris = {group: group_uri(self.kafka_config_id, group) for group in self._groups}
        return [Asset(name=names.get(group, uri), uri=uri) for group, uri in uris.items()]

    @property
    def _groups(self) -> list[str]:
        return [self.group_id] if isinstance(self.group_id, str) else sorted(set(self.group_id.values()))

    def _check_asset_name(self) -> None:
        named = self.asset_name
        if isinstance(named, str) and len(self._groups) > 1:
            raise UsageError(
                f"asset_name={named!r} is one name for {len(self._groups)} groups, but Airflow requires "
                "unique names: expected {group: name}"
            )
        if isinstance(named, Mapping) and (unknown := sorted(set(named) - set(self._groups))):
            raise UsageError(
                f"asset_name names {', '.join(map(repr, unknown))}: expected groups of the pipeline, "
                f"{', '.join(map(repr, self._groups))}"
            )

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark configuration with the pipeline's names, for ``conf=``."""
        return {SPARK_CONF_KEY: self._names_as_json()}

    def spark_submit_parameters(self) -> str:
        """
        Return the configuration as one text, such as for ``sparkSubmitParameters`` of EMR Serverless.

        The JSON is percent-encoded, because services treat quotes in this text differently; EMR Serverless,
        for example, leaves backslashes in the value.
        :func:`~airflow_kafka_offsets.spark.names.pipeline_names` reads both forms.

        :raises UsageError: if a name is a template, because Airflow could not render it in the encoded text.
        """
        names = self._names_as_json()
        if has_template(names):
            raise UsageError(
                f"spark_submit_parameters() with {shorten(names)}: found a template, which Airflow would not "
                "render here; expected plain names, or use spark_conf()"
            )
        return f"--conf {SPARK_CONF_KEY}={quote(names, safe='')}"

    def _names_as_json(self) -> str:
        names = {name: self[name] for name in PIPELINE_PARAMETERS}
        return json.dumps(names, separators=(",", ":"), default=plain_names)


def _check_shared_groups(pipelines: Sequence[KafkaPipeline], file: str) -> None:
    """Refuse entries that share a group and its topics."""
    named: dict[tuple[str, str], list[tuple[int, Sequence[str] | None]]] = {}
    for number, pipeline in enumerate(pipelines, 1):
        topics = TopicScope.parse(pipeline.topics).topics
        for group in pipeline._groups:
            others = named.setdefault((pipeline.kafka_config_id, group), [])
            for other, its in others:
                if topics is None or its is None or not set(topics).isdisjoint(its):
                    raise UsageError(
                        f"{file}, entries {other} and {number}: both name the group {shorten(group)!r}; give "
                        "each pipeline its own group, or different topics"
                    )
            others.append((number, topics))


def _checked(parse: Callable[[Any], object]) -> Callable[[Any, str], Any]:
    def read(value: Any, _: str) -> Any:
        parse(value)
        return value

    return read


def parse_location(value: object, parameter: str, conn_parameter: str | None = "checkpoint_conn_id") -> str:
    """Parse a location, see :func:`~airflow_kafka_offsets.model.location.check_location`."""
    location = parse_text(value, parameter)
    check_location(location, parameter, conn_parameter)
    return location


NAME_PARSERS: Mapping[str, Callable[[Any, str], Any]] = {
    "group_id": _checked(parse_group_id),
    "topics": _checked(TopicScope.parse),
    "checkpoint_location": parse_location,
    "checkpoint_conn_id": parse_text,
    "kafka_config_id": parse_text,
}
"""Parameter of a pipeline -> its parser, which takes the value and the parameter's name."""

FILE_PARSERS: Mapping[str, Callable[[Any, str], Any]] = {**NAME_PARSERS, "mirror": Mirror.parse}
"""Reads each key of a file of pipelines."""

PIPELINE_PARAMETERS = tuple(NAME_PARSERS)
"""The parameters with the same name, type and meaning everywhere."""


def group_uri(kafka_config_id: str, group_id: str) -> str:
    """
    Return the URI of a group's asset, without contacting a broker.

    :raises UsageError: for a group name that the client would change, or that would end its process.
    """
    group = quote(parse_group(group_id), safe="")
    return f"{KAFKA_GROUP_SCHEME}://{quote(kafka_config_id, safe='')}/{group}"
