import contextlib
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.groups import GroupSelection, parse_group_id
from airflow_kafka_offsets.model.names import MAX_GROUP_BYTES, parse_existing_group, parse_group
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.topics import TopicScope, plain_names

A0, A1, A9, B0 = (TopicPartition(*name) for name in (("a", 0), ("a", 1), ("a", 9), ("b", 0)))


def test_without_topics_everything_is_in_scope():
    assert A0 in TopicScope.parse(None)
    assert TopicScope.parse(None).topics is None


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


EMPTY = ["", " ", [], (), "[]", [""]]


@pytest.mark.parametrize("value", ["a:0-3", "a:", "a:x", "a b", 7, [7], {"a": 1}, "a:0:1", *EMPTY])
def test_other_spellings_are_refused_and_what_is_empty_is_not_everything(value):
    with pytest.raises(UsageError, match="^topics"):
        TopicScope.parse(value)


def test_a_partition_that_is_named_but_not_there_is_still_asked_for():
    assert TopicScope.parse("a:1,9").partitions_on_broker({"a": [0, 1]}) == [A1, TopicPartition("a", 9)]


SOURCES = {"0": {A0: 1, A1: 1}, "1": {B0: 1}}
TWICE = {"0": {A0: 1}, "1": {A0: 2}}
"""A partition that two sources read."""


@pytest.mark.parametrize(
    ("group_id", "topics", "sources", "found"),
    [
        ("g", None, {"0": {A0: 1}, "2": {B0: 2}}, {"g": {A0: 1, B0: 2}}),
        ({"source:0": "g", "source:1": "h"}, None, TWICE, {"g": {A0: 1}, "h": {A0: 2}}),
        ({"a": "g", "b": "h"}, None, {"0": {A0: 1, B0: 2}}, {"g": {A0: 1}, "h": {B0: 2}}),
        ({"a": "g"}, "a", {"0": {A0: 1, B0: 2}}, {"g": {A0: 1}}),
        ({"source:0": "g"}, "a:0", {"0": {A0: 1}, "1": {A1: 1}}, {"g": {A0: 1}}),
    ],
    ids=[
        "one group takes those of all sources",
        "two sources of one topic go to a group each",
        "topics go to their groups",
        "a topic that topics leaves out needs no group",
        "a source that topics leaves out needs no group",
    ],
)
def test_offsets_go_to_the_groups_that_are_named_for_them(group_id, topics, sources, found):
    assert GroupSelection(group_id, TopicScope.parse(topics)).assign_offsets(sources) == found


@pytest.mark.parametrize(
    ("group_id", "topics", "sources", "says"),
    [
        ("g", None, SOURCES | {"2": {A0: 2}}, 'a-0 occurs in source 0 and in source 2.*"source:0"'),
        ({"a": "g"}, None, {"0": {A0: 1, B0: 2}}, "topic 'b' of source 0 has no group"),
        ({"source:0": "g"}, "a", TWICE, "topic 'a' of source 1 has no group"),
        ({"a": "g", "oders": "h"}, None, {"0": {A0: 1}}, "'oders'"),
        ("g", ["a", "oders"], {"0": {A0: 1}}, "'oders'"),
        ("g", ["a:9", "b"], SOURCES, "topics names a-9, which the checkpoint does not have .it has a-0"),
    ],
)
def test_offsets_without_one_group_and_names_without_offsets_are_refused(group_id, topics, sources, says):
    with pytest.raises(PlanRefusedError, match=says):
        GroupSelection(group_id, TopicScope.parse(topics)).assign_offsets(sources)


def test_without_a_checkpoint_groups_look_at_their_own_topics():
    scopes = GroupSelection({"a": "g", "b": "h"}, TopicScope()).scopes()
    assert {group: scope.topics for group, scope in scopes.items()} == {"g": ["a"], "h": ["b"]}


def test_with_a_checkpoint_a_source_says_which_topics_its_group_has():
    scopes = GroupSelection({"source:0": "g", "b": "h"}, TopicScope()).scopes({"0": {A0: 1}, "1": {B0: 1}})
    assert {group: scope.topics for group, scope in scopes.items()} == {"g": ["a"], "h": ["b"]}


def test_topics_may_leave_out_a_key_and_its_group():
    scopes = GroupSelection({"a": "g", "b": "h"}, TopicScope.parse("a:1")).scopes()
    assert {group: scope.partitions for group, scope in scopes.items()} == {"g": {"a": frozenset({1})}}


def test_a_partition_that_the_checkpoint_does_not_have_is_left_to_the_broker_that_is_asked():
    assert A9 in GroupSelection("g", TopicScope.parse("a:9")).scopes(SOURCES)["g"]


