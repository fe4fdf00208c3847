"""How does a sensor wait, whether by poking, rescheduling itself or in the triggerer?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException, conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_kafka_offsets.errors import KafkaOffsetsError, UsageError
from airflow_kafka_offsets.hooks.failures import failing_at_once
from airflow_kafka_offsets.hooks.waits import Reading, Wait
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.triggers.wait import WaitTrigger


class OffsetsSensor(BaseSensorOperator):
    """
    Base of the sensors that wait for a position.

    A broker that is not reachable for a while does not end the wait, the sensor's ``timeout`` does. An error
    that would come again at every look (a wrong password, a topic that does not exist) fails the task at once.

    :param group_id: the consumer group, or ``{topic: group}``. Not needed where a checkpoint is given.
        (templated, a mapping's keys are not)
    :param topics: allow-list of topics or ``topic:0,1``; by default all Kafka topics of the checkpoint, or
        all that the group has commits for. (templated)
    :param checkpoint_location: URI of the Spark checkpoint, exactly as the Spark job has it. (templated)
    :param checkpoint_conn_id: Airflow connection of that storage; without it fsspec's own defaults. (templated)
    :param kafka_config_id: Airflow connection of the Kafka cluster. (templated)
    :param position: whose position is looked at: ``group`` or ``checkpoint``; by default the group's where
        both are given. (templated)
    :param isolation_level: ``read_uncommitted`` (default) measures up to the high watermark,
        ``read_committed`` up to the last stable offset. (templated)
    :param deferrable: wait in the triggerer, which holds no worker slot.
    """

    template_fields: Sequence[str] = (*PIPELINE_PARAMETERS, "position", "isolation_level")
    template_fields_renderers: ClassVar[dict[str, str]] = {"group_id": "json", "topics": "json"}
    ui_color = "#e8f0f8"

    def __init__(
        self,
        *,
        group_id: str | Mapping[str, str] | None = None,
        topics: str | Sequence[str] | None = None,
        checkpoint_location: str | None = None,
        checkpoint_conn_id: str | None = None,
        kafka_config_id: str = "kafka_default",
        position: str | None = None,
        isolation_level: str = "read_uncommitted",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group_id = group_id
        self.topics = topics
        self.checkpoint_location = checkpoint_location
        self.checkpoint_conn_id = checkpoint_conn_id
        self.kafka_config_id = kafka_config_id
        self.position = position
        self.isolation_level = isolation_level
        self.deferrable = deferrable
        if group_id is None and checkpoint_location is None:
            raise UsageError(
                f"task {self.task_id}: no position to look at: give group_id, checkpoint_location, or **pipeline"
            )
        self._client: OffsetsClient | None = None
        self._wait: Wait | None = None
        self._last_text = ""

    def make_wait(self, context: Context) -> Wait:
        """Return the wait that the task's parameters describe."""
        raise NotImplementedError

    def make_trigger(self, wait: Wait) -> WaitTrigger:
        """Return the trigger that goes on with the wait."""
        raise NotImplementedError

    def wait_is_over(self, context: Context) -> None:
        """Forget what was kept for the wait, once it has ended well."""

    def wait_parameters(self) -> dict[str, Any]:
        """Return the parameters that every wait has."""
        return {name: getattr(self, name) or None for name in (*PIPELINE_PARAMETERS, "position")} | {
            "isolation_level": self.isolation_level
        }

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once; the reading is the task's XCom when the wait is over."""
        with failing_at_once():
            try:
                reading = self._look(context)
            except KafkaOffsetsError as error:
                if not error.retriable:
                    raise
                self.log.warning("No answer this time: %s", error)
                return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=reading.done, xcom_value=reading.value)

    def execute(self, context: Context) -> Any:
        """Wait, and return the last reading."""
        try:
            if not self.deferrable:
                value = super().execute(context)
                self.wait_is_over(context)
                return value
            looked = self.poke(context)
            if looked.is_done:
                self.wait_is_over(context)
                return looked.xcom_value
            wait = self._wait
        finally:
            self._close()
        with failing_at_once():
            # Without a wait the broker did not answer, so the triggerer could not be told what to wait for.
            trigger = self.make_trigger(wait if wait is not None else self.make_wait(context))
        return self.defer(
            trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout)
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """
        Return the reading that the triggerer ended the wait with.

        :raises AirflowFailException: if the wait failed there.
        """
        if event.get("status") != "done":
            raise AirflowFailException(str(event.get("message")))
        self.log.info("%s", event["text"])
        self.wait_is_over(context)
        return event["reading"]

    def _look(self, context: Context) -> Reading:
        if self._wait is None:
            self._wait = self.make_wait(context)
        if self._client is None:
            self._client = self._wait.open()
        reading = self._wait.look(self._client)
        if reading.text != self._last_text:
            self.log.info("%s", reading.text)
            self._last_text = reading.text
        return reading

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None
