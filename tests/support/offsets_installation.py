"""A real Airflow behind a sub-path, with the Offsets tab, a Kafka of its own and DAGs that ran."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
from breakable_kafka import BreakableKafka
from browser import chromium, quiet_page
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import expect
from running_airflow import API_SERVER, RunningAirflow

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from own_postgres import OwnPostgres
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "tests" / "system" / "offsets_pages_dags.py"
RUN_DAGS = DAGS.with_name("offsets_pages_runs.py")
CHECKPOINT = ROOT / "tests" / "checkpoints" / "spark-4.0.0-plain" / "checkpoint"
LOGIN = {"username": "ann", "password": "of-the-tests"}
WIDE = 2_000
"""Partitions of the topic ``wide``."""
UNREAD = (3_000, 800, 250, 60, 5, 0)
"""Records that wait in the partitions of the topic ``orders``."""
RUNS = 300
SECONDS = 60_000
"""Milliseconds that a page may take on a machine that is busy with other tests."""
BEFORE = 200_000
"""Milliseconds: so long ago the checkpoint began."""


class Installation(NamedTuple):
    airflow: RunningAirflow
    kafka: BreakableKafka
    browser: Browser
    empty: str
    """What the page showed before there was a DAG."""

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


def prepare(kafka: BreakableKafka, checkpoint: Path) -> None:
    """Create the topics, the commits of the wide one, and a checkpoint that begins at the topic's start."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    topics = [NewTopic("orders", 6, 1), NewTopic("wide", WIDE, 1)]
    for created in admin.create_topics(topics, request_timeout=60).values():
        created.result(60)
    shutil.copytree(CHECKPOINT, checkpoint, ignore=shutil.ignore_patterns("*.crc"))
    for number in ("1", "2", "3"):
        (checkpoint / "offsets" / number).unlink()
        (checkpoint / "commits" / number).unlink()
    first = checkpoint / "offsets" / "0"
    head, text, _ = first.read_text().split("\n")
    began = int(time.time() * 1000) - BEFORE
    meta = json.dumps({**json.loads(text), "batchTimestampMs": began})
    os.utime(checkpoint / "commits" / "0", (began / 1000 + 2, began / 1000 + 2))
    zero = '{"orders":{"0":0,"1":0,"2":0,"3":0,"4":0,"5":0}}'
    first.write_text(f"{head}\n{meta}\n{zero}")
    (checkpoint / "sources" / "0" / "0").write_text(f"v1\n{zero}")
    with OffsetsClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        client.commit("wide", {TopicPartition("wide", number): 0 for number in range(WIDE)})


@contextmanager
def run_installation(home: Path, checkpoint: Path, postgres: OwnPostgres) -> Iterator[Installation]:
    """Run an API server behind a sub-path, at first without a DAG, then with DAGs that ran."""
    with chromium() as browser, BreakableKafka() as kafka:
        broker = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
        airflow = RunningAirflow(
            home,
            kafka.bootstrap_servers,
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
        )
        (home / "passwords.json").write_text(json.dumps({LOGIN["username"]: LOGIN["password"]}))
        with ExitStack() as stack:
            meanwhile = stack.enter_context(ThreadPoolExecutor(1))
            prepared = meanwhile.submit(prepare, kafka, checkpoint)
            stack.enter_context(airflow)
            installation = Installation(airflow, kafka, browser, "")
            with quiet_page(browser) as page:
                installation.open("", page)
                empty = page.locator("main").inner_text()
            prepared.result()
            run_dags(airflow)
            leave_behind(kafka)
            yield installation._replace(empty=empty)


def leave_behind(kafka: BreakableKafka) -> None:
    """Write records that nobody has read yet, most of them into a few partitions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    now = int(time.time() * 1_000)
    unread = {("orders", partition): count for partition, count in enumerate(UNREAD)}
    unread |= {("wide", partition): 2_000 // (partition + 1) for partition in range(0, 1_000, 3)}
    for (topic, partition), count in unread.items():
        for number in range(count):
            at = now - (count - number) * 100
            producer.produce(topic, b"{}", partition=partition, timestamp=at)
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
