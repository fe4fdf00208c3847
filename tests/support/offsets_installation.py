"""A real Airflow behind a sub-path, with the Offsets tab and DAGs that ran."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
from browser import chromium
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import expect
from running_airflow import API_SERVER, RunningAirflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from own_postgres import OwnPostgres
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "tests" / "system" / "offsets_pages_dags.py"
RUN_DAGS = DAGS.with_name("offsets_pages_runs.py")
CHECKPOINT = ROOT / "tests" / "checkpoints" / "spark-4.0.0-plain" / "checkpoint"
LOGIN = {"username": "ann", "password": "of-the-tests"}
TOPIC = "web-orders"
UNREAD = (3_000, 800, 250, 60, 5, 0)
"""Records that wait in the partitions of the topic."""
RUNS = 300
SECONDS = 60_000
"""Milliseconds that a page may take on a machine that is busy with other tests."""
BEFORE = 200_000
"""Milliseconds: so long ago the checkpoint began."""


class Installation(NamedTuple):
    airflow: RunningAirflow
    browser: Browser

    @property
    def pages(self) -> str:
        return f"{self.airflow.url}/kafka-offsets/"

    def log_in(self, context: BrowserContext) -> None:
        answer = httpx.post(f"{self.airflow.url}/auth/token", json=LOGIN, timeout=SECONDS / 1_000)
        token = answer.raise_for_status().json()["access_token"]
        context.add_cookies([{"name": "_token", "value": token, "url": self.airflow.url}])

    def open(self, address: str, page: Page) -> None:
        """Log in and open a page of the tab."""
        self.log_in(page.context)
        page.set_default_timeout(SECONDS)
        page.goto(f"{self.pages}{address}")
        expect(page.locator("main")).to_have_attribute("aria-busy", "false", timeout=SECONDS)


def prepare(bootstrap_servers: str, checkpoint: Path) -> None:
    """Create the topic, and a checkpoint that begins at its start."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, len(UNREAD))], request_timeout=60)[TOPIC].result(60)
    shutil.copytree(CHECKPOINT, checkpoint, ignore=shutil.ignore_patterns("*.crc"))
    for number in ("1", "2", "3"):
        (checkpoint / "offsets" / number).unlink()
        (checkpoint / "commits" / number).unlink()
    first = checkpoint / "offsets" / "0"
    head, text, _ = first.read_text().split("\n")
    began = int(time.time() * 1000) - BEFORE
    meta = json.dumps({**json.loads(text), "batchTimestampMs": began})
    os.utime(checkpoint / "commits" / "0", (began / 1000 + 2, began / 1000 + 2))
    zero = json.dumps({TOPIC: {str(number): 0 for number in range(len(UNREAD))}})
    first.write_text(f"{head}\n{meta}\n{zero}")
    (checkpoint / "sources" / "0" / "0").write_text(f"v1\n{zero}")


@contextmanager
def run_installation(
    home: Path, bootstrap_servers: str, checkpoint: Path, postgres: OwnPostgres
) -> Iterator[Installation]:
    """Run an API server behind a sub-path, with DAGs that ran."""
    broker = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    airflow = RunningAirflow(
        home,
        bootstrap_servers,
        [DAGS],
        postgres,
        components=[API_SERVER],
        path="/team/airflow",
        AIRFLOW__API__WORKERS="1",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="False",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS=f"{LOGIN['username']}:viewer",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(home / "passwords.json"),
        AIRFLOW_CONN_KAFKA_DEAD=json.dumps(broker),
        OFFSETS_CHECKPOINT=str(checkpoint),
        OFFSETS_TOPIC=TOPIC,
    )
    (home / "passwords.json").write_text(json.dumps({LOGIN["username"]: LOGIN["password"]}))
    prepare(bootstrap_servers, checkpoint)
    with chromium() as browser, airflow:
        run_dags(airflow)
        leave_behind(bootstrap_servers)
        yield Installation(airflow, browser)


def leave_behind(bootstrap_servers: str) -> None:
    """Write records that nobody has read yet, most of them into a few partitions."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    now = int(time.time() * 1_000)
    for partition, count in enumerate(UNREAD):
        for number in range(count):
            producer.produce(TOPIC, b"{}", partition=partition, timestamp=now - (count - number) * 100)
        producer.poll(0)
    assert producer.flush(60) == 0


def run_dags(airflow: RunningAirflow) -> None:
    """Make Airflow know the DAGs and run them, with a broker behind the connection that is dead later."""
    environment = airflow.environment | {
        "AIRFLOW_CONN_KAFKA_DEAD": airflow.environment["AIRFLOW_CONN_KAFKA_DEFAULT"]
    }
    log = airflow.home / "runs.log"
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, str(RUN_DAGS), str(airflow.dags / DAGS.name)],
            env=environment,
            cwd=airflow.home,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=RUNS,
        )
    assert done.returncode == 0, log.read_text()[-6000:]
