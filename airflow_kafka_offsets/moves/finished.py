"""Checks whether the work after a move was finished: the pipeline was committed since, past where it was."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from airflow_kafka_offsets.checkpoint.archive import read_archives
from airflow_kafka_offsets.checkpoint.open_moves import has_run_since
from airflow_kafka_offsets.kafka.positions import group_positions, last_commits
from airflow_kafka_offsets.model.checkpoint_plan import read_checkpoint_receipt
from airflow_kafka_offsets.model.groups import GroupOffsets, Groups
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.receipt import read_receipt
from airflow_kafka_offsets.model.recovery import is_finished
from airflow_kafka_offsets.moves.commit import plan_commits

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient


def finished_since(
    client: OffsetsClient, checkpoint: SparkCheckpoint | None, receipt: object, movers: Collection[str]
) -> bool:
    """
    Whether every group was committed since the move of a receipt, past where it was, and the query has run.

    :param movers: identities of the tasks that reset and restore: their commits do not count.
    """
    groups = [each for each in read_receipt(receipt) if each.after]
    moved = read_checkpoint_receipt(receipt)
    archive = None
    if checkpoint is not None and moved is not None:
        archive = next((each for each in read_archives(checkpoint) if each.name == moved.archive), None)
        if archive is not None and not has_run_since(checkpoint, archive):
            logs = client.log_ranges({tp for group in groups for tp in group.after})
            if any(offset < logs[tp].end for group in groups for tp, offset in group.after.items()):
                return False
    return bool(groups) and all(
        is_finished(
            last_commits(client, group.group_id, group.after),
            {tp: max(offset, group.before.get(tp) or 0) for tp, offset in group.after.items()},
            movers,
            None if archive is None else archive.number,
        )
        for group in groups
    )


def plan_kept(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint | None,
    named: Groups,
    movers: Collection[str],
    work: Sequence[str],
) -> tuple[PipelinePlan, list[str]]:
    """
    Return the plan of a reset that moves nothing because its work was done, and the groups that were not
    committed since.

    :param movers: see :func:`finished_since`.
    :param work: the tasks that have done it, for the receipt.
    """
    sources = None if checkpoint is None else checkpoint.read().kafka_offsets
    targets = {
        group: {tp: at for tp, at in group_positions(client, group, scope).items() if at is not None}
        for group, scope in named.scopes(sources).items()
    }
    unfinished = [
        group
        for group, offsets in targets.items()
        if not is_finished(last_commits(client, group, offsets), {}, movers)
    ]
    plans = plan_commits(client, GroupOffsets(targets), source={"kept": list(work)}, on_out_of_range="skip")
    return PipelinePlan(plans), unfinished
