"""The report of a drift check on many pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_kafka_offsets.model.drift import REPORT_VERSION, DriftReport, reports_json
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.topics import plain_names
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, KafkaPipeline


@dataclass(frozen=True)
class CheckedPipeline:
    """
    The result of a drift check on one pipeline.

    :param reports: one report for each group; empty if the pipeline could not be checked.
    :param error: why the pipeline could not be checked.
    :param retriable: whether a retry may succeed.
    """

    pipeline: KafkaPipeline
    reports: tuple[DriftReport, ...] = ()
    error: str | None = None
    retriable: bool = False

    @property
    def drifted(self) -> bool:
        """Whether anything counts as drift."""
        return any(report.drifted for report in self.reports)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON: the five names, ``drifted``, ``groups``, ``error`` and ``retriable``."""
        names = {name: plain_names(self.pipeline[name]) for name in PIPELINE_PARAMETERS}
        return {**names, **reports_json(self.reports), "error": self.error, "retriable": self.retriable}

    def failures(self) -> list[str]:
        """Return a line for each drifted group, or the reason why the pipeline could not be checked."""
        if self.error is not None:
            named = self.pipeline.group_id
            groups = sorted({*named.values()}) if isinstance(named, Mapping) else [str(named)]
            names = ", ".join(repr(shorten(group)) for group in groups)
            return [f"group {names} could not be checked: {self.error}"]
        return ["; ".join([report.summary(), *report.advice]) for report in self.reports if report.drifted]


def pipelines_json(checked: Sequence[CheckedPipeline]) -> dict[str, Any]:
    """Return the report on all pipelines as plain JSON."""
    return {
        "version": REPORT_VERSION,
        "drifted": any(one.drifted for one in checked),
        "pipelines": [one.as_json() for one in checked],
    }
