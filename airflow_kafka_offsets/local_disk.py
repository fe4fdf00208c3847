"""
Writes and removes local files so that the change survives a power failure.

The content of a file is on the disk after a sync of the file; its name is on the disk after a sync of its
directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO


def replace_by(temporary: str, path: str, data: bytes) -> None:
    """Write a temporary file, then rename it over another one."""
    # Mode "x", because an existing file of this name was not created here, and may be a link.
    with Path(temporary).open("xb") as file:
        # Synced before the rename: otherwise a power failure may leave an empty file under the new name.
        _write_synced(file, data)
    Path(temporary).replace(path)
    sync_directory(Path(path).parent)


def write_new(path: Path, data: bytes) -> None:
    """
    Write a file that does not exist yet; after an error there is no such file.

    :raises FileExistsError: if the file exists.
    """
    with path.open("xb") as file:
        try:
            _write_synced(file, data)
            sync_directory(path.parent)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise


def _write_synced(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def syncing_new_directories(directory: str) -> Iterator[None]:
    """Sync the names of the directories, up to ``directory``, that the block creates."""
    new = list(takewhile(lambda each: not each.exists(), (Path(directory), *Path(directory).parents)))
    yield
    for each in new:
        sync_directory(each.parent)


def sync_directory(directory: Path) -> None:
    """Sync the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system cannot sync directories
            raise
    finally:
        os.close(descriptor)
