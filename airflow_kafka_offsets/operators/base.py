"""Base of the operators: pipeline names, parameter checks, client, error handling and lineage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.operators.links import LINKS
from airflow_kafka_offsets.operators.outlets import GroupOutlets
from airflow_kafka_offsets.pipeline import FILE_PARSERS
from airflow_kafka_offsets.task.metrics import REFUSALS, count
from airflow_kafka_offsets.task.outcome import fail_without_retry
from airflow_kafka_offsets.task.parameter_checks import PipelineTask, check_literals

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_kafka_offsets.model.lineage import Lineage
    from airflow_kafka_offsets.task.mapped import OperatorPartial

Parser = Callable[[Any, str], Any]
"""Reads a parameter from its value and name."""


class OffsetsOperator(PipelineTask):
    """
    Base of the operators that name a pipeline and read its offsets.

    A task that commits nothing sends no event for the groups' assets in its ``outlets``.

    Every name must select something, see :mod:`airflow_kafka_offsets.model.groups`. The log names the topics
    and partitions that ``topics`` leaves out.

    :param mirror: the mirror of that cluster, as :class:`~airflow_kafka_offsets.pipeline.KafkaPipeline`
        passes it on. A commit of the checkpoint, a failover and the check of the mirror use it.
    """

    template_fields_renderers: ClassVar[dict[str, str]] = dict.fromkeys(
        ("group_id", "topics", "offsets", "to_offset", "window", "start", "end", "receipt"), "json"
    )
    parsers: ClassVar[Mapping[str, Parser]] = {}
    """Parsers of an operator's own parameters: for literals at parse time, for templates at run time."""
    ui_color = "#e8f4ea"
    operator_extra_links = LINKS
    needs_group: ClassVar[bool] = True
    one_at_a_time: ClassVar[bool] = False
    """Whether one index of a mapped task runs at a time, unless the DAG says otherwise."""
    calls_timeout: ClassVar[float | None] = 120.0
    """Total seconds for all calls of a client, ``None`` for no limit."""

    def __init__(self, *, mirror: Mapping[str, Any] | Mirror | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mirror: Any = mirror
        self.servers: dict[str, str] = {}
        """Connection id -> bootstrap servers, for each connection that the task has opened."""
        self._lineage: Callable[[], Lineage] | None = None
        self._topics_by_group: dict[str, set[str]] = {}
        """Group -> its topics that the task writes to, for counters and events; the named groups at first."""
        self._group_outlets = GroupOutlets(())
        if self.group_id is None and self.needs_group:
            raise self.missing_group()

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return the shared part of a mapped task."""
        # An index that has lost its approval is refused; None for all indexes is the author's decision.
        given = {name: it for name, it in kwargs.items() if it is not None or name != "approval"}
        partial = super().partial(**given)
        if cls.one_at_a_time:
            # Airflow does not read this default from the constructor.
            partial.kwargs.setdefault("max_active_tis_per_dag", 1)
        return partial

    def check_parameters(self) -> None:
        """Check the parameters that are literals in the DAG file; each constructor calls this at its end."""
        check_literals(self, **FILE_PARSERS, **self.parsers)

    def missing_group(self) -> UsageError:
        """Return the error for a task that names no group."""
        return self.parameter_error("group_id is missing: name the consumer group, or **pipeline")

    def check_mirrored(self) -> None:
        """Check that the parameters name a checkpoint and a mirror."""
        missing = [name for name in ("checkpoint_location", "mirror") if getattr(self, name) is None]
        if missing:
            raise self.parameter_error(
                f"{missing[0]} is missing: give it, or **pipeline of a KafkaPipeline that has both"
            )

    def parameter_error(self, text: str) -> UsageError:
        """Return the error for an invalid combination of parameters."""
        return UsageError(f"task {self.task_id}: {text}")

    def parse_parameter(self, name: str) -> Any:
        """Return the parsed value of a parameter."""
        return self.parsers[name](getattr(self, name), name)

    def parse_parameters(self, *names: str) -> dict[str, Any]:
        """Return the parsed values of parameters, by name."""
        return {name: self.parse_parameter(name) for name in names}

    def selection(self) -> GroupSelection:
        """Return the groups and topics that the parameters name."""
        return GroupSelection.parse(self.group_id, self.topics, required=self.needs_group)

    def open_client(self, kafka_config_id: str | None = None) -> OffsetsClient:
        """Return a client for a connection, by default the task's own; the caller closes it."""
        # Imported here because Airflow's own hook loads the Kafka client, which a DAG file does not need.
        from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

        conn_id = kafka_config_id or self.kafka_config_id
        client = KafkaOffsetsHook(conn_id).get_offsets_client(total=self.calls_timeout)
        self.servers = {**self.servers, conn_id: client.servers}
        return client

    def open_each(self, clients: ExitStack) -> Callable[[str], OffsetsClient]:
        """Return a function that opens a client for each connection once; the stack closes them."""
        return cache(lambda kafka_config_id: clients.enter_context(self.open_client(kafka_config_id)))

    @contextmanager
    def run_checked(self) -> Iterator[None]:
        """Check the rendered options, count refusals, and let Airflow retry only temporary errors."""
        # If a task runs twice in one process, the first run has left its lineage, and removed some outlets.
        self.servers, self._lineage = {}, None
        self._topics_by_group = {group: set() for group in self._named_groups()}
        self._group_outlets = GroupOutlets(self._group_outlets.declared or self.outlets)
        self.outlets = self._group_outlets.outlets_with_events
        with fail_without_retry():
            try:
                self.check_rendered_parameters()
                # Objects that templates render to, such as an empty list, would count as not given.
                OffsetsOperator.check_parameters(self)
                yield
            except KafkaOffsetsError as error:
                if isinstance(error, REFUSALS):
                    count("refused", self._topics_by_group, reason=type(error).__name__)
                raise

    # The OpenLineage provider asks for the lineage in a fork of the task's process, when the task has ended.
    # It is computed only then, from values in memory: no broker, connection or XCom is read.

    def keep_lineage(self, lineage: Callable[[], Lineage]) -> None:
        """Keep the function that computes the lineage; it replaces an earlier one."""
        self._lineage = lineage

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:  # noqa: ARG002
        """Return inputs and facets for the task's event."""
        # Only the OpenLineage provider calls this method, so its client is installed.
        from airflow_kafka_offsets.model.lineage import Lineage
        from airflow_kafka_offsets.task.openlineage import operator_lineage

        return operator_lineage(self._lineage() if self._lineage else Lineage())

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the same as after a success: the facets show how much was written and verified."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def _named_groups(self) -> list[str]:
        with suppress(UsageError):
            return GroupSelection.parse(self.group_id).group_ids
        return [""]
