"""What does an error of Kafka or of its client mean, is it worth another try, and what can be done about it?"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    GroupActiveError,
    UnknownTopicPartitionError,
)
from airflow_kafka_offsets.model.text import printable

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

NO_LEADER = "LEADER_NOT_AVAILABLE"

TOPIC_HIDDEN = "TOPIC_AUTHORIZATION_FAILED"
"""Said of a topic that is named, and that the user may not describe, or that is not there."""

RETRIABLE = frozenset(
    {
        "_ALL_BROKERS_DOWN",
        "_DESTROY_BROKER",
        "_NODE_UPDATE",
        "_RESOLVE",
        "_RETRY",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_TRANSPORT",
        "_WAIT_CACHE",
        "_WAIT_COORD",
        "BROKER_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",
        NO_LEADER,
        "NETWORK_EXCEPTION",
        "NOT_CONTROLLER",
        "NOT_COORDINATOR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "REBOOTSTRAP_REQUIRED",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "STALE_BROKER_EPOCH",
        "THROTTLING_QUOTA_EXCEEDED",
        "UNKNOWN_LEADER_EPOCH",
        "UNSTABLE_OFFSET_COMMIT",
    }
)
"""Ours, because the client's own flag says no to a timeout, and it repeats hardly any refused commit."""

UNKNOWN_PARTITION = frozenset(
    {
        "_NOENT",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PART",
    }
)
"""Not there, or not there yet for a client that knows the topic from before."""

ACTIVE_GROUP = frozenset(
    {
        "FENCED_MEMBER_EPOCH",
        "ILLEGAL_GENERATION",
        "REBALANCE_IN_PROGRESS",
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
    }
)
"""How a broker says that only members of the group may commit now."""

OCCUPIED = "_WINDOW_COMMIT"
"""Only a window's commit is in the way: ours, not librdkafka's, and it passes."""

OF_WHOLE_GROUP = ACTIVE_GROUP | {
    "_WAIT_COORD",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "GROUP_AUTHORIZATION_FAILED",
    "GROUP_ID_NOT_FOUND",
    "INVALID_GROUP_ID",
    "NOT_COORDINATOR",
}
"""After these nothing of a commit was done."""

UNCERTAIN = frozenset(
    {"_DESTROY", "_DESTROY_BROKER", "_TIMED_OUT", "_TRANSPORT", "NETWORK_EXCEPTION", "REQUEST_TIMED_OUT"}
)
"""After these a commit may have been done: the request or only its answer was lost."""

_CREDENTIALS = frozenset(
    {"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE"}
)
Right = Literal["Describe", "Read", "Delete"]
"""What a call needs on a group or on topics: Describe to look, Read to commit and to fetch records."""

_GUARDED = {
    "GROUP_AUTHORIZATION_FAILED": "the group",
    "TOPIC_AUTHORIZATION_FAILED": "the topics",
    "CLUSTER_AUTHORIZATION_FAILED": "the cluster",
}
_INCLUDED = {
    "GROUP_AUTHORIZATION_FAILED": " (Read includes it, and is needed to commit)",
    "TOPIC_AUTHORIZATION_FAILED": " (Read includes it, and is needed to commit and for the times of records)",
}
_REMEDIES = {
    "_INVALID_ARG": "correct the Kafka configuration",
    "INVALID_COMMIT_OFFSET_SIZE": "raise max.message.bytes of __consumer_offsets, or shorten the metadata",
    "INVALID_GROUP_ID": "correct the name of the group",
    "OFFSET_METADATA_TOO_LARGE": "shorten the metadata (offset.metadata.max.bytes is 4096 by default)",
    "TOPIC_EXCEPTION": "correct the topic's name",
    "UNKNOWN": "the request may be too large: look into the broker's log",
    "UNSUPPORTED_VERSION": "the broker is too old for this call",
}
FINAL = _CREDENTIALS | _GUARDED.keys() | {"_SSL"}
"""Causes that waiting does not mend: seen once in the background, they end the call."""


