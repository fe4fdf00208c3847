"""Receipts that `group restore` takes, of commands on a broker in memory."""

import errno
import os
import shlex
import signal
from contextlib import suppress
from pathlib import Path

import click
import pytest
from written_query import Query

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import Commit, TopicPartition

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
def orders(memory):
    memory.create("orders")
    memory.append("orders", 0, range(100))


@pytest.fixture
def run(cli):
    """run("group lag g") -> its exit code and output."""
    return lambda line: cli(*shlex.split(line))


@pytest.fixture
def receipt(run, tmp_path):
    """receipt("group reset ...") -> the file with its receipt."""

    def receipt(line):
        done = run(f"{line} --output json")
        assert done.code == 0, done.err
        file = tmp_path / f"receipt-{len([*tmp_path.iterdir()])}.json"
        file.write_text(done.out)
        return file

    return receipt


@pytest.fixture
def at(broker):
    """at("g") -> where a group is."""

    def at(group):
        commit = broker.committed(group, [ORDERS])[ORDERS]
        return None if commit is None else commit.offset

    return at


@pytest.fixture
def groups(broker):
    for name, offset in (("a", 50), ("b", 60)):
        broker.commit(name, {ORDERS: offset})


@pytest.fixture
def query(tmp_path):
    """A query that has read up to offset 40."""
    query = Query(tmp_path / "checkpoint")
    query.run(0, {"orders": {0: 20}})
    query.run(1, {"orders": {0: 40}})
    return query


@pytest.mark.parametrize(
    "move", ["group reset a b --topic orders --to-offset 10 --execute", "group delete a b --execute"]
)
@pytest.mark.usefixtures("groups")
def test_one_group_of_a_receipt_of_several_is_restored_alone(run, receipt, at, move):
    file, moved = receipt(move), at("b")
    done = run(f"group restore a --receipt {file} --execute")
    assert (done.code, at("a"), at("b")) == (0, 50, moved)
    assert "Left out of the receipt: group b" in done.err
    assert run(f"group restore b --receipt {file} --execute").code == 0
    assert at("b") == 60
    assert "is of group 'a', 'b', but GROUP names 'c'" in run(f"group restore c --receipt {file}").err


def test_a_few_of_many_groups_that_are_left_out_are_named(run, receipt, broker):
    names = [f"group-{number}" for number in range(10)]
    for name in names:
        broker.commit(name, {ORDERS: 50})
    file = receipt(f"group reset {' '.join(names)} --topic orders --to-offset 10 --execute")
    done = run(f"group restore group-0 --receipt {file} --execute")
    assert done.code == 0
    assert "receipt: group group-1, group-2, group-3, group-4, group-5 and 4 more\n" in done.err


@pytest.mark.usefixtures("groups")
def test_a_receipt_of_a_checkpoint_alone_restores_no_group(run, receipt, at, query):
    file = receipt(f"checkpoint seek {query.location} --to-offset 10 --quiet-period 0 --execute")
    for checkpoint in ("", f"--checkpoint {query.location} --quiet-period 0"):
        done = run(f"group restore a --receipt {file} {checkpoint} --execute")
        assert (done.code, at("a"), query.stands()) == (2, 50, {0: 10})
        assert "is of a checkpoint alone, and of no group: take its move back with 'checkpoint re" in done.err


def test_the_empty_receipt_of_a_command_that_failed_is_named_as_one(run, tmp_path):
    file = tmp_path / "empty.json"
    file.touch()
    done = run(f"group restore a --receipt {file}")
    assert (done.code, "expected a receipt, as --output json prints it" in done.err) == (1, True)


@pytest.fixture
def second_refused(memory, monkeypatch):
    """The group b gets a member when the group a was written."""
    send = memory.send

    def send_and_join(group_id, commits, *member):
        refused = send(group_id, commits, *member)
        # Not the check of rights, which commits to no partition that exists.
        if group_id == "a" and not refused:
            memory.join("b", "m", "reader", ("orders",))
        return refused

    monkeypatch.setattr(memory, "send", send_and_join)


@pytest.mark.usefixtures("groups", "second_refused")
def test_the_receipt_of_a_move_that_failed_after_a_write_is_printed(run, at, tmp_path):
    done = run("group reset a b --topic orders --to-offset 10 --execute --output json")
    assert (done.code, at("a"), at("b")) == (1, 10, 60)
    assert "written before: group a" in done.err
    file = tmp_path / "receipt.json"
    file.write_text(done.out)
    assert run(f"group restore a --receipt {file} --execute").code == 0
    assert at("a") == 50


