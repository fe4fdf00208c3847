"""Plans once which records a run reads, and hands that to the job and to the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from datetime import timezone as timezones
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowSkipException

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
from airflow_kafka_offsets.model.window import WINDOW_CONF_KEY, OffsetWindow, check_bounds
from airflow_kafka_offsets.operators.base import OffsetsOperator
from airflow_kafka_offsets.pipeline import parse_location
from airflow_kafka_offsets.readings.window import plan_window, topics_matching
from airflow_kafka_offsets.readings.window_checks import check_window
from airflow_kafka_offsets.task.parameter_checks import is_template
from airflow_kafka_offsets.task.window_file import MAX_ARGUMENT, window_xcom
from airflow_kafka_offsets.task.window_memory import WindowMemory
from airflow_kafka_offsets.task.xcom import push_result

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.operators.base import Parser

OnEmpty = Literal["skip", "fail", "continue"]
"""What becomes of a run whose window is empty: what follows is skipped, the task fails, or it goes on."""

WINDOW_XCOM = "kafka_offsets.window"
"""Key of the XCom that goes into a job's configuration: the window as JSON text, or the URI of its file."""

_ASKED = ("start", "end", "group_id", "topics", "topics_pattern", "max_records", "kafka_config_id")


class PlanOffsetWindowOperator(OffsetsOperator):
    """
    Plan which records this run reads: a range of offsets for each partition, from ``start`` until ``end``.

    Nothing is changed in Kafka. The job reads exactly these records (see
    :func:`airflow_kafka_offsets.spark.read.read_window`), and
    ``CommitOffsetWindowOperator(window=plan.output)`` then moves the group to the window's end, if it is
    still at its start.

    ``group_id`` is the group that reads the topics, ``None`` for a replay that no group takes note of.
    ``topics`` are by default those that the group has commits on.

    With ``every`` the window is the interval of the run's partition key: a DAG that runs for each interval of
    :class:`~airflow_kafka_offsets.operators.completed_intervals.CompletedIntervalsOperator`, or for those of
    Airflow's ``CronPartitionTimetable`` and its backfills, reads exactly its hour.

    A time means the first record at or after it. The end is exclusive. A partition that was added to a topic
    since the last commit is read from its log start.

    A task that has planned a window gives the same one again when it is tried again or its run is cleared:
    Airflow 3.3 keeps it with the task, and ``window_file`` keeps it on any version. Where it is not kept,
    times and offsets give the same records again, and with ``committed``, ``earliest`` or ``latest`` a run
    that was cleared, or that has committed already, is refused. A window that was skipped because it is empty
    is planned again.

    Refused: a window of no length, as the data intervals of plain cron strings are in Airflow 3; an end
    before the start, or in the future; records that retention has deleted, with their number; a group without
    a commit, unless ``on_no_commit`` says otherwise. Where the group is elsewhere than at the window's start,
    the window is planned, and the log says that it cannot be committed.

    Returns :meth:`airflow_kafka_offsets.model.window.OffsetWindow.as_json`; its ``source`` says what was
    asked for, when and by which run. With ``window_file`` it also names the file, and of a window that is too
    large for an argument it holds only ``version``, ``records``, ``partitions``, ``source`` and
    ``window_file``. The XCom ``kafka_offsets.window`` is for the job, see :meth:`spark_conf`.

    :param topics_pattern: in place of ``topics``, a regular expression for the whole name, as Python has
        them. A topic that appears later counts as one without a commit. (templated)
    :param start: ``committed`` (default), ``earliest``, a time, or offsets as ``{"topic": {"0": 42}}``.
        (templated)
    :param end: ``latest`` (default), a time, or offsets. (templated)
    :param every: in place of ``start`` and ``end``, the length of the interval that the run's partition key
        names: ``hour``, ``day``, a cron expression or a duration, as in ``CompletedIntervalsOperator``.
        (templated)
    :param timezone: on whose clock that interval starts. ``UTC``. (templated)
    :param max_records: at most so many records, shared over the partitions in proportion. (templated)
    :param on_no_commit: where ``committed`` starts in a topic that the group has no commit on: ``fail``
        (default), ``earliest``, ``latest``, or ``skip`` the topic. (templated)
    :param on_empty: for a window without records: ``skip`` what follows (default), ``fail``, or ``continue``.
        (templated)
    :param window_file: URI of a file to write the window to, another one for each run. (templated)
    :param window_conn_id: Airflow connection of the file's storage. (templated)
    """

    template_fields: Sequence[str] = (
        *OffsetsOperator.template_fields,
        "topics_pattern",
        "start",
        "end",
        "every",
        "timezone",
        "max_records",
        "on_no_commit",
        "on_empty",
        "window_file",
        "window_conn_id",
    )
    parsers: ClassVar[Mapping[str, Parser]] = {
        **dict.fromkeys(("start", "end"), Place.parse),
        "topics_pattern": parse_pattern,
        "every": lambda value, _: IntervalSchedule.parse(value),
        "timezone": parse_timezone,
        "max_records": partial(parse_count, minimum=1),
        "window_file": partial(parse_location, conn_parameter="window_conn_id"),
        "window_conn_id": parse_text,
        "on_no_commit": choice_parser(MissingCommitPolicy),
        "on_empty": choice_parser(OnEmpty),
    }
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
            raise self.parameter_error("topics and topics_pattern are both given: expected one of them")
        if window_file is None:
            self.refuse_unused_unless_default(
                "window_conn_id", kwargs.get("default_args"), "without window_file"
            )
        self.check_parameters()
        self._check_every()
        if every is None and not (is_template(start) or is_template(end)):
            try:
                check_bounds(*self._bounds())
            except PlanRefusedError as error:
                raise self.parameter_error("; ".join(error.refusals)) from None
        if every is not None or (
            not is_template(start) and self.parse_parameter("start").kind != "committed"
        ):
            self.refuse_unused("with a start that is not 'committed'", on_no_commit="fail")

    def spark_conf(self) -> dict[str, str]:
        """
        Return the configuration from which a Spark job reads the window, for ``conf=``.

        It is a template, which the task that runs the job renders; that task has to run after this one.
        """
        pulled = f"{{{{ ti.xcom_pull(task_ids='{self.task_id}', key='{WINDOW_XCOM}') }}}}"
        return {WINDOW_CONF_KEY: pulled}

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan the window, keep it, and return it."""
        with self.run_checked():
            on_empty = self.parse_parameter("on_empty")
            self._interval = self._of_run(context)
            memory = WindowMemory(context, self.window_file, self.window_conn_id)
            with self.open_client() as client:
                window = self._known(client, memory)
                if window is None:  # an empty window is one as well
                    window = self._plan(client, memory)
            self._show(window)
            self.keep_lineage(partial(lineage_of_window, window, self.servers))
            return self._hand_over(context, memory, window, on_empty)

    def _hand_over(
        self, context: Context, memory: WindowMemory, window: OffsetWindow, on_empty: OnEmpty
    ) -> dict[str, Any]:
        """Keep a window and give it to the job, unless it is empty and that ends the task."""
        if not window and on_empty == "fail":
            raise PlanRefusedError("the window is empty: there are no records between its start and its end")
        if not window.ranges and on_empty == "continue":
            raise PlanRefusedError(
                "no partition is left for the window: the group has no commit on any of them"
            )
        # The log end is the group's position only when it is committed: skipping would lose what comes until
        # then.
        starts_here = self.on_no_commit == "latest" and window.without_commit
        if not window and on_empty == "skip" and not starts_here:
            # The skip discards the return value, and the downstream tasks may look at it.
            push_result(context, window.as_json())
            raise AirflowSkipException("The window is empty: what follows is skipped")
        text, result = window.as_text(), window.as_json()
        if len(text) > MAX_ARGUMENT and not self.window_file:
            raise PlanRefusedError(
                f"the window of {len(window.ranges)} partitions takes {len(text)} bytes of JSON, and one "
                "argument of a "
                'program holds 128 KiB: set window_file, such as \'s3://bucket/{{ run_id | replace(":", "") '
                "}}.json', "
                "where both the task and the job can reach it"
            )
        # Before the XCom: a try that dies in between gives the same window again.
        memory.keep(window)
        if self.window_file:
            result = window_xcom(window, self.window_file, whole=len(text) <= MAX_ARGUMENT)
            text = self.window_file
        if "ti" in context:
            context["ti"].xcom_push(key=WINDOW_XCOM, value=text)
        return result

    def _plan(self, client: OffsetsClient, memory: WindowMemory) -> OffsetWindow:
        start, end = self._bounds()
        named = self.selection()
        if self.topics_pattern is not None:
            named = named.with_scope(topics_matching(client, self.topics_pattern))
        # Times and offsets give the same records again, whenever they are planned.
        if not (start.reproducible and end.reproducible):
            memory.refuse_other_records(client, named)
        now = datetime.now(tz=timezones.utc)
        window = plan_window(
            client,
            named,
            start,
            end,
            now=now,
            max_records=self.parse_parameter("max_records"),
            on_no_commit=self.parse_parameter("on_no_commit"),
        )
        asked = {
            **{
                name: getattr(self, name)
                for name in ("topics", "topics_pattern", "kafka_config_id", "max_records")
            },
            "asked": self._asked(),
            "planned_at": now.isoformat(timespec="seconds"),
        }
        source = {**window.source, **asked, **memory.run}
        # As it comes back from XCom and from a file: what is compared later must not differ by a tuple.
        return replace(window, source=json.loads(json.dumps(source, default=str)))

    def _known(self, client: OffsetsClient, memory: WindowMemory) -> OffsetWindow | None:
        """Return the window that this run has had before."""
        window = memory.recall()
        if window is None:
            return None
        # The DAG was changed since: with the old window the change would be ignored without a word.
        if window.source.get("asked") != self._asked():
            if all(bound.reproducible for bound in self._bounds()):
                self.log.info("Planned again: the parameters are others than before")
                return None
            raise PlanRefusedError(
                f"this run has a window since {window.source.get('planned_at')}, planned with other "
                f"parameters than now (start={window.source.get('start')}, end={window.source.get('end')}, "
                f"topics={window.source.get('topics')}, max_records={window.source.get('max_records')}): put "
                "them back, or trigger a new run"
            )
        check_window(client, window, self.selection())
        self.log.info("The window that this run has since %s", window.source.get("planned_at"))
        return window

    def _show(self, window: OffsetWindow) -> None:
        limited = ", limited by max_records" if window.source.get("limited") else ""
        rows = [["TOPIC", "PARTITION", "FROM", "TO", "RECORDS"]]
        for tp, offsets in sorted(window.ranges.items()):
            rows.append([tp.topic, *map(str, (tp.partition, offsets.start, offsets.end, offsets.size))])
        total = f"{window.records} records in {len(window.ranges)} partitions{limited}"
        self.log.info("%s", "\n".join([total, *align_rows(rows)]))

    def _check_every(self) -> None:
        if self.every is None:
            self.refuse_unused("without every", timezone="UTC")
            return
        self.refuse_unused("with every", start="committed", end="latest")
        if not (is_template(self.every) or is_template(self.timezone)):
            try:
                IntervalSchedule.parse(self.every, self.timezone)
            except UsageError as error:
                raise self.parameter_error(str(error)) from None

    def _of_run(self, context: Context) -> Interval | None:
        """Return the interval that the run's partition key names, if it is wanted."""
        if self.every is None:
            return None
        key = getattr(context.get("dag_run"), "partition_key", None)
        if key is None:
            raise UsageError(
                f"every={self.every!r} reads the interval of the run's partition key, and this run has none: "
                "schedule the DAG with PartitionedAssetTimetable or CronPartitionTimetable (Airflow 3.2 and "
                "later), trigger it with a partition key, or give start and end"
            )
        interval = IntervalSchedule.parse(self.every, self.timezone).of_key(key)
        self.log.info("%s: from %s until %s", key, interval.start.isoformat(), interval.end.isoformat())
        return interval

    def _bounds(self) -> tuple[Place, Place]:
        if self._interval is not None:
            return Place("time", self._interval.start), Place("time", self._interval.end)
        return self.parse_parameter("start"), self.parse_parameter("end")

    def _asked(self) -> str:
        """Return what is the same as long as the same is asked for."""
        asked = {name: getattr(self, name) for name in _ASKED}
        asked |= {"start": self._bounds()[0].as_text(), "end": self._bounds()[1].as_text()}
        return digest(asked, length=12)
