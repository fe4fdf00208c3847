"""Plans once which records a run reads, for the job and for the commit."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from datetime import timezone as timezones
from functools import partial
from typing import Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowSkipException, AirflowTaskTimeout
from airflow.sdk import Context, XComArg

from airflow_kafka_offsets.annotation_types import OffsetsClient
from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.interval import Interval, IntervalSchedule, parse_timezone
from airflow_kafka_offsets.model.lineage import lineage_of_window
from airflow_kafka_offsets.model.parameters import (
    MissingCommitPolicy,
    choice_parser,
    parse_count,
    parse_pattern,
    parse_text,
)
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.table import align_rows
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.model.window import WINDOW_CONF_KEY, OffsetWindow, check_bounds
from airflow_kafka_offsets.operators.base import OffsetsOperator, Parser
from airflow_kafka_offsets.pipeline import parse_location
from airflow_kafka_offsets.readings.window import check_window, plan_window, topics_matching
from airflow_kafka_offsets.task.interval_memory import check_emitted_interval
from airflow_kafka_offsets.task.outcome import push_result
from airflow_kafka_offsets.task.parameter_checks import is_template, with_task_name
from airflow_kafka_offsets.task.run_tasks import refuse_used_result
from airflow_kafka_offsets.task.windows import MAX_ARGUMENT, WindowMemory, window_xcom

OnEmpty = Literal["skip", "fail", "continue"]
"""Action for an empty window: skip the downstream tasks, fail, or continue."""

_WINDOW_PARAMETERS = ("topics", "topics_pattern", "max_records", "on_no_commit", "kafka_config_id")
"""Parameters that determine the window, besides its bounds and the group."""

WINDOW_XCOM = "kafka_offsets.window"
"""Key of the XCom for a job's configuration: the window as JSON text, or the URI of its file."""


