"""
Spark standalone with two workers, one of which is killed in the middle of a batch.

Run it with ``LONG_TESTS=yes pytest tests/system/test_spark_worker_killed.py``.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest
from deadlines import until
from spark_standalone import standalone_spark

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.spark import launcher_path, spark_py_files

pytestmark = [
    pytest.mark.system,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(600),
]

JOB = Path(__file__).with_name("slow_job.py")
RECORDS = {0: 70, 1: 60, 2: 50, 3: 40}
KILLED_BATCH = 1
EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture
def environment():
    ignored = ("SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ignored)}
    java = {"JAVA_HOME": str(find_java().path.resolve().parents[1]), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**kept, **java, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


@pytest.fixture
def cluster(tmp_path, environment):
    with standalone_spark(tmp_path / "spark", environment, workers=2) as cluster:
        yield cluster


@pytest.fixture
def pipeline(make_topic, produce, new_group, tmp_path, bootstrap_servers, monkeypatch):
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    topic = make_topic(len(RECORDS))
    produce(topic, records(topic))
    return KafkaPipeline(
        group_id=new_group(), topics=[topic], checkpoint_location=str(tmp_path / "checkpoint")
    )


@pytest.fixture
def start(cluster, environment, pipeline, spark_settings, bootstrap_servers, tmp_path):
    """start("launcher") or start() -> the running job."""
    jobs = []

    def submit(*launcher):
        settings = {**spark_settings, "spark.cores.max": "2", "spark.executor.memory": "600m"}
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster.master]
        command += [f"--conf={name}={value}" for name, value in settings.items()]
        if launcher:
            command += ["--py-files", spark_py_files(), launcher_path()]
        names = [
            bootstrap_servers,
            *pipeline["topics"],
            pipeline["group_id"],
            pipeline["checkpoint_location"],
        ]
        with (tmp_path / "job.log").open("wb") as log:
            job = subprocess.Popen(
                [*command, str(JOB), *names, str(tmp_path / "output")],
                env=environment,
                cwd=tmp_path,
                stdout=log,
                stderr=log,
            )
        jobs.append(job)
        return job

    yield submit
    for job in jobs:
        if job.poll() is None:
            job.kill()
        job.wait()


@pytest.fixture
def held(pipeline, bootstrap_servers):
    """held() -> {(topic, partition): offset} of what the group has committed."""

    def committed():
        with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
            found = client.committed_everywhere(pipeline["group_id"])
        return {(partition.topic, partition.partition): commit.offset for partition, commit in found.items()}

    return committed


def records(topic):
    return [
        {"value": f"{partition}-{number}".encode(), "partition": partition}
        for partition, count in RECORDS.items()
        for number in range(count)
    ]


def executors(worker):
    found = []
    for each in worker.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # Python's workers come and go
            if EXECUTOR in " ".join(each.cmdline()):
                found.append(each)
    return found


def kill_one_in_the_middle_of_a_batch(cluster, job, checkpoint):
    planned, finished = (checkpoint / name / str(KILLED_BATCH) for name in ("offsets", "commits"))
    until(lambda: planned.exists() or job.poll() is not None, f"batch {KILLED_BATCH}", 180)
    assert job.poll() is None, "the job has ended early"
    (one, other) = cluster.workers
    assert executors(one)
    assert executors(other)
    time.sleep(1.5)  # its tasks run now: each takes seconds
    for process in (one, *one.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not finished.exists(), "the batch was over before the worker was killed"


def output(directory):
    """What a reader sees of a file sink: the files that its log names."""
    lines = [
        line
        for file in (directory / "_spark_metadata").iterdir()
        if file.name.isdigit()
        for line in file.read_text().splitlines()[1:]
    ]
    paths = [json.loads(line)["path"].removeprefix("file://") for line in lines]
    return sorted(line for path in paths for line in Path(path).read_text().splitlines())


@pytest.mark.parametrize("follows", ["operator", "listener"])
def test_the_batch_ends_on_the_other_worker_and_its_offsets_are_committed(
    cluster, start, pipeline, tmp_path, held, follows
):
    job = start() if follows == "operator" else start("launcher")
    kill_one_in_the_middle_of_a_batch(cluster, job, Path(pipeline["checkpoint_location"]))

    assert job.wait(180) == 0, (tmp_path / "job.log").read_text()[-5000:]

    said = (tmp_path / "job.log").read_text()
    assert "Lost executor" in said
    (topic,) = pipeline["topics"]
    ends = {(topic, partition): count for partition, count in RECORDS.items()}
    assert held() == (ends if follows == "listener" else {})
    receipt = CommitOffsetsOperator(task_id="commit", **pipeline).execute({})
    assert receipt["after"] == {topic: {str(partition): count for partition, count in RECORDS.items()}}
    assert receipt["changed"] == (0 if follows == "listener" else len(RECORDS))
    assert held() == ends
    report = CheckOffsetDriftOperator(task_id="drift", pipelines=[pipeline], grace=0).execute({})
    assert report["drifted"] is False
    assert output(tmp_path / "output") == sorted(each["value"].decode() for each in records(topic))
