"""The commands that move a checkpoint, alone or with its group, and that commit its position."""

from __future__ import annotations

import json
from functools import partial

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration

ENDS = {0: 10, 1: 4}
READ = {0: 8, 1: 3}
"""Where group and checkpoint stand."""
QUERY_ID = "11111111-2222-3333-4444-555555555555"
QUIET = ("--quiet-period", "0")


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(2)
    produce(name, ENDS)
    return name


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, READ)
    return name


@pytest.fixture
def query(topic, new_query):
    return new_query({topic: READ})


@pytest.fixture
def committed(committed, group, topic):
    """committed() -> {partition: offset} of the group."""
    return partial(committed, group, topic)


@pytest.fixture
def at(bootstrap_servers):
    return ("--bootstrap-server", bootstrap_servers)


def shows(done, *row):
    """Whether a line of a table begins with these cells."""
    return list(map(str, row)) in [line.split()[: len(row)] for line in done.out.splitlines()]


@pytest.mark.parametrize("flags", [(), ("--dry-run",)], ids=["nothing", "dry-run"])
def test_without_execute_a_reset_of_both_shows_the_plan_and_changes_nothing(
    flags, cli, at, topic, group, query, committed
):
    before = query.files()
    done = cli("group", "reset", group, "--checkpoint", query.location, "--to-offset", "2", *at, *flags)
    assert done.code == 0
    assert "Nothing was changed: give --execute to apply the plan." in done.err
    assert shows(done, "0", topic, 0, 8, 2, "-6")
    assert shows(done, topic, 1, 3, 2, "-1", 0, 4)
    assert (query.files(), committed()) == (before, READ)


def test_a_reset_of_both_is_executed_and_restored_from_the_receipt_that_it_prints(
    cli, at, topic, group, query, committed, tmp_path
):
    before = query.sparks_files()
    flags = ("--checkpoint", query.location, *QUIET, *at)
    done = cli("group", "reset", group, "--to-offset", "2", "--execute", "--output", "json", *flags)
    receipt = json.loads(done.out)
    assert (done.code, receipt["verified"], receipt["plan_only"]) == (0, True, False)
    assert receipt["checkpoint"]["archive"] == "0001-seek"
    assert query.stands() == committed() == {0: 2, 1: 2}
    file = tmp_path / "receipt.json"
    file.write_text(done.out)
    shown = cli("group", "restore", group, "--receipt", file, *flags)
    assert (shown.code, "Nothing was changed" in shown.err) == (0, True)
    assert shows(shown, topic, 0, 2, 8, "+6", 0, 10)
    assert query.stands() == committed() == {0: 2, 1: 2}
    done = cli("group", "restore", group, "--receipt", file, "--execute", "--output", "json", *flags)
    assert (done.code, json.loads(done.out)["checkpoint"]["kind"]) == (0, "restore")
    assert (query.sparks_files(), committed()) == (before, READ)


def test_what_was_done_is_said_after_the_plan(cli, at, topic, group, query, tmp_path):
    saved = tmp_path / "before.csv"
    flags = ("--checkpoint", query.location, *QUIET, *at)
    planned = cli("group", "reset", group, "--to-offset", "2", *flags)
    done = cli("group", "reset", group, "--to-offset", "2", "--execute", "--save", saved, *flags)
    assert done.out.startswith(planned.out)
    assert done.out.removeprefix(planned.out).splitlines() == [
        f"checkpoint {query.location} was moved (seek) and read back; archive 0001-seek",
        f"group {group}: 2 partitions were committed and read back ({topic}-0, {topic}-1), "
        "2 of them changed, moved by -7 offsets",
        f"the offsets before the move are saved in {saved}",
    ]


@pytest.fixture
def shortened(make_topic, produce, bootstrap_servers, commit, new_group):
    """A topic of which retention has deleted the first 4 records, and a group at 2."""
    name, group = make_topic(1), new_group()
    produce(name, {0: 10})
    commit(group, name, {0: 2})
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    partition = ClientPartition(name, 0, 4)
    admin.delete_records([partition])[partition].result(30)
    return name, group


