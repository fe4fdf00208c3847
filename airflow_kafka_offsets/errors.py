"""
The errors of this package, as one hierarchy.

Every error text names the value that was found, the expected value and the remedy, in this order. It never
contains a credential::

    KafkaOffsetsError
    ├── OffsetsFormatError            not Spark's offsets JSON, Kafka's CSV or a store's row (a ValueError)
    ├── UsageError                    parameters that contradict each other or are missing (a ValueError)
    ├── SetupError                    this machine lacks Java, a jar, a free port or a package
    ├── StorageError                  no driver, credentials, right or directory, or not a small text file
    │   └── StorageUnavailableError   the storage did not answer, or files were removed meanwhile (retriable)
    ├── CheckpointError
    │   ├── CheckpointNotFoundError   no such directory, or no checkpoint in it
    │   ├── CheckpointFormatError     a file is cut off, not JSON, or of an unknown version
    │   └── CheckpointMovedError      another process moved the checkpoint while it was used (retriable)
    ├── GroupMovedError               another process moved a group between read and write (retriable)
    ├── WindowReadError               a window's log is another one, or some of its records do not exist
    ├── AuditError                    a table lacks or repeats records of a window, or could not be checked
    ├── NoCommitError                 a lag is undefined: the group has no committed offset there
    ├── PlanRefusedError              a plan was refused before its first write
    │   ├── MisnamedError             names match nothing (also a UsageError)
    │   ├── MoveUnfinishedError       a move of the checkpoint is running, or stopped half-way (retriable)
    │   └── WindowMismatchError       a group or store is neither at a window's start nor at its end
    ├── DriftError                    groups are not where their checkpoints are, or could not be checked
    └── BrokerError                   the broker or the client refused
        ├── BrokerUnavailableError    not reachable, or no answer within the deadline (retriable)
        │   └── TokenUnavailableError no token to log in with (retriable)
        ├── BrokerAuthenticationError wrong password, certificate, security.protocol or permission
        ├── UnknownTopicPartitionError
        ├── GroupActiveError          the group has members, and only members may commit
        ├── CommitError               some partitions were refused; names the written ones
        └── ClientCrashedError        the admin process died before it answered (retriable)

``retriable`` tells whether the same call may succeed later without a change. Airflow's retries are for these
errors. The other errors occur again until the remedy in their text is applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing import Self

Partition = tuple[str, int]
"""Topic and partition number, like :class:`~airflow_kafka_offsets.model.offsets.TopicPartition`."""

P = TypeVar("P", bound=Partition)


class CommitProgress(NamedTuple):
    """The progress of a commit of several groups before an error."""

    failed: str
    """The group whose commit failed; some of its partitions may be written."""
    written: tuple[str, ...]
    """Groups that were committed and read back; all others were not written."""


class KafkaOffsetsError(Exception):
    """
    Base of every error that this package raises.

    :param retriable: whether the same call may succeed later without a change; by default the class decides.
    """

    retriable = False
    progress: CommitProgress | None = None
    """The progress of a commit; ``None`` for other errors, and if unknown."""

    def __init__(self, message: str, *, retriable: bool | None = None) -> None:
        super().__init__(message)
        if retriable is not None:
            self.retriable = retriable

    @classmethod
    def raise_if(cls, refusals: Sequence[str]) -> None:
        """Raise this error with these reasons, if there are any."""
        if refusals:
            raise cls("; ".join(refusals))

    def append(self, outcome: str) -> Self:
        """Append a sentence about the completed writes to the text; return the error."""
        self.args = (f"{self}; {outcome}", *self.args[1:])
        return self


class OffsetsFormatError(KafkaOffsetsError, ValueError):
    """A text is not Spark's JSON or Kafka's CSV, or a store's row has no offset."""


class UsageError(KafkaOffsetsError, ValueError):
    """
    Parameters are missing, contradict each other, or have an unknown value.

    :param parameter: name of the parameter, if the error is about the value of a parameter.
    """

    def __init__(self, message: str, *, parameter: str | None = None, retriable: bool | None = None) -> None:
        super().__init__(message, retriable=retriable)
        self.parameter = parameter


class SetupError(KafkaOffsetsError):
    """A tool, port or package is missing on this machine, or has the wrong version."""


class StorageError(KafkaOffsetsError):
    """A storage refused a request, has no driver, or has no readable file at the path."""


class StorageUnavailableError(StorageError):
    """The storage did not answer, or a running query removed files while they were read."""

    retriable = True


class CheckpointError(KafkaOffsetsError):
    """A Spark checkpoint cannot be used."""


class CheckpointNotFoundError(CheckpointError):
    """There is no checkpoint at the location."""


class CheckpointFormatError(CheckpointError):
    """A file of the checkpoint has an unknown format."""


class CheckpointMovedError(CheckpointError):
    """Another process moved the checkpoint while it was used."""

    retriable = True


class GroupMovedError(KafkaOffsetsError):
    """Another process moved a group between the read of its offsets and the commit."""

    retriable = True


class NoCommitError(KafkaOffsetsError):
    """A group has no committed offset, but one is required."""


_UNCHANGED = "nothing was changed: "


