"""A commit deletes the offsets of topics that its pipeline has left, and no others."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from written_query import Query

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition, committed_offsets
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.moves.deletion import plan_offset_deletion
from airflow_kafka_offsets.moves.write import delete_offsets
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

OTHER_ID = "aaaaaaaa-2222-3333-4444-555555555555"

pytestmark = pytest.mark.usefixtures("memory")
pytest.importorskip("kafka")


@pytest.fixture
def left(make_topic, produce):
    name = make_topic()
    produce(name, {0: 10})
    return name


@pytest.fixture
def kept(make_topic, produce):
    name = make_topic()
    produce(name, {0: 10})
    return name


@pytest.fixture
def group(new_group, broker, left, kept):
    name = new_group()
    broker.commit(name, {TopicPartition(left, 0): 4, TopicPartition(kept, 0): 5})
    return name


def commit(context, group, kept, **parameters):
    offsets = {kept: {"0": 6}}
    return CommitOffsetsOperator(task_id="commit", group_id=group, offsets=offsets, **parameters).execute(
        context
    )


def held(broker, group):
    return {tp.topic: commit.offset for tp, commit in broker.committed_everywhere(group).items()}


def test_the_offsets_of_a_left_topic_are_deleted_once(context, group, left, kept, broker):
    receipt = commit(context, group, kept, left_topics=left)
    assert receipt["left_topics"] == {group: {left: {"0": 4}}}
    assert held(broker, group) == {kept: 6}
    # As each later run, and each retry.
    assert commit(context, group, kept, left_topics=[left])["left_topics"] == {}
    assert "left_topics" not in commit(context, group, kept)


def test_a_group_that_does_not_exist_yet_has_nothing_to_delete(context, new_group, left, kept, broker):
    name = new_group()
    assert commit(context, name, kept, left_topics=left)["left_topics"] == {}
    assert held(broker, name) == {kept: 6}


@pytest.mark.parametrize(
    ("names", "text"), [("kept", "which the pipeline reads"), ("not-there", "not-there is not on the broker")]
)
def test_a_wrong_name_is_refused_with_nothing_changed(context, group, left, kept, broker, names, text):
    with pytest.raises(AirflowFailException, match=f"left_topics.*{text}|{text}.*left_topics"):
        commit(context, group, kept, left_topics=kept if names == "kept" else names)
    assert held(broker, group) == {left: 4, kept: 5}


def test_a_topic_of_which_the_commit_skips_a_partition_is_read(context, group, left, kept, broker):
    given = {kept: {"0": 6}, left: {"0": 11}}
    task = CommitOffsetsOperator(
        task_id="commit", group_id=group, left_topics=left, offsets=given, on_out_of_range="skip"
    )
    with pytest.raises(AirflowFailException, match=f"left_topics names {left}, which the pipeline reads"):
        task.execute(context)
    assert held(broker, group) == {left: 4, kept: 5}


def test_offsets_that_were_committed_since_the_plan_are_not_deleted(group, left, broker):
    before = committed_offsets(plan_offset_deletion(broker, group, TopicScope.parse(left)))
    broker.commit(group, {TopicPartition(left, 0): 5})
    saved = []
    with pytest.raises(PlanRefusedError, match="have changed since the plan was made"):
        delete_offsets(broker, group, before, saved.append)
    assert held(broker, group)[left] == 5
    assert not saved


def test_what_another_query_of_the_group_has_committed_is_not_deleted(
    context, group, left, kept, broker, tmp_path
):
    mine = Query(tmp_path / "mine")
    mine.run(0, {kept: {0: 6}})
    broker.commit(group, {TopicPartition(left, 0): 4}, CommitMetadata(query=OTHER_ID).text())
    names = {
        "task_id": "commit",
        "group_id": group,
        "checkpoint_location": mine.location,
        "left_topics": left,
    }
    with pytest.raises(AirflowFailException, match=f"left_topics: the last commit of .* on {left}-0 is of"):
        CommitOffsetsOperator(**names).execute(context)
    assert held(broker, group) == {left: 4, kept: 5}
    CommitOffsetsOperator(**names, allow_new_query=True).execute(context)
    assert held(broker, group) == {kept: 6}
