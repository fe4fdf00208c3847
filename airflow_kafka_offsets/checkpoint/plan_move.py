"""
Plans the move of a Spark checkpoint to other offsets, and its undo.

Three moves, all of a query that is stopped (measured with Spark 3.5 to 4.2):

* *seek* writes other offsets into the Kafka lines of the newest batch's file in ``offsets/``. The query goes
  on from there with the next batch id, so that no id occurs twice and sinks that remember ids stay right.
* *truncate* removes batches, newest first. The query plans them again under the same ids: exact also for a
  query that keeps state, and wrong for sinks that skip ids they have seen. The Spark application must have
  ended, not the query alone: one that lives on may write old state again.
* *undo* puts back what an archive has kept, or seeks to it if the query has run since.

Each is planned as a list of files to write and remove, in an order in which every interruption leaves a
checkpoint that Spark starts from; :func:`~airflow_kafka_offsets.checkpoint.apply_move.apply_checkpoint_plan`
carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_kafka_offsets.checkpoint.archive import (
    Archive,
    find_archive,
    read_archives,
    read_copy,
)
from airflow_kafka_offsets.checkpoint.archive_names import next_name
from airflow_kafka_offsets.checkpoint.guards import (
    Survey,
    link_refusals,
    not_restartable,
    pending_refusals,
    state_refusals,
    take_survey,
    truncate_refusals,
    unknown_partitions,
)
from airflow_kafka_offsets.checkpoint.open_moves import fingerprint, has_run_since, resume, same_request
from airflow_kafka_offsets.checkpoint.plan_failover import failover_refusals
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state_store import StateStores
from airflow_kafka_offsets.errors import CheckpointError, PlanRefusedError
from airflow_kafka_offsets.model.checkpoint_plan import (
    CheckpointPlan,
    CheckpointPolicy,
    Kind,
    Step,
    sources_json,
)
from airflow_kafka_offsets.model.offsets import Offsets


def plan_seek(
    checkpoint: SparkCheckpoint,
    targets: Mapping[str, Offsets],
    policy: CheckpointPolicy | None = None,
    *,
    kind: Kind = "seek",
    undoes: str | None = None,
    request: str = "",
    keeps_begun: bool = False,
) -> CheckpointPlan:
    """
    Plan to let the query go on from other offsets.

    A move that was interrupted is finished by the same request; any other one is refused until then.

    :param targets: source -> offsets, inside the log: that is for the caller to check. Partitions that are
        not named keep theirs.
    :param request: identifies what was asked for; by default the targets do.
    :param keeps_begun: whether a batch that was begun from the targets may stay.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished yet.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    policy = policy or CheckpointPolicy()
    request = request or fingerprint(kind, undoes, sources_json(targets))
    survey = take_survey(checkpoint)
    earlier = same_request(checkpoint, survey, request, undoes)
    before = survey.state.kafka_offsets
    refusals = not_restartable(survey)
    refusals += unknown_partitions(survey, targets)
    refusals += state_refusals(checkpoint, policy)
    after = {source: offsets | targets.get(source, {}) for source, offsets in before.items()}
    kept = keeps_begun and after == before and policy.on_pending_batch == "fail"
    discarded = () if kept else survey.pending
    if discarded:
        refusals += pending_refusals(checkpoint, survey, policy)
    # Newest first: a file that goes leaves its predecessor as the newest, and that one is whole.
    steps = [Step(f"offsets/{number}", None) for number in reversed(discarded)]
    if after != before and not refusals:
        steps.append(Step(f"offsets/{survey.batch_id}", survey.entry.with_offsets(targets).encode()))
    without = [source.source for source in survey.state.sources if source.offsets is None]
    notes = (f"source {', '.join(without)} has no Kafka offsets and stays as it is",) if without else ()
    plan = _plan(checkpoint, survey, kind, after, steps, request, refusals, discarded=discarded)
    return resume(checkpoint, replace(plan, notes=notes, undoes=undoes), earlier)


