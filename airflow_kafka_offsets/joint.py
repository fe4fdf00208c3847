"""
How are consumer groups and the Spark checkpoint that they follow moved as one?

The targets are computed once and are the same for both. Everything is checked and saved before the first write;
then the checkpoint is moved, then the groups are committed, and both are read back. A move that was interrupted
in between is finished by running it again: the checkpoint's archive has kept where it was to go.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.checkpoint.archive import archive_of_run, read_archives, read_attachment
from airflow_kafka_offsets.checkpoint.rewind import (
    apply_rewind,
    plan_seek,
    plan_undo,
    resume,
    verify_rewind,
)
from airflow_kafka_offsets.errors import BrokerError, CheckpointError, PlanRefusedError, UsageError
from airflow_kafka_offsets.kafka.apply import apply_plans, plan_moves
from airflow_kafka_offsets.kafka.resets import (
    active_groups,
    given_offsets,
    plan_positions,
    plan_resets,
    read_file,
    scenario_json,
)
from airflow_kafka_offsets.model.offsets import (
    Offsets,
    Positions,
    TopicPartition,
    format_csv,
    offsets_json,
    parse_positions,
    summarize,
)
from airflow_kafka_offsets.model.plan import (
    OffsetPlan,
    OutOfRangePolicy,
    RecordTimes,
    check_plans,
    read_receipt,
    receipt,
)
from airflow_kafka_offsets.model.rewind import (
    QUIET_PERIOD,
    Rewind,
    RewindPolicy,
    RewindReceipt,
    read_rewind_receipt,
)
from airflow_kafka_offsets.model.scenarios import NoCommit, RestoreNoCommit, Scenario, ToOffset
from airflow_kafka_offsets.model.scope import (
    GroupIds,
    GroupOffsets,
    TopicScope,
    group_offsets,
    source_offsets,
)

if TYPE_CHECKING:
    from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
    from airflow_kafka_offsets.kafka.client import OffsetsClient
    from airflow_kafka_offsets.model.metadata import CommitMetadata

log = logging.getLogger(__name__)

_GROUPS = "groups.json"
_SHOWN_WITHIN = 5.0
"""Seconds for the times of a table: they are for the reader, and nothing waits for them."""


@dataclass(frozen=True)
class JointPlan:
    """
    What moves together.

    :param groups: a plan for each group.
    :param rewind: the checkpoint's plan, ``None`` where only groups move.
    """

    groups: Sequence[OffsetPlan]
    rewind: Rewind | None = None

    def check(self) -> None:
        """
        Refuse the whole move if one part of it must not be carried out.

        :raises PlanRefusedError: with every reason of every part.
        """
        check_plans([*([self.rewind] if self.rewind else []), *self.groups])

    @property
    def refused(self) -> bool:
        """Whether a part of it must not be carried out."""
        return any(plan.refusals for plan in self.groups) or bool(self.rewind and self.rewind.refusals)

    def tables(self) -> list[str]:
        """Return each part as lines for a log."""
        return [*([self.rewind.table()] if self.rewind else []), *(plan.table() for plan in self.groups)]

    def receipt(self, *, plan_only: bool = False, verified: bool = False) -> dict[str, Any]:
        """Return the groups' receipt, with the checkpoint's part under ``checkpoint`` where there is one."""
        value = receipt(self.groups, plan_only=plan_only, verified=verified)
        return value if self.rewind is None else {**value, "checkpoint": self.rewind.receipt()}

    def positions(self) -> set[tuple[TopicPartition, int]]:
        """Return every partition and offset that the plan comes from or goes to."""
        sources = [*self.rewind.before.values(), *self.rewind.after.values()] if self.rewind else []
        found = {(tp, offset) for offsets in sources for tp, offset in offsets.items()}
        for plan in self.groups:
            for move in plan.moves:
                found |= {
                    (move.topic_partition, offset)
                    for offset in (move.before, move.after)
                    if offset is not None
                }
        return found

    def with_times(self, times: RecordTimes) -> JointPlan:
        """Return the plan with the times that the log has at its positions."""
        groups = [replace(plan, times=times) for plan in self.groups]
        return JointPlan(groups, replace(self.rewind, times=times) if self.rewind else None)

    def with_before(self, before: Mapping[str, Positions]) -> JointPlan:
        """Return the plan with what the groups held before an interrupted try."""
        return replace(self, groups=[plan.with_before(before.get(plan.group_id, {})) for plan in self.groups])


def look_up_times(client: OffsetsClient, plan: JointPlan) -> JointPlan:
    """Return a plan with the times that the log has at its positions, as far as the broker tells them soon."""
    times: dict[tuple[TopicPartition, int], int | None] = {}
    left = sorted(plan.positions())
    while left:
        asked = dict(left)  # a partition once, at its last position
        left = [position for position in left if asked[position[0]] != position[1]]
        try:
            found = client.record_times(asked, within=_SHOWN_WITHIN)
        except BrokerError as error:
            log.info("The times of the log are not shown: %s", error)
            break
        times |= {(tp, asked[tp]): time for tp, time in found.items()}
    return plan.with_times(times)


def plan_joint_reset(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    group_id: GroupIds,
    scope: TopicScope,
    scenario: Scenario,
    *,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: NoCommit = "fail",
    policy: RewindPolicy | None = None,
    token: str = "",
) -> JointPlan:
    """
    Plan to move a checkpoint and the groups that follow it to the same offsets.

    The partitions are those of the checkpoint's newest committed batch. ``current`` and ``shift_by`` start from
    the group's committed offset, as in Kafka's tool; a partition without one stands where the checkpoint does.

    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished.
    :raises PlanRefusedError: if the pipeline's names do not fit the checkpoint.
    """
    state = checkpoint.read()
    sources = state.kafka_offsets
    held = _of_checkpoint(checkpoint, sources, group_id, scope)
    scopes = {group: TopicScope.of(offsets) for group, offsets in held.by_group.items()}
    earlier = archive_of_run(checkpoint, token)
    if earlier is None:
        groups = plan_resets(
            client,
            scopes,
            scenario,
            now=now,
            on_out_of_range=on_out_of_range,
            on_no_commit=on_no_commit,
            stands=held.by_group,
            token=token,
        )
        rewind = plan_seek(checkpoint, source_offsets(sources, group_id, _after(groups)), policy)
        return JointPlan(_with_query(groups, rewind), rewind)
    # An earlier try of this run has saved what it found and where it was to go: that is what is finished now.
    kept = json.loads(read_attachment(checkpoint, earlier, _GROUPS) or "{}")
    after = {group: parse_positions(offsets) for group, offsets in kept.get("after", {}).items() if offsets}
    groups = []
    for group, offsets in after.items():
        to = ToOffset({tp: offset for tp, offset in offsets.items() if offset is not None})
        groups += plan_resets(
            client, {group: TopicScope.of(offsets)}, to, now=now, on_out_of_range=on_out_of_range
        )
    rewind = plan_seek(checkpoint, source_offsets(sources, group_id, _after(groups)), policy)
    before = {group: parse_positions(offsets) for group, offsets in kept.get("before", {}).items() if offsets}
    rewind = resume(checkpoint, rewind, earlier)
    groups = [replace(plan, source=scenario_json(scenario)) for plan in groups]
    return JointPlan(_with_query(groups, rewind), rewind).with_before(before)


def plan_restore_receipt(
    client: OffsetsClient,
    value: object,
    checkpoint: SparkCheckpoint | None,
    group_id: GroupIds,
    *,
    on_out_of_range: OutOfRangePolicy = "fail",
    on_no_commit: RestoreNoCommit = "skip",
    policy: RewindPolicy | None = None,
) -> JointPlan:
    """
    Plan to put back what a receipt says was overwritten.

    :param value: the receipt, as the reset returned it.
    :param checkpoint: the checkpoint that moved along; without it only the groups are restored.
    :param group_id: the pipeline's groups, which the receipt must be of.
    :param on_no_commit: what becomes of a partition that had no commit, which cannot be taken away again:
        ``skip`` leaves it where it is, ``earliest`` moves it to its log start.
    :return: the plan with its refusals; nothing was written.
    """
    groups = read_receipt(value)
    if any(group.plan_only for group in groups):
        raise PlanRefusedError(
            ["the receipt is of a plan that was only shown, so there is nothing to restore"]
        )
    before = {group.group_id: group.before for group in groups if group.before}
    ours = _names(group_id)
    if not set(before) <= set(ours):
        raise UsageError(
            f"the receipt is of group {', '.join(sorted(set(before) - set(ours)))}, and group_id names {', '.join(ours)}: "
            "give the receipt of this pipeline's reset"
        )
    without = {group: [tp for tp, offset in held.items() if offset is None] for group, held in before.items()}
    targets: dict[str, Offsets] = {
        group: {tp: offset for tp, offset in held.items() if offset is not None}
        for group, held in before.items()
    }
    if on_no_commit == "earliest":
        logs = client.log_ranges(sorted({tp for partitions in without.values() for tp in partitions}))
        for group, partitions in without.items():
            targets[group] |= {tp: logs[tp].start for tp in partitions}
    plans = _moves(client, targets, {"restore": "receipt"}, on_out_of_range)
    remark = "had no committed offset, which cannot be restored; " + (
        "left where it is" if on_no_commit == "skip" else "moved to its log start"
    )
    plans = [plan.noting(without.get(plan.group_id, []), remark) for plan in plans]
    kept = read_rewind_receipt(value)
    if kept is None:
        return JointPlan(plans)
    if checkpoint is None:
        remark = (
            f"the checkpoint {kept.location} moved with it, and is not moved back: no checkpoint is given"
        )
        return JointPlan([replace(plan, notes=(*plan.notes, remark)) for plan in plans])
    query_id = checkpoint.read().query_id
    if query_id != kept.query_id:
        raise PlanRefusedError(
            [
                f"{checkpoint.location}: the receipt is of query {kept.query_id}, and the checkpoint is of query {query_id}: "
                "the checkpoint was replaced since; restore the groups alone with checkpoint_location=None"
            ]
        )
    rewind = _restored_checkpoint(client, checkpoint, kept, on_out_of_range, policy)
    return JointPlan(_with_query(plans, rewind), rewind)


def plan_restore_file(
    client: OffsetsClient,
    uri: str,
    checkpoint: SparkCheckpoint | None,
    group_id: GroupIds,
    *,
    scope: TopicScope | None = None,
    on_out_of_range: OutOfRangePolicy = "fail",
    policy: RewindPolicy | None = None,
) -> JointPlan:
    """
    Plan to put back offsets that were saved in Kafka's CSV.

    :param uri: the file.
    :param checkpoint: moved along, if one is given.
    :param group_id: the pipeline's groups.
    :param scope: partitions outside are left out.
    :raises UsageError: if the file cannot be read.
    :raises OffsetsFormatError: if it is not Kafka's CSV, or has no line for a group.
    """
    scope = scope or TopicScope()
    offsets = read_file(uri).groups(_names(group_id))
    left_out = [tp for held in offsets.values() for tp in held if tp not in scope]
    within = {group: {tp: held[tp] for tp in held if tp in scope} for group, held in offsets.items()}
    plans = _moves(client, within, {"restore": uri}, on_out_of_range)
    plans = [plan.noting(left_out, "left out, since topics does not name it") for plan in plans]
    if checkpoint is None:
        return JointPlan(plans)
    sources = checkpoint.read().kafka_offsets
    _of_checkpoint(checkpoint, sources, group_id, TopicScope())
    targets = source_offsets(sources, group_id, _after(plans))
    reached = {tp for held in targets.values() for tp in held}
    outside = [tp for plan in plans for tp in plan.after if tp not in reached]
    rewind = plan_seek(checkpoint, targets, policy, kind="undo")
    plans = [
        plan.noting([tp for tp in outside if tp in plan.after], "not in the checkpoint, only the group moves")
        for plan in _with_query(plans, rewind)
    ]
    return JointPlan(plans, rewind)


def plan_checkpoint_seek(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    scenario: Scenario,
    *,
    scope: TopicScope | None = None,
    now: datetime,
    on_out_of_range: OutOfRangePolicy = "fail",
    policy: RewindPolicy | None = None,
) -> JointPlan:
    """
    Plan to move a checkpoint alone; ``current`` and ``shift_by`` start from where it stands.

    :param scope: partitions outside stay where they are.
    """
    scope = scope or TopicScope()
    sources = checkpoint.read().kafka_offsets
    everything = {tp for offsets in sources.values() for tp in offsets}
    _check_kafka(checkpoint, sources)
    known = {tp.topic for tp in everything}
    strangers = [topic for topic in scope.topics or () if topic not in known]
    if strangers:
        raise PlanRefusedError(
            [
                f"{checkpoint.location}: topics names {', '.join(strangers)}, and the newest batch has {', '.join(sorted(known))}"
            ]
        )
    given = given_offsets(scenario, "", scope, 1)
    named = given.to if given is not None and isinstance(given.to, Mapping) else None
    unknown = sorted(set(named or ()) - everything)
    if unknown:
        raise PlanRefusedError(
            [
                f"{checkpoint.location}: the newest batch has no {summarize(unknown)}: leave it out of the offsets"
            ]
        )
    plans = {}
    for source, offsets in sources.items():
        before: Positions = {
            tp: offset for tp, offset in offsets.items() if tp in scope and (named is None or tp in named)
        }
        if not before:
            continue
        to = scenario if named is None else ToOffset({tp: named[tp] for tp in before})
        plans[source] = plan_positions(
            client, source, before, to, source={}, now=now, on_out_of_range=on_out_of_range
        )
    rewind = plan_seek(checkpoint, {source: plan.after for source, plan in plans.items()}, policy)
    refusals = [refusal for plan in plans.values() for refusal in plan.refusals]
    notes = [note for plan in plans.values() for note in plan.notes]
    return JointPlan(
        (), replace(rewind, refusals=(*refusals, *rewind.refusals), notes=(*notes, *rewind.notes))
    )


def apply_joint(
    client: OffsetsClient | None,
    checkpoint: SparkCheckpoint | None,
    plan: JointPlan,
    metadata: CommitMetadata,
    *,
    quiet_period: float = QUIET_PERIOD,
) -> None:
    """
    Carry out a joint plan: the checkpoint first, then the groups, and read both back.

    :raises PlanRefusedError: if a part of it must not be carried out; nothing was written.
    :raises CheckpointError: if the checkpoint could not be moved; the groups were not touched.
    :raises BrokerError: if a commit failed; says that the checkpoint has moved already.
    """
    plan.check()
    rewind = plan.rewind
    if rewind is None or checkpoint is None:
        if client is not None:
            apply_plans(client, plan.groups, metadata)
        return
    apply_rewind(
        checkpoint,
        rewind,
        quiet_period=quiet_period,
        token=metadata.token,
        attachments=_attachments(plan.groups),
    )
    try:
        if client is not None:
            apply_plans(client, plan.groups, metadata)
    except BrokerError as error:
        if rewind.steps:
            moved = (
                f"{error}; the checkpoint {rewind.location} was moved before: running it again finishes the rest, undoing "
                f"archive {rewind.archive} takes it back"
            )
            error.args = (moved, *error.args[1:])
        raise
    verify_rewind(checkpoint, rewind)


def _names(group_id: GroupIds) -> list[str]:
    return [group_id] if isinstance(group_id, str) else sorted(set(group_id.values()))


def _of_checkpoint(
    checkpoint: SparkCheckpoint, sources: Mapping[str, Offsets], group_id: GroupIds, scope: TopicScope
) -> GroupOffsets:
    _check_kafka(checkpoint, sources)
    return group_offsets(sources, group_id, scope)


def _check_kafka(checkpoint: SparkCheckpoint, sources: Mapping[str, Offsets]) -> None:
    if not sources:
        raise CheckpointError(
            f"{checkpoint.location}: the newest finished batch has no Kafka offsets, or no batch has finished, so there is "
            "nothing to move: check checkpoint_location, or let the query's first batch finish"
        )


def _restored_checkpoint(
    client: OffsetsClient,
    checkpoint: SparkCheckpoint,
    kept: RewindReceipt,
    on_out_of_range: OutOfRangePolicy,
    policy: RewindPolicy | None,
) -> Rewind:
    now = checkpoint.read().kafka_offsets
    plans = {
        source: OffsetPlan.make(
            source,
            offsets,
            {tp: now.get(source, {}).get(tp) for tp in offsets},
            client.log_ranges(offsets),
            on_out_of_range=on_out_of_range,
        )
        for source, offsets in kept.before.items()
    }
    targets = {source: plan.after for source, plan in plans.items()}
    archives = {archive.name: archive for archive in read_archives(checkpoint)}
    archive = archives.get(kept.archive or "")
    # Of a move that was refused there is a receipt and no archive, and a later one may have taken its name.
    if archive is not None and (
        archive.undone or (archive.before, archive.after) != (kept.before, kept.after)
    ):
        archive = None
    if archive is not None and targets == kept.before:
        rewind = plan_undo(checkpoint, archive.name, policy)
    else:
        rewind = plan_seek(checkpoint, targets, policy, kind="undo")
    refusals = [refusal for plan in plans.values() for refusal in plan.refusals]
    notes = [note for plan in plans.values() for note in plan.notes]
    return replace(rewind, refusals=(*refusals, *rewind.refusals), notes=(*notes, *rewind.notes))


def _moves(
    client: OffsetsClient,
    targets: Mapping[str, Offsets],
    source: Mapping[str, Any],
    on_out_of_range: OutOfRangePolicy,
) -> list[OffsetPlan]:
    refusals = active_groups(client, targets)
    plans = plan_moves(client, targets, source=source, on_out_of_range=on_out_of_range)
    return [replace(plan, refusals=(*plan.refusals, *refusals.get(plan.group_id, ()))) for plan in plans]


def _after(plans: Sequence[OffsetPlan]) -> dict[str, Offsets]:
    return {plan.group_id: plan.after for plan in plans}


def _with_query(plans: Sequence[OffsetPlan], rewind: Rewind) -> list[OffsetPlan]:
    """Say in the groups' source which query's checkpoint moves with them."""
    where = {"checkpoint": rewind.location, "query_id": rewind.query_id, "batch_id": rewind.batch_id}
    return [replace(plan, source={**plan.source, **where}) for plan in plans]


def _attachments(plans: Sequence[OffsetPlan]) -> dict[str, str]:
    if not plans:
        return {}
    groups = {
        "before": {plan.group_id: offsets_json(plan.before) for plan in plans},
        "after": {plan.group_id: offsets_json(plan.after) for plan in plans},
    }
    return {
        _GROUPS: json.dumps(groups, indent=2),
        "before.csv": format_csv({plan.group_id: plan.overwritten for plan in plans}),
        "after.csv": format_csv({plan.group_id: plan.after for plan in plans}),
    }
