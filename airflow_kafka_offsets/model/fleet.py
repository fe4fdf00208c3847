"""
Many pipelines that are moved together: their plans, their stages, and the receipts to undo their moves.

A fleet is saved before and after each write, so that the next run continues after an interruption.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

from airflow_kafka_offsets.errors import KafkaOffsetsError, OffsetsFormatError, PlanRefusedError
from airflow_kafka_offsets.model.approval import SHOWN_DIGITS, digest_of_all
from airflow_kafka_offsets.model.plan_markdown import plans_markdown
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.saved_plan import SavedPlan
from airflow_kafka_offsets.model.text import describe_type, shorten

VERSION = 1

Stage = Literal["planned", "applying", "applied", "restoring", "restored"]
"""
Progress of a pipeline. ``applying`` and ``restoring`` are saved before the first write of the move: the
process may have ended at any point since then.
"""

BEGUN: tuple[Stage, ...] = ("applying", "applied", "restoring")
"""Stages of a pipeline that may have moved, at least in part, and was not restored."""


class Refused(NamedTuple):
    """A pipeline that the plan has left out, with the reason."""

    pipeline: str
    error: str


class Failure(NamedTuple):
    """A pipeline that could not be planned, moved or restored."""

    name: str
    error: KafkaOffsetsError

    def __str__(self) -> str:
        return f"{self.name}: {self.error}"


@dataclass(frozen=True)
class Member:
    """
    One pipeline of a fleet.

    :param receipt: of the move, saved before the first write, and again after the offsets were read back.
    :param restored: receipt of the restore that undoes the move.
    :param error: error of the last attempt; ``None`` if it has not failed.
    """

    plan: SavedPlan
    stage: Stage = "planned"
    receipt: Mapping[str, Any] | None = None
    restored: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """The names of its groups, for texts."""
        return ", ".join(group.group_id for group in self.plan.groups) or "no group"

    @property
    def applied(self) -> Receipt:
        """The receipt of the move, or that of a move with the same plan by another copy of the file."""
        if self.receipt is not None:
            return Receipt.parse(self.receipt)
        return replace(self.plan.receipt, plan_only=False, plan=self.plan.digest)

    @cached_property
    def text(self) -> str:
        """JSON in one line. A fleet is saved twice for each pipeline, so each is encoded only once."""
        return json.dumps(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        found = {name: getattr(self, name) for name in ("stage", "receipt", "restored", "error")}
        return {"plan": dict(self.plan.value), **found}


@dataclass(frozen=True)
class Fleet:
    """
    Pipelines that are planned, approved, moved and restored together.

    :param refused: the other pipelines of the list, which cannot be moved, with the reason.
    """

    members: tuple[Member, ...]
    refused: tuple[Refused, ...] = ()

    @classmethod
    def of(
        cls, plans: Sequence[SavedPlan], refused: Sequence[Failure] = (), begun: Sequence[Member] = ()
    ) -> Fleet:
        """Return a fleet of plans that are not applied yet, and of pipelines that have begun to move."""
        members = (*begun, *map(Member, plans))
        return cls(members, tuple(Refused(each.name, str(each.error)) for each in refused))

    @property
    def fails_over(self) -> bool:
        """Whether the pipelines move to a mirror."""
        return any(member.plan.left_logs is not None for member in self.members)

    @property
    def digest(self) -> str:
        """The common digest of all plans."""
        return digest_of_all([member.plan.digest for member in self.members])

    @property
    def markdown(self) -> str:
        """One table of all plans."""
        return plans_markdown([member.plan for member in self.members])

    @property
    def begun(self) -> list[Member]:
        """The pipelines that may have moved, at least in part, and were not restored."""
        return [member for member in self.members if member.stage in BEGUN]

    def check_digest(self, expected: str) -> None:
        """Refuse the fleet unless its digest begins with these digits; at least eight are needed."""
        if len(expected) < SHOWN_DIGITS or not self.digest.startswith(expected):
            raise PlanRefusedError(
                f"found plan {self.digest[:SHOWN_DIGITS]}; expected {shorten(expected)}, at least "
                f"{SHOWN_DIGITS} digits: the plan was made again since, or the digest belongs to another file"
            )

    def with_member(self, number: int, **changes: Any) -> Fleet:
        """Return the fleet with one pipeline changed."""
        members = list(self.members)
        members[number] = replace(members[number], **changes)
        return replace(self, members=tuple(members))

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON: ``version``, ``digest``, ``refused`` and ``pipelines``."""
        return {**self._head(), "pipelines": [member.as_json() for member in self.members]}

    def as_text(self) -> str:
        """Return the JSON of :meth:`as_json`, with a line for each pipeline."""
        pipelines = ",\n".join(member.text for member in self.members)
        return f'{json.dumps(self._head())[:-1]}, "pipelines": [\n{pipelines}\n]}}\n'

    def _head(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "digest": self.digest,
            "refused": [each._asdict() for each in self.refused],
        }

    @classmethod
    def parse(cls, value: object, what: str) -> Fleet:
        """Read the output of :meth:`as_json`; raise an OffsetsFormatError for any other or changed value."""
        found = value.get("pipelines") if isinstance(value, Mapping) else None
        entries = found if isinstance(found, list) else []
        if not isinstance(value, Mapping) or value.get("version") != VERSION or not entries:
            raise OffsetsFormatError(
                f"{what}: found {describe_type(value)}; expected a recovery of version {VERSION}, as "
                "'recover plan' writes it"
            )
        members = tuple(_member(entry, f"{what}, pipeline {n}") for n, entry in enumerate(entries, 1))
        left = value.get("refused", ())
        try:
            refused = tuple(Refused(str(each["pipeline"]), str(each["error"])) for each in left)
        except (KeyError, TypeError):
            raise OffsetsFormatError(
                f"{what}, refused: found {describe_type(left)}; expected pipelines and their errors"
            ) from None
        fleet = cls(members, refused)
        if fleet.digest != value.get("digest"):
            raise OffsetsFormatError(
                f"{what}: its digest is not {fleet.digest}, that of its plans: the file was changed after it "
                "was made; plan again"
            )
        return fleet


def _member(entry: object, what: str) -> Member:
    known: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    receipt, restored, error = (known.get(name) for name in ("receipt", "restored", "error"))
    receipts = all(part is None or isinstance(part, Mapping) for part in (receipt, restored))
    if known.get("stage") not in get_args(Stage) or not receipts or not isinstance(error, str | None):
        raise OffsetsFormatError(
            f"{what}: found {describe_type(entry)}; expected a plan, its stage and receipts"
        )
    return Member(
        SavedPlan.parse(known.get("plan"), what, describe=describe_type),
        known["stage"],
        receipt,
        restored,
        error,
    )
