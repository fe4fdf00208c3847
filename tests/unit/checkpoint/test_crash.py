"""
A move that is killed after any of its steps leaves a checkpoint that Spark starts from, and loses nothing.

Run as a script, this file is the process that moves: it reads one move a line and carries it out in a child,
which keeps a copy of the checkpoint before each of its changes on the disk: what a kill at that moment leaves.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from checkpoint_moves import files, kept_by, spark_starts, with_checksums

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.plan_move import plan_checkpoint_restore, plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import CheckpointError
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Files = dict[str, bytes]

ORDERS_0, PAID_0 = TopicPartition("orders", 0), TopicPartition("paid", 0)
DISCARD = CheckpointPolicy(on_pending_batch="discard", idempotent_sink=True)
TOKEN = "one-task-run"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


# --- the moves


def seek(spark: SparkCheckpoint) -> None:
    apply_checkpoint_plan(spark, plan_seek(spark, {"0": {ORDERS_0: 3}}, DISCARD), quiet_period=0)


def seek_of_a_task(spark: SparkCheckpoint) -> None:
    """A seek whose retry takes up the archive of the first try, as a task does."""
    checkpoint_plan = plan_seek(spark, {"0": {ORDERS_0: 3}}, DISCARD)
    if archive := kept_by(spark, TOKEN):
        checkpoint_plan = archive.resume(checkpoint_plan)
    apply_checkpoint_plan(
        spark,
        checkpoint_plan,
        quiet_period=0,
        made_by=CommitMetadata(token=TOKEN),
        attachments={"before.csv": "orders,0,7\n"},
    )


def truncate(spark: SparkCheckpoint) -> None:
    apply_checkpoint_plan(spark, plan_truncate(spark, 1, DISCARD), quiet_period=0)


def restore(spark: SparkCheckpoint) -> None:
    apply_checkpoint_plan(spark, plan_checkpoint_restore(spark, policy=DISCARD), quiet_period=0)


MOVES = {move.__name__: move for move in (seek, seek_of_a_task, truncate, restore)}


# --- the process that moves


def copy_before_each_change(root: str, copies: str) -> None:
    """Copy ``root`` before each change below it, and with half of the data of each write."""
    done, copying, written = 0, False, ""

    def copy() -> Path:
        nonlocal done, copying
        done, copying = done + 1, True
        made = copy_of(Path(root), Path(copies) / f"{done:03}")
        copying = False
        return made

    def audit(event: str, args: tuple[Any, ...]) -> None:
        nonlocal written
        writes = event == "open" and args[2] & WRITES
        if (writes or event in ("os.rename", "os.remove", "os.mkdir")) and not copying:
            path = str(args[0])
            if path.startswith(root):
                copy()
                written = path if writes else written

    def fsync(descriptor: int) -> None:
        # What a crash leaves of a file that was written and is not on the disk yet.
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            assert os.path.samestat(os.fstat(descriptor), Path(written).stat()), written
            size = os.fstat(descriptor).st_size
            os.truncate(copy() / Path(written).relative_to(root), size // 2)

    os.fsync = fsync  # type: ignore[assignment]
    sys.addaudithook(audit)


def apply_plan(move: str, root: str, copies: str) -> None:
    copy_before_each_change(root, copies)
    try:
        MOVES[move](SparkCheckpoint(root))
        print("done", flush=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test is to say it
        print(f"{type(error).__name__}: {error!s:.300}".replace("\n", " "), flush=True)


def serve() -> None:
    SparkCheckpoint(str(Path.cwd()))  # or each child would import what it needs
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            apply_plan(*line.split())
            os._exit(0)
        os.waitpid(child, 0)


def copy_of(root: Path, target: Path) -> Path:
    return shutil.copytree(root, target, copy_function=shutil.copyfile)


if __name__ == "__main__":
    serve()


@pytest.fixture(scope="module")
def end_of():
    """end_of(move, root, copies): carries it out in a process of its own, and returns done or the error."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        bufsize=1,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def send(move: str, root: Path, copies: Path) -> str:
        print(move, root, copies, file=stdin, flush=True)
        return stdout.readline().strip()

    with process:
        yield send
        stdin.close()


# --- the checkpoints that are moved


def v1(offset: int) -> str:
    return f'v1\n{{"batchTimestampMs":1795228309758}}\n{{"orders":{{"0":{offset}}}}}\n{{"logOffset":0}}'


