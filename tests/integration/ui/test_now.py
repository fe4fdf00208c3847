"""Live readings of a real Kafka, through Airflow's own app."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from offsets_receipts import receipt

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.pace import ENOUGH
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor

pytestmark = pytest.mark.integration

NOBODY = json.dumps(
    {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "hidden"}}
)
SENT = 1_700_000_000_000


@pytest.fixture(scope="module")
def asking(browser, bootstrap_servers):
    """The API server with the connections kafka_default, and kafka_dead to a broker that is away."""
    extra = {"bootstrap.servers": bootstrap_servers}
    live = browser.tab.state.live
    # The process that asks has the connections that there were when it was started.
    live.close()
    with pytest.MonkeyPatch.context() as ours:
        ours.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        ours.setenv("AIRFLOW_CONN_KAFKA_DEAD", NOBODY)
        yield browser
        live.close()


@pytest.fixture
def connected(asking):
    yield asking
    asking.tab.state.live._answers._values.clear()


@pytest.fixture
def add_pipeline(metadata):
    def add(dag_id, results=None, **names):
        with metadata.new_dag(dag_id):
            offsets = None if "checkpoint_location" in names else {"t": {"0": 1}}
            CommitOffsetsOperator(task_id="commit", offsets=offsets, **names)
        metadata.add_run(dag_id, results)
        return dag_id

    return add


def ask_in_time(browser, path, told=lambda found: found["problems"], is_whole=lambda found: True):
    """
    Ask until the process that asks has started and answers in time, which takes long on a busy machine.

    :param told: what an answer says of its being late.
    :param is_whole: whether an answer that is not late has all that is wanted.
    """
    deadline = time.monotonic() + 60
    while True:
        found = browser.get(path).json()
        is_late = any(late in text for text in told(found) for late in ("starting", "in time"))
        if (not is_late and is_whole(found)) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
        # Failures are kept for a while, too.
        browser.tab.state.live._answers._values.clear()


def read(browser, dag_id, *, times=False):
    """Read where a pipeline is, with the times if these are wanted."""

    def has_times(found):
        columns = found["partitions"]
        return found["error"] or all(
            at is not None for lag, at in zip(columns["lag"], columns["time_lag"], strict=True) if lag
        )

    return ask_in_time(
        browser,
        browser.address(dag_id, "now"),
        lambda found: [found["error"]["message"]] if found["error"] else [],
        has_times if times else lambda found: True,
    )


def test_a_pipeline_with_its_checkpoint(
    connected, add_pipeline, new_query, new_group, make_topic, produce, broker, monkeypatch
):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 10, 1: 5}, {0: [SENT] * 10, 1: [SENT] * 5})
    query = new_query({topic: {0: 6, 1: 5}})
    query.plan(2, {topic: {0: 9, 1: 5}})
    by = CommitMetadata(dag="orders", run="manual__1", task="commit", user="ann", at=1_767_225_600, batch=1)
    committed = {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 5}
    broker.commit(group, committed, by.text())
    add_pipeline("orders", group_id=group, checkpoint_location=query.location)

    found = read(connected, "orders", times=True)
    # A busy machine may take longer to ask again than an answer is kept.
    monkeypatch.setattr(connected.tab.state.live._answers, "_seconds", 600.0)
    again = connected.get(connected.address("orders", "now") + "?partitions=false").json()
    path = connected.address("orders", "history")
    batches = connected.get(path).json()["batches"]

    assert found["error"] is None
    columns = found["partitions"]
    assert columns["topic"] == [topic, topic]
    assert [columns[name] for name in ("committed", "checkpoint", "log_start", "log_end", "lag")] == [
        [4, 5],
        [6, 5],
        [0, 0],
        [10, 5],
        [6, 0],
    ]
    assert columns["verdict"] == ["group behind", "in step"]
    assert columns["time_lag"][0] > 86_400
    assert found["totals"]["lag"] == 6
    assert found["totals"]["time_lag"] == columns["time_lag"][0]
    # It was written long ago, and the topic keeps its records for a week.
    assert (columns["headroom_state"], columns["headroom"]) == (["time", "none"], [0.0, None])
    assert (found["totals"]["headroom_state"], found["totals"]["headroom"]) == ("time", 0.0)
    assert found["problems"] == []
    assert found["drift"]["verdict"] == "group behind"
    assert (found["checkpoint"]["batch"], found["checkpoint"]["pending_batch"]) == (1, 2)
    assert found["state"] == "Empty"
    assert found["members"] == []
    assert [(made["by"], made["at"]) for made in found["commits"]] == [("ann", "2026-01-01T00:00:00Z")]
    assert again["read_at"] == found["read_at"]
    assert again["partitions"] is None
    assert [(batch["batch"], batch["pending"]) for batch in batches] == [(0, False), (1, False), (2, True)]


def test_a_group_alone_and_a_hostile_one(connected, add_pipeline, make_topic, produce, broker):
    topic, group = make_topic(1), "<script>alert('x')</script>/\"ü"
    produce(topic, {0: 10})
    broker.commit(group, {TopicPartition(topic, 0): 4}, '{"user": "<b>"}')
    add_pipeline("alone", group_id=group, topics=[topic])

    found = read(connected, "alone")

    assert found["error"] is None
    assert found["partitions"]["group"] == [group]
    assert found["totals"]["lag"] == 6
    assert found["drift"] is found["checkpoint"] is None
    assert [made["by"] for made in found["commits"]] == ["<b>"]


def test_records_without_a_commit_are_not_called_read(connected, add_pipeline, make_topic, produce, broker):
    topic, group = make_topic(3), "half-known"
    produce(topic, {0: 10, 1: 7})
    by = [
        CommitMetadata(tool="spark listener", query="q", batch=3, at=1_767_225_600),
        CommitMetadata(tool="airflow-kafka-offsets group reset", at=1_767_225_700),
    ]
    broker.commit(group, {TopicPartition(topic, 0): 10}, by[0].text())
    broker.commit(group, {TopicPartition(topic, 2): 0}, by[1].text())
    add_pipeline("half", group_id=group, topics=[topic])

    found = read(connected, "half")

    totals = found["totals"]
    assert [totals[name] for name in ("lag", "unknown_lag", "uncounted", "time_lag")] == [0, 1, 7, None]
    assert found["topics"] == [topic]
    assert [(made["kind"], made["tool"]) for made in found["commits"]] == [
        ("reset", "airflow-kafka-offsets group reset"),
        ("commit", "spark listener"),
    ]


@pytest.fixture
def instance(connected, metadata):
    """instance(task, result, state=..., rendered=...) -> how to ask Kafka about its one instance."""

    def make(task, result, state="success", rendered=None):
        with metadata.new_dag("instances") as dag:
            dag.add_task(task)
        of_task = {task.task_id: rendered} if rendered else None
        run_id = metadata.add_run("instances", {task.task_id: result}, rendered=of_task, state=state)
        path = f"/api/dags/instances/runs/{run_id}/tasks/{task.task_id}/-1/now"
        return lambda: ask_in_time(connected, path)

    return make


def test_the_record_times_of_a_receipt(instance, make_topic, produce, new_group, broker, bootstrap_servers):
    topic, group = make_topic(4), new_group()
    times = {number: [SENT + 60_000 * at for at in range(10)] for number in range(3)}
    produce(topic, dict.fromkeys(range(3), 10), times)
    value = receipt(group, 1, 2) | {
        "before": {topic: {"0": 2, "1": 2, "2": 9}},
        "after": {topic: {"0": 7, "1": 7, "2": 10}},
        "logs": broker.log_ids([topic]).as_json(),
        "changed": 3,
    }
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    (deleted,) = admin.delete_records([ClientPartition(topic, 1, 5)]).values()
    deleted.result(30)
    ask = instance(CommitOffsetsOperator(task_id="commit", group_id=group, offsets={topic: {"0": 7}}), value)

    found = ask()

    at = [f"2023-11-14T22:{13 + number}:20Z" for number in range(10)]
    assert found["times"] == {"before": [at[2], "deleted", at[9]], "after": [at[7], at[7], "end"]}
    assert (found["problems"], found["wait"]) == ([], None)


def test_where_the_groups_of_a_move_are_now(instance, connected, make_topic, produce, new_group, broker):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 10, 1: 10})
    value = receipt(group, 1, 2) | {
        "before": {topic: {"0": 2, "1": None}},
        "after": {topic: {"0": 7, "1": 3}},
        "log_start": {topic: {"0": 0, "1": 0}},
        "log_end": {topic: {"0": 10, "1": 10}},
        "logs": broker.log_ids([topic]).as_json(),
        "changed": 2,
    }
    ask = instance(CommitOffsetsOperator(task_id="commit", group_id=group, offsets={topic: {"0": 7}}), value)

    def since(offsets, by=None):
        committed = {TopicPartition(topic, number): at for number, at in offsets.items()}
        broker.commit(group, committed, "" if by is None else by.text())
        connected.tab.state.live._answers._values.clear()
        return ask()["since"]

    assert since({0: 2})["state"] == "taken back"
    assert since({0: 7})["state"] == "in part"
    by = CommitMetadata(run="secret", tool="airflow-kafka-offsets group reset", at=1_767_225_600)
    assert since({1: 3}, by) == {
        "state": "in place",
        "tool": "airflow-kafka-offsets group reset",
        "at": "2026-01-01T00:00:00Z",
    }
    assert since({0: 8, 1: 4})["state"] == "moved on"


def test_the_progress_of_a_wait(instance, connected, make_topic, produce, new_group, broker):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 1_000})
    tp = TopicPartition(topic, 0)
    broker.commit(group, {tp: 100})
    began = {"version": 1, "position": "group", "target": {topic: {"0": 900}}, "remaining": 800}
    rendered = {"group_id": group, "target": "latest", "tolerance": 0, "kafka_config_id": "kafka_default"}
    gate = OffsetsReachedSensor(task_id="gate", group_id=group, target="latest", deferrable=True)
    ask = instance(gate, began, "deferred", rendered)

    polls, read, start = [], [], time.monotonic()
    # By the clock: under load the polls are not even.
    for _ in range(30):
        read.append(int(15 * (time.monotonic() - start)))
        broker.commit(group, {tp: 100 + read[-1]})
        time.sleep(0.3)
        connected.tab.state.live._answers._values.clear()
        polls.append(ask()["wait"])
        if polls[-1]["pace"]:
            break
    broker.commit(group, {tp: 900})
    connected.tab.state.live._answers._values.clear()
    over = ask()["wait"]

    assert [(poll["remaining"], poll["of"]) for poll in polls] == [(800 - number, 800) for number in read]
    assert len(polls) > ENOUGH
    assert polls[-1]["pace"].startswith(f"{read[-1]} of 800 read, ")
    assert (over["done"], over["remaining"], over["pace"]) == (True, 0, None)


def test_a_broker_that_is_away(connected, add_pipeline, new_group):
    dead: dict[str, Any] = {"kafka_config_id": "kafka_dead"}
    add_pipeline("dead", {"commit": receipt("dead", 1, 2, **dead)}, group_id="dead", **dead)
    read(connected, "dead")
    connected.tab.state.live._answers._values.clear()

    began = time.monotonic()
    response = connected.get(connected.address("dead", "now"))
    took = time.monotonic() - began
    moves = connected.moves("dead")

    found = response.json()
    assert took < 12
    assert found["error"]["message"] == "connection 'kafka_dead': the broker does not answer"
    assert found["error"]["since"] is not None
    assert (found.get("totals"), found["read_at"]) == (None, None)
    assert "127.0.0.1" not in response.text
    assert "hidden" not in response.text
    assert [move["moved_by"] for move in moves] == [1]


def test_a_broker_that_stops_leaves_the_last_reading(
    connected, add_pipeline, own_kafka, make_topic, produce, new_group, monkeypatch
):
    kafka, group = own_kafka(), new_group()
    topic = make_topic(1, on=kafka.bootstrap_servers)
    produce(topic, {0: 10}, on=kafka.bootstrap_servers)
    with OffsetsClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        client.commit(group, {TopicPartition(topic, 0): 4})
    extra = {"bootstrap.servers": kafka.bootstrap_servers}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_OWN", json.dumps({"conn_type": "kafka", "extra": extra}))
    connected.tab.state.live.close()
    add_pipeline("stops", group_id=group, topics=[topic], kafka_config_id="kafka_own")

    good = read(connected, "stops")
    kafka.stop()
    monkeypatch.setattr(connected.tab.state.live._answers, "_seconds", 0.0)
    began = time.monotonic()
    stale = connected.get(connected.address("stops", "now")).json()
    took = time.monotonic() - began

    assert good["error"] is None
    assert took < 12
    assert stale["error"]["message"] == "connection 'kafka_own': the broker does not answer"
    assert stale["read_at"] == good["read_at"]
    assert stale["error"]["since"] > good["read_at"]
    assert stale["partitions"] == good["partitions"]


def test_a_right_that_is_missing(
    connected, add_pipeline, secured_kafka, make_topic, produce, new_group, monkeypatch
):
    topic, group, hidden = make_topic(1, on=secured_kafka.plain), new_group(), new_group()
    produce(topic, {0: 3}, on=secured_kafka.plain)
    user = secured_kafka.user("tab", ("topic", topic, "Describe"), ("group", group, "Describe"))
    with OffsetsClient(secured_kafka.admin) as client:
        client.commit(group, {TopicPartition(topic, 0): 0})
    connection = json.dumps({"conn_type": "kafka", "extra": user})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SECURED", connection)
    connected.tab.state.live.close()
    names = {"topics": [topic], "kafka_config_id": "kafka_secured"}
    add_pipeline("some", group_id=group, **names)
    add_pipeline("none", group_id=hidden, **names)

    refused, some = read(connected, "none"), read(connected, "some")

    assert some["error"] is None
    assert refused["error"]["message"] == (
        "connection 'kafka_secured': the connection's user has no permission: grant it "
        "Describe on the group (Read includes it, and is needed to commit; Delete includes it, and is "
        "needed to delete)"
    )
    assert some["totals"]["lag"] == 3
    assert (some["totals"]["time_lag"], some["totals"]["headroom_state"]) == (None, "unknown")
    retention, times = sorted(some["problems"])
    assert times.startswith(f"the retention of topic {topic} is not known: ")
    assert retention.startswith(
        "the age of the unread records is not known: the connection's user has no permission: "
    )
    for text in (refused, some):
        assert secured_kafka.listeners["SASL_SSL"] not in json.dumps(text)
        assert user["sasl.username"] not in json.dumps(text)


@pytest.mark.long
def test_forty_pipelines_and_two_thousand_partitions(
    connected, metadata, make_topic, broker, new_group, capsys
):
    topic, prefix = make_topic(2_000), new_group()
    with metadata.new_dag("wide"):
        CommitOffsetsOperator(
            task_id="all", group_id=f"{prefix}-all", topics=[topic], offsets={topic: {"0": 1}}
        )
        for number in range(40):
            own = ",".join(map(str, range(number * 50, number * 50 + 50)))
            CommitOffsetsOperator(
                task_id=f"commit_{number}",
                group_id=f"{prefix}-{number:02}",
                topics=[f"{topic}:{own}"],
                offsets={topic: {"0": 1}},
            )
            broker.commit(
                f"{prefix}-{number:02}",
                {TopicPartition(topic, each): 0 for each in range(number * 50, number * 50 + 50)},
            )
    broker.commit(f"{prefix}-all", {TopicPartition(topic, each): 0 for each in range(2_000)})
    metadata.add_run("wide")
    pipelines = connected.get("/api/pipelines").json()["pipelines"]
    paths = [f"/api/dags/wide/pipelines/{each['key']}/now" for each in pipelines]
    wide = next(
        path for path, each in zip(paths, pipelines, strict=True) if each["groups"][0].endswith("-all")
    )
    read(connected, "wide")
    client = connected.client()

    def ask(path):
        began = time.perf_counter()
        response = client.get(f"/kafka-offsets{path}")
        return time.perf_counter() - began, response

    connected.tab.state.live._answers._values.clear()
    took, response = ask(wide)
    again, _ = ask(wide)
    connected.tab.state.live._answers._values.clear()
    began = time.perf_counter()
    with ThreadPoolExecutor(4) as page:
        answers = list(page.map(lambda path: ask(f"{path}?partitions=false"), paths))
    together = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n2,000 partitions: {len(response.content)} bytes, {took:.2f} s; again {again * 1000:.0f} ms")
        slowest = max(seconds for seconds, _ in answers)
        print(f"{len(paths)} pipelines, four at a time: {together:.2f} s, the slowest {slowest:.2f} s")

    assert len(response.json()["partitions"]["committed"]) == 2_000
    assert {answer.json()["error"] and answer.json()["error"]["message"] for _, answer in answers} == {None}
    assert len(answers) == 41
