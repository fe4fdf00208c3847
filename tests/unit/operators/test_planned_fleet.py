"""The example that moves many pipelines: what its last tasks check, in whichever order tasks are cleared."""

import re
import runpy
from typing import Any

import pytest
import yaml
from airflow.providers.common.compat.sdk import AirflowFailException
from fleet_example import EXAMPLE
from written_query import Query

from airflow_kafka_offsets.model.approval import approve_option, digest_of_all
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")

READ, TO = 8, 5


class Fleet:
    """A run of the example on queries that have read 8 of 10 records; one record is written each second."""

    def __init__(self, root, topic, client, context):
        self.root, self.topic, self.client, self.context = root, topic, client, context
        self.queries = {name: Query(root / name) for name in "abc"}
        for name, query in self.queries.items():
            query.run(0, {topic: {0: READ}})
            client.commit(name, {TopicPartition(topic, 0): READ})
        (root / EXAMPLE.name).write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
        self.list("abc")
        self.plans, self.approval = [], {}

    def list(self, names):
        """Write the file of the pipelines."""
        entries = [{"group_id": name, "checkpoint_location": self.queries[name].location} for name in names]
        (self.root / "pipelines.yaml").write_text(yaml.safe_dump(entries), encoding="utf-8")

    def task(self, name) -> Any:
        """Return a task of the DAG; each task reads the file of the DAG again."""
        return runpy.run_path(str(self.root / EXAMPLE.name))["dag"].get_task(name)

    def airflow(self, name, index=-1):
        """Return Airflow's context of a task, in which the plan can be pulled."""
        ti = type(self.context["ti"])()
        ti.task_id, ti.map_index, ti.task = name, index, None
        ti.xcom_pull = lambda **_: self.plans
        run = type("Run", (), {"triggering_user_name": "ada", "start_date": None, "clear_number": 0})
        return {"ti": ti, "params": {"to_datetime": "1970-01-01T00:00:05Z"}, "dag_run": run}

    def plan(self):
        task = self.task("plan")
        task.render_template_fields(self.airflow("plan"))
        self.plans = task.execute(self.airflow("plan"))

    def approve(self):
        digests = [plan["digest"] for plan in self.plans]
        self.approval = {
            "chosen_options": [approve_option(digest_of_all(digests))],
            "responded_by_user": {"id": "bob", "name": "bob"},
            "digests": digests,
        }

    def reset(self, *indexes):
        for index in indexes:
            task = self.task("reset").unmap({"plan": self.plans[index]})
            task.approval, task.quiet_period = self.approval, 0
            self.receipt = task.execute(self.airflow("reset", index))

    def read_on(self, name, to):
        self.queries[name].run(1, {self.topic: {0: to}})
        self.client.commit(name, {TopicPartition(self.topic, 0): to})

    def check(self):
        task, context = self.task("check"), self.airflow("check")
        task.render_template_fields(context)
        return [each["group_id"] for each in task.execute(context)["pipelines"]]

    def waits(self):
        """Return the pipelines for which the run waits."""
        found = self.task("wait")._get_specified_expand_input().value
        resolve = getattr(found, "resolve", lambda _: found)
        return [self.task("wait").unmap(each).group_id for each in resolve(self.airflow("wait"))]


@pytest.fixture
def fleet(tmp_path, make_topic, produce, client, context):
    topic = make_topic(1)
    produce(topic, {0: 10}, {0: [each * 1000 for each in range(10)]})
    found = Fleet(tmp_path, topic, client, context)
    found.plan()
    found.approve()
    return found


def test_a_pipeline_that_is_no_longer_in_the_file_is_checked_and_waited_for_as_planned(fleet):
    fleet.list("ac")
    fleet.reset(0, 1, 2)
    assert fleet.queries["b"].stands() == {0: TO}
    assert fleet.check() == fleet.waits() == ["a", "b", "c"]


