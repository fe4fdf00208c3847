"""What arrives where Airflow sends its metrics to: real datagrams, and OpenTelemetry's real requests."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from written_query import Query

pytestmark = pytest.mark.integration
pytest.importorskip("statsd")

COMMIT = """
import contextlib, sys
from airflow.providers.common.compat.sdk import AirflowException
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

topic, group, checkpoint = sys.argv[1:]
CommitOffsetsOperator(task_id="t", group_id=group, checkpoint_location=checkpoint).execute({})
with contextlib.suppress(AirflowException):
    CommitOffsetsOperator(task_id="t", group_id=group, offsets={topic: {"0": 999}}).execute({})
"""

THE_REST = """
from airflow_kafka_offsets.model.headroom import Headroom
from airflow_kafka_offsets.task.metrics import report_lag
from airflow_kafka_offsets.hooks.offsets import KafkaOffsetsHook
from airflow_kafka_offsets.readings.positions import group_positions, measure_lag
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.topics import TopicScope
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

with contextlib.suppress(AirflowException):
    CommitOffsetsOperator(task_id="t", group_id=group, offsets={topic: {"99": 1}}).execute({})
ResetOffsetsOperator(task_id="t", group_id=group, to_offset={topic: {"1": 2}}).execute({})
with contextlib.suppress(AirflowException):
    CheckOffsetDriftOperator(task_id="t", group_id=group, checkpoint_location=checkpoint).execute({})
with KafkaOffsetsHook().get_offsets_client() as client:
    lag = measure_lag(client, group, group_positions(client, group, TopicScope()))
    late = {TopicPartition(topic, 0): 12.5, TopicPartition(topic, 1): 40.0}
    report_lag([lag.with_time_lags(late)])
    report_lag([lag.with_time_lags({})], checkpoint="s3a://lake/cp")
    left = {tp: Headroom("time", by_time) for tp, by_time in late.items()}
    report_lag([lag.with_headroom(left)], checkpoint="s3a://lake/cp")
"""


@pytest.fixture
def run(make_topic, produce, tmp_path, bootstrap_servers):
    """
    run(code, group, **metrics) runs tasks with that section of Airflow's configuration, and returns their
    topic.
    """
    topic = make_topic()
    produce(topic, {0: 10, 1: 6})
    Query(tmp_path, "query-a").run(0, {topic: {0: 10, 1: 5, 2: 0}})

    def start(code, group, variables=None, **metrics):
        section = {f"AIRFLOW__METRICS__{name.upper()}": str(value) for name, value in metrics.items()}
        done = subprocess.run(
            [sys.executable, "-c", code, topic, group, str(tmp_path)],
            env={**os.environ, **section, **(variables or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return topic

    return start


@pytest.fixture
def statsd():
    """A StatsD server: its port, and what it has been sent of ours."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setblocking(False)

        def lines():
            told = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    told.append(listener.recv(65536).decode())
            return [line for line in told if "kafka_offsets" in line]

        vars(lines)["port"] = listener.getsockname()[1]
        yield lines


def test_statsd_gets_each_metric_with_its_tags_in_its_name(run, statsd):
    topic = run(
        COMMIT + THE_REST,
        "orders etl:1, b",
        statsd_on=True,
        statsd_host="127.0.0.1",
        statsd_port=statsd.port,
        statsd_influxdb_enabled=True,
    )
    tags = f"group=orders_etl_1__b,topic={topic}"
    assert statsd() == [
        f"airflow.kafka_offsets.commit,{tags}:1|c",
        f"airflow.kafka_offsets.lag,{tags}:1|g",
        f"airflow.kafka_offsets.refused,{tags},reason=PlanRefusedError:1|c",
        "airflow.kafka_offsets.refused,group=orders_etl_1__b,reason=PlanRefusedError:1|c",
        f"airflow.kafka_offsets.reset,{tags}:1|c",
        f"airflow.kafka_offsets.lag,{tags}:4|g",
        f"airflow.kafka_offsets.drift,{tags}:1|g",
        f"airflow.kafka_offsets.lag,{tags}:4|g",
        f"airflow.kafka_offsets.time_lag,{tags}:40.0|g",
        f"airflow.kafka_offsets.lag,group=s3a_//lake/cp,topic={topic}:4|g",
        f"airflow.kafka_offsets.time_lag,group=s3a_//lake/cp,topic={topic}:0.0|g",
        f"airflow.kafka_offsets.lag,group=s3a_//lake/cp,topic={topic}:4|g",
        f"airflow.kafka_offsets.headroom,group=s3a_//lake/cp,topic={topic}:12.5|g",
    ]


def test_opentelemetry_gets_the_tags_as_they_are(run):
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.server_port
            topic = run(
                COMMIT,
                "orders etl:1, b",
                {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{port}/v1/metrics"},
                otel_on=True,
                otel_host="127.0.0.1",  # these two for Airflow 3.1
                otel_port=port,
            )
        finally:
            server.shutdown()
            thread.join()
    sent = b"".join(body for path, body in received if path == "/v1/metrics")
    for text in (
        "kafka_offsets.commit",
        "kafka_offsets.refused",
        "orders etl:1, b",
        topic,
        "PlanRefusedError",
    ):
        assert text.encode() in sent
