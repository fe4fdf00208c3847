"""The commands that move a checkpoint, alone or with its group, and that commit its position."""

import json

import pytest
from written_query import QUERY_ID

from airflow_kafka_offsets.checkpoint import apply_move
from airflow_kafka_offsets.errors import StorageUnavailableError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.usefixtures("memory")

ENDS = {0: 10, 1: 4}
READ = {0: 8, 1: 3}
"""Where group and checkpoint stand."""
RESET = "group reset GROUP --checkpoint URI --quiet-period 0"
RESTORE = "group restore GROUP --checkpoint URI --quiet-period 0"
SEEK = "checkpoint seek URI --quiet-period 0"
COMMIT = "group commit GROUP --checkpoint URI"


def shows(done, *row):
    """Whether a line of a table begins with these cells."""
    return list(map(str, row)) in [line.split()[: len(row)] for line in done.out.splitlines()]


@pytest.fixture
def receipt(do, tmp_path):
    """receipt("group reset ...") carries out a command -> the file of its receipt."""
    file = tmp_path / "receipt.json"

    def move(line, execute="--execute"):
        done = do(f"{line} {execute} --output json")
        assert done.code == 0, done.err
        file.write_text(done.out)
        return file

    return move


@pytest.mark.parametrize("flag", ["", "--dry-run"])
@pytest.mark.parametrize(
    "line",
    [
        f"{RESET} --to-offset 2",
        "group reset GROUP --topic TOPIC --to-latest",
        f"{SEEK} --to-earliest",
        "checkpoint truncate URI --to-batch 1 --sink noop",
        "group commit GROUP --checkpoint URI",
    ],
)
def test_without_execute_nothing_is_changed(line, flag, do, topic, query, committed):
    query.run(2, {topic: ENDS})
    before = query.files()
    done = do(f"{line} {flag}")
    assert done.code == 0
    assert "Nothing was changed: give --execute to apply the plan." in done.err
    assert (query.files(), committed()) == (before, READ)


def test_what_was_done_is_said_after_the_plan(do, topic, group, query, tmp_path):
    saved = tmp_path / "before.csv"
    planned = do(f"{RESET} --to-offset 2")
    assert shows(planned, "0", topic, 0, 8, 2, "-6")
    assert shows(planned, topic, 1, 3, 2, "-1", 0, 4)
    done = do(f"{RESET} --to-offset 2 --execute --save {saved}")
    assert done.out.startswith(planned.out)
    assert done.out.removeprefix(planned.out).splitlines() == [
        f"checkpoint {query.location} was moved (seek) and read back; archive 0001-seek",
        f"group {group}: 2 partitions committed and read back ({topic}-0, {topic}-1), "
        "2 changed, moved by -7 offsets",
        f"the offsets before the move are saved in {saved}",
    ]


def test_a_reset_of_both_is_restored_from_the_receipt_that_it_prints(do, receipt, topic, query, committed):
    before = query.sparks_files()
    file = receipt(f"{RESET} --to-offset 2")
    made = json.loads(file.read_text())
    assert (made["verified"], made["plan_only"]) == (True, False)
    assert made["checkpoint"]["archive"] == "0001-seek"
    shown = do(f"{RESTORE} --receipt {file}")
    assert (shown.code, "Nothing was changed" in shown.err) == (0, True)
    assert shows(shown, topic, 0, 2, 8, "+6", 0, 10)
    assert query.stands() == committed() == {0: 2, 1: 2}
    done = do(f"{RESTORE} --receipt {file} --execute --output json")
    assert (done.code, json.loads(done.out)["checkpoint"]["kind"]) == (0, "restore")
    assert (query.sparks_files(), committed()) == (before, READ)


@pytest.fixture
def shortened(make_topic, produce, delete_records, commit, new_group):
    """A topic of which retention has deleted the first 4 records, and a group at 2."""
    name, group = make_topic(1), new_group()
    produce(name, {0: 10})
    commit(group, name, {0: 2})
    delete_records(name, {0: 4})
    return name, group


def test_a_receipt_says_what_was_deleted_and_moved_to_the_log_start(receipt, shortened):
    topic, group = shortened
    file = receipt(f"group reset {group} --topic {topic} --to-offset 1 --on-out-of-range clamp")
    made = json.loads(file.read_text())
    assert made["after"] == {topic: {"0": 4}}
    assert (made["clamped"], made["skipped"], made["lost"]) == ({topic: {"0": 1}}, {}, 3)
    assert made["times"]["before"] == {topic: {"0": "deleted"}}
    assert made["times"]["after"][topic]["0"].startswith("20")


