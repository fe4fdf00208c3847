"""The routes of the Offsets tab, in Airflow's own app."""

from typing import Any

import pytest
from offsets_receipts import receipt

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.ui import pages

pytestmark = pytest.mark.integration


@pytest.fixture
def orders(metadata):
    with metadata.new_dag("orders"):
        CommitOffsetsOperator(
            task_id="commit", group_id="orders", topics=["orders"], checkpoint_location="/data/orders"
        )
        ConsumerGroupLagSensor(task_id="wait", group_id="orders", topics=["orders"], max_lag=0)
    metadata.add_run("orders", {"commit": receipt("orders", 40, 60)}, run_id="manual__1")
    return "orders"


def test_lists_a_pipeline_once_with_its_tasks(browser, orders):
    found = browser.get("/api/pipelines").json()

    assert found["problems"] == []
    (pipeline,) = found["pipelines"]
    assert (pipeline["groups"], pipeline["topics"], pipeline["checkpoint"]) == (
        ["orders"],
        ["orders"],
        "/data/orders",
    )
    assert pipeline["tasks"] == ["commit", "wait"]


def test_a_drift_check_is_in_the_history(browser, metadata):
    names: dict[str, Any] = {
        "group_id": "orders",
        "topics": ["orders"],
        "checkpoint_location": "/data/orders",
    }
    with metadata.new_dag("looks"):
        CheckOffsetDriftOperator(task_id="drift", **names)
    report = {"version": 1, "drifted": False, "pipelines": [{**names, "groups": []}]}
    metadata.add_run("looks", {"drift": report})

    assert [move["kind"] for move in browser.moves("looks")] == ["drift"]


def test_an_installation_without_pipelines(browser, metadata):
    assert browser.get("/api/pipelines").json() == {"pipelines": [], "problems": []}
    assert browser.get("/api/dags/nothing/pipelines").json() == {"pipelines": [], "problems": []}
    assert browser.get("/api/dags/nothing/pipelines/0123/now").status_code == 404
    assert browser.get("/api/dags/nothing/pipelines/0123/history").status_code == 404
    assert browser.get("/api/dags/nothing/runs/r/tasks/t/-1").status_code == 404


def test_a_task_instance_with_its_receipt_and_the_command_that_takes_it_back(browser, orders):
    found = browser.get("/api/dags/orders/runs/manual__1/tasks/commit/-1").json()

    assert (found["operator"], found["state"]) == ("CommitOffsetsOperator", "success")
    assert found["receipt"]["partitions"]["before"] == [40]
    exceptions = {"skipped": 0, "clamped": 0, "lost": None}  # this receipt has none of these keys
    assert found["receipt"]["totals"] == {"partitions": 1, "moved_by": 20, "lag": 40, **exceptions}
    assert "\nairflow-kafka-offsets group restore " in found["restore_command"]
    assert browser.get("/api/dags/orders/runs/manual__1/tasks/wait/-1").json()["receipt"] is None


def test_the_command_that_takes_back_asks_the_cluster_of_that_run(browser, metadata):
    with metadata.new_dag("moved"):
        CommitOffsetsOperator(
            task_id="one", group_id="g", kafka_config_id="{{ params.cluster }}", offsets={"t": {"0": 1}}
        )
    for cluster in ("kafka_eu", "kafka_us"):
        left = {"one": receipt("g", 1, 2, kafka_config_id=cluster)}
        # As of a run whose rendered fields Airflow has dropped.
        metadata.add_run("moved", left, run_id=f"run-{cluster}", rendered={})

    def of(run):
        return browser.get(f"/api/dags/moved/runs/{run}/tasks/one/-1").json()

    assert "--kafka-config-id kafka_eu " in of("run-kafka_eu")["restore_command"]
    assert "--kafka-config-id kafka_us " in of("run-kafka_us")["restore_command"]
    # Offsets of two clusters are not one history.
    assert [move["run_id"] for move in browser.moves("moved")] == ["run-kafka_us"]


@pytest.fixture
def asked(browser, monkeypatch):
    """What is asked of the process that asks Kafka; it answers nothing."""
    from airflow_kafka_offsets.ui.live_client import Answer

    questions = []

    async def ask(question, names, **more):
        questions.append((question, names.get("kafka_config_id"), more))
        return Answer(error="the broker does not answer")

    monkeypatch.setattr(browser.tab.state.live, "ask", ask)
    return questions


