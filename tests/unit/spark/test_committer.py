"""What is committed and when, with a group that is kept in memory."""

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from written_query import offset_log

from airflow_kafka_offsets.checkpoint.log import parse_offset_log
from airflow_kafka_offsets.errors import BrokerUnavailableError, UsageError
from airflow_kafka_offsets.model.commit_metadata import LISTENER, CommitMetadata
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark.listener import committer as committer_module
from airflow_kafka_offsets.spark.listener import listener as listener_module
from airflow_kafka_offsets.spark.listener.committer import Committer
from airflow_kafka_offsets.spark.listener.listener import KafkaOffsetCommitterListener, committing
from airflow_kafka_offsets.spark.listener.queries import (
    ClassicQuery,
    ConnectQuery,
    MovedTo,
    SinceMove,
    SourceState,
)
from airflow_kafka_offsets.spark.listener.runs import Counts
from airflow_kafka_offsets.spark.listener.targets import Target, commit_group, group_targets
from airflow_kafka_offsets.spark.listener.threads import LimitedCalls

ORDERS = TopicPartition("orders", 0)
OF_CONNECT: Any = {"group_id": "g", "config": {"bootstrap.servers": "here:9092"}}


class Commit(NamedTuple):
    offset: int
    metadata: str


class Group:
    """A cluster in memory: it holds what is committed, and fails as often as it is told."""

    def __init__(self):
        self.held, self.commits, self.failures, self.open = {}, 0, 0, 0
        self.minutes, self.asked = None, 0
        self.created = {}
        """Topic -> the time of its first record."""
        self.deleted = set()

    def client(self, settings):
        self.open += 1
        return self

    def committed(self, group_id, partitions):
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailableError("no answer")
        return {tp: self.held.get((group_id, tp)) for tp in partitions}

    def commit(self, group_id, offsets, metadata="", check=None):
        check(self.committed(group_id, offsets))
        self.commits += 1
        self.held.update({(group_id, tp): Commit(at, metadata[tp.topic]) for tp, at in offsets.items()})

    def cluster_id(self):
        return "cluster-1"

    def log_ids(self, topics):
        return LogIds("cluster-1", {topic: f"id of {topic}" for topic in topics if topic not in self.deleted})

    def offsets_for_time(self, partitions, timestamp_ms):
        if any(tp.topic in self.deleted for tp in partitions):
            raise BrokerUnavailableError("unknown topic")
        return {tp: 0 if self.created.get(tp.topic, 0) >= timestamp_ms else 9 for tp in partitions}

    def offsets_retention_minutes(self):
        self.asked += 1
        if isinstance(self.minutes, Exception):
            raise self.minutes
        return self.minutes

    def close(self):
        self.open -= 1


def on(cluster, group=""):
    """The options of a source on a cluster that names a group, if any."""
    return {"kafka.bootstrap.servers": f"{cluster}:9092", "consumer.commit.groupid": group}


class Query:
    def __init__(self, query_id="q-1", sources=None):
        self.query_id = self.name = query_id
        self.ends, self.active, self.forgotten = {}, True, False
        # As with Spark Connect.
        self.move, self.moved, self.plans, self.moved_logs = None, None, {}, LogIds()
        self.sources = sources or self.sources  # type: ignore[method-assign]

    def is_active(self):
        return self.active

    def sources(self):
        options = {**on("here", "g"), "kafka.group.id": "reads"}
        return [SourceState("KafkaV2[Subscribe[orders]]", options, self.ends)] if self.ends else []

    def newest_batch(self):
        return 7

    def planned(self, batch):
        text = self.plans.get(batch)
        return None if text is None else parse_offset_log(text, "offsets")

    def since_moves(self, batch, topics):
        plans = [parse_offset_log(text, "offsets") for n, text in self.plans.items() if n < batch]
        of_another = SinceMove(LogIds("cluster-1", {"others": "id before"}), set(), iter(()))
        return [of_another, SinceMove(self.moved_logs, topics, iter(plans))]

    def moved_to(self, topics):
        return self.moved

    def newest_move(self):
        return self.move

    def forget(self):
        self.forgotten = True


@pytest.fixture
def group():
    return Group()


@pytest.fixture
def query():
    return Query()


def in_jvm(move=0):
    """A query whose checkpoint can be read."""
    query = Query()
    query.move = move
    return query


def moved(move=1, **made):
    """The commit of a move of the query's checkpoint."""
    return Commit(2, CommitMetadata(tool="reset", query="q-1", move=move, **made).text())


def following(query, client, **options):
    """A committer that follows a query."""
    made = Committer(client, **options)
    made.follow("run-1", query)
    return made


def finish(committer, run="run-1", batch=0):
    """Let a run finish a batch, and commit what is due."""
    committer.record_finished(run, batch)
    committer.commit_due()


def session_with(running, **calls):
    """A session of Spark Connect in which a query runs already."""
    calls = {"get": lambda query_id: running, "removeListener": lambda listener: None, **calls}
    return SimpleNamespace(streams=SimpleNamespace(active=[running], **calls))


def listening_to(running):
    """A listener on a session of Spark Connect in which a query runs already."""
    return KafkaOffsetCommitterListener(session_with(running), **OF_CONNECT)


def error_of(committer, seconds=1):
    """Let the query finish a batch, and return the one error of a flush as text."""
    committer.record_finished("run-1", 0)
    committer.flush(seconds)
    (error,) = committer.outcomes.errors
    return str(error)


