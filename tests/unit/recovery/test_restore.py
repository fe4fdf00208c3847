"""A reset is taken back: from its receipt, or from a file of Kafka's own tool."""

import json
from functools import partial
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow_task import reset as reset_pipeline
from fsspec.implementations.local import LocalFileSystem
from recovery_pipeline import broken_commit

from airflow_kafka_offsets.errors import BrokerUnavailableError, StorageUnavailableError
from airflow_kafka_offsets.model.checkpoint_policy import QUIET_PERIOD
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.usefixtures("memory")

ENDS = {0: 10, 1: 4, 2: 6}
COMMITTED = {0: 5, 1: 2}
READ = {0: 8, 1: 3, 2: 4}
"""Where the checkpoint stands; the group is behind, and has no commit for partition 2."""
RESET = {0: 1, 1: 1, 2: 1}


@pytest.fixture
def topic(make_topic, produce):
    name = make_topic()
    produce(name, ENDS)
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, COMMITTED)
    return name


@pytest.fixture
def query(topic, new_query):
    return new_query({topic: READ})


@pytest.fixture
def committed(committed, group, topic):
    """committed() -> {partition: offset} of the group."""
    return partial(committed, group, topic)


@pytest.fixture
def reset(context, query, group):
    """Moves both to offset 1 and returns the receipt; parameters are the operator's."""
    return lambda **parameters: reset_pipeline(context, query, group, **{"to_offset": 1, **parameters})


@pytest.fixture
def restore(context, query, group):
    """Takes the reset of a receipt back; parameters are the operator's."""

    def run(receipt=None, *, clears=0, **parameters):
        parameters = {"restore_when": "always", "quiet_period": 0, **parameters}
        ti = type(context["ti"])()
        ti.max_tries = clears
        names = {"group_id": group, "checkpoint_location": query.location} | parameters
        return RestoreOffsetsOperator(task_id="restore", receipt=receipt, **names).execute({"ti": ti})

    return run


def test_without_a_newer_batch_the_files_come_back_byte_for_byte(topic, query, committed, reset, restore):
    before = query.sparks_files()
    receipt = reset()
    assert committed() == query.stands() == RESET
    restored = restore(receipt)
    assert query.sparks_files() == before
    # A commit cannot be taken away again.
    assert committed() == COMMITTED | {2: 1}
    assert restored["after"] == {topic: {"0": 5, "1": 2}}
    assert (restored["checkpoint"]["kind"], restored["verified"]) == ("restore", True)
    assert restored["checkpoint"]["after"] == receipt["checkpoint"]["before"]


def test_a_reset_that_another_run_has_followed_is_taken_back_only_if_that_is_allowed(
    topic, query, committed, reset, restore, group, context
):
    receipt = reset()
    query.run(2, {topic: ENDS})
    by_another: Any = {"ti": type("TI", (type(context["ti"]),), {"run_id": "manual__another"})()}
    CommitOffsetsOperator(task_id="commit", group_id=group, checkpoint_location=query.location).execute(
        by_another
    )
    before = query.files()
    with pytest.raises(AirflowFailException, match="by run manual__another .*reads .* again"):
        restore(receipt)
    assert (query.files(), committed()) == (before, ENDS)
    restore(receipt, allow_stale=True)
    assert (query.stands(), committed()) == (READ, COMMITTED | {2: 6})


def test_an_unfinished_batch_is_refused_or_discarded(topic, query, committed, reset, restore):
    receipt = reset()
    query.plan(2, {topic: ENDS})
    before = query.files()
    with pytest.raises(AirflowFailException, match="batch 2 was begun and not finished"):
        restore(receipt)
    assert (query.files(), committed()) == (before, RESET)
    restored = restore(receipt, on_pending_batch="discard", idempotent_sink=True)
    assert restored["checkpoint"]["discarded"] == [2]
    assert (query.stands(), committed()) == (READ, COMMITTED | {2: 1})


def test_an_unfinished_batch_comes_back_also_after_a_reset_of_two_tries(topic, query, reset, restore):
    query.plan(2, {topic: ENDS})
    before = query.sparks_files()

    put = LocalFileSystem.makedirs

    def fail(fs, path, exist_ok):
        if path.endswith("/offsets") and "_kafka_offsets" not in path:
            raise OSError("the storage went away")
        put(fs, path, exist_ok=exist_ok)

    with pytest.MonkeyPatch.context() as patch:
        # The unfinished batch is gone by then, and the newest one as it was.
        patch.setattr(LocalFileSystem, "makedirs", fail)
        with pytest.raises(StorageUnavailableError):
            reset(on_pending_batch="discard", idempotent_sink=True)
    assert set(before) - set(query.sparks_files()) == {"offsets/2"}
    receipt = reset(on_pending_batch="discard", idempotent_sink=True)
    assert query.stands() == RESET
    restore(receipt)
    assert query.sparks_files() == before


