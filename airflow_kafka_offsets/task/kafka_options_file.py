"""Passes Kafka's options to a Spark job in a file that only this user can read."""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.spark.kafka_options import OPTIONS_FILE, spark_kafka_options
from airflow_kafka_offsets.spark.private_tmp_dir import private_tmp_dir

_PATTERN = "kafka-options-*.json"


@contextmanager
def kafka_options_file(kafka_config_id: str = "kafka_default") -> Iterator[Path]:
    """
    Write the options of a Kafka connection to a file for the block, and set its path in the environment.

    Processes that are started in the block inherit that environment. In a Spark driver,
    :func:`~airflow_kafka_offsets.spark.kafka_options.spark_kafka_options` reads the file. The file is removed
    at the end of the block. If the process is killed, the next block of this user on this machine removes it.
    """
    options = spark_kafka_options(KafkaOffsetsHook(kafka_config_id).client_config())
    directory = private_tmp_dir()
    _remove_left_behind(directory)
    path = directory / _PATTERN.replace("*", uuid.uuid4().hex)
    before = os.environ.get(OPTIONS_FILE)
    # Mode "x" follows no link.
    with open(path, "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
        try:
            # The lock is held until this process ends, in whatever way it ends.
            fcntl.flock(file, fcntl.LOCK_EX)
            json.dump(options, file)
            file.flush()
            os.environ[OPTIONS_FILE] = str(path)
            yield path
        finally:
            path.unlink(missing_ok=True)
            if before is None:
                os.environ.pop(OPTIONS_FILE, None)
            else:
                os.environ[OPTIONS_FILE] = before


def _remove_left_behind(directory: Path) -> None:
    for path in directory.glob(_PATTERN):
        with suppress(OSError), path.open() as file:
            # A file that is newer than a minute may not be locked yet.
            if time.time() - path.stat().st_mtime > 60:
                # Fails while the process that has written the file is alive.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