@pytest.mark.parametrize(
    ("group_id", "topics", "sources", "says"),
    [
        ({"source:0": "g"}, None, None, "only from a checkpoint"),
        ({"orders": "g"}, "oders", None, "topics names 'oders', but group_id has no such key .it has orders"),
        ({"a": "g"}, None, SOURCES, "topic 'b' of source 1 has no group"),
        ({"a": "g", "b": "g", "oders": "h"}, None, SOURCES, "names 'oders', which the checkpoint does"),
        *(
            (group_id, topics, SOURCES, "'oders', which the checkpoint does not have .it has a, b")
            for group_id in ("g", {"a": "g", "b": "h"})
            for topics in ("oders", ["a", "oders"])
        ),
    ],
)
def test_a_group_is_looked_at_only_with_names_that_are_there(group_id, topics, sources, says):
    with pytest.raises(UsageError, match=says):
        GroupSelection(group_id, TopicScope.parse(topics)).scopes(sources)


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


# --- the names of a window

ASKED_BY_GROUPS = {"group_id": {"a": "g", "b": "h"}}


@pytest.mark.parametrize(
    ("topics", "asked", "left", "removed"),
    [
        (None, {}, None, []),
        (["a", "b"], {"topics": ["a", "b"]}, {"a": None}, ["b"]),
        (["a", "b"], {"topics_pattern": "a|b"}, {"a": None}, ["b"]),
        (["a", "b"], ASKED_BY_GROUPS, {"a": None}, ["b"]),
        (["a", "b"], {"topics": "a"}, {"a": None, "b": None}, []),
        ("a:0,1,9", {"topics": "a:0,1"}, {"a": {0, 9}}, ["a-1"]),
        (["a", "b:0"], {"topics": ["a", "b:0"]}, {"a": None}, ["b-0"]),
    ],
    ids=[
        "all topics",
        "a topic that the plan names",
        "a topic of the plan's pattern",
        "a topic of the plan's groups",
        "another topic is kept and will be refused",
        "a partition of the plan is removed and another one kept",
        "all partitions of a topic",
    ],
)
def test_of_a_window_only_names_are_removed_that_its_plan_has_left_out(topics, asked, left, removed):
    selection = GroupSelection("g", TopicScope.parse(topics))
    found, without = selection.restricted_to_window([A0], asked)
    assert (found.group_id, found.scope.partitions, without) == ("g", left, removed)


def test_of_a_windows_groups_only_keys_are_removed_that_its_plan_has_left_out():
    selection = GroupSelection({"a": "g", "b": "h", "oders": "h"})
    found, without = selection.restricted_to_window([A0], ASKED_BY_GROUPS)
    assert (found.group_id, without) == ({"a": "g", "oders": "h"}, ["b"])


def test_names_of_a_window_of_which_none_is_left_are_refused():
    with pytest.raises(
        PlanRefusedError, match=r"topics names b, which the window does not have \(it has a\)"
    ):
        GroupSelection("g", TopicScope.parse("b")).restricted_to_window([A0], {"topics": "b"})


# --- names of groups

UNCLEAN = ["a\0b", "\0", "\ud800", "a\udfff", "x" * (MAX_GROUP_BYTES + 1), "é" * (MAX_GROUP_BYTES // 2 + 1)]


@pytest.mark.parametrize(
    "name", ["a", "a b", "à", "\x85a", "a\xa0", "\u3000", "a\x1bb", "{{ g }}", "x" * MAX_GROUP_BYTES, "💾"]
)
def test_a_name_that_the_client_passes_on_is_taken_as_it_is(name):
    assert parse_group(name) == parse_existing_group(name) == name


@pytest.mark.parametrize("name", ["", " ", "\t\n", " a", "a ", "\ta", "a\n", "\va", "a\f", "\ra", *UNCLEAN])
def test_a_name_that_the_client_would_change_or_die_of_is_refused(name):
    with pytest.raises(UsageError, match=r"^group_id.*expected the name of a consumer group") as refused:
        parse_group(name)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["", None, 5, ["a"], *UNCLEAN])
def test_what_is_looked_up_must_be_a_name(name):
    with pytest.raises(UsageError, match="expected the name of a consumer group"):
        parse_existing_group(name)


@pytest.mark.parametrize("name", [" ", " a", "a\n"])
def test_whatever_others_have_created_can_be_looked_up_and_deleted(name):
    assert parse_existing_group(name) == name


@pytest.mark.parametrize(
    "value", [" a", {"orders": " "}, {"orders": "a", "payments": "b\n"}, '{"orders": "a\\u0000"}']
)
def test_names_are_refused_where_they_are_read(value):
    with pytest.raises(UsageError, match=r"^group_id"):
        parse_group_id(value)


@pytest.mark.parametrize(
    "value",
    [None, "", " ", 7, {}, {"a": ""}, {"a": None}, ["g"], "None", "null", {"a": "null"}, {"a": " "}],
)
def test_what_names_no_group_is_refused(value):
    with pytest.raises(UsageError, match=r"group_id: found|^group_id\['a'\] is (blank|empty)"):
        parse_group_id(value)


def test_a_mapping_may_come_as_json_text():
    assert parse_group_id('{"a": "g"}') == {"a": "g"}
