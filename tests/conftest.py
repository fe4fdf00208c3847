import gc
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import airflow_home
import pytest
from breakable_kafka import BreakableKafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from forked_workers import forked_workers
from hypothesis import HealthCheck, settings
from kafka_classes import archived_classes
from kafka_oracle import kafka_tools, oracle  # noqa: F401
from own_postgres import postgres  # noqa: F401
from secured_kafka import TestedKafka
from secured_kafka import secured_kafka as start_secured_kafka
from shared_kafka import SharedKafka, shared_kafka
from spark_connect import connect, connect_url  # noqa: F401
from spark_session import spark, spark_settings  # noqa: F401
from workers import BySharing, UntilScopeEnds, is_in_charge, sort_by_scope

from airflow_kafka_offsets.kafka import worker
from airflow_kafka_offsets.kafka.client import OffsetsClient

USERS_BROKER = "KAFKA_BOOTSTRAP_SERVERS"
DEADLINE = 30.0
LOG_END = -1

# How long an example takes says something about the machine, and on a busy one a test would fail by it.
# In CI the examples are the same in each run: what fails there has a reason in the change.
settings.register_profile(
    "suite",
    max_examples=200 if os.environ.get("LONG_TESTS") else 25,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Remove Airflow's temporary home at the end, and let the processes of a run share what is made once."""
    config.add_cleanup(airflow_home.home.cleanup)
    config.pluginmanager.register(UntilScopeEnds(), "until scope ends")
    if is_in_charge(config):
        config.pluginmanager.register(BySharing())


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in four processes, unless another number is given; a part of it runs in one."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if whole and is_in_charge(config) and config.option.numprocesses is None:
        config.option.numprocesses = 4  # they also wait a lot: on two cores it is faster than three


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """
    Keep the garbage collector from what stays until the end.

    That is a fifth of the CPU time of the collection, and a tenth of that of the unit tests.
    """
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_by_scope(items)
    if not os.environ.get("LONG_TESTS"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: set LONG_TESTS=yes"))


@pytest.fixture(scope="session", autouse=True)
def _forked_workers() -> Iterator[None]:
    if any(name.startswith("COV") for name in os.environ):
        yield  # coverage counts no fork
    else:
        yield from forked_workers()


@pytest.fixture(scope="session")
def until_scope_ends(request: pytest.FixtureRequest) -> UntilScopeEnds:
    """``with until_scope_ends.enter(context):`` for what tests of one scope share, see tests/support/."""
    ends = request.config.pluginmanager.get_plugin("until scope ends")
    assert isinstance(ends, UntilScopeEnds)
    return ends


@pytest.fixture
def python_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admin workers are started as users start them, each as a new Python."""
    monkeypatch.setattr(worker, "subprocess", subprocess)


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """
    Where the tests run in the background or in several processes Ctrl-C is ignored, and children inherit
    that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the whole test run, where its processes meet."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def _embedded_kafka(run_directory: Path) -> Iterator[SharedKafka]:
    with shared_kafka(run_directory) as kafka, archived_classes(run_directory):
        yield kafka


@pytest.fixture(scope="session")
def bootstrap_servers(request: pytest.FixtureRequest) -> str:
    """The broker of the tests: the user's own (KAFKA_BOOTSTRAP_SERVERS), or one that is started for them."""
    users = os.environ.get(USERS_BROKER)
    return users or request.getfixturevalue("_embedded_kafka").bootstrap_servers


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> SharedKafka:
    """The embedded broker that all tests share; who wants to stop or freeze one takes own_kafka."""
    if os.environ.get(USERS_BROKER):
        pytest.skip(f"needs the embedded Kafka, and {USERS_BROKER} names another one")
    return request.getfixturevalue("_embedded_kafka")


@pytest.fixture(scope="session")
def secured_kafka(run_directory: Path) -> Iterator[TestedKafka]:
    """
    A Kafka with TLS, users and ACLs, started when it is first wanted and shared by all tests.

    secured_kafka.user("bob", ("topic", topic, "Read"), ("group", group, "Describe")) -> the client
    configuration of a new user with just these rights; .grant and .revoke change them; .admin may do all;
    .tls(listener) has no user.
    """
    if os.environ.get(USERS_BROKER):
        pytest.skip(f"needs a Kafka of its own, and {USERS_BROKER} names another one")
    with start_secured_kafka(run_directory) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def secured_cluster(request: pytest.FixtureRequest, run_directory: Path) -> Iterator[TestedKafka]:
    """The same; with LONG_TESTS another one with three brokers, so that topics have three replicas."""
    if not os.environ.get("LONG_TESTS") or os.environ.get(USERS_BROKER):
        yield request.getfixturevalue("secured_kafka")
        return
    with start_secured_kafka(run_directory, brokers=3) as kafka:
        yield kafka


@pytest.fixture
def own_kafka() -> Iterator[Callable[..., BreakableKafka]]:
    """Starts a broker for one test alone: own_kafka(users=..., properties=...)."""
    if os.environ.get(USERS_BROKER):
        pytest.skip(f"needs a Kafka of its own, and {USERS_BROKER} names another one")
    started: list[BreakableKafka] = []

    def start(**parameters: Any) -> BreakableKafka:
        kafka = BreakableKafka(**parameters)
        started.append(kafka)
        return kafka.start()

    yield start
    for kafka in started:
        kafka.stop()


@pytest.fixture
def new_group() -> Callable[[], str]:
    return lambda: f"group-{uuid.uuid4().hex[:12]}"


def _wait_until_visible(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Wait until the log end of every partition can be read: right after creation it cannot."""
    client = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "log_level": 0})
    limit = DEADLINE + partitions / 20  # the broker makes a directory for each
    deadline = time.monotonic() + limit
    try:
        while time.monotonic() < deadline:
            try:
                found = client.list_topics(topic, timeout=5).topics[topic]
                if found.error is None and len(found.partitions) == partitions:
                    wanted = [TopicPartition(topic, number, LOG_END) for number in range(partitions)]
                    ends = [
                        end
                        for first in range(0, partitions, 500)
                        for end in client.offsets_for_times(wanted[first : first + 500], timeout=5)
                    ]
                    if all(end.error is None and end.offset >= 0 for end in ends):
                        return
            except KafkaException:
                pass
            client.poll(0.05)
    finally:
        client.close()
    pytest.fail(f"topic {topic} was not visible within {limit:.0f} s")


@pytest.fixture(scope="session")
def wait_for_topic(bootstrap_servers: str) -> Callable[[str, int], None]:
    """wait_for_topic(topic, partitions) returns when a new topic can be read."""
    return lambda topic, partitions: _wait_until_visible(bootstrap_servers, topic, partitions)


@pytest.fixture(scope="session")
def broker(bootstrap_servers: str) -> Iterator[OffsetsClient]:
    """A client that sees what tests have done, and prepares their groups."""
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        yield client


@pytest.fixture(scope="session")
def _created_topics(bootstrap_servers: str) -> Iterator[dict[str, list[str]]]:
    """Topics by broker; those on the user's broker are deleted at the end of the session."""
    topics: dict[str, list[str]] = {}
    yield topics
    if os.environ.get(USERS_BROKER) and (ours := topics.get(bootstrap_servers)):
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        for deleted in admin.delete_topics(ours).values():
            deleted.exception(DEADLINE)


@pytest.fixture(scope="session")
def make_topic(bootstrap_servers: str, _created_topics: dict[str, list[str]]) -> Callable[..., str]:
    """
    make_topic(partitions=3, config=None, *, on=None) -> the name of a new topic that can be used at once.
    """

    def make(partitions: int = 3, config: Mapping[str, str] | None = None, *, on: str | None = None) -> str:
        broker = on or bootstrap_servers
        name = f"topic-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
        admin.create_topics([new], request_timeout=DEADLINE)[name].result(DEADLINE)
        _created_topics.setdefault(broker, []).append(name)
        _wait_until_visible(broker, name, partitions)
        return name

    return make


@pytest.fixture(scope="session")
def produce(bootstrap_servers: str) -> Callable[..., None]:
    """
    Writes records and returns when all are acknowledged.

    produce(topic, {0: 10, 1: 5}) writes that many records per partition, with the values b"0", b"1", ...;
    timestamps_ms={0: [...], 1: [...]} gives them times. produce(topic, [{"value": b"x", "partition": 0,
    "timestamp": 1357016400000, "key": b"k"}, ...]) takes the arguments of confluent_kafka.Producer.produce.
    on="host:port" names another broker.
    """
    producers: dict[str, Producer] = {}

    def send(
        topic: str,
        records: dict[int, int] | Iterable[dict[str, Any]],
        timestamps_ms: Mapping[int, Sequence[int]] | None = None,
        *,
        on: str | None = None,
    ) -> None:
        broker = on or bootstrap_servers
        if broker not in producers:
            producers[broker] = Producer({"bootstrap.servers": broker, "log_level": 0, "linger.ms": 1})
        producer = producers[broker]
        if isinstance(records, dict):
            times = timestamps_ms or {}
            records = [
                {"value": b"%d" % number, "partition": partition}
                | ({"timestamp": times[partition][number]} if partition in times else {})
                for partition, count in records.items()
                for number in range(count)
            ]
        failures: list[Any] = []
        for record in records:
            producer.produce(
                topic, on_delivery=lambda error, _: failures.extend([error] if error else []), **record
            )
            producer.poll(0)
        left = producer.flush(DEADLINE)
        assert not failures, f"records were refused: {failures[0]}"
        assert left == 0, f"{left} records were not acknowledged within {DEADLINE:.0f} s"

    return send


@pytest.fixture(scope="session")
def delete_records(bootstrap_servers: str) -> Callable[[str, Mapping[int, int]], None]:
    """delete_records(topic, {0: 4}) moves the log start of partition 0 to offset 4."""

    def delete(topic: str, before: Mapping[int, int]) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        for deleted in admin.delete_records(
            [TopicPartition(topic, *each) for each in before.items()]
        ).values():
            deleted.result(DEADLINE)

    return delete


@pytest.fixture
def recreate(
    bootstrap_servers: str, broker: OffsetsClient, wait_for_topic: Callable[[str, int], None]
) -> Callable[[str, int], None]:
    """recreate(topic, partitions) deletes a topic and creates another one of its name."""

    def delete_and_create(topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        before = broker.log_ids([topic]).topics
        admin.delete_topics([topic])[topic].result(DEADLINE)
        deadline = time.monotonic() + DEADLINE
        # It may not be gone yet.
        while (
            error := admin.create_topics([NewTopic(topic, partitions)])[topic].exception(DEADLINE)
        ) is not None:
            assert "TOPIC_ALREADY_EXISTS" in repr(error), error
            assert time.monotonic() < deadline, error
        wait_for_topic(topic, partitions)
        # The controller knows of both before the broker does.
        while broker.log_ids([topic]).topics == before:
            assert time.monotonic() < deadline, f"{topic} is still the one that was deleted"
            time.sleep(0.1)
        wait_for_topic(topic, partitions)

    return delete_and_create