def test_a_receipt_says_what_was_left_alone(do, receipt, shortened, tmp_path):
    topic, group = shortened
    saved = tmp_path / "offsets.csv"
    saved.write_text(f"{group},{topic},0,1\n")
    restore = f"group restore {group} --from-file {saved} --on-out-of-range skip"
    made = json.loads(receipt(restore).read_text())
    assert (made["skipped"], made["clamped"], made["after"]) == ({topic: {"0": 2}}, {}, {})
    done = do(f"{restore} --execute")
    assert "0 of 0 partitions change; 1 left alone" in done.out
    assert done.out.endswith(f"group {group}: nothing was committed\n")


def test_a_seek_that_is_refused_is_not_called_done_or_left(do, topic, query):
    before = query.files()
    done = do(f"{SEEK} --shift-by -9")
    assert done.code == 1
    assert f"checkpoint {query.location} (refused, not applied): would move (seek, batch 1)" in done.out
    assert "stays as it is" not in done.out
    assert shows(done, "0", topic, 0, 8, -1, -9)
    assert query.files() == before


def test_a_receipt_of_groups_alone_says_that_the_checkpoint_stays(do, receipt, query, committed):
    before, file = query.files(), receipt("group reset GROUP --topic TOPIC --to-earliest")
    done = do(f"{RESTORE} --receipt {file} --execute")
    assert done.code == 0
    assert f"no checkpoint moved with the group, so {query.location} does not change" in done.out
    assert (query.files(), committed()) == (before, READ)


def test_both_are_restored_from_the_archives_csv(do, query, committed):
    do(f"{RESET} --to-earliest --execute")
    before = query.root / "_kafka_offsets" / "0001-seek" / "before.csv"
    assert committed() == {0: 0, 1: 0}
    assert do(f"{RESTORE} --from-file {before} --execute").code == 0
    assert query.stands() == committed() == READ


def test_the_receipt_of_a_plan_that_was_only_shown_restores_nothing(do, receipt, query, committed):
    file = receipt(f"{RESET} --to-earliest", execute="")
    do(f"{RESET} --to-offset 2 --execute")
    done = do(f"{RESTORE} --receipt {file} --execute")
    assert done.code != 0
    assert "plan" in done.err
    assert query.stands() == committed() == {0: 2, 1: 2}


@pytest.fixture(params=["receipt", "archive"])
def followed(request, receipt):
    """What restores a reset of both to 2: its receipt, or its archive."""
    file = receipt(f"{RESET} --to-offset 2")
    return f"{RESTORE} --receipt {file}" if request.param == "receipt" else f"{RESTORE} --archive 0001-seek"


def test_a_move_that_the_pipeline_has_gone_on_from_is_taken_back_only_if_that_is_allowed(
    do, topic, group, query, committed, followed
):
    query.run(2, {topic: ENDS})
    assert do(f"{COMMIT} --execute").code == 0
    before = query.files()
    for flag in ("", "--execute"):
        done = do(f"{followed} {flag}")
        assert (done.code, query.files(), committed()) == (1, before, ENDS)
    assert "the pipeline has continued since 0001-seek" in done.err
    assert f"group '{group}' was committed on {topic}-0, {topic}-1 by" in done.err
    assert "the query has finished batch 2" in done.err
    assert "reads 3 records again" in done.err
    assert "--allow-stale" in done.err
    done = do(f"{followed} --execute --allow-stale")
    assert (done.code, "reads 3 records again" in done.out) == (0, True)
    assert query.stands() == committed() == READ


def test_a_move_that_another_one_has_followed_is_taken_back_only_if_that_is_allowed(
    do, query, committed, followed
):
    assert do(f"{RESET} --to-offset 3 --execute").code == 0
    done = do(f"{followed} --execute")
    assert (done.code, query.stands(), committed()) == (1, {0: 3, 1: 3}, {0: 3, 1: 3})
    assert "move 0002-seek (airflow-kafka-offsets group reset" in done.err
    # Of two moves that were taken back one after the other none has followed the other.
    assert do(f"{RESTORE} --archive 0002-seek --execute").code == 0
    assert do(f"{followed} --execute").code == 0
    assert query.stands() == committed() == READ


def test_a_recovery_that_has_come_half_way_is_taken_back(do, topic, query, committed, followed):
    query.run(2, {topic: {0: 5, 1: 3}})
    assert do(f"{followed} --execute").code == 0
    assert query.stands() == committed() == READ


