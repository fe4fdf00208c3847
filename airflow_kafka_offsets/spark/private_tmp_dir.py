"""Creates a directory that only this user can access, below the temporary directory."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from airflow_kafka_offsets.errors import SetupError


def private_tmp_dir() -> Path:
    """Return the directory, created if needed; a SetupError if others may use it, or it is no directory."""
    directory = Path(tempfile.gettempdir()) / f"airflow-kafka-offsets-{os.getuid()}"
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SetupError(
            f"{directory} is not a directory that only this user can access, so others could read "
            "credentials there, or put code into it: remove it, or set TMPDIR"
        )
    return directory
