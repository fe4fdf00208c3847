"""The process that asks the broker about groups is replaced when it dies or was interrupted."""

import json
import signal
import time
from typing import Any

import pytest
from memory_clients import MemoryWorker, open_client

from airflow_kafka_offsets.errors import BrokerError, BrokerUnavailableError
from airflow_kafka_offsets.kafka import admin_process
from airflow_kafka_offsets.kafka.admin_process import AdminProcess
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.explain import Call


class Worker:
    """A worker process that does at each call what the test says: dies, answers, or is interrupted."""

    def __init__(self, calls):
        self._calls, self.ended = calls, False

    def ask(self, request, timeout):
        call = self._calls.pop(0)
        if isinstance(call, BaseException):
            raise call
        return call

    def end(self, patience=0.0):
        self.ended = True
        return -signal.SIGABRT, "Assertion failed"


@pytest.fixture
def process(monkeypatch):
    """process(calls) -> an admin process, and the workers that it has started."""

    def make(*calls):
        left, workers = list(calls), []

        def take(settings, token):
            workers.append(Worker(left))
            return workers[-1]

        monkeypatch.setattr(admin_process, "AdminWorker", take)
        return AdminProcess({"bootstrap.servers": "127.0.0.1:1"}), workers

    return make


RESPONSE = {"last": False, "background_errors": [], "failure": None, "cluster_id": ""}
DIES, ANSWERS = "", json.dumps({**RESPONSE, "result": 7})


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_process_that_dies_is_started_again_within_the_call(process, deaths):
    admin, workers = process(*[DIES] * deaths, ANSWERS)
    assert admin.run(Call("describing", "127.0.0.1:1", 30), "describe") == 7
    assert [worker.ended for worker in workers] == [*[True] * deaths, False]


def test_the_answer_to_an_interrupted_call_is_not_taken_for_that_of_the_next(process):
    admin, workers = process(KeyboardInterrupt(), ANSWERS)
    with pytest.raises(KeyboardInterrupt):
        admin.run(Call("describing", "127.0.0.1:1", 30), "describe")
    assert admin.run(Call("describing", "127.0.0.1:1", 30), "describe") == 7
    assert [worker.ended for worker in workers] == [True, False]


def test_a_topic_is_missing_only_if_the_broker_says_so_in_time(monkeypatch):
    client = OffsetsClient({"bootstrap.servers": "127.0.0.1:1"})
    unknown = {"orders": (None, ["UNKNOWN_TOPIC_OR_PART", "unknown"])}
    answers: list[Any] = [
        unknown,
        BrokerUnavailableError("no usable answer within 1 s"),
        {"orders": ("id", None)},
    ]

    def run(*_, **__):
        answer = answers.pop(0)
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    monkeypatch.setattr(client._admin, "run", run)
    client._session.cluster_id = "cluster"
    assert client.log_ids(["orders"]).topics == {"orders": "id"}


def test_a_group_whose_deletion_was_not_answered_is_gone_at_the_next_attempt(monkeypatch):
    client = OffsetsClient({"bootstrap.servers": "127.0.0.1:1"})
    failures = iter([["_TIMED_OUT", "no answer"], ["GROUP_ID_NOT_FOUND", "no such group"]])
    monkeypatch.setattr(client._admin, "run", lambda *_, **__: {"g": (None, next(failures))})
    assert client.delete_groups(["g"]) == {"g": None}


def test_a_deletion_that_its_coordinator_could_not_replicate_may_be_done_all_the_same(monkeypatch):
    """The broker shows a write that it has refused once its replicas are back."""
    client = OffsetsClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=0.2)
    answer = {"g": (None, ["COORDINATOR_NOT_AVAILABLE", "too few replicas"])}
    monkeypatch.setattr(client._admin, "run", lambda *_, **__: answer)
    with pytest.raises(BrokerUnavailableError, match="it may be deleted all the same"):
        client.delete_groups(["g"])


def test_a_group_that_takes_longer_than_the_first_attempt_gets_twice_as_long_each_time(monkeypatch, memory):
    """Reading 20,000 commits of a group took 5 s on a busy machine: every attempt ended after 2 s."""
    seconds: list[int] = []

    def ask(worker, request, timeout):
        asked = json.loads(request)
        seconds.append(round(asked["end"] - time.monotonic()))
        late = (None, ["_TIMED_OUT", "no answer in time"])
        result = dict.fromkeys(asked["arguments"], late if seconds[-1] < 5 else ([], None))
        return json.dumps({**RESPONSE, "result": result})

    monkeypatch.setattr(MemoryWorker, "ask", ask)
    with open_client(memory) as client:
        assert client.committed_groups({"g": None}) == {"g": {}}
    assert seconds == [2, 4, 8]
