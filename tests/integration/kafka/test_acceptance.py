"""
Does ``group reset``, ``delete``, ``describe`` and ``lag`` do what Kafka's own tests ask of
``kafka-consumer-groups``?

A test is named after its twin in ``ResetConsumerGroupOffsetTest``, ``DeleteConsumerGroupsTest`` or
``DescribeConsumerGroupTest``. Ours runs on one group and Kafka's tool on a twin of it, on the same broker,
and what both groups hold afterwards is compared. Where ours differs on purpose, the test says what both did.
Left out: what needs a partition without a leader, see ``test_leaderless.py``; ``--delete-offsets``, see
``tests/integration/cli/test_cli_delete_offsets.py``; and unknown options, which click refuses.
"""

import json
import re
import threading
import time
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from kafka_shell import ToolResult, parse_describe

from airflow_kafka_offsets.local.kafka import EmbeddedKafka

pytestmark = pytest.mark.integration

DEADLINE = 60.0
KEPT = {"retention.ms": "-1"}
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
EVENING = NOON + timedelta(hours=6)
PROTOCOLS = ["classic", "consumer"]


def times(moment, count):
    return [int(moment.timestamp() * 1000)] * count


def each(groups, offsets):
    return dict.fromkeys(groups, offsets)


@pytest.fixture
def ours(cli, bootstrap_servers):
    """ours(*arguments, on=None) -> what the command line prints, and its exit status."""

    def run(*arguments, on=None):
        done = cli(*arguments, "--bootstrap-server", on or bootstrap_servers)
        return ToolResult(done.out, done.err, done.code)

    return run


@pytest.fixture
def twins(new_group, oracle):
    """twins(offsets) -> two groups that have committed the same."""

    def make(offsets):
        pair = new_group(), new_group()
        oracle.commit(each(pair, offsets))
        return pair

    return make


@pytest.fixture
def execute(ours, oracle):
    """
    execute(pair, *flags, also=()) -> what both groups hold after the same reset; also= is for ours alone.
    """

    def run(pair, *flags, also=()):
        mine, twin = pair
        done = ours("group", "reset", mine, *flags, *also, "--execute")
        assert done.returncode == 0, done.stderr
        result = oracle.reset(twin, *flags, "--execute")
        assert result.error is None
        held = oracle.committed(mine, twin)
        assert held[mine] == held[twin]
        return held[mine]

    return run


@pytest.fixture
def refused(ours, oracle):
    """refused(group, *flags) -> why ours did not do it; the group is as it was."""

    def run(group, *flags):
        before = oracle.committed(group)
        done = ours("group", "reset", group, *flags, "--execute")
        assert done.returncode == 1
        assert oracle.committed(group) == before
        return done.stderr

    return run


@pytest.fixture(scope="module")
def hundred(make_topic, produce):
    """A topic with one partition and 100 records, 50 of noon and 50 of the evening."""
    topic = make_topic(1, KEPT)
    produce(topic, {0: 100}, {0: times(NOON, 50) + times(EVENING, 50)})
    return topic


@pytest.fixture(scope="module")
def halves(make_topic, produce):
    """Two topics with two partitions each, and the ends of them all."""
    topics = make_topic(2), make_topic(2)
    ends = {}
    for topic in topics:
        produce(topic, {0: 60, 1: 40})
        ends |= {(topic, 0): 60, (topic, 1): 40}
    return *topics, ends


@pytest.fixture(scope="module")
def lone_kafka():
    """A broker with no groups but those of the test: who names all groups moves those of everybody."""
    with EmbeddedKafka() as kafka:
        yield kafka.bootstrap_servers


@pytest.fixture
def on(lone_kafka, oracle):
    yield lone_kafka
    oracle.consumer_groups("--delete", "--all-groups", on=lone_kafka)


# ResetConsumerGroupOffsetTest


def test_reset_offsets_not_existing_group(ours, oracle, new_group):
    mine, twin = new_group(), new_group()
    done = ours("group", "reset", mine, "--all-topics", "--to-current", "--execute")
    result = oracle.reset(twin, "--all-topics", "--to-current", "--execute")
    # Kafka's tool takes it for done; a name that is misspelt must not look like success.
    assert (done.returncode, result.error) == (1, None)
    assert "has no committed offsets on this broker" in done.stderr
    assert oracle.committed(mine, twin) == {mine: {}, twin: {}}


