"""When are the offsets of a real query refused, and is the group then as it was?"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointFormatError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    # PySpark leaves sockets to its JVM open until the process ends.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


def test_a_group_with_a_member_is_refused_the_member_named_and_nothing_moved(
    stream, run, make_topic, produce, location, new_group, commit, holds, reading_member
):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 3})
    run(stream(topic), location)
    commit(group, location)
    produce(topic, {0: 4, 1: 1})
    run(stream(topic), location)
    leave = reading_member(group, topic)
    with pytest.raises(
        AirflowFailException, match=r"1 active member \(a-reader on 127.0.0.1\).*nothing was written"
    ):
        commit(group, location)
    assert holds(group) == {(topic, 0): 3, (topic, 1): 0}
    leave()
    commit(group, location)
    assert holds(group) == {(topic, 0): 7, (topic, 1): 1}


def test_an_older_copy_of_the_checkpoint_is_refused_and_committed_when_allowed(
    stream, run, make_topic, produce, location, tmp_path, new_group, commit, holds
):
    topic, group, old = make_topic(1), new_group(), str(tmp_path / "old")
    produce(topic, {0: 3})
    run(stream(topic), location)
    shutil.copytree(location, old)
    produce(topic, {0: 4})
    run(stream(topic), location)
    commit(group, location)
    with pytest.raises(
        AirflowFailException, match=rf"go backwards on {topic}-0 \({topic}-0: 7 to 3\).*allow_rewind"
    ):
        commit(group, old)
    assert holds(group) == {(topic, 0): 7}
    commit(group, old, allow_rewind=True)
    assert holds(group) == {(topic, 0): 3}


def test_a_query_that_another_one_replaced_is_refused_from_then_on(
    stream, run, make_topic, produce, location, tmp_path, new_group, commit, holds
):
    topic, group, new = make_topic(1), new_group(), str(tmp_path / "new")
    produce(topic, {0: 3})
    first = run(stream(topic), location).id
    commit(group, location)
    produce(topic, {0: 4})
    second = run(stream(topic), new).id
    with pytest.raises(AirflowFailException, match=f"query {first}, .* checkpoint is of query {second}"):
        commit(group, new)
    assert holds(group) == {(topic, 0): 3}
    commit(group, new, allow_new_query=True)
    assert holds(group) == {(topic, 0): 7}
    run(stream(topic), location)
    with pytest.raises(AirflowFailException, match=f"query {second}, .* checkpoint is of query {first}"):
        commit(group, location)


def test_one_deleted_topic_of_two_keeps_the_other_where_it_was(
    stream, run, make_topic, produce, location, new_group, commit, holds, bootstrap_servers
):
    kept, deleted, group = make_topic(1), make_topic(1), new_group()
    produce(kept, {0: 2})
    run(stream(f"{kept},{deleted}"), location)
    commit(group, location)
    produce(kept, {0: 2})
    run(stream(f"{kept},{deleted}"), location)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([deleted])[deleted].result(30)
    with pytest.raises(AirflowFailException, match=f"{deleted}-0 is not on the broker.*topics="):
        commit(group, location)
    assert holds(group) == {(kept, 0): 2}
    # The remedy that the text names.
    commit(group, location, topics=kept)
    assert holds(group) == {(kept, 0): 4}


def test_one_topic_of_two_that_was_made_again_keeps_the_other_where_it_was(
    stream, run, make_topic, produce, location, new_group, commit, holds, bootstrap_servers, wait_until
):
    kept, again, group = make_topic(1), make_topic(1), new_group()
    produce(kept, {0: 2})
    produce(again, {0: 5})
    run(stream(f"{kept},{again}"), location)
    commit(group, location)
    produce(kept, {0: 2})
    run(stream(f"{kept},{again}"), location)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([again])[again].result(30)
    wait_until(lambda: admin.create_topics([NewTopic(again, 1)])[again].exception(30) is None)
    with pytest.raises(
        AirflowFailException, match=f"offset 5 of {again}-0 is outside its log, which holds 0 to 0"
    ):
        commit(group, location)
    assert holds(group)[kept, 0] == 2
    commit(group, location, on_out_of_range="skip")
    assert holds(group)[kept, 0] == 4


def test_records_that_retention_removed_before_the_commit_are_named(
    stream, run, make_topic, produce, location, new_group, commit, holds, bootstrap_servers
):
    from confluent_kafka import TopicPartition

    topic, group = make_topic(1), new_group()
    produce(topic, {0: 3})
    run(stream(topic), location)
    produce(topic, {0: 4})
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for removed in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        removed.result(30)
    with pytest.raises(
        AirflowFailException, match="offset 3 .* holds 5 to 7: retention has deleted 2 records"
    ):
        commit(group, location)
    assert holds(group) == {}


@pytest.fixture(scope="module")
def two_batches(stream, run, make_topic, produce, tmp_path_factory):
    """(topic, the checkpoint of a query that has processed 3 of its records and then 4 more)."""
    topic, location = make_topic(1), tmp_path_factory.mktemp("whole") / "checkpoint"
    for number in (3, 4):
        produce(topic, {0: number})
        run(stream(topic), str(location))
    return topic, location


@pytest.mark.parametrize("file", ["offsets/1", "commits/1", "metadata"])
def test_a_file_that_was_cut_in_half_is_named(file, two_batches, tmp_path, new_group, commit, holds):
    topic, whole = two_batches
    location, group = tmp_path / "cut", new_group()
    shutil.copytree(whole, location)
    commit(group, str(location), offsets={topic: {"0": 3}})
    _cut(location / file, (location / file).stat().st_size // 2)
    with pytest.raises(AirflowFailException, match=rf"{location}/{file}(, line \d)?: found"):
        commit(group, str(location))
    assert holds(group) == {(topic, 0): 3}


@pytest.mark.parametrize("file", ["offsets/1", "commits/1", "metadata"])
def test_no_cut_of_a_file_gives_other_offsets(file, two_batches, tmp_path):
    _, whole = two_batches
    location = tmp_path / "cut"
    shutil.copytree(whole, location)
    right = SparkCheckpoint(str(location)).read()
    others = {}
    for size in reversed(range((location / file).stat().st_size)):
        _cut(location / file, size)
        try:
            found = SparkCheckpoint(str(location)).read()
        except CheckpointFormatError:
            continue
        if found != right:
            others[size] = found
    assert others == {}


def _cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])
