"""
A query writes and removes batches while its checkpoint is read: what happens between two requests is played.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state import CheckpointState
from airflow_kafka_offsets.errors import CheckpointFormatError, StorageUnavailableError
from airflow_kafka_offsets.model.offsets import TopicPartition

ORDERS_0 = TopicPartition("orders", 0)


class _WatchedFileSystem(LocalFileSystem):
    """Local files; calls back before a directory is listed and before a file is opened."""

    cachable = False

    def __init__(self, before: Callable[[str], None]) -> None:
        super().__init__()
        self._before = before

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        self._before("ls " + Path(path).name)
        return super().ls(path, detail=detail, **kwargs)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        self._before("/".join(Path(path).parts[-2:]))
        return super().cat_file(path, *args, **kwargs)


def read_while(root: Path, before: Callable[[str], None]) -> CheckpointState:
    return SparkCheckpoint(str(root), fs=_WatchedFileSystem(before)).read()


def once(moment: str, action: Callable[[], object]) -> Callable[[str], None]:
    done: list[str] = []

    def before(call: str) -> None:
        if call == moment and not done:
            done.append(call)
            action()

    return before


def remove(root: Path, *batches: int) -> None:
    for batch in batches:
        (root / "offsets" / str(batch)).unlink()
        (root / "commits" / str(batch)).unlink()


def test_a_batch_finished_between_the_listings_is_not_pending(checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0])
    state = read_while(root, once("ls commits", lambda: checkpoint({2: 7}, [1])))
    assert (state.batch_id, state.pending_batch_id) == (1, None)
    assert state.kafka_offsets == {"0": {ORDERS_0: 6}}


def test_batches_finished_between_the_listings_leave_the_state_a_moment_old(checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0])
    state = read_while(root, once("ls commits", lambda: checkpoint({2: 7, 3: 8}, [1, 2, 3])))
    assert (state.batch_id, state.pending_batch_id, state.warnings) == (1, None, [])


@pytest.mark.parametrize("moment", ["offsets/1", "commits/1"])
def test_a_batch_removed_before_it_is_opened_is_read_again(moment, checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0, 1])

    def go_on() -> None:
        checkpoint({2: 7, 3: 8, 4: 9}, [2, 3])
        remove(root, 0, 1)

    state = read_while(root, once(moment, go_on))

    assert (state.batch_id, state.pending_batch_id) == (3, 4)
    assert state.kafka_offsets == {"0": {ORDERS_0: 8}}


def test_all_batches_replaced_between_the_listings_are_read_again(checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0, 1])

    def go_on() -> None:
        checkpoint({2: 7, 3: 8}, [2, 3])
        remove(root, 0, 1)

    state = read_while(root, once("ls commits", go_on))

    assert (state.batch_id, state.pending_batch_id) == (3, None)


def test_a_file_that_shows_up_late_is_read_again(checkpoint):
    root = checkpoint({0: 5, 1: 6}, [0, 1])
    late = root / "offsets" / "1"
    hidden = root / "hidden"
    opened: list[str] = []

    def before(call: str) -> None:
        if call == "offsets/1":
            opened.append(call)
            late.rename(hidden) if len(opened) == 1 else None
        elif call == "ls offsets" and opened:
            hidden.rename(late)

    assert read_while(root, before).batch_id == 1
    assert len(opened) == 2


def test_files_that_always_go_before_they_are_opened_are_worth_another_try_later(checkpoint):
    root = checkpoint({0: 5}, [0])
    opened: list[int] = []

    def before(call: str) -> None:
        if call == f"offsets/{len(opened)}":
            opened.append(len(opened))
            remove(root, len(opened) - 1)
            checkpoint({len(opened): 5}, [len(opened)])

    with pytest.raises(
        StorageUnavailableError, match=r"offsets/4: was listed but did not exist when it was read"
    ) as refused:
        read_while(root, before)

    assert refused.value.retriable
    assert len(opened) == 5


def test_a_file_in_no_known_form_is_not_read_again(checkpoint):
    root = checkpoint({0: "v3\n{}\n0"}, [0])
    opened: list[str] = []
    with pytest.raises(CheckpointFormatError):
        read_while(root, opened.append)
    assert opened.count("offsets/0") == 1