@pytest.mark.parametrize("groups", [1, 2])
def test_reset_offsets_existing_topic(ours, oracle, hundred, new_group, groups):
    """Also: ExistingTopicSelectedGroups."""
    mine, theirs = ([new_group() for _ in range(groups)] for _ in range(2))
    for flags, held in (([], {}), (["--dry-run"], {}), (["--execute"], {(hundred, 0): 50})):
        done = ours("group", "reset", *mine, "--topic", hundred, "--to-offset", "50", *flags)
        result = oracle.reset(theirs, "--topic", hundred, "--to-offset", "50", *flags)
        assert (done.returncode, result.error) == (0, None)
        assert oracle.committed(*mine, *theirs) == each([*mine, *theirs], held)


@pytest.mark.parametrize("scope", ["one topic", "all topics"])
def test_reset_offsets_existing_topics_all_groups(ours, oracle, make_topic, produce, new_group, on, scope):
    """Also: AllTopicsAllGroups."""
    topics, groups = [make_topic(1, on=on) for _ in range(2)], [new_group() for _ in range(2)]
    for topic in topics:
        produce(topic, {0: 100}, on=on)
    before = {(topic, 0): 100 for topic in topics}
    moved = topics[:1] if scope == "one topic" else topics
    after = before | {(topic, 0): 50 for topic in moved}
    named = ["--topic", topics[0]] if scope == "one topic" else ["--all-topics"]
    flags = ("--all-groups", *named, "--to-offset", "50")
    for reset in (partial(ours, "group", "reset"), partial(oracle.consumer_groups, "--reset-offsets")):
        oracle.commit(each(groups, before), on=on)
        for more, held in (([], before), (["--dry-run"], before), (["--execute"], after)):
            assert reset(*flags, *more, on=on).returncode == 0
            assert oracle.committed(*groups, on=on) == each(groups, held)


DAY_BEFORE = f"{NOON - timedelta(days=1):%Y-%m-%dT%H:%M:%S.000}"


@pytest.mark.parametrize(
    ("flags", "offset"),
    [
        pytest.param(["--to-datetime", DAY_BEFORE], 0, id="to_local_date_time"),
        # 12:30 UTC: between the two batches.
        pytest.param(["--to-datetime", "2026-03-01T18:00:00.000+05:30"], 50, id="to_zoned_date_time"),
        # Kafka's name for it; nothing is that new, so it is the log end.
        pytest.param(["--by-duration", "PT0.1S"], 100, id="by_duration_to_earliest"),
        pytest.param(["--to-earliest"], 0, id="to_earliest"),
        pytest.param(["--to-latest"], 100, id="to_latest"),
        pytest.param(["--to-current"], 60, id="to_current_offset"),
        pytest.param(["--to-offset", "1"], 1, id="to_specific_offset"),
        pytest.param(["--shift-by", "30"], 90, id="shift_plus"),
        pytest.param(["--shift-by", "-30"], 30, id="shift_minus"),
    ],
)
def test_reset_offsets(execute, hundred, twins, flags, offset):
    assert execute(twins({(hundred, 0): 60}), "--all-topics", *flags) == {(hundred, 0): offset}


def test_reset_offsets_by_duration(execute, make_topic, produce, twins):
    topic = make_topic(1)
    produce(topic, {0: 100})
    held = execute(twins({(topic, 0): 100}), "--all-topics", "--by-duration", "PT1M")
    assert held == {(topic, 0): 0}


def test_reset_offsets_by_duration_fallback_to_latest_when_no_records(execute, make_topic, new_group):
    topic = make_topic(1)
    held = execute((new_group(), new_group()), "--topic", topic, "--by-duration", "PT1M")
    assert held == {(topic, 0): 0}


NEXT_YEAR = f"{datetime.now(tz=timezone.utc).year + 1}-01-01T00:00:00.000"


