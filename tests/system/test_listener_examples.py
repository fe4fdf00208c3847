"""The examples in which the Spark job itself commits: under the launcher, and inside an Airflow task."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

DEADLINE = 30.0


@pytest.fixture(scope="module")
def topics(bootstrap_servers, wait_for_topic):
    """The topics that the examples name."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    wanted = {"orders-eu": 2, "orders-us": 3, "orders": 1, "shop-orders": 2}
    new = [NewTopic(name, num_partitions=partitions) for name, partitions in wanted.items()]
    for name, made in admin.create_topics(new, request_timeout=DEADLINE).items():
        made.result(DEADLINE)
        wait_for_topic(name, wanted[name])


@pytest.fixture
def lake(airflow, tmp_path):
    return {"LAKE": str(tmp_path / "lake")}


def lags(kafka_tools, group):
    """{(topic, partition): lag} as Kafka's own tool shows it."""
    lines = kafka_tools.consumer_groups("--describe", "--group", group).stdout.splitlines()
    rows = [line.split() for line in lines if line.startswith(f"{group} ")]
    return {(row[1], int(row[2])): row[5] for row in rows}


def test_two_topics_go_into_one_and_the_group_is_at_their_ends(
    run_dag, topics, produce, lake, kafka_tools, broker_end
):
    produce("orders-eu", {0: 30, 1: 20})
    produce("orders-us", {0: 10, 2: 5})  # and nothing in partition 1

    done = run_dag("union_sources.py", variables=lake)

    assert done["state"] == "success", done["states"]
    assert done["results"]["gate"]["reached"] is True
    assert broker_end("orders") == {0: 65}
    assert lags(kafka_tools, "orders-union") == {
        ("orders-eu", 0): "0",
        ("orders-eu", 1): "0",
        ("orders-us", 0): "0",
        ("orders-us", 1): "0",
        ("orders-us", 2): "0",
    }


def test_a_stream_inside_a_task_commits_what_it_has_read(run_dag, topics, produce, lake, kafka_tools):
    produce(
        "shop-orders",
        [
            {"key": key, "value": b"1", "partition": number % 2}
            for number, key in enumerate([b"a", b"b", b"a"])
        ],
    )

    done = run_dag("pyspark_task.py", variables=lake)

    assert done["state"] == "success", done["states"]
    assert done["results"]["count_orders"] == {"a": 2, "b": 1}
    assert lags(kafka_tools, "shops") == {("shop-orders", 0): "0", ("shop-orders", 1): "0"}
