"""What the broker in memory and a real Kafka have in common: the same tests run against both."""

import json

import pytest
from deadlines import until

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    CommitError,
    GroupActiveError,
    UnknownTopicPartitionError,
    UsageError,
    WindowMismatchError,
)
from airflow_kafka_offsets.kafka.record_reads import RecordOffsets
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import Commit, LogRange, OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.write import commit_window
from airflow_kafka_offsets.readings.retention import read_retentions

MONDAY = 1_767_571_200_000
"""A time of records, in milliseconds since 1970."""
TIMES = [MONDAY + second * 1_000 for second in range(10)]


def partitions_of(topic, count=3):
    return [TopicPartition(topic, number) for number in range(count)]


@pytest.fixture
def client(cluster):
    return cluster.client


@pytest.fixture
def topic(cluster):
    """A topic of three partitions with ten, five and no records."""
    return cluster.topic(3, {0: TIMES, 1: TIMES[:5]})


@pytest.fixture
def group(new_group):
    return new_group()


# --- topics and logs


def test_partitions_are_those_of_the_topics_that_exist(client, topic):
    assert client.partitions([topic, "no-such-topic"]) == {topic: [0, 1, 2]}
    assert client.partitions([]) == {}


def test_all_topics_leave_out_kafkas_own(client, topic, group):
    client.commit(group, {TopicPartition(topic, 0): 0})
    found = client.partitions()
    assert found[topic] == [0, 1, 2]
    assert "__consumer_offsets" not in found
    assert client.sees_all_topics()


def test_a_topic_keeps_its_id_until_it_is_created_again(cluster, topic):
    before = cluster.client.log_ids([topic, "no-such-topic"])
    assert before.cluster == cluster.client.cluster_id()
    assert set(before.topics) == {topic}
    assert cluster.client.log_ids([topic]) == before
    cluster.recreate(topic, 1)
    after = cluster.client.log_ids([topic])
    assert after.cluster == before.cluster
    assert after.topics[topic] != before.topics[topic]


def test_a_topic_that_is_created_again_is_empty_and_nothing_is_committed_to_it(cluster, topic, group):
    cluster.client.commit(group, dict.fromkeys(partitions_of(topic), 3))
    assert cluster.client.log_ranges(partitions_of(topic))[TopicPartition(topic, 0)].end == 10
    cluster.recreate(topic, 2)
    both = partitions_of(topic, 2)
    assert cluster.client.partitions([topic]) == {topic: [0, 1]}
    assert cluster.client.log_ranges(both) == dict.fromkeys(both, LogRange(0, 0))
    assert cluster.client.committed(group, both) == dict.fromkeys(both)
    cluster.client.commit(group, dict.fromkeys(both, 0))
    assert cluster.client.committed(group, both) == dict.fromkeys(both, Commit(0))


def test_added_partitions_are_empty_and_the_others_keep_what_they_have(cluster, topic, group):
    cluster.client.commit(group, dict.fromkeys(partitions_of(topic), 3))
    before = cluster.client.log_ids([topic])
    cluster.grow(topic, 5)
    added = partitions_of(topic, 5)[3:]
    assert cluster.client.partitions([topic]) == {topic: [0, 1, 2, 3, 4]}
    assert cluster.client.log_ids([topic]) == before
    assert cluster.client.log_ranges(added) == dict.fromkeys(added, LogRange(0, 0))
    assert cluster.client.committed(group, added) == dict.fromkeys(added)
    assert cluster.client.log_ranges(partitions_of(topic))[TopicPartition(topic, 0)].end == 10


def test_log_ranges_of_full_emptied_and_untouched_partitions(cluster, topic):
    cluster.delete_records(topic, {0: 4, 1: 5})
    assert list(cluster.client.log_ranges(partitions_of(topic)).values()) == [
        LogRange(4, 10),
        LogRange(5, 5),
        LogRange(0, 0),
    ]