@pytest.mark.parametrize(
    ("flags", "why", "offset"),
    [
        pytest.param(["--shift-by", "-150"], "offset -90 of {}", 0, id="shift_by_lower_than_earliest"),
        pytest.param(["--shift-by", "150"], "offset 210 of {}", 100, id="shift_by_higher_than_latest"),
        pytest.param(["--to-offset", "500"], "offset 500 of {}", 100, id="an offset"),
        pytest.param(["--from-file", "{folder}/plan.csv"], "offset 500 of {}", 100, id="an offset of a file"),
        pytest.param(["--to-datetime", NEXT_YEAR], "is in the future", 100, id="a time in the future"),
    ],
)
def test_what_is_outside_the_log_is_refused_and_kafka_goes_to_an_end_of_it(
    execute, refused, hundred, twins, tmp_path, flags, why, offset
):
    mine, twin = twins({(hundred, 0): 60})
    (tmp_path / "plan.csv").write_text(f"{hundred},0,500\n")
    flags = [flag.format(folder=tmp_path) for flag in flags]
    scope = [] if "--from-file" in flags else ["--all-topics"]
    outside = f"{hundred}-0 is outside its log, which holds 0 to 100"
    assert why.format(outside) in refused(mine, *scope, *flags)
    held = execute((mine, twin), *scope, *flags, also=["--on-out-of-range", "clamp"])
    assert held == {(hundred, 0): offset}


@pytest.mark.parametrize(
    ("scope", "moved"),
    [
        pytest.param(["{0}"], [(0, 0), (0, 1)], id="on_one_topic"),
        pytest.param(["{0}:1"], [(0, 1)], id="on_one_topic_and_partition"),
        pytest.param(["{0}", "{1}"], [(0, 0), (0, 1), (1, 0), (1, 1)], id="on_topics"),
        pytest.param(["{0}:1", "{1}:1"], [(0, 1), (1, 1)], id="on_topics_and_partitions"),
    ],
)
def test_reset_offsets_to_earliest(execute, halves, twins, scope, moved):
    *topics, ends = halves
    flags = [word for topic in scope for word in ("--topic", topic.format(*topics))]
    held = execute(twins(ends), *flags, "--to-earliest")
    assert held == ends | {(topics[topic], number): 0 for topic, number in moved}


def exported(result):
    """The lines of CSV among what was printed; Kafka's tool has them in no order."""
    return sorted(line for line in result.stdout.splitlines() if line.count(",") in (2, 3))


@pytest.fixture
def export(ours, oracle, tmp_path):
    """export(mine, theirs) -> the plan that both export, each to a file."""

    def write(mine, theirs):
        flags = ("--all-topics", "--to-offset", "2", "--export")
        by_us, by_kafka = ours("group", "reset", *mine, *flags), oracle.reset(theirs, *flags)
        (tmp_path / "ours.csv").write_text(by_us.stdout)
        (tmp_path / "kafka.csv").write_text("\n".join(exported(by_kafka)))
        assert exported(by_us) == exported(by_kafka)
        return exported(by_us)

    return write


@pytest.fixture
def read_others(ours, oracle, tmp_path):
    """read_others(mine, theirs) -> the plan that both make, each of what the other one has exported."""

    def read(mine, theirs):
        by_kafka, by_us = (("--from-file", str(tmp_path / f"{name}.csv")) for name in ("kafka", "ours"))
        dry = ("--dry-run", "--export")
        plan = exported(ours("group", "reset", *mine, *by_kafka, *dry))
        assert plan == exported(oracle.reset(theirs, *by_us, *dry))
        return plan

    return read


def test_reset_offsets_export_import_plan_single_group_arg(export, read_others, oracle, halves, twins):
    topic, other, ends = halves
    mine, twin = twins(ends)
    plan = sorted(f"{name},{number},2" for name in (topic, other) for number in (0, 1))
    assert export([mine], [twin]) == read_others([mine], [twin]) == plan
    assert oracle.committed(mine, twin) == {mine: ends, twin: ends}


def test_reset_offsets_export_import_plan(export, read_others, oracle, halves, new_group):
    one, other, _ = halves
    groups = {new_group(): one, new_group(): other}
    before = {group: {(topic, 0): 60, (topic, 1): 40} for group, topic in groups.items()}
    oracle.commit(before)
    plan = sorted(f"{group},{topic},{number},2" for group, topic in groups.items() for number in (0, 1))
    names = list(groups)
    assert export(names, names) == read_others(names, names) == plan
    assert read_others(names[:1], names[:1]) == [f"{one},{number},2" for number in (0, 1)]
    assert oracle.committed(*groups) == before