def test_a_partition_that_had_no_commit_is_left_or_goes_to_its_log_start(
    topic, committed, reset, restore, capsys
):
    receipt = reset()
    assert restore(receipt)["skipped"] == {topic: {"2": 1}}
    assert committed()[2] == 1
    assert (
        f"had no committed offset, which cannot be restored; left alone: {topic}-2" in capsys.readouterr().out
    )
    restore(receipt, clears=1, on_no_commit="earliest")
    assert committed() == COMMITTED | {2: 0}


def test_a_restore_that_leaves_everything_alone_goes_on_and_writes_nothing(
    topic, new_group, commit, context, capsys
):
    group, before = new_group(), {topic: {"0": None}}
    receipt = {"version": 1, "group_id": group, "before": before, "after": {topic: {"0": 1}}}
    commit(group, topic, {0: 1})
    task = RestoreOffsetsOperator(task_id="restore", group_id=group, receipt=receipt, restore_when="always")
    task.outlets = KafkaPipeline(group_id=group).assets
    restored = task.execute(context)
    assert task.outlets == []
    assert restored is not None
    assert (restored["after"], restored["verified"]) == ({}, False)
    assert "Nothing was written" in capsys.readouterr().out


def test_a_group_that_the_reset_left_alone_is_left_alone(topic, group, committed, restore):
    moved = {"group_id": group, "before": {topic: {"0": 4}}, "after": {topic: {"0": 5}}}
    left = {"group_id": "others", "before": {}, "after": {}}
    restore(json.dumps({"version": 1, "groups": [moved, left]}))
    assert committed() == COMMITTED | {0: 4}


def test_the_receipt_of_a_plan_that_was_only_shown_changes_nothing(query, committed, reset, restore):
    receipt = reset(plan_only=True, quiet_period=QUIET_PERIOD)
    before = query.files()
    assert restore(receipt) is None
    assert (query.files(), committed()) == (before, COMMITTED)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"group_id": "others"}, "the receipt is of group 'group-.*', but group_id names 'others'"),
        ({"restore_when": "failed"}, "no upstream task that could have failed"),
    ],
)
def test_what_does_not_fit_is_refused_and_neither_is_changed(
    parameters, says, topic, group, query, committed, restore
):
    before = query.files()
    receipt = {"version": 1, "group_id": group, "before": {topic: {"0": 1}}, "after": {topic: {"0": 5}}}
    with pytest.raises(AirflowFailException, match=says):
        restore(**{"receipt": receipt, **parameters})
    assert (query.files(), committed()) == (before, COMMITTED)


def test_a_checkpoint_that_was_replaced_since_is_refused(topic, new_query, committed, reset, restore):
    receipt = reset()
    other = new_query({topic: ENDS}, query_id="99999999-0000-0000-0000-000000000000")
    before = other.files()
    with pytest.raises(
        AirflowFailException, match="the checkpoint was replaced since; restore only the groups"
    ):
        restore(receipt, checkpoint_location=other.location)
    assert (other.files(), committed()) == (before, RESET)
    restore(receipt, checkpoint_location=None, quiet_period=QUIET_PERIOD)
    assert committed() == COMMITTED | {2: 1}


def test_the_archives_file_puts_both_to_the_groups_offsets(query, committed, reset, restore):
    reset()
    before = query.root / "_kafka_offsets" / "0001-seek" / "before.csv"
    restore(from_file=before.as_uri())
    assert committed() == COMMITTED | {2: 1}
    # Both as one: the group's offsets are what the file has.
    assert query.stands() == COMMITTED | {2: 1}


def test_a_file_that_renders_to_a_list_is_refused(group, context):
    task = RestoreOffsetsOperator(task_id="r", group_id=group, from_file="{{ file }}", restore_when="always")
    task.from_file = ["plan.csv"]
    with pytest.raises(AirflowFailException, match="from_file: found list; expected text"):
        task.execute(context)


def test_topics_narrows_a_file(topic, query, committed, restore, tmp_path, capsys):
    file = tmp_path / "plan.csv"
    file.write_text(f"{topic},0,4\n{topic},1,1\n")
    restore(from_file=str(file), topics=f"{topic}:0")
    assert (committed(), query.stands()) == (COMMITTED | {0: 4}, READ | {0: 4})
    assert f"left out, because topics does not name these partitions: {topic}-1" in capsys.readouterr().out


def test_a_topic_of_a_file_that_the_query_does_not_read_moves_only_in_the_group(
    topic, make_topic, group, query, committed, restore, broker, tmp_path, capsys
):
    other = make_topic(1)
    file = tmp_path / "plan.csv"
    file.write_text(f"{topic},0,4\n{other},0,0\n")
    restore(from_file=str(file))
    assert (committed(), query.stands()) == (COMMITTED | {0: 4}, READ | {0: 4})
    assert broker.committed(group, [TopicPartition(other, 0)])[TopicPartition(other, 0)].offset == 0
    assert f"not in the checkpoint, only the group moves: {other}-0" in capsys.readouterr().out


