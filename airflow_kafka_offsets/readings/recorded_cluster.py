"""Finds the cluster that a checkpoint is on, and groups that no cluster knows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from airflow_kafka_offsets.annotation_types import OffsetsClient, SparkCheckpoint
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.failover_data import FailoverData
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.text import join_first

log = logging.getLogger(__name__)

LAST_COMMIT = "the last commit of its group"
"""Names the record of a checkpoint's cluster if neither a move nor the kept data has recorded it."""
_NO_COMMIT = (-1, False)


def recorded_cluster(
    checkpoint: SparkCheckpoint,
    kept: FailoverData,
    clients: Sequence[OffsetsClient],
    by_group: Mapping[str, Offsets],
) -> tuple[str, str]:
    """
    Return the id of a checkpoint's cluster, empty if unknown, and what has recorded it.

    :param kept: the data kept for a failover; used if no move has recorded a cluster.
    :param clients: the mirror, and the old cluster if it answers. If nothing else has recorded a cluster, the
        group's newest commit counts, and of two of the same batch the mirror's. If only one cluster shows its
        commits, a commit at the query's position counts: an older one may be of an earlier time.
    """
    moved = ArchivedMoves(checkpoint).newest_with_cluster()
    if moved is not None:
        return moved.log_ids.cluster, f"its move {moved}"
    if kept.cluster:
        return kept.cluster, "its last commit with a mirror"
    query = checkpoint.query_id()
    # Cluster that shows its commits -> the query's newest one there: its batch, and if it is at the position.
    newest: dict[str, tuple[int, bool]] = {}
    for client, (group, offsets) in product(clients, by_group.items()):
        try:
            commits = client.committed(group, offsets)
        except BrokerError as error:
            log.info("Commits of group %r are not compared: %s", group, error)
            continue
        cluster = client.cluster_id()
        # Copied commits name another cluster. A failover that was taken back has committed the group too.
        own = [
            (made.batch or 0, commit.offset == offsets[tp])
            for tp, commit in commits.items()
            if commit and (made := CommitMetadata.of(commit)) and not made.is_move
            if (made.query, made.cluster) == (query, cluster)
        ]
        newest[cluster] = max([newest.get(cluster, _NO_COMMIT), *own])
    cluster = max(newest, key=lambda each: newest[each][0], default="")
    batch, at_position = newest.get(cluster, _NO_COMMIT)
    known = batch >= 0 and (at_position or len(newest) > 1)
    return cluster if known else "", LAST_COMMIT


def uncommitted_groups(
    left: OffsetsClient | None, by_group: Mapping[str, Offsets], group_plans: Iterable[OffsetPlan]
) -> list[str]:
    """
    Return a note about groups without a commit on either cluster, because their names may be mistyped.

    :param left: the old cluster; without it nothing is known of most groups, which a mirror does not copy.
    """
    if left is None:
        return []
    new = [plan.group_id for plan in group_plans if all(at is None for at in plan.before.values())]
    try:
        unknown = [group for group in new if not any(left.committed(group, by_group[group]).values())]
    except BrokerError as error:
        log.info("Commits on the old cluster are not compared: %s", error)
        return []
    what = f"group {join_first(unknown)} has no commit on either cluster"
    return [f"{what}: if it should have one, correct its name"] if unknown else []