def test_reset_offsets_with_partition_not_exist(ours, oracle, hundred, twins):
    mine, twin = twins({(hundred, 0): 100})
    # Kafka's tool asks for a partition that is not there until its time is up.
    impatient = ("--timeout", "500")
    for scope in (f"{hundred}:0,7", "no-such-topic"):
        done = ours("group", "reset", mine, "--topic", scope, "--to-earliest", "--execute")
        result = oracle.reset(twin, "--topic", scope, "--to-earliest", "--execute", *impatient)
        assert (done.returncode, result.returncode) == (1, 0)
        assert "is not on" in done.stderr
        assert result.error
    assert oracle.committed(mine, twin) == each((mine, twin), {(hundred, 0): 100})


# Where ours differs from Kafka's tool on purpose


def test_to_current_without_a_commit_is_refused_and_kafka_goes_to_the_log_end(
    execute, refused, halves, twins
):
    topic, _, _ = halves
    mine, twin = twins({(topic, 0): 10})
    flags = ("--topic", topic, "--to-current")
    assert f"{topic}-1 has no committed offset to start from" in refused(mine, *flags)
    held = execute((mine, twin), *flags, also=["--on-no-commit", "latest"])
    assert held == {(topic, 0): 10, (topic, 1): 40}


def test_to_current_outside_the_log_is_refused_and_kafka_commits_it_again(
    ours, refused, oracle, hundred, twins
):
    mine, twin = twins({(hundred, 0): 500})
    flags = ("--topic", hundred, "--to-current")
    assert f"offset 500 of {hundred}-0 is outside its log" in refused(mine, *flags)
    assert oracle.reset(twin, *flags, "--execute").error is None
    assert ours("group", "reset", mine, *flags, "--on-out-of-range", "clamp", "--execute").returncode == 0
    assert oracle.committed(mine, twin) == {mine: {(hundred, 0): 100}, twin: {(hundred, 0): 500}}


def test_a_shift_without_a_commit_is_refused_and_kafka_fails(ours, refused, oracle, halves, twins):
    topic, _, _ = halves
    mine, twin = twins({(topic, 0): 10})
    flags = ("--topic", topic, "--shift-by", "-5")
    assert f"{topic}-1 has no committed offset to start from" in refused(mine, *flags)
    result = oracle.reset(twin, *flags, "--execute")
    assert f"Cannot shift offset for partition {topic}-1" in result.stderr
    assert oracle.committed(twin) == {twin: {(topic, 0): 10}}
    done = ours("group", "reset", mine, *flags, "--on-no-commit", "latest", "--execute")
    assert done.returncode == 0
    assert oracle.committed(mine) == {mine: {(topic, 0): 5, (topic, 1): 35}}


def test_all_groups_are_checked_before_the_first_write_and_kafka_moves_those_it_can(
    ours, oracle, hundred, twins, join_group
):
    good, bad = twins({(hundred, 0): 50}), twins({(hundred, 0): 50})
    for group in bad:
        join_group(group, hundred)
    flags = ("--topic", hundred, "--to-earliest", "--execute")
    done = ours("group", "reset", good[0], bad[0], *flags)
    result = oracle.reset([good[1], bad[1]], *flags)
    assert (done.returncode, result.returncode) == (1, 0)
    held = oracle.committed(*good, *bad)
    assert [held[group][hundred, 0] for group in (good[0], bad[0])] == [50, 50]
    assert [held[group][hundred, 0] for group in (good[1], bad[1])] == [0, 50]


