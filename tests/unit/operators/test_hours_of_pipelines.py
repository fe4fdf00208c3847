"""Complete hours of a pipeline: topics that are created again, checkpoints, resets, the windows of runs."""

from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset
from hours_of_pipelines import FOREVER, HOURS, Runs, plan

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")


def test_a_group_without_a_commit_is_told_in_the_log(make_topic, write, group, capsys, caplog):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.1, 1.2]})
    for parameters in ({}, {"start_from": None}):
        assert Runs(group_id=group, topics=topic).run(**parameters) == []
        said = capsys.readouterr().out + caplog.text
        assert "The group has no committed offset: no interval is complete" in said


def test_a_topic_that_was_created_again_is_refused_until_the_group_is_moved(
    make_topic, write, group, recreate, broker, new_query
):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.5, 1.5]})
    query = new_query({topic: {0: 2}})
    names = {"group_id": group, "topics": topic}
    commit = CommitOffsetsOperator(task_id="commit", checkpoint_location=query.location, **names)
    commit.execute({})
    old = broker.committed(group, [TopicPartition(topic, 0)])
    runs = Runs(**names)
    assert runs.run() == ["00"]
    recreate(topic, 1)
    write(topic, {0: [1.6, 2.5, 3.5]})
    # Kafka has deleted the commits with the topic, but somebody has put them back.
    broker.commit(group, {TopicPartition(topic, 0): 2}, old[TopicPartition(topic, 0)].metadata)
    with pytest.raises(AirflowFailException, match="deleted and created again"):
        runs.run()
    broker.commit(group, {TopicPartition(topic, 0): 3})
    assert runs.run() == ["01", "02"]


# -- checkpoints and their moves --


@pytest.fixture
def recorded(make_topic, write):
    topic = make_topic(1, FOREVER)
    write(topic, {0: [0.5, 1.5, 2.5, 3.5, 4.5]})
    return topic


def reset(query, group, to_offset, context, run="reset", **parameters):
    context["ti"].run_id = run
    return ResetOffsetsOperator(
        task_id="reset",
        group_id=group,
        checkpoint_location=query.location,
        to_offset=to_offset,
        quiet_period=0,
        **parameters,
    ).execute(context)


def test_the_hours_of_a_checkpoint_need_no_group(recorded, new_query):
    query = new_query({recorded: {0: 3}})
    runs = Runs(checkpoint_location=query.location)
    assert runs.run() == ["00", "01", "02"]
    query.run(2, {recorded: {0: 5}})
    assert runs.run() == ["03"]


