"""Airflow with its UI on loopback, until Ctrl-C, for ``demo --ui``."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port, write_private
from airflow_kafka_offsets.local.process import SupervisedProcess, log_tail

API_SERVER = "api-server"
# The log servers of two components would listen on every interface.
COMMANDS = (
    (API_SERVER,),
    ("scheduler", "--skip-serve-logs"),
    ("dag-processor",),
    ("triggerer", "--skip-serve-logs"),
)
USER = "admin"
READY = 180.0


class AirflowUI:
    """An Airflow with its UI, which has a database; use it as a context manager."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._home = home
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        self.password = secrets.token_urlsafe(9)
        self._passwords = home / "airflow" / "passwords.json"
        self._environment = {
            **environment,
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
        }
        self._running: dict[str, SupervisedProcess] = {}

    def __enter__(self) -> AirflowUI:
        write_private(self._passwords, json.dumps({USER: self.password}).encode())
        try:
            for component, *options in COMMANDS:
                command = [sys.executable, "-m", "airflow", component, *options]
                process = SupervisedProcess(command, self._log(component), self._home, self._environment)
                self._running[component] = process
            deadline = time.monotonic() + READY
            while not self._is_ready():
                self._watch()
                if time.monotonic() > deadline:
                    raise SetupError(
                        f"Airflow was not ready within {READY:.0f} s; its logs are in {self._home}"
                    )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        click.echo("\nstopping Airflow, which takes up to 20 seconds")
        # Stop the api-server last: running tasks still report to it.
        api_server = self._running.pop(API_SERVER, None)
        with ThreadPoolExecutor() as at_the_same_time:
            list(at_the_same_time.map(SupervisedProcess.end_all, self._running.values()))
        if api_server is not None:
            api_server.end_all()

    def wait(self) -> None:
        """Wait until Ctrl-C, or raise a SetupError if a component ends."""
        while True:
            self._watch()

    def _log(self, component: str) -> Path:
        return self._home / f"airflow-{component}.log"

    def _watch(self) -> None:
        """Wait half a second; raise an error if a component has ended."""
        time.sleep(0.5)
        for component, process in self._running.items():
            if process.status is not None:
                log = self._log(component)
                raise SetupError(
                    f"Airflow's {component} has ended; its log {log} ends with:\n{log_tail(log, 25)}"
                )

    def _is_ready(self) -> bool:
        try:
            health_url = f"{self.url}/api/v2/monitor/health"
            with urllib.request.urlopen(health_url, timeout=10) as response:  # noqa: S310
                health = json.load(response)
        except (OSError, ValueError):
            return False  # the server does not listen yet
        parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        return all(health[part]["status"] == "healthy" for part in parts)


def show_ui(home: Path, environment: Mapping[str, str], page: str) -> None:
    """Show a page of Airflow's UI until Ctrl-C; all started components have ended on return."""
    click.echo("starting Airflow's UI, which takes about a minute")
    with AirflowUI(home, environment) as airflow, contextlib.suppress(KeyboardInterrupt):
        address = f"{airflow.url}/{page}"
        names = ("PATH", "AIRFLOW_HOME", "AIRFLOW_CONN_KAFKA_DEFAULT")
        exports = " ".join(f"{name}={shlex.quote(environment[name])}" for name in names)
        click.echo(
            f"\nAirflow is at  {address}\nlog in as      {USER}\nwith password  {airflow.password}\n"
            "To run the commands that its pages show, use another terminal after\n"
            f"    export {exports}\n"
            "Press Ctrl-C to stop it."
        )
        displays = map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
        if sys.platform in ("darwin", "win32") or any(displays):
            webbrowser.open(address)
        airflow.wait()
    click.echo("Airflow has ended.")
