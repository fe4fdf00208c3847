"""Many pipelines as one: what is refused, interrupted, followed by others, and taken back."""

import errno
import fcntl
import json
import os
import re
import shutil
from threading import Event

import click
import pytest
from moved_fleet import BACK, READ, SHIFT

from airflow_kafka_offsets.cli.connections import connection_config
from airflow_kafka_offsets.errors import StorageError
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture
def planned(pipelines, recovering):
    """planned(3) -> so many pipelines with a plan."""

    def plan(many):
        made = pipelines(many)
        assert recovering("plan", made, *SHIFT).code == 0
        return made

    return plan


@pytest.fixture
def applied(planned, recovering):
    """applied(3) -> so many pipelines that have moved."""

    def apply(many):
        made = planned(many)
        assert recovering("apply", made, "--execute").code == 0
        return made

    return apply


def test_only_what_has_moved_is_taken_back(planned, recovering, memory):
    few = planned(4)
    memory.join(few.names[2], "m", "a-reader", (few.topic,))
    assert recovering("apply", few, "--execute", "--max-active", "1").code == 1
    memory.leave(few.names[2], "m")
    assert few.stages() == {"applied": 2, "planned": 2}
    # Somebody else moves the last one meanwhile.
    few.commit(few.names[3], READ + 1)
    done = recovering("restore", few, "--execute")
    assert done.code == 0, done.err
    assert [offset for (offset,) in few.groups().values()] == [READ, READ, READ, READ + 1]
    assert few.stages() == {"restored": 2, "planned": 2}
    archives = [(query.root / "_kafka_offsets").exists() for query in few.queries.values()]
    assert archives == [True, True, False, False]


def test_a_pipeline_that_was_taken_out_of_the_file_after_the_plan_is_not_moved(planned, recovering):
    few = planned(3)
    content = json.loads(few.file.read_text())
    few.file.write_text(json.dumps({"pipelines": content["pipelines"][:2]}))
    for options in ((), ("--execute",)):
        done = recovering("apply", few, *options)
        assert (done.code, f"{few.names[2]} is in the plan, but no longer in" in done.err) == (2, True)
    assert (few.at(), few.stages()) == ({READ: 3}, {"planned": 3})


def test_a_plan_that_was_never_applied_is_not_restored(planned, recovering):
    few = planned(2)
    shown = recovering("restore", few)
    assert shown.out.count("would be restored only if another copy of the file has moved it") == 2
    done = recovering("restore", few, "--execute")
    assert (done.code, "no pipeline has begun to move" in done.err) == (2, True)
    assert few.stages() == {"planned": 2}


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_a_restore_undoes_also_what_another_copy_of_the_file_has_moved(
    pipelines, recovering, memory, with_checkpoints
):
    few = pipelines(3)
    if not with_checkpoints:
        few.file.write_text(json.dumps([{"group_id": name, "topics": [few.topic]} for name in few.names]))
    assert recovering("plan", few, *SHIFT).code == 0
    before = few.state.read_text()
    memory.join(few.names[2], "m", "a-reader", (few.topic,))
    assert recovering("apply", few, "--execute", "--max-active", "1").code == 1
    memory.leave(few.names[2], "m")
    # It has not moved, and goes on.
    few.commit(few.names[2], READ + 1)
    few.state.write_text(before)
    done = recovering("restore", few, "--execute")
    assert (done.code, few.stages()) == (0, {"restored": 2, "planned": 1}), done.err
    assert few.groups() == dict(zip(few.names, [{READ}, {READ}, {READ + 1}], strict=True))
    assert {READ} == {at for query in few.queries.values() for at in query.stands().values()}


def test_an_apply_that_finds_nothing_to_move_says_so(applied, recovering):
    few = applied(2)
    done = recovering("apply", few, "--execute")
    assert (done.code, "Nothing was moved: each pipeline was applied before" in done.err) == (0, True)


@pytest.mark.parametrize(
    ("verb", "options", "outcome"),
    [
        ("plan", SHIFT, r"Plan \w+ is saved in {}; nothing was moved"),
        ("apply", ["--execute"], "the progress is saved in {}"),
        ("restore", ["--execute"], "the progress is saved in {}"),
    ],
)
def test_a_command_on_many_whose_output_is_closed_says_where_its_file_is(
    planned, recovering, monkeypatch, verb, options, outcome
):
    few = planned(2)
    assert verb != "restore" or recovering("apply", few, "--execute").code == 0
    echo = click.echo

    def closed(text, err=False):
        if not err:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        echo(text, err=True)

    monkeypatch.setattr(click, "echo", closed)
    monkeypatch.setattr("airflow_kafka_offsets.cli.execution.os.dup2", lambda *_: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1)
    done = recovering(verb, few, *options)
    said = f"the output cannot be written: Broken pipe; {outcome.format(few.state)}\n$"
    assert (done.code, bool(re.search(said, done.err))) == (1, True), done.err