_LOST_AT_LOGIN = "failed: Local: "
"""The client calls it an authentication error also when the connection was lost before the broker had judged."""
_CLIENT_REFUSED = re.compile(r"SSL alert number (42|43|44|45|46|48|116)\b")
"""How a broker says that it wants another certificate of the client: only after the handshake, in TLS 1.3."""
_CLIENT_CERTIFICATE = "the listener wants a certificate of the client that it trusts: set ssl.certificate.location and ssl.key.location"
_UNTOLD = frozenset({"_ALL_BROKERS_DOWN", "_SSL"})
"""Causes behind which there may be one that the client does not tell."""


class Failure(NamedTuple):
    """An error as plain values, so that it can come from another process."""

    code: str
    """Kafka's or librdkafka's name of it; librdkafka's own begin with an underscore."""
    text: str
    """What the client or the broker said."""
    remedy: str = ""
    """What helps, where more is known than the code says."""

    @classmethod
    def of(cls, error: KafkaError | KafkaException) -> Failure:
        """Take an error of the client, or the one inside its exception."""
        inner = error.args[0] if isinstance(error, Exception) and error.args else error
        name = getattr(inner, "name", None)
        # A broker, or whoever answers in its place, words some of its refusals itself.
        if not callable(name):
            return cls("_FAIL", printable(str(error)))
        code, text = name(), printable(inner.str())
        if code == "_AUTHENTICATION" and _LOST_AT_LOGIN in text:
            return cls("_TRANSPORT", text)
        if code == "_TRANSPORT" and _CLIENT_REFUSED.search(text):
            return cls("_SSL", text, _CLIENT_CERTIFICATE)
        return cls(code, text)

    def scrubbed(self, scrub: Callable[[str], str]) -> Failure:
        """Return it without credentials in its text."""
        return self._replace(text=scrub(self.text))

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class Failed(Exception):  # noqa: N818  # it does not leave this package
    """A call did not get its answer this time."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Causes:
    """
    What happened in the background while a call waited.

    :param scrub: takes credentials out of a text.
    :param find: looks for the cause that the client does not tell: is given what it said, and seconds.
    """

    def __init__(
        self,
        scrub: Callable[[str], str] = str,
        find: Callable[[Sequence[str], float], Failure | None] | None = None,
    ) -> None:
        self._scrub = scrub
        self._find = find
        self._seen: dict[tuple[str, str], Failure] = {}
        self._looked = False

    def note(self, error: KafkaError) -> None:
        """Keep an error; the newest one of each kind."""
        self.add([Failure.of(error)])

    def add(self, failures: Iterable[Failure]) -> None:
        """Keep what was seen by another client."""
        for failure in failures:
            kind = (failure.code, failure.remedy)
            self._seen.pop(kind, None)
            self._seen[kind] = failure.scrubbed(self._scrub)

    def look(self, timeout: float) -> None:
        """Look for the cause that the client does not tell, once; takes ``timeout`` seconds at most."""
        if self._find and not self._looked and any(failure.code in _UNTOLD for failure in self.seen):
            self._looked = True
            found = self._find([failure.text for failure in self.seen], timeout)
            self.add([found] if found else [])

    def clear(self) -> None:
        """Forget what belongs to earlier calls."""
        self._seen.clear()
        self._looked = False

    @property
    def seen(self) -> list[Failure]:
        """All of them, the newest last."""
        # A copy: a client that is being closed in the background may still add to it.
        return list(self._seen.values())

    @property
    def final(self) -> Failure | None:
        """A cause that waiting does not mend, the one that is best known."""
        final = [failure for failure in self.seen if failure.code in FINAL]
        return next((failure for failure in final if failure.remedy), final[0] if final else None)

    def __str__(self) -> str:
        # That all brokers are down says no more than the other causes.
        seen = self.seen
        telling = [failure for failure in seen if failure.code != "_ALL_BROKERS_DOWN"] or seen
        return "; ".join(failure.text for failure in telling)


class Deadline:
    """
    How much of the time for a call is left.

    :param timeout: seconds from now.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._end = time.monotonic() + timeout

    @property
    def left(self) -> float:
        """Seconds, never negative."""
        return max(0.0, self._end - time.monotonic())


