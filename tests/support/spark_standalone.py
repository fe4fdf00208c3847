"""A Spark standalone cluster on this machine: a master and workers, which start executors."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from deadlines import until

from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port

READY = 180.0
END = 20.0


class StandaloneSpark(NamedTuple):
    host: str
    """As a Spark connection of Airflow has it: ``spark://127.0.0.1``."""
    port: int
    directory: Path
    """With ``work``, where the executors write, and ``logs`` of master and workers."""
    workers: list[psutil.Process]
    """Their executors are their children."""

    @property
    def master(self) -> str:
        """As ``spark-submit --master`` has it."""
        return f"{self.host}:{self.port}"


@contextmanager
def standalone_spark(
    directory: Path, environment: Mapping[str, str], workers: int = 1
) -> Iterator[StandaloneSpark]:
    """Start a cluster and end it with all that it has started; a worker has one core."""
    import pyspark

    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    web = free_port({port})
    (directory / "logs").mkdir(parents=True)
    environment = {**environment, "SPARK_DAEMON_MEMORY": "256m"}
    url = f"spark://{LOOPBACK}:{port}"
    commands = {
        "master": ["master.Master", "--host", LOOPBACK, "--port", str(port), "--webui-port", str(web)],
    }
    taken = {port, web}
    for number in range(workers):
        taken.add(workers_web := free_port(taken))
        commands[f"worker-{number}"] = [
            *("worker.Worker", "--host", LOOPBACK, "--webui-port", str(workers_web)),
            *("--cores", "1", "--memory", "1g", "--work-dir", str(directory / "work"), url),
        ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, (module, *arguments) in commands.items():
            with (directory / "logs" / name).open("wb") as log:
                command = [spark_class, f"org.apache.spark.deploy.{module}", *arguments]
                processes.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=directory)
                )
        until(lambda: _workers(web) == workers, "Spark's workers", READY)
        started = [psutil.Process(process.pid) for process in processes[1:]]
        yield StandaloneSpark(f"spark://{LOOPBACK}", port, directory, started)
    finally:
        for process in processes:
            _end(process)


def _workers(port: int) -> int:
    with suppress(OSError), urllib.request.urlopen(f"http://{LOOPBACK}:{port}/json/", timeout=5) as answer:
        return int(json.load(answer)["aliveworkers"])
    return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    family = [psutil.Process(process.pid)] if process.poll() is None else []
    family += [child for parent in family for child in parent.children(recursive=True)]
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.terminate()
    _, alive = psutil.wait_procs(family, END)
    for each in alive:
        with suppress(psutil.NoSuchProcess):
            os.kill(each.pid, 9)
    process.wait(END)
