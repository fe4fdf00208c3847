"""
Writes and removes files of this machine so that they outlast a power failure.

A file's content is on the disk when the file was synced, its name when its directory was.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path


def replace_by(temporary: str, path: str, data: bytes) -> None:
    """Write a new file that then takes the place of another one."""
    # "x": a file of that name that is there is not ours, and may be a link.
    with Path(temporary).open("xb") as file:
        file.write(data)
        file.flush()
        # Before the rename: else a power failure may leave the new name with no content.
        os.fsync(file.fileno())
    Path(temporary).replace(path)
    sync_directory(Path(path).parent)


@contextmanager
def syncing_new_directories(directory: str) -> Iterator[None]:
    """Sync the names of those directories, up to this one, that the block makes."""
    new = list(takewhile(lambda each: not each.exists(), (Path(directory), *Path(directory).parents)))
    yield
    for each in new:
        sync_directory(each.parent)


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system has no such thing
            raise
    finally:
        os.close(descriptor)
