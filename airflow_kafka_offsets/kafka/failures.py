"""Errors of Kafka and its client as values: their codes and causes; deadlines of calls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.model.text import escape_controls

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException


def _codes(*names: str) -> frozenset[str]:
    return frozenset(" ".join(names).split())


NO_LEADER = "LEADER_NOT_AVAILABLE"
NOT_READY = "REPLICA_NOT_AVAILABLE"
"""Kafka's code for a broker that does not know a partition yet."""

TOPIC_HIDDEN = "TOPIC_AUTHORIZATION_FAILED"
"""The code for a topic that the user may not describe, or that does not exist."""

RETRIABLE = _codes(
    "_ALL_BROKERS_DOWN _DESTROY_BROKER _NODE_UPDATE _PARTIAL _RESOLVE _RETRY _TIMED_OUT _TIMED_OUT_QUEUE",
    "_TRANSPORT _WAIT_CACHE _WAIT_COORD BROKER_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE FENCED_LEADER_EPOCH KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION NOT_CONTROLLER NOT_COORDINATOR NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION OFFSET_NOT_AVAILABLE",
    "PREFERRED_LEADER_NOT_AVAILABLE REBOOTSTRAP_REQUIRED REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT",
    "STALE_BROKER_EPOCH THROTTLING_QUOTA_EXCEEDED UNKNOWN_LEADER_EPOCH UNSTABLE_OFFSET_COMMIT",
)
"""A separate list: ``KafkaError.retriable()`` is false for timeouts and most errors of a refused commit."""

UNKNOWN_PARTITION = _codes("_NOENT _UNKNOWN_PARTITION _UNKNOWN_TOPIC UNKNOWN_TOPIC_ID UNKNOWN_TOPIC_OR_PART")
"""The partition does not exist, or a client that knows the topic from before does not know it yet."""

TEMPORARY = RETRIABLE | UNKNOWN_PARTITION
"""Errors of one attempt: for a moment a broker may not know a new topic or partition."""

ACTIVE_GROUP = _codes(
    "FENCED_MEMBER_EPOCH ILLEGAL_GENERATION REBALANCE_IN_PROGRESS STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"
)
"""Only members of the group may commit."""

OCCUPIED = "_WINDOW_COMMIT"
"""A window's commit occupies the group for a short time. librdkafka does not have this code."""

NO_TOKEN = "_NO_TOKEN"  # noqa: S105  # a code
"""The token service gives no token, so no broker was asked. librdkafka does not have this code."""

NOTHING_WRITTEN = ACTIVE_GROUP | _codes(
    "_WAIT_COORD COORDINATOR_LOAD_IN_PROGRESS GROUP_AUTHORIZATION_FAILED GROUP_ID_NOT_FOUND INVALID_GROUP_ID"
)
"""After these errors no part of a commit was done."""

UNCERTAIN = _codes(
    "_DESTROY _DESTROY_BROKER _TIMED_OUT _TRANSPORT COORDINATOR_NOT_AVAILABLE NETWORK_EXCEPTION",
    "NOT_COORDINATOR REQUEST_TIMED_OUT",
)
"""
After these errors a commit may have been done: the request or only its response was lost, or the coordinator
has written the commit, but its replicas did not confirm it in time. Kafka shows the commit once they do.
"""

DENIED = {
    "GROUP_AUTHORIZATION_FAILED": "the group",
    "TOPIC_AUTHORIZATION_FAILED": "the topics",
    "CLUSTER_AUTHORIZATION_FAILED": "the cluster",
}
"""Error codes of a missing right -> what it applies to."""

FINAL = DENIED.keys() | _codes(
    "_AUTHENTICATION _SSL ILLEGAL_SASL_STATE SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM"
)
"""Errors that waiting does not fix: if one is reported in the background, the call ends."""

_LOST_AT_LOGIN = "failed: Local: "
"""The client also reports an authentication error if the connection is lost before a response."""
_NO_LOGIN = "Failed to acquire SASL OAUTHBEARER token: "
_TOKEN_REFUSED = re.compile(
    r'"error(Code)?"\s*:\s*"(invalid_|unauthorized_|unsupported_|access_denied)'
    "|Expected JSON|Failed to (build|create)|certificate|SSL_ERROR_SSL|SSL routines"
)
"""
Refusals of the token service (RFC 6749, section 5.2), and errors in its settings. In an outage librdkafka
quotes whatever the service or the proxy before it sends, but not the HTTP status.
"""
_LOGIN_SETTINGS = "correct sasl.oauthbearer.*, or https.ca.location if the service's certificate is refused"
_CLIENT_REFUSED = re.compile(r"SSL alert number (42|43|44|45|46|48|116)\b")
"""The broker requires another client certificate; with TLS 1.3 it says so only after the handshake."""
_CLIENT_CERTIFICATE = (
    "the listener requires a client certificate that it trusts and that has not expired: set "
    "ssl.certificate.location and ssl.key.location, or renew the certificate"
)
_MECHANISMS = re.compile(r"broker's supported mechanisms: ([\w, -]+?)(?= \(|$)")
_TOKEN_ANSWER = re.compile(r"""\{["']status["']:""")
"""The broker answers a refused token with JSON (RFC 7628)."""
_OTHER_LOGIN = (
    "the broker does not accept the token: correct its source (oauth_cb, or sasl.oauthbearer.*), or this "
    "machine's clock if the token has expired"
)
_UNEXPLAINED = frozenset({"_ALL_BROKERS_DOWN", "_SSL", "_TIMED_OUT", "_TRANSPORT", "_WAIT_COORD"})
"""
Codes that may hide another cause, which the client does not report. With several brokers, the client never
reports that all are down if it tries each one again before the last one has failed; a call that waits for a
coordinator then only times out.
"""