def test_the_settings_of_topics_that_decide_how_long_records_stay(cluster):
    changed = {"cleanup.policy": "compact,delete", "retention.ms": "86400000", "retention.bytes": "1000000"}
    plain, own = cluster.topic(1), cluster.topic(1, **changed)
    found = cluster.client.topic_settings([plain, own, "no-such-topic"])
    assert isinstance(found.pop("no-such-topic"), UnknownTopicPartitionError)
    with pytest.raises(UnknownTopicPartitionError, match="settings of topic 'no-such-topic'"):
        read_retentions(cluster.client, ["no-such-topic"])
    assert {name: found[own][name] for name in changed} == changed
    assert [found[plain][name] for name in changed] == ["delete", "-1", "-1"]


def test_what_is_not_on_the_broker_is_named(client, topic):
    asked = [*partitions_of(topic), TopicPartition(topic, 7), TopicPartition("no-such-topic", 0)]
    text = rf"reading the log ends of no-such-topic-0, {topic}-0.*: no-such-topic-0, {topic}-7 is not on"
    with pytest.raises(UnknownTopicPartitionError, match=text) as caught:
        client.log_ranges(asked)
    assert set(caught.value.missing) == set(asked[3:])
    for look in (
        lambda: client.offsets_for_time([TopicPartition(topic, 7)], 0),
        lambda: client.record_times({TopicPartition(topic, 7): 0}),
    ):
        with pytest.raises(UnknownTopicPartitionError, match=f"{topic}-7 is not on"):
            look()


def test_a_time_gives_the_first_record_at_or_after_it(cluster, topic):
    cluster.delete_records(topic, {0: 4})
    at = dict(enumerate(partitions_of(topic)))
    found_at: dict[int, dict[int, int | None]] = {
        TIMES[4]: {0: 4, 1: 4, 2: None},
        TIMES[4] + 1: {0: 5, 1: None, 2: None},
        0: {0: 4, 1: 0, 2: None},
        TIMES[9] + 1: {0: None, 1: None, 2: None},
    }
    for moment, found in found_at.items():
        expected = {at[number]: offset for number, offset in found.items()}
        assert cluster.client.offsets_for_time(at.values(), moment) == expected
    with pytest.raises(UsageError, match="expected milliseconds since 1970"):
        cluster.client.offsets_for_time(at.values(), -1)


def test_a_time_gives_the_first_record_by_its_offset_although_their_times_are_in_no_order(cluster):
    first = TopicPartition(cluster.topic(1, {0: [TIMES[at] for at in (1, 6, 0, 4, 8, 2)]}), 0)
    for moment, offset in {TIMES[0]: 0, TIMES[2]: 1, TIMES[7]: 4, TIMES[9]: None}.items():
        assert cluster.client.offsets_for_time([first], moment) == {first: offset}
    assert cluster.client.first_since({first: OffsetRange(2, 6)}, TIMES[3]) == {first: (3, TIMES[4])}


def test_the_time_of_a_record_at_the_start_the_middle_the_end_and_beyond(cluster, topic):
    cluster.delete_records(topic, {0: 4})
    first, second, third = partitions_of(topic)
    for offset, moment in {0: TIMES[4], 4: TIMES[4], 7: TIMES[7], 9: TIMES[9], 10: None, 99: None}.items():
        assert cluster.client.record_times({first: offset}) == {first: moment}
    asked = {first: 8, second: 1, third: 0}
    assert cluster.client.record_times(asked) == {first: TIMES[8], second: TIMES[1], third: None}
    assert cluster.client.record_times({}) == {}


def test_the_first_record_since_a_time_is_looked_for_in_a_range(cluster, topic):
    cluster.delete_records(topic, {0: 4})
    first, second, third = partitions_of(topic)
    found: dict[tuple[int, int], int | None] = {(4, 10): 5, (7, 10): 7, (4, 5): None, (5, 5): None}
    for (start, end), offset in found.items():
        expected = {first: None if offset is None else (offset, TIMES[offset])}
        assert cluster.client.first_since({first: OffsetRange(start, end)}, TIMES[5]) == expected
    ranges = {first: OffsetRange(8, 10), second: OffsetRange(0, 5), third: OffsetRange(0, 0)}
    assert cluster.client.first_since(ranges, TIMES[4]) == {
        first: (8, TIMES[8]),
        second: (4, TIMES[4]),
        third: None,
    }
    # The log is shorter now, such as that of a topic that was created again: nothing is known of the rest.
    assert cluster.client.first_since({first: OffsetRange(8, 12)}, TIMES[9] + 1) == {}
    assert cluster.client.first_since({}, 0) == {}