def test_a_checkpoint_alone_that_has_gone_on_is_moved_back_only_if_that_is_allowed(do, topic, query):
    assert do(f"{SEEK} --to-offset 2 --execute").code == 0
    query.run(2, {topic: ENDS})
    restore = "checkpoint restore URI --execute --quiet-period 0"
    done = do(restore)
    assert (done.code, "the query has finished batch 2" in done.err, query.stands()) == (1, True, ENDS)
    assert do(f"{restore} --allow-stale").code == 0
    assert query.stands() == READ


def test_a_group_alone_that_has_gone_on_is_moved_back_only_if_that_is_allowed(
    do, receipt, topic, group, commit, committed
):
    file = receipt("group reset GROUP --topic TOPIC --to-earliest")
    commit(group, topic, {0: 10, 1: 2})
    restore = f"group restore GROUP --receipt {file} --execute"
    done = do(restore)
    assert (done.code, committed()) == (1, {0: 10, 1: 2})
    assert f"was committed on {topic}-0 by another client" in done.err
    assert do(f"{restore} --allow-stale").code == 0
    assert committed() == READ


def test_a_checkpoint_is_moved_alone_and_back(do, topic, query):
    before = query.sparks_files()
    done = do(f"{SEEK} --topic TOPIC:0 --shift-by -2 --execute")
    assert done.code == 0
    assert shows(done, "0", topic, 0, 8, 6, "-2")
    assert query.stands() == {0: 6, 1: 3}
    shown = do("checkpoint restore URI")
    assert (shown.code, "Nothing was changed" in shown.err) == (0, True)
    assert query.stands() == {0: 6, 1: 3}
    assert do("checkpoint restore URI --archive 0001-seek --execute --quiet-period 0").code == 0
    assert query.sparks_files() == before


def test_a_seek_that_was_interrupted_is_finished_by_the_same_command_only(do, topic, query, monkeypatch):
    def fail(*_):
        raise StorageUnavailableError("the storage went away")

    with monkeypatch.context() as patch:
        patch.setattr(apply_move, "_apply_step", fail)
        done = do(f"{SEEK} --shift-by -2 --execute")
    assert (done.code, query.stands()) == (1, READ)
    assert "running it again finishes the rest" in done.err
    assert "was begun and not finished" in do(f"{SEEK} --to-earliest --execute").err
    # Not a second shift.
    assert do(f"{SEEK} --shift-by -2 --execute").code == 0
    assert query.stands() == {0: 6, 1: 1}
    assert [each.name for each in (query.root / "_kafka_offsets").iterdir()] == ["0001-seek"]


def test_a_checkpoint_is_moved_to_the_end_of_a_batch_with_its_group_or_alone(do, topic, query, committed):
    query.run(2, {topic: ENDS})
    done = do(f"{RESET} --to-batch 0 --execute --output json")
    assert (done.code, json.loads(done.out)["source"]["to_batch"]) == (0, 0)
    assert query.stands() == committed() == {0: 0, 1: 0}
    done = do(f"{SEEK} --topic TOPIC:0 --to-batch 1 --execute")
    assert (done.code, shows(done, "0", topic, 0, 0, 8, "+8")) == (0, True)
    assert (query.stands(), committed()) == ({0: 8, 1: 0}, {0: 0, 1: 0})


def test_a_group_or_a_checkpoint_is_moved_to_where_another_group_is(
    do, receipt, topic, group, query, committed, new_group
):
    query.run(2, {topic: ENDS})
    green = new_group()
    made = json.loads(receipt(f"group reset {green} --to-group GROUP").read_text())
    assert made["source"] == {"to_group": group}
    assert made["after"] == {topic: {str(tp): at for tp, at in committed().items()}}
    assert (do(f"{SEEK} --to-group {green} --execute").code, query.stands()) == (0, committed())
    refused = do("group reset GROUP --to-group GROUP --execute")
    assert (refused.code, f"--to-group {group} is the group that moves" in refused.err) == (1, True)


def test_each_source_of_a_checkpoint_that_is_moved_alone_moves_to_its_own_end(do, topic, new_query):
    query = new_query({topic: {0: 8}}, {topic: {0: 6}})
    query.run(2, {topic: {0: 10}}, {topic: {0: 9}})
    assert do(f"checkpoint seek {query.location} --to-batch 1 --execute --quiet-period 0").code == 0
    assert [query.stands(source) for source in "01"] == [{0: 8}, {0: 6}]