def test_a_planned_pipeline_that_was_not_moved_is_no_success(fleet):
    """As after an index that was refused, and then marked as a success."""
    fleet.reset(0, 2)
    with pytest.raises(AirflowFailException, match=r"(?s)1 of 3 pipelines.*group 'b' .*'not moved'") as error:
        fleet.check()
    assert fleet.plans[1]["digest"][:8] in str(error.value)
    fleet.reset(1)
    assert fleet.check() == ["a", "b", "c"]


def test_indexes_that_have_another_plan_after_the_list_was_changed_are_found(fleet):
    """Only the indexes that had failed, the plan and its approval were cleared: the others moved a and c."""
    fleet.reset(0, 2)
    fleet.list("bc")
    fleet.plan()
    fleet.approve()
    with pytest.raises(AirflowFailException, match=r"(?s)1 of 2 pipelines.*group 'b' .*'not moved'"):
        fleet.check()


def test_a_plan_that_was_made_again_is_not_applied_with_the_approval_of_the_first_one(fleet):
    fleet.reset(0)
    fleet.plan()
    # That of pipeline a is another one: it is there already.
    with pytest.raises(AirflowFailException, match="the approval is for another plan"):
        fleet.reset(0)
    fleet.reset(1, 2)
    assert fleet.check() == ["a", "b", "c"]


def test_while_the_plan_is_made_again_nothing_is_approved_moved_or_checked(fleet):
    """Airflow deletes the result of a task that runs again."""
    old, fleet.plans = fleet.plans, None
    approve, context = fleet.task("approve"), fleet.airflow("approve")
    approve.render_template_fields(context)
    option = approve_option(digest_of_all([plan["digest"] for plan in old]))
    with pytest.raises(AirflowFailException, match="plan: found None; expected a plan"):
        approve.execute_complete(context, {"chosen_options": [option], "params_input": {}})
    with pytest.raises(AirflowFailException, match="pipelines"):
        fleet.check()
    fleet.plans = [None]
    with pytest.raises(AirflowFailException, match="plan"):
        fleet.reset(0)
    assert fleet.queries["a"].stands() == {0: READ}


def test_a_moved_pipeline_may_have_read_on_but_one_that_was_not_moved_may_not(fleet):
    fleet.reset(0, 2)
    for name in fleet.queries:
        fleet.read_on(name, 10)
    with pytest.raises(AirflowFailException, match=r"(?s)1 of 3 pipelines.*group 'b' .*'read on'"):
        fleet.check()


@pytest.mark.parametrize("names", ["a", "abc"])
def test_a_moved_pipeline_that_has_read_on_to_where_it_was_before_the_plan_has_moved(fleet, names):
    fleet.reset(0, 1, 2)
    for name in names:
        fleet.read_on(name, READ)
    assert fleet.check() == ["a", "b", "c"]


def test_a_pipeline_that_was_where_the_plan_moves_it_may_read_on(fleet):
    fleet.reset(0, 1, 2)
    fleet.plan()
    fleet.approve()
    fleet.reset(0, 1, 2)
    fleet.read_on("a", 10)
    assert fleet.check() == ["a", "b", "c"]


def test_a_pipeline_that_another_move_or_another_tool_has_moved_back_is_found(fleet):
    fleet.reset(0, 1, 2)
    restore = RestoreOffsetsOperator(task_id="restore", receipt=fleet.receipt, restore_when="always")
    restore.quiet_period = 0
    restore.execute(fleet.airflow("restore"))
    fleet.read_on("c", 10)
    names = {"group_id": "a", "checkpoint_location": fleet.queries["a"].location}
    back = ResetOffsetsOperator(task_id="back", **names, to_offset=READ, quiet_period=0)
    back.execute(fleet.airflow("back"))
    fleet.client.commit("b", {TopicPartition(fleet.topic, 0): READ})
    with pytest.raises(AirflowFailException, match="3 of 3 pipelines") as error:
        fleet.check()
    assert re.findall("found '(.*?)'", str(error.value)) == ["not moved", "moved in part", "read on"]
