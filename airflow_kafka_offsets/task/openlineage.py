"""
OpenLineage facets and datasets of a task's lineage; imported only when the OpenLineage provider asks for it.

The schemas of the facets are in ``docs/spec/facets``. A published schema never changes: each change is a new
version in its own directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset
from openlineage.client.facet_v2 import InputDatasetFacet, RunFacet, input_statistics_input_dataset

from airflow_kafka_offsets import __version__
from airflow_kafka_offsets.model.lineage import LAG, MOVE, RANGES, Input, Lineage

PRODUCER = f"https://github.com/airflow-kafka-offsets/airflow-kafka-offsets/tree/v{__version__}"
SITE = "https://airflow-kafka-offsets.github.io/airflow-kafka-offsets/"
"""Address of the documentation, as in ``mkdocs.yml``."""


class _Published:
    """A facet whose schema is in a file of its name."""

    version: ClassVar[str] = "1-0-0"

    @classmethod
    def _get_schema(cls) -> str:
        return f"{SITE}spec/facets/{cls.version}/{cls.__name__}.json#/$defs/{cls.__name__}"


@attrs.define
class KafkaOffsetsRangesInputDatasetFacet(_Published, InputDatasetFacet):
    """Offset ranges of a topic, for each group."""

    groups: Sequence[Mapping[str, Any]]


@attrs.define
class KafkaOffsetsMoveRunFacet(_Published, RunFacet):
    """A move of groups, or its plan."""

    operation: str
    planOnly: bool  # noqa: N815
    verified: bool
    groups: Sequence[Mapping[str, Any]]
    kafkaConfigId: str | None = None  # noqa: N815
    checkpointLocation: str | None = None  # noqa: N815
    checkpointMove: str | None = None  # noqa: N815
    checkpointWritten: bool | None = None  # noqa: N815
    queryId: str | None = None  # noqa: N815
    batchId: int | None = None  # noqa: N815
    digest: str | None = None


@attrs.define
class KafkaOffsetsLagRunFacet(_Published, RunFacet):
    """Lag and headroom of groups."""

    groups: Sequence[Mapping[str, Any]]


RUN_FACETS: Mapping[str, type[RunFacet]] = {MOVE: KafkaOffsetsMoveRunFacet, LAG: KafkaOffsetsLagRunFacet}


def operator_lineage(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """Return a task's lineage in the provider's format."""
    facets = {key: RUN_FACETS[key](producer=PRODUCER, **values) for key, values in lineage.run.items()}
    return OperatorLineage(inputs=[_dataset(each) for each in lineage.inputs], run_facets=facets)


def _dataset(given: Input) -> InputDataset:
    facets: dict[str, InputDatasetFacet] = {
        RANGES: KafkaOffsetsRangesInputDatasetFacet(groups=given.groups, producer=PRODUCER)
    }
    if given.rows is not None:
        facets["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=given.rows, producer=PRODUCER
        )
    return InputDataset(namespace=given.namespace, name=given.name, inputFacets=facets)
