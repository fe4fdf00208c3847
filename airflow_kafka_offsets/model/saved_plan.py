"""
Saved plans: each is later applied exactly as planned, or refused.

A saved plan is the receipt of a planned move, with a digest of the planned writes. An approval names this
digest. The plan has fixed offsets: its target is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from airflow_kafka_offsets.errors import OffsetsFormatError, PlanRefusedError, UsageError
from airflow_kafka_offsets.model.checkpoint_plan import CheckpointPlan, sources_json
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.formats import load_json, offsets_json
from airflow_kafka_offsets.model.location import is_same_location
from airflow_kafka_offsets.model.log_ids import LogIds, other_logs_refusals
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import Offsets, TopicPartition, flat, summarize
from airflow_kafka_offsets.model.parameters import duration_text, parse_switch, parse_time
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.receipt import GroupReceipt, Receipt
from airflow_kafka_offsets.model.text import DescribeValue, shorten
from airflow_kafka_offsets.model.topics import TopicScope, plain_names
from airflow_kafka_offsets.model.wording import parameter_text

FORM = "a plan from a reset or failover that only plans, or from '--save-plan'"
MAX_AGE = timedelta(days=1)
"""Default of the age at which a plan is too old to be applied."""


class Names(NamedTuple):
    """The names of the pipeline that a plan moves, as the user gave them; see ``PIPELINE_PARAMETERS``."""

    group_id: Any = None
    topics: Any = None
    checkpoint_location: str | None = None
    checkpoint_conn_id: str | None = None
    kafka_config_id: str | None = None
    mirror: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, pipeline: Mapping[str, Any]) -> Names:
        """Return the names of a pipeline, as plain JSON."""
        names: dict[str, Any] = {name: plain_names(value) for name, value in pipeline.items()}
        return cls(**names)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON; a pipeline without a mirror has no key ``mirror``."""
        return {name: each for name, each in self._asdict().items() if name != "mirror" or each}


