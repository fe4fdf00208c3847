"""Shows by the commits' metadata which task or tool made the groups' current commits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.drift import DriftReport
from airflow_kafka_offsets.model.parameters import iso_time

_MOST = 8
"""Maximum number of makers that are shown; thousands of partitions share a few makers."""


def makers_of(reports: Iterable[DriftReport]) -> list[dict[str, Any]]:
    """Return the makers of the groups' commits, the newest first, see :func:`as_provenance`."""
    found = [made_by for report in reports for made_by in report.made_by]
    found.sort(key=lambda made_by: made_by.at or 0, reverse=True)
    # The metadata of one commit differs between topics in the topic ids.
    different = {str(made): made for made in map(as_provenance, found)}
    return list(different.values())[:_MOST]


def as_provenance(made_by: CommitMetadata) -> dict[str, Any]:
    """Return the maker of a commit or a move; empty names are ``None``."""
    at = made_by.at or 0
    return {
        "kind": made_by.kind,
        "dag_id": made_by.dag or None,
        "run_id": made_by.run or None,
        "task_id": made_by.task or None,
        "map_index": made_by.map_index if made_by.task else None,
        "by": made_by.user or None,
        "tool": made_by.tool or None,
        "at": iso_time(at * 1_000) if 0 < at < 1 << 36 else None,
    }
