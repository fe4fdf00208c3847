"""Moves of a checkpoint with one Kafka source, which reads partition 0 of orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsspec.implementations.local import LocalFileSystem

from airflow_kafka_offsets.checkpoint.apply_move import apply_checkpoint_plan
from airflow_kafka_offsets.checkpoint.archive import read_archived_moves
from airflow_kafka_offsets.checkpoint.archived_move import ArchivedMove
from airflow_kafka_offsets.checkpoint.plan_move import plan_put_back_archive, plan_seek, plan_truncate
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.offsets import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

ORDERS_0 = TopicPartition("orders", 0)
THREE = {0: 5, 1: 6, 2: 7}
"""Offsets of orders-0 in the batches 0 to 2."""
DISCARD: dict[str, Any] = {"on_pending_batch": "discard", "idempotent_sink": True}


def case_of(directory: Path) -> str:
    return directory.name.split("-", 2)[2]


def seek(root: Path, offset: int = 3, **policy: Any) -> CheckpointPlan:
    return plan_seek(SparkCheckpoint(str(root)), {"0": {ORDERS_0: offset}}, CheckpointPolicy(**policy))


def truncate(root: Path, batch_id: int, **policy: Any) -> CheckpointPlan:
    return plan_truncate(SparkCheckpoint(str(root)), batch_id, CheckpointPolicy(**policy))


def restore(root: Path, archive: str | None = None, **policy: Any) -> CheckpointPlan:
    return plan_put_back_archive(SparkCheckpoint(str(root)), archive, CheckpointPolicy(**policy))


def apply_plan(root: Path, checkpoint_plan: CheckpointPlan, **how: Any) -> CheckpointPlan:
    apply_checkpoint_plan(SparkCheckpoint(str(root)), checkpoint_plan, **({"quiet_period": 0} | how))
    return checkpoint_plan


def offset_of(root: Path) -> int:
    return SparkCheckpoint(str(root)).read().kafka_offsets["0"][ORDERS_0]


def sparks_own(found: dict[str, bytes]) -> dict[str, bytes]:
    """What a move must give back: everything but the archives, and checksums, which Spark does not need."""
    return {
        path: data
        for path, data in found.items()
        if not path.startswith("_kafka_offsets/") and not path.endswith(".crc")
    }


def kept_by(checkpoint: SparkCheckpoint, token: str) -> ArchivedMove | None:
    """The archive of a run's newest move that was not taken back."""
    mine = [
        each for each in read_archived_moves(checkpoint) if each.made_by.token == token and not each.undone
    ]
    return mine[-1] if mine else None


class TimelessFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    cachable = False

    def modified(self, path: str) -> Any:
        raise NotImplementedError