def test_kafka_is_asked_about_what_a_task_instance_has_left(browser, metadata, asked):
    target = {"t": {"0": 900}}
    with metadata.new_dag("instances"):
        CommitOffsetsOperator(
            task_id="moved", group_id="g", kafka_config_id="{{ params.cluster }}", offsets={"t": {"0": 1}}
        )
        CommitOffsetsOperator(task_id="nowhere", group_id="g", offsets={"t": {"0": 1}})
        OffsetsReachedSensor(task_id="gate", group_id="g", target="latest")
        ConsumerGroupLagSensor(task_id="lag", group_id="g", max_lag=0)
    gate = {"group_id": "g", "target": "latest", "tolerance": 0}
    results = {
        "moved": receipt("g", 40, 60, kafka_config_id="kafka_eu"),
        "nowhere": receipt("g", 40, 60, kafka_config_id=None),
        "gate": {"version": 1, "position": "group", "target": target, "remaining": 800},
    }
    rendered = {"gate": gate}
    for state in ("deferred", "success"):
        metadata.add_run("instances", results, run_id=state, state=state, rendered=rendered)

    found = {
        (state, task): browser.get(f"/api/dags/instances/runs/{state}/tasks/{task}/-1/now").json()
        for state in ("deferred", "success")
        for task in ("moved", "nowhere", "gate", "lag")
    }

    questions = [(question, cluster) for question, cluster, _ in asked]
    assert questions == [("times", "kafka_eu"), ("wait", None), ("times", "kafka_eu")]
    (row,) = asked[0][2]["rows"]
    assert row[:5] == ("g", "orders", 0, 40, 60)
    assert asked[1][2]["parameters"]["target"] == target
    assert asked[1][2]["began"][1] == 800
    assert {key for key, each in found.items() if each["problems"]} == {
        ("deferred", "moved"),
        ("deferred", "gate"),
        ("success", "moved"),
    }
    assert all(each["times"] is each["wait"] is None for each in found.values())
    assert {each["state"] for each in found.values()} == {"deferred", "success"}
    assert browser.get("/api/dags/instances/runs/nothing/tasks/gate/-1/now").status_code == 404
    assert browser.get("/api/dags/instances/runs/success/tasks/gate/x/now").status_code == 404


def test_what_only_a_run_knows(browser, metadata):
    with metadata.new_dag("templates"):
        CommitOffsetsOperator(task_id="one", group_id="{{ params.group }}", offsets={"t": {"0": 1}})
        CommitOffsetsOperator.partial(task_id="all", offsets={"t": {"0": 1}}).expand(group_id=["a", "b"])

    before = browser.get("/api/dags/templates/pipelines").json()["pipelines"]
    old, new = ({"group_id": group, "kafka_config_id": "kafka_default"} for group in ("old", "new"))
    metadata.add_run("templates", {"one": receipt("old", 1, 2)}, rendered={"one": old})
    mapped = {("all", index): {"group_id": group} for index, group in enumerate("ab")}
    rendered: dict[Any, Any] = {"one": new, **mapped}
    metadata.add_run("templates", {("all", 1): receipt("b", 1, 2)}, rendered=rendered)
    # A run of which an upstream task of one index has failed.
    run_id = metadata.add_run(
        "templates", rendered={"one": new, ("all", 0): mapped["all", 0], ("all", 1): {}}
    )
    metadata.set_state("upstream_failed", run_id, "all", 1)
    after = browser.get("/api/dags/templates/pipelines").json()["pipelines"]

    assert [(each["groups"], each["unresolved"]) for each in before] == [([], ["group_id"])]
    assert before[0]["tasks"] == ["all", "one"]
    assert before[0]["not_run"]
    assert [each["groups"] for each in after] == [["a"], ["b"], ["new"]]


def test_receipts_name_what_airflow_no_longer_has_rendered(browser, metadata):
    with metadata.new_dag("purged"):
        CommitOffsetsOperator(task_id="one", group_id="{{ params.group }}", offsets={"t": {"0": 1}})
    metadata.add_run("purged", {"one": receipt("g", 1, 2, kafka_config_id="kafka_eu")}, rendered={})

    (pipeline,) = browser.get("/api/dags/purged/pipelines").json()["pipelines"]

    assert (pipeline["groups"], pipeline["kafka_config_id"]) == (["g"], "kafka_eu")


