"""A file of offsets in Kafka's CSV, and the lines of each group in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.formats import parse_csv
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.text import quote, shorten


@dataclass(frozen=True)
class OffsetsFile:
    """
    A file in Kafka's CSV.

    :param name: the file's URI; it is also written to the receipt.
    :param text: the file's content, after it was read.
    """

    name: str
    text: str = ""

    def group_offsets(self, group_id: str, groups: int) -> Offsets:
        """
        Return the file's offsets for a group.

        :param groups: number of groups that are moved; lines of three columns are valid only for one group.
        :raises OffsetsFormatError: if the file has no line for the group, or is not Kafka's CSV; the text
            names the file.
        """
        try:
            known = self._by_group
            if "" in known and groups > 1:
                raise OffsetsFormatError(
                    f"the file has lines of topic,partition,offset, and {groups} groups are moved: give "
                    "lines of group,topic,partition,offset"
                )
            if "" not in known and group_id not in known:
                raise OffsetsFormatError(
                    f"the file has no line for group {quote(group_id)}; it has lines for "
                    f"{shorten(', '.join(map(repr, sorted(known)[:10])))}"
                )
            return known[""] if "" in known else known[group_id]
        except OffsetsFormatError as error:
            raise OffsetsFormatError(f"{shorten(self.name)}: {error}") from None

    def offsets_by_group(self, group_ids: Sequence[str]) -> dict[str, Offsets]:
        """Return the file's offsets for several groups, see :meth:`group_offsets`."""
        return {group_id: self.group_offsets(group_id, len(group_ids)) for group_id in group_ids}

    @cached_property
    def _by_group(self) -> dict[str, Offsets]:
        # Parsed once, because the file may have many groups.
        return parse_csv(self.text)