def test_a_file_without_any_partition_of_the_checkpoint_is_refused(make_topic, query, restore, tmp_path):
    file, before = tmp_path / "plan.csv", query.files()
    file.write_text(f"{make_topic(1)},0,0\n")
    with pytest.raises(AirflowFailException, match="has no partition of the checkpoint .*: leave out"):
        restore(from_file=str(file))
    assert query.files() == before


@pytest.mark.parametrize(
    ("deleted", "says"),
    [
        ({0: 9}, "offset 5 of .*-0 is outside its log, which holds 9 to 10"),
        ({2: 5}, "offset 4 of .*-2 is outside its log, which holds 5 to 6"),
    ],
    ids=["of both", "of the checkpoint alone"],
)
def test_an_offset_that_is_outside_the_log_by_now_is_refused(
    deleted, says, topic, query, committed, reset, restore, delete_records
):
    receipt = reset(to_offset="latest")
    delete_records(topic, deleted)
    before = query.files()
    with pytest.raises(AirflowFailException, match=says):
        restore(receipt)
    assert (query.files(), committed()) == (before, ENDS)


@pytest.mark.parametrize(("policy", "to"), [("clamp", 9), ("skip", 10)])
def test_an_offset_that_is_outside_the_log_by_now_goes_for_both_as_the_policy_says(
    policy, to, topic, query, committed, reset, restore, delete_records
):
    receipt = reset(to_offset="latest")
    delete_records(topic, {0: 9})
    restore(receipt, on_out_of_range=policy)
    assert query.stands() == READ | {0: to}
    assert committed() == COMMITTED | {0: to, 2: ENDS[2]}


def test_a_group_with_a_member_is_refused_and_neither_is_changed(
    topic, group, query, committed, reset, restore, member, tmp_path
):
    receipt, file = reset(), tmp_path / "before.csv"
    file.write_text(f"{topic},0,5\n")
    before = query.files()
    member(group, topic)
    for given in ({"receipt": receipt}, {"from_file": str(file)}):
        with pytest.raises(AirflowFailException, match="nothing was changed: .* 1 member .*a-reader"):
            restore(**given)
    assert (query.files(), committed()) == (before, RESET)


def test_a_restore_that_ended_between_checkpoint_and_group_is_finished_by_its_retry(
    query, committed, reset, restore
):
    receipt = reset()
    with broken_commit(), pytest.raises(BrokerUnavailableError, match="running it again finishes the rest"):
        restore(receipt)
    assert (query.stands(), committed()) == (READ, RESET)
    restore(receipt)
    assert (query.stands(), committed()) == (READ, COMMITTED | {2: 1})


@pytest.mark.parametrize("tries", [1, 2], ids=["half-a-reset", "a-finished-retry"])
def test_a_reset_that_was_interrupted_is_taken_back(tries, query, committed, reset, restore, context):
    before = query.sparks_files()
    with broken_commit(), pytest.raises(BrokerUnavailableError):
        reset()
    receipt = reset() if tries == 2 else context["ti"].xcoms["return_value"]
    restore(receipt)
    assert query.sparks_files() == before
    assert committed() == COMMITTED | ({2: 1} if tries == 2 else {})


def test_the_receipt_of_a_restore_takes_it_back(query, committed, reset, restore):
    restored = restore(reset())
    restore(restored)
    assert (query.stands(), committed()) == (RESET, RESET)


def test_each_group_of_a_pipeline_is_restored(
    topic, new_group, new_query, make_topic, produce, broker, context
):
    other = make_topic(1)
    produce(other, {0: 9})
    query, groups = new_query({topic: {0: 8}}, {other: {0: 7}}), {topic: new_group(), other: new_group()}
    names = {"group_id": groups, "checkpoint_location": query.location, "quiet_period": 0}
    held = {topic: TopicPartition(topic, 0), other: TopicPartition(other, 0)}
    for name, tp in held.items():
        broker.commit(groups[name], {tp: 6})
    before = query.sparks_files()
    receipt = ResetOffsetsOperator(task_id="reset", to_offset="earliest", **names).execute(context)
    restore = RestoreOffsetsOperator(task_id="restore", receipt=receipt, restore_when="always", **names)
    with broken_commit(of=groups[other]), pytest.raises(BrokerUnavailableError):
        restore.execute(context)
    restored: Any = restore.execute(context)
    assert [each["before"] for each in restored["groups"]] == [{name: {"0": 0}} for name in held]
    assert [broker.committed(groups[name], [tp])[tp].offset for name, tp in held.items()] == [6, 6]
    assert query.sparks_files() == before
