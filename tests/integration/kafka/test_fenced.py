"""A window's end is committed from its start only, whoever else commits, joins or dies meanwhile."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest
from confluent_kafka import Consumer
from py4j.protocol import Py4JJavaError

from airflow_kafka_offsets.errors import (
    BrokerError,
    GroupActiveError,
    WindowMismatchError,
)
from airflow_kafka_offsets.kafka import commits, fenced
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.groups import COMMITTER
from airflow_kafka_offsets.kafka.requests import send_commit
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.apply import apply_groups
from airflow_kafka_offsets.moves.groups import active_group_refusals, plan_group_resets
from airflow_kafka_offsets.moves.write import commit_window

pytestmark = pytest.mark.integration

PARTITIONS = 4


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(PARTITIONS)
    produce(name, dict.fromkeys(range(PARTITIONS), 9))
    return name


@pytest.fixture
def group(new_group):
    return new_group()


@pytest.fixture
def window(topic):
    """
    window(start, end) -> the same range in each partition; without a start, for a group without commits.
    """

    def make(start, end):
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        ranges = {tp: OffsetRange(start or 0, end) for tp in partitions}
        return OffsetWindow(ranges, frozenset(partitions if start is None else ()))

    return make


@pytest.fixture
def holds(kafka_tools):
    """What Kafka's own tool says a group holds: the offset of each partition, None without a commit."""

    def committed(group):
        return [row["current_offset"] for row in kafka_tools.describe_rows(group)]

    return committed


@pytest.fixture
def meanwhile(monkeypatch):
    """meanwhile(do) does something between the comparison and the first commit that follows."""
    real = send_commit

    def arrange(do):
        todo = [do]

        def send(*arguments):
            if todo:
                todo.pop()()
            return real(*arguments)

        monkeypatch.setattr(fenced, "send_commit", send)

    return arrange


@pytest.fixture
def small_requests(monkeypatch):
    """Two partitions in one commit, so that these windows take two."""
    monkeypatch.setattr(commits, "MAX_PARTITIONS", 2)


def test_of_two_windows_that_are_committed_at_once_one_wins(client, bootstrap_servers, group, window, holds):
    client.commit(group, window(0, 0).end)
    ends = [5, 7, 9]

    def commit(end):
        try:
            with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as own:
                commit_window(own, group, window(0, end))
        except WindowMismatchError:
            return None
        return end

    with ThreadPoolExecutor(len(ends)) as pool:
        (winner,) = [end for end in pool.map(commit, ends) if end is not None]
    assert holds(group) == [winner] * PARTITIONS


def test_a_group_with_a_member_is_refused_and_the_member_is_not_disturbed(
    client, group, topic, window, holds, join_group
):
    member = join_group(group, topic, **{"client.id": "a-reader"})
    before = member.memberid(), len(member.assignment())
    with pytest.raises(GroupActiveError, match=r"1 active member \(a-reader on .*; nothing was written"):
        commit_window(client, group, window(None, 5))
    member.poll(0.5)
    assert (member.memberid(), len(member.assignment())) == before
    assert holds(group) == [None] * PARTITIONS


def test_a_commit_of_somebody_else_is_refused_meanwhile(
    client, oracle, group, topic, window, holds, meanwhile
):
    refused = []

    def commit():
        with pytest.raises(Py4JJavaError) as caught:
            oracle.commit({group: {(topic, 0): 1}})
        refused.append(str(caught.value))

    meanwhile(commit)
    commit_window(client, group, window(None, 5))
    assert "UnknownMemberIdException" in refused[0]
    assert holds(group) == [5, 5, 5, 5]


def test_who_joins_meanwhile_begins_at_the_windows_end(
    client, bootstrap_servers, group, topic, window, holds, meanwhile
):
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    reader = Consumer(settings | {"auto.offset.reset": "earliest", "log_level": 0})
    first, stop = [], threading.Event()

    def read():
        reader.subscribe([topic])
        while not (first or stop.is_set()):
            message = reader.poll(0.1)
            first.extend([message.offset()] if message is not None and not message.error() else [])

    thread = threading.Thread(target=read)

    def join():
        thread.start()
        while client.describe_groups([group])[group].state != "PreparingRebalance":
            pass

    meanwhile(join)
    try:
        commit_window(client, group, window(None, 5))
        thread.join(20)
    finally:
        stop.set()
        thread.join()
        reader.close()
    assert first == [5]
    assert holds(group) == [5, 5, 5, 5]


