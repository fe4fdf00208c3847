"""A reset to the offsets that another group of the cluster has committed."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")

ENDS = {0: 10, 1: 4}
BLUE = {0: 8, 1: 3}


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic(2)
    produce(name, ENDS)
    return name


@pytest.fixture
def blue(topic, new_group, commit):
    name = new_group()
    commit(name, topic, BLUE)
    return name


def reset(context, **parameters):
    return ResetOffsetsOperator(task_id="reset", **parameters).execute(context)


def test_a_new_group_takes_over_from_another_one(topic, blue, new_group, committed, context):
    green = new_group()
    receipt = reset(context, group_id=green, to_group=blue)
    assert committed(green, topic) == committed(blue, topic) == BLUE
    assert (receipt["source"], receipt["verified"]) == ({"to_group": blue}, True)
    assert receipt["before"] == {topic: {"0": None, "1": None}}


def test_topics_limits_what_is_taken_over(topic, blue, new_group, commit, committed, context):
    green = new_group()
    commit(green, topic, {0: 1, 1: 1})
    reset(context, group_id=green, to_group=blue, topics=f"{topic}:1")
    assert committed(green, topic) == {0: 1, 1: 3}


@pytest.mark.parametrize(
    ("policy", "after"), [("earliest", {0: 8, 1: 0}), ("latest", {0: 8, 1: 4}), ("skip", {0: 8, 1: 2})]
)
def test_a_partition_that_the_other_group_lacks_goes_where_on_no_commit_says(
    policy, after, topic, new_group, commit, committed, context
):
    green, blue = new_group(), new_group()
    commit(green, topic, {0: 1, 1: 2})
    commit(blue, topic, {0: 8})
    with pytest.raises(AirflowFailException, match=f"{topic}-1 has no committed offset to go to: .* on_no_c"):
        reset(context, group_id=green, to_group=blue)
    assert committed(green, topic) == {0: 1, 1: 2}
    reset(context, group_id=green, to_group=blue, on_no_commit=policy)
    assert committed(green, topic) == after


def test_a_group_without_commits_and_the_group_itself_are_refused(topic, blue, new_group, committed, context):
    nobody = new_group()
    for topics in (None, topic):
        with pytest.raises(AirflowFailException, match=f"to_group='{nobody}' has no committed offsets there"):
            reset(context, group_id=blue, to_group=nobody, topics=topics, on_no_commit="earliest")
    with pytest.raises(AirflowFailException, match=f"to_group='{blue}' is the group that moves"):
        reset(context, group_id=blue, to_group=blue)
    assert committed(blue, topic) == BLUE


def test_commits_from_before_a_topic_was_created_again_are_refused(
    topic, new_group, broker, committed, recreate, produce, context
):
    blue, green = new_group(), new_group()
    partition = TopicPartition(topic, 0)
    # A commit of this package names the topic's id.
    CommitOffsetsOperator(task_id="c", group_id=blue, offsets={topic: {"0": 2}}).execute({})
    (made,) = broker.committed(blue, [partition]).values()
    recreate(topic, 2)
    produce(topic, ENDS)
    # Kafka forgets the commits of a topic that is deleted, unless somebody makes them again.
    broker.commit(blue, {partition: 2}, made.metadata)
    with pytest.raises(AirflowFailException, match=f"the last commit of group '{blue}'"):
        reset(context, group_id=green, to_group=blue, topics=f"{topic}:0")
    reset(context, group_id=green, to_group=blue, topics=f"{topic}:0", allow_new_cluster=True)
    assert committed(green, topic) == {0: 2}


def test_a_retry_stays_where_the_other_group_was(topic, blue, new_group, commit, committed, context):
    green = new_group()
    context["dag_run"] = None
    reset(context, group_id=green, to_group=blue)
    commit(blue, topic, ENDS)
    reset(context, group_id=green, to_group=blue)
    assert committed(green, topic) == BLUE


def test_a_checkpoint_moves_with_its_group(topic, blue, new_group, new_query, committed, context):
    green, query = new_group(), new_query({topic: ENDS})
    query.run(2, {topic: ENDS})
    receipt = reset(
        context, group_id=green, to_group=blue, checkpoint_location=query.location, quiet_period=0
    )
    assert query.stands() == committed(green, topic) == BLUE
    assert receipt["source"]["to_group"] == blue
    assert receipt["checkpoint"]["after"] == {"0": {topic: {"0": 8, "1": 3}}}
