"""
The result of one task instance: its receipt as a table, its reading, and the command to take it back.

Also what to ask Kafka about it: what became of its receipt, or the progress of its wait.
"""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.groups import SOURCE_PREFIX
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.table import to_columns
from airflow_kafka_offsets.model.text import plural
from airflow_kafka_offsets.ui.airflow_api import AmbiguousError, AsUser, run_in_thread
from airflow_kafka_offsets.ui.history import move_json
from airflow_kafka_offsets.ui.pipelines import is_unknown, pick_names
from airflow_kafka_offsets.ui.receipt_now import ReceiptRow
from airflow_kafka_offsets.ui.receipts import (
    TaskOutcome,
    Value,
    int_or_none,
    parse_package_value,
    text_or_none,
    value_kind,
)
from airflow_kafka_offsets.ui.task_instances import (
    Row,
    begun_instances,
    instance_steps,
    read_row,
    result_entry,
)

_WAITING = ("running", "deferred", "up_for_reschedule")

_MOST_IN_COMMAND = 100_000
"""Maximum characters of a receipt inside a command."""

_UNSEEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that a terminal does not show, or interprets."""

RECEIPT_FILE = "kafka-offsets-receipt.json"
"""The file from which the command reads a receipt."""


@dataclass(frozen=True)
class InstanceResult:
    """
    A task instance and its result in XCom.

    :param row: the instance as Airflow's API returns it.
    :param value: the result; ``None`` if the instance has stored no result of this package.
    :param at: when the result was stored, or now.
    :param iterations: whether the instance is the newest of several iterations of a loop.
    """

    row: Row
    value: Value | None
    at: datetime
    iterations: bool = False


async def find_instance(
    ask: AsUser, dag_id: str, run_id: str, task_id: str, map_index: int
) -> InstanceResult | None:
    """Return a task instance, ``None`` if it does not exist."""
    # In Airflow's API, a tilde means all.
    if "~" in (run_id, task_id):
        return None
    iterations = False
    try:
        row = await ask.get(*instance_steps(dag_id, run_id, task_id, map_index))
    except AmbiguousError:
        # The list of instances includes the iterations of a loop; the newest one is used.
        of_run = await begun_instances(ask, dag_id, 1, run_id, task_id=task_id)
        row, iterations = (of_run[0] if of_run else None), True
    if row is None:
        return None
    entry = await result_entry(ask, row)
    value = None if entry is None else await run_in_thread(parse_package_value, entry["value"])
    at = datetime.now(tz=timezone.utc) if entry is None else datetime.fromisoformat(entry["timestamp"])
    return InstanceResult(row, value, at, iterations)


def read_instance(instance: InstanceResult) -> dict[str, Any]:
    """
    Return the result of a task instance.

    A receipt is shown as ``receipt``, with the ``restore_command``. Any other value of this package is shown
    as it is in XCom: as ``report``, with its ``report_kind``.
    """
    row, value = instance.row, instance.value
    found: dict[str, Any] = dict.fromkeys(("move", "receipt", "report", "report_kind", "restore_command"))
    found |= {"operator": row["operator"], "state": row["state"], "problems": (problems := [])}
    if instance.iterations:
        problems.append("this is the newest iteration of a loop; the history has the others")
    if value is None:
        return found
    move = read_row(row, instance.at, value)
    if move is None:
        problems.append("the value in XCom is not in this package's format, and is not shown")
        return found
    found["move"] = move_json(move)
    kind = value_kind(value)
    if kind == "receipt":
        receipt = Receipt.parse(value)
        found["receipt"] = receipt_table(value, receipt, move)
        found["restore_command"], notes = restore_command(value, receipt, move)
        problems += notes
    else:
        found |= {"report": dict(value), "report_kind": kind}
    return found


def receipt_table(value: Value, receipt: Receipt, move: TaskOutcome) -> dict[str, Any]:
    """
    Return a receipt with its partitions as columns, one row for each.

    The totals count the partitions that were ``skipped``, or ``clamped`` to an end of their log, and the
    records that retention had deleted before they were requested (``lost``; ``None`` in an old receipt).
    """
    rows = receipt_rows(receipt)
    checkpoint, approval = value.get("checkpoint"), value.get("approval")
    return {
        "groups": list(move.groups),
        "source": dict(receipt.source),
        "changed": int_or_none(value.get("changed")),
        "plan_only": move.plan_only,
        "verified": receipt.verified,
        "checkpoint": dict(checkpoint) if isinstance(checkpoint, Mapping) else None,
        "approval": {name: text_or_none(approval.get(name)) for name in ("by", "at")}
        if isinstance(approval, Mapping)
        else None,
        "totals": {
            "partitions": len(rows),
            "moved_by": move.moved_by,
            "lag": move.lag,
            "skipped": sum(len(group.skipped) for group in receipt.groups),
            "clamped": sum(len(group.clamped) for group in receipt.groups),
            "lost": int_or_none(value.get("lost")),
        },
        "partitions": to_columns(rows, ReceiptRow._fields),
    }


def restore_command(value: Value, receipt: Receipt, move: TaskOutcome) -> tuple[str | None, list[str]]:
    """
    Return the shell command that takes a move back, and notes about the command.

    The command only shows its plan. A user adds ``--execute`` to apply it.

    :return: no command if nothing was moved, or if the command might do something other than take it back.
    """
    moved = receipt.checkpoint
    archive = None if moved is None else moved.archive
    if move.plan_only or not move.groups or not (value.get("changed") or archive is not None):
        return None, []
    if "kafka_config_id" not in move.connections:
        return None, [
            "the receipt does not name the Kafka connection: to take the move back, use "
            "airflow-kafka-offsets group restore with the receipt in XCom and the task's connection"
        ]
    before = [offset for group in receipt.groups for offset in group.before.values()]
    problems = []
    if none := before.count(None):
        problems.append(
            f"{plural(none, 'partition')} had no commit before: taking the move back leaves the commits there"
        )
    # Offsets cannot be restored to "no commit": Kafka would need them deleted.
    if archive is None and none == len(before):
        return None, ["no partition had a commit before, so nothing can be restored"]
    group_id = move.groups[0] if len(move.groups) == 1 else json.dumps(_by_topic(receipt))
    words = ["airflow-kafka-offsets", "group", "restore"]
    words += ["--kafka-config-id", move.connections["kafka_config_id"]]
    first = ""
    if moved is not None and archive is not None:
        words += ["--checkpoint", moved.location, "--archive", archive]
        if conn_id := move.connections.get("checkpoint_conn_id"):
            words += ["--checkpoint-conn-id", conn_id]
    else:
        words += ["--receipt", RECEIPT_FILE]
        if len(json.dumps(value)) > _MOST_IN_COMMAND:
            problems.append(
                f"the receipt is too large for a command: save the task's XCom as {RECEIPT_FILE} first"
            )
        else:
            first = f"cat > {RECEIPT_FILE} <<'EOF'\n{json.dumps(value)}\nEOF\n"
    # A name may begin with a hyphen.
    words += [*(["--"] if group_id.startswith("-") else []), group_id]
    if any(unicodedata.category(char) in _UNSEEN for char in "".join(words)):
        return None, ["a name has control characters, which a terminal would interpret: no command is shown"]
    return first + shlex.join(words), problems


def _by_topic(receipt: Receipt) -> dict[str, str]:
    """Return the groups as a restore's mapping: by topic, or by source if groups share a topic."""
    topics = {tp.topic: group.group_id for group in receipt.groups for tp in group.after}
    groups = [group.group_id for group in receipt.groups]
    if set(topics.values()) == set(groups):
        return topics
    return {f"{SOURCE_PREFIX}{number}": group_id for number, group_id in enumerate(groups)}


