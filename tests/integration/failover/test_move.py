"""A pipeline moves to the mirror: as planned, read back, and refused where it could not be right."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from mirrored_clusters import MIRRORS, READ, keep_failover_data, produce
from mirrored_pipeline import Pipeline
from written_query import Query

from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration


@pytest.fixture(params=MIRRORS)
def each_way(request, pipelines) -> Pipeline:
    """A pipeline whose topic has its own name or a prefix on the mirror."""
    return pipelines(request.param)


@pytest.fixture
def failover(cli) -> Callable[..., Any]:
    """failover("plan", pipeline, *options) runs the command on both clusters."""
    quiet = {"plan": ()}
    return lambda verb, pipeline, *options: cli(
        "failover", verb, *pipeline.options, *quiet.get(verb, ("--quiet-period", "0")), *options
    )


def test_a_plan_shows_how_each_partition_was_translated_and_changes_nothing(mirrored, each_way, failover):
    before = each_way.query.files()
    done = failover("plan", each_way)
    assert done.code == 0, done
    assert done.out.count("exact (record)") == len(READ)
    assert each_way.copy in done.out
    assert mirrored.on_source.cluster_id() in done.out
    assert mirrored.on_target.cluster_id() in done.out
    assert "failover apply" in done.err
    assert each_way.query.files() == before
    assert each_way.committed() == {0: None, 1: None}


def test_checkpoint_and_group_move_and_are_read_back(mirrored, each_way, failover, cli):
    done = failover("apply", each_way, "--output", "json")
    assert done.code == 0, done
    receipt = json.loads(done.out)
    assert receipt["verified"]
    assert receipt["failover"]["exact"]
    assert receipt["failover"]["kinds"] == {"exact (record)": 2}
    assert each_way.at() == {TopicPartition(each_way.copy, number): at for number, at in READ.items()}
    assert each_way.committed() == READ
    (archive,) = ArchivedMoves(SparkCheckpoint(each_way.query.location))
    assert archive.name == "0001-failover"
    assert archive.done
    assert archive.left_logs.cluster == mirrored.on_source.cluster_id()
    assert archive.log_ids.cluster == mirrored.on_target.cluster_id()
    checked = cli("drift", each_way.query.location, each_way.group, "--bootstrap-server", mirrored.target)
    assert checked.code == 0, checked
    # The query goes on there, and its next batch is committed as always.
    each_way.query.run(3, {each_way.copy: {0: 80, 1: 60}})
    commit = ("group", "commit", each_way.group, "--checkpoint", each_way.query.location, "--execute")
    assert cli(*commit, "--bootstrap-server", mirrored.target).code == 0
    assert each_way.committed() == {0: 80, 1: 60}


def test_with_the_source_gone_what_was_kept_translates_exactly(mirrored, pipeline, failover):
    checkpoint = SparkCheckpoint(pipeline.query.location)
    kept = keep_failover_data(mirrored.on_source, mirrored.on_target, checkpoint, pipeline.mirror)
    assert not kept.error
    assert len(kept.read) == len(READ)
    # Nothing listens there.
    pipeline.options = ["127.0.0.1:1" if each == mirrored.source else each for each in pipeline.options]
    done = failover("apply", pipeline, "--timeout", "3s")
    assert done.code == 0, done
    assert "does not answer" in done.err
    assert done.out.count("exact (record)") == len(READ)
    assert "the data kept with batch 2 at " in done.out
    assert pipeline.committed() == READ


def test_with_the_source_gone_and_nothing_kept_the_syncs_are_left(mirrored, pipeline, failover):
    done = failover("apply", pipeline, "--source-is-down", "--output", "json")
    assert done.code == 0, done
    receipt = json.loads(done.out)
    found = {number: at for number, at in pipeline.committed().items() if at is not None}
    assert all(found[number] <= at for number, at in READ.items())
    assert sum(READ.values()) - sum(found.values()) <= receipt["failover"]["again"]


def test_a_batch_after_the_one_that_was_kept_is_safe(mirrored, pipeline, failover):
    """
    Spark has finished one more batch before the source was gone: its records may be read again, and no more.
    """
    checkpoint = SparkCheckpoint(pipeline.query.location)
    keep_failover_data(mirrored.on_source, mirrored.on_target, checkpoint, pipeline.mirror)
    pipeline.query.run(3, {pipeline.topic: {0: 78, 1: 55}})
    done = failover("apply", pipeline, "--source-is-down", "--output", "json")
    assert done.code == 0, done
    again = json.loads(done.out)["failover"]["again"]
    found = pipeline.committed()
    assert found[1] == 55
    assert found[0] is not None
    assert 70 <= found[0] <= 78
    assert 78 - found[0] <= again <= 8


# --- what is refused


def test_a_query_with_state_moves_only_where_it_is_exact(mirrored, pipeline, failover):
    pipeline.query.write("state/0/0/1.delta", "state")
    done = failover("apply", pipeline, "--source-is-down")
    assert done.code == 1
    assert "keeps state" in done.err
    assert "--allow-stateful" in done.err
    assert failover("plan", pipeline, "--source-is-down", "--allow-stateful").code == 0
    assert failover("apply", pipeline).code == 0
    assert pipeline.committed() == READ


def test_an_unknown_position_goes_to_the_log_start_if_that_is_allowed(mirrored, pipeline, failover):
    admin = AdminClient({"bootstrap.servers": mirrored.target, "log_level": 0})
    name = "other.made-by-hand"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    mirrored.until(lambda: name in mirrored.on_target.partitions([name]), name)
    produce(mirrored.target, name, 5)
    pipeline.query.run(3, {"made-by-hand": {0: 3}})
    done = failover("apply", pipeline, "--source-is-down")
    assert done.code == 1
    assert "unknown on made-by-hand-0" in done.err
    done = failover("apply", pipeline, "--source-is-down", "--on-unknown", "earliest", "--output", "json")
    assert done.code == 0, done
    assert json.loads(done.out)["failover"]["again"] == 5
    assert mirrored.committed(pipeline.group, name)[0] == 0


def test_what_the_mirror_has_deleted_is_refused_unless_it_may_be_clamped(mirrored, pipelines, failover):
    pipeline = pipelines(topic=mirrored.filled_topic())
    mirrored.delete_records(pipeline.copy, {0: 90})
    done = failover("apply", pipeline)
    assert done.code == 1
    assert "deleted" in done.err
    assert pipeline.committed() == {0: None, 1: None}
    assert failover("apply", pipeline, "--on-out-of-range", "clamp").code == 0
    assert pipeline.committed() == {0: 90, 1: 55}
    assert pipeline.at()[TopicPartition(pipeline.copy, 0)] == 90


# --- after it


def test_nothing_goes_back_past_a_failover(mirrored, pipeline, failover, cli):
    assert failover("apply", pipeline).code == 0
    pipeline.query.run(3, {pipeline.copy: {0: 80, 1: 60}})
    location = pipeline.query.location
    for number in (0, 1):
        done = cli("checkpoint", "truncate", location, "--to-batch", number, "--sink", "noop")
        assert done.code == 1
        assert "has moved the query to another cluster" in done.err
        done = cli(
            "checkpoint", "seek", location, "--to-batch", number, "--bootstrap-server", mirrored.target
        )
        assert done.code == 1
        assert "has moved the query to another cluster" in done.err
    done = cli("checkpoint", "restore", location)
    assert done.code == 1
    assert "failover back" in done.err
    to = ("--to-batch", "2", "--sink", "noop", "--execute", "--quiet-period", "0")
    assert cli("checkpoint", "truncate", location, *to).code == 0


def test_a_query_goes_back_by_the_mirror_in_the_other_direction(mirrored, pipelines, cli):
    """Without a mirror in that direction, by the last records that the query has read."""
    pipeline = pipelines("same")
    quiet = ("--quiet-period", "0")
    assert cli("failover", "apply", *pipeline.options, *quiet).code == 0
    pipeline.query.run(3, {pipeline.copy: {0: 80, 1: 60}})
    commit = ("group", "commit", pipeline.group, "--checkpoint", pipeline.query.location, "--execute")
    assert cli(*commit, "--bootstrap-server", mirrored.target).code == 0
    options = ("failover", "back", *pipeline.options, *quiet)
    shown = cli(*options)
    assert shown.code == 0, shown
    assert "give --execute" in shown.err
    assert cli(*options, "--execute").code == 0
    found = mirrored.on_source.committed(pipeline.group, pipeline.at())
    assert {tp.partition: commit and commit.offset for tp, commit in found.items()} == {0: 80, 1: 60}
    # The commit on the cluster that was left is of the same second.
    refused = cli(*commit, "--bootstrap-server", mirrored.target)
    assert (refused.code, "(archive 0002-failover) is of cluster" in refused.err) == (1, True)


def test_two_sources_of_one_topic_move_each_to_its_place(mirrored, topic, tmp_path, new_group, failover):
    query, group = Query(tmp_path / "checkpoint"), new_group()
    query.run(0, {topic: {0: 10, 1: 10}}, {topic: {0: 5, 1: 5}})
    query.run(1, {topic: READ}, {topic: {0: 20, 1: 30}})
    groups = json.dumps({"source:0": group, "source:1": f"{group}-b"})
    pipeline = Pipeline(mirrored, "other", topic, query, groups)
    done = failover("apply", pipeline)
    assert done.code == 0, done
    found = SparkCheckpoint(query.location).read().kafka_offsets
    assert found["0"] == {TopicPartition(pipeline.copy, number): at for number, at in READ.items()}
    assert found["1"] == dict(zip(pipeline.copies, (20, 30), strict=True))
    for each, wanted in ((group, READ), (f"{group}-b", {0: 20, 1: 30})):
        assert mirrored.committed(each, pipeline.copy) == wanted
