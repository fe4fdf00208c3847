import time
from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    GroupActiveError,
    TokenUnavailableError,
    UnknownTopicPartitionError,
)
from airflow_kafka_offsets.kafka.explain import Call
from airflow_kafka_offsets.kafka.failures import (
    ACTIVE_GROUP,
    NO_TOKEN,
    NOTHING_WRITTEN,
    RETRIABLE,
    UNCERTAIN,
    UNKNOWN_PARTITION,
    BackgroundErrors,
    CallError,
    Failure,
)
from airflow_kafka_offsets.kafka.retry import retry_until


def test_each_name_is_one_that_the_client_uses():
    names = RETRIABLE | UNKNOWN_PARTITION | ACTIVE_GROUP | UNCERTAIN | NOTHING_WRITTEN
    assert {KafkaError(getattr(KafkaError, name)).name() for name in names} == names


@pytest.mark.parametrize(
    ("code", "kind", "retriable"),
    [
        ("_TRANSPORT", BrokerUnavailableError, True),
        ("NOT_COORDINATOR", BrokerUnavailableError, True),
        ("LEADER_NOT_AVAILABLE", BrokerUnavailableError, True),
        ("_AUTHENTICATION", BrokerAuthenticationError, False),
        ("_SSL", BrokerAuthenticationError, False),
        ("GROUP_AUTHORIZATION_FAILED", BrokerAuthenticationError, False),
        ("UNKNOWN_MEMBER_ID", GroupActiveError, False),
        ("UNKNOWN_TOPIC_OR_PART", UnknownTopicPartitionError, False),
        ("INVALID_GROUP_ID", BrokerError, False),
    ],
)
def test_each_kind_of_error_is_told_apart_and_says_who_was_asked(code, kind, retriable):
    error = Call("reading", "kafka-1:9092", 30).explain(Failure(code, "said so"))
    assert type(error) is kind
    assert error.code == code
    assert error.retriable is retriable
    assert "kafka-1:9092" in str(error) or kind is GroupActiveError


def test_the_cause_from_the_background_is_the_error():
    background_errors = BackgroundErrors(lambda text: text.replace("hunter2", "***"))
    background_errors.add_failures([Failure("_AUTHENTICATION", "SASL authentication error: hunter2")])
    error = Call("reading", "kafka-1:9092", 30).explain(
        Failure("_TRANSPORT", "Broker transport failure"), background_errors=background_errors
    )
    assert isinstance(error, BrokerAuthenticationError)
    assert "SASL authentication error: ***" in str(error)
    assert "sasl.password" in str(error)


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("_AUTHENTICATION", "SASL authentication error: invalid credentials", "_AUTHENTICATION"),
        (
            "_AUTHENTICATION",
            "SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism",
            "_AUTHENTICATION",
        ),
        (
            "_AUTHENTICATION",
            "SASL PLAIN mechanism handshake failed: Local: Broker transport failure",
            "_TRANSPORT",
        ),
        ("_AUTHENTICATION", "SASL PLAIN mechanism handshake failed: Local: Timed out", "_TRANSPORT"),
        *(
            ("_AUTHENTICATION", f"Failed to acquire SASL OAUTHBEARER token: {text}", code)
            for text, code in (
                ("OAuth callback raised exception", NO_TOKEN),
                ("Failed to connect to 127.0.0.1:9 after 0 ms: Could not connect to server", NO_TOKEN),
                ("OpenSSL SSL_connect: Connection reset by peer in connection to login:443 ", NO_TOKEN),
                ("<html><title>503 Service Temporarily Unavailable</title></html>", NO_TOKEN),
                ('{"status":503,"error":"Service Unavailable"}', NO_TOKEN),
                ('{"error":"temporarily_unavailable"}', NO_TOKEN),
                ("Server did not provide an error string", NO_TOKEN),
                ("OpenSSL SSL_connect: SSL_ERROR_SSL in connection to login:443 ", "_AUTHENTICATION"),
                ("SSL certificate problem: self-signed certificate", "_AUTHENTICATION"),
                ("Failed to create JWT assertion", "_AUTHENTICATION"),
                ('{"error":"invalid_client"}', "_AUTHENTICATION"),
                ('{\n  "errorCode" : "unauthorized_client"\n}', "_AUTHENTICATION"),
                ('Expected JSON response with "access_token" field', "_AUTHENTICATION"),
            )
        ),
        (
            "_TRANSPORT",
            "Receive failed: ssl/tls alert bad certificate: SSL alert number 42 (after 3ms)",
            "_SSL",
        ),
        ("_TRANSPORT", "Receive failed: ssl/tls alert internal error: SSL alert number 80", "_TRANSPORT"),
    ],
)
def test_a_connection_that_was_lost_is_told_from_one_that_was_refused(name, text, code):
    assert Failure.from_error(KafkaError(getattr(KafkaError, name), text)).code == code


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        (
            "_AUTHENTICATION",
            "SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported "
            "mechanisms: SCRAM-SHA-512,OAUTHBEARER (after 3ms in state AUTH_HANDSHAKE)",
            "set sasl.mechanisms to SCRAM-SHA-512,OAUTHBEARER",
        ),
        (
            "_AUTHENTICATION",
            'SASL authentication error: {"status":"invalid_token"} (after 3ms in state AUTH_REQ)',
            "correct its source",
        ),
        (
            "_AUTHENTICATION",
            'Failed to acquire SASL OAUTHBEARER token: {"error":"invalid_client"}',
            "correct sasl.oauthbearer.*",
        ),
        ("_AUTHENTICATION", "SASL authentication error: invalid credentials", ""),
        ("_TRANSPORT", "Receive failed: SSL alert number 46 (after 3ms)", "or renew the certificate"),
    ],
)
def test_a_login_that_is_refused_for_another_reason_than_its_password_says_what_to_correct(
    name, text, remedy
):
    found = Failure.from_error(KafkaError(getattr(KafkaError, name), text)).remedy
    assert found.endswith(remedy) if name == "_TRANSPORT" or not remedy else remedy in found


