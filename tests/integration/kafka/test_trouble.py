"""Does our process live, and does each call end in time, when coordinators move and brokers fall silent?"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from breakable_kafka import BreakableKafka
from client_calls import CALLS
from faulty_proxy import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, Proxy

from airflow_kafka_offsets.errors import BrokerUnavailableError, ClientCrashedError, CommitError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.broker_config import free_port
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import Commit, LogRange, OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.write import commit_window

pytestmark = pytest.mark.integration

NO_ERROR = 0
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 15, 16
GRACE = 3.0
"""Seconds beyond the deadline: two cores are shared by several brokers."""
COMMITS = ["committed", "committed_everywhere", "commit"]
CODES = [pytest.param(COORDINATOR_NOT_AVAILABLE, marks=pytest.mark.long), NOT_COORDINATOR]


@pytest.fixture(scope="module")
def proxied_kafka() -> Iterator[tuple[Proxy, BreakableKafka]]:
    """A broker that all clients reach through a proxy, whatever address they begin with."""
    port = free_port()
    proxy = Proxy(port)
    properties = {"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap_servers}"}
    try:
        with BreakableKafka(port=port, properties=properties) as kafka:
            yield proxy, kafka
    finally:
        proxy.close()


@pytest.fixture
def kafka(proxied_kafka):
    """The broker behind the proxy."""
    return proxied_kafka[1]


@pytest.fixture
def proxy(proxied_kafka) -> Iterator[Proxy]:
    """The proxy, which changes nothing until it is told to."""
    yield proxied_kafka[0]
    proxied_kafka[0].refuse((), 0)


@pytest.fixture
def connect(proxy) -> Callable[[float], OffsetsClient]:
    """connect(timeout) -> a client behind the proxy."""
    return lambda timeout: OffsetsClient({"bootstrap.servers": proxy.bootstrap_servers}, timeout=timeout)


@pytest.fixture
def on_proxy(connect, proxy, make_topic, produce) -> Iterator[tuple[OffsetsClient, TopicPartition]]:
    """A client behind the proxy, and a partition of 9 records there."""
    topic = make_topic(partitions=1, on=proxy.bootstrap_servers)
    produce(topic, {0: 9}, on=proxy.bootstrap_servers)
    with connect(20) as client:
        yield client, TopicPartition(topic, 0)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("api_key", [OFFSET_FETCH, OFFSET_COMMIT, FIND_COORDINATOR])
def test_a_coordinator_that_moves_is_waited_for(on_proxy, proxy, new_group, api_key, code):
    client, partition = on_proxy
    group = new_group()
    proxy.refuse((api_key,), code, times=2)
    client.commit(group, {partition: 0}, "done")
    assert client.committed(group, [partition]) == {partition: Commit(0, "done")}
    assert client.committed_everywhere(group) == {partition: Commit(0, "done")}
    assert proxy.refused == 2


@pytest.mark.parametrize("api_key", [OFFSET_FETCH, OFFSET_COMMIT])
def test_a_coordinator_that_moves_under_a_fenced_commit_is_joined_again(on_proxy, proxy, new_group, api_key):
    client, partition = on_proxy
    group = new_group()
    client.commit(group, {partition: 0})
    proxy.refuse((api_key,), NOT_COORDINATOR, times=2)
    window = OffsetWindow({partition: OffsetRange(0, 0)})
    assert commit_window(client, group, window, "done") == {}
    commit_window(client, group, OffsetWindow({partition: OffsetRange(0, 7)}), "done")
    assert client.committed(group, [partition]) == {partition: Commit(7, "done")}
    assert proxy.refused == 2


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("method", "api_key"),
    [
        *((method, FIND_COORDINATOR) for method in (*COMMITS, "describe_groups", "delete_groups")),
        *((method, OFFSET_FETCH) for method in COMMITS),
    ],
)
def test_a_coordinator_that_is_never_there_is_an_error_within_the_deadline(
    on_proxy, proxy, connect, new_group, method, api_key, code
):
    client, partition = on_proxy
    group = new_group()
    client.commit(group, {partition: 0})
    proxy.refuse((api_key,), code)
    start = time.monotonic()
    with connect(1) as hurried:
        # librdkafka dies of this response to OffsetFetch, each time.
        with pytest.raises((BrokerUnavailableError, ClientCrashedError), match=group) as caught:
            CALLS[method](hurried, group, partition)
        assert time.monotonic() - start < 1 + GRACE
    assert caught.value.retriable
    assert proxy.refused > 0
    proxy.refuse((), 0)
    assert client.committed(group, [partition]) == {partition: Commit(0)}


@pytest.mark.parametrize("code", CODES)
def test_a_commit_that_is_always_refused_is_an_error_within_the_deadline(
    on_proxy, proxy, connect, new_group, code
):
    client, partition = on_proxy
    group = new_group()
    proxy.refuse((OFFSET_COMMIT,), code)
    start = time.monotonic()
    with connect(2) as hurried:
        # The deadline may come between two attempts, or in the middle of one.
        with pytest.raises(
            (CommitError, BrokerUnavailableError),
            match=r"nothing was written|committing the same offsets again is safe",
        ) as caught:
            hurried.commit(group, {partition: 0})
        assert time.monotonic() - start < 2 + GRACE
    assert caught.value.retriable
    assert proxy.refused > 0
    proxy.refuse((), 0)
    client.commit(group, {partition: 0}, "at last")
    assert client.committed(group, [partition]) == {partition: Commit(0, "at last")}


def test_a_group_is_described_as_soon_as_there_is_a_coordinator(on_proxy, proxy, connect, new_group):
    client, partition = on_proxy
    group = new_group()
    client.commit(group, {partition: 0})
    proxy.refuse((FIND_COORDINATOR,), COORDINATOR_NOT_AVAILABLE, times=3)
    start = time.monotonic()
    with connect(20) as another:
        assert another.describe_groups([group])[group].state == "Empty"
    assert time.monotonic() - start < 10
    assert proxy.refused == 3


@pytest.fixture
def unwritten(on_proxy, proxy, new_group):
    """A client, a partition, and a group at 5 whose further commits are acknowledged and not written."""
    client, partition = on_proxy
    group = new_group()
    client.commit(group, {partition: 5})
    proxy.refuse((OFFSET_COMMIT,), NO_ERROR)
    return client, partition, group


def test_a_fenced_commit_that_is_not_written_is_made_again(unwritten, proxy):
    client, partition, group = unwritten
    proxy.refuse((OFFSET_COMMIT,), NO_ERROR, times=1)
    window = OffsetWindow({partition: OffsetRange(5, 9)})
    assert commit_window(client, group, window, "mine", fenced=True) == window.end
    assert proxy.refused == 1
    assert client.committed(group, [partition]) == {partition: Commit(9, "mine")}


def test_a_window_that_is_not_fenced_and_not_written_is_an_error(unwritten):
    client, partition, group = unwritten
    with pytest.raises(CommitError, match=rf"{partition}: planned 9, read back 5"):
        commit_window(client, group, OffsetWindow({partition: OffsetRange(5, 9)}), fenced=False)


@pytest.mark.long
def test_a_broker_that_is_silent_for_20_seconds_in_the_first_call_of_each_method(
    own_kafka, make_topic, new_group
):
    kafka = own_kafka()
    topic = make_topic(partitions=2, on=kafka.bootstrap_servers)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    group = new_group()
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    with OffsetsClient(config, timeout=20) as client:
        client.commit(group, {first: 0}, "before")
    calls = {
        "partitions": lambda client: client.partitions([topic]),
        "committed": lambda client: client.committed(group, [first]),
        "committed_everywhere": lambda client: client.committed_everywhere(group),
        "log_ranges": lambda client: client.log_ranges([first]),
        "offsets_for_time": lambda client: client.offsets_for_time([first], 0),
        "commit": lambda client: client.commit(group, {first: 0}, "during"),
        "describe_groups": lambda client: client.describe_groups([group])[group].state,
        "list_groups": lambda client: [listed.group_id for listed in client.list_groups()],
        "delete_groups": lambda client: client.delete_groups([f"{group}-other"]),
    }
    clients = {name: OffsetsClient(config, timeout=5) for name in calls}
    # One that had a connection before, and one that has none.
    patient = {"warm": OffsetsClient(config, timeout=40), "cold": OffsetsClient(config, timeout=40)}
    patient["warm"].commit(group, {second: 0}, "before")
    outcomes: dict[str, tuple[float, BaseException | None]] = {}

    def run(name, call):
        start = time.monotonic()
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            outcomes[name] = (time.monotonic() - start, error)
        else:
            outcomes[name] = (time.monotonic() - start, None)

    hurried = [
        threading.Thread(target=run, args=(name, lambda n=name: calls[n](clients[n]))) for name in calls
    ]
    waiting = [
        threading.Thread(target=run, args=(name, lambda n=name: patient[n].commit(group, {second: 0}, n)))
        for name in patient
    ]
    kafka.freeze()
    end = time.monotonic() + 20
    try:
        for thread in [*hurried, *waiting]:
            thread.start()
        for thread in hurried:
            thread.join(5 + GRACE)
        assert set(outcomes) == set(calls)
        for name, (seconds, error) in outcomes.items():
            assert isinstance(error, BrokerUnavailableError), f"{name}: {error!r}"
            assert error.retriable
            assert 4 < seconds < 5 + GRACE, name
        for thread in waiting:
            thread.join(max(0, end - time.monotonic()))
            assert thread.is_alive()
    finally:
        kafka.thaw()
    thawed = time.monotonic()
    for thread in waiting:
        thread.join(20)
    assert [outcomes[name][1] for name in patient] == [None, None]
    assert time.monotonic() - thawed < 10
    # The abort of librdkafka comes when the connection is there again: each client must still be good.
    # What was asked for while the broker was silent may still be done by it.
    assert calls["partitions"](clients["partitions"]) == {topic: [0, 1]}
    assert calls["committed"](clients["committed"])[first].offset == 0
    assert set(calls["committed_everywhere"](clients["committed_everywhere"])) == {first, second}
    assert calls["log_ranges"](clients["log_ranges"]) == {first: LogRange(0, 0)}
    assert calls["offsets_for_time"](clients["offsets_for_time"]) == {first: None}
    calls["commit"](clients["commit"])
    assert calls["committed"](clients["committed"]) == {first: Commit(0, "during")}
    last = clients["committed"].committed(group, [second])[second]
    assert last is not None
    assert last.metadata in patient
    assert calls["describe_groups"](clients["describe_groups"]) == "Empty"
    assert group in calls["list_groups"](clients["list_groups"])
    assert calls["delete_groups"](clients["delete_groups"]) == {f"{group}-other": None}
    for client in [*clients.values(), *patient.values()]:
        client.close()


def test_records_that_are_not_read_in_time_are_unread(on_proxy, kafka):
    client, partition = on_proxy
    ranges = {partition: merge([(2, 5)])}
    kafka.freeze()
    try:
        found = client.record_offsets(ranges, within=1)
        assert (dict(found.records), dict(found.unread)) == ({}, ranges)
    finally:
        kafka.thaw()
    found = client.record_offsets(ranges, within=20)
    assert (dict(found.records), dict(found.unread)) == (ranges, {})


def test_a_broker_that_was_killed_is_found_again(on_proxy, kafka, connect, new_group):
    _, partition = on_proxy
    group = new_group()
    with connect(60) as client, ThreadPoolExecutor(1) as pool:
        client.commit(group, {partition: 0}, "before")
        kafka.kill()
        committing = pool.submit(client.commit, group, {partition: 0}, "after")
        kafka.restart()
        committing.result(60)
        assert client.committed(group, [partition]) == {partition: Commit(0, "after")}