@pytest.mark.parametrize("verb", ["apply", "restore"])
def test_ctrl_c_says_where_the_progress_is_and_how_to_go_on(planned, recovering, interrupted, verb):
    few = planned(2)
    assert verb == "apply" or recovering("apply", few, "--execute").code == 0
    done = interrupted(verb, few, 2, KeyboardInterrupt(), once=True)
    undo = ", or 'recover restore' to undo all moves" if verb == "apply" else ""
    said = f"Stopped: the progress is saved in {few.state}; run 'recover {verb}' again to continue{undo}\n"
    assert (done.code, said in done.err) == (1, True), done.err
    assert recovering(verb, few, "--execute").code == 0
    assert few.at() == {BACK if verb == "apply" else READ: 2}


def test_an_apply_that_has_moved_nothing_does_not_advise_to_undo(planned, recovering):
    few = planned(2)
    for name in few.names:
        few.commit(name, READ + 1)
    done = recovering("apply", few, "--execute", "--max-active", "1")
    assert (done.code, few.stages()) == (1, {"planned": 2})
    assert done.err.endswith("1 failed; run 'recover apply' again to continue\n")


class Killed(BaseException):
    """The process has ended."""


@pytest.fixture
def interrupted(recovering, failing_progress):
    """interrupted("apply", few, 2, error): a command that ends with the second write of its progress."""

    def run(command, few, at, error, **how):
        with failing_progress(at, error, **how):
            return recovering(command, few, "--execute", "--max-active", "1")

    return run


@pytest.mark.parametrize("after", range(1, 5))
def test_an_apply_that_was_killed_goes_on(planned, recovering, interrupted, after):
    few = planned(2)
    with pytest.raises(BaseException, match="|"):
        interrupted("apply", few, after, Killed, saved=True)
    assert "applying" in few.stages() or "applied" in few.stages()
    done = recovering("apply", few, "--execute")
    assert done.code == 0, done.err
    assert (few.at(), few.stages()) == ({BACK: 2}, {"applied": 2})
    receipts = [member["receipt"] for member in json.loads(few.state.read_text())["pipelines"]]
    assert all(set(each["before"][few.topic].values()) == {READ} for each in receipts)
    assert recovering("restore", few, "--execute").code == 0
    assert few.at() == {READ: 2}


@pytest.mark.parametrize(
    ("command", "at"),
    [("apply", ({BACK: 1}, {"applied": 1})), ("restore", ({READ: 1}, {"planned": 1}))],
)
def test_a_move_of_an_earlier_plan_with_the_same_digest_does_not_count(
    applied, recovering, interrupted, cli, command, at
):
    """The pipeline was moved forward again and is planned again, and the apply dies before it writes."""
    few = applied(1)
    (query,) = few.queries.values()
    away = ("--checkpoint", query.location, "--to-offset", READ, "--sink", "noop", "--quiet-period", "0")
    assert cli("group", "reset", few.names[0], *away, "--execute").code == 0
    digests = [json.loads(few.state.read_text())["digest"]]
    few.state.unlink()
    assert recovering("plan", few, *SHIFT).code == 0
    digests += [json.loads(few.state.read_text())["digest"]]
    assert len(set(digests)) == 1
    with pytest.raises(BaseException, match="|"):
        interrupted("apply", few, 1, Killed, saved=True)
    assert (few.at(), few.stages()) == ({READ: 1}, {"applying": 1})
    assert recovering(command, few, "--execute").code == 0
    assert (few.at(), few.stages()) == at


def test_no_pipeline_is_moved_after_one_whose_progress_could_not_be_saved(planned, interrupted):
    few = planned(3)
    done = interrupted("apply", few, 2, StorageError("no space left"), once=True)
    assert (done.code, "no space left" in done.err) == (1, True)
    # The first one had moved.
    assert (few.at(), few.stages()) == ({BACK: 1, READ: 2}, {"applied": 1, "planned": 2})