def test_a_task_that_has_run_and_left_nothing_is_not_called_one_that_has_not_run(browser, metadata):
    with metadata.new_dag("purged"):
        ConsumerGroupLagSensor(task_id="one", group_id="g", max_lag=0)
    metadata.add_run("purged", rendered={})

    (pipeline,) = browser.get("/api/dags/purged/pipelines").json()["pipelines"]

    assert (pipeline["unresolved"], pipeline["not_run"]) == (["group_id"], False)


def test_a_drift_check_of_which_airflow_keeps_only_a_part_of_the_names(browser, metadata, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__MAX_TEMPLATED_FIELD_LENGTH", "200")
    names = [{"group_id": f"group-{number}", "checkpoint_location": f"/data/{number}"} for number in range(9)]
    with metadata.new_dag("forty"):
        CheckOffsetDriftOperator(task_id="drift", pipelines=names)

    def pipelines():
        found = browser.get("/api/dags/forty/pipelines").json()["pipelines"]
        return [(each["groups"], each["unresolved"]) for each in found]

    before = pipelines()
    cut = "Truncated. You can change this behaviour in [core]max_templated_field_length. [{'group_id': 'g"
    report = {"version": 1, "drifted": False, "pipelines": [{**each, "groups": []} for each in names]}
    metadata.add_run("forty", {"drift": report}, rendered={"drift": {"pipelines": cut}})

    assert before == [([], ["group_id"])]
    assert pipelines() == [([each["group_id"]], []) for each in names]


def test_the_newest_version_of_a_dag_counts(browser, metadata):
    at = {"t": {"0": 1}}
    for group, make in (
        ("old", lambda: CommitOffsetsOperator(task_id="one", group_id="old", offsets=at)),
        ("new", lambda: ResetOffsetsOperator(task_id="one", group_id="new", to_offset=at)),
        ("new", lambda: CommitOffsetsOperator(task_id="one", group_id="new", offsets=at)),
    ):
        with metadata.new_dag("changing"):
            make()
        metadata.add_run("changing", {"one": receipt(group, 1, 2)})

    (pipeline,) = browser.get("/api/dags/changing/pipelines").json()["pipelines"]

    assert pipeline["groups"] == ["new"]
    # Each move is of the kind that the task was then.
    assert [move["kind"] for move in browser.moves("changing")] == ["reset", "commit"]


def test_values_of_other_operators_and_broken_ones_are_not_moves(browser, metadata, orders):
    metadata.add_run("orders", {"commit": {"version": 1, "changed": 1, "after": {"t": {"x": 1}}}})
    metadata.add_run("orders", {"commit": ["anything"]})

    assert [move["run_id"] for move in browser.moves("orders")] == ["manual__1"]


def test_below_a_sub_path(start_browser, orders):
    browser = start_browser("http://testserver/team/air")
    try:
        listed = browser.get("/api/pipelines").json()["pipelines"]
        page = browser.get("/dags/orders")
        views = browser.get("/static/offsets.css").status_code
        (tab,) = (
            plugin
            for plugin in browser.client().get("/team/air/api/v2/plugins").json().get("plugins", [])
            if plugin["name"] == "kafka_offsets"
        )
    finally:
        start_browser()
    assert len(listed) == 1
    assert page.status_code == 200
    assert views in (200, 404)
    assert {view["destination"]: view["href"] for view in tab["external_views"]} == {
        "nav": "/team/air/kafka-offsets/",
        "dag": "/team/air/kafka-offsets/dags/{DAG_ID}",
        "task_instance": "/team/air/kafka-offsets/dags/{DAG_ID}/runs/{RUN_ID}/tasks/{TASK_ID}/{MAP_INDEX}",
    }


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/", "./"),
        ("/dags/orders", "../"),
        ("/dags/orders/runs/manual__1/tasks/commit/-1", "../../../../../../"),
        ("/dags/orders/runs/a%2Fb/tasks/commit/%7BMAP_INDEX%7D", "../../../../../../"),
    ],
)
def test_pages_find_their_files_from_wherever_they_are(browser, orders, monkeypatch, path, root):
    shell = (b"<script src='{root}static/x.js'></script>", "text/html")
    monkeypatch.setattr(pages, "files", lambda: {pages.SHELL: shell})

    response = browser.get(path)

    assert response.text == f"<script src='{root}static/x.js'></script>"
    assert response.headers["content-type"].startswith("text/html")


def test_no_browser_keeps_a_file_beyond_an_upgrade(browser, database):
    found = browser.get("/static/data.js")

    assert found.headers["content-type"].startswith("text/javascript")
    assert found.headers["cache-control"] == "no-store"
