"""
"Getting started", done as the page says, except for the installation.

``DOCS_IMAGES=yes`` writes the picture of the page.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from browser import chromium
from playwright.sync_api import expect

from airflow_kafka_offsets.local.airflow_ui import USER, AirflowUI
from airflow_kafka_offsets.local.broker_config import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "getting-started.md"
# A browser is needed for what "airflow standalone" shows: see take_picture.
NOT_RUN = ("git clone", "airflow standalone", "cat airflow/simple_auth", "kill -INT")
RUN = "airflow dags test coffee"
SECONDS = 60_000
WAIT = 300

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def shape(text: str) -> list[str]:
    """Ids, paths, numbers and the times of a log differ between two runs, and so do the widths of columns."""
    text = re.sub(r" \[airflow[\w.]*\] loc=\S+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\S+Z \[info +\] ", "", text, flags=re.MULTILINE)
    text = re.sub(r"[0-9a-f-]{36}|(?<=directory )\S+(?=\))|\d+", "#", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@contextmanager
def coffee() -> Iterator[Path]:
    """A directory of its own; the picture shows its path."""
    directory = Path(tempfile.gettempdir()) / "coffee" if pictures() else Path(tempfile.mkdtemp())
    directory.mkdir(exist_ok=not pictures())
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def pictures() -> bool:
    return bool(os.environ.get("DOCS_IMAGES"))


def take_picture(home: Path, environment: Mapping[str, str]) -> None:
    with AirflowUI(home, environment) as airflow, chromium() as browser:
        login = {"username": USER, "password": airflow.password}
        answer = httpx.post(f"{airflow.url}/auth/token", json=login, timeout=SECONDS / 1_000)
        with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
            token = answer.raise_for_status().json()["access_token"]
            context.add_cookies([{"name": "_token", "value": token, "url": airflow.url}])
            page = context.new_page()
            page.set_default_timeout(SECONDS)
            page.goto(f"{airflow.url}/dags/coffee/plugin/kafka-offsets-dag")
            tab = page.frame_locator("iframe")
            expect(tab.locator(".cards > div", has_text="Drift")).to_contain_text("in step", timeout=SECONDS)
            expect(tab.locator(".plot canvas")).to_have_count(4)
            page.screenshot(path=ROOT / "docs" / "images" / "getting-started-tab.png")


def test_the_page_leads_to_a_committed_group(spark_settings):
    # Another Kafka may have the page's port.
    page = PAGE.read_text(encoding="utf-8").replace("9092", str(free_port()))
    dag, _own = blocks(page, "python")
    commands = [block for block in blocks(page, "bash") if not block.startswith(NOT_RUN)]
    *steps, stop = commands
    ignored = ("AIRFLOW_", "SPARK_", "PYSPARK_", "KAFKA_")
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(ignored) or name == "AIRFLOW_KAFKA_OFFSETS_CACHE"
    }
    # Settings for a quick start change nothing of what the page says.
    quick = spark_settings["spark.driver.extraJavaOptions"]
    environment |= {
        "SPARK_SUBMIT_OPTS": quick,
        "SPARK_LAUNCHER_OPTS": quick,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]]),
        "PYTHONPATH": str(ROOT),
        # Of the second run, which the page starts in the UI, and of the picture.
        "AGAIN": RUN if pictures() else "true",
    }
    show = f"{sys.executable} -c 'import json, os; print(\"@@\" + json.dumps(dict(os.environ)))'\n"
    with coffee() as home:
        (home / "coffee.py").write_text(dag, encoding="utf-8")
        script = "".join(steps).replace("mkdir dags\n", "mkdir dags && mv coffee.py dags\n")
        assert RUN in script

        def run(text: str) -> str:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=home,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=WAIT,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-6000:]
            return done.stdout

        try:
            printed = run(f"{script}\n{show}$AGAIN\n")
            if pictures():
                (found,) = re.findall(r"^@@(.*)$", printed, re.MULTILINE)
                take_picture(home, json.loads(found))
        finally:
            run(stop)
    seen = shape(printed)
    for told in blocks(page, "text"):
        missing = [line for line in shape(told) if line not in seen]
        assert not missing, "\n".join(missing)
