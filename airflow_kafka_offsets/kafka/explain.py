"""Turns failures of calls and commits into errors with cause and remedy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Literal

from airflow_kafka_offsets.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    CommitError,
    GroupActiveError,
    GroupMovedError,
    PlanRefusedError,
    TokenUnavailableError,
    UnknownTopicPartitionError,
)
from airflow_kafka_offsets.kafka.failures import (
    ACTIVE_GROUP,
    DENIED,
    FINAL,
    NO_LEADER,
    NO_TOKEN,
    NOT_SENT,
    OCCUPIED,
    RETRIABLE,
    UNKNOWN_PARTITION,
    BackgroundErrors,
    Deadline,
    Failure,
)
from airflow_kafka_offsets.kafka.groups import GroupMember
from airflow_kafka_offsets.model.offsets import TopicPartition, summarize
from airflow_kafka_offsets.model.text import join_first, plural

GROUP_MOVED = "GROUP_MOVED"
"""Error code of partitions that the check has refused after others were written."""

Right = Literal["Describe", "DescribeConfigs", "Read", "Delete"]
"""The right that a call needs on a group or topics: Describe to read, Read to commit or fetch records."""

_INCLUDED = {
    "GROUP_AUTHORIZATION_FAILED": (
        " (Read includes it, and is needed to commit; Delete includes it, and is needed to delete)"
    ),
    "TOPIC_AUTHORIZATION_FAILED": " (Read includes it, and is needed to commit and for the times of records)",
}
_REMEDIES = {
    "_INVALID_ARG": "correct the Kafka configuration",
    "GROUP_ID_NOT_FOUND": "a share group has this name, not a consumer group: name another group",
    "INVALID_COMMIT_OFFSET_SIZE": "raise max.message.bytes of __consumer_offsets, or shorten the metadata",
    "INVALID_GROUP_ID": "correct the name of the group",
    "INVALID_SESSION_TIMEOUT": (
        "a window's commit joins the group for a session of 10 s: lower the brokers' "
        "group.min.session.timeout.ms, or raise group.max.session.timeout.ms, to 10000"
    ),
    "OFFSET_METADATA_TOO_LARGE": "raise the brokers' offset.metadata.max.bytes to its default, 4096",
    "TOPIC_EXCEPTION": "correct the topic's name",
    "UNKNOWN": "the request may be too large: check the broker's log",
    "UNSUPPORTED_VERSION": "the broker is too old for this call",
}


class Call(Deadline):
    """
    A call of a client: its purpose, the brokers' addresses, and the time that is left.

    :param what: purpose for error texts, such as ``reading the offsets of group 'orders'``.
    """

    def __init__(self, what: str, servers: str, timeout: float) -> None:
        super().__init__(timeout)
        self.what = what
        self.servers = servers

    def with_text(self, what: str) -> Call:
        """Return the same call with another purpose text."""
        other = copy(self)
        other.what = what
        return other

    def with_timeout(self, seconds: float) -> Call:
        """Return the same call with at most ``seconds``."""
        # Never more than the whole call has left.
        return Call(self.what, self.servers, min(seconds, self.seconds_left))

    def explain(
        self, failure: Failure, needs: Right = "Describe", background_errors: BackgroundErrors | None = None
    ) -> BrokerError:
        """
        Return the error to raise for the call.

        :param failure: the last error of the call; its text contains no credentials.
        :param background_errors: the errors that the client reported in the background.
        """
        background_errors = background_errors or BackgroundErrors()
        final = background_errors.fatal
        # A call that runs out of time only says so; the background errors show, for example, a wrong
        # password.
        cause = final if final and (final.remedy or failure.code not in FINAL) else failure
        code = cause.code
        kind: type[BrokerError] = BrokerError
        # The client finds errors in its configuration before it asks a broker.
        who = "the Kafka client" if code == "_INVALID_ARG" else self.servers
        text = f"{who} refused ({failure}): {remedy_for(code)}"
        seen = (failure, *background_errors.failures)
        no_token = next((each for each in seen if each.code == NO_TOKEN), None)
        # The client connects to no broker before it has a token.
        looked_for = any(each.code == "_RESOLVE" or "Connect to " in each.text for each in seen)
        if no_token and (code == NO_TOKEN or (code in RETRIABLE and not looked_for)):
            kind = TokenUnavailableError
            remedy = no_token.remedy or "try again"
            text = f"no token to log in to {self.servers} with ({no_token.text}): {remedy}"
        elif code in FINAL or cause.remedy:
            kind, text = BrokerAuthenticationError, self._denial(cause, needs)
        elif code in UNKNOWN_PARTITION:
            found = f"{self.what}: {failure.text} on {self.servers}"
            return UnknownTopicPartitionError(f"{found}: {remedy_for(code)}")
        elif code == OCCUPIED:
            kind = GroupActiveError
            text = (
                f"a window was being committed to the group for {self.timeout:g} s, or the task that commits "
                "it has died: Kafka accepts other commits within 10 s; try again"
            )
        elif code in ACTIVE_GROUP:
            kind = GroupActiveError
            text = f"the group has active members, and only they may commit ({code}): stop them first"
        elif code == NO_LEADER:
            kind, asked = BrokerUnavailableError, f"asked {self.servers} for {self.timeout:g} s"
            text = f"{failure.text}; {asked}; restart a broker that holds the partition, then try again"
        elif code in RETRIABLE:
            kind = BrokerUnavailableError
            others = str(background_errors)
            causes = str(failure) if others in str(failure) else f"{failure}; {others}"
            text = (
                f"no usable answer from {self.servers} within {self.timeout:g} s "
                f"({causes}): check bootstrap.servers, that the broker runs and can be reached at the "
                "address that it advertises, and security.protocol; then try again"
            )
        return kind(f"{self.what}: {text}", code=code, retriable=True if code == OCCUPIED else None)

    def _denial(self, cause: Failure, needs: Right) -> str:
        if cause.remedy:
            return f"{cause.text}: {cause.remedy}"
        if cause.code in DENIED:
            right = remedy_for(cause.code, needs)
            return f"the broker at {self.servers} does not allow it to this user ({cause}): {right}"
        if cause.code == "_SSL":
            return (
                f"TLS with {self.servers} failed ({cause.text}): correct ssl.ca.location, the client's "
                "certificate and key, or security.protocol"
            )
        return (
            f"the broker at {self.servers} refused the credentials ({cause.text}): correct user name, "
            "password and mechanism (sasl.username, sasl.password, sasl.mechanisms)"
        )


def remedy_for(code: str, needs: Right = "Read") -> str:
    """Return the remedy for an error; ``needs`` is the right that the call needs."""
    if code in DENIED:
        right = "DescribeConfigs" if code == "CLUSTER_AUTHORIZATION_FAILED" else needs
        included = _INCLUDED.get(code, "") if right == "Describe" else ""
        return f"grant it {right} on {DENIED[code]}{included}"
    if code in UNKNOWN_PARTITION:
        return "correct the topic, or the connection"
    return "try again" if code in RETRIABLE else _REMEDIES.get(code, "check the broker's log")


def commit_error(
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    written: Sequence[TopicPartition],
    failures: Mapping[TopicPartition, Failure],
    explained: Callable[[Failure], BrokerError],
    *,
    uncertain: bool = False,
    retriable: bool = False,
    reason: BrokerError | None = None,
) -> BrokerError:
    """
    Return the error to raise for a commit that failed completely or in part.

    :param offsets: all offsets of the commit.
    :param written: the partitions that were committed.
    :param failures: partition -> why it was not committed.
    :param explained: returns the error for one failure.
    :param uncertain: whether offsets may be committed although there was no response.
    :param retriable: whether all failures are temporary.
    :param reason: the error that ended the attempts.
    """
    unsent = {tp: failure for tp, failure in failures.items() if failure == NOT_SENT}
    refused = {tp: failure for tp, failure in failures.items() if tp not in unsent}
    codes = sorted({failure.code for failure in refused.values()})
    first = next(iter(refused.values()))
    outcome = describe_outcome(offsets, written, uncertain=uncertain)
    if not ACTIVE_GROUP.isdisjoint(codes):
        return active_group_error(group_id, (), codes[0]).append(outcome)
    # No response came: the error that ended the attempts says more than the list of partitions, which are all
    # equally uncertain.
    if not written and retriable and uncertain and reason is not None:
        return reason.append(outcome)
    if not written and codes == [first.code] and first.code in FINAL:
        return explained(first).append(outcome)
    reasons = []
    for code in codes:
        # Grouped by code: 5,000 partitions usually fail for the same reason, and each would repeat it.
        those = {tp: failure for tp, failure in refused.items() if failure.code == code}
        reasons.append(f"{summarize(those)}: {next(iter(those.values()))}")
    if unsent:
        reasons.append(f"{summarize(unsent)}: {NOT_SENT.text}")
    return CommitError(
        f"committing to group {group_id!r}: {len(failures)} of {len(offsets)} partitions were not committed "
        f"({'; '.join(reasons)}): {'; '.join(dict.fromkeys(map(remedy_for, codes)))}; {outcome}",
        failed={tp: failure.code for tp, failure in {**refused, **unsent}.items()},
        written=written,
        retriable=retriable,
    )


def active_group_error(
    group_id: str, members: Sequence[GroupMember], code: str | None = None
) -> GroupActiveError:
    """Return the error for a group that has members."""
    number = f"{plural(len(members), 'active member')} ({join_first(members)})"
    found = number if members else "active members"
    return GroupActiveError(
        f"group {group_id!r} has {found}, and only they may commit: stop them and try again", code=code
    )


def rest_refused_error(
    call: Call,
    offsets: Mapping[TopicPartition, int],
    written: Collection[TopicPartition],
    refusal: GroupMovedError | PlanRefusedError,
    *,
    uncertain: bool,
    retriable: bool,
) -> CommitError:
    """Return the error of a commit that was refused after some of its partitions were, or may be, written."""
    why = refusal.refusals if isinstance(refusal, PlanRefusedError) else (str(refusal),)
    outcome = describe_outcome(offsets, written, uncertain=uncertain)
    return CommitError(
        f"{call.what}: {outcome}; the rest was refused: {'; '.join(why)}",
        failed={tp: GROUP_MOVED for tp in sorted(offsets) if tp not in written},
        written=sorted(written),
        retriable=retriable,
    )


def describe_outcome(
    offsets: Mapping[TopicPartition, int], written: Collection[TopicPartition], *, uncertain: bool
) -> str:
    """Say which of a commit's partitions were written."""
    known = f"{len(written)} of {len(offsets)} partitions were written ({summarize(written)})"
    if not uncertain:
        return known if written else "nothing was written"
    unknown = "it is not known whether"
    rest = f"{known}, and {unknown} the rest was" if written else f"{unknown} it was written"
    return f"{rest}; committing the same offsets again is safe"