@pytest.mark.usefixtures("groups", "second_refused")
@pytest.mark.parametrize(
    ("target", "rest"),
    [
        ("--to-offset 10", "run the task or command again to finish the rest"),
        ("--shift-by -5", "run the command again for the others only, since it would shift these twice"),
    ],
)
def test_a_command_that_would_move_a_group_twice_does_not_say_to_run_it_again(run, target, rest):
    done = run(f"group reset a b --topic orders {target} --execute")
    assert done.err.endswith(f"; written before: group a; {rest}\n")


def stop(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("output", ["", "--output json", "--export"])
@pytest.mark.usefixtures("groups")
def test_a_move_that_ctrl_c_stops_says_that_a_part_may_be_moved(run, monkeypatch, output):
    monkeypatch.setattr("airflow_kafka_offsets.moves.apply.apply_pipeline", stop)
    done = run(f"group reset a --topic orders --to-offset 10 --execute {output}")
    assert (done.code, "Aborted!" in done.err) == (1, True)
    assert "Stopped: the offsets may be moved in part" in done.err
    assert ('"verified": false' in done.out) == ("json" in output)


@pytest.fixture
def default_signals():
    """As in a terminal: the tests' own process may be one of nohup, which ignores SIGHUP."""
    kept = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for each, handler in kept.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("groups", "default_signals")
def test_a_move_that_a_signal_stops_has_a_receipt(run, at, memory, sent, monkeypatch):
    send = memory.send

    def send_and_stop(group_id, commits, *member):
        refused = send(group_id, commits, *member)
        if group_id == "a" and not refused:
            assert callable(signal.getsignal(sent))  # else the signal would end the tests
            signal.raise_signal(sent)
        return refused

    monkeypatch.setattr(memory, "send", send_and_stop)
    done = run("group reset a b --topic orders --to-offset 10 --execute --output json")
    assert (done.code, at("a"), at("b")) == (1, 10, 60)
    assert ("Stopped: the offsets may be moved in part" in done.err, '"before"' in done.out) == (True, True)
    assert signal.getsignal(sent) == signal.SIG_DFL


@pytest.mark.parametrize("line", ["reset a --topic orders --to-offset 10", "delete a"])
@pytest.mark.usefixtures("groups", "default_signals")
def test_a_receipt_is_written_also_if_the_terminal_is_closed(run, memory, monkeypatch, capsys, line):
    echo = click.echo

    def echo_to_closed_terminal(*arguments, err=False, **how):
        if err:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        echo(*arguments, **how)

    def close(*_, **__):
        monkeypatch.setattr(click, "echo", echo_to_closed_terminal)
        signal.raise_signal(signal.SIGHUP)

    monkeypatch.setattr(memory, "send", close)
    monkeypatch.setattr(memory, "delete", close)
    printed = ""
    with suppress(OSError):  # of click's last line
        printed = run(f"group {line} --execute --output json").out
    assert '"before"' in printed + capsys.readouterr().out


@pytest.mark.usefixtures("groups")
def test_a_signal_that_nohup_ignores_does_not_stop_a_move(run, at, memory, monkeypatch):
    send = memory.send

    def send_and_hang_up(*arguments):
        signal.raise_signal(signal.SIGHUP)
        return send(*arguments)

    monkeypatch.setattr(memory, "send", send_and_hang_up)
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = run("group reset a --topic orders --to-offset 10 --execute")
    finally:
        signal.signal(signal.SIGHUP, kept)
    assert (done.code, at("a")) == (0, 10), done.err


@pytest.mark.parametrize("line", ["reset a --topic orders --to-offset 10", "delete a"])
@pytest.mark.usefixtures("groups")
def test_saved_offsets_are_on_the_disk_before_a_group_changes(run, at, tmp_path, monkeypatch, line):
    synced, sync = [], os.fsync

    def fsync(descriptor):
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((file.name, file.read_text() if file.is_file() else None, at("a")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    done = run(f"group {line} --save {tmp_path / 'saved.csv'} --execute")
    assert done.code == 0, done.err
    assert synced == [("saved.csv", "orders,0,50\n", 50), (tmp_path.name, None, 50)]


@pytest.mark.usefixtures("groups")
def test_offsets_that_do_not_fit_on_the_disk_leave_no_file(run, at, tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    done = run(f"group delete a --save {tmp_path / 'saved.csv'} --execute")
    assert "cannot be written (No space left on device); nothing was changed" in done.err
    assert (done.code, at("a"), [*tmp_path.iterdir()]) == (2, 50, [])


@pytest.mark.usefixtures("groups")
def test_a_signal_before_saved_offsets_are_written_leaves_a_file_of_that_name(run, tmp_path, monkeypatch):
    """It may be the only copy of an earlier state."""
    saved = tmp_path / "saved.csv"
    saved.write_text("orders,0,7\n")
    with monkeypatch.context() as stopped:
        stopped.setattr(Path, "open", stop)
        assert run(f"group delete a --save {saved} --execute").code == 1
    assert saved.read_bytes() == b"orders,0,7\n"


@pytest.mark.usefixtures("groups")
def test_a_plan_that_ctrl_c_stops_does_not_say_that_a_part_may_be_moved(run, monkeypatch):
    monkeypatch.setattr("airflow_kafka_offsets.model.pipeline_plan.PipelinePlan.make_receipt", stop)
    done = run("group reset a --topic orders --to-offset 10 --output json")
    assert (done.code, "Aborted!" in done.err, "moved" in done.err) == (1, True, False)


@pytest.mark.parametrize("line", ["delete a", "delete-offsets a --topic orders"])
@pytest.mark.usefixtures("groups")
def test_a_deletion_that_ctrl_c_stops_has_a_receipt(run, monkeypatch, line):
    for name in ("delete_groups", "delete_offsets"):
        monkeypatch.setattr(f"airflow_kafka_offsets.moves.write.{name}", stop)
    done = run(f"group {line} --execute --output json")
    assert (done.code, "group a: stopped: it may be deleted in part" in done.err) == (1, True)
    assert '"orders": {"0": 50}' in " ".join(done.out.split()).replace("{ ", "{").replace(" }", "}")


def test_a_group_whose_name_ends_with_a_space_is_deleted_and_beside_it_others_are_restored(
    run, broker, at, memory, tmp_path
):
    broker.commit("a", {ORDERS: 50})
    memory.send("a ", ((ORDERS, Commit(60)),))
    saved = tmp_path / "saved.csv"
    done = run(f"group delete a 'a ' --save {saved} --execute --output json")
    assert (done.code, at("a"), broker.describe_groups(["a "])["a "].state) == (0, None, "Dead"), done.err
    (receipt := tmp_path / "receipt.json").write_text(done.out)
    for file in (f"--from-file {saved}", f"--receipt {receipt}"):
        assert run(f"group restore a {file} --execute").code == 0
        assert at("a") == 50
    for groups in ("'a '", "--all-groups"):
        memory.send("a ", ((ORDERS, Commit(60)),))
        assert run(f"group reset {groups} --topic orders --to-offset 1").code == 2


def test_a_group_whose_name_has_braces_is_no_json(run, broker, at):
    broker.commit("{orders}-etl", {ORDERS: 50})
    done = run("group reset '{orders}-etl' --topic orders --to-offset 10 --execute")
    assert (done.code, at("{orders}-etl")) == (0, 10), done.err


@pytest.mark.usefixtures("groups")
def test_a_refused_move_has_no_receipt(run):
    done = run("group reset a --topic orders --to-offset 101 --execute --output json")
    assert (done.code, done.out) == (1, "")


@pytest.mark.usefixtures("groups")
def test_the_receipt_of_a_deletion_that_was_not_read_back_is_printed(run, at, tmp_path, monkeypatch):
    def cannot(client, group_ids):
        raise BrokerUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(OffsetsClient, "describe_groups", cannot)
        done = run("group delete a b --execute --output json")
    assert (done.code, at("a"), at("b")) == (1, None, None)
    assert "Error: group a: no answer; deleted before, but not read back: group a, b" in done.err
    file = tmp_path / "receipt.json"
    file.write_text(done.out)
    assert run(f"group restore b --receipt {file} --execute").code == 0
    assert at("b") == 60


@pytest.mark.usefixtures("groups")
def test_why_a_group_is_not_deleted_is_on_standard_error(run, memory, monkeypatch):
    delete = memory.delete
    monkeypatch.setattr(memory, "delete", lambda name: "NON_EMPTY_GROUP" if name == "b" else delete(name))
    done = run("group delete a b --execute")
    assert (done.code, done.out.splitlines()[-1]) == (1, "a: deleted")
    assert "Error: group b: " in done.err


@pytest.mark.parametrize(
    ("move", "says"), [("group reset a --checkpoint URI", True), ("checkpoint seek URI", False)]
)
@pytest.mark.usefixtures("groups")
def test_a_checkpoint_that_is_moved_back_alone_says_which_group_stays(run, at, query, move, says):
    made = run(f"{move.replace('URI', query.location)} --to-offset 10 --quiet-period 0 --execute")
    assert made.code == 0, made.err
    done = run(f"checkpoint restore {query.location} --quiet-period 0 --execute")
    assert (done.code, at("a"), query.stands()) == (0, 10 if says else 50, {0: 40})
    assert ("Move 0001-seek is of group a too, which stays where it is" in done.err) == says
    if says:
        again = f"group restore a --checkpoint {query.location} --archive 0001-seek --execute"
        assert (run(f"{again} --quiet-period 0").code, at("a")) == (0, 50)


def test_a_list_without_a_group_says_that_there_may_be_others(run):
    done = run("group list")
    assert (done.code, "no group that this user may see" in done.err) == (0, True)
