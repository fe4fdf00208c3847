"""Links from a task to the Offsets tab, which its worker stores at its end; empty ones are not shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink

from airflow_kafka_offsets.task.offsets_tab import is_on, page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    # Remove when Airflow documents this type, which its own get_link uses.
    from airflow.sdk.types import TaskInstanceKey


class DagOffsetsLink(BaseOperatorLink):
    """Links to the pipelines of the task's DAG."""

    name = "Offsets of this DAG"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the path of the DAG's page, empty if the tab is off."""
        return page(conf, "dags", ti_key.dag_id) if is_on(conf) else ""


class TaskOffsetsLink(BaseOperatorLink):
    """Links to the task instance's receipt, report or reading."""

    name = "Offsets of this task"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the path of the task instance's page, empty if the tab is off."""
        if not is_on(conf):
            return ""
        # Airflow passes the running task instance, whose map_index may be None.
        index = getattr(ti_key, "map_index", None)
        number = str(-1 if index is None else index)
        return page(conf, "dags", ti_key.dag_id, "runs", ti_key.run_id, "tasks", ti_key.task_id, number)


LINKS: tuple[BaseOperatorLink, ...] = (DagOffsetsLink(), TaskOffsetsLink())
"""Links of all operators and sensors."""
