"""
Archives the classes that a Kafka broker loads. The brokers that are started after it need a third less of the
processor to start.

Run as a script, it writes the archive: ``kafka_classes.py ARCHIVE``.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_kafka_offsets.local import tools
from airflow_kafka_offsets.local.kafka import EmbeddedKafka

END = 60.0


@contextmanager
def archived_classes(directory: Path) -> Iterator[None]:
    """
    Let this process start its brokers with an archive. One process of the test run makes it meanwhile.

    :param directory: where the processes of one test run meet.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield  # for a few tests it would take longer than it saves
        return
    archive = directory / "kafka.jsa"
    # Until the archive is there Java starts without it; these options keep it from saying so.
    quiet = ("-Xlog:cds*=off", "-Xlog:class+path=off")
    tools.QUICK_START = (*tools.QUICK_START, f"-XX:SharedArchiveFile={archive}", *quiet)
    try:
        _home(archive).mkdir()
    except FileExistsError:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, __file__, str(archive)],
        env=os.environ | {"JDK_JAVA_OPTIONS": f"-XX:ArchiveClassesAtExit={archive}.new"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(END)


def _home(archive: Path) -> Path:
    return archive.with_suffix(".kafka")


def _write(archive: Path) -> None:
    # The Kafka of a given directory is ended and not killed: Java writes the archive at its end.
    with EmbeddedKafka(_home(archive)):
        pass
    Path(f"{archive}.new").rename(archive)


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
