"""
Runs a Spark job with the committing listener attached, without a change to the job's code.

This file is the Spark application, and the job's own file is its first argument::

    spark-submit .../airflow_kafka_offsets/spark/listener/launcher.py job.py --its arguments
"""

from __future__ import annotations

import argparse
import functools
import logging
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = "airflow_kafka_offsets"

log = logging.getLogger(f"{PACKAGE}.spark.listener.launcher")  # Spark runs this file as __main__


def launcher_path() -> str:
    """Return the path of this file, for ``SparkSubmitOperator(application=launcher_path())``."""
    return str(Path(__file__).resolve())


def main(arguments: list[str]) -> None:
    """
    Run a job with the listener attached, and commit the remaining offsets when the job has ended.

    The process ends with the job's exit status or exception. A failed commit changes neither; it is logged.
    """
    options = _read_options(arguments)
    job = Path(options.job)
    if not job.is_file():
        raise SystemExit(f"launcher: file {job} does not exist: expected the Python file of a Spark job")
    # Python adds the directory of the file that it runs: replace this file's directory by the job's.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [str(job.resolve().parent), *(entry for entry in sys.path if entry != here)]
    # The job must see its own arguments and path, not the launcher's.
    sys.argv = [options.job, *options.arguments]
    listeners: list[tuple[Any, Any]] = []
    _attach_before_each_start(listeners, options)
    try:
        runpy.run_path(options.job, run_name="__main__")
    finally:
        for _, listener in listeners:
            # Also after an exception of the job: the offsets of finished batches are final.
            listener.stop(options.timeout)
        if not listeners:
            log.warning(
                "Kafka offsets: nothing was committed, because no streaming query was followed: the launcher "
                "does not see those of Spark Connect sessions, of Java and of Scala"
            )


def _read_options(arguments: list[str]) -> argparse.Namespace:
    from airflow_kafka_offsets.spark.listener.refusals import topic_groups

    def groups(text: str) -> Any:
        try:
            return topic_groups(text)
        except ValueError as error:
            # argparse shows the text of this error only.
            raise argparse.ArgumentTypeError(str(error)) from None

    about = "Run a Spark job whose Kafka offsets are committed."
    parser = argparse.ArgumentParser(prog="launcher.py", description=about)
    add = parser.add_argument
    add("--group-id", type=groups, help="the group of sources whose options name none")
    add("--allow-new-query", action="store_true", help="use a group that has followed another query")
    add("--allow-new-cluster", action="store_true", help="commit on another cluster than the last commit")
    add("--timeout", type=float, default=60.0, help="seconds for the last commits after the job has ended")
    add("job", help="the job's Python file")
    add("arguments", nargs=argparse.REMAINDER, help="the job's own arguments")
    return parser.parse_args(arguments)


def _attach_before_each_start(listeners: list[tuple[Any, Any]], options: argparse.Namespace) -> None:
    """
    Attach a listener to each session before its first query starts, and append both to ``listeners``.

    The query starts even if the listener cannot be attached.
    """
    from pyspark.sql.streaming import DataStreamWriter

    def attach(session: Any) -> None:
        from airflow_kafka_offsets.spark.listener.listener import KafkaOffsetCommitterListener

        # A session may have several Python objects: a batch's DataFrame has a separate one.
        inner = session._jsparkSession
        if not any(known.equals(inner) for known, _ in listeners):
            listener = KafkaOffsetCommitterListener(
                session,
                group_id=options.group_id,
                allow_new_query=options.allow_new_query,
                allow_new_cluster=options.allow_new_cluster,
            )
            listeners.append((inner, listener))
            session.streams.addListener(listener)

    def attaching(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def start(writer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                attach(writer._spark)
            except Exception:
                log.exception(
                    "Kafka offsets: the listener cannot be attached, so nothing of this session is committed"
                )
            # Start the query after any error above: the job is more important than its commits.
            return method(writer, *args, **kwargs)

        return start

    for name in ("start", "toTable"):
        setattr(DataStreamWriter, name, attaching(getattr(DataStreamWriter, name)))


def _find_package() -> None:
    try:
        __import__(PACKAGE)
    except ModuleNotFoundError:
        # This file may be inside the package while the package is not on the path.
        above = Path(__file__).resolve().parents[3]
        if not (above / PACKAGE / "__init__.py").is_file():
            raise SystemExit(
                f"launcher: {PACKAGE} cannot be imported: install it for the driver's Python, or give "
                "--py-files the zip that spark_py_files() returns"
            ) from None
        sys.path.append(str(above))


if __name__ == "__main__":
    _find_package()
    main(sys.argv[1:])