def test_the_records_of_ranges_are_read_in_order(cluster, topic):
    cluster.delete_records(topic, {0: 4})
    first, second, third = partitions_of(topic)
    found: dict[TopicPartition, list[tuple[int, int]]] = {first: [], second: [], third: []}
    ranges = {first: OffsetRange(4, 7), second: OffsetRange(3, 5), third: OffsetRange(0, 0)}
    reached = cluster.client.read_records(
        ranges, lambda tp, record: found[tp].append((record.offset, record.timestamp))
    )
    assert reached == {first: 7, second: 5, third: 0}
    assert found == {
        first: [(at, TIMES[at]) for at in (4, 5, 6)],
        second: [(at, TIMES[at]) for at in (3, 4)],
        third: [],
    }


def test_the_marker_of_a_transaction_is_in_the_log_and_no_record(cluster):
    client, first = cluster.client, TopicPartition(cluster.topic(1), 0)
    cluster.send_in_transaction(first, TIMES[1])
    cluster.send_in_transaction(first, TIMES[0])
    # The broker confirms a commit before it has written the marker.
    until(lambda: client.log_ranges([first]) == {first: LogRange(0, 4)}, "the last marker")
    # A marker has the broker's time.
    assert client.offsets_for_time([first], TIMES[2]) == {first: 1}
    for offset, moment in {0: TIMES[1], 1: TIMES[0], 2: TIMES[0], 3: None}.items():
        assert client.record_times({first: offset}) == {first: moment}
    assert client.first_since({first: OffsetRange(0, 4)}, TIMES[2]) == {first: None}
    assert client.first_since({first: OffsetRange(1, 4)}, TIMES[0]) == {first: (2, TIMES[0])}
    found = client.record_offsets({first: merge([(0, 4)])}, within=20)
    assert found == RecordOffsets({first: merge([(0, 1), (2, 3)])}, {})
    for offset, records in {0: 2, 1: 1, 3: 0}.items():
        assert len(client.record_sizes({first: offset}, within=20).get(first, ())) == records


# --- commits


def test_a_commit_is_what_is_read(client, topic, group):
    first, second, third = partitions_of(topic)
    client.commit(group, {first: 7, second: 5}, '{"run": "é"}')
    found = {first: Commit(7, '{"run": "é"}'), second: Commit(5, '{"run": "é"}')}
    assert client.committed(group, [first, second, third]) == {**found, third: None}
    assert client.committed_everywhere(group) == found
    client.commit(group, {second: 0}, {topic: "later"})
    assert client.committed_everywhere(group) == {first: found[first], second: Commit(0, "later")}
    client.commit(group, {second: 99})
    assert client.committed(group, [second]) == {second: Commit(99, "")}


def test_an_unknown_group_and_a_missing_partition_have_no_commit(client, topic, group):
    asked = [*partitions_of(topic), TopicPartition(topic, 99), TopicPartition("no-such-topic", 0)]
    assert client.committed(group, asked) == dict.fromkeys(asked)
    assert client.committed_everywhere(group) == {}
    assert client.committed(group, []) == {}


def test_the_commits_of_many_groups_are_read_together(client, topic, new_group):
    first, second, third = partitions_of(topic)
    one, other, empty = new_group(), new_group(), new_group()
    client.commit(one, {first: 1, second: 2})
    client.commit(other, {third: 3})
    assert client.committed_groups({one: None, other: [third, first], empty: None}) == {
        one: {first: Commit(1), second: Commit(2)},
        other: {third: Commit(3)},
        empty: {},
    }


def test_a_check_is_given_what_a_commit_overwrites_and_may_end_it(client, topic, group):
    first, second, _ = partitions_of(topic)
    client.commit(group, {first: 1}, "before")
    seen = []
    client.commit(group, {first: 2, second: 2}, check=seen.append)
    assert seen == [{first: Commit(1, "before"), second: None}]

    def refuse(commits):
        raise UsageError("no")

    with pytest.raises(UsageError, match="^no$"):
        client.commit(group, {first: 3}, check=refuse)
    assert client.committed(group, [first]) == {first: Commit(2)}


