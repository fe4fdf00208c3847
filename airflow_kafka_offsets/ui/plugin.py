"""The Airflow plugin that adds the Offsets tab; only the API server builds what it shows."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from airflow_kafka_offsets.task.offsets_tab import PREFIX, is_on, root

_INSTANCE = "dags/{DAG_ID}/runs/{RUN_ID}/tasks/{TASK_ID}/{MAP_INDEX}"

log = logging.getLogger(__name__)


class KafkaOffsetsPlugin(AirflowPlugin):
    """
    The Offsets tab: a view of each DAG and task instance, and of all pipelines in the navigation.

    Every component of Airflow loads its plugins. This plugin takes no time or memory until the API server
    reads ``fastapi_apps``. If the app cannot be built there is no tab, but Airflow still starts.
    """

    name = "kafka_offsets"

    @cached_property
    def _app(self) -> Any:
        # Remove when Airflow documents how a plugin reads settings; airflow.sdk has settings only for tasks.
        if not is_on(conf):
            return None
        from airflow_kafka_offsets.errors import SetupError

        try:
            from airflow_kafka_offsets.ui.app import make_app

            return make_app()
        except SetupError as error:
            log.warning("There is no Offsets tab: %s", error)
        except Exception:
            log.exception("There is no Offsets tab: it cannot be imported or set up")
        return None

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The app behind the tab; empty if it is turned off or cannot be built."""
        return (
            [] if self._app is None else [{"app": self._app, "url_prefix": PREFIX, "name": "Kafka offsets"}]
        )

    @cached_property
    def fastapi_root_middlewares(self) -> list[Any]:  # type: ignore[override]
        """The middleware that passes Airflow's app to the tab's app."""
        if self._app is None:
            return []
        from airflow_kafka_offsets.ui.airflow_api import FindAirflow

        return [{"middleware": FindAirflow, "name": "Kafka offsets"}]

    @cached_property
    def external_views(self) -> list[Any]:  # type: ignore[override]
        """The views that Airflow shows in a frame."""
        if self._app is None:
            return []
        base = root(conf)
        icons = {"icon": f"{base}/static/icon.svg", "icon_dark_mode": f"{base}/static/icon-dark.svg"}
        views = {
            "nav": ("Kafka offsets", "kafka-offsets", ""),
            "dag": ("Offsets", "kafka-offsets-dag", "dags/{DAG_ID}"),
            "task_instance": ("Offsets", "kafka-offsets-task", _INSTANCE),
        }
        return [
            {"name": name, "destination": where, "url_route": route, "href": f"{base}/{path}", **icons}
            for where, (name, route, path) in views.items()
        ]