def test_an_offset_whose_record_is_deleted_has_no_time(cli, at, shortened):
    topic, group = shortened
    done = cli("group", "reset", group, "--topic", topic, "--to-offset", "6", *at)
    (row,) = (line.split() for line in done.out.splitlines() if line.startswith(topic))
    assert row[2:5] == ["2", "6", "+4"]
    assert row[7] == "deleted"
    assert row[8].startswith("20")


def test_a_receipt_says_what_was_deleted_and_moved_to_the_log_start(cli, at, shortened):
    topic, group = shortened
    flags = ("--topic", topic, "--to-offset", "1", "--on-out-of-range", "clamp", *at)
    receipt = json.loads(cli("group", "reset", group, *flags, "--output", "json", "--execute").out)
    assert receipt["after"] == {topic: {"0": 4}}
    assert (receipt["clamped"], receipt["skipped"], receipt["lost"]) == ({topic: {"0": 1}}, {}, 3)
    assert receipt["times"]["before"] == {topic: {"0": "deleted"}}
    assert receipt["times"]["after"][topic]["0"].startswith("20")


def test_a_receipt_says_what_was_left_alone(cli, at, shortened, tmp_path):
    topic, group = shortened
    saved = tmp_path / "offsets.csv"
    saved.write_text(f"{group},{topic},0,1\n")
    flags = ("--from-file", saved, "--on-out-of-range", "skip", "--execute", *at)
    receipt = json.loads(cli("group", "restore", group, *flags, "--output", "json").out)
    assert (receipt["skipped"], receipt["clamped"], receipt["after"]) == ({topic: {"0": 2}}, {}, {})
    done = cli("group", "restore", group, *flags)
    assert "0 of 0 partitions change; 1 left alone" in done.out
    assert done.out.endswith(f"group {group}: nothing was committed\n")


def test_a_seek_that_is_refused_is_not_called_done_or_left(cli, at, topic, query):
    before = query.files()
    done = cli("checkpoint", "seek", query.location, "--shift-by", "-9", *at)
    assert done.code == 1
    assert f"checkpoint {query.location} (refused, not applied): would be moved (seek, batch 1)" in done.out
    assert "stays as it is" not in done.out
    assert shows(done, "0", topic, 0, 8, -1, -9)
    assert query.files() == before


def test_a_receipt_of_groups_alone_says_that_the_checkpoint_stays(
    cli, at, topic, group, query, committed, tmp_path
):
    before, file = query.files(), tmp_path / "receipt.json"
    reset = ("group", "reset", group, "--topic", topic, "--to-earliest", "--execute", "--output", "json")
    file.write_text(cli(*reset, *at).out)
    flags = ("--receipt", file, "--checkpoint", query.location, "--execute", *QUIET, *at)
    done = cli("group", "restore", group, *flags)
    assert done.code == 0
    assert f"no checkpoint moved with the group, so {query.location} does not change" in done.out
    assert (query.files(), committed()) == (before, READ)


def test_both_are_restored_from_the_archives_csv(cli, at, group, query, committed):
    flags = ("--checkpoint", query.location, *QUIET, *at)
    cli("group", "reset", group, "--to-earliest", "--execute", *flags)
    before = query.root / "_kafka_offsets" / "0001-seek" / "before.csv"
    assert committed() == {0: 0, 1: 0}
    done = cli("group", "restore", group, "--from-file", before, "--execute", *flags)
    assert done.code == 0
    assert query.stands() == committed() == READ


def test_the_receipt_of_a_plan_that_was_only_shown_restores_nothing(
    cli, at, group, query, committed, tmp_path
):
    flags = ("--checkpoint", query.location, *QUIET, *at)
    file = tmp_path / "plan.json"
    file.write_text(cli("group", "reset", group, "--to-earliest", "--output", "json", *flags).out)
    cli("group", "reset", group, "--to-offset", "2", "--execute", *flags)
    done = cli("group", "restore", group, "--receipt", file, "--execute", *flags)
    assert done.code != 0
    assert "plan" in done.err
    assert query.stands() == committed() == {0: 2, 1: 2}


