"""The result of a mirror check: whether a pipeline could fail over now, and how exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_kafka_offsets.model.failover_plan import TranslatedPartition, count_kinds, kinds_text, most_again
from airflow_kafka_offsets.model.offsets import summarize
from airflow_kafka_offsets.model.text import plural

CHECK_VERSION = 1

MirrorVerdict = Literal["exact", "safe", "unknown"]
"""No record would be read again; some would be, but none are lost; or a position is unknown."""


@dataclass(frozen=True)
class MirrorCheck:
    """
    The result of a mirror check.

    :param batch_id: the checkpoint's newest committed batch.
    :param now: its position, translated with both clusters.
    :param alone: its position, translated as if the source were gone: with the mirror and the data that
        commits have kept beside the checkpoint.
    :param kept_batch: the newest batch for which a commit has kept data; -1 if no commit has.
    :param syncs_on_mirror: whether the offset syncs are on the mirror, where a failover without the source
        needs them.
    :param copies_aborted: whether the mirror copies records of aborted transactions; ``None`` if the check
        saw no such records.
    :param notes: remarks, such as that not all syncs were read.
    :param refusals: why a failover would be refused, although the positions are known.
    """

    location: str
    batch_id: int
    now: Sequence[TranslatedPartition]
    alone: Sequence[TranslatedPartition]
    kept_batch: int
    syncs_on_mirror: bool
    copies_aborted: bool | None = None
    notes: Sequence[str] = ()
    group_ids: Sequence[str] = ()
    refusals: Sequence[str] = ()

    @property
    def verdict(self) -> MirrorVerdict:
        """How exactly the pipeline could fail over if the source were gone."""
        unknown = any(each.translation.offset is None or each.deleted for each in (*self.now, *self.alone))
        if unknown or self.refusals:
            return "unknown"
        return "exact" if all(each.translation.exact for each in self.alone) else "safe"

    @property
    def keeps_times(self) -> bool | None:
        """Whether the mirror's records have the source's timestamps; ``None`` if no copy was found."""
        searches = [search for each in self.now for search in each.searches]
        if any(search.copies for search in searches):
            return True
        return False if any(search.alike for search in searches) else None

    @property
    def behind(self) -> int | None:
        """Most records by which the mirror is behind the source; ``None`` if unknown."""
        known = [each.unmirrored for each in self.now if each.unmirrored is not None]
        return sum(known) if len(known) == len(self.now) else None

    def failures(self, max_again: int | None, max_behind: int | None) -> list[str]:
        """
        Return why the pipeline is not ready.

        :param max_again: most records that may be read again if the source is gone; ``None`` for any number.
        :param max_behind: most records by which the mirror may be behind; ``None`` for any number.
        """
        found = list(self.refusals)
        for translated, when in ((self.now, "now"), (self.alone, "once the source is gone")):
            if unknown := [each for each in translated if each.translation.offset is None]:
                partitions = summarize(each.partition for each in unknown)
                found.append(f"{when} its position is unknown on {partitions}: {unknown[0].translation.why}")
            if lost := [each.partition for each in translated if each.deleted]:
                found.append(f"{when} its position on {summarize(lost)} is one that the mirror has deleted")
        again = most_again(self.alone)
        if max_again is not None and again > max_again:
            found.append(
                f"once the source is gone {plural(again, 'record')} may be read again, above {max_again}"
            )
        if max_behind is not None and (self.behind is None or self.behind > max_behind):
            found.append(f"the mirror is {_behind(self.behind)} behind, above {max_behind}")
        return [f"{self.location}: {text}" for text in found]

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON; ``now`` and ``alone`` have the ``kinds`` of the translations, and ``again``."""
        return {
            "version": CHECK_VERSION,
            "verdict": self.verdict,
            "group_ids": list(self.group_ids),
            "checkpoint": self.location,
            "batch_id": self.batch_id,
            "kept_batch": self.kept_batch,
            "now": _summary(self.now),
            "alone": _summary(self.alone),
            "behind": self.behind,
            "syncs_on_mirror": self.syncs_on_mirror,
            "copies_aborted": self.copies_aborted,
            "keeps_times": self.keeps_times,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the check as lines of text."""
        kept = f"up to batch {self.kept_batch}" if self.kept_batch >= 0 else "no data yet"
        aborted = {True: "copied as real ones", False: "left out", None: "none were seen"}
        times = {True: "kept", False: "not kept: copies are found by key and value only", None: "unknown"}
        syncs = "on the mirror" if self.syncs_on_mirror else "on the source, so lost with it"
        return [
            f"checkpoint {self.location}: batch {self.batch_id}",
            f"  fails over now       {_text(self.now)}",
            f"  with the source gone {_text(self.alone)}",
            f"  kept for it          {kept}",
            f"  mirror behind        {_behind(self.behind)}",
            f"  offset syncs         {syncs}",
            f"  aborted records      {aborted[self.copies_aborted]}",
            f"  record times         {times[self.keeps_times]}",
            *(f"  {note}" for note in self.notes),
        ]


def _behind(records: int | None) -> str:
    return "an unknown number of records" if records is None else f"at most {plural(records, 'record')}"


def _summary(translated: Sequence[TranslatedPartition]) -> dict[str, Any]:
    return {"kinds": count_kinds(translated), "again": most_again(translated)}


def _text(translated: Sequence[TranslatedPartition]) -> str:
    again = most_again(translated)
    records = f"at most {plural(again, 'record')} again" if again else "no record again"
    return f"{kinds_text(count_kinds(translated))}; {records}"
