"""Approvals of plans: responses to requests of Airflow's human in the loop, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.formats import load_json
from airflow_kafka_offsets.model.parameters import iso_time, parse_time, timestamp_ms
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.wording import parameter_text

APPROVE = "Approve"
"""Beginning of the option that approves a plan; the first digits of the plan's digest follow."""

SHOWN_DIGITS = 8
"""Digits of a digest that an option shows, for people to compare."""

_FORM = (
    "the output of an approval, with chosen_options, params_input, responded_at and responded_by_user, as "
    "ApprovePlanOperator returns it"
)


def approve_option(of_plan: str) -> str:
    """Return the option that approves the plan with a digest."""
    return f"{APPROVE} {of_plan[:SHOWN_DIGITS]}"


@dataclass(frozen=True)
class Approval:
    """
    A response to a request for an approval.

    :param entered: the values of the form's fields.
    :param user_id: the user who responded; empty if the request timed out and Airflow took its default.
    :param digests: the plans that were approved together; empty if the request does not list them.
    """

    chosen: tuple[str, ...]
    entered: tuple[str, ...] = ()
    user_id: str = ""
    user_name: str = ""
    at: datetime | None = None
    digests: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: object, what: str = "approval") -> Approval:
        """Read an approval's output, or its JSON text; raise an OffsetsFormatError for any other value."""
        if isinstance(value, str):
            value = load_json(value, what, _FORM)
        given = value if isinstance(value, Mapping) else {}
        chosen, digests = given.get("chosen_options"), given.get("digests") or ()
        user, fields = given.get("responded_by_user") or {}, given.get("params_input") or {}
        mappings = isinstance(user, Mapping) and isinstance(fields, Mapping)
        if not mappings or not _is_texts(chosen) or not _is_texts(digests):
            raise OffsetsFormatError(f"{what}: found {shorten(value)}; expected {_FORM}")
        at = given.get("responded_at")
        return cls(
            tuple(chosen),
            tuple(str(each) for each in fields.values() if isinstance(each, str | int)),
            str(user.get("id") or ""),
            str(user.get("name") or user.get("id") or ""),
            None if at is None else parse_time(at, f"{what}, responded_at"),
            tuple(digests),
        )

    def refusals(self, of_plan: str, triggered_by: str | None, *, allow_self_approval: bool) -> list[str]:
        """
        Return why the response does not approve a plan.

        :param of_plan: the plan's digest.
        :param triggered_by: name of the user who triggered the run; ``None`` if no user did.
        """
        chosen = ", ".join(map(repr, self.chosen)) or "no option"
        if len(self.chosen) != 1 or not self.chosen[0].startswith(APPROVE):
            return [f"the plan was not approved: {self.user_name or 'the timeout'} chose {shorten(chosen)}"]
        if not self.user_name:
            return [
                f"the plan was not approved by a user: the request timed out, and Airflow took its default "
                f"{chosen}; remove the default, and let a user respond"
            ]
        found = self._other_plan_refusals(of_plan)
        if not allow_self_approval and triggered_by in (self.user_name, self.user_id):
            found.append(
                f"{self.user_name} triggered the run and approved its plan, which "
                f"{parameter_text('allow_self_approval', False)} forbids: another user must approve it; "
                "trigger a new run"
            )
        return found

    def _other_plan_refusals(self, of_plan: str) -> list[str]:
        named = [*self.chosen, *self.entered]
        if self.digests:
            # One request for several plans: its option has the digits of their common digest.
            of_all = digest_of_all(self.digests)[:SHOWN_DIGITS]
            if of_plan in self.digests and any(of_all in text for text in named):
                return []
        elif any(of_plan[:SHOWN_DIGITS] in text for text in named):
            return []
        elif all(text == APPROVE for text in self.chosen) and not self.entered:
            return [
                f"the approval does not name its plan: expected the option {approve_option(of_plan)!r}, as "
                f"ApprovePlanOperator offers it, or {of_plan[:SHOWN_DIGITS]} in a field of the form. Airflow "
                "may show the text of an earlier plan when a task is cleared"
            ]
        return [
            f"the approval is for another plan: found {shorten(', '.join(named))}; expected plan "
            f"{of_plan[:SHOWN_DIGITS]}: the plan was made again after it was shown; trigger a new run"
        ]

    def as_json(self) -> dict[str, Any]:
        """Return ``by``, ``user_id`` and ``at`` for the receipt."""
        at = None if self.at is None else iso_time(timestamp_ms(self.at))
        return {"by": self.user_name, "user_id": self.user_id, "at": at}


def digest_of_all(digests: Sequence[str]) -> str:
    """Return the digest of plans that are shown, approved and applied together; a single plan has its own."""
    return digests[0] if len(digests) == 1 else digest(sorted(digests))


def _is_texts(value: object) -> TypeGuard[Sequence[str]]:
    return (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(v, str) for v in value)
    )