def test_a_commit_that_was_refused_in_part_says_what_was_written(client, topic, group):
    good = partitions_of(topic)[:2]
    bad = [TopicPartition(topic, 5), TopicPartition("no-such-topic", 0)]
    with pytest.raises(CommitError, match="2 of 4 partitions were not committed") as caught:
        client.commit(group, dict.fromkeys([*good, *bad], 0))
    assert caught.value.failed == dict.fromkeys(bad, "UNKNOWN_TOPIC_OR_PART")
    assert set(caught.value.written) == set(good)
    assert not caught.value.retriable
    assert set(client.committed_everywhere(group)) == set(good)


def test_single_offsets_are_deleted_but_not_of_topics_that_members_read(cluster, topic, group):
    pytest.importorskip("kafka")
    client, (first, second, third) = cluster.client, partitions_of(topic)
    client.commit(group, {first: 1, second: 2})
    assert client.delete_offsets(group, [first, third]) == {first: None, third: None}
    assert client.committed_everywhere(group) == {second: Commit(2)}
    with cluster.member(group, topic):
        (refusal,) = client.delete_offsets(group, [second]).values()
        assert refusal == "members of the group read the topic (GROUP_SUBSCRIBED_TO_TOPIC): stop them first"
    assert client.committed_everywhere(group) == {second: Commit(2)}


def test_single_offsets_of_a_group_that_is_not_there_are_not_deleted(client, topic, group):
    pytest.importorskip("kafka")
    with pytest.raises(BrokerError) as caught:
        client.delete_offsets(group, [TopicPartition(topic, 0)])
    assert caught.value.code == "GROUP_ID_NOT_FOUND"
    assert client.describe_groups([group])[group].state == "Dead"


# --- groups


def test_groups_are_described_listed_and_deleted(client, topic, group, new_group):
    missing = new_group()
    client.commit(group, {TopicPartition(topic, 0): 0})
    found = client.describe_groups([group, missing])
    assert [(found[name].state, found[name].is_active, found[name].members) for name in (group, missing)] == [
        ("Empty", False, ()),
        ("Dead", False, ()),
    ]
    assert client.settled_groups([group])[group].state == "Empty"
    assert client.assigned(group) == frozenset()
    for states, kind in ((None, "classic"), (["empty"], "classic"), (["Stable"], None)):
        assert {each.group_id: each.type for each in client.list_groups(states)}.get(group) == kind
    assert client.delete_groups([group, missing]) == {group: None, missing: None}
    assert client.committed_everywhere(group) == {}
    assert client.describe_groups([]) == {}
    client.commit(group, {TopicPartition(topic, 0): 0}, "again")
    assert client.committed_everywhere(group) == {TopicPartition(topic, 0): Commit(0, "again")}


def test_a_group_with_members_is_not_committed_to_and_they_are_named(cluster, topic, group):
    client, first = cluster.client, TopicPartition(topic, 0)
    client.commit(group, {first: 1})
    window = OffsetWindow({first: OffsetRange(1, 2)})
    with cluster.member(group, topic):
        described = client.describe_groups([group])[group]
        assert (described.state, described.is_active, described.is_occupied) == ("Stable", True, False)
        assert [member.partitions for member in described.members] == [tuple(partitions_of(topic))]
        assert client.assigned(group) == frozenset(partitions_of(topic))
        for commit in (
            lambda: client.commit(group, {first: 2}),
            lambda: commit_window(client, group, window),
            lambda: commit_window(client, group, window, fenced=False),
        ):
            with pytest.raises(GroupActiveError) as caught:
                commit()
            assert str(caught.value) == (
                f"group '{group}' has 1 active member (a-reader on 127.0.0.1), and only they may commit: "
                "stop them and try again; nothing was written"
            )
            assert not caught.value.retriable
        client.prove_commit(group, [topic])  # the right is there
        assert client.delete_groups([group]) == {group: "the group has active members: stop them first"}
        assert client.committed(group, [first]) == {first: Commit(1)}
    client.commit(group, {first: 2})
    assert client.committed(group, [first]) == {first: Commit(2)}


