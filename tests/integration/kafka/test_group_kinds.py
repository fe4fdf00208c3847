"""Groups that are not consumer groups: share groups and streams groups, as Kafka 4.1 to 4.4 have them."""

import json
import os

import pytest
from breakable_kafka import BreakableKafka
from group_kinds import WITH_ALL_KINDS, allow_all_kinds, make_share_group, make_streams_group

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.moves.deletion import plan_deletion
from airflow_kafka_offsets.moves.write import commit_window

pytestmark = pytest.mark.integration

KINDS = ("share", "streams")
SAYS = "is not a consumer group"
READ = {0: 3}


@pytest.fixture(scope="module")
def servers(oracle):
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        pytest.skip("needs a Kafka of its own")
    with BreakableKafka(properties=WITH_ALL_KINDS) as kafka:
        allow_all_kinds(oracle, kafka.bootstrap_servers)
        yield kafka.bootstrap_servers


@pytest.fixture(scope="module")
def topic(servers, oracle, make_topic, produce):
    name = make_topic(1, on=servers)
    produce(name, {0: 5}, on=servers)
    make_share_group(oracle, servers, "share", name)
    make_streams_group(oracle, servers, "streams", name)
    return name


@pytest.fixture(scope="module")
def client(servers):
    with OffsetsClient({"bootstrap.servers": servers}) as client:
        yield client


@pytest.fixture
def holds_nothing(client, topic):
    """Groups that no test has committed to."""
    yield
    for kind in KINDS:
        assert client.committed(kind, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): None}


@pytest.fixture
def run(cli, servers, topic, holds_nothing):
    return lambda *arguments: cli(*arguments, "--bootstrap-server", servers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_of_both_is_refused_before_the_checkpoint_moves(kind, run, topic, new_query):
    query = new_query({topic: READ})
    before = query.files()
    both = ("--checkpoint", query.location, "--quiet-period", "0", "--execute")
    done = run("group", "reset", kind, "--to-offset", "1", *both)
    assert done.code == 1
    assert f"group '{kind}' {SAYS}" in done.err
    assert query.files() == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "command",
    [("reset", "--to-earliest"), ("commit", "--checkpoint"), ("restore", "--from-file"), ("delete",)],
)
def test_a_command_that_changes_a_group_is_refused(
    command, kind, run, topic, new_query, tmp_path, oracle, servers
):
    name, *flags = command
    saved = tmp_path / "offsets.csv"
    saved.write_text(f"{kind},{topic},0,1\n")
    files = {"--checkpoint": [new_query({topic: READ}).location], "--from-file": [str(saved)]}
    more = {"--to-earliest": ["--topic", topic]} | files
    done = run("group", name, kind, *flags, *more.get((flags or [""])[0], ()), "--execute")
    assert done.code == 1
    assert f"group '{kind}' {SAYS}" in done.err
    assert f"'{kind}'" in oracle.admin(servers).listGroups().all().get().toString()


@pytest.mark.parametrize("kind", KINDS)
def test_describe_says_what_kafkas_own_tool_says(kind, run, oracle, servers):
    theirs = oracle.consumer_groups("--describe", "--group", kind, on=servers)
    assert SAYS in theirs.error
    done = run("group", "describe", kind, "absent")
    assert (done.code, SAYS in done.out, "absent: Dead, 0 members" in done.out) == (1, True, True)
    groups = json.loads(run("group", "describe", kind, "absent", "--output", "json").out)["groups"]
    (found,) = (group for group in groups if group["group_id"] == kind)
    assert (found["type"], found["state"], found["members"]) == ("other", "Unknown", [])


def test_list_leaves_them_out_as_kafkas_own_tool_does(run, oracle, servers):
    theirs = oracle.consumer_groups("--list", on=servers).stdout.split()
    listed = json.loads(run("group", "list", "--output", "json").out)["groups"]
    assert [group["group_id"] for group in listed] == sorted(theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_none_of_them_is_deleted(kind, client, topic, holds_nothing):
    before, refusals = plan_deletion(client, [kind])
    assert before == {}
    assert SAYS in refusals[kind]
    assert client.describe_groups([kind])[kind].type == "other"


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_no_window_is_committed_to_one(kind, fenced, client, topic, holds_nothing):
    partition = TopicPartition(topic, 0)
    window = OffsetWindow({partition: OffsetRange(0, 3)}, frozenset([partition]))
    with pytest.raises(PlanRefusedError, match=f"group '{kind}' {SAYS}"):
        commit_window(client, kind, window, fenced=fenced)
