"""The links from a task instance to the Offsets tab: addresses that the tab has, and none where it is off."""

from types import SimpleNamespace
from urllib.parse import unquote

import pytest
from starlette.routing import Match

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.links import DagOffsetsLink, TaskOffsetsLink
from airflow_kafka_offsets.provider_info import get_provider_info
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.task.offsets_tab import PREFIX
from airflow_kafka_offsets.ui.routes import dag_routes

RUN = "scheduled__2026-11-24T00:00:00+00:00"
COMMIT = CommitOffsetsOperator(task_id="commit", group_id="g", offsets={"orders": {"0": 1}})
SENSOR = ConsumerGroupLagSensor(task_id="gate", group_id="g", max_lag=0)


def instance(dag_id, task_id, run_id, map_index=-1):
    """As much of a running task instance as Airflow's task runner passes to a link."""
    return SimpleNamespace(dag_id=dag_id, task_id=task_id, run_id=run_id, map_index=map_index)


def links(key):
    return {type(link).__name__: link.get_link(COMMIT, ti_key=key) for link in COMMIT.operator_extra_links}


def page_of(path):
    """What the tab reads from an address that leads to one of its pages."""
    below = unquote(path.partition(PREFIX)[2])
    for route in dag_routes.routes:
        match, scope = route.matches({"type": "http", "method": "GET", "path": below, "headers": []})
        if match is Match.FULL:
            return scope["endpoint"].__name__ == "page" and scope["path_params"]
    return None


@pytest.fixture
def base_url(monkeypatch):
    return lambda url: monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)


@pytest.mark.parametrize("index", [-1, 3])
def test_they_lead_to_pages_that_the_tab_has(base_url, index):
    base_url("https://airflow.example.com/team/airflow/")
    key = instance("or ders", "group.commit", RUN, map_index=index)
    found = links(key)
    assert all(path.startswith("/team/airflow/kafka-offsets/dags/or%20ders") for path in found.values())
    assert page_of(found["DagOffsetsLink"]) == {"dag_id": "or ders"}
    of_task = {"dag_id": "or ders", "run_id": RUN, "task_id": "group.commit", "map_index": str(index)}
    assert page_of(found["TaskOffsetsLink"]) == of_task


def test_a_running_task_instance_without_a_map_index_is_not_mapped():
    assert links(instance("orders", "commit", RUN, None))["TaskOffsetsLink"].endswith("/tasks/commit/-1")


def test_a_name_cannot_lead_elsewhere(base_url):
    base_url("https://airflow.example.com")
    key = instance("../../login?a=b", "commit", "//evil.example.com#")
    for path in links(key).values():
        assert path.startswith("/kafka-offsets/dags/..%2F..%2Flogin%3Fa%3Db")
        assert "//" not in path


def test_without_the_tab_there_is_no_link(monkeypatch):
    monkeypatch.setenv("AIRFLOW__KAFKA_OFFSETS__TAB", "False")
    assert set(links(instance("orders", "commit", RUN)).values()) == {""}


def test_sensors_have_them_too():
    assert SENSOR.operator_extra_links == COMMIT.operator_extra_links


def test_the_provider_info_names_them():
    own = {f"{kind.__module__}.{kind.__name__}" for kind in (DagOffsetsLink, TaskOffsetsLink)}
    assert {*get_provider_info()["extra-links"]} == own
    assert {type(link).__name__ for link in COMMIT.operator_extra_links} == {
        name.rpartition(".")[2] for name in own
    }
