"""The plugin, which every component of Airflow loads."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import tomllib

from airflow_kafka_offsets.provider_info import get_provider_info
from airflow_kafka_offsets.ui.plugin import KafkaOffsetsPlugin

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_the_entry_point_leads_to_the_plugin():
    entry_points = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["airflow.plugins"]

    (name,) = entry_points
    assert EntryPoint(name, entry_points[name], "airflow.plugins").load() is KafkaOffsetsPlugin


def test_the_provider_info_names_the_same_plugin():
    (plugin,) = get_provider_info()["plugins"]
    path = f"{KafkaOffsetsPlugin.__module__}.{KafkaOffsetsPlugin.__name__}"
    assert plugin == {"name": KafkaOffsetsPlugin.name, "plugin-class": path}


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("AIRFLOW__KAFKA_OFFSETS__TAB", "False")

    plugin = KafkaOffsetsPlugin()

    assert (plugin.fastapi_apps, plugin.external_views) == ([], [])


def test_an_app_that_cannot_be_built_leaves_no_tab_and_lets_airflow_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow_kafka_offsets.ui.app", None)

    plugin = KafkaOffsetsPlugin()

    assert (plugin.fastapi_apps, plugin.external_views) == ([], [])