def test_a_broker_that_was_looked_for_does_not_lack_a_token():
    """The token service was slower than the probe, and then the client, with its token, found no broker."""
    seen = BackgroundErrors()
    seen.add_failures([Failure(NO_TOKEN, "the token service does not answer: timed out")])
    call, failure = Call("asking", "broker:1", 1), Failure("_TIMED_OUT", "timed out")
    assert isinstance(call.explain(failure, background_errors=seen), TokenUnavailableError)
    seen.add_failures([Failure("_TRANSPORT", "Connect to ipv4#10.0.0.1:1 failed: Connection refused")])
    assert not isinstance(call.explain(failure, background_errors=seen), TokenUnavailableError)


def test_what_the_client_refuses_was_not_asked_of_a_broker():
    error = Call("describing group 'a'", "broker:1", 1).explain(
        Failure("_INVALID_ARG", "key values mismatch")
    )
    assert "the Kafka client refused (_INVALID_ARG: key values mismatch): correct the Kafka" in str(error)


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        *((seen, "_TRANSPORT") for seen in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_SSL", None)),
        *((None, code) for code in ("_TIMED_OUT", "_WAIT_COORD")),
    ],
)
def test_a_listener_is_asked_why_there_was_no_answer_before_it_is_tried_again(seen, code):
    asked: list[float] = []
    wrong = Failure("_AUTHENTICATION", "the listener is SASL_SSL", "set security.protocol=SASL_SSL")

    def probe(texts: Sequence[str], seconds: float) -> Failure:
        asked.append(seconds)
        return wrong

    background_errors = BackgroundErrors(find=probe)

    def lost(_: float) -> None:
        background_errors.add_failures(
            [Failure(seen, "Disconnected while requesting ApiVersion")] if seen else []
        )
        raise CallError(Failure(code, "no answer"))

    began = time.monotonic()
    with pytest.raises(CallError) as caught:
        retry_until(Call("reading", "kafka-1:9092", 30), lost, lambda: background_errors)
    assert time.monotonic() - began < 5
    assert len(asked) == 1
    error = Call("reading", "kafka-1:9092", 30).explain(
        caught.value.failure, background_errors=background_errors
    )
    assert not error.retriable
    assert "the listener is SASL_SSL: set security.protocol=SASL_SSL" in str(error)
