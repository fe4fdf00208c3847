"""A reset of a pipeline to the end of a batch of its checkpoint."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from airflow_task import new_run, reset

from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")

FIRST = {0: 5, 1: 2}
READ = {0: 8, 1: 3}
ENDS = {0: 10, 1: 4}


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic(2)
    produce(name, ENDS)
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, READ)
    return name


@pytest.fixture
def query(topic, new_query):
    """A query that was stopped after batch 3; batch 0 ended at 0, batch 1 at FIRST, batch 2 at READ."""
    query = new_query({topic: FIRST})
    query.run(2, {topic: READ})
    query.run(3, {topic: ENDS})
    return query


def test_the_batch_may_come_from_a_template(topic, group, query, committed, context):
    with DAG("flights"):
        task = ResetOffsetsOperator(
            task_id="reset",
            group_id=group,
            checkpoint_location=query.location,
            quiet_period=0,
            to_batch="{{ batch }}",
            to_offset="{{ nothing }}",
        )
    task.render_template_fields({"batch": 2, "nothing": None, "ti": context["ti"]})
    task.execute(context)
    assert query.stands() == committed(group, topic) == READ


def test_both_move_to_the_end_of_the_batch_also_in_a_retry_and_a_clear(
    topic, group, query, committed, context
):
    receipt = reset(context, query, group, to_batch=1)
    assert (receipt["source"]["to_batch"], receipt["verified"]) == (1, True)
    assert receipt["checkpoint"]["before"] == {"0": {topic: {"0": 10, "1": 4}}}
    assert reset(context, query, group, to_batch=1)["before"] == {topic: {"0": 8, "1": 3}}
    assert query.stands() == committed(group, topic) == FIRST
    query.run(4, {topic: {0: 9, 1: 4}})
    new_run(context)
    reset(context, query, group, to_batch=1)
    assert query.stands() == committed(group, topic) == FIRST


def test_a_task_is_not_led_to_the_batch_that_it_has_rewritten_itself(topic, group, query, committed, context):
    reset(context, query, group, to_batch=1)
    with pytest.raises(AirflowFailException, match="has already moved the checkpoint with other parameters"):
        reset(context, query, group, to_batch=3)
    reset(context, query, group, to_batch=2)
    assert query.stands() == committed(group, topic) == READ


def test_the_end_of_a_batch_that_a_move_has_rewritten_is_where_it_led(
    topic, group, query, committed, context
):
    reset(context, query, group, to_batch=1)
    query.run(4, {topic: {0: 9, 1: 4}})
    new_run(context)
    reset(context, query, group, to_batch=3)
    assert query.stands() == committed(group, topic) == FIRST


def test_each_of_two_sources_of_one_topic_moves_to_its_own_end(
    topic, new_group, new_query, committed, context
):
    query = new_query({topic: {0: 5}}, {topic: {0: 2}})
    query.run(2, {topic: {0: 8}}, {topic: {0: 6}})
    groups = {"source:0": new_group(), "source:1": new_group()}
    receipt = reset(context, query, groups, to_batch=1)
    assert [query.stands(source) for source in "01"] == [{0: 5}, {0: 2}]
    assert [committed(name, topic) for name in groups.values()] == [{0: 5}, {0: 2}]
    assert [part["source"]["to_batch"] for part in receipt["groups"]] == [1, 1]


def test_a_partition_that_was_added_later_is_refused_unless_it_is_left_out(
    topic, new_group, new_query, committed, context
):
    query, group = new_query({topic: {0: 5}}), new_group()
    query.run(2, {topic: READ})
    before = query.files()
    with pytest.raises(
        AirflowFailException, match=rf"batch 1 has no offset for {topic}-1, .* leave it out with topics="
    ):
        reset(context, query, group, to_batch=1)
    assert (query.files(), committed(group, topic)) == (before, {})
    reset(context, query, group, to_batch=1, topics=f"{topic}:0")
    assert (query.stands(), committed(group, topic)) == ({0: 5, 1: 3}, {0: 5})


def test_topics_of_the_batch_that_the_query_does_not_read_any_more_are_passed_over(
    topic, group, new_query, committed, context
):
    query = new_query({topic: FIRST, "deleted": {0: 4}})
    query.run(2, {topic: READ})
    reset(context, query, group, to_batch=1)
    assert query.stands() == committed(group, topic) == FIRST


def test_what_retention_has_deleted_is_for_on_out_of_range(
    topic, group, query, committed, context, delete_records
):
    delete_records(topic, {0: 7})
    before = query.files()
    with pytest.raises(AirflowFailException, match=f"offset 5 of {topic}-0 is outside its log"):
        reset(context, query, group, to_batch=1)
    assert (query.files(), committed(group, topic)) == (before, READ)
    new_run(context)
    reset(context, query, group, to_batch=1, on_out_of_range="clamp")
    assert query.stands() == committed(group, topic) == {0: 7, 1: 2}


# Many pipelines.


def test_each_pipeline_is_planned_to_the_end_of_its_own_batch(topic, group, query, context):
    pipelines = [{"group_id": group, "checkpoint_location": query.location}]
    (plan,) = PlanResetsOperator(task_id="plans", pipelines=pipelines, to_batch=1).execute(context)
    assert plan["after"] == {topic: {"0": 5, "1": 2}}


def test_a_pipeline_without_a_checkpoint_has_no_batch(topic, group, query, context):
    pipelines = [
        {"group_id": group, "checkpoint_location": query.location},
        {"group_id": "h", "topics": topic},
    ]
    with pytest.raises(AirflowFailException, match="group h: checkpoint_location is missing: to_batch is a"):
        PlanResetsOperator(task_id="plans", pipelines=pipelines, to_batch=1).execute(context)


def test_the_reasons_of_each_pipeline_say_once_that_nothing_was_changed(topic, group, context):
    pipelines = [{"group_id": group, "topics": topic}]
    with pytest.raises(AirflowFailException) as refused:
        PlanResetsOperator(task_id="plans", pipelines=pipelines, to_offset=99).execute(context)
    first = f"nothing was changed: \n  - group {group}: offset 99 of {topic}-0 is outside its log"
    assert str(refused.value).startswith(first)
    assert f"\n  - group {group}: offset 99 of {topic}-1 is outside its log" in str(refused.value)
