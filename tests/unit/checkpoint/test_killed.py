"""A move of a checkpoint that is killed after any of its steps: Spark starts from what is left, and nothing is lost."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_offsets.checkpoint.archive import read_archives
from airflow_kafka_offsets.checkpoint.log import check_commit_log, parse_offset_log
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.rewind import apply_rewind, plan_seek, plan_truncate, plan_undo
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.rewind import RewindPolicy

POLICY = RewindPolicy("discard", "noop", allow_state=True)
TARGETS = {"0": {TopicPartition("orders", 0): 3}}

MOVES = {
    "seek": lambda checkpoint: plan_seek(checkpoint, TARGETS, POLICY),
    "truncate": lambda checkpoint: plan_truncate(checkpoint, 1, POLICY),
    "undo": lambda checkpoint: plan_undo(checkpoint, "0001-seek", POLICY),
    "undo a truncate": lambda checkpoint: plan_undo(checkpoint, "0001-truncate", POLICY),
}

# Forks a process for each number of steps, which does the move in a copy and is killed there, until one ends.
DRIVER = """
import os, pathlib, shutil, signal, sys
from fsspec.implementations.local import LocalFileSystem
sys.path.insert(0, {tests!r})
import test_killed

move, start, copies = {move!r}, {start!r}, pathlib.Path({copies!r})
for number in range(200):
    copy = copies / str(number)
    shutil.copytree(start, copy)
    child = os.fork()
    if child == 0:
        count = 0
        def step():
            global count
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
        replace, remove = pathlib.Path.replace, LocalFileSystem.rm_file
        def stepping_replace(self, target):
            step()  # the temporary file is there, and has not taken the name
            replace(self, target)
            step()
        def stepping_remove(self, path):
            try:
                remove(self, path)
            finally:
                step()
        pathlib.Path.replace, LocalFileSystem.rm_file = stepping_replace, stepping_remove
        try:
            test_killed.carry_out(move, str(copy))
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        print(number, os.waitstatus_to_exitcode(status))
        break
"""


def carry_out(move, location):
    checkpoint = SparkCheckpoint(str(location))
    apply_rewind(checkpoint, MOVES[move](checkpoint), quiet_period=0)


def logs(location):
    """What is in offsets and commits, without checksums and leftovers."""
    return {
        f"{directory}/{file.name}": file.read_bytes()
        for directory in ("offsets", "commits")
        for file in sorted((Path(location) / directory).iterdir())
        if file.name.isdigit()
    }


def spark_starts(location):
    """What Spark asks of a checkpoint when it starts, and that no checksum is older than its file."""
    root = Path(location)
    ids = {
        directory: sorted(int(file.name) for file in (root / directory).iterdir() if file.name.isdigit())
        for directory in ("offsets", "commits")
    }
    planned, committed = ids["offsets"], ids["commits"]
    assert planned[-1] - committed[-1] in (0, 1)
    assert planned[-1] == 0 or planned[-1] - 1 in planned
    for number in planned:
        parse_offset_log((root / "offsets" / str(number)).read_text(), str(number))
    for number in committed:
        check_commit_log((root / "commits" / str(number)).read_text(), str(number))
    for checksum in root.glob("*/.*.crc"):
        directory, number = checksum.parent, checksum.name[1:-4]
        if re.fullmatch("[0-9]+", number):
            assert (directory / number).exists()
            assert checksum.read_bytes() == (directory / number).read_bytes()


@pytest.fixture
def start(checkpoint):
    """Batches 0 to 3, of which the last was not finished; each file has a checksum (here: its content)."""
    root = checkpoint({0: 5, 1: 9, 2: 14, 3: 20}, [0, 1, 2])
    for directory in ("offsets", "commits"):
        for file in list((root / directory).iterdir()):
            (root / directory / f".{file.name}.crc").write_bytes(file.read_bytes())
    return root


@pytest.mark.parametrize("move", MOVES)
def test_whatever_step_it_was_killed_at_it_can_be_finished_or_taken_back(move, start, tmp_path):
    original = logs(start)
    if move.startswith("undo"):
        carry_out("truncate" if "truncate" in move else "seek", start)
    begun_with = logs(start)
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(start, undisturbed)
    carry_out(move, undisturbed)
    copies = tmp_path / "copies"
    copies.mkdir()
    driver = DRIVER.format(tests=str(Path(__file__).parent), move=move, start=str(start), copies=str(copies))
    done = subprocess.run(
        [sys.executable, "-c", driver], capture_output=True, text=True, timeout=120, check=True
    )
    steps, status = map(int, done.stdout.split()[-2:])
    assert status == 0, done.stdout
    assert steps >= 8
    for number in range(steps + 1):
        copy = copies / str(number)
        spark_starts(copy)
        kept = {file.read_bytes() for file in copy.rglob("_kafka_offsets/*/[oc]*/*")}
        assert set(begun_with.values()) <= kept | set(logs(copy).values()), f"lost after step {number}"
        back = tmp_path / "back"
        shutil.copytree(copy, back)
        if not move.startswith("undo") and read_archives(SparkCheckpoint(str(back))):
            undo = plan_undo(SparkCheckpoint(str(back)), None, POLICY)
            apply_rewind(SparkCheckpoint(str(back)), undo, quiet_period=0)
            assert logs(back) == original, f"not taken back after step {number}"
        shutil.rmtree(back)
        carry_out(move, copy)
        assert logs(copy) == logs(undisturbed), f"not finished after step {number}"
        spark_starts(copy)
    if move.startswith("undo"):
        assert logs(undisturbed) == original
    names = [archive.name for archive in read_archives(SparkCheckpoint(str(undisturbed)))]
    assert len(names) == len(set(names))
