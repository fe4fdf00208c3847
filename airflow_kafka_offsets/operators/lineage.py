"""What the operators tell the OpenLineage provider, which asks each task when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.model.lineage import Lineage

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_kafka_offsets.kafka.client import OffsetsClient


class TellsLineage:
    """
    Keeps what a task has found out until the OpenLineage provider asks, which it also does after a failure.

    Nothing is computed before, and nothing is asked for then: no broker, no connection, no XCom. The provider
    calls the methods in a copy of the task's process, and only where it is installed and switched on.
    """

    servers: Mapping[str, str] = MappingProxyType({})
    """Id of each connection that was opened -> its bootstrap servers, by which its topics are named."""
    _lineage: Callable[[], Lineage] = Lineage

    def forget_lineage(self) -> None:
        """Begin again: a task may run twice in one process."""
        self.servers, self._lineage = {}, Lineage

    def note_servers(self, kafka_config_id: str, client: OffsetsClient) -> None:
        """Remember where a connection leads to."""
        self.servers = {**self.servers, kafka_config_id: client.servers}

    def note_lineage(self, lineage: Callable[[], Lineage]) -> None:
        """Keep what makes the lineage, in place of what was known before."""
        self._lineage = lineage

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:  # noqa: ARG002
        """Return the topics and what was done with them."""
        # Only the OpenLineage provider calls it.
        from airflow_kafka_offsets.task.openlineage import operator_lineage

        return operator_lineage(self._lineage())

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the same: it says how much was written, and whether that was verified."""
        return self.get_openlineage_facets_on_complete(task_instance)
