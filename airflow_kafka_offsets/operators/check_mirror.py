"""Checks whether a pipeline could fail over to its mirror now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from airflow.sdk import Context

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.parameters import parse_count
from airflow_kafka_offsets.operators.base import OffsetsOperator, Parser
from airflow_kafka_offsets.task.outcome import push_result


class CheckMirrorOperator(OffsetsOperator):
    """
    Check whether a pipeline could fail over to its mirror now, and how exactly. Changes nothing.

    The task translates the position of the newest committed batch twice: with both clusters, and as if the
    source were gone, with the mirror and what commits have kept beside the checkpoint. The task fails if a
    position is unknown, or a threshold is exceeded. The log also shows which cluster has the offset syncs,
    whether the mirror copies aborted records, whether it keeps the timestamps of records, and how far it is
    behind.

    Returns :meth:`~airflow_kafka_offsets.model.mirror_check.MirrorCheck.as_json`, also in XCom when the task
    fails.

    :param max_again: most records that the query may read again if the source is gone; by default any
        number. (templated)
    :param max_behind: most records by which the mirror may be behind the source; by default any number.
        (templated)
    """

    parsers: ClassVar[Mapping[str, Parser]] = {"max_again": parse_count, "max_behind": parse_count}
    template_fields: Sequence[str] = (*OffsetsOperator.template_fields, *parsers)
    ui_color = "#f4f1e8"

    def __init__(
        self, *, max_again: int | str | None = None, max_behind: int | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.max_again = max_again
        self.max_behind = max_behind
        self.check_mirrored()
        self.check_parameters()

    def execute(self, context: Context) -> dict[str, Any]:
        """Check the mirror, and return the report."""
        # Imported here because a DAG file does not need the code that reads.
        from airflow_kafka_offsets.readings.mirror_check import check_mirror

        with self.run_checked(), ExitStack() as clients:
            mirror = Mirror.parse(self.mirror)
            checkpoint = spark_checkpoint(self.checkpoint_location, self.checkpoint_conn_id)
            source = clients.enter_context(self.open_client())
            target = clients.enter_context(self.open_client(mirror.kafka_config_id))
            found = check_mirror(source, target, checkpoint, self.selection(), mirror)
            report = found.as_json()
            push_result(context, report)
            self.log.info("%s", "\n".join(found.lines()))
            failures = found.failures(self.parse_parameter("max_again"), self.parse_parameter("max_behind"))
            PlanRefusedError.raise_if(failures)
            return report