@pytest.mark.parametrize("fenced", [True, False])
def test_a_window_is_committed_once_with_its_metadata(client, topic, group, fenced):
    first, second, _ = partitions_of(topic)
    begin = OffsetWindow({tp: OffsetRange(0, 3) for tp in (first, second)}, frozenset({first, second}))
    assert commit_window(client, group, begin, "mine", fenced=fenced) == {first: 3, second: 3}
    assert client.committed_everywhere(group) == dict.fromkeys((first, second), Commit(3, "mine"))
    assert commit_window(client, group, begin, "mine", fenced=fenced) == {}
    client.commit(group, {first: 5})
    ranges = OffsetWindow(dict.fromkeys((first, second), OffsetRange(3, 5)))
    assert commit_window(client, group, ranges, fenced=fenced) == {second: 5}
    assert client.describe_groups([group])[group].state == "Empty"


@pytest.mark.parametrize("fenced", [True, False])
def test_a_window_is_refused_where_the_group_is_elsewhere(client, topic, group, fenced):
    first, second, _ = partitions_of(topic)
    client.commit(group, {first: 3, second: 4})
    ranges = OffsetWindow(dict.fromkeys((first, second), OffsetRange(3, 5)))
    with pytest.raises(WindowMismatchError, match="-1: found 4, the range goes from 3 to 5"):
        commit_window(client, group, ranges, fenced=fenced)
    assert client.committed(group, [first, second]) == {first: Commit(3), second: Commit(4)}


def test_answers_are_plain_data(client, topic):
    assert json.loads(json.dumps(client.partitions([topic]))) == {topic: [0, 1, 2]}
    assert client.offsets_retention_minutes() == 7 * 24 * 60


# --- rights


def test_a_group_that_may_only_be_looked_at_is_not_committed_to(secured, group):
    first = TopicPartition(secured.topic(1), 0)
    client = secured.user(("topic", first.topic, "Read"), ("group", group, "Describe"))
    window = OffsetWindow({first: OffsetRange(0, 0)}, frozenset({first}))
    assert client.committed(group, [first]) == {first: None}
    assert client.describe_groups([group])[group].state == "Dead"
    for commit in (
        lambda: client.commit(group, {first: 0}),
        lambda: commit_window(client, group, window),
        lambda: commit_window(client, group, window, fenced=False),
    ):
        with pytest.raises(
            BrokerAuthenticationError, match="grant it Read on the group; nothing was written"
        ) as caught:
            commit()
        assert caught.value.code == "GROUP_AUTHORIZATION_FAILED"
    with pytest.raises(BrokerAuthenticationError, match="grant it Read on the group; nothing was changed"):
        client.prove_commit(group, [first.topic])
    assert secured.client.committed(group, [first]) == {first: None}


def test_a_topic_that_is_hidden_or_may_only_be_looked_at_takes_no_commit(secured, group):
    allowed, seen, hidden = (TopicPartition(secured.topic(1, {0: TIMES[:1]}), 0) for _ in range(3))
    client = secured.user(
        ("group", group, "Read"), ("topic", allowed.topic, "Read"), ("topic", seen.topic, "Describe")
    )
    for look in (
        lambda: client.log_ranges([hidden]),
        lambda: client.offsets_for_time([hidden], 0),
        lambda: client.partitions([hidden.topic]),
        lambda: client.committed(group, [hidden]),
    ):
        with pytest.raises(
            BrokerAuthenticationError, match=r"grant it Describe on the topics \(Read includes"
        ):
            look()
    assert not client.sees_all_topics()
    assert hidden.topic not in client.partitions()
    assert client.log_ranges([seen]) == {seen: LogRange(0, 1)}
    assert client.offsets_for_time([seen], 0) == {seen: 0}
    with pytest.raises(BrokerAuthenticationError, match="grant it Read on the topics$"):
        client.record_times({seen: 0})
    read = "grant it Read on the topics"
    with pytest.raises(BrokerAuthenticationError, match=f"{read}; nothing was written"):
        client.commit(group, {allowed: 0, hidden: 0})
    with pytest.raises(CommitError, match=read) as in_part:
        client.commit(group, {allowed: 0, seen: 0})
    for other in (hidden, seen):
        with pytest.raises(BrokerAuthenticationError, match=f"{read}; nothing was changed"):
            client.prove_commit(group, [allowed.topic, other.topic])
    assert in_part.value.failed == {seen: "TOPIC_AUTHORIZATION_FAILED"}
    assert in_part.value.written == (allowed,)
    client.prove_commit(group, [allowed.topic])
    assert secured.client.committed(group, [allowed, seen]) == {allowed: Commit(0), seen: None}