@pytest.mark.parametrize("after", range(1, 5))
def test_a_restore_that_was_killed_goes_on(applied, recovering, interrupted, after):
    few = applied(2)
    with pytest.raises(BaseException, match="|"):
        interrupted("restore", few, after, Killed)
    done = recovering("restore", few, "--execute")
    assert done.code == 0, done.err
    assert (few.at(), few.stages()) == ({READ: 2}, {"restored": 2})


def test_a_move_that_others_have_followed_is_not_taken_back_unless_that_is_allowed(applied, recovering):
    few = applied(2)
    followed = few.queries[few.names[0]]
    followed.run(2, {few.topic: dict.fromkeys(range(3), 15)})
    assert "read on" in recovering("status", few).out
    done = recovering("restore", few, "--execute")
    assert done.code == 1
    assert "--allow-stale" in done.err
    assert few.stages() == {"applied": 1, "restored": 1}
    assert recovering("restore", few, "--execute", "--allow-stale").code == 0
    assert followed.stands() == dict.fromkeys(range(3), READ)


@pytest.mark.parametrize("killed", [True, False])
def test_one_that_another_command_has_taken_back_is_restored_with_its_group(
    applied, recovering, monkeypatch, cli, killed
):
    few = applied(2)
    query = few.queries[few.names[0]]
    if killed:

        def kill(*_):
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr("airflow_kafka_offsets.moves.apply.commit_groups", kill)
            with pytest.raises(BaseException, match="|"):
                recovering("restore", few, "--execute", "--max-active", "1")
    quiet = ("--execute", "--quiet-period", "0")
    assert cli("checkpoint", "restore", query.location, *quiet).code == 0
    assert (query.stands(), few.groups()[few.names[0]]) == (dict.fromkeys(range(3), READ), {BACK})
    assert recovering("restore", few, "--execute").code == 0
    assert (few.at(), few.stages()) == ({READ: 2}, {"restored": 2})


def test_one_that_was_taken_back_and_has_run_since_is_left_alone(applied, recovering, cli):
    few = applied(2)
    query = few.queries[few.names[0]]
    back = ("--checkpoint", query.location, "--archive", "0001-seek", "--execute", "--quiet-period", "0")
    assert cli("group", "restore", few.names[0], *back).code == 0
    query.run(2, {few.topic: dict.fromkeys(range(3), 15)})
    assert recovering("restore", few, "--execute").code == 0
    assert few.stages() == {"restored": 2}
    assert query.stands() == dict.fromkeys(range(3), 15)


def test_one_that_was_taken_back_is_left_alone_although_the_plan_did_not_change_a_partition(
    pipelines, recovering, cli
):
    few = pipelines(1)
    ((name, query),) = few.queries.items()
    query.run(2, {few.topic: {0: READ, 1: READ, 2: BACK}})
    few.broker.commit(name, {TopicPartition(few.topic, 2): BACK})
    assert recovering("plan", few, "--to-offset", str(BACK)).code == 0
    assert recovering("apply", few, "--execute").code == 0
    assert cli("checkpoint", "restore", query.location, "--execute", "--quiet-period", "0").code == 0
    few.broker.commit(name, {TopicPartition(few.topic, number): READ for number in (0, 1)})
    query.run(3, {few.topic: dict.fromkeys(range(3), 15)})
    done = recovering("restore", few, "--execute")
    assert (done.code, few.stages()) == (0, {"restored": 1}), done.err
    assert query.stands() == dict.fromkeys(range(3), 15)


def test_a_second_copy_of_the_file_finds_what_the_first_has_moved(planned, recovering):
    """What somebody has committed since is not overwritten."""
    few = planned(1)
    first = few.state.read_text()
    assert recovering("apply", few, "--execute").code == 0
    few.state.write_text(first)
    done = recovering("apply", few, "--execute")
    assert (done.code, few.at(), few.stages()) == (0, {BACK: 1}, {"applied": 1}), done.err
    ((name, query),) = few.queries.items()
    for offset in (READ + 1, BACK - 1, READ):
        few.state.write_text(first)
        few.commit(name, offset)
        done = recovering("apply", few, "--execute")
        assert (done.code, few.groups(), few.stages()) == (1, {name: {offset}}, {"planned": 1}), done.err
        assert "it was applied (move 0001-seek" in done.err
    query.run(2, {few.topic: dict.fromkeys(range(3), 15)})
    done = recovering("apply", few, "--execute")
    assert (done.code, "plan again" in done.err) == (1, True), done
    assert query.stands() == dict.fromkeys(range(3), 15)


