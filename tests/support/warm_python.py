"""A Python that has imported Airflow and runs what it is given in a copy of itself, seconds quicker."""

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Self

DAG_FOLDER = "AIRFLOW__CORE__DAGS_FOLDER"


class WarmPython:
    """
    Runs Python as :func:`subprocess.run` does, one at a time; use it as a context manager.

    :param environment: of every run. Airflow reads some of its settings when it is imported: what wants
        another ``AIRFLOW__...`` than this, but for the DAG folder, needs a Python of its own.
    :param directory: the working directory of every run, and for its output.
    :param first: code that runs once, before all of them.
    """

    def __init__(
        self, environment: Mapping[str, str], directory: Path, first: str = "import_airflow()"
    ) -> None:
        self._environment = dict(environment)
        self._directory = directory
        self._first = first
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # It ends at the end of its input.
            self._process.communicate()

    def run(
        self, arguments: Sequence[str], variables: Mapping[str, str], log: Path | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments; what it prints, errors too, goes to the log, if there is one."""
        output, errors = log or self._directory / "warm.out", log or self._directory / "warm.err"
        for file in (output, errors):
            file.write_bytes(b"")
        process = self._process or self._start()
        environment = {**self._environment, **variables}
        assert process.stdin
        process.stdin.write(json.dumps([*arguments]) + "\n")
        process.stdin.write(json.dumps([environment, str(output), str(errors)]) + "\n")
        process.stdin.flush()
        pid = self._told(process)
        too_long = threading.Timer(timeout, kill, [pid])
        too_long.start()
        try:
            status = self._told(process)
        finally:
            too_long.cancel()
        said = [None, None] if log else [file.read_text(encoding="utf-8") for file in (output, errors)]
        return subprocess.CompletedProcess(arguments, status, *said)

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._first],
            env=self._environment,
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._process

    @staticmethod
    def _told(process: subprocess.Popen[str]) -> int:
        assert process.stdout
        line = process.stdout.readline()
        assert line, f"the Python that runs the DAGs has ended with status {process.wait()}"
        return int(line)


def kill(pid: int) -> None:
    """Kill a process, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def serve() -> None:
    """Run what standard input names: the arguments in one line, the environment and two files in the next."""
    # What anything else prints is not an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    exec(sys.argv[1])
    for line in sys.stdin:
        where = json.loads(sys.stdin.readline())
        pid = os.fork()
        if not pid:
            answers.close()
            become(json.loads(line), *where)
            return
        print(pid, file=answers, flush=True)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(status, file=answers, flush=True)


def import_airflow() -> None:
    """Import what every run of a DAG imports, and let Airflow make its API, which takes longer than that."""
    import airflow.providers.apache.spark.operators.spark_submit
    import airflow.settings
    from airflow.sdk.execution_time import supervisor, task_runner  # noqa: F401

    import airflow_kafka_offsets.operators
    import airflow_kafka_offsets.sensors  # noqa: F401

    try:
        from airflow.dag_processing import dagbag
    except ImportError:  # Airflow 3.1
        from airflow.models import dagbag  # type: ignore[no-redef]  # noqa: F401

    api = supervisor.in_process_api_server()
    # httpx, and from Airflow 3.4 httpx2: each takes only transports of its own.
    httpx = import_module(type(api.transport).__module__.partition(".")[0])
    with httpx.Client(transport=api.transport, base_url="http://in-process") as client:
        client.get("/health").raise_for_status()
    # Neither a thread nor a connection may be there twice. A run makes a transport of its own.
    loop = vars(api.transport.app)["loop"]
    del client, api.transport
    gc.collect()
    for thread in set(threading.enumerate()) - {threading.main_thread()}:  # of that loop, in Airflow 3.1
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
    assert airflow.settings.engine
    airflow.settings.engine.dispose()
    assert threading.active_count() == 1, threading.enumerate()


def become(arguments: list[str], environment: Mapping[str, str], output: str, errors: str) -> None:
    """Run what a new Python would run, with nothing of this one but what it has imported."""
    for number, path in ((1, output), (2, errors)):
        with Path(path).open("ab") as file:  # both may be the same
            os.dup2(file.fileno(), number)
    with Path(os.devnull).open("rb") as file:
        os.dup2(file.fileno(), 0)
    os.environ.clear()
    os.environ.update(environment)
    if DAG_FOLDER in environment:
        vars(sys.modules["airflow.settings"])["DAGS_FOLDER"] = environment[DAG_FOLDER]
    kind, *rest = arguments
    sys.path[0] = ""
    if kind == "-c":
        sys.argv = [kind, *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    serve()
