"""Detects a running mirror that overwrites the offsets of groups with its own translation."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.mirror import source_aliases
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.wording import parameter_text

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)


def _is_copied(client: OffsetsClient, group: str, left: str, entered: str) -> bool:
    """Whether a group has commits that were made on the old cluster and copied to the mirror."""
    made = map(CommitMetadata.of, client.committed_everywhere(group).values())
    clusters = {each.cluster for each in made if each is not None and each.cluster}
    return bool(clusters - {entered}) and (not left or left in clusters)


def _workers(client: OffsetsClient) -> list[str]:
    """
    Return the groups of MirrorMaker's workers that are running now.

    This finds a dedicated MirrorMaker, whose group is ``<alias>-mm2``. In other Connect clusters the user
    chooses the group's name.
    """
    names = [f"{alias}-mm2" for alias in source_aliases(client.partitions())]
    if not names:
        return []
    try:
        return [name for name, group in client.describe_groups(names).items() if group.members]
    except BrokerError as error:
        log.info("It is unknown whether a mirror is running: %s", error)
        return []


def running_mirror(client: OffsetsClient, groups: Collection[str], left: str, entered: str) -> str | None:
    """
    Return why groups must not be moved: a running mirror would overwrite their offsets. ``None`` otherwise.

    :param left: id of the old cluster; empty if unknown.
    :param entered: id of the mirror.
    """
    copied = [group for group in groups if _is_copied(client, group, left, entered)]
    running = _workers(client) if copied else []
    if not running:
        return None
    return (
        f"a mirror is still running ({', '.join(map(shorten, running))}) and copies the offsets of group "
        f"{', '.join(map(shorten, copied))} (sync.group.offsets.enabled): it would move "
        "these groups forward again; stop the mirror, or set "
        f"{parameter_text('allow_running_mirror', True)} if it no longer copies these groups"
    )
