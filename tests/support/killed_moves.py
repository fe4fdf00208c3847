"""Moves of a checkpoint and its group that are killed at each of their steps, and what they leave."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from airflow_kafka_offsets.moves import apply

AT_MOST = 24
"""More than the steps of a move."""

_DRIVER = """
import os, signal, sys
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.moves.apply import apply_pipeline

MOVE

def run(last):
    done = 0

    def step():
        nonlocal done
        done += 1
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call):
        def counting(*args):
            result = call(*args)
            step()
            return result
        return counting

    SparkCheckpoint.write_file = counted(SparkCheckpoint.write_file)
    SparkCheckpoint.remove_file = counted(SparkCheckpoint.remove_file)
    commit = counted(OffsetsClient.commit)

    def commit_counted(*args):
        step()
        return commit(*args)

    OffsetsClient.commit = commit_counted
    move(SparkCheckpoint(f"{sys.argv[1]}/{last}"), last, *sys.argv[3:])

# The modules are imported once; the client's threads are each child's own. Two at a time, for as many cores.
numbers, running, finished = iter(range(1, int(sys.argv[2]))), {}, False
while not finished or running:
    while not finished and len(running) < 2:
        number = next(numbers)
        child = os.fork()
        if child == 0:
            run(number)
            os._exit(0)
        running[child] = number
    child, status = os.wait()
    killed = os.WIFSIGNALED(status)
    finished = finished or not killed
    print(running.pop(child), "killed" if killed else f"exit {os.waitstatus_to_exitcode(status)}", flush=True)
"""


def kill_at_each_step(move: str, template: Path, directory: Path, *arguments: str) -> tuple[list[Path], Path]:
    """
    Move copies of a checkpoint, each in a process that is killed one step later, until one comes to its end.

    :param move: source of ``move(checkpoint, number, *arguments)``.
    :param template: the checkpoint to copy.
    :param directory: gets a copy for each number.
    :return: the copies whose move was killed, and one whose move came to its end.
    """
    for number in range(1, AT_MOST):
        shutil.copytree(template, directory / str(number))
    driver = subprocess.run(
        [sys.executable, "-c", _DRIVER.replace("MOVE", move), str(directory), str(AT_MOST), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ends = dict(line.split(maxsplit=1) for line in driver.stdout.splitlines())
    killed = sorted(int(number) for number, end in ends.items() if end == "killed")
    assert len(killed) >= 12, driver
    assert killed == [*range(1, len(killed) + 1)]
    undisturbed = next(number for number, end in ends.items() if end == "exit 0")
    return [directory / str(number) for number in killed], directory / undisturbed


@pytest.fixture
def killed() -> Callable[[], AbstractContextManager[None]]:
    """Within it the process ends before the commits of a move: with killed(): ..."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    @contextmanager
    def before_commits() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(apply, "commit_groups", end)
            with pytest.raises(KeyboardInterrupt):
                yield

    return before_commits
