"""What is kept for a failover: bounded, and the same when it is read back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.failover_data import POSITIONS, FailoverData, around
from airflow_kafka_offsets.model.offset_syncs import OffsetSync, Syncs
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.text import MAX_VALUES
from airflow_kafka_offsets.model.translation import (
    Evidence,
    LastRead,
    RecordIdentity,
    Translation,
    record_digest,
)

PARTITION = TopicPartition("orders", 0)
numbers = st.integers(0, 2**63 - 1)
reads = st.builds(
    LastRead,
    numbers,
    st.builds(
        RecordIdentity,
        numbers,
        st.integers(-1, 2**62),
        st.binary().map(lambda each: record_digest(None, each)),
    ),
    numbers,
    st.booleans(),
)
partitions = st.builds(TopicPartition, st.sampled_from(["orders", "clicks"]), st.integers(0, 3))


def position(at):
    return LastRead(at, RecordIdentity(at - 1, 0, record_digest(None, b"%d" % at)))


@given(
    st.builds(
        FailoverData,
        st.integers(-1, 10),
        numbers,
        st.text(),
        st.dictionaries(partitions, st.lists(reads, min_size=1)),
        st.dictionaries(partitions, numbers),
        st.dictionaries(partitions, st.lists(st.builds(OffsetSync, numbers, numbers), min_size=1)),
        st.text(),
        numbers,
        st.text(),
    )
)
def test_it_is_the_same_when_it_is_read_back(data):
    assert FailoverData.parse(data.as_text(), "file") == data


def test_a_file_that_is_too_large_is_refused_before_it_is_read():
    with pytest.raises(OffsetsFormatError, match="values"):
        FailoverData.parse(f"[{',' * (MAX_VALUES + 1)}]", "file")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"at": -1},
        {"cluster": 7},
        {"ends": {"orders": {"0": "1"}}},
        {"read": {"orders": {"0": [[1, 0, 0, "short", 0, True]]}}},
        {"read": {"orders": {"0": [[1, 0, 0, "0123456789abcdef", 0, 1]]}}},
        {"syncs": {"orders": {"0": [[1, -2]]}}},
        {"syncs": {"orders": {"0": [[1, 2, 3]]}}},
        {"syncs": None},
    ],
)
def test_anything_else_is_refused_without_showing_it(change):
    text = json.dumps(json.loads(FailoverData().as_text()) | change)
    with pytest.raises(OffsetsFormatError, match="the next commit writes a new one"):
        FailoverData.parse(text, "file")


def test_the_last_positions_are_kept():
    kept = FailoverData()
    for batch in range(POSITIONS + 3):
        kept = kept.with_position(batch, batch, "a", {PARTITION: [position(10 * batch + 1)]}, {PARTITION: 99})
    found = [last.position for last in kept.read[PARTITION]]
    assert found == [10 * batch + 1 for batch in range(POSITIONS + 2, 2, -1)]
    assert kept.batch_id == POSITIONS + 2


def test_a_position_that_is_kept_again_does_not_push_out_the_others():
    kept = FailoverData()
    for at in (11, 21, 21, 21, 21, 21, 21):
        kept = kept.with_position(at, at, "a", {PARTITION: [position(at)]}, {PARTITION: 99})
    assert [last.position for last in kept.read[PARTITION]] == [21, 11]


def test_of_many_partitions_fewer_positions_are_kept():
    many = [TopicPartition("orders", number) for number in range(6_000)]
    kept = FailoverData()
    for batch in range(3):
        kept = kept.with_position(
            batch, batch, "a", {tp: [position(batch + 1)] for tp in many}, dict.fromkeys(many, 99)
        )
    assert {len(each) for each in kept.read.values()} == {1}


def test_positions_of_another_cluster_go():
    kept = FailoverData().with_position(1, 1, "a", {PARTITION: [position(11)]}, {PARTITION: 99})
    kept = kept.with_syncs(Syncs({PARTITION: [OffsetSync(3, 2)]}, "syncs", 7), {})
    other = kept.with_position(2, 2, "b", {PARTITION: [position(5)]}, {PARTITION: 50})
    assert [last.position for last in other.read[PARTITION]] == [5]
    assert not other.syncs
    assert kept.on("b") == FailoverData()
    assert kept.on("a") is kept


def test_a_partition_that_is_gone_is_not_kept():
    kept = FailoverData().with_position(1, 1, "a", {PARTITION: [position(11)]}, {PARTITION: 99})
    other = TopicPartition("orders", 1)
    kept = kept.with_position(2, 2, "a", {other: [position(5)]}, {other: 50})
    assert list(kept.read) == [other]


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 500)).map(lambda pair: OffsetSync(*pair)), max_size=200
    ),
    st.lists(st.integers(0, 500), max_size=5),
)
def test_the_syncs_that_are_kept_are_few_and_hold_those_next_to_each_position(syncs, positions):
    found = around(syncs, positions)
    assert len(found) <= 1 + 4 * len(positions) + 6
    ordered = sorted(set(syncs), key=lambda sync: sync.downstream)
    for at in positions:
        assert {*[sync for sync in ordered if sync.upstream <= at][-1:]} <= {*found}
        assert {*[sync for sync in ordered if sync.upstream > at][:1]} <= {*found}


def test_syncs_of_a_topic_that_was_created_again_on_the_mirror_are_not_kept():
    tp, other = TopicPartition("orders", 0), TopicPartition("clicks", 0)
    kept = FailoverData(
        syncs={tp: [OffsetSync(7, 7)], other: [OffsetSync(1, 1)]}, mirrored={"orders": "a", "clicks": "b"}
    )
    assert kept.without_old_syncs({"orders": "c", "clicks": ""}).syncs == {other: [OffsetSync(1, 1)]}
    assert FailoverData.parse(kept.as_text(), "f") == kept


def test_a_sync_from_before_a_topic_was_created_again_does_not_count_for_the_new_one():
    kept = FailoverData(
        read={PARTITION: [position(150)]},
        syncs={PARTITION: [OffsetSync(90, 90)]},
        mirrored={"orders": "a"},
        ends={PARTITION: 400},
    )

    def after_commits(*commits):
        found = kept
        for mirrored, syncs in commits:
            read = Syncs({PARTITION: syncs} if syncs else {}, "syncs", 1)
            found = found.with_syncs(read, {"orders": mirrored})
        return list(found.syncs.get(PARTITION, ()))

    old, new = [OffsetSync(100, 100)], [OffsetSync(101, 0), OffsetSync(202, 101)]
    assert after_commits(("a", old)) == [OffsetSync(90, 90), *old]
    # The topic is empty when the first commit sees it, and its mirror has written the old sync just before.
    found = after_commits(("b", old), ("b", new))
    assert found == new
    assert Evidence(150, LogRange(0, 260), found).translate() == Translation(49)
    for present in (new, [OffsetSync(101, 90)]):
        assert after_commits(("b", present)) == present
    assert after_commits(("b", [OffsetSync(90, 90)])) == []  # a restarted mirror repeats a sync
    # Where the present offsets are not below the known ones, it is not known whose they are.
    assert after_commits(("b", [OffsetSync(300, 95)])) == []
