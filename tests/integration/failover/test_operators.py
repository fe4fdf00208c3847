"""The operators that fail over, check the mirror, and keep what a failover needs."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from mirrored_clusters import READ
from mirrored_pipeline import Pipeline
from written_query import Query

from airflow_kafka_offsets.checkpoint.failover_data_file import READINESS, read_failover_data
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.check_mirror import CheckMirrorOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def query(pipeline: Pipeline) -> Query:
    return pipeline.query


@pytest.fixture
def orders(pipeline: Pipeline) -> KafkaPipeline:
    return pipeline.names


def test_a_commit_keeps_what_a_failover_needs(orders, topic, query, context):
    CommitOffsetsOperator(task_id="commit", **orders).execute(context)
    kept = read_failover_data(SparkCheckpoint(query.location))
    assert kept.batch_id == 2
    assert {tp: [last.position for last in each] for tp, each in kept.read.items()} == {
        TopicPartition(topic, number): [at] for number, at in READ.items()
    }
    assert set(kept.syncs) == {TopicPartition(topic, number) for number in READ}
    assert not kept.error


def test_without_a_mirror_a_commit_keeps_nothing(orders, query, context):
    names = {name: value for name, value in orders.items() if name != "mirror"}
    CommitOffsetsOperator(task_id="commit", **names).execute(context)
    assert not (query.root / READINESS).exists()


def test_a_mirror_that_does_not_answer_fails_no_commit(
    orders, query, context, connections, capsys, monkeypatch
):
    monkeypatch.setattr("airflow_kafka_offsets.operators.commit._MIRROR_TIMEOUT", 0.5)
    connections("standby", "127.0.0.1:1")
    assert CommitOffsetsOperator(task_id="commit", **orders).execute(context)["verified"]
    assert "was not kept completely" in capsys.readouterr().out
    kept = read_failover_data(SparkCheckpoint(query.location))
    assert "syncs could not be read" in kept.error
    # The last records were, and are enough.
    assert len(kept.read) == len(READ)


def test_a_storage_that_does_not_take_it_fails_no_commit(orders, query, context, capsys):
    (query.root / READINESS).mkdir(parents=True)
    assert CommitOffsetsOperator(task_id="commit", **orders).execute(context)["verified"]
    assert "was not kept completely" in capsys.readouterr().out


def test_a_pipeline_fails_over_with_its_source_gone(orders, topic, query, context, connections, mirrored):
    CommitOffsetsOperator(task_id="commit", **orders).execute(context)
    connections("primary", "127.0.0.1:1")
    task = FailOverOperator(task_id="fail_over", quiet_period=0, ask_source=False, **orders)
    receipt = task.execute(context)
    assert receipt["failover"]["kinds"] == {"exact (record)": 2}
    assert receipt["kafka_config_id"] == "standby"
    (copy,) = task.get_openlineage_facets_on_complete(None).inputs
    assert (copy.namespace, copy.name) == (f"kafka://{mirrored.target}", f"other.{topic}")
    assert mirrored.committed(orders.group_id, f"other.{topic}") == READ
    once = query.files()
    again = task.execute(context)
    assert (again["failover"], query.files()) == (receipt["failover"], once)
    # The receipt is enough to take it back.
    restore = RestoreOffsetsOperator(
        task_id="restore", receipt=receipt, restore_when="always", quiet_period=0
    )
    restore.execute(context)
    with pytest.raises(AirflowFailException, match="was taken back by 0002-restore"):
        task.execute(context)
    assert SparkCheckpoint(query.location).read().kafka_offsets["0"] == {
        TopicPartition(topic, number): at for number, at in READ.items()
    }


def test_the_check_says_how_exactly_it_would_move(orders, context):
    check = CheckMirrorOperator(task_id="check", max_again=0, **orders)
    # Nothing is kept yet, and the syncs alone are not exact.
    with pytest.raises(AirflowFailException, match="may be read again"):
        check.execute(context)
    CommitOffsetsOperator(task_id="commit", **orders).execute(context)
    found = check.execute(context)
    assert found["now"] == found["alone"] == {"kinds": {"exact (record)": 2}, "again": 0}
    assert found["behind"] == 0
    assert found["keeps_times"] is True
    assert found["kept_batch"] == 2
    assert (found["verdict"], found["group_ids"]) == ("exact", [orders.group_id])
    assert context["ti"].xcoms["return_value"] == found


def test_the_check_on_the_command_line(pipeline, cli):
    done = cli("failover", "check", *pipeline.options)
    assert done.code == 0, done
    assert "2 exact (record)" in done.out
    assert "offset syncs         on the mirror" in done.out
    done = cli("failover", "check", *pipeline.options, "--max-again", "0")
    assert done.code == 1
    assert "may be read again" in done.err


def test_a_mirror_that_lacks_the_topic_is_not_ready(orders, context):
    wrong = {**orders, "mirror": {**orders["mirror"], "prefix": "elsewhere."}}
    with pytest.raises(AirflowFailException, match="is not on the mirror"):
        CheckMirrorOperator(task_id="check", **wrong).execute(context)


def test_the_check_refuses_a_cluster_that_the_pipeline_has_left(orders, context):
    FailOverOperator(task_id="fail_over", quiet_period=0, **orders).execute(context)
    with pytest.raises(AirflowFailException, match="name the cluster that the pipeline is on"):
        CheckMirrorOperator(task_id="check", **orders).execute(context)
