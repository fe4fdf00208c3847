"""Commands, and a pipeline that they move: 8 and 3 of 10 and 4 records were read, by group and checkpoint."""

from __future__ import annotations

import re
import shlex
from functools import partial

import pytest


@pytest.fixture(autouse=True)
def the_broker(bootstrap_servers, monkeypatch):
    monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER", bootstrap_servers)


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(2)
    produce(name, {0: 10, 1: 4})
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, {0: 8, 1: 3})
    return name


@pytest.fixture
def query(topic, new_query):
    return new_query({topic: {0: 8, 1: 3}})


@pytest.fixture
def committed(committed, group, topic):
    """committed() -> {partition: offset} of the group."""
    return partial(committed, group, topic)


@pytest.fixture
def do(cli, topic, group, query):
    """do("group reset GROUP --topic TOPIC --checkpoint URI ...") runs a command on the pipeline."""
    names = {"TOPIC": topic, "GROUP": group, "URI": query.location}
    return lambda line: cli(*shlex.split(re.sub("TOPIC|GROUP|URI", lambda name: names[name[0]], line)))