def test_a_checkpoint_is_truncated_and_its_receipt_printed(receipt, topic, query):
    query.run(2, {topic: ENDS})
    made = json.loads(
        receipt("checkpoint truncate URI --to-batch 1 --sink noop --quiet-period 0").read_text()
    )
    assert made["checkpoint"]["before"] == {"0": {topic: {"0": 10, "1": 4}}}
    assert made["checkpoint"]["after"] == {"0": {topic: {"0": 8, "1": 3}}}
    assert made["groups"] == []
    assert query.stands() == READ
    assert not {"offsets/2", "commits/2"} & set(query.files())


def test_a_commit_of_a_checkpoints_position_is_shown_and_has_a_receipt(do, receipt, topic, query, committed):
    query.run(2, {topic: ENDS})
    assert shows(do(COMMIT), topic, 0, 8, 10, "+2", 0, 10)
    made = json.loads(receipt(COMMIT).read_text())
    assert (made["verified"], made["source"]["batch_id"]) == (True, 2)
    assert made["before"] == {topic: {"0": 8, "1": 3}}
    assert committed() == ENDS


def test_a_commit_by_hand_names_the_command_and_the_query(do, topic, group, broker):
    assert do(f"{COMMIT} --execute").code == 0
    found = broker.committed(group, [TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    assert found is not None
    metadata = CommitMetadata.parse(found.metadata)
    assert metadata.tool == "airflow-kafka-offsets group commit"
    assert (metadata.query, metadata.batch) == (QUERY_ID, 1)


def test_a_commit_goes_back_only_if_allowed(do, topic, group, committed, commit):
    commit(group, topic, ENDS)
    refused = do(f"{COMMIT} --execute")
    assert (refused.code, "would go backwards" in refused.err) == (1, True)
    assert committed() == ENDS
    assert do(f"{COMMIT} --topic TOPIC:0 --allow-rewind --execute").code == 0
    assert committed() == {0: 8, 1: 4}


def test_a_commit_takes_over_another_querys_group_only_if_allowed(do, topic, new_query):
    assert do(f"{COMMIT} --execute").code == 0
    other = new_query({topic: ENDS}, query_id="99999999-2222-3333-4444-555555555555")
    of_other = f"group commit GROUP --checkpoint {other.location} --execute"
    refused = do(of_other)
    assert (refused.code, QUERY_ID in refused.err) == (1, True)
    assert "sources/0/0: does not exist" in do(f"{of_other} --allow-new-query").err
    # As Spark does before the first batch.
    other.write("sources/0/0", "\0v1\n" + json.dumps({topic: dict.fromkeys(ENDS, 0)}))
    assert do(f"{of_other} --allow-new-query").code == 0


@pytest.mark.parametrize(
    "line",
    [
        f"{COMMIT} --execute",
        f"{RESET} --to-earliest --execute",
        f"{SEEK} --to-earliest --execute",
        "drift URI GROUP",
    ],
)
def test_a_mistyped_topic_is_exit_2(line, do, query, committed):
    before = query.files()
    done = do(f"{line} --topic nowhere")
    assert done.code == 2
    assert "--topic names 'nowhere', which the checkpoint does not have" in done.err
    assert (query.files(), committed()) == (before, READ)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{RESET} --to-offset 5", "outside its log"),
        (f"{SEEK} --to-offset 5", "outside its log"),
        ("group reset GROUP --topic TOPIC:9 --to-earliest", "-9 is not on "),
        (
            f"{SEEK} --to-batch 9",
            "batch 9 is not a finished batch of the checkpoint; finished batches: 0 to 1",
        ),
        (f"{RESET} --to-batch 9", "batch 9 is not a finished batch"),
        ("checkpoint truncate URI --to-batch 0", "set --sink to 'kafka'"),
        ("checkpoint truncate URI --to-batch 9 --sink noop", "batch 9 is not a finished batch"),
        ("checkpoint restore URI", ": there is no move to take back: correct the location, if one was made"),
        ("checkpoint restore URI --archive 0007-seek", "there is no archive 0007-seek"),
        ("checkpoint seek /nowhere/at/all --to-earliest", "/nowhere/at/all"),
    ],
)
def test_a_refusal_is_exit_1_and_nothing_is_changed(line, says, do, query, committed):
    before = query.files()
    done = do(f"{line} --execute")
    assert done.code == 1
    assert "Error: " in done.err
    assert says in done.err
    assert (query.files(), committed()) == (before, READ)