@pytest.fixture
def followed(cli, at, topic, group, query, tmp_path):
    """The flags that restore a reset of both to 2: of the receipt, and of the archive."""
    flags = ("group", "restore", group, "--checkpoint", query.location, *QUIET, *at)
    reset = ("--to-offset", "2", "--execute", "--output", "json")
    file = tmp_path / "receipt.json"
    file.write_text(cli("group", "reset", *flags[2:], *reset).out)
    return {"receipt": (*flags, "--receipt", file), "archive": (*flags, "--archive", "0001-seek")}


BOTH = pytest.mark.parametrize("kind", ["receipt", "archive"])


@BOTH
def test_a_move_that_the_pipeline_has_gone_on_from_is_taken_back_only_if_that_is_allowed(
    kind, cli, at, topic, group, query, committed, followed
):
    query.run(2, {topic: ENDS})
    assert cli("group", "commit", group, "--checkpoint", query.location, "--execute", *at).code == 0
    before = query.files()
    for flags in ((), ("--execute",)):
        done = cli(*followed[kind], *flags)
        assert (done.code, query.files(), committed()) == (1, before, ENDS)
    assert "the pipeline has continued since 0001-seek" in done.err
    assert f"group '{group}' was committed on {topic}-0, {topic}-1 by" in done.err
    assert "the query has finished batch 2" in done.err
    assert "3 records are read again" in done.err
    assert "--allow-stale" in done.err
    done = cli(*followed[kind], "--execute", "--allow-stale")
    assert (done.code, "3 records are read again" in done.out) == (0, True)
    assert query.stands() == committed() == READ


@BOTH
def test_a_move_that_another_one_has_followed_is_taken_back_only_if_that_is_allowed(
    kind, cli, at, group, query, committed, followed
):
    second = ("group", "reset", group, "--checkpoint", query.location, "--to-offset", "3", *QUIET, *at)
    assert cli(*second, "--execute").code == 0
    done = cli(*followed[kind], "--execute")
    assert (done.code, query.stands(), committed()) == (1, {0: 3, 1: 3}, {0: 3, 1: 3})
    assert "move 0002-seek (airflow-kafka-offsets group reset" in done.err
    # Of two moves that were taken back one after the other none has followed the other.
    newest = (*followed["archive"][:-1], "0002-seek", "--execute")
    assert cli(*newest).code == 0
    assert cli(*followed[kind], "--execute").code == 0
    assert query.stands() == committed() == READ


@BOTH
def test_a_recovery_that_has_come_half_way_is_taken_back(kind, cli, topic, query, committed, followed):
    query.run(2, {topic: {0: 5, 1: 3}})
    assert cli(*followed[kind], "--execute").code == 0
    assert query.stands() == committed() == READ


def test_a_checkpoint_alone_that_has_gone_on_is_moved_back_only_if_that_is_allowed(cli, at, topic, query):
    assert cli("checkpoint", "seek", query.location, "--to-offset", "2", "--execute", *QUIET, *at).code == 0
    query.run(2, {topic: ENDS})
    restore = ("checkpoint", "restore", query.location, "--execute", *QUIET)
    done = cli(*restore)
    assert (done.code, "the query has finished batch 2" in done.err, query.stands()) == (1, True, ENDS)
    assert cli(*restore, "--allow-stale").code == 0
    assert query.stands() == READ


def test_a_group_alone_that_has_gone_on_is_moved_back_only_if_that_is_allowed(
    cli, at, topic, group, commit, committed, tmp_path
):
    file = tmp_path / "receipt.json"
    reset = ("group", "reset", group, "--topic", topic, "--to-earliest", "--execute", "--output", "json")
    file.write_text(cli(*reset, *at).out)
    commit(group, topic, {0: 10, 1: 2})
    restore = ("group", "restore", group, "--receipt", file, "--execute", *at)
    done = cli(*restore)
    assert (done.code, committed()) == (1, {0: 10, 1: 2})
    assert f"was committed on {topic}-0 by another client" in done.err
    assert cli(*restore, "--allow-stale").code == 0
    assert committed() == READ