@dataclass(frozen=True)
class SavedPlan:
    """
    A plan that was saved.

    :param policy: permissions of the plan, which also hold when it is applied.
    :param value: the plan as plain JSON.
    :param left_logs: for a failover, ids of the cluster and topics that the checkpoint leaves; else ``None``.
    """

    names: Names
    receipt: Receipt
    policy: CheckpointPolicy
    allow_new_cluster: bool
    created: datetime
    value: Mapping[str, Any]
    left_logs: LogIds | None = None
    allow_running_mirror: bool = False

    @classmethod
    def make(
        cls,
        receipt: Mapping[str, Any],
        names: Names,
        policy: CheckpointPolicy,
        *,
        allow_new_cluster: bool = False,
        allow_running_mirror: bool = False,
        now: datetime | None = None,
    ) -> SavedPlan:
        """Return a plan that can be applied later, from the receipt of a plan that was not applied."""
        allowed = {"allow_new_cluster": allow_new_cluster}
        if allow_running_mirror:
            allowed["allow_running_mirror"] = True
        value = {
            **receipt,
            "plan_only": True,
            "names": names.as_json(),
            "policy": {**asdict(policy), **allowed},
            "created": (now or datetime.now(tz=timezone.utc)).isoformat(timespec="seconds"),
        }
        found = cls._read(value, "plan", shorten)
        return found.with_notes(digest=found._compute_digest())

    @classmethod
    def parse(cls, value: object, what: str = "plan", *, describe: DescribeValue = shorten) -> SavedPlan:
        """Read a plan, or its JSON text; raise an OffsetsFormatError if it was changed after it was made."""
        if isinstance(value, str):
            value = load_json(value, what, FORM, describe=describe)
        if not isinstance(value, Mapping) or not value.get("plan_only") or "digest" not in value:
            raise OffsetsFormatError(f"{what}: found {describe(value)}; expected {FORM}")
        found = cls._read(value, what, describe)
        if value["digest"] != (made := found._compute_digest()):
            raise OffsetsFormatError(
                f"{what}: found digest {describe(value['digest'])}, but its offsets and permissions have "
                f"digest {made}: the plan was changed after it was made; plan again"
            )
        return found

    @classmethod
    def _read(cls, value: Mapping[str, Any], what: str, describe: DescribeValue) -> SavedPlan:
        receipt = Receipt.parse(value, describe=describe)
        checkpoint = receipt.checkpoint
        try:
            names, policy = value["names"], value["policy"]
            if (mirror := names.get("mirror")) is not None:
                # On the command line a mirror has no connection id.
                given = {"kafka_config_id": "-", **mirror} if isinstance(mirror, Mapping) else mirror
                Mirror.parse(given, "names.mirror")
            is_failover = checkpoint is not None and checkpoint.kind == "failover"
            left = value["failover"]["left"] if is_failover else None
            # The digest covers the other values.
            return cls(
                Names(**{name: names.get(name) for name in Names._fields}),
                receipt,
                CheckpointPolicy.parse(**{each.name: policy[each.name] for each in fields(CheckpointPolicy)}),
                parse_switch(policy.get("allow_new_cluster", False), "allow_new_cluster"),
                parse_time(value.get("created"), "created"),
                dict(value),
                None if left is None else LogIds.parse(left, f"{what}, failover, left", describe=describe),
                parse_switch(policy.get("allow_running_mirror", False), "allow_running_mirror"),
            )
        except UsageError as error:
            raise OffsetsFormatError(f"{what}: {error}; expected {FORM}") from None
        except (AttributeError, KeyError, TypeError):
            raise OffsetsFormatError(f"{what}: found {describe(value)}; expected {FORM}") from None

    def with_notes(self, **more: Any) -> SavedPlan:
        """Return the plan with more texts and numbers for its readers; the digest does not cover them."""
        return replace(self, value={**self.value, **more})

    @property
    def digest(self) -> str:
        """The fingerprint of the planned writes."""
        return str(self.value["digest"])

    @property
    def markdown(self) -> str:
        """The table for reviewers."""
        return str(self.value.get("markdown", ""))

    @property
    def groups(self) -> tuple[GroupReceipt, ...]:
        """The groups that have a partition to move."""
        return self.receipt.moving().groups

    @property
    def checkpoint(self) -> CheckpointPlan | None:
        """The checkpoint to move."""
        return self.receipt.checkpoint

    @property
    def targets(self) -> dict[str, Offsets]:
        """Group -> offsets to commit."""
        return {group.group_id: dict(group.after) for group in self.groups}

    @property
    def log_ids(self) -> LogIds:
        """The ids of the cluster and the topics of the offsets."""
        return self.receipt.moving().log_ids

    @property
    def target_names(self) -> Names:
        """The names of the pipeline after the move: a failover moves its groups to the mirror."""
        on_mirror = (self.names.mirror or {}).get("kafka_config_id")
        if self.left_logs is None or not on_mirror:
            return self.names
        return self.names._replace(kafka_config_id=on_mirror)

    def _compute_digest(self) -> str:
        checkpoint = self.checkpoint
        moved: list[Any] = []
        if checkpoint is not None:
            moved = [checkpoint.location, checkpoint.query_id, checkpoint.batch_id]
            moved.append(list(checkpoint.discarded))
            moved += [sources_json(checkpoint.before), sources_json(checkpoint.after)]
        groups = [
            [group.group_id, offsets_json(group.before), offsets_json(group.after)]
            for group in sorted(self.groups, key=lambda group: group.group_id)
        ]
        allowed = {**asdict(self.policy), "allow_new_cluster": self.allow_new_cluster}
        left_logs = self.left_logs
        failover = [] if left_logs is None else ["failover", left_logs.as_json(), self.allow_running_mirror]
        return digest(groups, self.log_ids.as_json(), moved, allowed, *failover)

    def name_refusals(
        self, group_id: object, checkpoint_location: str | None, topics: Any = None
    ) -> list[str]:
        """Return why the plan is for another pipeline than the task or command names."""
        named, location = self.names.group_id, None if self.checkpoint is None else self.checkpoint.location
        refusals = []
        if group_id is not None and group_id != named:
            refusals.append(
                f"the plan is for group {shorten(named)}, and {parameter_text('group_id')} names "
                f"{shorten(group_id)}"
            )
        if group_id is not None and location is not None and checkpoint_location is None:
            refusals.append(
                f"the plan moves {location} too, and {parameter_text('checkpoint_location')} is missing"
            )
        if topics is not None and TopicScope.parse(topics) != TopicScope.parse(self.names.topics):
            refusals.append(
                f"the plan is for topics {shorten(self.names.topics)}, and {parameter_text('topics')} names "
                f"{shorten(topics)}"
            )
        if checkpoint_location is not None and not is_same_location(checkpoint_location, location or ""):
            refusals.append(
                f"the plan moves {location or 'no checkpoint'}, and {parameter_text('checkpoint_location')} "
                f"names {shorten(checkpoint_location)}"
            )
        return [f"{refusal}: give the plan of this pipeline, or omit the names" for refusal in refusals]

    def check(self, plan: PipelinePlan, now: datetime, max_age: timedelta | None, *, begun: bool) -> None:
        """
        Refuse the plan if something has changed since it was made, or if it is too old.

        A log start that has moved is no change while the log still has every planned offset.

        :param plan: a new plan to the same offsets.
        :param max_age: ``None`` for any age.
        :param begun: whether its move has started; it is finished at any age.
        """
        found = self._checkpoint_differences(plan.checkpoint_plan)
        planned = {each.group_id: each for each in plan.group_plans}
        for group in self.groups:
            found += _group_differences(group, planned.get(group.group_id))
        again = "plan again"
        logs = other_logs_refusals("the plan", self.log_ids, plan.log_ids, remedy=again)
        found = [*logs, *(f"{each}; {again}" for each in found)]
        PlanRefusedError.raise_if([f"plan {self.digest[:8]} is no longer valid: {each}" for each in found])
        age = now - self.created
        if not begun and max_age is not None and age > max_age:
            raise PlanRefusedError(
                f"plan {self.digest[:8]} was made {duration_text(age.total_seconds())} ago, and "
                f"{parameter_text('max_age')} is {duration_text(max_age.total_seconds())}: plan again"
            )

    def _checkpoint_differences(self, now: CheckpointPlan | None) -> list[str]:
        then = self.checkpoint
        if then is None or now is None:
            return [] if then is None and now is None else ["the checkpoint would not move as planned"]
        if then.query_id != now.query_id:
            return [
                f"{then.location}: found query {now.query_id}; the plan is for query "
                f"{shorten(then.query_id)}: the checkpoint was replaced"
            ]
        if then.batch_id != now.batch_id:
            return [
                f"{then.location}: the newest finished batch is {now.batch_id}, and was {then.batch_id} "
                "when the plan was made: "
                f"{'batches were removed' if now.batch_id < then.batch_id else 'the query has run'} "
                "since then"
            ]
        if then.discarded != now.discarded:
            return [
                f"{then.location}: unfinished batches are {_batches_text(now.discarded)}, and were "
                f"{_batches_text(then.discarded)} when the plan was made"
            ]
        if then.before != now.before or then.after != now.after:
            moved = _moved_partitions(then.before, now.before) or _moved_partitions(then.after, now.after)
            return [
                f"{then.location}: was moved after the plan was made, and has other offsets on "
                f"{summarize(moved)}"
            ]
        return []


def _group_differences(then: GroupReceipt, now: OffsetPlan | None) -> list[str]:
    if now is None:
        return [f"group {then.group_id!r} would not move as planned"]
    moved = [tp for tp, at in then.before.items() if tp in then.after and now.before.get(tp) != at]
    if not moved:
        return [] if now.after == then.after else [f"group {then.group_id!r} would move to other offsets"]
    first = min(moved)
    by = CommitMetadata.of(now.commits.get(first))
    return [
        f"group {then.group_id!r} has changed on {summarize(moved)} ({first}: {then.before[first]} when the "
        f"plan was made, {now.before.get(first)} now{f', by {by}' if by else ''})"
    ]


def _moved_partitions(then: Mapping[str, Offsets], now: Mapping[str, Offsets]) -> set[TopicPartition]:
    return {tp for (_, tp), _ in flat(then).items() ^ flat(now).items()}


def _batches_text(batches: Sequence[int]) -> str:
    return ", ".join(map(str, batches)) or "none"
