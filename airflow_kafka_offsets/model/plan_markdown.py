"""Plans as Markdown: tables that a user can read in half a minute before approving the plans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.approval import SHOWN_DIGITS, digest_of_all
from airflow_kafka_offsets.model.estimate import Estimate
from airflow_kafka_offsets.model.failover_plan import kinds_text
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.parameters import duration_text
from airflow_kafka_offsets.model.saved_plan import SavedPlan
from airflow_kafka_offsets.model.text import escape_controls, join_first, plural, shorten

TOPICS = 10
"""Most rows of a table of topics. If there are more topics, the table shows those that move furthest."""


def plan_markdown(saved: SavedPlan) -> str:
    """Return a plan as Markdown: groups and checkpoint, before and after, and the effects of the move."""
    found = Estimate.parse(saved.value["estimate"])
    at_most = "" if saved.left_logs is None else "at most "
    rows = [
        ("Moves", _moves(saved)),
        ("From", _from(saved)),
        ("To", _to(saved)),
        *_translation(saved),
        ("Read again", at_most + plural(found.records_again, "record") if found.records_again else "nothing"),
        ("Passed over unread", plural(found.records_passed, "record") if found.records_passed else ""),
        ("To read until the log end", f"{found.volume()}; {found.duration()}"),
        ("Lost", _lost(saved) or "nothing"),
        ("Sink", _sink(saved, found.records_again)),
        ("State", _state(saved, found.records_again)),
        ("Retention", found.retention_text()),
        ("Lag that gates will see", _lag(found)),
        ("Already triggered", _downstream(saved)),
    ]
    lines = [f"### Plan {saved.digest[:SHOWN_DIGITS]}, made {saved.created:%Y-%m-%d %H:%M} UTC", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows if text)]
    lines += ["", *_topics(saved)]
    return "\n".join(lines)


def plans_markdown(plans: Sequence[SavedPlan]) -> str:
    """
    Return a table of plans that are approved together, with a row for each pipeline.

    :raises OffsetsFormatError: if a plan's notes, which its digest does not cover, were changed.
    """
    try:
        return plan_markdown(plans[0]) if len(plans) == 1 else _table(plans)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OffsetsFormatError(
            f"a plan cannot be shown, because its estimate or its list of triggered runs was changed after "
            f"it was made ({type(error).__name__}): plan again"
        ) from error


def _table(plans: Sequence[SavedPlan]) -> str:
    found = [Estimate.parse(saved.value["estimate"]) for saved in plans]
    shown = digest_of_all([saved.digest for saved in plans])[:SHOWN_DIGITS]
    again = sum(each.records_again for each in found)
    total = sum(each.lag for each in found)
    lines = [
        f"### Plan {shown} of {len(plans)} pipelines: {again:,} records are read again, {total:,} until the "
        "log end",
        "",
        "| pipeline | from | to | read again | until the log end | takes | retention | notes |",
        "|---|---|---|--:|--:|---|---|---|",
    ]
    for saved, each in zip(plans, found, strict=True):
        cells = [
            ", ".join(_code(group.group_id) for group in saved.groups),
            _from(saved),
            _to(saved),
            f"{each.records_again:,}",
            each.volume(),
            each.duration(),
            each.retention_text(),
            "; ".join(filter(None, _warnings(saved, each))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _warnings(saved: SavedPlan, found: Estimate) -> list[str]:
    safe = saved.policy.idempotent_sink or saved.policy.sink == "noop" or not found.records_again
    named = [
        *_translation(saved),
        ("sink", "" if safe else _sink(saved, found.records_again)),
        ("keeps state", _state(saved, found.records_again) if saved.value.get("stateful") else ""),
        ("already triggered", _downstream(saved)),
    ]
    return [
        f"{plural(found.records_passed, 'record')} passed over unread" if found.records_passed else "",
        _discarded(saved),
        _lost(saved),
        *(f"{name.lower()}: {text}" for name, text in named if text),
    ]


def _moves(saved: SavedPlan) -> str:
    groups = ", ".join(_code(group.group_id) for group in saved.groups)
    text = f"group{'s' if len(saved.groups) > 1 else ''} {groups}"
    if (checkpoint := saved.checkpoint) is not None:
        text += f" and checkpoint {_code(checkpoint.location)} (batch {checkpoint.batch_id})"
    return "; ".join(filter(None, [text, _discarded(saved)]))


def _discarded(saved: SavedPlan) -> str:
    batches = () if saved.checkpoint is None else saved.checkpoint.discarded
    return f"unfinished batch {', '.join(map(str, batches))} is discarded" if batches else ""


def _from(saved: SavedPlan) -> str:
    return _times(saved, "before") if saved.left_logs is None else _cluster(saved.left_logs)


def _to(saved: SavedPlan) -> str:
    times = _times(saved, "after")
    return times if saved.left_logs is None else f"{_cluster(saved.log_ids)}: {times}"


def _cluster(ids: LogIds) -> str:
    return f"cluster {_code(ids.cluster)}" if ids.cluster else "a cluster that is not known"


def _translation(saved: SavedPlan) -> list[tuple[str, str]]:
    found = saved.value.get("failover")
    if saved.left_logs is None or not isinstance(found, Mapping):
        return []
    unmirrored = found.get("unmirrored")
    most = f"at most {plural(unmirrored, 'record')}" if unmirrored else "none"
    behind = "not known" if unmirrored is None else most
    kinds, notes = kinds_text(found.get("kinds") or {}), "; ".join(found.get("notes") or ())
    return [("Translation", _cell(kinds)), ("Never mirrored", behind), ("Remarks", _cell(notes))]


def _times(saved: SavedPlan, which: str) -> str:
    """Return the range of the record timestamps at the offsets before or after the move."""
    found = [time for group in saved.receipt.groups for tp in group.after if (time := group.time(which, tp))]
    dated = sorted(time for time in found if time[:1].isdigit())
    words = [f"the {word}" if word == "end" else word for word in ("deleted", "end") if word in found]
    shown = list(dict.fromkeys([*dated[:1], *dated[-1:]]))
    return _cell(" to ".join([*shown, *words])) or "unknown"


def _lost(saved: SavedPlan) -> str:
    groups = saved.receipt.groups
    numbers = (
        (saved.receipt.lost, "record", "deleted by retention"),
        (sum(len(group.skipped) for group in groups), "partition", "left alone"),
        (sum(len(group.clamped) for group in groups), "partition", "moved to an end of the log instead"),
    )
    return "; ".join(f"{plural(number, noun)} {what}" for number, noun, what in numbers if number)


def _sink(saved: SavedPlan, again: int) -> str:
    policy = saved.policy
    if saved.checkpoint is None:
        return ""
    if policy.idempotent_sink:
        return "overwrites by the records' own key: no record is written twice"
    if policy.sink == "noop" or not again:
        return policy.sink or "not named"
    if policy.sink is None:
        return "not named: a sink that appends gets the records twice; a sink that overwrites by key does not"
    return f"{policy.sink} appends: records that are read again are written twice"


def _state(saved: SavedPlan, again: int) -> str:
    if saved.checkpoint is None:
        return ""
    if not saved.value.get("stateful"):
        return "the query keeps no state"
    if saved.left_logs is None:
        return "stays as it is: records that are read again are counted twice"
    return "moves along: records that are read again are counted twice" if again else "moves along"


def _lag(found: Estimate) -> str:
    behind = "" if found.time_lag is None else f", {duration_text(found.time_lag)} behind"
    in_one = f", {found.partition_lag:,} in one partition{behind}"
    return plural(found.lag, "record") + in_one if found.lag else "none"


def _downstream(saved: SavedPlan) -> str:
    """Return the runs that were triggered by commits beyond the plan's targets."""
    runs = saved.value.get("triggered") or []
    found = [
        f"{_code(run['dag_id'])} {_cell(run['run_id'])} ({_cell(str(run['state']))})"
        if run.get("dag_id")
        else f"an event of {_cell(str(run.get('at')))} that has not started a run yet"
        for run in runs
    ]
    texts = list(dict.fromkeys(found))  # Airflow starts one run for several events
    return join_first(texts, TOPICS)


def _topics(saved: SavedPlan) -> list[str]:
    changes: dict[tuple[str, str], list[int]] = {}
    for group in saved.groups:
        for tp, to in group.after.items():
            at = group.before.get(tp)
            changes.setdefault((group.group_id, tp.topic), []).append(0 if at is None else to - at)
    ordered = sorted(changes.items(), key=lambda item: -abs(sum(item[1])))
    lines = ["| group | topic | partitions | records |", "|---|---|--:|--:|"]
    lines += [
        f"| {_code(name)} | {_code(topic)} | {len(moved)} | {sum(moved):+,} |"
        for (name, topic), moved in ordered[:TOPICS]
    ]
    if len(ordered) > TOPICS:
        rest = sum(sum(moved) for _, moved in ordered[TOPICS:])
        lines.append(f"| | {len(ordered) - TOPICS} more | | {rest:+,} |")
    return lines


def _code(text: str) -> str:
    """Return a user's name as code within a cell of a table."""
    shown = escape_controls(shorten(text)).replace("`", "'").replace("|", "\\|")
    return f"`{shown}`"


def _cell(text: str) -> str:
    """Return a text for a cell of a table, with Markdown's characters escaped."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", escape_controls(text))