def v2(offset: int) -> str:
    return f'v2\n{{"batchTimestampMs":1795228309758}}\nrt:10\n0:{{"orders":{{"0":{offset}}}}}'


def v1_of_kafka_alone(offset: int) -> str:
    return f'v1\n{{"batchTimestampMs":1795228309758}}\n{{"orders":{{"0":{offset}}}}}\n{{"paid":{{"0":{offset}}}}}'


@pytest.fixture
def batches(checkpoint):
    """batches(log, committed=3, planned=3): a checkpoint of so many batches, with Hadoop's checksums."""

    def write(log: Callable[[int], str], committed: int = 3, planned: int = 3) -> Path:
        root = checkpoint({number: log(5 + number) for number in range(planned)}, range(committed))
        return with_checksums(root)

    return write


class Case(NamedTuple):
    """A move, and the checkpoint that it is made on."""

    move: str
    root: Path


def finished(batches: Callable[..., Path]) -> Case:
    return Case("seek", batches(v2))


def with_a_pending_batch(batches: Callable[..., Path]) -> Case:
    return Case("seek", batches(v1, planned=4))


def by_a_task(batches: Callable[..., Path]) -> Case:
    return Case("seek_of_a_task", batches(v1, planned=4))


def after_an_undone_move(batches: Callable[..., Path]) -> Case:
    case = with_a_pending_batch(batches)
    seek(SparkCheckpoint(str(case.root)))
    restore(SparkCheckpoint(str(case.root)))
    return case


def truncation(batches: Callable[..., Path]) -> Case:
    return Case("truncate", batches(v1_of_kafka_alone))


def truncation_with_a_pending_batch(batches: Callable[..., Path]) -> Case:
    return Case("truncate", batches(v1_of_kafka_alone, planned=4))


def truncation_with_state(batches: Callable[..., Path]) -> Case:
    case = truncation(batches)
    for store in ("state/0/0", "state/0/1"):
        (case.root / store).mkdir(parents=True)
        for version in (1, 2, 3):
            (case.root / store / f"{version}.delta").write_bytes(b"changes")
            (case.root / store / f"{version}.snapshot").write_bytes(b"state")
            (case.root / store / f".{version}.snapshot.crc").write_bytes(b"crc")
    return case


def restore_of(before: Callable[..., Case]) -> Callable[..., Case]:
    def make(batches: Callable[..., Path]) -> Case:
        case = before(batches)
        MOVES[case.move](SparkCheckpoint(str(case.root)))
        return Case("restore", case.root)

    make.__name__ = f"restore of {before.__name__}"
    return make


def restore_after_a_batch(batches: Callable[..., Path]) -> Case:
    """The query has run once since the move: what is taken back is another batch's offsets."""
    case = restore_of(with_a_pending_batch)(batches)
    for directory, text in (("offsets", v1(4)), ("commits", "v1\n{}")):
        (case.root / directory / "3").write_text(text)
    return case


def restore_after_half_a_batch(batches: Callable[..., Path]) -> Case:
    case = restore_after_a_batch(batches)
    (case.root / "commits/3").unlink()
    return case


FORWARD = [
    finished,
    with_a_pending_batch,
    by_a_task,
    after_an_undone_move,
    truncation_with_a_pending_batch,
    truncation_with_state,
]
BACK = [
    restore_of(finished),
    restore_of(with_a_pending_batch),
    restore_of(truncation_with_a_pending_batch),
    restore_after_a_batch,
    restore_after_half_a_batch,
]


# --- what must hold after every kill


def name_of(case: Callable[..., Case]) -> str:
    return case.__name__.replace("_", " ")


def sparks_own(found: Files) -> Files:
    """
    The files that Spark reads, and checksums; not what is hidden otherwise: leftovers of the killed process.
    """
    return {
        path: data
        for path, data in found.items()
        if path.startswith(("offsets/", "commits/", "state/", "metadata")) and not path.endswith(".tmp")
    }


def without_checksums(found: Files) -> Files:
    return {path: data for path, data in sparks_own(found).items() if not path.endswith(".crc")}


def but_whole_states(found: Files) -> Files:
    """Without what a truncation does not keep, for it can be made again from the changes."""
    return {path: data for path, data in found.items() if not path.endswith(".snapshot")}


def the_batches_of(found: Files) -> Files:
    return but_whole_states(without_checksums(found))


def restore_if_any(spark: SparkCheckpoint) -> bool:
    """Take the newest move back; return whether there was one."""
    try:
        restore(spark)
    except CheckpointError as error:
        if "no move to take back" not in str(error):
            raise
        return False
    return True