@pytest.mark.parametrize("command", ["plan", "apply", "status", "restore"])
def test_a_file_of_which_no_connection_can_be_opened_is_refused_as_a_whole(
    pipelines, recovering, monkeypatch, command
):
    few, there = pipelines(2), os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"]
    monkeypatch.delenv("AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER")
    few.list([few.entry(name, kafka_config_id=f"of_{at}") for at, name in enumerate(few.names)])
    if command != "plan":
        with monkeypatch.context() as defined:
            for at in range(2):
                defined.setenv(f"AIRFLOW_CONN_OF_{at}", there)
            for verb, *options in [("plan", *SHIFT)] + [("apply", "--execute")] * (command != "apply"):
                assert recovering(verb, few, *options).code == 0
    how = {"plan": SHIFT, "status": ()}.get(command, ("--execute",))
    done = recovering(command, few, *how)
    said = f"{few.file}: connection 'of_0' is not defined: correct kafka_config_id, or add"
    assert (done.code, done.err.count("is not defined"), said in done.err) == (2, 1, True), done.err


def test_a_connection_that_is_gone_concerns_its_own_pipelines_only(pipelines, recovering, monkeypatch):
    few, asked = pipelines(3), list[str]()
    monkeypatch.delenv("AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER")
    there = os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"]
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", there)
    *others, mine = few.names
    few.list([*(few.entry(name, kafka_config_id="other") for name in others), few.entry(mine)])
    assert recovering("plan", few, *SHIFT).code == 0
    monkeypatch.delenv("AIRFLOW_CONN_OTHER")
    # A reset that is known to stop half-way does not begin.
    assert recovering("apply", few, "--execute", "--max-active", "1").code == 1
    assert (few.at(), few.stages()) == ({READ: 3}, {"planned": 3})
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", there)
    assert recovering("apply", few, "--execute").code == 0
    monkeypatch.delenv("AIRFLOW_CONN_OTHER")

    def ask(name, option):
        asked.append(name)
        return connection_config(name, option)

    monkeypatch.setattr("airflow_kafka_offsets.cli.connections.connection_config", ask)
    shown = recovering("status", few, "--output", "json")
    assert (shown.code, "connection 'other' is not defined" in shown.err) == (1, True)
    assert [each["now"] for each in json.loads(shown.out)["pipelines"]] == ["unknown", "unknown", "moved"]
    # Perhaps the secrets backend does not answer.
    assert asked == ["other", "kafka_default"]
    done = recovering("restore", few, "--execute")
    assert (done.code, f"Error: group {others[0]}: {few.file}: connection 'other'" in done.err) == (1, True)
    assert (few.at(), few.stages()) == ({BACK: 2, READ: 1}, {"applied": 2, "restored": 1})


def test_a_pipeline_that_has_read_on_to_exactly_where_it_was_is_not_shown_as_not_moved(applied, recovering):
    few = applied(3)
    first, second, _ = few.names
    for name in (first, second):
        few.queries[name].run(2, {few.topic: dict.fromkeys(range(3), READ)})
    few.commit(first, READ)
    shown = json.loads(recovering("status", few, "--output", "json").out)["pipelines"]
    assert [each["now"] for each in shown] == ["read on", "read on", "moved"]


def test_the_status_asks_several_at_once_and_shows_them_as_planned(planned, recovering, monkeypatch):
    few = planned(3)
    answered = {name: Event() for name in few.names}

    def ask(_client, _checkpoint, plan):
        number = few.names.index(plan.groups[0].group_id)
        # The last one answers first.
        assert number == 2 or answered[few.names[number + 1]].wait(10)
        answered[few.names[number]].set()
        return "moved", number

    monkeypatch.setattr("airflow_kafka_offsets.readings.pipeline_state.pipeline_state", ask)
    shown = json.loads(recovering("status", few, "--output", "json").out)["pipelines"]
    assert [(each["pipeline"], each["lag"]) for each in shown] == [*zip(few.names, "012", strict=True)]


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_the_permission_of_a_plan_does_not_restore_offsets_of_a_topic_that_was_recreated_since(
    pipelines, recovering, memory, with_checkpoints
):
    few = pipelines(1)
    if not with_checkpoints:
        few.file.write_text(json.dumps([{"group_id": few.names[0], "topics": [few.topic]}]))
    assert recovering("plan", few, *SHIFT, "--allow-new-cluster").code == 0
    assert recovering("apply", few, "--execute").code == 0
    memory.create(few.topic, 3)
    for partition in range(3):
        memory.append(few.topic, partition, range(20))
    refused = recovering("restore", few, "--execute")
    assert (refused.code, "was deleted and created again" in refused.err) == (1, True), refused
    assert "--allow-new-cluster" in refused.err
    assert (few.stages(), few.groups()) == ({"applied": 1}, {few.names[0]: set()})
    assert recovering("restore", few, "--execute", "--allow-new-cluster").code == 0
    assert (few.stages(), few.groups()) == ({"restored": 1}, {few.names[0]: {READ}})