def test_before_its_first_batch_a_checkpoint_has_no_hours(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    runs = Runs(checkpoint_location=str(tmp_path))
    assert runs.run() == []
    assert runs.airflow.kept == {}


@pytest.mark.parametrize("position", ["group", "checkpoint"])
def test_a_reset_that_was_read_again_between_two_runs_is_seen_in_the_checkpoint(
    recorded, new_query, group, commit, context, position
):
    query = new_query({recorded: {0: 4}})
    commit(group, recorded, {0: 4})
    runs = Runs(group_id=group, checkpoint_location=query.location, position=position)
    assert runs.run() == ["00", "01", "02", "03"]
    reset(query, group, {recorded: {"0": 1}}, context)
    query.run(2, {recorded: {0: 5}})
    commit(group, recorded, {0: 5})
    assert runs.run() == ["01", "02", "03"]
    assert runs.run() == []


def test_a_reset_that_was_taken_back_takes_nothing_back(recorded, new_query, group, commit, context):
    query = new_query({recorded: {0: 4}})
    commit(group, recorded, {0: 4})
    names = {"group_id": group, "checkpoint_location": query.location}
    runs = Runs(**names)
    assert runs.run() == ["00", "01", "02", "03"]
    receipt = reset(query, group, {recorded: {"0": 1}}, context)
    RestoreOffsetsOperator(
        task_id="restore", receipt=receipt, restore_when="always", quiet_period=0, **names
    ).execute(context)
    assert runs.run() == []


def test_a_move_of_the_checkpoint_alone_takes_nothing_back_from_the_group(
    recorded, new_query, group, commit, cli, bootstrap_servers
):
    query = new_query({recorded: {0: 4}})
    commit(group, recorded, {0: 4})
    runs = Runs(group_id=group, checkpoint_location=query.location)
    assert runs.run() == ["00", "01", "02", "03"]
    how = ("--bootstrap-server", bootstrap_servers, "--quiet-period", "0", "--execute")
    done = cli("checkpoint", "seek", query.location, "--to-offset", 1, *how)
    assert done.code == 0, done.err
    assert runs.run() == []
    assert Runs(checkpoint_location=query.location).run() == ["00"]


def test_a_run_reads_the_hour_that_its_partition_key_names(recorded, context):
    window = plan(context, "2026-03-01T02:00:00", topics=recorded, every="hour")
    assert (window["start"], window["end"]) == ({recorded: {"0": 2}}, {recorded: {"0": 3}})
    assert window["source"]["start"] == "2026-03-01T02:00:00+00:00"
    # Airflow's own mappers name hours and days in short.
    assert plan(context, "2026-03-01T02", topics=recorded, every="hour")["end"] == window["end"]
    day = plan(context, "2026-03-01", topics=recorded, every="day")
    assert (day["start"], day["end"]) == ({recorded: {"0": 0}}, {recorded: {"0": 5}})
    berlin = plan(context, "2026-03-01T02:00:00", topics=recorded, every="hour", timezone="Europe/Berlin")
    assert berlin["start"] == {recorded: {"0": 1}}


def test_a_run_whose_partition_key_names_no_interval_is_refused(recorded, context):
    with pytest.raises(
        AirflowFailException, match="this run has no partition key: .*PartitionedAssetTimetable"
    ):
        plan(context, None, topics=recorded, every="hour")
    # The key of a day is no hour.
    for key in ("2026-03-01T02:30:00", "2026-03-01", "9999-12-31"):
        with pytest.raises(AirflowFailException, match=f"partition_key='{key}' is not the start of an inter"):
            plan(context, key, topics=recorded, every="hour")
    with pytest.raises(AirflowFailException, match="is in the future"):
        plan(context, "2199-03-01T02:00:00", topics=recorded, every="hour")
    with pytest.raises(UsageError, match="max_records.*with every"):
        plan(context, "2026-03-01T02:00:00", topics=recorded, every="hour", max_records=1)


def test_a_run_of_an_emitted_day_does_not_read_one_hour(recorded, context):
    extra = {"every": "day", "timezone": "UTC", "token": "t"}
    event = SimpleNamespace(partition_key="2026-03-01T00:00:00", extra=extra)
    # Airflow 3.1 cannot hash an Asset: its events have a key of their own, too.
    started = {**context, "triggering_asset_events": {Asset.ref(name=HOURS.name): [event]}}
    with pytest.raises(AirflowFailException, match=r"the events \('day', 'UTC'\)"):
        plan(started, "2026-03-01T00:00:00", topics=recorded, every="hour")
    day = plan(started, "2026-03-01T00:00:00", topics=recorded, every="day")
    assert day["end"] == {recorded: {"0": 5}}


def test_a_checkpoint_whose_topic_was_created_again_is_refused_until_it_is_moved(
    recorded, new_query, recreate, write, context, group
):
    query = new_query({recorded: {0: 3}})
    runs = Runs(checkpoint_location=query.location)
    assert runs.run() == ["00", "01", "02"]
    recreate(recorded, 1)
    write(recorded, {0: [3.1, 3.2, 3.3, 4.5, 5.5]})
    with pytest.raises(AirflowFailException, match="was deleted and created again"):
        runs.run()
    reset(query, group, "earliest", context, topics=recorded)
    query.run(2, {recorded: {0: 5}})
    assert runs.run() == ["03", "04"]


def test_a_topic_that_was_created_again_before_the_first_run_completes_no_hour(
    make_topic, write, new_query, recreate
):
    topic = make_topic(1, FOREVER)
    query = new_query({topic: {0: 3}})
    query.plan(1, {topic: {0: 3}}, at=datetime(2026, 2, 1, tzinfo=timezone.utc).timestamp())
    recreate(topic, 1)
    write(topic, {0: [0.5, 1.5, 2.5, 3.5, 4.5]})
    # Spark does not notice it, and never reads the first 3 records.
    query.run(2, {topic: {0: 5}})
    runs = Runs(checkpoint_location=query.location)
    with pytest.raises(AirflowFailException, match=f"has not read the first records of {topic}-0"):
        runs.run()