def kept(found: Files, path: str, data: bytes) -> bool:
    """Whether a file is in its place still, or in an archive that is whole."""
    if found.get(path) == data:
        return True
    archives = [name.removesuffix("/manifest.json") for name in found if name.endswith("/manifest.json")]
    return any(found.get(f"{archive}/{path}") == data for archive in archives)


class Killed(NamedTuple):
    """What a move leaves that is killed before one of its changes, for each of them."""

    move: str
    original: Files
    undisturbed: Files
    left: list[Path]


def same_for_spark_and_us(found: Files) -> dict[str, object]:
    """
    A state without what chance or the time has put into it: names of temporary files, times of archives.
    """
    return {
        re.sub(r"[0-9a-f-]{36}", "", path): path if path.endswith("manifest.json") else data
        for path, data in found.items()
    }


@pytest.fixture(scope="module")
def known_states():
    return {}


@pytest.fixture
def killed(batches, end_of, tmp_path, tmp_path_factory, known_states):
    """killed(case): the killed move, and a copy of each checkpoint that it leaves, in the order of the changes."""

    def kill(make: Callable[..., Case]) -> Killed:
        case = make(batches)
        whole, copies = (tmp_path_factory.mktemp(name) for name in ("whole", "killed"))
        assert end_of(case.move, copy_of(case.root, whole / "checkpoint"), copies) == "done"
        left: list[Path] = []
        before: dict[str, object] = {}
        for root in sorted(copies.iterdir()):
            # To remove what is not there is a change, too, that leaves everything as it was.
            state = same_for_spark_and_us(files(root))
            if state != before:
                left.append(root)
            before = state
        assert len(left) > 8
        return Killed(case.move, files(case.root), sparks_own(files(whole / "checkpoint")), left)

    def states(make: Callable[..., Case]) -> tuple[Killed, Iterator[Path]]:
        if make.__name__ not in known_states:
            known_states[make.__name__] = kill(make)
        known = known_states[make.__name__]
        return known, (copy_of(root, tmp_path / "killed" / root.name) for root in known.left)

    return states


@pytest.mark.parametrize("make", [*FORWARD, *BACK], ids=name_of)
def test_a_killed_move_leaves_a_checkpoint_that_spark_starts_from_and_loses_nothing(make, killed):
    moves, _ = killed(make)
    for root in moves.left:
        spark_starts(root)
        left = files(root)
        lost = [path for path, data in the_batches_of(moves.original).items() if not kept(left, path, data)]
        assert not lost, root.name


@pytest.mark.parametrize("make", [*FORWARD, *BACK], ids=name_of)
def test_a_killed_move_is_finished_by_its_retry(make, killed):
    """A retry's move forward can be taken back; each try that came to its first change has kept what it found."""
    moves, roots = killed(make)
    for root in roots:
        spark = SparkCheckpoint(str(root))
        MOVES[moves.move](spark)
        assert sparks_own(files(root)) == moves.undisturbed, root.name
        spark_starts(root)
        if make in FORWARD:
            undone = [restore_if_any(spark) for _ in range(3)]
            # A task's retry goes on with what the first try has kept.
            tries = [1] if moves.move == "seek_of_a_task" else [1, 2]
            assert undone == sorted(undone, reverse=True), root.name
            assert sum(undone) in tries, root.name
            assert the_batches_of(files(root)) == the_batches_of(moves.original), root.name


@pytest.mark.parametrize("make", FORWARD, ids=name_of)
def test_a_killed_move_is_taken_back_by_a_restore_or_has_changed_nothing(make, killed):
    moves, roots = killed(make)
    ends: list[bool] = []
    for root in roots:
        ends.append(restore_if_any(SparkCheckpoint(str(root))))
        assert the_batches_of(files(root)) == the_batches_of(moves.original), root.name
        spark_starts(root)
    # Nothing was changed before the archive was whole.
    assert ends == sorted(ends)
    assert set(ends) == {False, True}


def test_whole_states_of_removed_batches_go_before_the_batches(killed):
    moves, _ = killed(truncation_with_state)
    for root in moves.left:
        left = files(root)
        batches_are_whole = the_batches_of(left) == the_batches_of(moves.original)
        assert batches_are_whole or not [path for path in left if path.endswith("/3.snapshot")], root.name
        assert {path for path in left if path.endswith(".delta")} == {
            path for path in moves.original if path.endswith(".delta")
        }