def test_the_lag_of_a_pipeline_leaves_out_records_that_retention_has_deleted(applied, recovering, memory):
    few = applied(1)

    def lag():
        return int(json.loads(recovering("status", few, "--output", "json").out)["pipelines"][0]["lag"])

    before = lag()
    memory.delete_records(few.topic, 0, BACK + 1)
    assert lag() == before - 1
    few.commit(few.names[0], 21)
    done = recovering("status", few)
    assert (done.code, "is beyond the log end" in done.err, " 0 " in done.out) == (1, True, False)


def test_a_plan_names_every_pipeline_that_cannot_be_moved(pipelines, recovering):
    few = pipelines(3)
    gone, _, unreadable = few.queries.values()
    shutil.rmtree(gone.root)
    unreadable.write("offsets/1", "v9\n{}")
    done = recovering("plan", few, *SHIFT)
    assert done.code == 1
    assert f"group {few.names[0]}: " in done.err
    assert f"group {few.names[2]}: " in done.err
    assert not few.state.exists()


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--quiet-period", "1m", "No such option '--quiet-period'"),
        ("--on-no-commit", "earliest", "--on-no-commit would be ignored where no commit is needed"),
    ],
)
def test_an_option_that_a_plan_would_ignore_is_refused(pipelines, recovering, option, value, why):
    few = pipelines(2)
    done = recovering("plan", few, *SHIFT, option, value)
    assert (done.code, why in done.err) == (2, True), done.err
    assert not few.state.exists()


def test_an_error_about_a_pipeline_names_the_key_of_the_file_and_no_option(pipelines, recovering):
    one = pipelines(1)
    file = json.loads(one.file.read_text())
    file["pipelines"][0]["topics"] = ["no-such-topic"]
    one.file.write_text(json.dumps(file))
    done = recovering("plan", one, *SHIFT)
    assert done.code == 1
    assert "topics" in done.err
    assert "--topic" not in done.err


def test_a_file_that_was_changed_is_refused(planned, recovering):
    few = planned(2)
    value = json.loads(few.state.read_text())
    value["pipelines"].pop()
    few.state.write_text(json.dumps(value))
    done = recovering("apply", few, "--execute")
    assert done.code == 1
    assert "the file was changed after it was made; plan again" in done.err
    few.state.unlink()
    assert recovering("status", few).code == 2


def test_a_disk_that_cannot_lock_is_not_taken_for_another_process(planned, recovering, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    few = planned(1)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    done = recovering("apply", few, "--execute")
    assert (done.code, few.stages()) == (2, {"planned": 1})
    assert done.err.endswith(
        "cannot be locked (No locks available): copy FILE and its progress to a disk of this machine\n"
    )


def test_without_execute_nothing_is_done(planned, recovering):
    few = planned(2)
    shown = recovering("apply", few)
    assert (shown.code, few.stages()) == (0, {"planned": 2})
    assert "Nothing was changed" in shown.err
    assert recovering("apply", few, "--execute").code == 0
    assert few.names[0] in recovering("restore", few).out
    assert few.at() == {BACK: 2}


def test_a_fleet_that_was_restored_is_planned_again_and_not_half_applied(applied, recovering):
    some = applied(2)
    assert recovering("restore", some, "--execute").code == 0
    done = recovering("apply", some, "--execute")
    assert (done.code, "2 of 2 pipelines were restored" in done.err) == (2, True)
    assert some.at() == {READ: 2}


def test_an_unfinished_batch_is_discarded_by_the_restore_if_that_is_allowed(applied, recovering):
    one = applied(1)
    (query,) = one.queries.values()
    query.plan(2, {one.topic: dict.fromkeys(range(3), 15)})
    refused = recovering("restore", one, "--execute")
    assert (refused.code, "--on-pending-batch discard" in refused.err) == (1, True)
    done = recovering("restore", one, "--execute", "--on-pending-batch", "discard", "--sink", "noop")
    assert done.code == 0, done.err
    assert one.at() == {READ: 1}
