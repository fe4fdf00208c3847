"""
A job that adds counts to rows of a database is killed again and again, and every record is counted once.
"""

import contextlib
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spark_session import QUICK_JAVA
from sqlalchemy import create_engine, text

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.formats import offsets_json
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.spark import SqlOffsetStore

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("counting_job.py")
DEADLINE = 120.0
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(Path(__file__).parents[3]),
    "SPARK_LAUNCHER_OPTS": f"{QUICK_JAVA} {UNVERIFIED}",
}

LONG = bool(os.environ.get("LONG_TESTS"))
PIPELINES = 3 if LONG else 1
PARTITIONS, KEYS = 3, "abcde"
BEFORE_DATABASE, BEFORE_SPARK = "before the database's commit", "before Spark's commit"
ANY_TIME = "any time"
DEATHS = [BEFORE_DATABASE, BEFORE_SPARK] + ["before the results", *[ANY_TIME] * 4] * LONG
"""How each job dies, one start after the other, in a random order."""


class Pipeline:
    """A topic that grows, and the job that counts its records."""

    def __init__(self, number, topic, home, url, bootstrap_servers, produce, settings):
        self.name, self.topic, self.home, self.url = f"counting-{number}", topic, home, url
        self.bootstrap_servers, self.produce = bootstrap_servers, produce
        self.checkpoint = str(home / "checkpoint")
        self.settings = settings
        self.values = itertools.count(1)
        self.produced, self.deaths = Counter(), Counter()
        self.must_answer = None
        home.mkdir()
        with (home / "stderr.txt").open("ab") as errors:
            self.jobs = subprocess.Popen(
                [sys.executable, str(JOB)],
                cwd=home,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def grow(self, records):
        new = [(KEYS[value % len(KEYS)], value) for value in itertools.islice(self.values, records)]
        self.produce(
            self.topic,
            [{"key": key, "value": b"%d" % value, "partition": value % PARTITIONS} for key, value in new],
        )
        for key, value in new:
            self.produced[key, "records"] += 1
            self.produced[key, "total"] += value

    def run(self, die=None):
        """Start the job, and return what it said until it died, or to its end."""
        told = {
            "die": die,
            "conf": self.settings,
            "url": self.url,
            "pipeline": self.name,
            "bootstrap_servers": self.bootstrap_servers,
            "topic": self.topic,
            "checkpoint": self.checkpoint,
        }
        stdin, stdout = self.jobs.stdin, self.jobs.stdout
        assert stdin
        assert stdout
        stdin.write(json.dumps(told) + "\n")
        stdin.flush()
        said = [json.loads(stdout.readline())]
        kill = functools.partial(os.killpg, said[0]["pid"], signal.SIGKILL)
        too_late = threading.Timer(DEADLINE, kill)
        too_late.start()
        # Within its first batch, or in one of those after it, which take a fraction of a second each.
        since = random.choice(["begins", "saves"]) if die == ANY_TIME else None
        try:
            while "exit" not in said[-1]:
                said.append(json.loads(stdout.readline()))
                if since in said[-1]:
                    time.sleep(random.uniform(0, 1.0))
                    kill()
                    since = None
        finally:
            too_late.cancel()
            if "exit" not in said[-1]:
                kill()
        self.check(die, said)
        return said

    def close(self):
        with self.jobs:
            assert self.jobs.stdin
            self.jobs.stdin.close()

    def check(self, die, said):
        complaints = (self.home / "stderr.txt").read_text()[-3000:]
        assert said[-1]["exit"] == (0 if die is None else -signal.SIGKILL), complaints
        if die not in (None, ANY_TIME):
            assert said[-2].get("dies") == die, complaints
        # A batch that was interrupted is told whether its results are in the database.
        answers = [event for event in said if "saves" in event]
        if self.must_answer and answers:
            assert answers[0] == self.must_answer
            self.must_answer = None
        if die in (BEFORE_DATABASE, BEFORE_SPARK):
            self.must_answer = {"saves": said[-2]["batch"], "new": die == BEFORE_DATABASE}
        elif die is not None and answers:
            self.must_answer = None
        self.deaths[die] += die is not None

    def counted(self, engine):
        with engine.connect() as connection:
            rows = connection.execute(
                text("SELECT key, records, total FROM counts WHERE pipeline = :name"), {"name": self.name}
            ).all()
        return Counter(
            {
                (key, what): number
                for key, *both in rows
                for what, number in zip(("records", "total"), both, strict=True)
            }
        )


@pytest.fixture
def database(postgres):
    engine = create_engine(postgres.url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE counts (pipeline TEXT, key TEXT, records BIGINT, total BIGINT, PRIMARY KEY "
                "(pipeline, key))"
            )
        )
        rows = [{"p": f"counting-{n}", "key": key} for n in range(PIPELINES) for key in KEYS]
        connection.execute(text("INSERT INTO counts VALUES (:p, :key, 0, 0)"), rows)
    SqlOffsetStore(engine).create_table()
    yield engine
    engine.dispose()


@pytest.fixture
def pipelines(database, postgres, make_topic, produce, bootstrap_servers, spark_settings, tmp_path):
    java = "spark.driver.extraJavaOptions"
    small = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    settings = {**spark_settings, **small, java: f"{spark_settings[java]} {UNVERIFIED}"}
    with contextlib.ExitStack() as stack:
        pipelines = [
            Pipeline(
                n,
                make_topic(PARTITIONS),
                tmp_path / str(n),
                postgres.url,
                bootstrap_servers,
                produce,
                settings,
            )
            for n in range(PIPELINES)
        ]
        for pipeline in pipelines:
            stack.callback(pipeline.close)
        yield pipelines


def test_a_job_that_is_killed_at_any_point_counts_every_record_once(
    pipelines, database, connections, new_group, kafka_tools
):
    begun = time.monotonic()

    def live(pipeline):
        for die in random.sample(DEATHS, len(DEATHS)):
            pipeline.grow(80)
            pipeline.run(die)
        pipeline.run()

    with ThreadPoolExecutor(PIPELINES) as pool:
        list(pool.map(live, pipelines))

    store = SqlOffsetStore(database)
    for pipeline in pipelines:
        assert pipeline.counted(database) == pipeline.produced
        ends = store.load(pipeline.name)
        assert sum(ends.values()) == sum(pipeline.produced[key, "records"] for key in KEYS)
        assert SparkCheckpoint(pipeline.checkpoint).read().kafka_offsets["0"] == ends
        group = new_group()
        receipt = CommitOffsetsOperator(
            task_id="publish", group_id=group, store_conn_id="results", store_pipeline=pipeline.name
        ).execute({})
        assert receipt["after"] == offsets_json(ends)
        assert [row["lag"] for row in kafka_tools.describe_rows(group)] == [0] * PARTITIONS

    deaths = sum((pipeline.deaths for pipeline in pipelines), Counter())
    assert deaths.total() == len(DEATHS) * PIPELINES
    assert deaths[BEFORE_SPARK] >= PIPELINES
    assert deaths[BEFORE_DATABASE] >= PIPELINES
    print(f"killed {dict(deaths)} in {time.monotonic() - begun:.0f} s")