def plan_truncate(
    checkpoint: SparkCheckpoint, batch_id: int, policy: CheckpointPolicy | None = None
) -> CheckpointPlan:
    """
    Plan to remove every batch after one, so that the query plans them again.

    :param batch_id: the batch that becomes the newest; its offsets are where the query goes on.
    :param policy: must name the sink.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished yet.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    policy = policy or CheckpointPolicy()
    request = fingerprint("truncate", batch_id)
    survey = take_survey(checkpoint)
    earlier = same_request(checkpoint, survey, request)
    after = checkpoint.entry(batch_id).kafka_offsets if batch_id in survey.planned else {}
    # commits/N before offsets/N: in between, N is a batch that Spark would run again.
    steps = [
        Step(f"{directory}/{number}", None)
        for number in sorted(survey.planned | survey.committed, reverse=True)
        if number > batch_id
        for directory, there in (("commits", survey.committed), ("offsets", survey.planned))
        if number in there
    ]
    there = steps and batch_id in survey.planned & survey.committed
    stores = StateStores.of(checkpoint) if there else StateStores({})
    refusals = truncate_refusals(checkpoint, survey, batch_id, policy, stores)
    refusals += failover_refusals(checkpoint, batch_id)
    derived = () if refusals else stores.whole_after(batch_id + 1)
    refusals += link_refusals(checkpoint, derived)
    plan = _plan(checkpoint, survey, "truncate", after, steps, request, refusals, discarded=survey.pending)
    return resume(checkpoint, replace(plan, derived=derived), earlier)


def plan_undo(
    checkpoint: SparkCheckpoint, archive: str | None = None, policy: CheckpointPolicy | None = None
) -> CheckpointPlan:
    """
    Plan to take a move back.

    If the query has not run since, the files come back as they were, an unfinished batch included. If it has,
    the checkpoint is moved to the offsets that it had.

    :param archive: name of the archive; by default the newest move that was not taken back.
    :raises CheckpointError: if there is no such archive, or the checkpoint cannot be read.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    kept = find_archive(checkpoint, archive)
    if kept.undoes is not None and not kept.over:
        raise CheckpointError(
            f"{checkpoint.location}: {kept.name} is itself an undo, and was not finished: undo {kept.undoes} "
            "again, which finishes it"
        )
    request = fingerprint("undo", kept.name)
    survey = take_survey(checkpoint)
    if kept.query_id != survey.state.query_id:
        raise PlanRefusedError(
            f"{checkpoint.location}: archive {kept.name} is of query {kept.query_id}, and the checkpoint is "
            f"of query {survey.state.query_id}: give the archive's own checkpoint"
        )
    # An undo that was interrupted goes on as it began: what it has left may look as if nothing had run.
    archives = read_archives(checkpoint)
    begun = [one for one in archives if one.undoes == kept.name and not one.copies]
    moved = begun or kept.carried or has_run_since(checkpoint, kept, survey)
    if refusal := _past_failover(checkpoint, kept, archives, moved=bool(moved)):
        raise PlanRefusedError(refusal)
    if moved:
        return plan_seek(checkpoint, kept.before, policy, kind="undo", undoes=kept.name, request=request)
    earlier = same_request(checkpoint, survey, request, kept.name)
    known = [Step(path, read_copy(checkpoint, kept, path)) for path in kept.files]
    steps = [step for step in known if checkpoint.read_file(step.path) != step.data]
    # What goes, goes newest first; then what comes, oldest first.
    steps.sort(key=_put_back_order)
    plan = _plan(checkpoint, survey, "undo", kept.before, steps, request)
    return resume(checkpoint, replace(plan, undoes=kept.name, copies=True, **_back_from(kept)), earlier)


def _back_from(kept: Archive) -> dict[str, Any]:
    """Return where the offsets count once a failover is taken back."""
    return {"log_ids": kept.left, "left": kept.log_ids} if kept.is_failover else {}


def _past_failover(
    checkpoint: SparkCheckpoint, kept: Archive, archives: Sequence[Archive], *, moved: bool
) -> str | None:
    """
    Return why a move cannot be taken back: the query is on another cluster since.

    :param moved: whether the query has run since the move.
    """
    later = [each for each in archives if each.fails_over and each.number > kept.number]
    if kept.fails_over and moved:
        later.append(kept)
    if not later or (kept.undone and not moved):
        return None
    return (
        f"{checkpoint.location}: failover {later[-1]} has moved the query to another cluster, where the "
        "offsets of before are other records: move it back with a failover in the other direction "
        "('failover back'), which translates its position there"
    )


def _plan(
    checkpoint: SparkCheckpoint,
    survey: Survey,
    kind: Kind,
    after: Mapping[str, Offsets],
    steps: list[Step],
    request: str,
    refusals: Sequence[str] = (),
    discarded: tuple[int, ...] = (),
) -> CheckpointPlan:
    return CheckpointPlan(
        kind=kind,
        location=checkpoint.location,
        query_id=survey.state.query_id,
        batch_id=survey.batch_id,
        before=survey.state.kafka_offsets,
        after=after,
        steps=tuple(steps),
        found={step.path: checkpoint.read_file(step.path) for step in steps},
        discarded=discarded,
        batches=(frozenset(survey.planned), frozenset(survey.committed)),
        refusals=(*refusals, *link_refusals(checkpoint, [step.path for step in steps])),
        archive=next_name(checkpoint, kind) if steps else None,
        request=request,
    )


def _put_back_order(step: Step) -> tuple[int, int, bool]:
    # commits/N goes before offsets/N, and comes after it: in between, Spark would run batch N again.
    directory, _, number = step.path.partition("/")
    if step.data is None:
        return 0, -int(number), directory == "offsets"
    return 1, int(number), directory == "commits"
