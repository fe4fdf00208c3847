from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.commit_metadata import MANY_PARTITIONS, MAX_BYTES_OF_MANY, CommitMetadata
from airflow_kafka_offsets.model.commit_origins import commit_log_refusals, log_ids_of
from airflow_kafka_offsets.model.log_ids import UNKNOWN_LOGS, LogIds, other_logs_refusals
from airflow_kafka_offsets.model.offsets import Commit, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
CLUSTER, OTHER = "lkXRs0e3Qk6bJZ6Y0wq0aQ", "4L6g3nShT-eMCtK--X86sw"
NOW = LogIds(CLUSTER, {"a": "id-a", "b": "id-b"})

ids = st.text(st.characters(codec="ascii", categories=["L", "N"]) | st.sampled_from("-_"), max_size=22)
log_ids = st.builds(LogIds, ids, st.dictionaries(st.sampled_from(["a", "b", "c"]), ids))


@given(log_ids)
def test_ids_read_back(value):
    assert LogIds.parse(value.as_json()) == value


@given(log_ids, log_ids)
def test_what_is_unknown_on_either_side_refuses_nothing(then, now):
    for known, other in ((then, UNKNOWN_LOGS), (UNKNOWN_LOGS, now), (then, then)):
        assert other_logs_refusals("the receipt", known, other) == []
    refused = bool(other_logs_refusals("the receipt", then, now))
    differs = then.cluster and now.cluster and then.cluster != now.cluster
    again = any(
        then.topics[each] and now.topics.get(each, "") not in ("", then.topics[each]) for each in then.topics
    )
    assert refused == bool(differs or again)


def test_another_cluster_is_named_with_both_ids_and_what_to_do():
    (refusal,) = other_logs_refusals("the receipt", LogIds(OTHER, {"a": "other"}), NOW, old_offsets=False)
    for part in ("the receipt", OTHER, CLUSTER, "MirrorMaker", "connection", "allow_new_cluster=True"):
        assert part in refusal


def test_a_topic_that_was_created_again_is_named_with_both_ids():
    then = LogIds(CLUSTER, {"a": "before", "b": "id-b"})
    (refusal,) = other_logs_refusals("the receipt", then, NOW)
    for part in ("'a'", "before", "id-a", "created again", "allow_new_cluster=True"):
        assert part in refusal
    assert "'b'" not in refusal
    assert other_logs_refusals("the receipt", then, NOW, old_offsets=False) == []


@pytest.mark.parametrize(
    "value", [1, "c", [], {"cluster": 1}, {"cluster": None}, {"topics": []}, {"topics": {"a": 1}}]
)
def test_anything_else_is_refused(value):
    with pytest.raises(OffsetsFormatError, match="receipt, logs: found"):
        LogIds.parse(value, "receipt, logs")


def test_each_topic_has_a_text_of_its_own():
    texts = CommitMetadata(query="q").texts([A0, A1, B0], NOW)
    assert texts == {
        topic: f'{{"query":"q","cluster":"{CLUSTER}","topic":"id-{topic}","partitions":3}}' for topic in "ab"
    }


@given(st.text(max_size=200), st.uuids().map(str), st.booleans())
def test_a_commit_of_many_partitions_keeps_query_cluster_and_topic(text, query, long):
    metadata = CommitMetadata(dag=text, run=text, task=text, user=text, query=query, batch=10**18, token=text)
    many = [TopicPartition("a", number) for number in range(MANY_PARTITIONS + 1 if long else 1)]
    (made,) = metadata.texts(many, LogIds(CLUSTER, {"a": OTHER})).values()
    found = CommitMetadata.parse(made)
    assert found is not None
    assert (found.query, found.cluster, found.topic) == (query, CLUSTER, OTHER)
    assert len(made) <= (MAX_BYTES_OF_MANY if long else 4_000)


def commits(*made):
    return dict(zip([A0, A1, B0], [each and Commit(5, each.text()) for each in made], strict=False))


def test_one_commit_of_other_logs_is_enough():
    mine, copied = CommitMetadata(cluster=CLUSTER, topic="id-a"), CommitMetadata(cluster=OTHER, topic="x")
    assert commit_log_refusals("g", commits(mine, mine, None), NOW) == []
    for mixed in (commits(mine, copied), commits(copied, mine)):
        assert log_ids_of(mixed, NOW) == LogIds(OTHER, {"a": "x"})
        (refusal,) = commit_log_refusals("g", mixed, NOW)
        assert "last commit of group 'g'" in refusal
        assert OTHER in refusal


def test_commits_without_ids_or_of_others_are_unknown():
    assert log_ids_of({A0: Commit(5, "by a consumer"), A1: Commit(5, None), B0: None}, NOW) == UNKNOWN_LOGS


RESET = CommitMetadata(
    dag="orders_recovery",
    task="reset_orders",
    run="scheduled__2026-03-01T00:00:00+00:00",
    tool="reset",
    token="abcdefabcdef",
    started=1_772_323_200,
    clears=1,
    at=1_772_323_300,
    cluster="2pJLZ9LuikJKiKvTxRluBQ",
    topic="h37qnyoJT8Wb1kaTa_ha8w",
)


@pytest.mark.parametrize("query", [{}, {"query": "1" * 36, "batch": 123, "move": 3}])
def test_the_request_of_a_reset_displaces_nothing_that_tells_runs_apart(query):
    made, asked = (
        CommitMetadata.parse(replace(RESET, **query, request=request).text(MANY_PARTITIONS + 1))
        for request in ("", "abcdefabcdef")
    )
    for name in ("tool", "started", "clears", "run", "token", "identity", "query", "cluster", "topic"):
        assert getattr(asked, name) == getattr(made, name)
    # Of groups alone only the metadata knows it; the archive of a checkpoint has its own.
    assert bool(asked.request) == (not query)
