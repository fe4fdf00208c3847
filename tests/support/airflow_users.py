"""A real Airflow with users who have names, and what they do through its REST API."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from running_airflow import DEADLINE, SCHEDULER, RunningAirflow

NAMES = ("ada", "bob")
TIMEOUT = 60.0


def user_variables(home: Path) -> dict[str, str]:
    """Return the environment of an Airflow that lets in ada and bob, and nobody else."""
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({name: f"{name}-pw" for name in NAMES}))
    prefix = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER"
    return {
        f"{prefix}_ALL_ADMINS": "False",
        f"{prefix}_USERS": ",".join(f"{name}:admin" for name in NAMES),
        f"{prefix}_PASSWORDS_FILE": str(passwords),
    }


def log_in(airflow: RunningAirflow, name: str) -> httpx.Client:
    """Return a client of the REST API."""
    credentials = {"username": name, "password": f"{name}-pw"}
    token = httpx.post(f"{airflow.url}/auth/token", json=credentials, timeout=TIMEOUT)
    assert token.is_success, token.text
    headers = {"Authorization": f"Bearer {token.json()['access_token']}"}
    return httpx.Client(base_url=f"{airflow.url}/api/v2/", headers=headers, timeout=TIMEOUT)


class WithUsers(RunningAirflow):
    """An Airflow in which nobody is let in without a name."""

    def api(self, method: str, path: str, **parameters: Any) -> Any:
        """Ask Airflow's REST API as ada."""
        if self._client is None:
            self._client = log_in(self, "ada")
        return super().api(method, path, **parameters)

    def request_of(self, dag_id: str, run_id: str, task_id: str = "approve") -> dict[str, Any]:
        """
        Wait until a person is asked and the scheduler has read that the task's process ended, and return the
        request. Airflow 3.3 fails a task that is answered, and queued again, before that. People are slower.
        """
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        found: dict[str, Any] = {}

        def is_open() -> bool:
            with contextlib.suppress(AssertionError):
                found.update(self.api("GET", path))
            waits = self.states(dag_id, run_id)[task_id] in ("awaiting_input", "deferred")
            return waits and bool(found) and not found["response_received"]

        self.wait_until(is_open, f"the request of {dag_id}")
        tries = found["task_instance"]["try_number"]
        names = f"dag_id='{dag_id}', task_id='{task_id}', run_id='{run_id}', try_number={tries}"
        ended = f"TaskInstanceKey({names},"
        self.wait_until(lambda: self._scheduler_read(ended), f"the scheduler to read {ended}")
        return found

    def _scheduler_read(self, key: str) -> bool:
        said = self.log_file(SCHEDULER).read_text(errors="replace")
        return any(key in line and "Received executor event" in line for line in said.splitlines())

    def ended(self, dag_id: str, run_id: str, seconds: float = DEADLINE) -> dict[str, str]:
        """Wait until a run has ended, and return its tasks' states."""

        def over() -> bool:
            run = self.api("GET", f"dags/{dag_id}/dagRuns/{run_id}")
            return run["state"] in ("success", "failed")

        self._wait(over, f"{dag_id} to end", seconds)
        return self.states(dag_id, run_id)


class User:
    """A user of Airflow, as the REST API knows one."""

    def __init__(self, airflow: RunningAirflow, name: str) -> None:
        self.name = name
        self._airflow = airflow
        self._client = log_in(airflow, name)

    def close(self) -> None:
        """Log out."""
        self._client.close()

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run by hand and return its id."""
        answer = self._client.post(f"dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": conf or {}})
        assert answer.is_success, answer.text
        self._airflow.wait_for_commits()
        return str(answer.json()["dag_run_id"])

    def respond(self, dag_id: str, run_id: str, option: str, task_id: str = "approve") -> None:
        """Answer a request."""
        answer = self._client.patch(
            f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails",
            json={"chosen_options": [option], "params_input": {}},
        )
        assert answer.is_success, answer.text
        self._airflow.wait_for_commits()