def test_a_group_that_is_not_in_the_file_is_refused_and_kafka_passes_it_over(
    ours, oracle, hundred, twins, tmp_path
):
    good, bad = twins({(hundred, 0): 50}), twins({(hundred, 0): 50})
    (tmp_path / "plan.csv").write_text("".join(f"{group},{hundred},0,7\n" for group in good))
    flags = ("--from-file", str(tmp_path / "plan.csv"), "--execute")
    done = ours("group", "reset", good[0], bad[0], *flags)
    result = oracle.reset([good[1], bad[1]], *flags)
    assert (done.returncode, result.returncode) == (1, 0)
    assert f"no line for group '{bad[0]}'" in done.stderr
    assert f"No reset plan for group {bad[1]} found" in result.stdout
    held = oracle.committed(*good, *bad)
    assert [held[group][hundred, 0] for group in (good[0], bad[0])] == [50, 50]
    assert [held[group][hundred, 0] for group in (good[1], bad[1])] == [7, 50]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_with_members_is_refused_with_the_members_named_and_kafka_exits_0(
    protocol, ours, oracle, hundred, twins, join_group
):
    mine, twin = twins({(hundred, 0): 50})
    for group in (mine, twin):
        join_group(group, hundred, **{"client.id": "a-reader", "group.protocol": protocol})
    flags = ("--topic", hundred, "--to-earliest", "--execute")
    done, result = ours("group", "reset", mine, *flags), oracle.reset(twin, *flags)
    assert (done.returncode, result.returncode) == (1, 0)
    assert re.search("with 1 member .a-reader on 127.0.0.1.*stop them first", done.stderr)
    assert f"can only be reset if the group '{twin}' is inactive, but the current state is" in result.stdout
    assert oracle.committed(mine, twin) == each((mine, twin), {(hundred, 0): 50})


# DeleteConsumerGroupsTest


def deleted(done):
    """Group -> why it was not deleted, ``None`` if it was."""
    assert done.stdout, done.stderr
    return {group["group_id"]: group["error"] for group in json.loads(done.stdout)["groups"]}


def listed(result):
    return set(result.stdout.split())


def test_delete_cmd_non_existing_group(ours, oracle, new_group):
    mine, twin = new_group(), new_group()
    done = ours("group", "delete", mine, "--execute")
    result = oracle.consumer_groups("--delete", "--group", twin)
    assert "there is no group" in done.stderr
    assert f"Group '{twin}' could not be deleted due to:" in result.stdout
    assert (done.returncode, result.returncode) == (1, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_delete_non_empty_group(protocol, ours, oracle, hundred, twins, join_group):
    mine, twin = twins({(hundred, 0): 50})
    for group in (mine, twin):
        join_group(group, hundred, **{"group.protocol": protocol})
    done = ours("group", "delete", mine, "--execute", "--output", "json")
    result = oracle.consumer_groups("--delete", "--group", twin)
    assert "stop the members first" in done.stderr
    assert "GroupNotEmptyException" in result.stdout
    assert (done.returncode, result.returncode) == (1, 0)
    assert oracle.committed(mine, twin) == each((mine, twin), {(hundred, 0): 50})


def test_delete_empty_group(ours, oracle, hundred, twins):
    mine, twin = twins({(hundred, 0): 50})
    done = ours("group", "delete", mine, "--execute", "--output", "json")
    result = oracle.consumer_groups("--delete", "--group", twin)
    assert (done.returncode, deleted(done)) == (0, {mine: None})
    assert f"Deletion of requested consumer groups ('{twin}') was successful." in result.stdout
    assert oracle.committed(mine, twin) == {mine: {}, twin: {}}
    assert not {mine, twin} & listed(oracle.consumer_groups("--list"))


def test_delete_cmd_all_groups(ours, oracle, make_topic, new_group, on):
    topic, groups = make_topic(1, on=on), [new_group() for _ in range(3)]
    oracle.commit(each(groups, {(topic, 0): 0}), on=on)
    # Ours wants the groups named: there is no way back from this.
    assert ours("group", "delete", "--all-groups", on=on).returncode == 2
    known = json.loads(ours("group", "list", "--output", "json", on=on).stdout)["groups"]
    names = (group["group_id"] for group in known)
    done = ours("group", "delete", *names, "--execute", "--output", "json", on=on)
    assert deleted(done) == dict.fromkeys(groups)
    assert listed(oracle.consumer_groups("--list", on=on)) == set()
    oracle.commit(each(groups, {(topic, 0): 0}), on=on)
    assert oracle.consumer_groups("--delete", "--all-groups", on=on).error is None
    assert listed(oracle.consumer_groups("--list", on=on)) == set()


def test_delete_cmd_with_mix_of_success_and_error(ours, oracle, hundred, twins, new_group):
    # Kafka's tool deletes what it can; ours deletes all that is named, or nothing.
    (mine, twin), missing = twins({(hundred, 0): 50}), new_group()
    done = ours("group", "delete", mine, missing, "--execute")
    result = oracle.consumer_groups("--delete", "--group", twin, "--group", missing)
    assert missing in done.stderr
    assert "there is no group" in done.stderr
    assert f"Group '{missing}' could not be deleted due to:" in result.stdout
    assert f"These consumer groups were deleted successfully: '{twin}'" in result.stdout
    assert (done.returncode, result.returncode) == (1, 0)
    assert oracle.committed(mine, twin) == {mine: {(hundred, 0): 50}, twin: {}}


# DescribeConsumerGroupTest


@pytest.fixture
def describes(ours, oracle):
    """
    describes(group) -> (state, members), in which ours and Kafka's tool agree.

    A member is (its id, host, client id, number of its partitions).
    """

    def described(group):
        (mine,) = json.loads(ours("group", "describe", group, "--output", "json").stdout)["groups"]
        members = {
            (member["member_id"], member["host"], member["client_id"], len(member["partitions"]))
            for member in mine["members"]
        }
        assert (mine["state"], len(members)) == state_of(oracle, group)
        assert members == members_of(oracle, group)
        return mine["state"], members

    return described


@pytest.fixture
def lags(ours, oracle):
    """
    lags(group, *flags) -> (topic, partition, committed, log end, lag) of each row, as Kafka's tool has them
    too.
    """

    def rows(group, *flags):
        done = ours("group", "lag", group, *flags, "--output", "json")
        assert done.returncode == 0, done.stderr
        mine = json.loads(done.stdout)["partitions"]
        found = [(e["topic"], e["partition"], e["committed"], e["log_end"], e["lag"]) for e in mine]
        theirs = parse_describe(oracle.consumer_groups("--describe", "--group", group).stdout)
        assert sorted(found) == sorted(
            (row["topic"], row["partition"], row["current_offset"], row["log_end_offset"], row["lag"])
            for row in theirs
        )
        return found

    return rows


def state_of(oracle, group):
    """State and number of members, as Kafka's tool prints them."""
    result = oracle.consumer_groups("--describe", "--group", group, "--state")
    for line in result.stdout.splitlines():
        if line.startswith(f"{group} "):
            *_, state, members = line.split()
            return state, int(members)
    return "Dead", 0


def members_of(oracle, group):
    result = oracle.consumer_groups("--describe", "--group", group, "--members")
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(f"{group} ")]
    return {(row[1], row[2].lstrip("/"), row[3], int(row[4])) for row in rows}