def test_a_reader_who_joins_between_two_requests_stops_the_commit_and_a_retry_finishes_it(
    client, group, topic, window, holds, join_group, monkeypatch, small_requests
):
    real, joining = send_commit, []

    def send(connection, *rest):
        answers = real(connection, *rest)
        joining.append(pool.submit(join_group, group, topic))
        # Its next heartbeat tells it of the reader; without that the rest would be accepted as well.
        deadline = time.monotonic() + 20
        while not over and time.monotonic() < deadline:
            connection.drain(0.05)
        return answers

    over = []
    on_revoke = fenced._Member._on_revoke

    def note(self, *told):
        over.append(self)
        on_revoke(self, *told)

    monkeypatch.setattr(fenced._Member, "_on_revoke", note)
    monkeypatch.setattr(fenced, "send_commit", send)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(GroupActiveError, match="try again; 2 of 4 partitions were written"):
            commit_window(client, group, window(None, 5))
        (reader,) = [joined.result() for joined in joining]
    # While the reader is in it, and Kafka 3.9 waits for its answer, the tool's rows change with the moment.
    reader.close()
    assert holds(group) == [5, 5]
    monkeypatch.setattr(fenced, "send_commit", real)
    assert set(commit_window(client, group, window(None, 5)).values()) == {5}
    assert holds(group) == [5, 5, 5, 5]


def test_a_group_that_the_new_protocol_has_left_empty_can_be_committed_to(
    client, group, topic, window, holds, join_group
):
    member = join_group(group, topic, **{"group.protocol": "consumer"})
    assert client.describe_groups([group])[group].type == "consumer"
    for commit in (commit_window, lambda *given: commit_window(*given, fenced=False)):
        with pytest.raises(GroupActiveError, match="only they may commit"):
            commit(client, group, window(None, 5))
    member.close()
    commit_window(client, group, window(None, 5))
    assert holds(group) == [5, 5, 5, 5]


WRITES = {
    "window": lambda client, group, window: commit_window(client, group, window),
    "commit": lambda client, group, window: client.commit(group, window.end),
    "reset": lambda client, group, _: active_group_refusals(client, [group]),
}


@pytest.mark.parametrize("write", WRITES)
def test_another_windows_commit_is_waited_for_and_named(
    client, bootstrap_servers, group, topic, window, holds, join_group, write
):
    other = join_group(group, topic, **{"client.id": f"somebody{COMMITTER}"})
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}, timeout=2) as hasty:
        with pytest.raises(
            GroupActiveError, match="a window was being committed to the group for 2 s"
        ) as refused:
            WRITES[write](hasty, group, window(None, 5))
    assert refused.value.retriable
    assert holds(group) == [None] * PARTITIONS
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(commit_window, client, group, window(None, 5))
        other.close()
        assert set(committing.result().values()) == {5}


@pytest.fixture
def dying_committers(bootstrap_servers, topic):
    """
    dying_committers(groups) -> a member of each that commits a window has been killed, and Kafka does not
    know yet.
    """

    def kill(groups):
        child = subprocess.Popen(
            [sys.executable, "-c", COMMITTERS, bootstrap_servers, topic, COMMITTER, *groups],
            stdout=subprocess.PIPE,
        )
        assert child.stdout
        assert child.stdout.readline() == b"joined\n"
        child.kill()
        child.communicate()

    return kill


# The shortest time that the broker lets a silent member stay.
COMMITTERS = """
import sys
from confluent_kafka import Consumer
servers, topic, committer, *groups = sys.argv[1:]
common = {"bootstrap.servers": servers, "client.id": f"somebody{committer}", "session.timeout.ms": 6000}
members = [Consumer(common | {"group.id": group, "log_level": 0}) for group in groups]
joined = set()
for number, member in enumerate(members):
    member.subscribe([topic], on_assign=lambda *_, number=number: joined.add(number))
while len(joined) < len(members):
    for member in members:
        member.poll(0.1)
print("joined", flush=True)
while True:
    for member in members:
        member.poll(0.1)
"""


def test_a_commit_and_a_reset_wait_until_a_windows_commit_that_was_killed_is_out_of_the_group(
    client, new_group, topic, window, holds, dying_committers, bootstrap_servers
):
    committed, reset, unfenced = groups = [new_group() for _ in range(3)]
    offsets = window(None, 5).end
    client.commit(reset, offsets)
    dying_committers(groups)

    def move(group):
        with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as own:
            if group == committed:
                own.commit(group, offsets)
            elif group == unfenced:
                commit_window(own, group, window(None, 5), fenced=False)
            else:
                now = datetime.now(tz=timezone.utc)
                plans = plan_group_resets(own, {group: TopicScope()}, Place("latest"), now=now)
                apply_groups(own, PipelinePlan(plans), CommitMetadata())

    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(move, groups))
    assert [holds(group) for group in groups] == [[5] * 4, [9] * 4, [5] * 4]


def test_a_broker_that_refuses_the_session_is_named_as_the_cause(client, group, window, monkeypatch):
    """The broker's group.min.session.timeout.ms is 6000 by default."""
    monkeypatch.setattr(fenced, "SESSION_TIMEOUT_MS", 5_000)
    why = "INVALID_SESSION_TIMEOUT.*lower the brokers' group.min.session"
    with pytest.raises(BrokerError, match=why) as refused:
        commit_window(client, group, window(None, 5))
    assert not refused.value.retriable
