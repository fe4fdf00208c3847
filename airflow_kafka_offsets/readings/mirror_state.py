"""Whether a mirror still runs, and puts groups where it has translated them to."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow_kafka_offsets.errors import BrokerError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.wording import parameter_text

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.client import OffsetsClient

log = logging.getLogger(__name__)

_OWN_TOPICS = re.compile(r"(?:mm2-offset-syncs[.](?P<syncs>.+)|(?P<checkpoints>.+)[.]checkpoints)[.]internal")
"""Topics of MirrorMaker on the mirror, which name the cluster that it copies."""
_WORKERS = "{}-mm2"
"""The group that the workers of a dedicated MirrorMaker join on the mirror."""


def copied_groups(client: OffsetsClient, groups: Collection[str], left: str, entered: str) -> list[str]:
    """Return the groups whose commits were made on the cluster that is left, and copied."""
    found = []
    for group in groups:
        commits = client.committed_everywhere(group).values()
        made = [CommitMetadata.parse(commit.metadata) for commit in commits]
        clusters = {each.cluster for each in made if each is not None and each.cluster}
        if clusters - {entered} and (not left or left in clusters):
            found.append(group)
    return found


def workers(client: OffsetsClient) -> list[str]:
    """
    Return the groups of MirrorMaker's workers that run now, as far as they can be seen.

    The name is that of a dedicated MirrorMaker; in other Connect clusters it is the user's.
    """
    found = filter(None, map(_OWN_TOPICS.fullmatch, client.partitions()))
    names = sorted({_WORKERS.format(each["syncs"] or each["checkpoints"]) for each in found})
    try:
        return (
            [name for name, group in client.describe_groups(names).items() if group.members] if names else []
        )
    except BrokerError as error:
        log.info("Whether a mirror runs is not known: %s", error)
        return []


def running_mirror(client: OffsetsClient, groups: Collection[str], left: str, entered: str) -> str | None:
    """
    Return why groups must not be moved: a mirror that still runs puts them where it has translated them to.

    :param left: id of the cluster that is left.
    :param entered: id of the mirror.
    """
    copied = copied_groups(client, groups, left, entered)
    running = workers(client) if copied else []
    if not running:
        return None
    return (
        f"a mirror still runs ({', '.join(map(shorten, running))}) and copies the offsets of group "
        f"{', '.join(map(shorten, copied))} (sync.group.offsets.enabled): it moves a group forward again "
        f"that was set back here; stop the mirror, or set {parameter_text('allow_running_mirror', True)} if "
        "it does not copy these groups any more"
    )
