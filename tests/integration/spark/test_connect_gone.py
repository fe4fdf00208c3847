"""Does a job of Spark Connect end when its server is silent, or gone?"""

import json
import os
import subprocess
import sys

import pytest
from spark_connect import connect_server

LIMIT = 60
"""Seconds: PySpark waits ten minutes for a server that is gone, and for ever for one that is silent."""

JOB = """
import json
import os
import signal
import sys
import time

from breakable_kafka import freeze
from pyspark.sql.connect.session import SparkSession

from airflow_kafka_offsets.spark.listener.listener import committing

url, servers, topic, location, silent, gone, pid = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()


def end(group, trouble):
    config = {"bootstrap.servers": servers}
    with committing(spark, group_id=group, config=config, timeout=4, allow_new_query=True) as listener:
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{location}-{group}")
        writer.start()
        while listener.counts.committed == 0:
            time.sleep(0.05)
        trouble(int(pid))
        began = time.monotonic()
    return {"seconds": time.monotonic() - began, "errors": [str(error) for error in listener.errors]}


def kill(pid):
    os.kill(pid, signal.SIGKILL)


report = [end(silent, freeze)]
os.kill(int(pid), signal.SIGCONT)
# The next listener must not follow this query, too.
for query in spark.streams.active:
    query.stop()
report.append(end(gone, kill))
# Since 4.2 PySpark asks the server of an open client once more when Python ends, for ten minutes.
spark.client.close()
print(json.dumps(report), flush=True)
"""


@pytest.fixture(scope="module")
def doomed(spark_settings, tmp_path_factory):
    """(URL, pid) of a server that may be killed."""
    with connect_server(spark_settings, tmp_path_factory.mktemp("doomed")) as (url, server):
        yield url, server.pid


def test_the_end_waits_neither_for_a_silent_server_nor_for_one_that_is_gone_and_python_ends_too(
    doomed, bootstrap_servers, make_topic, produce, location, new_group, holds, tmp_path
):
    (url, pid), topic, silent, gone = doomed, make_topic(1), new_group(), new_group()
    produce(topic, {0: 3})
    job = tmp_path / "job.py"
    job.write_text(JOB)
    arguments = [url, bootstrap_servers, topic, location, silent, gone, str(pid)]
    done = subprocess.run(
        [sys.executable, str(job), *arguments],
        capture_output=True,
        text=True,
        timeout=3 * LIMIT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for end in json.loads(done.stdout):
        assert end["seconds"] < LIMIT
        assert len(end["errors"]) == 1
        assert "the Spark Connect server does not answer" in end["errors"][0]
    # What is known is committed all the same.
    assert holds(silent) == holds(gone) == {(topic, 0): 3}
