"""
Which things can go wrong, and which of them are worth another try?

Every error of this package is a :class:`KafkaOffsetsError`. Its text says what was found, what was
expected and what to do, in that order, and never holds a credential::

    KafkaOffsetsError
    ├── OffsetsFormatError            text that is not Spark's offsets JSON or Kafka's CSV, a store's row (a ValueError)
    ├── UsageError                    parameters that contradict each other or are missing (a ValueError)
    ├── SetupError                    this machine lacks something: Java, a jar, a free port, a package
    ├── CheckpointError
    │   ├── CheckpointNotFoundError   no such directory, or nothing of a checkpoint in it
    │   ├── CheckpointFormatError     a file is cut off, not JSON, or of a version that is not known
    │   ├── CheckpointUnavailableError the storage did not answer, or files went while they were read (retriable)
    │   └── CheckpointMovedError      somebody moved the checkpoint while it was used (retriable)
    ├── WindowReadError               records of a window are gone from the log, or not in it yet
    ├── NoCommitError                 a lag is undefined: the group has no committed offset there
    ├── PlanRefusedError              a plan was refused before its first write
    │   ├── MoveUnfinishedError       a move of the checkpoint is under way, or has stopped half-way (retriable)
    │   └── WindowMismatchError       a group or store is neither at a window's start nor at its end
    ├── DriftError                    groups are not where their checkpoints are, or could not be checked
    └── BrokerError                   the broker or the client said no
        ├── BrokerUnavailableError    not reachable, or no answer within the deadline (retriable)
        ├── BrokerAuthenticationError wrong password, certificate, security.protocol or permission
        ├── UnknownTopicPartitionError
        ├── GroupActiveError          the group has members: only they may commit
        ├── CommitError               some partitions were refused; says which were written
        └── ClientCrashedError        the child process that made a group call died (retriable)

``retriable`` says whether the same call may succeed later without anybody changing anything. Airflow's
retries are meant for those; the others fail the same way until what the text names is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_kafka_offsets.model.offsets import TopicPartition


class KafkaOffsetsError(Exception):
    """Base of every error this package raises on purpose."""

    retriable = False


class OffsetsFormatError(KafkaOffsetsError, ValueError):
    """Text or JSON is not in the form that Spark or Kafka writes offsets, or a store's row holds something else."""


class UsageError(KafkaOffsetsError, ValueError):
    """Parameters contradict each other, are missing, or have a value outside their choices."""


class SetupError(KafkaOffsetsError):
    """Something this machine needs is missing or does not fit."""


class CheckpointError(KafkaOffsetsError):
    """A Spark checkpoint cannot be used as it is."""


class CheckpointNotFoundError(CheckpointError):
    """There is no checkpoint at the location."""


class CheckpointFormatError(CheckpointError):
    """A file of the checkpoint is not in a form that is known."""


class CheckpointUnavailableError(CheckpointError):
    """The storage did not answer, or a running query removed files faster than they could be read."""

    retriable = True


class CheckpointMovedError(CheckpointError):
    """Another process moved the checkpoint, or its groups, while this one used it."""

    retriable = True


class NoCommitError(KafkaOffsetsError):
    """A group has no committed offset where one is needed, so its lag is undefined."""


class PlanRefusedError(KafkaOffsetsError):
    """
    A plan was refused; nothing was written.

    :param refusals: one sentence each: what was found, what was expected, what to do.
    :param retriable: whether the reason may pass by itself.
    """

    def __init__(self, refusals: Sequence[str], *, retriable: bool = False) -> None:
        self.refusals = tuple(refusals)
        self.retriable = retriable
        lead = "nothing was changed: "
        if len(self.refusals) == 1:
            super().__init__(lead + self.refusals[0])
        else:
            super().__init__(lead + "".join(f"\n  - {refusal}" for refusal in self.refusals))


class MoveUnfinishedError(PlanRefusedError):
    """A move of the checkpoint was begun and not finished: it is under way, or has stopped half-way."""


