"""Lineage of the operators, for Airflow's OpenLineage provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.lineage import Lineage


class ReportsLineage:
    """
    Keeps the results of a task until the OpenLineage provider asks for the task's lineage.

    The provider calls these methods after a success and after a failure, in a fork of the task's process.
    The lineage is computed only then, from values in memory: no broker, connection or XCom is read. Without
    the provider nothing is computed or imported.
    """

    servers: Mapping[str, str] = MappingProxyType({})
    """Connection id -> bootstrap servers, for each connection that the task has opened."""
    _lineage: Callable[[], Lineage] | None = None

    def reset_lineage(self) -> None:
        """Remove the results of an earlier try in the same process."""
        self.servers, self._lineage = {}, None

    def keep_servers(self, kafka_config_id: str, client: OffsetsClient) -> None:
        """Keep the bootstrap servers of a connection."""
        self.servers = {**self.servers, kafka_config_id: client.servers}

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
