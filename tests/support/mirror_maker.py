"""Two Kafkas, of which a real MirrorMaker 2 has copied one to the other, with lower offsets."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from airflow_kafka_offsets.local.mirror_maker import MirrorMaker, mirror_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class Clusters(NamedTuple):
    """``host:port`` of the cluster that is mirrored, and of its mirror."""

    source: str
    target: str


@contextmanager
def mirroring(
    directory: Path, clusters: Clusters, topics: Sequence[str], groups: Sequence[str]
) -> Iterator[None]:
    """
    Mirror topics and groups under their own names until the ``with`` block ends; each record has a sync.
    """
    settings = {**mirror_settings(*clusters, topics, groups), "offset.lag.max": "0"}
    with MirrorMaker(directory, settings) as mirror:
        try:
            yield
        except AssertionError as error:
            log = mirror.log.read_text(errors="replace")[-3000:]
            error.add_note(f"MirrorMaker, status {mirror.status}:\n{log}")
            raise