def receipt_rows(receipt: Receipt) -> list[ReceiptRow]:
    """Return one row for each partition of each group of a receipt."""
    rows = []
    for group in receipt.groups:
        # A skipped partition keeps its offset.
        before, after = group.skipped | group.before, group.skipped | group.after
        for tp in sorted(before.keys() | after.keys()):
            was, will_be, asked = before.get(tp), after.get(tp), group.clamped.get(tp)
            note = None
            if tp in group.skipped:
                note = "skipped"
            elif tp in group.clamped:
                note = "the requested time is not in the log" if asked is None else f"requested: {asked}"
            rows.append(
                ReceiptRow(
                    *(group.group_id, *tp, was, will_be),
                    None if was is None or will_be is None else will_be - was,
                    *(group.log_start.get(tp), group.log_end.get(tp), note),
                    *(group.time(which, tp) for which in ("before", "after")),
                )
            )
    return rows


def instance_question(instance: InstanceResult) -> dict[str, Any] | None:
    """Return the question about a task instance for a LiveClient; ``None`` if there is nothing to ask."""
    state, value = instance.row["state"], instance.value or {}
    if value_kind(value) == "receipt":
        kafka_config_id = value.get("kafka_config_id")
        if not isinstance(kafka_config_id, str):
            return None
        try:
            receipt = Receipt.parse(value)
        except OffsetsFormatError:
            return None
        rows, ids = receipt_rows(receipt), receipt.log_ids.topics
        if all(row.before is row.after is None for row in rows):
            return None
        asked = {"topics": {row.topic: ids.get(row.topic) for row in rows}, "plan_only": receipt.plan_only}
        names = {"kafka_config_id": kafka_config_id}
        # Without the notes and times, which are not used to read.
        return {"question": "times", "names": names, "rows": [row[:8] for row in rows], **asked}
    wait = wait_question(instance.row["rendered_fields"], value) if state in _WAITING else None
    if wait is None:
        return None
    remaining = value.get("remaining")
    known = wait["kind"] == "reached" and isinstance(remaining, int)
    began = [instance.at.timestamp(), remaining] if known else None
    return {"question": "wait", "names": pick_names(wait["parameters"]), **wait, "began": began}


def wait_question(fields: Mapping[str, Any], reading: Value) -> dict[str, Any] | None:
    """
    Return kind and parameters of a sensor's wait; ``None`` if its progress cannot be measured reliably.

    :param fields: the task's rendered fields.
    :param reading: the task's result, which has the target that was frozen when the wait began.
    """
    parameters = dict(fields)
    if "max_lag" in parameters:
        # Progress is measured in records. Time lag and headroom do not decrease like a number of records.
        kind = "lag" if parameters.get("max_time_lag") is parameters.get("min_headroom") is None else None
    elif "target" in parameters and "tolerance" in parameters:
        parameters["target"] = target = reading.get("target") or parameters["target"]
        # The meaning of latest or of a time was fixed when the wait began.
        frozen = isinstance(target, Mapping) or (isinstance(target, str) and target.lstrip().startswith("{"))
        kind = "reached" if frozen else None
    else:
        kind = None
    if kind is None or any(map(is_unknown, parameters.values())):
        return None
    return {"kind": kind, "parameters": parameters}
