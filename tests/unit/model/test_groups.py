import contextlib
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.groups import GroupSelection, parse_group_id
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.topics import TopicScope, plain_names

A0, A1, A9, B0 = (TopicPartition(*name) for name in (("a", 0), ("a", 1), ("a", 9), ("b", 0)))


def test_without_topics_everything_is_in_scope():
    assert A0 in TopicScope.parse(None)
    assert TopicScope.parse(None).topics is None


@pytest.mark.parametrize("nothing", ["", " ", [], (), "[]", [""]])
def test_topics_that_are_given_and_empty_are_not_everything(nothing):
    with pytest.raises(UsageError, match="topics"):
        TopicScope.parse(nothing)


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        (("b", "a"), ["b", "a"]),
        ({"b", "a"}, ["a", "b"]),
        (MappingProxyType({"a": "g"}), {"a": "g"}),
        ("a", "a"),
        (None, None),
    ],
)
def test_names_are_compared_and_kept_as_the_json_that_they_become(names, plain):
    found = plain_names(names)
    assert (found, type(found)) == (plain, type(plain))


def test_none_as_text_is_a_name():
    assert TopicScope.parse("None").topics == ["None"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("['a', 'b']", "is not JSON"),
        ("('a', 'b')", "topics: found"),
        ('{"a": "g"}', "topics: found"),
        ("{'a': 'g'}", "is not JSON"),
        ('["a"', "is not JSON"),
    ],
)
def test_topics_that_are_no_json_are_told_their_form(value, found):
    with pytest.raises(UsageError, match=found) as refused:
        TopicScope.parse(value)
    assert "expected the name of a topic" in str(refused.value)
    assert ("| tojson" in str(refused.value)) is ("'" in value)


@pytest.mark.parametrize("value", ["{'a': 'g'}", '{"a": }', "['g']", '["g"]'])
def test_a_group_that_is_no_json_is_told_its_form(value):
    with pytest.raises(UsageError, match="expected the name of a consumer group") as refused:
        parse_group_id(value)
    assert ("| tojson" in str(refused.value)) is ("'" in value)


def test_brackets_are_allowed_in_a_group():
    assert parse_group_id("[eu] orders") == "[eu] orders"


@pytest.mark.parametrize("value", ["a:1", ["a:1"], '["a:1"]', ("a:1",)])
def test_partitions_are_named_as_in_kafkas_tool(value):
    scope = TopicScope.parse(value)
    assert A1 in scope
    assert A0 not in scope
    assert B0 not in scope


def test_a_whole_topic_wins_over_some_of_its_partitions():
    assert A1 in TopicScope.parse(["a:0", "a"])


@pytest.mark.parametrize("value", ["a:0-3", "a:", "a:x", "a b", 7, [7], {"a": 1}, "a:0:1"])
def test_other_spellings_are_refused(value):
    with pytest.raises(UsageError, match="topics: found"):
        TopicScope.parse(value)


def test_a_partition_that_is_named_but_not_there_is_still_asked_for():
    assert TopicScope.parse("a:1,9").partitions_on_broker({"a": [0, 1]}) == [A1, TopicPartition("a", 9)]


def test_one_group_takes_the_offsets_of_all_sources():
    found = GroupSelection("g").assign_offsets({"0": {A0: 1}, "2": {B0: 2}})
    assert found == {"g": {A0: 1, B0: 2}}


def test_a_partition_in_two_sources_of_one_group_is_refused_with_the_remedy():
    with pytest.raises(PlanRefusedError) as refused:
        GroupSelection("g").assign_offsets({"0": {A0: 1, A1: 1}, "1": {A0: 2}})
    assert "a-0 occurs in source 0 and in source 1" in str(refused.value)
    assert '"source:0"' in str(refused.value)


def test_two_sources_of_one_topic_go_to_a_group_each():
    found = GroupSelection({"source:0": "g", "source:1": "h"}).assign_offsets({"0": {A0: 1}, "1": {A0: 2}})
    assert found == {"g": {A0: 1}, "h": {A0: 2}}


def test_topics_go_to_their_groups():
    found = GroupSelection({"a": "g", "b": "h"}).assign_offsets({"0": {A0: 1, B0: 2}})
    assert found == {"g": {A0: 1}, "h": {B0: 2}}


def test_a_topic_without_a_group_is_refused_unless_left_out():
    with pytest.raises(PlanRefusedError, match="topic 'b' of source 0 has no group"):
        GroupSelection({"a": "g"}).assign_offsets({"0": {A0: 1, B0: 2}})
    found = GroupSelection({"a": "g"}, TopicScope.parse("a")).assign_offsets({"0": {A0: 1, B0: 2}})
    assert found == {"g": {A0: 1}}


def test_a_name_that_the_checkpoint_does_not_have_is_refused():
    with pytest.raises(PlanRefusedError, match="'oders'"):
        GroupSelection({"a": "g", "oders": "h"}).assign_offsets({"0": {A0: 1}})
    with pytest.raises(PlanRefusedError, match="'oders'"):
        GroupSelection("g", TopicScope.parse(["a", "oders"])).assign_offsets({"0": {A0: 1}})