@pytest.fixture
def reading(bootstrap_servers, oracle):
    """reading(group, topic, consumers, busy): they have joined, "busy" of them read partitions."""
    stop, threads = threading.Event(), []

    def poll(consumers):
        while not stop.is_set():
            for consumer in consumers:
                consumer.poll(0.02)
        for consumer in consumers:
            consumer.close()

    def start(group, topic, consumers, busy):
        made = []
        for number in range(consumers):
            own = {"bootstrap.servers": bootstrap_servers, "group.id": group, "client.id": f"reader-{number}"}
            # A quick heartbeat: it tells of a rebalance.
            own |= {"enable.auto.commit": False, "heartbeat.interval.ms": 100, "log_level": 0}
            made.append(Consumer(own))
            made[-1].subscribe([topic])
        threads.append(threading.Thread(target=poll, args=(made,)))
        threads[-1].start()
        deadline = time.monotonic() + DEADLINE
        while (
            state_of(oracle, group) != ("Stable", consumers)
            or sum(row[3] > 0 for row in members_of(oracle, group)) != busy
        ):
            assert time.monotonic() < deadline, "the consumers did not join their group"

    yield start
    stop.set()
    for thread in threads:
        thread.join(DEADLINE)


def test_describe_non_existing_group(ours, oracle, new_group):
    group = new_group()
    assert ours("group", "describe", group).stdout == f"{group}: Dead, 0 members\n"
    for sub in ([], ["--offsets"], ["--members"], ["--state"]):
        result = oracle.consumer_groups("--describe", "--group", group, *sub)
        # Since Kafka 4.0 the broker says so, and no longer that it is dead.
        assert f"Group {group} not found" in str(result.error)


def test_describe_offsets_of_non_existing_group(ours, oracle, new_group):
    group = new_group()
    done = ours("group", "lag", group)
    assert done.returncode == 1
    assert "has no committed offsets on this broker" in done.stderr
    assert parse_describe(oracle.consumer_groups("--describe", "--group", group).stdout) == []


