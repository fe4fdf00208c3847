"""
How does a Spark job get the committing listener without a change to its code?

This file is the application, and the job's own file the first argument::

    spark-submit .../airflow_kafka_offsets/spark/listener/launcher.py job.py --its arguments

It runs ``job.py`` as if that had been submitted, and attaches the listener to each session in which the job
starts a streaming query.
"""

from __future__ import annotations

import argparse
import functools
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = "airflow_kafka_offsets"
_METHODS = ("start", "toTable")


def launcher_path() -> str:
    """Return the path of this file, for ``SparkSubmitOperator(application=launcher_path())``."""
    return str(Path(__file__).resolve())


def spark_py_files() -> str:
    """
    Return the path of a zip with what the launcher needs of this package, for ``py_files=``.

    It is made on the machine where this is called, once for each state of the package, in a directory of this user
    alone below the machine's temporary directory.
    """
    from airflow_kafka_offsets.spark.listener.py_files import package_zip

    return str(package_zip())


def main(arguments: list[str]) -> None:
    """
    Run a job with the listener attached, and commit what is left when it has ended.

    The job's exit status and its exception are this process's. An error of a commit changes neither: it is logged.

    :param arguments: options of the launcher, the job's file, and the job's own arguments.
    """
    options = _parser().parse_args(arguments)
    job = Path(options.job)
    if not job.is_file():
        raise SystemExit(f"launcher: there is no file {job}: expected the Python file of a Spark job")
    # As Python does for a file that it runs; for this one it has put this directory there.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [str(job.resolve().parent), *(entry for entry in sys.path if entry != here)]
    sys.argv = [options.job, *options.arguments]
    listeners = _Listeners(group_id=options.group_id, allow_new_query=options.allow_new_query)
    listeners.attach_to_each_session()
    try:
        runpy.run_path(options.job, run_name="__main__")
    finally:
        listeners.stop(options.timeout)


class _Listeners:
    """
    A listener for each session that starts a query.

    :param parameters: those of the listener.
    """

    def __init__(self, **parameters: Any) -> None:
        self._parameters = parameters
        self._attached: list[tuple[Any, Any]] = []

    def attach_to_each_session(self) -> None:
        """Attach before the session's first query starts, however the job has come to that session."""
        from pyspark.sql.streaming import DataStreamWriter

        for name in _METHODS:
            setattr(DataStreamWriter, name, self._attaching(getattr(DataStreamWriter, name)))

    def stop(self, timeout: float) -> None:
        """Commit what is left."""
        for _, listener in self._attached:
            listener.stop(timeout)

    def _attaching(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def start(writer: Any, *args: Any, **kwargs: Any) -> Any:
            self._attach(writer._spark)
            return method(writer, *args, **kwargs)

        return start

    def _attach(self, session: Any) -> None:
        from airflow_kafka_offsets.spark.listener.listener import KafkaOffsetCommitterListener

        # Python's objects come and go: a batch's frame, too, has one for its session.
        inner = session._jsparkSession
        if not any(known.equals(inner) for known, _ in self._attached):
            listener = KafkaOffsetCommitterListener(session, **self._parameters)
            self._attached.append((inner, listener))
            session.streams.addListener(listener)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py", description="Run a Spark job whose Kafka offsets are committed."
    )
    parser.add_argument("--group-id", help="the group of sources that name none in their options")
    parser.add_argument(
        "--allow-new-query", action="store_true", help="take over a group that another query followed"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        help="seconds for the commits that are left when the job has ended",
    )
    parser.add_argument("job", help="the job's Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the job's own arguments")
    return parser


def _find_package() -> None:
    try:
        __import__(PACKAGE)
    except ModuleNotFoundError:
        # This file may lie where the package is, without that being on the path.
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