class Failure(NamedTuple):
    """An error as plain values, so that it can be sent between processes."""

    code: str
    """Kafka's or librdkafka's name of the error; librdkafka's own names begin with an underscore."""
    text: str
    """The client's or the broker's text."""
    remedy: str = ""
    """What to do, if more is known than the code says. A background error with a remedy ends the call."""

    @classmethod
    def from_error(cls, error: KafkaError | KafkaException) -> Failure:
        """Create a failure from an error of the client, or from the error inside its exception."""
        inner = error.args[0] if isinstance(error, Exception) and error.args else error
        name = getattr(inner, "name", None)
        # A broker, or another server at its address, may send its own text.
        if not callable(name):
            return cls("_FAIL", escape_controls(str(error)))
        code, text = name(), escape_controls(inner.str())
        if code == "_AUTHENTICATION" and text.startswith(_NO_LOGIN):
            return cls(code, text, _LOGIN_SETTINGS) if _TOKEN_REFUSED.search(text) else cls(NO_TOKEN, text)
        if code == "_AUTHENTICATION" and _LOST_AT_LOGIN in text:
            return cls("_TRANSPORT", text)
        if code == "_TRANSPORT" and _CLIENT_REFUSED.search(text):
            return cls("_SSL", text, _CLIENT_CERTIFICATE)
        if code == "_AUTHENTICATION" and (offered := _MECHANISMS.search(text)):
            return cls(code, text, f"the listener uses another login: set sasl.mechanisms to {offered[1]}")
        if code == "_AUTHENTICATION" and _TOKEN_ANSWER.search(text):
            return cls(code, text, _OTHER_LOGIN)
        return cls(code, text)

    def about(self, what: object) -> Failure:
        """Return the failure with a topic or partition before its text."""
        return self._replace(text=f"{what}: {self.text}")

    def scrub(self, scrub: Callable[[str], str]) -> Failure:
        """Return the failure without credentials in its text."""
        return self._replace(text=scrub(self.text))

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


UNANSWERED = Failure("_TIMED_OUT", "no answer for this partition")
NOT_SENT = Failure("NOT_SENT", "not sent after that")
"""Of partitions whose request was not sent, because an earlier request of the same commit was refused."""


class CallError(Exception):  # never raised outside of this package
    """One attempt of a call failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class BackgroundErrors:
    """
    The errors that the client reported in the background while a call waited.

    :param find: looks for a cause that the client does not report; takes the client's texts, and seconds.
    """

    def __init__(
        self,
        scrub: Callable[[str], str] = str,
        find: Callable[[Sequence[str], float], Failure | None] | None = None,
    ) -> None:
        self._scrub = scrub
        self._find = find
        self._seen: dict[tuple[str, str], Failure] = {}
        self._searched = False

    def add_error(self, error: KafkaError) -> None:
        """Add an error; keep the newest one of each kind."""
        self.add_failures([Failure.from_error(error)])

    def add_failures(self, failures: Iterable[Failure]) -> None:
        """Add failures that another client has reported."""
        for failure in failures:
            kind = (failure.code, failure.remedy)
            self._seen.pop(kind, None)
            self._seen[kind] = failure.scrub(self._scrub)

    def probe(self, failed: Failure, timeout: float) -> None:
        """
        Look once for a cause that the client does not report; take ``timeout`` seconds at most.

        :param failed: the failure of the call, which may not be among the background errors.
        """
        unexplained = any(failure.code in _UNEXPLAINED for failure in (failed, *self.failures))
        if self._find and not self._searched and unexplained:
            self._searched = True
            found = self._find([failure.text for failure in self.failures], timeout)
            self.add_failures([found] if found else [])

    def clear(self) -> None:
        """Remove the errors of earlier calls."""
        self._seen.clear()
        self._searched = False

    @property
    def failures(self) -> list[Failure]:
        """All failures, the newest last."""
        # A copy: a client that closes in the background may still add errors.
        return list(self._seen.values())

    @property
    def fatal(self) -> Failure | None:
        """A cause that ends the call; a cause with a remedy comes first."""
        final = [failure for failure in self.failures if failure.code in FINAL or failure.remedy]
        return next((failure for failure in final if failure.remedy), final[0] if final else None)

    def __str__(self) -> str:
        # "All brokers are down" adds nothing to the other causes.
        seen = self.failures
        telling = [failure for failure in seen if failure.code != "_ALL_BROKERS_DOWN"] or seen
        return "; ".join(failure.text for failure in telling)


class Deadline:
    """The time left for a call."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._end = time.monotonic() + timeout

    @property
    def seconds_left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())
