"""
Checkpoints of real Spark queries, committed while they run, after they ended, and after they were killed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from deadlines import until

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open until the process ends.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def commit(context, **parameters):
    return CommitOffsetsOperator(task_id="commit", **parameters).execute(context)


def test_all_batches_of_a_run_are_committed_and_kafkas_tool_shows_lag_0(
    stream, run, make_topic, produce, location, new_group, kafka_tools, context
):
    topic, group = make_topic(), new_group()
    produce(topic, {0: 10, 1: 7})
    run(stream(topic, maxOffsetsPerTrigger=6), location)
    newest = SparkCheckpoint(location).read().batch_id
    assert newest is not None
    assert newest >= 2
    receipt = commit(context, group_id=group, checkpoint_location=location)
    assert receipt["after"] == {topic: {"0": 10, "1": 7, "2": 0}}
    rows = kafka_tools.describe_rows(group)
    assert [(row["partition"], row["current_offset"], row["lag"]) for row in rows] == [
        (0, 10, 0),
        (1, 7, 0),
        (2, 0, 0),
    ]


def test_two_sources_of_one_topic_are_refused_one_group_and_given_one_each(
    stream, start, make_topic, produce, location, new_group, holds, context
):
    topic, group, first, second = make_topic(1), new_group(), new_group(), new_group()
    produce(topic, {0: 6})
    start_at_4 = {"startingOffsets": json.dumps({topic: {"0": 4}})}
    frame = stream(topic, maxOffsetsPerTrigger=2).unionByName(
        stream(topic, **start_at_4, maxOffsetsPerTrigger=1)
    )
    query = start(frame, location, processingTime="1 hour")
    try:
        until(lambda: Path(location, "commits", "0").exists())
        with pytest.raises(AirflowFailException, match=r"occurs in source 0 and in source 1 .*\"source:0\""):
            commit(context, group_id=group, checkpoint_location=location)
        commit(context, group_id={"source:0": first, "source:1": second}, checkpoint_location=location)
        assert (holds(first), holds(second)) == ({0: 2}, {0: 5})
    finally:
        query.stop()


JOB = """
import json, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

servers, topic, location, output, conf = sys.argv[1:]
builder = SparkSession.builder.master("local[2]")
for name, value in json.loads(conf).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def write(batch, batch_id):
    rows = sorted(row.offset for row in batch.collect())
    Path(output, f"{batch_id}.json").write_text(json.dumps(rows))
    if batch_id == 1:
        Path(output, "blocked").touch()
        time.sleep(600)

stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 4).load()
stream.writeStream.foreachBatch(write).option("checkpointLocation", location).trigger(availableNow=True).start().awaitTermination()
"""


def test_a_job_killed_in_the_middle_of_a_batch_has_that_batch_not_committed_and_goes_on(
    stream,
    run,
    make_topic,
    produce,
    location,
    tmp_path,
    new_group,
    holds,
    context,
    bootstrap_servers,
    spark_settings,
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 10})
    output = tmp_path / "output"
    output.mkdir()
    (tmp_path / "job.py").write_text(JOB)

    command = [sys.executable, str(tmp_path / "job.py"), bootstrap_servers, topic, location, str(output)]
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(
            [*command, json.dumps(spark_settings)], stdout=log, stderr=log, start_new_session=True
        )
    until(lambda: (output / "blocked").exists() or job.poll() is not None, "the job", 90)
    os.killpg(job.pid, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()[-2000:]

    state = SparkCheckpoint(location).read()
    assert (state.batch_id, state.pending_batch_id) == (0, 1)
    first = commit(context, group_id=group, checkpoint_location=location)
    assert holds(group) == {0: 4}

    def write(batch, batch_id):
        rows = sorted(row.offset for row in batch.collect())
        (output / f"{batch_id}.json").write_text(json.dumps(rows))

    run(stream(topic, maxOffsetsPerTrigger=4), location, batch_does=write)
    second = commit(context, group_id=group, checkpoint_location=location)
    assert holds(group) == {0: 10}
    assert second["before"] == first["after"]
    rows = [offset for file in output.glob("*.json") for offset in json.loads(file.read_text())]
    assert sorted(rows) == list(range(10))