def test_without_a_checkpoint_groups_look_at_their_own_topics():
    scopes = GroupSelection({"a": "g", "b": "h"}, TopicScope()).scopes()
    assert scopes["g"].topics == ["a"]
    assert scopes["h"].topics == ["b"]
    with pytest.raises(UsageError, match="only from a checkpoint"):
        GroupSelection({"source:0": "g"}, TopicScope()).scopes()


def test_with_a_checkpoint_a_source_says_which_topics_its_group_has():
    scopes = GroupSelection({"source:0": "g", "b": "h"}, TopicScope()).scopes({"0": {A0: 1}, "1": {B0: 1}})
    assert {group: scope.topics for group, scope in scopes.items()} == {"g": ["a"], "h": ["b"]}


def test_a_topic_without_a_key_in_group_id_is_refused_with_the_keys_there_are():
    with pytest.raises(UsageError, match="topics names 'oders', but group_id has no such key .it has orders"):
        GroupSelection({"orders": "g"}, TopicScope.parse("oders")).scopes()
    with pytest.raises(UsageError, match="'oders'"):
        GroupSelection({"orders": "g"}, TopicScope.parse(["orders", "oders"])).scopes()


def test_topics_may_leave_out_a_key_and_its_group():
    scopes = GroupSelection({"a": "g", "b": "h"}, TopicScope.parse("a:1")).scopes()
    assert {group: scope.partitions for group, scope in scopes.items()} == {"g": {"a": frozenset({1})}}


SOURCES = {"0": {A0: 1, A1: 1}, "1": {B0: 1}}


@pytest.mark.parametrize("group_id", ["g", {"a": "g", "b": "h"}])
@pytest.mark.parametrize("topics", ["oders", ["a", "oders"]])
def test_a_topic_that_the_checkpoint_does_not_have_is_refused_with_those_it_has(group_id, topics):
    with pytest.raises(UsageError, match="'oders', which the checkpoint does not have .it has a, b"):
        GroupSelection(group_id, TopicScope.parse(topics)).scopes(SOURCES)


def test_a_group_is_looked_at_only_with_the_names_that_it_is_committed_with():
    with pytest.raises(UsageError, match="topic 'b' of source 1 has no group"):
        GroupSelection({"a": "g"}, TopicScope()).scopes(SOURCES)
    with pytest.raises(UsageError, match="group_id names 'oders', which the checkpoint does not have"):
        GroupSelection({"a": "g", "b": "g", "oders": "h"}, TopicScope()).scopes(SOURCES)


def test_a_partition_that_the_checkpoint_does_not_have_is_refused_unless_the_broker_is_asked():
    with pytest.raises(
        PlanRefusedError, match="topics names a-9, which the checkpoint does not have .it has a-0"
    ):
        GroupSelection("g", TopicScope.parse(["a:9", "b"])).assign_offsets(SOURCES)
    assert A9 in GroupSelection("g", TopicScope.parse("a:9")).scopes(SOURCES)["g"]


def test_a_source_that_topics_leaves_out_needs_no_group():
    sources = {"0": {A0: 1}, "1": {A1: 1}}
    assert GroupSelection({"source:0": "g"}, TopicScope.parse("a:0")).assign_offsets(sources) == {
        "g": {A0: 1}
    }
    with pytest.raises(PlanRefusedError, match="topic 'a' of source 1 has no group"):
        GroupSelection({"source:0": "g"}, TopicScope.parse("a")).assign_offsets(sources)


names = st.sampled_from(["a", "b", "c", "x"])
groups = st.sampled_from(["g", "h"])
sources_of = st.none() | st.dictionaries(
    st.sampled_from(["0", "1"]),
    st.dictionaries(st.builds(TopicPartition, names, st.integers(0, 2)), st.integers(0, 9), min_size=1),
    min_size=1,
)
group_ids = groups | st.dictionaries(
    names | st.sampled_from(["source:0", "source:1"]), groups, min_size=1, max_size=3
)
entries = st.tuples(names, st.none() | st.integers(0, 3)).map(
    lambda named: named[0] if named[1] is None else f"{named[0]}:{named[1]}"
)


@given(group_ids, st.none() | st.lists(entries, min_size=1, max_size=3), sources_of)
def test_names_select_something_each_or_are_refused(group_id, topics, sources):
    scope = TopicScope.parse(topics)
    with contextlib.suppress(UsageError):
        scopes = GroupSelection(group_id, scope).scopes(sources)
        assert scopes
        for topic in scope.topics or ():
            assert any(found.allows(topic) for found in scopes.values())
        assert all(found.topics is None or found.topics for found in scopes.values())
    with contextlib.suppress(PlanRefusedError):
        found = GroupSelection(group_id, scope).assign_offsets(sources or {}) if sources else {"": {A0: 0}}
        assert any(found.values())
        selected = {tp for offsets in found.values() for tp in offsets}
        assert not sources or set(scope.topics or ()) <= {tp.topic for tp in selected}
        assert not sources or set(scope.explicit_partitions) <= selected


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " ",
        7,
        {},
        {"a": ""},
        {"a": None},
        ["g"],
        "None",
        "null",
        {"a": "null"},
        {"a": "None"},
        {"a": " "},
    ],
)
def test_what_names_no_group_is_refused(value):
    with pytest.raises(UsageError, match=r"group_id: found|^group_id\['a'\] is (blank|empty)"):
        parse_group_id(value)


def test_a_mapping_may_come_as_json_text():
    assert parse_group_id('{"a": "g"}') == {"a": "g"}
