"""Compares consumer groups with their checkpoints, and both with the logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import DriftError, KafkaOffsetsError, UsageError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.model.drift import parse_grace
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.lineage import lineage_of_reports
from airflow_kafka_offsets.model.parameters import choice_parser, parse_interval
from airflow_kafka_offsets.model.saved_plan import SavedPlan
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.operators.base import OffsetsOperator, Parser
from airflow_kafka_offsets.pipeline import FILE_PARSERS, PIPELINE_PARAMETERS, KafkaPipeline
from airflow_kafka_offsets.readings.drift import CheckedPipeline, pipeline_drift, pipelines_json
from airflow_kafka_offsets.readings.pipeline_state import check_moved
from airflow_kafka_offsets.task.metrics import report_drift
from airflow_kafka_offsets.task.outcome import push_result
from airflow_kafka_offsets.task.parameter_checks import check_rendered

DriftPolicy = Literal["fail", "warn"]
"""Action if a pipeline has drifted."""


class CheckOffsetDriftOperator(OffsetsOperator):
    """
    Compare checkpoints, consumer groups and logs, partition by partition. The task only reads.

    All pipelines are checked before the task fails. A pipeline that cannot be checked, because its checkpoint
    is missing or its broker does not respond, also makes the task fail, regardless of ``on_drift``. If all
    failures are temporary errors, Airflow retries the task.

    Returns the report as plain JSON: ``version``, ``drifted`` and ``pipelines``, each with its five names,
    ``drifted``, ``groups`` (see :meth:`airflow_kafka_offsets.model.drift.DriftReport.as_json`), ``error`` and
    ``retriable``. The report is in XCom even if the task fails.

    :param pipelines: a list of :class:`~airflow_kafka_offsets.pipeline.KafkaPipeline`, or of dicts with the
        same keys. One task checks them all, with one client for each Kafka connection. An entry may be a
        plan of a reset, which must then have moved its pipeline. Give either this list or the five names of
        one pipeline. (templated)
    :param grace: time after a batch's end in which a missing commit is not yet drift: a timedelta, seconds,
        or text such as ``10m`` or ``PT10M``; 0 by default. (templated)
    :param min_headroom: minimum time until retention deletes the oldest unread record: a duration as above.
        Less is drift (``expiring``), and so is an unknown headroom. By default headroom is not checked.
        (templated)
    :param on_drift: ``fail`` (default), or ``warn`` to only log the drift. (templated)
    """

    template_fields: Sequence[str] = ("pipelines", *PIPELINE_PARAMETERS, "grace", "min_headroom", "on_drift")
    parsers: ClassVar[Mapping[str, Parser]] = {
        "pipelines": lambda value, name: [
            _require_location(_pipeline(entry)) for entry in parse_pipelines(value, name)
        ],
        "grace": parse_grace,
        "min_headroom": parse_interval,
        "on_drift": choice_parser(DriftPolicy),
    }
    ui_color = "#f4f1e8"
    needs_group: ClassVar[bool] = False
    calls_timeout: ClassVar[float | None] = None

    def __init__(
        self,
        *,
        pipelines: Sequence[Mapping[str, Any]] | str | XComArg | None = None,
        grace: timedelta | float | str = 0,
        min_headroom: timedelta | float | str | None = None,
        on_drift: DriftPolicy | str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipelines: Any = plain_pipelines(pipelines)
        self.grace = grace
        self.min_headroom = min_headroom
        self.on_drift = on_drift
        if pipelines is not None:
            self.refuse_unused("with pipelines, also from default_args", *PIPELINE_PARAMETERS)
        elif self.group_id is None or self.checkpoint_location is None:
            raise self.parameter_error(
                "nothing to compare: give group_id and checkpoint_location, **pipeline, or pipelines=[...]"
            )
        self.check_parameters()

    def execute(self, context: Context) -> dict[str, Any]:
        """Check, and return the report."""
        with self.run_checked(), ExitStack() as clients:
            policy = self.parse_parameter("on_drift")
            how = self.parse_parameters("grace", "min_headroom")
            pipelines = named_pipelines(self)
            client_of = self.open_each(clients)
            plans = parse_pipelines(self.pipelines, "pipelines") if self.pipelines else [None]
            each = zip(pipelines, map(_plan, plans), strict=True)
            checked = [self._check(pipeline, plan, client_of, how) for pipeline, plan in each]
            report = pipelines_json(checked)
            push_result(context, report)
            reports = [(one.pipeline.kafka_config_id, each) for one in checked for each in one.reports]
            self.keep_lineage(partial(lineage_of_reports, reports, self.servers))
            failed = [one for one in checked if one.error is not None or (one.drifted and policy == "fail")]
            if failed:
                lines = [line for one in failed for line in one.failures()]
                raise DriftError(
                    f"{len(failed)} of {len(checked)} pipelines failed the check: "
                    + "".join(f"\n  - {line}" for line in lines),
                    retriable=all(one.retriable for one in failed),
                )
            return report

    def _check(
        self,
        pipeline: KafkaPipeline,
        plan: SavedPlan | None,
        client_of: Callable[[str], OffsetsClient],
        how: dict[str, Any],
    ) -> CheckedPipeline:
        try:
            checkpoint = spark_checkpoint(_require_location(pipeline), pipeline.checkpoint_conn_id)
            groups = GroupSelection.parse(pipeline.group_id, pipeline.topics)
            client = client_of(pipeline.kafka_config_id)
            reports = pipeline_drift(client, checkpoint, groups, **how)
            if plan is not None:
                check_moved(client, checkpoint, plan)
        except KafkaOffsetsError as error:
            self.log.error("Group %s could not be checked: %s", shorten(pipeline.group_id), error)  # noqa: TRY400 - it says all
            return CheckedPipeline(pipeline, error=str(error), retriable=error.retriable)
        except Exception as error:
            # An error in one pipeline must not hide the results of the others.
            self.log.exception("Group %s could not be checked", shorten(pipeline.group_id))
            # Airflow's errors only name a connection; other errors may contain anything, such as a password.
            reason = f": {error}" if isinstance(error, AirflowException) else ", see the log"
            return CheckedPipeline(pipeline, error=f"{type(error).__name__}{reason}", retriable=True)
        report_drift(reports)
        for report in reports:
            level = logging.WARNING if report.drifted or report.warnings else logging.INFO
            self.log.log(level, "%s", report.table())
        return CheckedPipeline(pipeline, tuple(reports))


def plain_pipelines(pipelines: Any) -> Any:
    """Return a list with dicts for its KafkaPipelines: Airflow renders and stores no other objects."""
    # Another list stays: Airflow knows the result of another task by its identity, and does not render it.
    if isinstance(pipelines, list | tuple) and any(isinstance(each, KafkaPipeline) for each in pipelines):
        return [dict(each) if isinstance(each, KafkaPipeline) else each for each in pipelines]
    return pipelines


def named_pipelines(task: Any) -> list[KafkaPipeline]:
    """Return the pipelines of a task's list, or the one that its parameters name."""
    if task.pipelines is None:
        return [_pipeline({name: getattr(task, name) for name in PIPELINE_PARAMETERS})]
    return [_pipeline(entry) for entry in parse_pipelines(task.pipelines, "pipelines")]


