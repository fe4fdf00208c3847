"""
No name of a group ends the process that uses it, and none becomes another group.

The names are used in child processes: a child that dies is the failure. What they have committed is read with
Kafka's own client, which changes no name.
"""

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration

USE = """
import json, os, sys
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.connection import Connection
from airflow_kafka_offsets.model.offsets import TopicPartition

asked = json.load(sys.stdin)
partition = TopicPartition(asked["topic"], 0)
config = {"bootstrap.servers": asked["servers"]}
with OffsetsClient(config, timeout=20) as client:
    for name in asked["names"]:
        print(json.dumps(name), end=" ", flush=True)
        refusals = 0
        for call in (
            lambda: Connection(config, name, "read_uncommitted").consumer.close(),
            lambda: client.commit(name, {partition: 7}),
            lambda: client.committed(name, [partition]),
            lambda: client.committed_everywhere(name),
        ):
            try:
                call()
            except UsageError:
                refusals += 1
        print({0: "used", 2: "read", 4: "refused"}[refusals], flush=True)
os._exit(0)
"""

WHITE = [" ", "\t", "\n", "\v", "\f", "\r"]
ends = st.sampled_from(
    [*WHITE, "\0", "\ud800", "\x1b", "\x85", "\xa0", "\u3000", "{", '"', "é", "💾", "a", ""]
)
names = st.builds("{}{}{}".format, ends, st.text(st.characters(exclude_categories=()), max_size=6), ends)


def use(servers, topic, names):
    """Use names in a process of their own; return {name: "used" or "refused"}."""
    asked = json.dumps({"servers": servers, "topic": topic, "names": names})
    done = subprocess.run(
        [sys.executable, "-c", USE], input=asked, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-200:]} {done.stderr[-2000:]}"
    told = [line.rpartition(" ") for line in done.stdout.splitlines()]
    return {json.loads(name): outcome for name, _, outcome in told}


@pytest.fixture(scope="module")
def topic(make_topic):
    return make_topic(1)


@given(st.lists(names, min_size=20, max_size=20, unique=True))
@settings(
    max_examples=2,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(
    ["", *WHITE, "\0", "\ud800", *(f"{white}a" for white in WHITE), *(f"b{white}" for white in WHITE), "c\0d"]
)
@example(
    ["x" * 32_700, "x" * 32_701, "x" * 70_000, "é" * 16_384, "a\x1b[2J", "\x85a", "a\xa0", '{"orders": "g"}']
)
def test_a_name_is_refused_or_means_exactly_that_group(bootstrap_servers, broker, topic, oracle, names):
    outcomes = use(bootstrap_servers, topic, names)
    assert list(outcomes) == names
    used = [name for name, outcome in outcomes.items() if outcome == "used"]
    assert oracle.committed(*used) == {name: {TopicPartition(topic, 0): 7} for name in used}
    # Other tests ask for all groups of this broker.
    assert set(broker.delete_groups(used).values()) <= {None}


@pytest.mark.parametrize(("name", "outcome"), [(" padded", "read"), ("cut\0off", "refused")])
def test_the_group_that_a_name_would_become_is_left_alone(bootstrap_servers, topic, oracle, name, outcome):
    assert use(bootstrap_servers, topic, [name]) == {name: outcome}
    assert oracle.committed("padded", "cut") == {"padded": {}, "cut": {}}


def test_a_group_that_another_client_gave_such_a_name_is_read_and_deleted(client, topic, oracle):
    tp = TopicPartition(topic, 0)
    oracle.commit({" of Java": {tp: 3}})
    assert client.describe_groups([" of Java"])[" of Java"].state == "Empty"
    (commit,) = {client.committed(" of Java", [tp])[tp], client.committed_everywhere(" of Java")[tp]}
    assert commit is not None
    assert commit.offset == 3
    with pytest.raises(UsageError, match=r"found ' of Java'; expected the name of a consumer group without"):
        client.commit(" of Java", {tp: 1})
    assert client.delete_groups([" of Java"]) == {" of Java": None}
    assert oracle.committed(" of Java") == {" of Java": {}}
