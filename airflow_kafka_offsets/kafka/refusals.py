"""What was committed, what was not, and why?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from airflow_kafka_offsets.errors import BrokerError, CommitError, GroupActiveError
from airflow_kafka_offsets.kafka.commits import CommitProgress
from airflow_kafka_offsets.kafka.failures import ACTIVE_GROUP, FINAL, OCCUPIED, Failure, remedy
from airflow_kafka_offsets.kafka.groups import GroupMember, name_members
from airflow_kafka_offsets.model.offsets import TopicPartition, summarize


def not_committed(
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    written: Sequence[TopicPartition],
    progress: CommitProgress,
    members: Callable[[], Sequence[GroupMember]],
    explained: Callable[[Failure], BrokerError],
) -> BrokerError:
    """
    Return the error to raise for a commit that was not done, or not wholly.

    :param offsets: all that was to be committed.
    :param written: those that were.
    :param progress: the part of it that failed.
    :param members: looks up who is in the group.
    :param explained: returns the error for one failure.
    """
    failures = progress.failures
    codes = sorted({failure.code for failure in failures.values()})
    outcome = _outcome(offsets, written, uncertain=progress.uncertain)
    if OCCUPIED in codes:
        return and_then(explained(failures[next(iter(failures))]), outcome)
    if not ACTIVE_GROUP.isdisjoint(codes):
        return GroupActiveError(f"{_active(group_id, members())}; {outcome}", code=codes[0])
    if not written and not progress.refused and progress.uncertain and progress.reason is not None:
        return and_then(progress.reason, outcome)
    first = next(iter(failures.values()))
    if not written and codes == [first.code] and first.code in FINAL:
        return and_then(explained(first), outcome)
    remedies = "; ".join(dict.fromkeys(remedy(code) for code in codes))
    return CommitError(
        f"committing to group {group_id!r}: {len(failures)} of {len(offsets)} partitions were not committed "
        f"({_reasons(failures, codes)}): {remedies}; {outcome}",
        failed={tp: failure.code for tp, failure in failures.items()},
        written=written,
        retriable=not progress.refused,
    )


def and_then(error: BrokerError, outcome: str) -> BrokerError:
    """Return the error with a few words more."""
    error.args = (f"{error}; {outcome}", *error.args[1:])
    return error


def _active(group_id: str, members: Sequence[GroupMember]) -> str:
    number = f"{len(members)} active member{'' if len(members) == 1 else 's'} ({name_members(members)})"
    found = number if members else "active members"
    return f"group {group_id!r} has {found}, and only they may commit: stop them and try again"


def _reasons(failures: Mapping[TopicPartition, Failure], codes: Collection[str]) -> str:
    reasons = []
    for code in codes:
        those = {tp: failure for tp, failure in failures.items() if failure.code == code}
        reasons.append(f"{summarize(those)}: {next(iter(those.values()))}")
    return "; ".join(reasons)


def _outcome(
    offsets: Mapping[TopicPartition, int], written: Sequence[TopicPartition], *, uncertain: bool
) -> str:
    known = (
        f"{len(written)} of {len(offsets)} partitions were written ({summarize(written)})" if written else ""
    )
    if uncertain:
        rest = (
            f"{known}, and it is not known whether the rest was"
            if known
            else "it is not known whether it was written"
        )
        return f"{rest}; committing the same again is safe"
    return known or "nothing was written"
