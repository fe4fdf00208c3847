"""What a client says where no broker answers, or no token service, and how long that takes it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from client_calls import CALLS

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    TokenUnavailableError,
)
from airflow_kafka_offsets.kafka import session
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.kafka.oauth_token import probe_token_service
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.model.offsets import TopicPartition

ORDERS = TopicPartition("orders", 0)
GRACE = 3.0
"""Seconds beyond the deadline, on a busy machine."""


@pytest.mark.parametrize("look", [OffsetsClient.record_times, OffsetsClient.record_sizes])
def test_records_of_a_broker_that_is_not_there_are_not_waited_for_longer_than_allowed(look):
    with OffsetsClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=20) as client:
        start = time.monotonic()
        assert look(client, {ORDERS: 0}, within=0.5) == {}
    assert time.monotonic() - start < 0.5 + GRACE


def test_a_closed_port_is_named_within_the_deadline():
    servers = f"{LOOPBACK}:{free_port()}"

    def error_of(call):
        start = time.monotonic()
        with OffsetsClient({"bootstrap.servers": servers}, timeout=2) as client:
            with pytest.raises(BrokerUnavailableError, match=r"check bootstrap\.servers") as caught:
                call(client, "nightly", ORDERS)
            assert time.monotonic() - start < 2 + GRACE
        return caught.value

    with ThreadPoolExecutor(len(CALLS)) as pool:  # each takes its two seconds
        for error in pool.map(error_of, CALLS.values()):
            assert servers in str(error)
            assert "Connection refused" in str(error)
            assert error.retriable


def test_the_connections_own_error_callback_is_called_and_its_failure_does_not_matter(caplog):
    seen = []

    def error_cb(error):
        seen.append(error.name())
        raise ValueError("a bug of the user's")

    config = {"bootstrap.servers": f"{LOOPBACK}:{free_port()}", "error_cb": error_cb}
    with (
        OffsetsClient(config, timeout=1) as client,
        pytest.raises(BrokerUnavailableError, match="Connection refused"),
    ):
        client.partitions()
    assert "_TRANSPORT" in seen
    assert "error_cb of the Kafka configuration failed" in caplog.text


BY_TOKEN = pytest.mark.parametrize(
    "ask",
    [lambda client: client.list_groups(), lambda client: client.partitions()],
    ids=["admin", "consumer"],
)


@pytest.fixture
def token_service(monkeypatch):
    """token_service(status, body, seconds) -> the configuration of a login that has its token from there."""

    class Service(BaseHTTPRequestHandler):
        answer: ClassVar[tuple[int, bytes, float]]

        def do_POST(self):  # http.server's name
            status, body, seconds = self.answer
            time.sleep(seconds)
            with suppress(BrokenPipeError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    def start(status, body=b"", seconds=0.0):
        Service.answer = status, body, seconds
        return {
            "bootstrap.servers": f"{LOOPBACK}:1",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "airflow",
            "sasl.oauthbearer.client.secret": "hunter2",
            "sasl.oauthbearer.token.endpoint.url": f"http://{LOOPBACK}:{server.server_port}/token",
        }

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with ThreadingHTTPServer((LOOPBACK, 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield start
        server.shutdown()


@BY_TOKEN
def test_a_token_service_that_does_not_work_is_a_temporary_error(token_service, ask):
    with OffsetsClient(token_service(503, b"<html>"), timeout=3) as client:
        for _ in range(2):  # librdkafka reports it after 50 seconds, and only once
            with pytest.raises(TokenUnavailableError, match="HTTP status 503.: try again"):
                ask(client)


@pytest.mark.parametrize(
    ("status", "outage"), [(200, False), (401, False), (404, False), (429, True), (500, True)]
)
def test_a_token_service_works_if_it_refuses_a_request_without_credentials(token_service, status, outage):
    assert (probe_token_service(token_service(status), 5) is not None) is outage


def test_a_token_service_that_is_not_asked_in_time_says_nothing(token_service):
    assert probe_token_service(token_service(401), 0.0) is None


def test_a_secret_in_the_url_of_a_token_service_is_not_shown(token_service):
    config, name = token_service(401), "sasl.oauthbearer.token.endpoint.url"
    of_user = config | {name: config[name].replace("//", "//airflow:hunter2@")}
    assert probe_token_service(of_user, 5) is None
    assert "hunter2" not in str(probe_token_service(config | {name: config[name] + "?s=hunter2 x"}, 5))


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/token", "http://", "http://a..b/", "http://a b/"])
def test_an_address_without_a_token_service_gives_no_token(token_service, address):
    config = token_service(503) | {"sasl.oauthbearer.token.endpoint.url": address}
    assert "does not answer" in str(probe_token_service(config, 5))


def test_no_token_service_is_asked_for_another_login(token_service):
    for other in (
        {"sasl.mechanisms": "PLAIN"},
        {"security.protocol": "SSL"},
        {"sasl.oauthbearer.method": "default"},
        {"oauth_cb": lambda _: ("token", 0.0)},
    ):
        assert probe_token_service(token_service(503) | other, 5) is None


@BY_TOKEN
def test_a_slow_token_service_is_waited_for_until_the_deadline(token_service, ask):
    with OffsetsClient(token_service(200, b"{}", 4), timeout=3) as client:
        start = time.monotonic()
        with pytest.raises(TokenUnavailableError, match="does not answer: timed out.: try again$"):
            ask(client)
        assert 2.5 < time.monotonic() - start < 3 + GRACE


@BY_TOKEN
def test_settings_that_a_token_service_refuses_are_to_be_corrected(token_service, ask):
    with (
        OffsetsClient(token_service(401, b'{"error":"invalid_client"}'), timeout=20) as client,
        pytest.raises(BrokerAuthenticationError, match=r"invalid_client.*correct sasl\.oauthbearer\.\*"),
    ):
        ask(client)


def test_each_connection_asks_once_for_a_token():
    asked = []

    def oauth_cb(_):
        asked.append(1)
        return "token", time.time() + 600

    login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER", "oauth_cb": oauth_cb}
    config = {"bootstrap.servers": "127.0.0.1:1", **login}
    with OffsetsClient(config, timeout=2) as client, pytest.raises(BrokerUnavailableError):
        client.partitions()
    assert len(asked) == 2  # two connections


def test_closing_does_not_wait_for_a_call_that_is_under_way(monkeypatch):
    monkeypatch.setattr(session, "_CLOSE", 0.5)
    client = OffsetsClient({"bootstrap.servers": f"{LOOPBACK}:{free_port()}"}, timeout=2)
    outcome = []

    def ask():
        try:
            client.partitions()
        except BrokerError as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    client.close()
    assert not outcome
    thread.join(20)
    assert [type(error) for error in outcome] == [BrokerUnavailableError]


def test_all_calls_of_a_client_together_end_in_time_if_they_are_to():
    with OffsetsClient({"bootstrap.servers": f"{LOOPBACK}:{free_port()}"}, timeout=1, total=1.5) as hasty:
        start = time.monotonic()
        for said in ("within 1 s", r"within 0\.\d s", "have used up the 1.5 s for all calls together"):
            with pytest.raises(BrokerUnavailableError, match=said):
                hasty.partitions(["orders"])
        assert time.monotonic() - start < 1.5 + GRACE