class PlanRefusedError(KafkaOffsetsError):
    """
    A plan was refused; nothing was written, except what :attr:`progress` names.

    :param refusals: one or more sentences, each with the value that was found, the expected value and the
        remedy.
    :param retriable: whether a retry may succeed.
    """

    def __init__(self, refusals: str | Sequence[str], *, retriable: bool = False) -> None:
        self.refusals = (refusals,) if isinstance(refusals, str) else tuple(refusals)
        one = len(self.refusals) == 1
        found = self.refusals[0] if one else "".join(f"\n  - {refusal}" for refusal in self.refusals)
        super().__init__(f"{_UNCHANGED}{found}", retriable=retriable)

    @classmethod
    def raise_if(cls, refusals: Sequence[str]) -> None:
        """Raise this error with these reasons, if there are any."""
        if refusals:
            raise cls(refusals)

    def append(self, outcome: str) -> Self:
        """Append a sentence about the completed writes: it is not true then that nothing was changed."""
        self.args = (str(self).removeprefix(_UNCHANGED), *self.args[1:])
        return super().append(outcome)


class MisnamedError(PlanRefusedError, UsageError):
    """Names of groups or topics match no partition of the move."""


class MoveUnfinishedError(PlanRefusedError):
    """A move of the checkpoint is running, or stopped half-way."""


class WindowMismatchError(PlanRefusedError):
    """
    The stored offsets are neither at the start nor at the end of the ranges to commit.

    :param where: the group or store, such as ``group 'orders'``.
    :param found: partition -> the stored offset (``None`` for no offset), the expected offset, and the
        range's end.
    :param movers: partition -> the origin of its commit, as far as known; ``None`` for a store instead of a
        group.
    """

    def __init__(
        self,
        where: str,
        found: Mapping[P, tuple[int | None, int | None, int]],
        movers: Mapping[P, str] | None = None,
    ) -> None:
        self.found: dict[Partition, tuple[int | None, int | None, int]] = dict(found.items())
        self.differences = "; ".join(
            f"{tp}: found {_offset_text(stored)}, the range goes from {_offset_text(start)} to {end}"
            for tp, (stored, start, end) in sorted(found.items())
        )
        reasons = []
        gone = [tp for tp, (stored, start, _) in found.items() if stored is None and start is not None]
        if movers is not None and gone:
            reasons.append(
                f"{len(gone)} of the commits no longer exist: Kafka deletes the offsets of a group without "
                "members offsets.retention.minutes after its last commit, and a topic's commits when the "
                "topic is deleted"
            )
        if movers:
            reasons.append(f"Moved by {', '.join(sorted(set(movers.values())))}")
        elif movers is None or len(gone) < len(found):
            reasons.append("Another run or tool has moved the offsets, or the ranges are old")
        reasons.append(
            "Continue from the stored offsets: ranges that were planned earlier are no longer valid"
            if movers is None
            else "To continue from the group's current offsets, trigger a new run with start='committed': "
            "clearing the plan of this run gives the same ranges again"
        )
        super().__init__(
            f"{where} is neither at the start nor at the end of these ranges: {self.differences}. "
            f"{'. '.join(reasons)}"
        )


def _offset_text(offset: int | None) -> str:
    return "nothing" if offset is None else str(offset)


class WindowReadError(KafkaOffsetsError):
    """Records of an offset window are deleted or not yet in the log, or the log is another one."""


class AuditError(KafkaOffsetsError):
    """
    A table does not have each record of an offset window exactly once, or could not be checked.

    :param retriable: whether a later audit may succeed: the table changed while it was read, the database did
        not answer, or Kafka could not be read yet.
    """


class DriftError(KafkaOffsetsError):
    """
    Groups are not where their checkpoints are, could not be checked, or were committed on another cluster.

    :param retriable: whether a retry may remove all causes, such as a broker that did not answer.
    """


class BrokerError(KafkaOffsetsError):
    """
    The broker or the client refused.

    :param code: Kafka's name of the error, such as ``NOT_COORDINATOR``; ``None`` for an error without a name.
    """

    def __init__(self, message: str, *, code: str | None = None, retriable: bool | None = None) -> None:
        super().__init__(message, retriable=retriable)
        self.code = code


class BrokerUnavailableError(BrokerError):
    """The broker could not be reached, or did not answer within the deadline."""

    retriable = True


class TokenUnavailableError(BrokerUnavailableError):
    """There was no token to log in with, which says nothing about the broker."""


class BrokerAuthenticationError(BrokerError):
    """The broker refused the credentials, the certificate was refused, or an ACL is missing."""


class UnknownTopicPartitionError(BrokerError):
    """Topics or partitions do not exist on the broker; ``missing`` has the partitions."""

    def __init__(self, message: str, *, missing: Sequence[Partition] = ()) -> None:
        super().__init__(message, code="UNKNOWN_TOPIC_OR_PART")
        self.missing = tuple(missing)


class GroupActiveError(BrokerError):
    """
    The group has members, so only they may commit its offsets.

    :param retriable: whether the members will leave soon, such as a member that commits a window.
    """


class CommitError(BrokerError):
    """
    A commit was refused for all or some partitions.

    :param failed: partition -> the broker's name of the error, or one of this package, such as
        ``GROUP_MOVED`` if another process has moved the rest of a group that was written in part.
    :param written: partitions that were committed before the failure.
    :param retriable: whether all failed partitions may succeed later.
    """

    def __init__(
        self,
        message: str,
        *,
        failed: Mapping[P, str],
        written: Sequence[Partition] = (),
        retriable: bool = False,
    ) -> None:
        super().__init__(message, code=next(iter(failed.values()), None), retriable=retriable)
        self.failed: dict[Partition, str] = dict(failed.items())
        self.written = tuple(written)


class ClientCrashedError(BrokerError):
    """The admin process died before it answered."""

    retriable = True
