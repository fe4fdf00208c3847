"""Base of the sensors: they wait by poking, by rescheduling or in the triggerer."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowTaskTimeout,
    conf,
)
from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.offsets import IsolationLevel
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.operators.links import LINKS
from airflow_kafka_offsets.task.metrics import report_lag
from airflow_kafka_offsets.task.outcome import fail_without_retry, push_result
from airflow_kafka_offsets.task.parameter_checks import PipelineTask, check_literals, with_task_name
from airflow_kafka_offsets.task.wait_memory import WaitMemory
from airflow_kafka_offsets.waits.progress import Progress
from airflow_kafka_offsets.waits.wait import Reading, Wait

_CLOCK = re.compile(r"\b((utc)?now|today|time)\(|\bstart_date\b")


class OffsetsSensor(PipelineTask, BaseSensorOperator):
    """
    Base of the sensors that wait for a position.

    If the broker is temporarily unreachable, the wait continues until the sensor's ``timeout``. The task
    fails at once for an error that every poll would repeat, such as a wrong password, a name that selects
    nothing, or an option that renders to an empty value. The last reading is the task's XCom even if the task
    fails or is skipped. With ``mode="reschedule"`` this is the reading of the last poll, if the broker
    answered that poll.

    ``poke_interval`` is also the interval in the triggerer. Durations are seconds, a timedelta or text such
    as ``30m`` or ``PT30M``. The names of the pipeline are those of
    :class:`~airflow_kafka_offsets.task.parameter_checks.PipelineTask`; with a checkpoint, ``group_id`` is
    optional.

    :param mirror: not used by sensors; :class:`~airflow_kafka_offsets.pipeline.KafkaPipeline` passes it on.
    :param isolation_level: ``read_uncommitted`` (default) measures up to the high watermark,
        ``read_committed`` up to the last stable offset. (templated)
    :param stalled_after: fail early if the position has not moved for this time and the wait is not over. By
        default the sensor does not check this. (templated)
    :param deferrable: wait in the triggerer, without occupying a worker slot.
    :raises UsageError: for parameters that are missing, contradict each other, or have an invalid value.
    """

    wait_class: ClassVar[type[Wait]]
    ui_color = "#e8f0f8"
    operator_extra_links = LINKS

    def __init__(
        self,
        *,
        mirror: Mapping[str, Any] | None = None,  # noqa: ARG002  # one of the pipeline's names
        isolation_level: IsolationLevel | str = "read_uncommitted",
        stalled_after: float | timedelta | str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.isolation_level = isolation_level
        self.stalled_after = stalled_after
        self.deferrable = deferrable
        self._client: OffsetsClient | None = None
        self._checkpoint: SparkCheckpoint | None = None
        self._wait: Wait | None = None
        self._progress: Progress | None = None
        self._last: Reading | None = None
        self._began = 0.0

    @property
    def reschedule(self) -> bool:
        """Whether the task ends after each poll, and is started again for the next one."""
        return bool(super().reschedule) and not self.deferrable

    def check_parameters(self) -> None:
        """Refuse invalid literals; each constructor calls this at its end."""
        check_literals(self, **self.wait_class.parsers)
        with with_task_name(self):
            self.wait_class.check_parameters(self)

    def make_wait(self, memory: WaitMemory) -> Wait:  # noqa: ARG002
        """Return the wait that the task's parameters describe."""
        return self.wait_class(**{name: getattr(self, name) for name in self.wait_class.parsers})

    def asked(self, wait: Wait) -> dict[str, Any]:
        """Return the parameters that decide when a wait is over, which must not change while it lasts."""
        asked = wait.parameters | {"stalled_after": None}
        if "target" in asked:
            # The wait may have the target that was frozen.
            target = getattr(self, "target", None)
            asked["target"] = str(target) if isinstance(target, str | datetime) else digest(target)
            # No sensor's parameter; earlier versions have kept targets without it.
            asked.pop("cluster", None)
        # A template that reads the clock, as a function of the DAG may, has another value each time.
        written = {name: str(each) for name, each in (self._templates or {}).items() if name in asked}
        reads_clock = {name for name, text in written.items() if _CLOCK.search(text)}
        macros = (self.dag.user_defined_macros or {}) if self.has_dag() else {}  # type: ignore[no-untyped-call]
        if any(callable(macros.get(word)) for word in re.findall(r"\w+", written.get("target", ""))):
            reads_clock.add("target")
        return asked | {name: written[name] for name in reads_clock}

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once; when the wait is over, the reading is the task's XCom; else defer if the sensor does."""
        memory, value = WaitMemory(context), PokeReturnValue(is_done=False)
        with fail_without_retry():
            try:
                reading, progress = self._poll(memory)
            except KafkaOffsetsError as error:
                # A wait for a connection that is not defined would not end: it is for the task's retries.
                if not error.retriable or isinstance(error.__cause__, AirflowNotFoundException):
                    raise
                if self._progress is None or self._progress.is_new_error(error):
                    self.log.warning("This poll failed, and the wait continues: %s", error)
                self._remember(memory)
            else:
                if not reading.done and (stalled := progress.stalled):
                    raise AirflowFailException(f"{stalled}\n{reading.text}")
                value = PokeReturnValue(is_done=reading.done, xcom_value=reading.as_json())
        # Without an answer from the broker there may be no wait yet, because freezing its target needs one.
        # Airflow's loop then polls again on the worker.
        if self.deferrable and not value.is_done and self._wait is not None:
            self._defer(context, self._wait)
        return value

    def execute(self, context: Context) -> Any:
        """Wait, and return the last reading."""
        self._began = time.time()
        try:
            return super().execute(context)
        except (AirflowException, AirflowTaskTimeout) as error:
            if self._last is not None and not isinstance(error, AirflowRescheduleException):
                push_result(context, self._last.as_json())
            if isinstance(error, AirflowSensorTimeout) and self._progress is not None:
                raise AirflowSensorTimeout(f"{error}\n{self._progress.summary}") from error
            raise
        finally:
            self._close()

    def _defer(self, context: Context, wait: Wait) -> None:
        if self._last is not None:
            # Pushed in case the triggerer gets no answer from the broker.
            push_result(context, self._last.as_json())
        # Imported here because a DAG file does not need the triggerer's modules.
        from airflow_kafka_offsets.triggers.wait import TRIGGERS

        trigger = TRIGGERS[self.wait_class](
            **wait.parameters,
            poll_interval=self.poke_interval,
            max_interval=self._longest_interval(),
            # Counted from the task's start, because polls on the worker use part of the sensor's timeout.
            ends_at=self._began + self.timeout,
        )
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            kwargs={"asked": self.asked(wait)},
            # Later than the trigger's own timeout, whose event has the last reading and may be late.
            timeout=timedelta(seconds=self.timeout + 120.0),
        )

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], asked: Mapping[str, Any] | None = None
    ) -> Any:
        """
        Return the reading with which the triggerer ended the wait.

        :param asked: the parameters of the wait, see :meth:`asked`.
        :raises AirflowFailException: if the wait failed in the triggerer.
        :raises AirflowSensorTimeout: if the wait timed out in the triggerer.
        :raises AirflowException: for an error in the triggerer that a retry may fix.
        :raises KafkaOffsetsError: if the task has other parameters by now.
        """
        reading, status = event.get("reading"), event.get("status")
        if status != "done":
            if reading:
                # Pushed before the error is raised, which discards the return value.
                push_result(context, reading)
            text = "\n".join(str(line) for line in (event.get("message"), event.get("text")) if line)
            if status == "error" and self.soft_fail:
                # Airflow would skip the task for an AirflowException, instead of trying it again.
                raise KafkaOffsetsError(text, retriable=True)
            kinds = {"timeout": AirflowSensorTimeout, "error": AirflowException}
            raise kinds.get(str(status), AirflowFailException)(text)
        now = self.asked(OffsetsSensor.make_wait(self, WaitMemory(context))) if asked else {}
        for name, value in (asked or {}).items():
            if now.get(name) != value:
                raise KafkaOffsetsError(
                    f"the wait was for {name}={shorten(value)}, and the task now has {shorten(now.get(name))}"
                    ", as after a change of the DAG file or a Variable: a retry waits for that",
                    retriable=True,
                )
        self.log.info("%s", event["text"])
        return reading

    def _poll(self, memory: WaitMemory) -> tuple[Reading, Progress]:
        if self._progress is None:
            self.check_rendered_parameters()
            stalled_after = self.wait_class.parsers["stalled_after"](self.stalled_after, "stalled_after")
            if stalled_after is not None and self._loses_state(memory):
                raise UsageError(
                    "stalled_after with mode='reschedule' needs Airflow 3.3 or later, because earlier "
                    "versions do not keep the position between polls: use deferrable=True or mode='poke'"
                )
            self._progress = Progress(stalled_after, memory.progress if self.reschedule else None)
        if self._wait is None:
            self._wait = self.make_wait(memory)
        checkpoint = self.open_checkpoint() if self._wait.needs_checkpoint else None
        reading = self._last = self._progress.add_reading(self._wait.poll(self.open_client(), checkpoint))
        if self._progress.news:
            (self.log.warning if reading.unknown else self.log.info)("%s", reading.text)
        self._remember(memory)
        report_lag(reading.lags, reading.checkpoint)
        return reading, self._progress

    def open_client(self) -> OffsetsClient:
        """Return the client of the sensor's connection; :meth:`execute` closes it."""
        if self._client is None:
            # Imported here because Airflow's own hook loads the Kafka client, which a DAG file does not need.
            from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook

            self._client = KafkaOffsetsHook(self.kafka_config_id).get_offsets_client()
        return self._client

    def open_checkpoint(self) -> SparkCheckpoint | None:
        """Return the pipeline's checkpoint, ``None`` without a ``checkpoint_location``."""
        if self._checkpoint is None:
            self._checkpoint = super().open_checkpoint()
        return self._checkpoint

    def _remember(self, memory: WaitMemory) -> None:
        if self.reschedule and self._progress is not None:
            memory.progress = self._progress.kept

    def _loses_state(self, memory: WaitMemory) -> bool:
        return self.reschedule and not memory.is_kept

    def _longest_interval(self) -> float:
        if not self.exponential_backoff:
            return self.poke_interval
        return self.max_wait.total_seconds() if self.max_wait else max(self.poke_interval, self.timeout)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None
