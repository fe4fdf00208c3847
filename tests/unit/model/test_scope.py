from __future__ import annotations

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError, UsageError
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.scope import TopicScope, group_offsets, group_scopes, parse_group_id

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize("nothing", [None, "", "None", [], "[]"])
def test_without_topics_everything_is_in_scope(nothing):
    assert A0 in TopicScope.parse(nothing)
    assert TopicScope.parse(nothing).topics is None


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
    assert TopicScope.parse("a:1,9").on_broker({"a": [0, 1]}) == [A1, TopicPartition("a", 9)]


def test_one_group_takes_the_offsets_of_all_sources():
    found = group_offsets({"0": {A0: 1}, "2": {B0: 2}}, "g")
    assert found.by_group == {"g": {A0: 1, B0: 2}}


def test_a_partition_in_two_sources_of_one_group_is_refused_with_the_remedy():
    with pytest.raises(PlanRefusedError) as refused:
        group_offsets({"0": {A0: 1, A1: 1}, "1": {A0: 2}}, "g")
    assert "a-0 occurs in source 0 and in source 1" in str(refused.value)
    assert '"source:0"' in str(refused.value)


def test_two_sources_of_one_topic_go_to_a_group_each():
    found = group_offsets({"0": {A0: 1}, "1": {A0: 2}}, {"source:0": "g", "source:1": "h"})
    assert found.by_group == {"g": {A0: 1}, "h": {A0: 2}}


def test_topics_go_to_their_groups():
    found = group_offsets({"0": {A0: 1, B0: 2}}, {"a": "g", "b": "h"})
    assert found.by_group == {"g": {A0: 1}, "h": {B0: 2}}


def test_a_topic_without_a_group_is_refused_unless_left_out():
    with pytest.raises(PlanRefusedError, match="topic 'b' of source 0 has no group"):
        group_offsets({"0": {A0: 1, B0: 2}}, {"a": "g"})
    found = group_offsets({"0": {A0: 1, B0: 2}}, {"a": "g"}, TopicScope.parse("a"))
    assert found.by_group == {"g": {A0: 1}}
    assert found.left_out == (B0,)


def test_a_name_that_the_checkpoint_does_not_have_is_refused():
    with pytest.raises(PlanRefusedError, match="'oders'"):
        group_offsets({"0": {A0: 1}}, {"a": "g", "oders": "h"})
    with pytest.raises(PlanRefusedError, match="'oders'"):
        group_offsets({"0": {A0: 1}}, "g", TopicScope.parse(["a", "oders"]))


def test_without_a_checkpoint_groups_look_at_their_own_topics():
    scopes = group_scopes({"a": "g", "b": "h"}, TopicScope())
    assert scopes["g"].topics == ["a"]
    assert scopes["h"].topics == ["b"]
    with pytest.raises(UsageError, match="only from a checkpoint"):
        group_scopes({"source:0": "g"}, TopicScope())


def test_with_a_checkpoint_a_source_says_which_topics_its_group_has():
    scopes = group_scopes({"source:0": "g", "b": "h"}, TopicScope(), {"0": {A0: 1}, "1": {B0: 1}})
    assert {group: scope.topics for group, scope in scopes.items()} == {"g": ["a"], "h": ["b"]}


@pytest.mark.parametrize("value", [None, "", " ", 7, {}, {"a": ""}, {"a": None}, ["g"]])
def test_what_names_no_group_is_refused(value):
    with pytest.raises(UsageError, match="group_id: found"):
        parse_group_id(value)


def test_a_mapping_may_come_as_json_text():
    assert parse_group_id('{"a": "g"}') == {"a": "g"}