@pytest.mark.parametrize("flags", [(), ("--dry-run",)], ids=["nothing", "dry-run"])
def test_without_execute_a_checkpoint_stays_as_it_is(flags, cli, at, topic, query):
    query.run(2, {topic: ENDS})
    before = query.files()
    for command in (
        ("seek", query.location, "--to-earliest", *at),
        ("truncate", query.location, "--to-batch", "1", "--sink", "noop"),
    ):
        done = cli("checkpoint", *command, *flags)
        assert (done.code, "Nothing was changed" in done.err) == (0, True), done
        assert f"checkpoint {query.location}: " in done.out
    assert query.files() == before


def test_a_checkpoint_is_moved_alone_and_back(cli, at, topic, query):
    before = query.sparks_files()
    seek = ("checkpoint", "seek", query.location, "--topic", f"{topic}:0", "--shift-by", "-2", *QUIET, *at)
    done = cli(*seek, "--execute")
    assert done.code == 0
    assert shows(done, "0", topic, 0, 8, 6, "-2")
    assert query.stands() == {0: 6, 1: 3}
    shown = cli("checkpoint", "restore", query.location)
    assert (shown.code, "Nothing was changed" in shown.err) == (0, True)
    assert query.stands() == {0: 6, 1: 3}
    done = cli("checkpoint", "restore", query.location, "--archive", "0001-seek", "--execute", *QUIET)
    assert done.code == 0
    assert query.sparks_files() == before


def test_a_checkpoint_is_moved_to_the_end_of_a_batch_with_its_group_or_alone(
    cli, at, topic, group, query, committed
):
    query.run(2, {topic: ENDS})
    both = ("group", "reset", group, "--checkpoint", query.location, "--to-batch", "0", *QUIET, *at)
    done = cli(*both, "--execute", "--output", "json")
    assert (done.code, json.loads(done.out)["source"]["to_batch"]) == (0, 0)
    assert query.stands() == committed() == {0: 0, 1: 0}
    alone = ("checkpoint", "seek", query.location, "--topic", f"{topic}:0", "--to-batch", "1", *QUIET, *at)
    done = cli(*alone, "--execute")
    assert (done.code, shows(done, "0", topic, 0, 0, 8, "+8")) == (0, True)
    assert (query.stands(), committed()) == ({0: 8, 1: 0}, {0: 0, 1: 0})


def test_a_group_or_a_checkpoint_is_moved_to_where_another_group_is(
    cli, at, topic, group, query, committed, new_group
):
    query.run(2, {topic: ENDS})
    green = new_group()
    done = cli("group", "reset", green, "--to-group", group, "--execute", "--output", "json", *at)
    assert (done.code, json.loads(done.out)["source"]) == (0, {"to_group": group})
    assert json.loads(done.out)["after"] == {topic: {str(tp): at for tp, at in committed().items()}}
    seek = ("checkpoint", "seek", query.location, "--to-group", green, *QUIET, *at)
    assert (cli(*seek, "--execute").code, query.stands()) == (0, committed())
    refused = cli("group", "reset", group, "--to-group", group, "--execute", *at)
    assert (refused.code, f"--to-group {group} is the group that moves" in refused.err) == (
        1,
        True,
    )
    nowhere = ("checkpoint", "seek", query.location, "--to-latest", "--on-no-commit", "skip", *QUIET, *at)
    ignored = cli(*nowhere)
    assert (ignored.code, "--on-no-commit would be ignored where no commit is needed" in ignored.err) == (
        2,
        True,
    )


def test_each_source_of_a_checkpoint_that_is_moved_alone_moves_to_its_own_end(cli, at, topic, new_query):
    query = new_query({topic: {0: 8}}, {topic: {0: 6}})
    query.run(2, {topic: {0: 10}}, {topic: {0: 9}})
    assert cli("checkpoint", "seek", query.location, "--to-batch", "1", "--execute", *QUIET, *at).code == 0
    assert [query.stands(source) for source in "01"] == [{0: 8}, {0: 6}]


