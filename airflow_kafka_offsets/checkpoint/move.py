"""
How is a Spark checkpoint moved to other offsets, and how is that taken back?

Three moves, all of a query that is stopped (measured with Spark 3.5 to 4.2):

* *seek* writes other offsets into the Kafka lines of the newest batch's file in ``offsets/``. The query goes on
  from there with the next batch id, so that no id occurs twice and sinks that remember ids stay right.
* *truncate* removes batches, newest first. The query plans them again under the same ids: exact also for a query
  that keeps state, and wrong for sinks that skip ids they have seen. The Spark application must have ended, not the
  query alone: one that lives on may write old state again.
* *undo* puts back what an archive has kept, or seeks to it if the query has run since.

Each is planned as a list of files to write and remove, in an order in which every interruption leaves a checkpoint
that Spark starts from; one function carries it out: archive, steps, read back. Hadoop's checksums (``.7.crc``) go
before the file that they belong to: left alone they would not fit it any more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone

from airflow_kafka_offsets.checkpoint.archive import (
    Archive,
    digest,
    find_archive,
    mark_done,
    mark_undone,
    newest_archive,
    next_name,
    read_archives,
    read_copy,
    write_archive,
)
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
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.checkpoint.state_store import whole_states_after
from airflow_kafka_offsets.errors import (
    CheckpointError,
    CheckpointMovedError,
    MoveUnfinishedError,
    PlanRefusedError,
)
from airflow_kafka_offsets.model.checkpoint_plan import (
    LONGEST_QUIET_PERIOD,
    QUIET_PERIOD,
    CheckpointPlan,
    CheckpointPolicy,
    Kind,
    Step,
    sources_json,
)
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import Offsets
from airflow_kafka_offsets.model.parameters import parse_seconds
from airflow_kafka_offsets.storage import modified

log = logging.getLogger(__name__)


def plan_seek(
    checkpoint: SparkCheckpoint,
    targets: Mapping[str, Offsets],
    policy: CheckpointPolicy | None = None,
    *,
    kind: Kind = "seek",
    undoes: str | None = None,
    request: str = "",
) -> CheckpointPlan:
    """
    Plan to let the query go on from other offsets.

    A move that was interrupted is finished by the same request; any other one is refused until then.

    :param targets: source -> offsets, real numbers inside the log: that is for the caller to check. Partitions
        that are not named keep theirs.
    :param request: identifies what was asked for; by default the targets do.
    :return: the plan with its refusals; nothing was written.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished yet.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    policy = policy or CheckpointPolicy()
    request = request or fingerprint(kind, undoes, sources_json(targets))
    survey = take_survey(checkpoint)
    earlier = _same_request(checkpoint, survey, request, undoes)
    before = survey.state.kafka_offsets
    refusals = not_restartable(survey)
    refusals += unknown_partitions(survey, targets)
    refusals += state_refusals(checkpoint, policy)
    refusals += pending_refusals(checkpoint, survey, policy)
    after = {source: offsets | targets.get(source, {}) for source, offsets in before.items()}
    # Newest first: a file that goes leaves its predecessor as the newest, and that one is whole.
    steps = [Step(f"offsets/{number}", None) for number in reversed(survey.pending)]
    if after != before and not refusals:
        steps.append(Step(f"offsets/{survey.batch_id}", survey.entry.with_offsets(targets).encode()))
    without = [source.source for source in survey.state.sources if source.offsets is None]
    notes = [f"source {', '.join(without)} has no Kafka offsets and stays as it is"] if without else []
    checkpoint_plan = _plan(
        checkpoint, survey, kind, after, steps, refusals, notes, undoes, survey.pending, request
    )
    return checkpoint_plan if earlier is None else resume(checkpoint, checkpoint_plan, earlier)