def _plan(entry: object) -> SavedPlan | None:
    is_plan = isinstance(entry, Mapping) and "digest" in entry
    return SavedPlan.parse(entry, "pipelines") if is_plan else None


def _pipeline(names: object) -> KafkaPipeline:
    if plan := _plan(names):
        names = plan.target_names.as_json()
    if not isinstance(names, Mapping):
        raise UsageError(f"pipelines: found {shorten(names)}; expected a KafkaPipeline or a dict")
    if set(names) - set(FILE_PARSERS) or not names.get("group_id"):
        raise UsageError(
            f"pipelines: found an entry with {', '.join(map(str, names)) or 'no keys'}; expected group_id "
            f"and checkpoint_location; allowed keys: {', '.join(PIPELINE_PARAMETERS)}"
        )
    given = {name: value for name, value in names.items() if value is not None}
    for name, value in given.items():
        check_rendered(f"pipelines, {name}", value, value)
    return KafkaPipeline(**given)


def _require_location(pipeline: KafkaPipeline) -> str:
    if not pipeline.checkpoint_location:
        raise UsageError(
            f"group {shorten(pipeline.group_id)!r} has no checkpoint_location to compare with: give the URI "
            "in its Spark job"
        )
    return pipeline.checkpoint_location


def parse_pipelines(value: object, parameter: str) -> Sequence[object]:
    """Read a list of pipelines, also as JSON text; its entries are read by :func:`named_pipelines`."""
    entries = load_json(value, parameter, "a list of pipelines") if isinstance(value, str) else value
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise UsageError(
            f"{parameter}={shorten(entries)}: expected a list with at least one KafkaPipeline or dict with "
            "the same keys"
        )
    return entries