class PlanOffsetWindowOperator(OffsetsOperator):
    """
    Plan which records this run reads: a range of offsets for each partition, from ``start`` until ``end``.

    The task changes nothing in Kafka. The job reads exactly these records (see
    :func:`airflow_kafka_offsets.spark.read.read_window`).
    ``CommitOffsetWindowOperator(window=plan.output)`` then moves the group to the window's end, if the group
    is still at the window's start.

    ``group_id`` is the group that reads the topics, or ``None`` for a replay without a group. By default
    ``topics`` are the topics on which the group has commits.

    With ``every`` the window is the interval of the run's partition key. So a DAG reads exactly its hour if
    it runs for each interval of
    :class:`~airflow_kafka_offsets.operators.completed_intervals.CompletedIntervalsOperator`, or of Airflow's
    ``CronPartitionTimetable`` and its backfills.

    A time means the first record at or after this time. The end is exclusive. A partition that was added to a
    topic since the last commit is read from offset 0.

    A task returns the same window again if it is retried or its run is cleared: Airflow 3.3 keeps the window
    with the task, and ``window_file`` keeps it on any version. If the window is not kept, times and offsets
    give the same records again; with ``committed``, ``earliest`` or ``latest`` a run that was cleared, or
    that has already committed, is refused. A window that was skipped because it is empty is planned again.

    The task refuses these windows:

    - The window has no length, as the data intervals of plain cron strings in Airflow 3.
    - Its end is before its start, or in the future.
    - Retention has deleted records of the window. The error gives their number.
    - The group has no commit (see ``on_no_commit``).
    - ``every`` or ``timezone`` are different from those of the task that emitted the run's interval.

    If the group is not at the window's start, the window is planned, and the log warns that it cannot be
    committed.

    Returns :meth:`airflow_kafka_offsets.model.window.OffsetWindow.as_json`. Its ``source`` records the
    parameters, the time and the run. With ``window_file`` the result also names the file. If the window is
    too large for a program argument, the result then has only ``version``, ``records``, ``partitions``,
    ``source`` and ``window_file``. The XCom ``kafka_offsets.window`` is for the job, see :meth:`spark_conf`.

    :param topics_pattern: instead of ``topics``, a Python regular expression that matches whole topic names.
        A topic that is created later counts as a topic without a commit. (templated)
    :param start: ``committed`` (default), ``earliest``, a time, or offsets as ``{"topic": {"0": 42}}``.
        (templated)
    :param end: ``latest`` (default), a time, or offsets. (templated)
    :param every: instead of ``start`` and ``end``, the length of the interval that the run's partition key
        names: ``hour``, ``day``, a cron expression or a duration, as in ``CompletedIntervalsOperator``.
        (templated)
    :param timezone: time zone in which the interval of ``every`` starts; ``UTC`` by default. (templated)
    :param max_records: maximum number of records, split over the partitions in proportion. (templated)
    :param on_no_commit: where ``committed`` starts in a topic on which the group has no commit: ``fail``
        (default), ``earliest``, ``latest``, or ``skip`` the topic. (templated)
    :param on_empty: action for a window without records: ``skip`` the downstream tasks (default), ``fail``,
        or ``continue``. (templated)
    :param window_file: URI of a file for the window; use a different file for each run. (templated)
    :param window_conn_id: Airflow connection of the file's storage. (templated)
    """

    parsers: ClassVar[Mapping[str, Parser]] = {
        "topics_pattern": parse_pattern,
        **dict.fromkeys(("start", "end"), Place.parse),
        "every": lambda value, _: IntervalSchedule.parse(value),
        "timezone": parse_timezone,
        "max_records": partial(parse_count, minimum=1),
        "on_no_commit": choice_parser(MissingCommitPolicy),
        "on_empty": choice_parser(OnEmpty),
        "window_file": partial(parse_location, conn_parameter="window_conn_id"),
        "window_conn_id": parse_text,
    }
    # Many records may have to be read behind a transaction.
    calls_timeout: ClassVar[float | None] = 1_500.0
    template_fields: Sequence[str] = (*OffsetsOperator.template_fields, *parsers)
    needs_group: ClassVar[bool] = False

    def __init__(
        self,
        *,
        topics_pattern: str | None = None,
        start: datetime | str | Mapping[str, Mapping[str, int]] | XComArg = "committed",
        end: datetime | str | Mapping[str, Mapping[str, int]] | XComArg = "latest",
        every: str | timedelta | None = None,
        timezone: str = "UTC",
        max_records: int | str | XComArg | None = None,
        on_no_commit: MissingCommitPolicy | str = "fail",
        on_empty: OnEmpty | str = "skip",
        window_file: str | None = None,
        window_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topics_pattern = topics_pattern
        self.start = start
        self.end = end
        self.every: Any = every
        self.timezone = timezone
        self._interval: Interval | None = None
        self.max_records = max_records
        self.on_no_commit = on_no_commit
        self.on_empty = on_empty
        self.window_file = window_file
        self.window_conn_id = window_conn_id
        if topics_pattern is not None and self.topics is not None:
            raise self.parameter_error("topics and topics_pattern are both given: give only one")
        if window_file is None:
            self.refuse_unused_unless_default("without window_file", "window_conn_id")
        self.check_parameters()

    def check_parameters(self) -> None:
        """Check also that the bounds, or the interval, can be those of a window."""
        super().check_parameters()
        if self.every is not None:
            # The rest of the interval would be in no window.
            self.refuse_unused("with every", "start", "end", "max_records")
            if not (is_template(self.every) or is_template(self.timezone)):
                with with_task_name(self):
                    IntervalSchedule.parse(self.every, self.timezone)
        else:
            self.refuse_unused("without every", "timezone")
            if not (is_template(self.start) or is_template(self.end)):
                try:
                    check_bounds(*self._bounds())
                except PlanRefusedError as error:
                    raise self.parameter_error("; ".join(error.refusals)) from None
        is_committed = is_template(self.start) or self.parse_parameter("start").kind == "committed"
        if self.every is not None or not is_committed:
            self.refuse_unused("with a start that is not 'committed'", "on_no_commit")

    def spark_conf(self) -> dict[str, str]:
        """
        Return the configuration from which a Spark job reads the window, for ``conf=``.

        The value is a template. The task that runs the job renders it, and must run after this task, in the
        same mapped task group if there is one.
        """
        # Without map_indexes Airflow 3 returns the windows of all indexes.
        index = ", map_indexes=ti.map_index" if self.get_closest_mapped_task_group() else ""
        pulled = f"{{{{ ti.xcom_pull(task_ids='{self.task_id}', key='{WINDOW_XCOM}'{index}) }}}}"
        return {WINDOW_CONF_KEY: pulled}

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan the window, keep it, and return it."""
        with self.run_checked():
            on_empty = self.parse_parameter("on_empty")
            self._interval = self._interval_of_run(context)
            memory = WindowMemory(context, self.window_file, self.window_conn_id)
            with self.open_client() as client:
                window = self._recall_window(client, memory)
                if window is None:  # not "if not window": an empty window is falsy
                    refuse_used_result(context, self)
                    window = self._plan(client, memory)
            self._log_window(window)
            self.keep_lineage(partial(lineage_of_window, window, self.servers))
            return self._keep_for_job(context, memory, window, on_empty)

    def on_kill(self) -> None:
        """
        End this try at once, without a window.

        Airflow also ends a try that was frozen while the next try has run. It sends SIGTERM, and lets the
        task run for 5 seconds more, in which this try would replace the window that the job has read.
        """
        # After an execution_timeout, the log needs the error that shows which call took so long.
        if not isinstance(sys.exception(), AirflowTaskTimeout):
            raise SystemExit("Airflow has ended this try before its window was planned")

    def _keep_for_job(
        self, context: Context, memory: WindowMemory, window: OffsetWindow, on_empty: OnEmpty
    ) -> dict[str, Any]:
        """Keep a window and push it for the job, unless it is empty and ``on_empty`` ends the task."""
        if not window and on_empty == "fail":
            raise PlanRefusedError("the window is empty: there are no records between its start and its end")
        if not window.ranges and on_empty == "continue":
            raise PlanRefusedError("the window has no partitions: the group has no commit on any partition")
        # The log end becomes the group's position only by a commit: if the commit were skipped, the next
        # window would start later and miss records.
        starts_here = self.on_no_commit == "latest" and window.without_commit
        if not window and on_empty == "skip" and not starts_here:
            # A skip discards the return value, which downstream tasks may read.
            push_result(context, window.as_json())
            raise AirflowSkipException("The window is empty: the downstream tasks are skipped")
        text, result = window.as_text(), window.as_json()
        if len(text) > MAX_ARGUMENT and not self.window_file:
            raise PlanRefusedError(
                f"the window of {len(window.ranges)} partitions takes {len(text)} bytes of JSON, and a "
                "program's argument can have at most 128 KiB: set window_file to a URI that both the task "
                'and the job can read, such as \'s3://bucket/{{ run_id | replace(":", "") }}.json\''
            )
        # Kept before the XCom is pushed: if the task dies in between, the next try returns the same window.
        memory.keep(window)
        if self.window_file:
            result = window_xcom(window, self.window_file, whole=len(text) <= MAX_ARGUMENT)
            text = self.window_file
        if "ti" in context:
            context["ti"].xcom_push(key=WINDOW_XCOM, value=text)
        return result

    def _plan(self, client: OffsetsClient, memory: WindowMemory) -> OffsetWindow:
        start, end = self._bounds()
        selection = self.selection()
        if self.topics_pattern is not None:
            selection = selection.with_scope(topics_matching(client, self.topics_pattern))
        # Times and offsets select the same records whenever they are planned.
        if not (start.traits.reproducible and end.traits.reproducible):
            memory.refuse_other_records(client, selection)
        now = datetime.now(tz=timezones.utc)
        window = plan_window(
            client, selection, start, end, now=now, **self.parse_parameters("max_records", "on_no_commit")
        )
        asked = {name: getattr(self, name) for name in _WINDOW_PARAMETERS}
        asked |= {"asked": self._parameters_digest(), "planned_at": now.isoformat(timespec="seconds")}
        source = {**window.source, **asked, **memory.run}
        # The same types as from XCom or a file, so that a later comparison does not differ by a tuple.
        return replace(window, source=json.loads(json.dumps(source, default=str)))

    def _recall_window(self, client: OffsetsClient, memory: WindowMemory) -> OffsetWindow | None:
        """Return the window that this run has planned before."""
        window = memory.recall()
        if window is None:
            return None
        # The DAG was changed since: the old window would silently ignore the change.
        if window.source.get("asked") != self._parameters_digest():
            if all(bound.traits.reproducible for bound in self._bounds()):
                self.log.info("Planned again: the parameters have changed")
                return None
            names = ("start", "end", "group_id", *_WINDOW_PARAMETERS)
            found = {name: window.source.get(name) for name in names}
            planned = ", ".join(f"{name}={it}" for name, it in found.items() if it is not None)
            raise PlanRefusedError(
                f"this run planned its window at {window.source.get('planned_at')} with other parameters "
                f"({planned}): set these parameters again, or trigger a new run"
            )
        check_window(client, window, self.selection())
        self.log.info("The window that this run planned at %s", window.source.get("planned_at"))
        return window

    def _log_window(self, window: OffsetWindow) -> None:
        limited = ", limited by max_records" if window.source.get("limited") else ""
        rows = [["TOPIC", "PARTITION", "FROM", "TO", "RECORDS"]]
        for tp, offsets in sorted(window.ranges.items()):
            rows.append([tp.topic, *map(str, (tp.partition, offsets.start, offsets.end, offsets.size))])
        total = f"{plural(window.records, 'record')} in {plural(len(window.ranges), 'partition')}{limited}"
        self.log.info("%s", "\n".join([total, *align_rows(rows)]))

    def _interval_of_run(self, context: Context) -> Interval | None:
        """Return the interval of the run's partition key; ``None`` without ``every``."""
        if self.every is None:
            return None
        key = getattr(context.get("dag_run"), "partition_key", None)
        if key is None:
            raise UsageError(
                f"every={self.every!r} needs a run with a partition key, and this run has no partition key: "
                "schedule the DAG with PartitionedAssetTimetable or CronPartitionTimetable (Airflow 3.2 and "
                "later), trigger it with a partition key, or give start and end"
            )
        interval = IntervalSchedule.parse(self.every, self.timezone).of_key(key)
        check_emitted_interval(context, key, interval)
        self.log.info("%s: from %s until %s", key, interval.start.isoformat(), interval.end.isoformat())
        return interval

    def _bounds(self) -> tuple[Place, Place]:
        if self._interval is not None:
            return Place("time", self._interval.start), Place("time", self._interval.end)
        return self.parse_parameter("start"), self.parse_parameter("end")

    def _parameters_digest(self) -> str:
        """Return a digest of the parameters that determine the window: with others a run plans again."""
        start, end = (bound.as_text() for bound in self._bounds())
        asked = {"start": start, "end": end} | {
            name: getattr(self, name) for name in ("group_id", *_WINDOW_PARAMETERS)
        }
        return digest(asked, length=12)