def explain(
    what: str, failure: Failure, causes: Causes, servers: str, timeout: float, needs: Right = "Describe"
) -> BrokerError:
    """
    Return the error to raise for a call that failed.

    :param what: what was wanted, such as ``reading the offsets of group 'orders'``.
    :param failure: the last error of the call; its text has no credentials in it.
    :param causes: what was seen in the background.
    :param servers: the brokers that were asked.
    :param timeout: seconds that the call had.
    :param needs: the right that the call needs.
    """
    final = causes.final
    cause = final if final and (final.remedy or failure.code not in FINAL) else failure
    code = cause.code
    if cause.remedy:
        return BrokerAuthenticationError(f"{what}: {cause.text}: {cause.remedy}", code=code)
    if code in _CREDENTIALS:
        return BrokerAuthenticationError(
            f"{what}: the broker at {servers} refused the credentials ({cause.text}): correct user name, password "
            "and mechanism (sasl.username, sasl.password, sasl.mechanisms)",
            code=code,
        )
    if code == "_SSL":
        return BrokerAuthenticationError(
            f"{what}: TLS with {servers} failed ({cause.text}): correct ssl.ca.location, the client's certificate "
            "and key, or security.protocol",
            code=code,
        )
    if code in _GUARDED:
        return BrokerAuthenticationError(
            f"{what}: the broker at {servers} does not allow it to this user ({cause}): {remedy(code, needs)}",
            code=code,
        )
    if code in UNKNOWN_PARTITION:
        return UnknownTopicPartitionError(
            f"{what}: {failure.text} on {servers}: correct the topic, or the connection"
        )
    if code == OCCUPIED:
        return GroupActiveError(f"{what}: {occupied(timeout)}", code=code, retriable=True)
    if code in ACTIVE_GROUP:
        return GroupActiveError(
            f"{what}: the group has active members, and only they may commit ({code}): stop them first",
            code=code,
        )
    if code == NO_LEADER:
        return BrokerUnavailableError(
            f"{what}: {failure.text}; asked {servers} for {timeout:g} s; bring the broker that holds it back, then try again",
            code=code,
        )
    if code in RETRIABLE:
        said = f"{failure}; {seen}" if (seen := str(causes)) else str(failure)
        return BrokerUnavailableError(
            f"{what}: no usable answer from {servers} within {timeout:g} s ({said}): "
            f"check bootstrap.servers, that the broker runs, and security.protocol; then try again",
            code=code,
        )
    return BrokerError(f"{what}: {servers} refused ({failure}): {remedy(code)}", code=code)


def occupied(timeout: float) -> str:
    """Say that a window's commit was in the way all the time."""
    return (
        f"a window was being committed to the group for {timeout:g} s, or whoever did it has died: Kafka lets others in "
        "within 10 s; try again"
    )


def remedy(code: str, needs: Right = "Read") -> str:
    """
    Return what can be done about an error.

    :param needs: the right that the call needs, by default that of a commit.
    """
    if code in _GUARDED:
        right = "DescribeConfigs" if code == "CLUSTER_AUTHORIZATION_FAILED" else needs
        included = _INCLUDED.get(code, "") if right == "Describe" else ""
        return f"grant it {right} on {_GUARDED[code]}{included}"
    if code in UNKNOWN_PARTITION:
        return "correct the topic, or the connection"
    if code in RETRIABLE:
        return "try again"
    return _REMEDIES.get(code, "look into the broker's log")
