"""Many pipelines as one (PIPELINES=60 for sixty): planned, moved in waves, interrupted, taken back."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from kafka_shell import parse_describe

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.cli import recovery_file
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RECORDED = Path(__file__).parents[2] / "checkpoints" / "spark-4.2.0-plain" / "checkpoint"
# After a failure, fewer than 2 * AT_ONCE more pipelines are moved. Some must be left then.
MANY, AT_ONCE, FAILS = int(os.environ.get("PIPELINES", "24")), 4, 11
READ, BACK = 10, 7
QUIET = ("--quiet-period", "0")
KILLED_AFTER = [pytest.param(each, marks=[] if each in (2, 5) else pytest.mark.long) for each in range(1, 7)]


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(3)
    produce(name, {0: 20, 1: 20, 2: 20})
    return name


class Pipelines:
    """Pipelines whose checkpoints Spark has written, listed in a file."""

    def __init__(self, root, topic, broker, kafka_tools, servers, many):
        self.root, self.topic, self.servers = root, topic, servers
        self.kafka_tools, self.broker = kafka_tools, broker
        self.stem = uuid.uuid4().hex[:8]
        self.names = [f"{self.stem}-{number:02d}" for number in range(many)]
        self.file = root / "pipelines.yaml"
        self.state = root / "pipelines.yaml.recovery.json"
        lines = ["pipelines:"]
        for name in self.names:
            shutil.copytree(RECORDED, root / name)
            (root / name / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
            for file in (root / name / "offsets").glob("[0-9]*"):
                file.write_text(file.read_text().replace("sp_42_a", topic))
            broker.commit(name, {TopicPartition(topic, number): READ for number in range(3)})
            lines += [f"- group_id: {name}", f"  checkpoint_location: {root / name}"]
        self.file.write_text("\n".join(lines))

    def groups(self):
        """{group: offsets}, as Kafka's own tool says."""
        # With --all-groups the tool would fail by a group that another test deletes meanwhile.
        named = (word for name in self.names for word in ("--group", name))
        text = self.kafka_tools.consumer_groups("--describe", *named, timeout=120).stdout
        found = {name: set() for name in self.names}
        for row in parse_describe(text):
            if row["group"] in found and row["topic"] == self.topic:
                found[row["group"]].add(row["current_offset"])
        return found

    def checkpoints(self):
        """{group: offsets}, as the files of Spark say."""
        found = {}
        for name in self.names:
            newest = max((self.root / name / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
            found[name] = set(json.loads(newest.read_text().splitlines()[-1])[self.topic].values())
        return found

    def at(self):
        """{offset: how many pipelines are there}; both stores of each must be at the same place."""
        groups, checkpoints = self.groups(), self.checkpoints()
        assert groups == checkpoints
        found = [offset for (offset,) in groups.values()]
        return {offset: found.count(offset) for offset in set(found)}

    def stages(self):
        members = json.loads(self.state.read_text())["pipelines"]
        found = [member["stage"] for member in members]
        return {stage: found.count(stage) for stage in set(found)}

    @contextmanager
    def reading(self, name):
        """Let a consumer be in a group."""
        quiet = {"enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": name, **quiet})
        stop = threading.Event()
        consumer.subscribe([self.topic])

        def poll():
            while not stop.is_set():
                consumer.poll(0.1)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            deadline = time.monotonic() + 30
            while not self.broker.describe_groups([name])[name].members:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield
        finally:
            stop.set()
            thread.join()
            consumer.close()


@pytest.fixture
def pipelines(tmp_path, topic, broker, kafka_tools, bootstrap_servers):
    def make(many):
        return Pipelines(tmp_path, topic, broker, kafka_tools, bootstrap_servers, many)

    return make


@pytest.fixture
def recovering(cli, bootstrap_servers):
    """recovering("plan", file, ...) -> what the command did, and in how many seconds."""

    def run(verb, pipelines, *options):
        began = time.monotonic()
        quiet = QUIET if verb in ("apply", "restore") else ()
        done = cli(
            "recover", verb, str(pipelines.file), "--bootstrap-server", bootstrap_servers, *quiet, *options
        )
        print(f"@@ {verb}: {time.monotonic() - began:.1f} s")
        return done

    return run


def test_pipelines_are_moved_in_waves_one_fails_and_all_are_taken_back(pipelines, recovering):
    many = pipelines(MANY)
    spark = {name: (many.root / name / "offsets" / "3").read_bytes() for name in many.names}
    done = recovering("plan", many, "--shift-by", "-3")
    assert done.code == 0, done.err
    assert (
        f"of {MANY} pipelines: {9 * MANY:,} records are read again, {39 * MANY:,} until the log end"
        in done.out
    )
    assert done.out.count("| `") == MANY
    assert (many.at(), many.stages()) == ({READ: MANY}, {"planned": MANY})
    digest = json.loads(many.state.read_text())["digest"]

    wrong = recovering("apply", many, "--execute", "--digest", "0" * 8)
    assert (wrong.code, many.stages()) == (1, {"planned": MANY})
    with many.reading(many.names[FAILS]):
        failed = recovering("apply", many, "--execute", "--digest", digest[:8], "--max-active", str(AT_ONCE))
    assert failed.code == 1
    assert f"Error: group {many.names[FAILS]}: nothing was changed: group" in failed.err
    stages = many.stages()
    assert FAILS <= stages["applied"] + 1 <= FAILS + 2 * AT_ONCE
    assert stages["planned"] == MANY - stages["applied"]

    other = recovering("plan", many, "--to-earliest")
    assert other.code == 2
    assert f"a recovery of {stages['applied']} pipelines has begun, and was not undone" in other.err

    done = recovering("apply", many, "--execute", "--max-active", str(AT_ONCE))
    assert done.code == 0, done.err
    assert (many.at(), many.stages()) == ({BACK: MANY}, {"applied": MANY})
    status = recovering("status", many, "--output", "json")
    assert {each["now"] for each in json.loads(status.out)["pipelines"]} == {"moved"}

    done = recovering("restore", many, "--execute")
    assert done.code == 0, done.err
    assert (many.at(), many.stages()) == ({READ: MANY}, {"restored": MANY})
    assert {name: (many.root / name / "offsets" / "3").read_bytes() for name in many.names} == spark


def test_pipelines_are_moved_in_one_go(pipelines, recovering):
    many = pipelines(FAILS)
    assert recovering("plan", many, "--shift-by", "-3").code == 0
    assert recovering("apply", many, "--execute").code == 0
    assert many.at() == {BACK: FAILS}


def test_only_what_has_moved_is_taken_back(pipelines, recovering, broker):
    few = pipelines(4)
    assert recovering("plan", few, "--shift-by", "-3").code == 0
    with few.reading(few.names[2]):
        assert recovering("apply", few, "--execute", "--max-active", "1").code == 1
    assert few.stages() == {"applied": 2, "planned": 2}
    # Somebody else moves the last one meanwhile.
    broker.commit(few.names[3], {TopicPartition(few.topic, number): READ + 1 for number in range(3)})
    done = recovering("restore", few, "--execute")
    assert done.code == 0, done.err
    assert [offset for (offset,) in few.groups().values()] == [READ, READ, READ, READ + 1]
    assert few.stages() == {"restored": 2, "planned": 2}
    archives = [list((few.root / name / "_kafka_offsets").glob("*")) for name in few.names]
    assert [bool(each) for each in archives] == [True, True, False, False]


class Killed(BaseException):
    """The process has ended."""


@pytest.mark.parametrize("after", KILLED_AFTER)
def test_an_apply_that_was_killed_goes_on(pipelines, recovering, monkeypatch, after):
    few = pipelines(3)
    assert recovering("plan", few, "--shift-by", "-3").code == 0
    written, writes = recovery_file.StateFile.write, []

    def write(self, fleet):
        writes.append(fleet)
        if len(writes) > after:
            raise Killed
        written(self, fleet)
        if len(writes) == after:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(recovery_file.StateFile, "write", write)
        with pytest.raises(BaseException, match="|"):
            recovering("apply", few, "--execute", "--max-active", "1")
    assert "applying" in few.stages() or "applied" in few.stages()
    done = recovering("apply", few, "--execute")
    assert done.code == 0, done.err
    assert (few.at(), few.stages()) == ({BACK: 3}, {"applied": 3})
    receipts = [member["receipt"] for member in json.loads(few.state.read_text())["pipelines"]]
    assert all(set(each["before"][few.topic].values()) == {READ} for each in receipts)
    assert recovering("restore", few, "--execute").code == 0
    assert few.at() == {READ: 3}


@pytest.mark.parametrize("after", KILLED_AFTER)
def test_a_restore_that_was_killed_goes_on(pipelines, recovering, monkeypatch, after):
    few = pipelines(3)
    assert recovering("plan", few, "--shift-by", "-3").code == 0
    assert recovering("apply", few, "--execute").code == 0
    written, writes = recovery_file.StateFile.write, []

    def write(self, fleet):
        writes.append(fleet)
        if len(writes) >= after:
            raise Killed
        written(self, fleet)

    with monkeypatch.context() as patched:
        patched.setattr(recovery_file.StateFile, "write", write)
        with pytest.raises(BaseException, match="|"):
            recovering("restore", few, "--execute", "--max-active", "1")
    done = recovering("restore", few, "--execute")
    assert done.code == 0, done.err
    assert (few.at(), few.stages()) == ({READ: 3}, {"restored": 3})


def test_a_move_that_others_have_followed_is_not_taken_back_unless_that_is_allowed(pipelines, recovering):
    few = pipelines(2)
    assert recovering("plan", few, "--shift-by", "-3").code == 0
    assert recovering("apply", few, "--execute").code == 0
    followed = few.root / few.names[0]
    line = json.dumps({few.topic: {"0": 15, "1": 15, "2": 15}})
    text = (followed / "offsets" / "3").read_text().splitlines()
    (followed / "offsets" / "4").write_text("\n".join([*text[:-1], line]))
    shutil.copy(followed / "commits" / "3", followed / "commits" / "4")
    status = recovering("status", few)
    assert "read on" in status.out
    done = recovering("restore", few, "--execute")
    assert done.code == 1
    assert "--allow-stale" in done.err
    assert few.stages() == {"applied": 1, "restored": 1}
    assert recovering("restore", few, "--execute", "--allow-stale").code == 0
    assert SparkCheckpoint(str(followed)).read().kafka_offsets["0"][TopicPartition(few.topic, 0)] == READ


def test_a_plan_names_every_pipeline_that_cannot_be_moved(pipelines, recovering):
    few = pipelines(3)
    shutil.rmtree(few.root / few.names[0])
    (few.root / few.names[2] / "offsets" / "3").write_text("v9\n{}")
    done = recovering("plan", few, "--shift-by", "-3")
    assert done.code == 1
    assert f"group {few.names[0]}: " in done.err
    assert f"group {few.names[2]}: " in done.err
    assert not few.state.exists()
    # The file names the pipelines, so its keys are named, and no options that the command does not have.
    second = f"group_id: {few.names[1]}"
    few.file.write_text(few.file.read_text().replace(second, f"{second}\n  topics: [no-such-topic]"))
    done = recovering("plan", few, "--shift-by", "-3")
    assert done.code == 1
    assert "topics" in done.err
    assert "--topic" not in done.err


def test_a_file_that_was_changed_is_refused(pipelines, recovering):
    few = pipelines(2)
    assert recovering("status", few).code == 2
    assert recovering("plan", few, "--shift-by", "-3").code == 0
    value = json.loads(few.state.read_text())
    value["pipelines"].pop()
    few.state.write_text(json.dumps(value))
    done = recovering("apply", few, "--execute")
    assert done.code == 1
    assert "the file was changed after it was made; plan again" in done.err


def test_without_execute_nothing_is_done(pipelines, recovering):
    few = pipelines(2)
    assert recovering("plan", few, "--shift-by", "-3").code == 0
    shown = recovering("apply", few)
    assert (shown.code, few.stages()) == (0, {"planned": 2})
    assert "Nothing was changed" in shown.err
    assert recovering("apply", few, "--execute").code == 0
    assert few.names[0] in recovering("restore", few).out
    assert few.at() == {BACK: 2}


def test_a_fleet_that_was_restored_is_planned_again_and_not_half_applied(pipelines, recovering):
    some = pipelines(2)
    for verb, *options in (("plan", "--shift-by", "-3"), ("apply", "--execute"), ("restore", "--execute")):
        assert recovering(verb, some, *options).code == 0
    done = recovering("apply", some, "--execute")
    assert (done.code, "2 of 2 pipelines were restored" in done.err) == (2, True)
    assert some.at() == {READ: 2}


def test_an_unfinished_batch_is_discarded_by_the_restore_if_that_is_allowed(pipelines, recovering):
    one = pipelines(1)
    for verb, *options in (("plan", "--shift-by", "-3"), ("apply", "--execute")):
        assert recovering(verb, one, *options).code == 0
    offsets = one.root / one.names[0] / "offsets"
    newest = max(int(file.name) for file in offsets.glob("[0-9]*"))
    shutil.copy(offsets / str(newest), offsets / str(newest + 1))
    refused = recovering("restore", one, "--execute")
    assert (refused.code, "--on-pending-batch discard" in refused.err) == (1, True)
    done = recovering("restore", one, "--execute", "--on-pending-batch", "discard", "--sink", "noop")
    assert done.code == 0, done.err
    assert one.at() == {READ: 1}