def test_a_checkpoint_is_truncated_and_its_receipt_printed(cli, topic, query):
    query.run(2, {topic: ENDS})
    truncate = ("checkpoint", "truncate", query.location, "--to-batch", "1", "--sink", "noop", *QUIET)
    done = cli(*truncate, "--execute", "--output", "json")
    assert done.code == 0
    receipt = json.loads(done.out)
    assert receipt["checkpoint"]["before"] == {"0": {topic: {"0": 10, "1": 4}}}
    assert receipt["checkpoint"]["after"] == {"0": {topic: {"0": 8, "1": 3}}}
    assert receipt["groups"] == []
    assert query.stands() == READ
    assert not {"offsets/2", "commits/2"} & set(query.files())


def commit_of(query, *at):
    return ("--checkpoint", query.location, *at)


def test_a_checkpoints_position_is_committed_only_with_execute(
    cli, at, topic, group, query, committed, kafka_tools
):
    query.run(2, {topic: ENDS})
    shown = cli("group", "commit", group, *commit_of(query, *at))
    assert (shown.code, "Nothing was changed: give --execute" in shown.err) == (0, True)
    assert shows(shown, topic, 0, 8, 10, "+2", 0, 10)
    assert committed() == READ
    done = cli("group", "commit", group, *commit_of(query, *at), "--execute", "--output", "json")
    receipt = json.loads(done.out)
    assert (done.code, receipt["verified"], receipt["source"]["batch_id"]) == (0, True, 2)
    assert receipt["before"] == {topic: {"0": 8, "1": 3}}
    assert [row["current_offset"] for row in kafka_tools.describe_rows(group)] == [10, 4]


def test_a_commit_by_hand_names_the_command_and_the_query(cli, at, topic, group, query, broker):
    assert cli("group", "commit", group, *commit_of(query, *at), "--execute").code == 0
    found = broker.committed(group, [TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    assert found is not None
    metadata = CommitMetadata.parse(found.metadata)
    assert metadata is not None
    assert metadata.tool == "airflow-kafka-offsets group commit"
    assert (metadata.query, metadata.batch) == (QUERY_ID, 1)


def test_a_commit_goes_back_only_if_allowed(cli, at, topic, group, query, committed, commit):
    commit(group, topic, ENDS)
    refused = cli("group", "commit", group, *commit_of(query, *at), "--execute")
    assert (refused.code, "would go backwards" in refused.err) == (1, True)
    assert committed() == ENDS
    options = ("--topic", f"{topic}:0", "--allow-rewind", "--execute")
    assert cli("group", "commit", group, *commit_of(query, *at), *options).code == 0
    assert committed() == {0: 8, 1: 4}


def test_a_commit_takes_over_another_querys_group_only_if_allowed(cli, at, topic, group, query, new_query):
    assert cli("group", "commit", group, *commit_of(query, *at), "--execute").code == 0
    other = new_query({topic: ENDS}, query_id="99999999-2222-3333-4444-555555555555")
    refused = cli("group", "commit", group, *commit_of(other, *at), "--execute")
    assert (refused.code, QUERY_ID in refused.err) == (1, True)
    take_over = ("group", "commit", group, *commit_of(other, *at), "--execute", "--allow-new-query")
    assert "sources/0/0: does not exist" in cli(*take_over).err
    # As Spark does before the first batch.
    other.write("sources/0/0", "\0v1\n" + json.dumps({topic: dict.fromkeys(ENDS, 0)}))
    assert cli(*take_over).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ("group", "commit", "GROUP", "--checkpoint", "URI"),
        ("group", "reset", "GROUP", "--checkpoint", "URI", "--to-earliest", *QUIET),
        ("checkpoint", "seek", "URI", "--to-earliest", *QUIET),
        ("drift", "URI", "GROUP"),
    ],
)
def test_a_mistyped_topic_is_exit_2(command, cli, at, group, query, committed):
    names = {"GROUP": group, "URI": query.location}
    before = query.files()
    execute = () if "drift" in command else ("--execute",)
    done = cli(*(names.get(word, word) for word in command), "--topic", "nowhere", *execute, *at)
    assert done.code == 2
    assert "--topic names 'nowhere', which the checkpoint does not have" in done.err
    assert (query.files(), committed()) == (before, READ)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("group", "reset", "GROUP", "--checkpoint", "URI", "--to-offset", "5"), "outside its log"),
        (("checkpoint", "seek", "URI", "--to-offset", "5"), "outside its log"),
        (
            ("checkpoint", "seek", "URI", "--to-batch", "9"),
            "batch 9 is not a finished batch of the checkpoint; finished batches: 0 to 1",
        ),
        (
            ("group", "reset", "GROUP", "--checkpoint", "URI", "--to-batch", "9"),
            "batch 9 is not a finished batch",
        ),
        (("checkpoint", "truncate", "URI", "--to-batch", "0"), "set --sink to 'kafka'"),
        (
            ("checkpoint", "truncate", "URI", "--to-batch", "9", "--sink", "noop"),
            "batch 9 is not a finished batch",
        ),
        (("checkpoint", "restore", "URI"), "found no move to take back; there are: none"),
        (("checkpoint", "restore", "URI", "--archive", "0007-seek"), "found no archive 0007-seek"),
        (("checkpoint", "seek", "/nowhere/at/all", "--to-earliest"), "/nowhere/at/all"),
    ],
)
def test_a_refusal_is_exit_1_and_nothing_is_changed(command, says, cli, at, group, query, committed):
    before = query.files()
    names = {"GROUP": group, "URI": query.location}
    command = [names.get(word, word) for word in command]
    broker = () if "truncate" in command or "restore" in command else at
    done = cli(*command, "--execute", *QUIET, *broker)
    assert done.code == 1
    assert done.err.startswith("Error: ")
    assert says in done.err
    assert (query.files(), committed()) == (before, READ)


