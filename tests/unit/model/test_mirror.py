"""Names of a mirror, and MirrorMaker's records."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import MisnamedError, UsageError
from airflow_kafka_offsets.model.failover_plan import TranslatedPartition
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.mirror_check import MirrorCheck
from airflow_kafka_offsets.model.offset_syncs import OffsetSync, parse_sync, syncs_of_this_log
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition
from airflow_kafka_offsets.model.translation import Evidence, LastRead, RecordIdentity, Search, Translation
from airflow_kafka_offsets.readings.failover import translate_sources

STANDBY = {"kafka_config_id": "standby"}
offsets = st.integers(0, 2**63 - 1)


def test_topics_keep_their_names_get_a_prefix_or_the_one_that_is_given():
    assert Mirror.parse(STANDBY).topic("orders") == "orders"
    prefixed = Mirror.parse({**STANDBY, "prefix": "primary.", "topics": {"clicks": "dr-clicks"}})
    assert prefixed.partition(TopicPartition("orders", 2)) == ("primary.orders", 2)
    assert prefixed.topic("clicks") == "dr-clicks"


@given(st.sampled_from(["", "primary.", "a_"]), st.sampled_from(["orders", "clicks", "b"]))
def test_the_way_back_leads_to_the_same_topic(prefix, topic):
    names = {**STANDBY, "topics": {"clicks": "dr-clicks"}, **({"prefix": prefix} if prefix else {})}
    mirror = Mirror.parse(names)
    assert mirror.back().topic(mirror.topic(topic)) == topic


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "mirror"),
        ([], "expected an object"),
        ({}, "connection of the mirror is missing"),
        ({**STANDBY, "prefix": ""}, "prefix"),
        ({**STANDBY, "prefix": "a b"}, "part of a topic's name"),
        ({**STANDBY, "prefix": "a.", "without": "b."}, "contradict"),
        ({**STANDBY, "policy": "identity"}, "found the key policy"),
        ({**STANDBY, "syncs_on": "both"}, "syncs_on"),
        ({**STANDBY, "syncs_topic": "a/b"}, "name of a topic"),
        ({**STANDBY, "topics": {"a": "x", "b": "x"}}, "a different name for each"),
        ({**STANDBY, "topics": {}}, "topics"),
    ],
)
def test_anything_else_is_refused(value, text):
    with pytest.raises(UsageError, match=text) as refused:
        Mirror.parse(value)
    assert str(refused.value.parameter).startswith("mirror")


def test_it_is_the_same_when_it_is_read_back():
    for value in (
        STANDBY,
        {**STANDBY, "prefix": "target"},
        {**STANDBY, "syncs_on": "source", "syncs_topic": "s"},
    ):
        assert Mirror.parse(value).as_json() == value
    assert Mirror.parse('{"kafka_config_id": "standby"}') == Mirror.parse(STANDBY)


def serialize_sync(partition, sync):
    topic = partition.topic.encode("ascii")
    key = struct.pack(">h", len(topic)) + topic + struct.pack(">i", partition.partition)
    return key, struct.pack(">qq", *sync)


@given(
    st.builds(TopicPartition, st.from_regex(r"[a-z._-]{3,30}", fullmatch=True), st.integers(0, 9)),
    offsets,
    offsets,
)
def test_a_sync_is_the_same_when_it_is_read_back(tp, upstream, downstream):
    sync = OffsetSync(upstream, downstream)
    assert parse_sync(*serialize_sync(tp, sync)) == (tp, sync)


@given(st.binary(max_size=60) | st.none(), st.binary(max_size=20) | st.none())
def test_records_of_other_forms_are_left_out(key, value):
    found = parse_sync(key, value)
    assert found is None or serialize_sync(*found) == (key, value)


def test_a_recorded_sync():
    key = b"\x00\x06orders\x00\x00\x00\x01"
    assert parse_sync(key, bytes.fromhex("000000000000006400000000000000 5a".replace(" ", ""))) == (
        TopicPartition("orders", 1),
        OffsetSync(100, 90),
    )
    assert parse_sync(key, None) is None


def test_syncs_of_a_topic_that_was_created_again_on_the_mirror_count_no_more():
    first, second = [OffsetSync(5, 5), OffsetSync(9, 9)], [OffsetSync(20, 0), OffsetSync(25, 5)]
    assert syncs_of_this_log([*first, *second]) == second
    # A topic of few records has only the sync of the first one.
    few, again = [OffsetSync(0, 0)], [OffsetSync(57, 0)]
    assert syncs_of_this_log([*few, *again]) == again
    found = Evidence(30, LogRange(0, 10), syncs_of_this_log([*few, *again])).translate()
    assert (found.offset, found.exact) == (0, True)
    assert syncs_of_this_log([*first, *first[1:]]) == [*first, *first[1:]]  # a restart repeats a sync


@pytest.mark.parametrize(
    ("now", "alone", "verdict"),
    [
        ([0], [0], "exact"),
        ([0, 0], [0, 3], "safe"),
        ([0], [None], "unknown"),
        ([None], [0], "unknown"),
    ],
)
def test_the_verdict_of_a_check_is_about_the_day_when_the_source_is_gone(now, alone, verdict):
    def translated(again):
        orders = TopicPartition("orders", 0)
        found = Translation(None) if again is None else Translation(5, again=again)
        return TranslatedPartition("0", orders, 7, orders, found)

    check = MirrorCheck(
        "s3a://x", 3, [*map(translated, now)], [*map(translated, alone)], 3, syncs_on_mirror=True
    )
    assert check.as_json()["verdict"] == verdict


def test_a_position_that_the_mirror_has_deleted_is_not_ready():
    orders = TopicPartition("orders", 0)
    deleted = TranslatedPartition("0", orders, 7, orders, Translation(5), LogRange(6, 9))
    check = MirrorCheck("s3a://x", 3, [], [deleted], 3, syncs_on_mirror=True)
    assert check.verdict == "unknown"
    assert "its position on orders-0 is one that the mirror has deleted" in "\n".join(
        check.failures(None, None)
    )


@pytest.mark.parametrize(
    ("found", "kept"),
    [([{"alike": [4]}, {"copies": [3]}], True), ([{}, {"alike": [4]}], False), ([{}], None), ([], None)],
)
def test_one_copy_with_its_time_shows_that_the_mirror_keeps_times(found, kept):
    orders, last = TopicPartition("orders", 0), LastRead(7, RecordIdentity(6, 1, "d"))
    searches = [Search(last, 0, 9, **each) for each in found]
    now = TranslatedPartition("0", orders, 7, orders, Translation(5), searches=searches)
    assert MirrorCheck("s3a://x", 3, [now], [], 3, syncs_on_mirror=True).keeps_times is kept


def test_a_check_names_what_is_missing():
    check = MirrorCheck("s3a://x", 3, [], [], -1, syncs_on_mirror=False)
    assert check.behind == 0
    assert not check.failures(0, 0)
    assert "no data yet" in "\n".join(check.lines())
    assert "lost with it" in "\n".join(check.lines())


@pytest.mark.parametrize("partition", [0, 1])
def test_two_topics_that_get_one_name_on_the_mirror_are_refused(partition):
    sources = {"0": {TopicPartition("a", 0): 3, TopicPartition("b", partition): 5}}
    with pytest.raises(MisnamedError, match="gives a, b the same name 'b'"):
        translate_sources(None, Mirror(topics={"a": "b"}), sources, None)  # type: ignore[arg-type]
