"""JSON models of the routes: times in UTC, durations in seconds, ``null`` for unknown or missing values."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class MoveResponse(BaseModel):
    """A move of a pipeline, or another result of a task, such as a reading."""

    at: datetime
    kind: str
    dag_id: str | None
    run_id: str | None
    task_id: str | None
    map_index: int | None
    try_number: int | None = None
    moved_by: int | None = None
    lag: int | None = None
    offset: int | None = None
    log_end: int | None = None
    over: str | None = None
    """Identifies the partitions whose sums are ``lag``, ``offset`` and ``log_end``."""
    plan_only: bool = False
    state: str | None = None
    tool: str | None = None
    """The command or the library that made the move, if it was not a task."""
    verdict: str | None = None
    """
    The verdict of an audit (``complete``, ``incomplete`` or ``undecided``) or of a check of a mirror
    (``exact``, ``safe`` or ``unknown``).
    """


class PipelineResponse(BaseModel):
    """A pipeline and the tasks that name it."""

    dag_id: str
    key: str
    groups: list[str]
    topics: list[str] | None
    checkpoint: str | None
    kafka_config_id: str
    tasks: list[str]
    unresolved: list[str]


class PipelinesResponse(BaseModel):
    """The pipelines that the user may read."""

    pipelines: list[PipelineResponse]
    problems: list[str]


class FailureResponse(BaseModel):
    """Why there is no new reading."""

    message: str
    since: datetime


class TotalsResponse(BaseModel):
    """Totals over all partitions of a pipeline."""

    lag: int | None = None
    time_lag: float | None = None
    headroom: float | None = None
    headroom_state: str = "unknown"
    partitions: int | None = None
    without_commit: int | None = None
    unknown_lag: int | None = None
    """Partitions that ``lag`` leaves out: without a commit and without a checkpoint, or without a log."""
    uncounted: int | None = None
    """Records in the logs of these partitions; a job may still read them."""
    over: str | None = None
    """Identifies the partitions, like :attr:`MoveResponse.over`."""


class MemberResponse(BaseModel):
    """A consumer that joined the group."""

    group_id: str
    member_id: str
    client_id: str
    host: str
    partitions: int


class DriftResponse(BaseModel):
    """Whether group and checkpoint are in step."""

    verdict: str
    text: str


class CheckpointResponse(BaseModel):
    """The newest batches of a checkpoint."""

    batch: int | None
    pending_batch: int | None
    age: float | None


class ProvenanceResponse(BaseModel):
    """The task or tool that made a commit, from the commit's metadata."""

    kind: str = "commit"
    """``commit``, ``reset`` or ``restore``."""
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    by: str | None = None
    tool: str | None = None
    query: str | None = None
    batch: int | None = None
    at: datetime | None = None


class PaceResponse(BaseModel):
    """Records per second while pages are open, measured like in the sensors; ``null`` until it is known."""

    records_in: float | None = None
    records_out: float | None = None
    lag_falls: float | None = None
    seconds_left: float | None = None


class PartitionsResponse(BaseModel):
    """Columns of equal length."""

    group: list[str | None]
    topic: list[str]
    partition: list[int]
    committed: list[int | None]
    checkpoint: list[int | None]
    log_start: list[int | None]
    log_end: list[int | None]
    lag: list[int | None]
    time_lag: list[float | None]
    headroom: list[float | None]
    headroom_state: list[str | None]
    verdict: list[str | None]


class NowResponse(BaseModel):
    """Current position of a pipeline; all ``null`` except ``error`` if it was never read."""

    read_at: datetime | None = None
    stale_since: datetime | None = None
    error: FailureResponse | None = None
    totals: TotalsResponse | None = None
    state: str | None = None
    members: list[MemberResponse] | None = None
    drift: DriftResponse | None = None
    remedies: dict[str, str] = {}
    """The remedy for each verdict that occurs."""
    checkpoint: CheckpointResponse | None = None
    commits: list[ProvenanceResponse] = []
    """The makers of the group's current commits, the newest first."""
    topics: list[str] = []
    pace: PaceResponse | None = None
    partitions: PartitionsResponse | None = None
    problems: list[str] = []


class BatchResponse(BaseModel):
    """One batch in the checkpoint."""

    batch: int
    at: datetime | None
    duration: float | None
    records: int | None
    offset: int | None
    over: str | None = None
    """Identifies the partitions whose sum is ``offset``."""
    pending: bool = False


class HistoryResponse(BaseModel):
    """Past batches and moves of a pipeline."""

    batches: list[BatchResponse]
    moves: list[MoveResponse]
    problems: list[str]
    batches_known: bool = True
    """Whether the batches were read."""


class ReceiptPartitions(BaseModel):
    """Columns of equal length."""

    group: list[str | None]
    topic: list[str]
    partition: list[int]
    before: list[int | None]
    after: list[int | None]
    moved_by: list[int | None]
    log_start: list[int | None]
    log_end: list[int | None]
    note: list[str | None]
    """Why a partition was not moved to the requested offset."""
    time_before: list[str | None]
    time_after: list[str | None]
    """Record times from when the move was planned, as in :class:`RecordTimesResponse`."""


class ReceiptTotals(BaseModel):
    """Totals over all partitions of a receipt."""

    partitions: int
    moved_by: int | None
    lag: int | None
    skipped: int
    """Partitions that were skipped."""
    clamped: int
    """Partitions that moved to an end of their log instead of the requested offset."""
    lost: int | None
    """Records that retention had deleted before they were requested; ``null`` in an old receipt."""


class ReceiptResponse(BaseModel):
    """A receipt as a table."""

    groups: list[str]
    source: dict[str, Any]
    changed: int | None
    plan_only: bool
    verified: bool
    checkpoint: dict[str, Any] | None
    approval: dict[str, str | None] | None = None
    """The approver of the plan that was applied (``by``), and the time of the approval (``at``)."""
    totals: ReceiptTotals
    partitions: ReceiptPartitions


class TaskInstanceResponse(BaseModel):
    """The result of one task instance."""

    operator: str | None
    state: str | None
    move: MoveResponse | None = None
    receipt: ReceiptResponse | None = None
    report: dict[str, Any] | None = None
    """The result as it is in XCom, if it is not a receipt."""
    report_kind: str | None = None
    """``certificate``, ``drift``, ``mirror``, ``reading`` or ``window``."""
    restore_command: str | None = None
    problems: list[str] = []


class RecordTimesResponse(BaseModel):
    """
    Timestamps of the records at a receipt's offsets, one row for each partition of the receipt.

    A value is a time, ``deleted`` if retention has deleted the record, ``end`` if no record follows, or
    ``null`` if unknown.
    """

    before: list[str | None]
    after: list[str | None]


class WaitResponse(BaseModel):
    """Progress of a wait; all ``null`` if it cannot be measured reliably."""

    done: bool
    moving: bool
    """Whether the target moves, like the log end."""
    remaining: int | None
    of: int | None
    pace: str | None


class MoveStateResponse(BaseModel):
    """State of a move compared with the groups' current commits, and their newest commit."""

    state: str
    """``in place``, ``taken back`` or ``moved on``."""
    kind: str | None = None
    tool: str | None = None
    at: datetime | None = None


class TaskInstanceNowResponse(BaseModel):
    """Data from Kafka for one task instance."""

    state: str | None
    read_at: datetime | None = None
    times: RecordTimesResponse | None = None
    since: MoveStateResponse | None = None
    wait: WaitResponse | None = None
    problems: list[str] = []
