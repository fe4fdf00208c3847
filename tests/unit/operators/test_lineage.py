"""What the operators tell the OpenLineage provider, asked as the provider asks."""

import socket

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from openlineage.client.serde import Serde
from openlineage_schemas import check_event

from airflow_kafka_offsets.errors import GroupActiveError
from airflow_kafka_offsets.model.lineage import LAG, MOVE, RANGES
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")


class Told:
    """An event with what a task tells, checked against the published schemas."""

    def __init__(self, lineage):
        found = Serde.to_dict(lineage)
        assert found["outputs"] == []
        self.keys = check_event({"run": {"facets": found["run_facets"]}, "inputs": found["inputs"]})
        self.inputs = {(each["namespace"], each["name"]): each["inputFacets"] for each in found["inputs"]}
        self.move = found["run_facets"].get(MOVE)
        self.lag = found["run_facets"].get(LAG)

    def part(self, topic):
        """The only group's part of a topic, and the rows of the standard facet."""
        (facets,) = (each for (_, name), each in self.inputs.items() if name == topic)
        (part,) = facets[RANGES]["groups"]
        return part, facets.get("inputStatistics", {}).get("rowCount")


@pytest.fixture
def ask(monkeypatch):
    """ask(task) -> what it tells once it has ended; it may open no connection for that."""
    # Each process of a test run collects this file, and the provider takes half a second.
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    def told(task, *, failed=False):
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", None)
            patch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
            extractor = DefaultExtractor(task)
            ask = extractor.extract_on_failure if failed else extractor.extract_on_complete
            lineage = ask(None)
        assert isinstance(lineage, OperatorLineage)
        return Told(lineage)

    return told


def ranges(part):
    return [(entry["partition"], entry.get("from"), entry["until"]) for entry in part["ranges"]]


def test_a_commit_of_a_checkpoint_tells_what_was_read(
    topic, new_group, new_query, commit, context, ask, bootstrap_servers
):
    group, query = new_group(), new_query({topic: {0: 8, 1: 6}})
    commit(group, topic, {0: 5, 1: 6})
    task = CommitOffsetsOperator(task_id="commit", group_id=group, checkpoint_location=query.location)
    task.execute(context)
    told = ask(task)
    assert told.keys == {RANGES, MOVE, LAG}
    assert [*told.inputs] == [(f"kafka://{bootstrap_servers}", topic)]
    part, rows = told.part(topic)
    assert (part["state"], rows, ranges(part)) == ("written", 3, [(0, 5, 8), (1, 6, 6)])
    assert told.move["verified"] is True
    assert told.move["checkpointLocation"] == context["ti"].xcoms["return_value"]["source"]["checkpoint"]
    assert told.lag["groups"] == [{"groupId": group, "topics": [{"topic": topic, "lag": 2}]}]


def test_offsets_that_were_given_say_nothing_of_what_was_read(topic, new_group, commit, context, ask):
    group = new_group()
    commit(group, topic, {0: 5})
    task = CommitOffsetsOperator(task_id="commit", group_id=group, offsets={topic: {"0": 8}})
    task.execute(context)
    told = ask(task)
    assert told.keys == {RANGES, MOVE}
    assert told.part(topic)[1] is None


def test_a_refused_commit_tells_that_nothing_was_written(topic, new_group, context, ask):
    task = CommitOffsetsOperator(task_id="commit", group_id=new_group(), offsets={topic: {"0": 99}})
    with pytest.raises(AirflowException, match="outside its log"):
        task.execute(context)
    told = ask(task, failed=True)
    part, rows = told.part(topic)
    assert (part["state"], rows, ranges(part)) == ("not written", None, [(0, None, 99)])
    assert (told.move["verified"], told.move["groups"][0]["written"]) == (False, "none")
    assert LAG not in told.keys


def test_a_commit_that_stops_between_two_groups_tells_which_was_written(
    make_topic, produce, new_group, member, context, ask
):
    first, second = sorted([make_topic(1), make_topic(1)])
    for name in (first, second):
        produce(name, {0: 5})
    groups = {first: new_group(), second: new_group()}
    member(groups[second], second)
    task = CommitOffsetsOperator(
        task_id="commit", group_id=groups, offsets={first: {"0": 3}, second: {"0": 3}}
    )
    with pytest.raises((AirflowException, GroupActiveError), match="written before: group"):
        task.execute(context)
    told = ask(task, failed=True)
    assert {group["groupId"]: group["written"] for group in told.move["groups"]} == {
        groups[first]: "all",
        groups[second]: "unknown",
    }
    assert told.part(first)[0]["state"] == "written"
    assert told.part(second)[0]["state"] == "unknown"


def test_a_second_run_in_the_same_process_does_not_tell_what_the_first_did(topic, new_group, context, ask):
    task = CommitOffsetsOperator(task_id="commit", group_id=new_group(), offsets={topic: {"0": 8}})
    task.execute(context)
    task.offsets = {"none.such": {"0": 1}}
    with pytest.raises(AirflowException):
        task.execute(context)
    assert ask(task, failed=True).keys == set()


def test_a_reset_and_its_restore_tell_both_moves(topic, new_group, commit, context, ask):
    group = new_group()
    commit(group, topic, {0: 8, 1: 6})
    reset = ResetOffsetsOperator(task_id="reset", group_id=group, topics=topic, to_offset="earliest")
    receipt = reset.execute(context)
    told = ask(reset)
    part, rows = told.part(topic)
    assert (part["offsetDifference"], rows, ranges(part)) == (-14, None, [(0, 8, 0), (1, 6, 0)])
    assert (told.keys, told.move["operation"]) == ({RANGES, MOVE}, "reset")
    restore = RestoreOffsetsOperator(
        task_id="restore", group_id=group, receipt=receipt, restore_when="always"
    )
    restore.execute(context)
    told = ask(restore)
    assert (told.move["operation"], ranges(told.part(topic)[0])) == ("restore", [(0, 0, 8), (1, 0, 6)])


def test_a_window_has_the_same_digest_where_it_is_planned_and_committed(
    topic, new_group, commit, context, ask
):
    group = new_group()
    commit(group, topic, {0: 5, 1: 2})
    plan = PlanOffsetWindowOperator(task_id="plan", group_id=group, topics=topic)
    window = plan.execute(context)
    planned = ask(plan)
    part, rows = planned.part(topic)
    assert (part["state"], part["offsetDifference"], rows) == ("planned", 9, None)
    done = CommitOffsetWindowOperator(task_id="commit", group_id=group, window=window, fenced=False)
    done.execute(context)
    told = ask(done)
    assert told.move["digest"] == planned.move["digest"]
    assert told.part(topic) == ({**part, "state": "written"}, 9)


def test_a_drift_check_tells_what_waits_also_when_it_fails(topic, new_group, new_query, commit, context, ask):
    group, query = new_group(), new_query({topic: {0: 8, 1: 6}})
    commit(group, topic, {0: 5, 1: 6})
    task = CheckOffsetDriftOperator(task_id="check", group_id=group, checkpoint_location=query.location)
    with pytest.raises(AirflowException, match="group behind"):
        task.execute(context)
    told = ask(task, failed=True)
    part, rows = told.part(topic)
    assert (part["state"], part["offsetDifference"], rows) == ("waiting", 5, None)
    assert ranges(part) == [(0, 5, 10), (1, 6, 6)]
    (lag,) = told.lag["groups"]
    assert (lag["drifted"], lag["topics"]) == (True, [{"topic": topic, "lag": 5}])
    assert told.keys == {RANGES, LAG}