@pytest.mark.parametrize(
    "command",
    [
        ("group", "reset", "g", "h", "--checkpoint", "/c", "--to-latest"),
        ("group", "reset", "--checkpoint", "/c", "--to-latest"),
        ("group", "reset", "g", "--checkpoint", "/c"),
        ("group", "reset", "g", "--checkpoint", "/c", "--to-latest", "--sink", "s3"),
        ("group", "reset", "g", "--checkpoint", "/c", "--to-latest", "--dry-run", "--execute"),
        ("group", "commit", "g"),
        ("group", "commit", "", "--checkpoint", "/c"),
        ("group", "commit", "g", "--checkpoint", "/c", "--dry-run", "--execute"),
        ("group", "delete", "g", "--dry-run", "--execute"),
        ("group", "restore", "g"),
        ("group", "restore", "g", "--receipt", __file__, "--from-file", __file__),
        ("group", "restore", "g", "--from-file", __file__, "--dry-run", "--execute"),
        ("group", "restore", "g", "--receipt", "/nowhere"),
        ("checkpoint", "seek", "/c"),
        ("checkpoint", "seek", "/c", "--to-earliest", "--to-latest"),
        ("checkpoint", "seek", "/c", "--to-batch", "-1"),
        ("group", "reset", "g", "--to-batch", "1"),
        ("checkpoint", "seek", "/c", "--to-earliest", "--dry-run", "--execute"),
        ("checkpoint", "truncate", "/c"),
        ("checkpoint", "truncate", "/c", "--to-batch", "-1"),
        ("checkpoint", "truncate", "/c", "--to-batch", "1", "--dry-run", "--execute"),
        ("checkpoint", "restore"),
        ("checkpoint", "restore", "/c", "--dry-run", "--execute"),
    ],
)
def test_options_that_contradict_each_other_or_are_missing_are_exit_2(command, cli, at):
    broker = () if "truncate" in command or "restore" in command else at
    assert cli(*command, *broker).code == 2