class WindowMismatchError(PlanRefusedError):
    """
    Offsets cannot be saved, since what is stored meets neither the beginning nor the end of their ranges.

    :param where: what stores them, such as ``group 'orders'``.
    :param found: partition -> what is stored (``None`` for nothing), what was expected, and the range's end.
    :param movers: partition -> who has committed it, as far as that is known; ``None`` if it is no group.
    """

    def __init__(
        self,
        where: str,
        found: Mapping[TopicPartition, tuple[int | None, int | None, int]],
        movers: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        self.found = dict(found)
        self.differences = "; ".join(
            f"{tp}: found {_or_nothing(held)}, the range goes from {_or_nothing(start)} to {end}"
            for tp, (held, start, end) in sorted(found.items())
        )
        reasons = []
        gone = [tp for tp, (held, start, _) in found.items() if held is None and start is not None]
        if movers is not None and gone:
            reasons.append(
                f"{len(gone)} of the commits are no longer there: Kafka forgets a group that nobody joins "
                "offsets.retention.minutes after its last commit, and a topic's commits when the topic is deleted"
            )
        if movers:
            reasons.append(f"Moved by {', '.join(sorted(set(movers.values())))}")
        elif movers is None or len(gone) < len(found):
            reasons.append("Another run or tool has moved it, or the ranges are old")
        reasons.append(
            "Read on from what is stored: ranges that were planned before it do not fit any more"
            if movers is None
            else "To go on from where it stands now, trigger a new run with start='committed': clearing the plan of this run "
            "gives the same ranges again"
        )
        super().__init__(
            [
                f"{where} is neither at the beginning nor at the end of these ranges: {self.differences}. {'. '.join(reasons)}"
            ]
        )


def _or_nothing(offset: int | None) -> str:
    return "nothing" if offset is None else str(offset)


class WindowReadError(KafkaOffsetsError):
    """Records of an offset window are gone from the log, or not in it yet, so that it cannot be read whole."""


class DriftError(KafkaOffsetsError):
    """
    Groups are not where their checkpoints are, or that could not be found out.

    :param retriable: whether nothing is wrong but what may pass by itself, such as a broker that did not answer.
    """

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable


class BrokerError(KafkaOffsetsError):
    """
    The broker, or the client on the way to it, refused.

    :param code: Kafka's name of the error, such as ``NOT_COORDINATOR``; ``None`` when there was none.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class BrokerUnavailableError(BrokerError):
    """The broker could not be reached, or did not answer within the deadline."""

    retriable = True


class BrokerAuthenticationError(BrokerError):
    """The broker refused the credentials, the certificate was refused, or an ACL is missing."""


class UnknownTopicPartitionError(BrokerError):
    """
    Topics or partitions do not exist on the broker.

    :param missing: what was asked for and is not there.
    """

    def __init__(self, message: str, *, missing: Sequence[TopicPartition] = ()) -> None:
        super().__init__(message, code="UNKNOWN_TOPIC_OR_PART")
        self.missing = tuple(missing)


class GroupActiveError(BrokerError):
    """
    The group has members, so only they may commit its offsets.

    :param retriable: whether they are there for a moment only, as one that commits a window.
    """

    def __init__(self, message: str, *, code: str | None = None, retriable: bool = False) -> None:
        super().__init__(message, code=code)
        self.retriable = retriable


class CommitError(BrokerError):
    """
    A commit was refused, wholly or in part.

    :param failed: partition -> the broker's name of the error.
    :param written: partitions whose offsets were committed before the failure.
    :param retriable: whether all that failed may succeed later.
    """

    def __init__(
        self,
        message: str,
        *,
        failed: Mapping[TopicPartition, str],
        written: Sequence[TopicPartition] = (),
        retriable: bool = False,
    ) -> None:
        super().__init__(message, code=next(iter(failed.values()), None))
        self.failed = dict(failed)
        self.written = tuple(written)
        self.retriable = retriable


class ClientCrashedError(BrokerError):
    """The child process that made a group call died before it answered."""

    retriable = True
