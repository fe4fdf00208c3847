"""The tasks that drift's remedies name put a group and its checkpoint at the same offsets again."""

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.usefixtures("memory")

READ = {0: 7, 1: 4}


@pytest.fixture
def query(topic, new_query):
    return new_query({topic: READ})


@pytest.fixture
def orders(query, new_group):
    return KafkaPipeline(group_id=new_group(), checkpoint_location=query.location)


def drift(orders):
    """The verdicts of the group, and what to do about them."""
    report = CheckOffsetDriftOperator(task_id="check", on_drift="warn", **orders).execute({})
    (group,) = report["pipelines"][0]["groups"]
    return set(group["verdicts"]), group["remedies"]


@pytest.mark.parametrize(
    ("verdict", "group"), [("group behind", {0: 5, 1: 4}), ("group ahead", {0: 9, 1: 4})]
)
@pytest.mark.parametrize("moves", ["group", "checkpoint"])
def test_the_named_task_realigns(verdict, group, moves, orders, topic, query, commit, committed, context):
    commit(orders.group_id, topic, group)
    verdicts, remedies = drift(orders)
    assert verdict in verdicts
    said = remedies[verdict]
    if moves == "checkpoint":
        assert "ResetOffsetsOperator with to_offset='committed' moves the checkpoint to the group" in said
        ResetOffsetsOperator(task_id="reset", to_offset="committed", quiet_period=0, **orders).execute(
            context
        )
    elif verdict == "group ahead":
        assert "CommitOffsetsOperator with allow_rewind=True moves the group back to the checkpoint" in said
        CommitOffsetsOperator(task_id="commit", allow_rewind=True, **orders).execute(context)
    else:
        assert "CommitOffsetsOperator moves the group to the checkpoint" in said
        CommitOffsetsOperator(task_id="commit", **orders).execute(context)
    assert drift(orders)[0] == {"in step"}
    assert query.stands() == committed(orders.group_id, topic) == (READ if moves == "group" else group)


def test_the_command_line_names_its_commands(orders, topic, commit, cli, bootstrap_servers):
    commit(orders.group_id, topic, {0: 9, 1: 3})
    names = (orders.checkpoint_location, orders.group_id, "--bootstrap-server", bootstrap_servers)
    done = cli("drift", *names, "--output", "json")
    (report,) = json.loads(done.out)["groups"]
    for verdict in ("group ahead", "group behind"):
        said = report["remedies"][verdict]
        assert "'airflow-kafka-offsets group reset' with --to-current moves the checkpoint" in said
        assert "'airflow-kafka-offsets group commit'" in said
        assert "Operator" not in said
    assert "--allow-rewind" in report["remedies"]["group ahead"]


@pytest.mark.parametrize("own", [True, False])
def test_a_checkpoint_follows_a_group_that_another_tool_has_translated(
    own, topic, new_query, new_group, broker, committed, context
):
    # The checkpoint counts on the cluster that the pipeline has left, and the tool has copied the commits.
    query = new_query({topic: {0: 5_000, 1: 7_000}})
    translated = new_group()
    copied = CommitMetadata(dag="orders", cluster="the-old-cluster").text()
    broker.commit(translated, {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 4}, copied)
    # Cluster Linking and MirrorMaker keep the group's name; another tool may not.
    group = translated if own else new_group()
    target = {"to_offset": "committed"} if own else {"to_group": translated}
    wanted = {"group_id": group, "checkpoint_location": query.location, "quiet_period": 0, **target}
    with pytest.raises(AirflowFailException, match="cluster the-old-cluster, and the connection leads to"):
        ResetOffsetsOperator(task_id="reset", **wanted).execute(context)
    assert query.stands() == {0: 5_000, 1: 7_000}
    receipt = ResetOffsetsOperator(task_id="reset", allow_new_cluster=True, **wanted).execute(context)
    assert query.stands() == committed(group, topic) == READ
    assert receipt["verified"]
    # From now on the checkpoint counts on this cluster.
    assert drift(KafkaPipeline(group_id=group, checkpoint_location=query.location))[0] == {"in step"}
