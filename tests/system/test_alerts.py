"""
A gate that fails, and a run that is late, are told by mail: real mails, to a mail server of the test's own.
"""

import contextlib
import email
import json
import socket
import socketserver
import threading
from email.policy import default
from pathlib import Path

import pytest

from airflow_kafka_offsets.model.offsets import TopicPartition

pytest.importorskip("statsd")
pytestmark = [pytest.mark.system, pytest.mark.integration]

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "alerts.py"

RUN = """
import asyncio, importlib.util, sys
from airflow.models.deadline import Deadline
from airflow.utils.session import create_session

spec = importlib.util.spec_from_file_location("alerts", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
run = module.dag.test()
print({ti.task_id: str(ti.state) for ti in run.get_task_instances()})

# What the scheduler and the triggerer do when the time is up.
with create_session() as session:
    (deadline,) = session.query(Deadline).filter(Deadline.dagrun_id == run.id)
    deadline.handle_miss(session)
    try:
        from airflow.triggers.callback import CallbackTrigger
        trigger = CallbackTrigger(deadline.callback.data["path"], deadline.callback.data["kwargs"])
    except ImportError:  # Airflow 3.1
        from airflow.triggers.deadline import DeadlineCallbackTrigger
        trigger = DeadlineCallbackTrigger(**deadline.trigger.kwargs)

async def call():
    return [event.payload async for event in trigger.run()]

print(asyncio.run(call()))
"""


class MailServer(socketserver.ThreadingTCPServer):
    """As much of SMTP as it takes to accept mails."""

    allow_reuse_address = daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Conversation)
        self.mails = []


class Conversation(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            verb = line[:4].upper()
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                text = b"".join(iter(self.rfile.readline, b".\r\n"))
                assert isinstance(self.server, MailServer)
                self.server.mails.append(email.message_from_bytes(text, policy=default))
            self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")


@pytest.fixture(scope="module")
def mail_server():
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def topic(make_topic, produce):
    name = make_topic(2)
    produce(name, {0: 7, 1: 5})
    return name


@pytest.fixture(scope="module")
def told(airflow, mail_server, topic, broker, tmp_path_factory):
    """The mails of a run that fails at its gate and misses its deadline, and the datagrams of its metrics."""
    group = f"behind-{topic}"
    broker.commit(group, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 0})
    example = EXAMPLE.read_text()
    for there, here in (
        ('"orders"', f'"{topic}"'),
        ("orders-etl", group),
        ("max_lag=1000", "max_lag=8"),
        ("timeout=3600", "timeout=0"),
        ("DAGRUN_QUEUED_AT", "DAGRUN_LOGICAL_DATE"),  # dag.test queues nothing
    ):
        assert there in example
        example = example.replace(there, here)
    dags = tmp_path_factory.mktemp("dags")
    (dags / "alerts.py").write_text(example)
    connection = {
        "conn_type": "smtp",
        "host": "127.0.0.1",
        "port": mail_server.server_address[1],
        "extra": {"from_email": "airflow@example.com", "disable_ssl": True, "disable_tls": True},
    }
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.setblocking(False)
        done = airflow(
            "-c",
            RUN,
            str(dags / "alerts.py"),
            AIRFLOW__CORE__DAGS_FOLDER=str(dags),
            AIRFLOW_CONN_SMTP_DEFAULT=json.dumps(connection),
            AIRFLOW__METRICS__STATSD_ON="True",
            AIRFLOW__METRICS__STATSD_HOST="127.0.0.1",
            AIRFLOW__METRICS__STATSD_PORT=str(statsd.getsockname()[1]),
        )
        assert "{'gate': 'failed', 'publish': 'upstream_failed'}" in done.stdout, done.stdout + done.stderr
        datagrams = []
        with contextlib.suppress(BlockingIOError):
            while True:
                datagrams.append(statsd.recv(65536).decode())
    assert len(mail_server.mails) == 2, done.stdout + done.stderr
    return *mail_server.mails, datagrams


def content(mail):
    return next(part.get_content() for part in mail.walk() if not part.is_multipart())


def test_a_failed_gate_is_told_with_what_it_saw_last(told, topic):
    mail = told[0]
    assert (mail["to"], mail["subject"]) == ("data-on-call@example.com", "alerts: the group is behind")
    assert f"Group behind-{topic}: 9 unread records, 0 lost" in content(mail)
    assert f"<li>{topic}: 9</li>" in content(mail)


def test_a_missed_deadline_is_told(told):
    mail = told[1]
    assert (mail["to"], mail["subject"]) == ("data-on-call@example.com", "alerts is late")
    assert "has not succeeded by 20" in content(mail)


def test_plain_statsd_gets_the_lag_that_the_gate_saw(told):
    assert "airflow.kafka_offsets.lag:9|g" in told[2]