def end_while_the_broker_is_away(committer, query, group, at=9):
    """Let a query end at an offset, of which the first try to commit it fails."""
    query.ends, query.active, group.failures = {ORDERS: at}, False, 1
    committer.record_ended("run-1")
    committer.commit_due()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    """A flush tries again soon."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic(), sleep=lambda _: time.sleep(0.01))
    monkeypatch.setattr(committer_module, "time", clock)


@pytest.fixture
def committer(group, query):
    return following(query, group.client)


@pytest.fixture
def now(monkeypatch):
    """The time, in a list: a test may change it."""
    time_is = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: time_is[0])
    return time_is


def test_of_many_batches_only_the_newest_is_committed(committer, group, query):
    for batch in range(5):
        query.ends = {ORDERS: batch + 1}
        committer.record_finished("run-1", batch)
    committer.commit_due()
    assert (group.commits, group.asked) == (1, 0)
    assert group.held["g", ORDERS].offset == 5
    assert json.loads(group.held["g", ORDERS].metadata)["batch"] == 4
    assert committer.outcomes.counts == Counts(committed=1)


def test_a_running_query_is_committed_once_a_second_at_most_and_at_its_end(committer, group, query, now):
    for batch in range(3):
        query.ends = {ORDERS: batch + 1}
        finish(committer, "run-1", batch)
        now[0] += 0.25
    assert group.held["g", ORDERS].offset == group.commits == 1
    assert committer.commit_due() == pytest.approx(0.25)
    now[0] += 0.25
    committer.commit_due()
    assert (group.held["g", ORDERS].offset, group.commits) == (3, 2)
    query.ends = {ORDERS: 4}
    committer.record_ended("run-1")
    assert committer.commit_due() is None
    assert (group.held["g", ORDERS].offset, group.commits) == (4, 3)


def test_a_flush_does_not_wait_for_the_next_second(committer, group, query):
    for batch in range(2):
        query.ends = {ORDERS: batch + 1}
        committer.record_finished("run-1", batch)
        committer.flush(5)
    assert (group.held["g", ORDERS].offset, group.commits) == (2, 2)
    committer.record_late(5)
    assert committer.outcomes.errors == []


def test_a_flush_commits_a_batch_of_a_running_query_whose_event_spark_has_dropped(committer, group, query):
    query.ends = {ORDERS: 1}
    finish(committer)
    query.ends = {ORDERS: 2}
    committer.flush(5)
    assert (group.held["g", ORDERS].offset, json.loads(group.held["g", ORDERS].metadata)["batch"]) == (2, 7)


def test_a_flush_does_not_wait_for_the_batches_that_end_meanwhile(committer, group, query, monkeypatch):
    def asked(group_id, partitions):
        committer.record_finished("run-1", query.ends[ORDERS])
        return {tp: group.held.get((group_id, tp)) for tp in partitions}

    monkeypatch.setattr(group, "committed", asked)
    query.ends = {ORDERS: 1}
    committer.record_finished("run-1", 0)
    committer.flush(3)
    assert (group.held["g", ORDERS].offset, group.commits) == (1, 1)
    assert committer.outcomes.errors == []


@pytest.mark.parametrize(
    ("minutes", "seconds"), [(8, 120), (10_080, 3600), (None, 3600), (RuntimeError("the JVM is gone"), 3600)]
)
def test_an_idle_query_commits_again_before_the_broker_forgets_its_group(
    minutes, seconds, committer, group, query, now
):
    group.minutes, query.ends = minutes, {ORDERS: 1}
    for _ in range(3):
        committer.record_idle("run-1")
        assert committer.commit_due() == pytest.approx(seconds)
    assert (group.commits, group.asked) == (1, 1)
    now[0] += seconds + 1
    committer.record_idle("run-1")
    committer.commit_due()
    assert (group.commits, group.asked) == (2, 1)


def test_what_failed_is_warned_of_once_tried_again_later_and_later_and_then_it_is_mended(
    committer, group, query, caplog
):
    query.ends = {ORDERS: 1}
    group.failures = 2
    committer.record_finished("run-1", 0)
    assert 0.4 < committer.commit_due() <= 0.5
    # Not due yet.
    committer.commit_due()
    assert committer.outcomes.counts == Counts(failed=1)
    (error,) = committer.outcomes.errors
    assert isinstance(error, BrokerUnavailableError)
    committer.flush(5)
    assert committer.outcomes.errors == []
    assert committer.outcomes.counts == Counts(committed=1, failed=2)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "Kafka offsets: query q-1: no answer"
    ]


def test_a_broker_that_does_not_name_its_topics_for_a_moment_is_asked_again(
    committer, group, query, monkeypatch
):
    def silent(topics):
        monkeypatch.undo()
        raise BrokerUnavailableError("no answer")

    monkeypatch.setattr(group, "log_ids", silent)
    query.ends = {ORDERS: 1}
    committer.record_finished("run-1", 0)
    committer.flush(5)
    assert json.loads(group.held["g", ORDERS].metadata)["topic"] == "id of orders"


def test_a_topic_of_a_pattern_that_comes_back_is_a_new_one_and_one_that_stays_is_not(
    committer, group, query, monkeypatch
):
    ids, leaves = {"orders": "1st"}, TopicPartition("leaves", 0)
    monkeypatch.setattr(group, "log_ids", lambda topics: LogIds("cluster-1", ids).restricted_to(topics))
    for batch, ends in enumerate([{ORDERS: 1, leaves: 5}, {ORDERS: 2}, {ORDERS: 3, leaves: 2}]):
        group.held.pop(("g", leaves), None)  # Kafka deletes the offsets of a topic with the topic
        query.ends, ids["leaves"] = ends, f"id {batch}"
        committer.record_finished("run-1", batch)
        committer.flush(5)
        # This one is created again between two batches: the query goes on in it where it was.
        ids["orders"] = "2nd"
    found = {tp.topic: json.loads(commit.metadata)["topic"] for (_, tp), commit in group.held.items()}
    assert found == {"orders": "1st", "leaves": "id 2"}
    assert committer.outcomes.errors == []
    committer.record_ended("run-1")
    committer.flush(5)
    (error,) = committer.outcomes.errors
    assert "topic 'orders' was deleted and created again: what query q-1 has read is of topic" in str(error)
    assert committer.outcomes.counts == Counts(committed=4, failed=1)


@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize(
    ("case", "topic"),
    [
        *((case, "id of orders") for case in ("not kept", "older", "at its start", "confirmed", "allowed")),
        *(("another", "unknown"), ("moved", "id of orders"), ("moved before", "id before")),
        ("moved elsewhere", "unknown"),
    ],
)
def test_a_topic_that_was_created_again_before_the_run_is_an_error_at_its_end(
    group, query, case, topic, batch
):
    group.created["orders"] = 5_000
    planned, at = (9.0 if case == "older" else 1.0), (0 if case == "at its start" else 3)
    monday = (batch or 7) - 1
    query.plans = {} if case == "not kept" else {monday: offset_log({"orders": {0: at}}, at=planned)}
    query.ends = {ORDERS: 5}
    if case == "confirmed":
        made = CommitMetadata(query="q-1", cluster="cluster-1", topic="id of orders")
        group.held["g", ORDERS] = Commit(3, made.text())
    if case.startswith("moved"):
        ids = {"orders": "id of orders" if case == "moved" else "id before"}
        query.moved_logs = LogIds("cluster-2" if case == "moved elsewhere" else "cluster-1", ids)
    committer = following(query, group.client, allow_new_cluster=case == "allowed")
    committer.record_finished("run-1", batch)
    committer.commit_due()
    # A later batch of the run does not hide it.
    committer.record_finished("run-1", 8)
    committer.flush(5)
    committer.record_ended("run-1")
    committer.flush(5)
    assert group.held["g", ORDERS].offset == 5
    texts = [*map(str, committer.outcomes.errors)]
    assert ["topic 'orders' was deleted and created again" in text for text in texts] == (
        [] if topic == "id of orders" else [True]
    )
    assert json.loads(group.held["g", ORDERS].metadata)["topic"] == topic


@pytest.mark.parametrize(("batch", "refused"), [(None, True), (3, True), (4, False)])
def test_a_query_that_reads_the_cluster_that_a_failover_has_left_is_not_committed_there(
    group, query, batch, refused
):
    """Unless it has been committed there since, by a listener that was allowed to."""
    query.moved, query.ends = MovedTo("0001-failover", "cluster-2", 3), {ORDERS: 95}
    if batch is not None:
        made = CommitMetadata(query="q-1", batch=batch, cluster="cluster-1", tool=LISTENER)
        group.held["g", ORDERS] = Commit(90, made.text())
    finish(committer := following(query, group.client), batch=5)
    said = r"move of the checkpoint \(archive 0001-failover\) is of cluster cluster-2, and the connection"
    assert [bool(re.search(said, str(error))) for error in committer.outcomes.errors] == [True] * refused
    assert (group.commits, committer.outcomes.counts.refused) == (not refused, refused)
    finish(following(query, group.client, allow_new_cluster=True), batch=5)
    assert group.held["g", ORDERS].offset == 95


def test_a_topic_that_was_deleted_between_two_runs_does_not_keep_the_others_from_their_commit(group, query):
    gone = TopicPartition("gone", 0)
    group.deleted = {"gone"}
    query.plans = {3: offset_log({"orders": {0: 3}, "gone": {0: 3}}, at=9.0)}
    query.ends = {ORDERS: 5, gone: 3}
    finish(committer := following(query, group.client), batch=4)
    assert (group.held["g", ORDERS].offset, committer.outcomes.errors) == (5, [])


def test_a_query_that_has_ended_is_forgotten_with_its_client(committer, group, query):
    query.ends = {ORDERS: 1}
    committer.record_ended("run-1")
    assert committer.commit_due() is None
    assert group.held["g", ORDERS].offset == 1
    assert (group.open, query.forgotten, committer.queries()) == (0, True, {})


def test_an_end_of_which_no_event_came_is_noticed(committer, group, query):
    query.ends, query.active = {ORDERS: 1}, False
    assert committer.commit_due() is None
    assert group.held["g", ORDERS].offset == 1


def test_a_flush_without_an_answer_ends_in_time_and_says_so(committer, group, query):
    query.ends = {ORDERS: 1}
    group.failures = 1000
    committer.record_finished("run-1", 0)
    committer.flush(0.1)
    assert committer.outcomes.counts.committed == 0
    assert [str(error) for error in committer.outcomes.errors] == ["no answer"]


def test_a_flush_of_an_ended_query_does_not_give_up_before_its_time(committer, group, query, monkeypatch):
    monkeypatch.setattr(committer_module, "GIVE_UP", 0.0)
    query.ends = {ORDERS: 1}
    group.failures = 1
    committer.record_ended("run-1")
    committer.flush(5)
    assert group.held["g", ORDERS].offset == 1


def test_sources_that_share_a_group_meet_at_the_smaller_offset_whatever_else_differs():
    other = TopicPartition("orders", 1)
    states = [
        SourceState("a", on("here", "g"), {ORDERS: 5, other: 2}),
        SourceState("b", on("here", "g") | {"kafka.max.poll.records": "10"}, {ORDERS: 3}),
        SourceState("c", on("there", "g"), {ORDERS: 9}),
        SourceState("d", on("here"), {TopicPartition("rest", 0): 1}),
    ]
    targets, without = group_targets(states, {"orders": "unused"})
    assert {target: found.offsets for target, found in targets.items()} == {
        Target("here:9092", "g"): {ORDERS: 3, other: 2},
        Target("there:9092", "g"): {ORDERS: 9},
    }
    assert without == ["its source d names no group for topic rest: not committed"]


def test_a_topic_that_a_source_has_left_is_not_committed_again_when_its_query_is_restarted():
    left = TopicPartition("orders-v1", 0)
    for option, topics in (
        ("Subscribe", "orders"),
        ("subscribe", " payments , orders"),
        ("assign", '{"orders":[0],"payments":[0]}'),
    ):
        state = SourceState("a", on("here", "g") | {option: topics}, {ORDERS: 5, left: 3})
        ((target, found),) = group_targets([state], None)[0].items()
        assert (target.group_id, found.offsets) == ("g", {ORDERS: 5})


@pytest.mark.parametrize(
    ("options", "group_id"),
    [
        ({"kafka.consumer.commit.groupid": "g"}, "g"),
        ({"Consumer.Commit.GroupID": " g "}, "g"),
        ({"kafka.consumer.commit.groupid": "g", "consumer.commit.groupid": "g"}, "g"),
        ({"consumer.commit.groupid": ""}, None),
        ({"kafka.group.id": "g"}, None),
    ],
)
def test_the_group_of_a_source(options, group_id):
    assert commit_group(options) == group_id


def test_two_groups_of_one_source_are_a_contradiction():
    with pytest.raises(UsageError, match="name different groups, f and g: keep one"):
        commit_group({"kafka.consumer.commit.groupid": "g", "consumer.commit.groupid": "f"})


class Progress(NamedTuple):
    batchId: int  # noqa: N815  # Spark's name
    sources: list
    durationMs: Mapping[str, int] = {"addBatch": 5}  # noqa: N815


class Source(NamedTuple):
    description: str
    endOffset: str | None  # noqa: N815


def test_progress_of_spark_connect_is_read_in_both_of_its_spellings_and_never_backwards():
    query = ConnectQuery("q-1", None, None, LimitedCalls("asks", 1.0))
    other = Source("RateStreamV2[rowsPerSecond=1]", "3")
    for batch, text in [(1, '{"orders":{"0":4}}'), (2, "{'orders': {'0': 6}}"), (0, '{"orders":{"0":2}}')]:
        query.add_progress(Progress(batch, [other, Source("KafkaV2[Subscribe[orders]]", text)]))
    assert query.newest_batch() == 2
    assert [state.offsets for state in query.sources()] == [{ORDERS: 6}]
    query.add_progress(Progress(3, [Source("KafkaV2[SubscribePattern[none]]", "{}")]))
    assert query.newest_batch() == 2


def test_a_group_that_is_ahead_is_not_taken_back(committer, group, query):
    other = TopicPartition("orders", 1)
    group.held["g", ORDERS] = Commit(9, "")
    query.ends = {ORDERS: 5, other: 2}
    finish(committer)
    assert {tp: commit.offset for (_, tp), commit in group.held.items()} == {ORDERS: 9, other: 2}
    assert "is ahead of query q-1 on orders-0 (orders-0: 9" in str(committer.outcomes.errors[0])
    assert committer.outcomes.counts.refused == 1


@pytest.mark.parametrize(
    ("metadata", "allow", "says"),
    [
        ('{"query":"q-2"}', "allow_new_query", "two queries in one group"),
        ('{"cluster":"another"}', "allow_new_cluster", "cluster another.* cluster-1"),
    ],
)
def test_a_group_that_follows_another_query_is_not_taken_over_unless_allowed(
    group, query, metadata, allow, says
):
    query.ends = {ORDERS: 5}
    for allowed in (False, True):
        group.held["g", ORDERS] = Commit(3, metadata)
        committer = following(query, group.client, **{allow: allowed})
        finish(committer)
        refused = [str(error) for error in committer.outcomes.errors]
        assert (group.commits, len(refused)) == ((1, 0) if allowed else (0, 1))
        assert allowed or re.search(says, refused[0])


def test_a_commit_that_another_one_makes_while_the_ids_are_looked_up_is_not_taken_back(
    committer, group, query, monkeypatch
):
    asked = []

    def log_ids(topics):
        asked.append(topics)
        group.held["g", ORDERS] = Commit(9, "")
        return LogIds("cluster-1")

    monkeypatch.setattr(group, "log_ids", log_ids)
    query.ends = {ORDERS: 5}
    for batch in (1, 2):
        finish(committer, "run-1", batch)
        assert group.held["g", ORDERS].offset == 9
    assert len(asked) == 1


@pytest.mark.parametrize("allow_new_query", [False, True])
def test_of_two_queries_that_name_one_group_for_a_partition_the_second_is_refused(
    group, query, allow_new_query
):
    # Also when each may take the place of a query that has ended.
    committer = following(query, group.client, allow_new_query=allow_new_query)
    second = Query("q-2")
    second.ends = query.ends = {ORDERS: 5}
    finish(committer)
    committer.follow("run-2", second)
    finish(committer, "run-2", 0)
    assert group.commits == 1
    assert "which query q-1 follows already" in str(committer.outcomes.errors[0])


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize(("move", "then"), [(0, 1), (None, None)])
def test_the_last_offsets_of_an_ended_query_are_not_committed_over_a_move_of_its_checkpoint(
    group, move, then, active, caplog
):
    query = in_jvm(move)
    committer = following(query, group.client)
    query.ends = {ORDERS: 5}
    finish(committer)
    # The broker is away at the last batch, and a reset is faster than the next attempt.
    query.ends, query.active, group.failures = {ORDERS: 9}, active, 1
    committer.record_finished("run-1", 1, ended_at=None if active else time.monotonic())
    committer.commit_due()
    group.held["g", ORDERS], query.move = moved(), then
    committer.flush(2)
    assert group.held["g", ORDERS].offset == 2
    (error,) = map(str, committer.outcomes.errors)
    running = "moved while it runs" if move == 0 else "if only the checkpoint was moved since, do nothing"
    assert (running if active else "of query q-1 was moved after its last batch") in error
    if active:
        # Its next batch takes both with it.
        committer.record_finished("run-1", 2)
        committer.flush(2)
        assert (group.held["g", ORDERS].offset, committer.outcomes.errors) == (9, [])
        assert "next batch moves" in caplog.text


@pytest.mark.parametrize(("move", "then"), [(0, 1), (None, None)])
def test_a_first_commit_is_not_made_over_a_move_after_the_querys_end(group, move, then):
    query = in_jvm(move)
    committer = following(query, group.client)
    # The broker was away from the start of the query to its end.
    end_while_the_broker_is_away(committer, query, group)
    group.held["g", ORDERS], query.move = moved(), then
    committer.flush(2)
    assert group.held["g", ORDERS].offset == 2
    assert len(committer.outcomes.errors) == 1


def test_an_ended_query_commits_nothing_over_a_run_in_another_process_that_follows_a_move(group):
    query = in_jvm()
    committer = following(query, group.client)
    query.ends = {ORDERS: 5}
    finish(committer)
    end_while_the_broker_is_away(committer, query, group)
    group.held["g", ORDERS], query.move = Commit(3, '{"query":"q-1","tool":"spark listener"}'), 1
    committer.flush(2)
    assert group.held["g", ORDERS].offset == 3
    assert len(committer.outcomes.errors) == 1


@pytest.mark.parametrize("partitions", [1, 2_500])
@pytest.mark.parametrize("tool", ["spark listener", "reset"])
def test_with_spark_connect_a_first_commit_after_the_end_is_not_made_over_a_later_batch(
    group, tool, partitions
):
    query = Query("0f8fad5b-d9cb-469f-a165-70867728950e")
    committer = following(query, group.client)
    run = "asset_triggered__2026-01-01T00:00:00.123456+00:00_AbCdEfGh"
    later = CommitMetadata(
        dag="orders", run=run, task="stream", tool=tool, query=query.query_id, batch=8, move=1
    )
    later = replace(later, at=int(time.time()), token="t" * 12, started=int(time.time()), request="r" * 16)
    (text,) = later.texts([ORDERS] * partitions, LogIds("cluster-1", {"orders": "id of orders"})).values()
    group.held["g", ORDERS] = Commit(3, text)
    query.ends, query.active = {ORDERS: 9}, False
    committer.record_ended("run-1")
    committer.flush(2)
    assert group.held["g", ORDERS].offset == 3
    assert "was moved after its last batch" in str(committer.outcomes.errors[0])


@pytest.mark.parametrize("move", [2, None])
@pytest.mark.parametrize("made", [{"batch": 9}, {"task": "reset"}])
def test_a_query_whose_checkpoint_was_moved_before_it_began_commits_whatever_its_batch(group, move, made):
    # A seek, and a truncate that has left the group alone.
    group.held["g", ORDERS] = moved(**made)
    query = in_jvm(move)
    committer = following(query, group.client)
    query.ends, query.active = {ORDERS: 5}, False
    committer.record_ended("run-1")
    committer.flush(2)
    assert group.held["g", ORDERS].offset == 5
    assert committer.outcomes.errors == []


def test_a_move_that_a_running_query_has_gone_past_does_not_keep_it_from_its_last_commit(group):
    query = in_jvm()
    committer = following(query, group.client)
    query.ends = {ORDERS: 5}
    finish(committer)
    group.held["g", ORDERS], query.move = moved(), 1
    for active in (True, False):
        query.ends, query.active = {ORDERS: query.ends[ORDERS] + 4}, active
        committer.record_finished("run-1", 1)
        committer.flush(2)
        assert group.held["g", ORDERS].offset == query.ends[ORDERS]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("move", [1, None])
def test_a_listener_that_comes_after_a_move_of_a_running_idle_query_does_not_take_the_group_back(
    group, move, ended, caplog
):
    group.held["g", ORDERS] = moved(batch=7)
    query = in_jvm(move)
    committer = following(query, group.client)
    query.ends, query.active = {ORDERS: 9}, not ended
    (committer.record_ended if ended else committer.record_idle)("run-1")
    for _ in range(2):
        committer.flush(2)
        assert group.held["g", ORDERS].offset == 2
        assert len(committer.outcomes.errors) == 1
    if not ended:
        query.ends = {ORDERS: 12}
        committer.record_finished("run-1", 8)
        committer.flush(2)
        assert "next batch moves" in caplog.text
        query.active = False
        committer.record_ended("run-1")
        committer.flush(2)
        assert (group.held["g", ORDERS].offset, committer.outcomes.errors) == (12, [])


@pytest.mark.parametrize("move", [1, 2])
def test_a_query_that_was_started_where_a_restore_or_a_move_of_its_checkpoint_alone_has_put_it_is_followed(
    group, now, move
):
    # A restore of both puts a group back that was behind its checkpoint before the reset.
    group.held["g", ORDERS] = moved(move, batch=7)
    query = in_jvm(2)
    committer = following(query, group.client)
    query.ends, query.plans = {ORDERS: 5}, {7: offset_log({"orders": {0: 5}})}
    for record in (committer.record_idle, committer.record_idle, committer.record_ended):
        query.active = record != committer.record_ended
        record("run-1")
        committer.commit_due()
        assert (group.held["g", ORDERS].offset, committer.outcomes.errors) == (5, [])
        now[0] += 4000


@pytest.mark.parametrize("by", ["spark listener", "commit"])
def test_with_spark_connect_no_late_commit_is_made_over_a_move_and_a_later_commit(
    committer, group, query, by
):
    query.ends = {ORDERS: 5}
    finish(committer)
    end_while_the_broker_is_away(committer, query, group)
    group.held["g", ORDERS] = moved(batch=1)
    if by == "commit":
        later = CommitMetadata(tool=by, query="q-1", batch=1, move=1)
        group.held["g", ORDERS] = Commit(2, later.text())
    else:
        # In another driver.
        again = Query()
        again.ends = {ORDERS: 3}
        finish(following(again, group.client), batch=2)
        assert group.held["g", ORDERS].offset == 3
    before = group.held["g", ORDERS]
    committer.flush(2)
    assert group.held["g", ORDERS] == before
    assert "was moved after its last batch" in str(committer.outcomes.errors[0])


def test_beside_a_busy_query_the_dropped_events_of_another_one_are_made_up_for(group, query, now):
    def busy():
        """The first query finishes a batch each second."""
        for _ in range(15):
            now[0] += 1
            query.ends = {ORDERS: query.ends[ORDERS] + 1}
            finish(committer)

    ends = [5]
    other = Query("q-2", lambda: [SourceState("b", on("here", "h"), {ORDERS: ends[0]})])
    committer = following(query, group.client)
    committer.follow("run-2", other)
    query.ends = {ORDERS: 1}
    finish(committer, "run-2")
    ends[0] = 7
    committer.record_idle("run-2")
    busy()
    assert group.held["h", ORDERS].offset == 7
    ends[0], other.active = 8, False
    busy()
    assert group.held["h", ORDERS].offset == 8
    assert "run-2" not in committer.queries()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("batch", [1, None])
def test_a_checkpoint_that_was_moved_alone_or_with_its_group_while_a_query_was_idle(group, now, batch, alone):
    query = in_jvm()
    committer = following(query, group.client)
    query.ends = {ORDERS: 5}
    finish(committer)
    now[0], query.move = now[0] + 3600, 1
    if not alone:
        group.held["g", ORDERS] = moved()
    query.ends = {ORDERS: 9 if batch else 5}
    finish(committer, batch=batch)
    now[0], query.active = now[0] + 1, False
    committer.record_ended("run-1")
    committer.flush(2)
    # With another batch the query has written its own position into the checkpoint, after the move.
    assert len(committer.outcomes.errors) == (0 if batch else 1)
    assert group.held["g", ORDERS].offset == (9 if batch else 5 if alone else 2)


def test_an_ended_run_commits_nothing_once_the_next_run_of_its_query_has(committer, group, query, now):
    query.ends = {ORDERS: 5}
    finish(committer)
    end_while_the_broker_is_away(committer, query, group)
    group.held["g", ORDERS] = moved()
    again = Query()
    again.ends = {ORDERS: 3}
    committer.follow("run-2", again)
    committer.record_finished("run-2", 1)
    # The attempts of the first run are not due yet.
    committer.commit_due()
    assert group.held["g", ORDERS].offset == 3
    now[0] += 10
    committer.commit_due()
    assert group.held["g", ORDERS].offset == 3
    assert committer.outcomes.errors == []
    assert len(committer.queries()) == 1


@pytest.mark.parametrize("away", [True, False])
def test_a_run_that_fails_at_once_and_is_started_again_has_no_error_once_the_next_run_has_ended(
    committer, group, query, now, away
):
    query.ends = {ORDERS: 3 if away else 5}
    finish(committer)
    # The last commit is tried again, or is due a second after the one before.
    query.ends, query.active, group.failures = {ORDERS: 5}, False, int(away)
    if away:
        committer.record_ended("run-1")
        committer.commit_due()
    else:
        committer.record_finished("run-1", 0)
    again = Query()
    again.ends, again.active = {ORDERS: 9}, False
    committer.follow("run-2", again)
    committer.record_ended("run-2")
    committer.commit_due()
    assert group.held["g", ORDERS].offset == 9
    committer.record_ended("run-1")
    committer.flush(2)
    assert group.held["g", ORDERS].offset == 9
    assert committer.outcomes.errors == []
    assert committer.commit_due() is None


@pytest.mark.parametrize("refuses", ["here", "there"])
def test_a_commit_on_one_cluster_does_not_hide_a_refusal_on_another(refuses):
    clusters = {"here:9092": Group(), "there:9092": Group()}
    clusters[f"{refuses}:9092"].held["g", ORDERS] = Commit(3, '{"query":"q-2"}')
    sources = [SourceState(name, on(name, "g"), {ORDERS: 5}) for name in ("here", "there")]
    query = Query(sources=lambda: sources)
    committer = following(query, lambda settings: clusters[settings["bootstrap.servers"]])
    assert "q-2" in error_of(committer, 2)


def test_a_refusal_of_one_group_does_not_keep_the_next_group_of_its_cluster_from_its_commit(group):
    group.held["g", ORDERS] = Commit(3, '{"query":"q-2"}')
    sources = [SourceState(name, on("here", name), {ORDERS: 5}) for name in ("g", "h")]
    committer = following(Query(sources=lambda: sources), group.client)
    assert "q-2" in error_of(committer, 2)
    assert {name: commit.offset for (name, _), commit in group.held.items()} == {"g": 3, "h": 5}


@pytest.mark.parametrize("group_id", [None, {"oders": "g"}])
def test_a_topic_without_a_group_is_an_error_at_the_end(group_id):
    query = Query(sources=lambda: [SourceState("a", on("here"), {ORDERS: 5})])
    committer = following(query, Group().client, group_id=group_id)
    assert f"names no group for topic {ORDERS.topic}: not committed" in error_of(committer)


def test_a_source_without_a_group_is_committed_to_the_one_that_was_given_for_its_topic(group):
    own = TopicPartition("payments", 0)
    sources = [SourceState("a", on("here"), {ORDERS: 5}), SourceState("b", on("here", "own"), {own: 2})]
    committer = following(Query(sources=lambda: sources), group.client, group_id={"orders": "g"})
    committer.record_finished("run-1", 0)
    committer.flush(1)
    assert {key: commit.offset for key, commit in group.held.items()} == {("g", ORDERS): 5, ("own", own): 2}
    assert committer.outcomes.errors == []


def test_a_topic_without_a_group_does_not_hide_that_the_last_commit_is_not_done():
    audit = TopicPartition("audit", 0)
    query = Query(sources=lambda: [SourceState("a", on("here"), {ORDERS: 5, audit: 3})])
    committer = following(query, Group().client, group_id={"orders": "g"})
    committer.record_finished("run-1", 0)
    committer.flush(1)
    committer.record_finished("run-1", 1)
    committer.record_late(2.0)
    assert [str(error).partition(":")[2] for error in committer.outcomes.errors] == [
        " its source a names no group for topic audit: not committed",
        " its last commit was not done within 2 s; its next run does it",
    ]


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_a_batch_of_spark_connect_is_committed_whose_event_has_not_come(group, ended, idle, monkeypatch):
    monkeypatch.setattr(KafkaOffsetCommitterListener, "_new_client", group.client)
    progress = Progress(4, [Source("KafkaV2[Subscribe[orders]]", '{"orders":{"0":6}}')])
    if idle:
        progress = progress._replace(batchId=5, durationMs={"latestOffset": 1})
    listener = listening_to(SimpleNamespace(id="q-1", runId="run-1", isActive=True, lastProgress=progress))
    if ended:
        listener._committer.record_ended("run-1")
        listener._committer.commit_due()
    else:
        listener.flush(2)
    assert group.held["g", ORDERS].offset == 6
    assert json.loads(group.held["g", ORDERS].metadata)["batch"] == 4
    listener.stop(1)


def test_a_listener_that_has_committed_nothing_says_so_at_its_end(caplog):
    # As of a session beside that of the query.
    listening_to(SimpleNamespace(id="q-1", runId="run-1", isActive=True, lastProgress=None)).stop(1)
    assert "this session has reported no finished batch of a query with a Kafka source" in caplog.text


def test_a_block_without_a_query_is_an_error_if_errors_are_raised_and_one_without_offsets_is_not():
    # As of a session beside that of the query.
    session = session_with(None, addListener=lambda listener: None)
    session.streams.active = []
    with committing(session, **OF_CONNECT) as listener:
        listener.raise_errors()
    with pytest.raises(UsageError, match="nothing was committed, because this session has reported no"):
        listener.raise_errors()
    session.streams.active = [SimpleNamespace(id="q-1", runId="run-1", isActive=True, lastProgress=None)]
    with committing(session, **OF_CONNECT, raise_errors=True):
        pass


def test_a_block_without_a_query_is_an_error_also_if_its_end_takes_too_long(monkeypatch):
    session = session_with(None, addListener=lambda listener: None)
    session.streams.active = []
    monkeypatch.setattr(listener_module, "_GRACE", 0.0)
    ended = threading.Event()
    monkeypatch.setattr(KafkaOffsetCommitterListener, "_end", lambda self, deadline: ended.wait(5))
    with pytest.raises(UsageError), committing(session, **OF_CONNECT, raise_errors=True, timeout=0.01):
        pass
    ended.set()


def test_a_listener_that_cannot_be_attached_follows_no_query(group, monkeypatch):
    monkeypatch.setattr(KafkaOffsetCommitterListener, "_new_client", group.client)
    running = SimpleNamespace(id="q-1", runId="run-1", isActive=True, lastProgress=None)
    session = session_with(running, addListener=lambda listener: broken())
    before = threading.enumerate()
    with pytest.raises(RuntimeError), committing(session, **OF_CONNECT):
        pytest.fail("the block has begun")
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


def test_a_query_of_spark_connect_without_kafka_is_not_asked_for_its_offsets(group):
    class Stopped:
        isActive = True  # noqa: N815  # Spark's name
        lastProgress = property(lambda _: broken())  # noqa: N815

    query = ConnectQuery("q-1", None, Stopped(), LimitedCalls("asks", 1.0))
    query.add_progress(Progress(4, [Source("RateStreamV2[rowsPerSecond=1]", "3")]))
    committer = following(query, group.client, group_id="g")
    committer.record_finished("run-1", 4)
    committer.flush(1)
    assert committer.outcomes.errors == []


def test_a_late_event_of_an_ended_run_is_not_taken_for_one_of_the_next_run():
    listener = listening_to(SimpleNamespace(id="q-1", runId="run-2", isActive=True, lastProgress=None))
    listener.onQueryIdle(SimpleNamespace(id="q-1", runId="run-1"))
    assert listener._committer.queries()["run-1"].is_active() is False
    listener.stop(1)


def test_a_busy_event_bus_of_spark_leaves_time_to_commit():
    waited = []
    bus = SimpleNamespace(waitUntilEmpty=waited.append)
    java_context = SimpleNamespace(sc=lambda: SimpleNamespace(listenerBus=lambda: bus))
    conf = SimpleNamespace(getAll=list)
    context = SimpleNamespace(_jsc=java_context, getConf=lambda: conf)
    streams = SimpleNamespace(active=[], removeListener=lambda listener: None)
    listener = KafkaOffsetCommitterListener(
        SimpleNamespace(_jvm=object(), sparkContext=context, streams=streams)
    )
    listener.stop(10)
    assert 4_000 < waited[0] <= 5_000


def test_a_query_that_spark_does_not_show_is_an_error():
    committer = following(ClassicQuery(SimpleNamespace(id="q-1", name=None)), Group().client)
    assert "Spark does not report the finished offsets, so nothing is committed" in error_of(committer)


def test_offsets_that_spark_does_not_plan_to_reach_are_none_of_its_query(monkeypatch):
    """Nor are those of its other partitions and sources: all topics are identified together."""

    def progress(**offsets):
        def of(source):
            here = SimpleNamespace(json=lambda: json.dumps({source: offsets.get(source, {"0": 1})}))
            return SimpleNamespace(isDefined=lambda: True, get=lambda: here)

        return SimpleNamespace(get=of)

    # A log that is shorter than the query's offsets, or Spark 3.5 as it continues from a seek back.
    execution = SimpleNamespace(
        committedOffsets=lambda: progress(orders={"0": 900, "1": 7}),
        availableOffsets=lambda: progress(orders={"0": 100, "1": 8}),
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: "MicroBatchExecution"),
    )
    query = ClassicQuery(SimpleNamespace(id="q-1", name=None, _jsq=execution))
    found = [(topic, f"KafkaV2[{topic}]", {}) for topic in ("payments", "orders")]
    monkeypatch.setattr(query, "_kafka_sources", lambda: found)
    assert query.sources() == []


def broken():
    raise RuntimeError("the JVM is gone")


def test_a_client_that_cannot_be_made_is_an_error_and_the_next_group_is_committed():
    there = Group()

    def client(settings):
        if settings["bootstrap.servers"] == "here:9092":
            raise ImportError("librdkafka.so.1: cannot open it")
        return there

    sources = [SourceState(name, on(name, "g"), {ORDERS: 5}) for name in ("here", "there")]
    committer = following(Query(sources=lambda: sources), client)
    assert "librdkafka.so.1: cannot open it" in error_of(committer)
    assert there.held["g", ORDERS].offset == 5


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("then", ["record_idle", "record_ended"])
def test_a_query_without_its_offsets_is_an_error_if_a_batch_has_finished(finished, then):
    committer = following(Query(sources=broken), Group().client)
    if finished:
        committer.record_finished("run-1", 0)
    getattr(committer, then)("run-1")
    committer.flush(1)
    assert [str(error) for error in committer.outcomes.errors] == [
        "Spark does not report the finished offsets, so nothing is committed: the JVM is gone"
    ] * finished


def test_a_damaged_archive_hides_only_topics_that_no_newer_move_names_and_hundreds_are_not_read(caplog):
    texts = {
        "0401-seek": json.dumps(
            {
                "query_id": "q-1",
                "files": {"offsets/3": {"before": None, "after": "digest"}},
                "logs": {"cluster": "c", "topics": {"orders": "id-1"}},
            }
        ),
        **{f"{number:04}-seek": "{" for number in range(400, 0, -1)},
    }
    read = []

    class Archive(str):
        suffix = str.__add__

    class Archived(ClassicQuery):
        _execution = SimpleNamespace(offsetLog=lambda: SimpleNamespace(metadataPath=lambda: ""))
        _files = SimpleNamespace(list=lambda _: ())

        def _archives(self):
            return map(Archive, texts)

        def _text(self, path):
            read.append(path)
            return texts[path.removesuffix("/manifest.json")]

    query = Archived(SimpleNamespace(id="q-1", name=None))
    moved = (LogIds("c", {"orders": "id-1"}), {"orders"})
    assert [since[:2] for since in query.since_moves(9, {"orders", "returns"})] == [moved, (LogIds(), set())]
    assert "0400-seek: cannot be read" in caplog.text
    assert "returns" in caplog.text
    # What another query has moved names no topic of this one.
    texts |= dict.fromkeys([*texts][1:], json.dumps({"query_id": "q-2", "files": {}}))
    read.clear()
    assert query.since_moves(9, {"returns"})[-1].topics == {"returns"}
    assert len(read) == 100