def plan_truncate(
    checkpoint: SparkCheckpoint, batch_id: int, policy: CheckpointPolicy | None = None
) -> CheckpointPlan:
    """
    Plan to remove every batch after one, so that the query plans them again.

    :param batch_id: the batch that is to be the newest; its offsets are where the query goes on.
    :param policy: must name the sink.
    :return: the plan with its refusals; nothing was written.
    :raises CheckpointError: if the checkpoint cannot be read, or no batch has finished yet.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    policy = policy or CheckpointPolicy()
    request = fingerprint("truncate", batch_id)
    survey = take_survey(checkpoint)
    earlier = _same_request(checkpoint, survey, request)
    refusals = truncate_refusals(checkpoint, survey, batch_id, policy)
    after = checkpoint.entry(batch_id).kafka_offsets if batch_id in survey.planned else {}
    # commits/N before offsets/N: in between, N is a batch that Spark would run again.
    steps = [
        Step(f"{directory}/{number}", None)
        for number in sorted(survey.planned | survey.committed, reverse=True)
        if number > batch_id
        for directory, there in (("commits", survey.committed), ("offsets", survey.planned))
        if number in there
    ]
    checkpoint_plan = _plan(
        checkpoint, survey, "truncate", after, steps, refusals, [], None, survey.pending, request
    )
    if steps and not refusals:
        derived = whole_states_after(checkpoint, batch_id + 1)
        links = link_refusals(checkpoint, derived)
        checkpoint_plan = replace(
            checkpoint_plan, derived=derived, refusals=(*checkpoint_plan.refusals, *links)
        )
    return checkpoint_plan if earlier is None else resume(checkpoint, checkpoint_plan, earlier)


def plan_undo(
    checkpoint: SparkCheckpoint, archive: str | None = None, policy: CheckpointPolicy | None = None
) -> CheckpointPlan:
    """
    Plan to take a move back.

    If the query has not run since, the files come back as they were, an unfinished batch included. If it has, the
    checkpoint is moved to the offsets that it had.

    :param archive: name of the archive; by default the newest move that was not taken back.
    :return: the plan with its refusals; nothing was written.
    :raises CheckpointError: if there is no such archive, or the checkpoint cannot be read.
    :raises MoveUnfinishedError: if another move was begun and not finished.
    """
    kept = find_archive(checkpoint, archive)
    if kept.undoes is not None and not kept.over:
        raise CheckpointError(
            f"{checkpoint.location}: {kept.name} is itself an undo, and was not finished: undo {kept.undoes} again, which "
            "finishes it"
        )
    request = fingerprint("undo", kept.name)
    survey = take_survey(checkpoint)
    if kept.query_id != survey.state.query_id:
        raise PlanRefusedError(
            [
                f"{checkpoint.location}: archive {kept.name} is of query {kept.query_id}, and the checkpoint is of query "
                f"{survey.state.query_id}: give the archive's own checkpoint"
            ]
        )
    # An undo that was interrupted goes on as it began: what it has left may look as if nothing had run.
    begun = [one for one in read_archives(checkpoint) if one.undoes == kept.name and not one.copies]
    if begun or kept.carried or _has_run_since(checkpoint, survey, kept):
        return plan_seek(checkpoint, kept.before, policy, kind="undo", undoes=kept.name, request=request)
    earlier = _same_request(checkpoint, survey, request, kept.name)
    known = [Step(path, read_copy(checkpoint, kept, path)) for path in kept.files]
    steps = [step for step in known if checkpoint.read_file(step.path) != step.data]
    # What goes, goes newest first; then what comes, oldest first.
    steps.sort(key=_put_back_order)
    checkpoint_plan = _plan(checkpoint, survey, "undo", kept.before, steps, [], [], kept.name, (), request)
    checkpoint_plan = replace(checkpoint_plan, copies=True)
    return checkpoint_plan if earlier is None else resume(checkpoint, checkpoint_plan, earlier)


def unfinished_move(checkpoint: SparkCheckpoint) -> Archive | None:
    """
    Return the move that was begun and not finished, ``None`` if there is none.

    If the query has run since, its position is what counts, and the move is over.

    :raises CheckpointError: if the checkpoint cannot be read.
    """
    kept = newest_archive(checkpoint)
    if kept is None or kept.over:
        return None
    return None if has_run_since(checkpoint, kept) else kept


def has_run_since(checkpoint: SparkCheckpoint, kept: Archive) -> bool:
    """Return whether the query has planned or finished a batch since a move."""
    return _has_run_since(checkpoint, take_survey(checkpoint), kept)


def unfinished_refusal(checkpoint: SparkCheckpoint, kept: Archive) -> MoveUnfinishedError:
    """Return the error for whoever meets a move that was begun and not finished."""
    return MoveUnfinishedError(
        [
            f"{checkpoint.location}: move {kept} was begun and not finished: it is under way, or has stopped half-way. The "
            "same task, or the same command, finishes it when it runs again; 'airflow-kafka-offsets group restore GROUP "
            f"--checkpoint {checkpoint.location} --archive {kept.undoes or kept.name}' "
            f"{'finishes it' if kept.undoes else 'takes it back'}"
        ],
        retriable=True,
    )


def fingerprint(*request: object) -> str:
    """Return a short text that is the same for the same request."""
    text = json.dumps(request, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def resume(checkpoint: SparkCheckpoint, checkpoint_plan: CheckpointPlan, kept: Archive) -> CheckpointPlan:
    """
    Return a plan as the rest of a move that was interrupted: what was overwritten is in that move's archive.

    :param checkpoint_plan: the plan, made on what the interrupted move has left.
    :param kept: the archive of the interrupted move.
    """
    if _has_run_since(checkpoint, take_survey(checkpoint), kept):
        return checkpoint_plan
    removed = [path for path, (_, after) in kept.files.items() if after is None]
    batches = sorted(int(path.removeprefix("offsets/")) for path in removed if path.startswith("offsets/"))
    discarded = tuple(batch for batch in batches if batch > kept.batch_id)
    return replace(checkpoint_plan, before=kept.before, archive=kept.name, discarded=discarded, resumes=True)


def apply_checkpoint_plan(
    checkpoint: SparkCheckpoint,
    checkpoint_plan: CheckpointPlan,
    *,
    quiet_period: float = QUIET_PERIOD,
    by: CommitMetadata | None = None,
    attachments: Mapping[str, str] | None = None,
    last_check: Callable[[], None] | None = None,
    finish: bool = True,
) -> None:
    """
    Carry a plan out: look that nothing has changed, keep what is overwritten, change it, read it back.

    :param quiet_period: seconds without a write for which to wait at most; a write meanwhile is a running query.
    :param by: who makes the move; its token lets a retry find what its first try has kept.
    :param attachments: name -> text of more files for the archive.
    :param last_check: called when the move can be seen by others and nothing was written yet; what it raises ends it.
    :param finish: whether the move is over with this; else :func:`finish_checkpoint_move` is for the caller.
    :raises PlanRefusedError: if the plan must not be carried out, or the query is running; nothing was written.
    :raises CheckpointError: if the storage fails, or what is read back is not what was planned.
    """
    checkpoint_plan.check()
    quiet_period = parse_seconds(quiet_period, "quiet_period", most=LONGEST_QUIET_PERIOD) or 0.0
    if checkpoint_plan.steps:
        survey = _wait_until_quiet(checkpoint, checkpoint_plan, quiet_period)
        nonce = None
        if not checkpoint_plan.resumes:
            nonce = write_archive(
                checkpoint,
                checkpoint_plan,
                newest_planned=max(survey.planned),
                newest_committed=max(survey.committed),
                by=by or CommitMetadata(),
                attachments=attachments or {},
            )
        if last_check is not None:
            _check_last(checkpoint, checkpoint_plan, last_check)
        if nonce is not None and ((newest := newest_archive(checkpoint)) is None or newest.nonce != nonce):
            raise CheckpointMovedError(
                f"{checkpoint.location}: another move of it was begun at the same time; nothing was changed"
            )
        for path in checkpoint_plan.derived:
            _carry_out(checkpoint, Step(path, None))
        for step in checkpoint_plan.steps:
            _carry_out(checkpoint, step)
        verify_checkpoint(checkpoint, checkpoint_plan)
        log.info(
            "Moved and read back: checkpoint %s, archive %s", checkpoint.location, checkpoint_plan.archive
        )
    if finish:
        finish_checkpoint_move(checkpoint, checkpoint_plan)


def finish_checkpoint_move(checkpoint: SparkCheckpoint, checkpoint_plan: CheckpointPlan) -> None:
    """Note that all of a move was done, and that the move which it takes back is taken back."""
    # In this order: the same undo, made again, marks what is left.
    if checkpoint_plan.archive is not None:
        mark_done(checkpoint, checkpoint_plan.archive)
    if checkpoint_plan.undoes is not None:
        mark_undone(checkpoint, checkpoint_plan.undoes, checkpoint_plan.archive or "nothing to change")


def _check_last(
    checkpoint: SparkCheckpoint, checkpoint_plan: CheckpointPlan, check: Callable[[], None]
) -> None:
    try:
        check()
    except BaseException:
        if not checkpoint_plan.resumes and checkpoint_plan.archive is not None:
            mark_undone(checkpoint, checkpoint_plan.archive, "itself: nothing was changed")
        raise


def verify_checkpoint(checkpoint: SparkCheckpoint, checkpoint_plan: CheckpointPlan) -> None:
    """
    Compare the checkpoint with what was planned.

    :raises CheckpointError: if another process has written to it.
    """
    state = checkpoint.read()
    if state.kafka_offsets != checkpoint_plan.after:
        raise CheckpointError(
            f"{checkpoint.location}: the offsets read back after the move are not those that were written (batch "
            f"{state.batch_id}): the query is running, or another process moves the checkpoint; stop it. What was "
            f"overwritten is in archive {checkpoint_plan.archive}"
        )


def _carry_out(checkpoint: SparkCheckpoint, step: Step) -> None:
    directory, _, name = step.path.rpartition("/")
    # Hadoop's checksum, and that of Spark 4.1 for state.
    checkpoint.remove_file(f"{directory}/.{name}.crc")
    checkpoint.remove_file(f"{step.path}.crc")
    if step.data is None:
        checkpoint.remove_file(step.path)
    else:
        checkpoint.write_file(step.path, step.data)


def _plan(
    checkpoint: SparkCheckpoint,
    survey: Survey,
    kind: Kind,
    after: Mapping[str, Offsets],
    steps: list[Step],
    refusals: list[str],
    notes: list[str],
    undoes: str | None,
    discarded: tuple[int, ...],
    request: str,
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
        notes=tuple(notes),
        archive=next_name(checkpoint, kind) if steps else None,
        request=request,
        undoes=undoes,
    )


def _same_request(
    checkpoint: SparkCheckpoint, survey: Survey, request: str, undoes: str | None = None
) -> Archive | None:
    """
    Return the move that this request has begun before and not finished, ``None`` if nothing is unfinished.

    :param undoes: a move that may be unfinished: it is taken back.
    :raises MoveUnfinishedError: if another request has begun it.
    """
    kept = newest_archive(checkpoint)
    if kept is None or kept.over or kept.name == undoes or _has_run_since(checkpoint, survey, kept):
        return None
    if kept.request != request:
        raise unfinished_refusal(checkpoint, kept)
    return kept


def _put_back_order(step: Step) -> tuple[int, int, bool]:
    # commits/N goes before offsets/N, and comes after it: in between, N is a batch that Spark would run again.
    directory, _, number = step.path.partition("/")
    if step.data is None:
        return 0, -int(number), directory == "offsets"
    return 1, int(number), directory == "commits"


def _has_run_since(checkpoint: SparkCheckpoint, survey: Survey, kept: Archive) -> bool:
    if max(survey.planned) > kept.newest_planned or max(survey.committed) > kept.newest_committed:
        return True
    # Half a move, too, is one or the other, file by file.
    return any(digest(checkpoint.read_file(path)) not in known for path, known in kept.files.items())


def _wait_until_quiet(
    checkpoint: SparkCheckpoint, checkpoint_plan: CheckpointPlan, quiet_period: float
) -> Survey:
    """
    Return the checkpoint's survey when nothing was written for a while.

    The storage's clock may differ from ours, so a write is also found by what it changes while we wait.
    """
    survey = take_survey(checkpoint)
    paths = (f"offsets/{max(survey.planned)}", f"commits/{max(survey.committed)}")
    written = [modified(checkpoint.fs, f"{checkpoint.root}/{path}") for path in paths]
    known = [moment for moment in written if moment is not None]
    age = (datetime.now(tz=timezone.utc) - max(known)).total_seconds() if len(known) == len(paths) else 0.0
    wait = min(quiet_period, quiet_period - age)
    if wait > 0:
        log.info("Waiting %.1f s to see that no query writes to %s (quiet_period)", wait, checkpoint.location)
        time.sleep(wait)
        now = take_survey(checkpoint)
        again = [modified(checkpoint.fs, f"{checkpoint.root}/{path}") for path in paths]
        if (now.planned, now.committed, again) != (survey.planned, survey.committed, written):
            raise PlanRefusedError(
                [
                    f"{checkpoint.location}: was written to within the last {quiet_period:g} s: the query is running; stop "
                    "it first"
                ]
            )
    if (frozenset(survey.planned), frozenset(survey.committed)) != checkpoint_plan.batches or any(
        checkpoint.read_file(path) != data for path, data in checkpoint_plan.found.items()
    ):
        raise PlanRefusedError(
            [
                f"{checkpoint.location}: has changed since the plan was made: the query is running; stop it first"
            ]
        )
    return survey