def test_a_group_is_listed_and_deleted_by_those_who_may(secured, group):
    first = TopicPartition(secured.topic(1), 0)
    secured.client.commit(group, {first: 0})
    client = secured.user()
    assert client.list_groups() == []
    assert "grant it Delete on the group" in client.delete_groups([group])[group]
    for look in (lambda: client.committed(group, [first]), lambda: client.describe_groups([group])):
        with pytest.raises(
            BrokerAuthenticationError, match=r"grant it Describe on the group \(Read includes"
        ) as caught:
            look()
        assert caught.value.code == "GROUP_AUTHORIZATION_FAILED"
    assert secured.user(("group", group, "Delete")).delete_groups([group]) == {group: None}


def test_single_offsets_are_deleted_by_those_who_may(secured, group):
    pytest.importorskip("kafka")
    read, seen = (TopicPartition(secured.topic(1), 0) for _ in range(2))
    secured.client.commit(group, {read: 0, seen: 0})
    rights = [("topic", read.topic, "Read"), ("topic", seen.topic, "Describe")]
    with pytest.raises(BrokerAuthenticationError, match="grant it Delete on the group"):
        secured.user(*rights, ("group", group, "Read")).delete_offsets(group, [read])
    found = secured.user(*rights, ("group", group, "Delete")).delete_offsets(group, [read, seen])
    assert found[read] is None
    assert "grant it Read on the topics" in str(found[seen])
    assert secured.client.committed(group, [read, seen]) == {read: None, seen: Commit(0)}


def test_the_ids_of_topics_are_for_those_who_may_see_them(secured):
    seen, hidden = secured.topic(1), secured.topic(1)
    client = secured.user(("topic", seen, "Describe"))
    assert client.log_ids([seen]) == secured.client.log_ids([seen])
    with pytest.raises(BrokerAuthenticationError, match=r"grant it Describe on the topics"):
        client.log_ids([seen, hidden])


def test_a_right_that_is_missing_is_the_error_of_its_group_only(secured, new_group):
    seen, hidden = (TopicPartition(secured.topic(1), 0) for _ in range(2))
    allowed, denied, other = new_group(), new_group(), new_group()
    for name in (allowed, denied, other):
        secured.client.commit(name, {seen: 0, hidden: 0})
    rights = [("topic", seen.topic, "Describe"), ("group", allowed, "Describe"), ("group", other, "Describe")]
    client = secured.user(*rights)
    found = client.committed_groups({allowed: None, denied: [seen], other: [hidden]})
    assert found[allowed] == {seen: Commit(0)}
    assert "GROUP_AUTHORIZATION_FAILED" in str(found[denied])
    # A topic that is hidden is not one without a commit.
    assert "TOPIC_AUTHORIZATION_FAILED" in str(found[other])
    assert client.committed_everywhere(allowed) == {seen: Commit(0)}


def test_settings_are_for_those_who_may_see_them(secured):
    plain, own = secured.topic(1), secured.topic(1)
    client = secured.user(("topic", plain, "Read"), ("topic", own, "DescribeConfigs"))
    found = client.topic_settings([plain, own, "no-such-topic"])
    assert found[own]["cleanup.policy"] == "delete"
    for name in (plain, "no-such-topic"):
        assert "grant it DescribeConfigs on the topics" in str(found[name])
    assert client.offsets_retention_minutes() is None
    assert secured.user(("cluster", "*", "DescribeConfigs")).offsets_retention_minutes() == 7 * 24 * 60
