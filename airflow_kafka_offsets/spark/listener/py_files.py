"""Creates a zip of the part of this package that a Spark driver needs."""

from __future__ import annotations

import functools
import hashlib
import io
import tempfile
import zipfile
from pathlib import Path

import airflow_kafka_offsets
from airflow_kafka_offsets.spark.private_tmp_dir import private_tmp_dir

ROOT = Path(airflow_kafka_offsets.__file__).parent

_MODULES = (
    "__init__",
    "annotation_types",
    "errors",
    "local_disk",
    "pipeline",
    "storage",
    "storage_errors",
)
PARTS = (*(f"{name}.py" for name in _MODULES), "model", "checkpoint", "kafka", "readings", "moves", "spark")
"""Modules that need no Airflow; other packages are imported on first use."""

# The earliest time that a zip can store.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def spark_py_files() -> str:
    """
    Return the path of a zip with the modules that the launcher needs, for ``py_files=``.

    The zip is created on the caller's machine, once for each state of the package, in a directory below the
    temporary directory that only this user can access.
    """
    # Named after its content and created atomically: several processes may create it at the same time.
    content = _zipped()
    directory = private_tmp_dir()
    path = directory / f"{ROOT.name}-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not path.is_file() or path.read_bytes() != content:
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as part:
            part.write(content)
        Path(part.name).replace(path)
    return str(path)


def _zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in PARTS:
            path = ROOT / part
            for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
                # Without the files' times, so that the same files give the same zip.
                entry = zipfile.ZipInfo(str(file.relative_to(ROOT.parent)), _EPOCH)
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return out.getvalue()