def test_describe_members_and_state_of_non_existing_group(describes, new_group):
    assert describes(new_group()) == ("Dead", set())


@pytest.mark.parametrize(
    "settings",
    [
        {"group.protocol": "classic"},
        {"group.protocol": "consumer"},
        {"partition.assignment.strategy": "roundrobin"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_describe_existing_group(settings, describes, lags, hundred, twins, join_group):
    """Also: OffsetsOf-, MembersOf- and StateOfExistingGroup, and -WithNonDefaultAssignor."""
    group, _ = twins({(hundred, 0): 42})
    join_group(group, hundred, **{"client.id": "a-reader", **settings})
    state, members = describes(group)
    assert state == "Stable"
    assert [member[1:] for member in members] == [("127.0.0.1", "a-reader", 1)]
    assert lags(group) == [(hundred, 0, 42, 100, 58)]


def test_describe_existing_groups(ours, oracle, hundred, twins):
    groups = twins({(hundred, 0): 42})
    described = json.loads(ours("group", "describe", *groups, "--output", "json").stdout)["groups"]
    assert {group["group_id"]: (group["state"], len(group["members"])) for group in described} == {
        group: state_of(oracle, group) for group in groups
    }


def test_describe_all_existing_groups(ours, oracle, make_topic, new_group, on):
    topic, groups = make_topic(1, on=on), {new_group() for _ in range(3)}
    oracle.commit(each(groups, {(topic, 0): 0}), on=on)
    mine = json.loads(ours("group", "list", "--output", "json", on=on).stdout)["groups"]
    result = oracle.consumer_groups("--describe", "--all-groups", "--state", on=on)
    theirs = {line.split()[0]: line.split()[-2] for line in result.stdout.splitlines() if "group-" in line}
    assert {group["group_id"]: group["state"] for group in mine} == theirs == dict.fromkeys(groups, "Empty")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_describe_existing_group_with_no_members(protocol, describes, lags, hundred, twins, join_group):
    """Also: OffsetsOf-, MembersOf- and StateOfExistingGroupWithNoMembers."""
    group, _ = twins({(hundred, 0): 42})
    join_group(group, hundred, **{"group.protocol": protocol}).close()
    assert describes(group) == ("Empty", set())
    assert lags(group) == [(hundred, 0, 42, 100, 58)]


@pytest.mark.parametrize("with_partitions", [1, 2])
def test_describe_with_two_consumers(describes, lags, halves, twins, reading, make_topic, with_partitions):
    """
    WithConsumersWithoutAssignedPartitions and WithMultiPartitionTopicAndMultipleConsumers: also of Offsets-,
    Members- and State-.
    """
    topic = halves[0] if with_partitions == 2 else make_topic(1)
    group, _ = twins({(topic, number): 0 for number in range(with_partitions)})
    reading(group, topic, consumers=2, busy=with_partitions)
    state, members = describes(group)
    assert (state, sum(member[3] for member in members)) == ("Stable", with_partitions)
    assert len(lags(group)) == with_partitions


def test_describe_simple_consumer_group(describes, lags, halves, new_group, bootstrap_servers):
    topic, _, _ = halves
    group = new_group()
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "log_level": 0})
    partitions = [ClientPartition(topic, number, 5) for number in (0, 1)]
    consumer.assign(partitions)
    consumer.commit(offsets=partitions, asynchronous=False)
    try:
        # It reads, but it never joined: as a Spark query.
        assert describes(group) == ("Empty", set())
        assert lags(group) == [(topic, 0, 5, 60, 55), (topic, 1, 5, 40, 35)]
    finally:
        consumer.close()


def test_describe_non_offset_commit_group(describes, lags, ours, hundred, new_group, join_group):
    group = new_group()
    join_group(group, hundred)
    state, members = describes(group)
    assert (state, len(members)) == ("Stable", 1)
    # Ours has nothing to go by but the topic; Kafka's tool knows it from the member.
    assert lags(group, "--topic", hundred) == [(hundred, 0, None, 100, None)]
    found = json.loads(ours("group", "lag", group, "--topic", hundred, "--output", "json").stdout)
    assert found["total_lag"] is None
