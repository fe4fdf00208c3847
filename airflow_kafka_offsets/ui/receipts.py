"""Parses the results of tasks in XCom: receipts, windows, certificates, drift reports and sensor readings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.certificate import Certificate
from airflow_kafka_offsets.model.digest import partitions_digest
from airflow_kafka_offsets.model.formats import parse_offsets
from airflow_kafka_offsets.model.receipt import CONNECTION_IDS, RECEIPT_VERSION, Receipt
from airflow_kafka_offsets.model.text import size_error

Value = Mapping[str, Any]


@dataclass(frozen=True)
class TaskInstance:
    """One task instance, and when it stored its result."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    at: datetime
    try_number: int | None = None
    state: str | None = None


@dataclass(frozen=True)
class TaskOutcome:
    """
    The result of a task instance: a move of a pipeline, or a reading.

    :param groups: empty for a checkpoint alone.
    :param moved_by: number of offsets by which the groups moved, or that are in the window.
    :param offset: sum of the offsets after the move; ``log_end`` is the sum of the log ends.
    :param over: identifies the partitions of these sums.
    :param verified: whether the commits were read back; a receipt is stored before the first write.
    """

    instance: TaskInstance
    kind: str
    groups: tuple[str, ...]
    checkpoint: str | None = None
    moved_by: int | None = None
    lag: int | None = None
    offset: int | None = None
    log_end: int | None = None
    over: str | None = None
    plan_only: bool = False
    verified: bool = True
    pipelines: tuple[Mapping[str, Any], ...] = ()
    """The names of the pipelines that a drift report is about, or that a receipt has."""
    connections: Mapping[str, str] = field(default_factory=dict)
    """The ids of the connections that a receipt names."""
    verdict: str | None = None
    """The verdict of an audit or of a check of a mirror."""


def parse_package_value(stored: object) -> Value | None:
    """Return a value from XCom if it is one of this package, ``None`` for any other."""
    if isinstance(stored, str):
        if size_error("XCom", stored):
            return None
        try:
            stored = json.loads(stored)
        except (ValueError, RecursionError):
            return None
    if isinstance(stored, Mapping) and stored.get("version") == RECEIPT_VERSION and value_kind(stored):
        return stored
    return None


def value_kind(value: Value) -> str | None:
    """Return which value of this package it is, by keys that only this one has."""
    if isinstance(value.get("pipelines"), list) and "drifted" in value:
        return "drift"
    if "spark_options" in value and isinstance(value.get("end"), Mapping):
        return "window"
    if "verdict" in value and "audited" in value:
        return "certificate"
    if "verdict" in value and "kept_batch" in value:
        return "mirror"
    if "position" in value:
        return "reading"
    return "receipt" if "changed" in value and ("after" in value or "groups" in value) else None


def read_outcome(instance: TaskInstance, kind: str, value: Value) -> TaskOutcome | None:
    """Return the summary of a value; ``None`` if it does not have the format of a task of this kind."""
    with suppress(OffsetsFormatError):
        match value_kind(value):
            case "drift":
                pipelines = tuple(each for each in value["pipelines"] if isinstance(each, Mapping))
                named = dict.fromkeys(group for each in pipelines for group in _texts(each.get("group_id")))
                return TaskOutcome(instance, "drift", tuple(named), pipelines=pipelines)
            case "window":
                ends = parse_offsets(value["end"]) if value["end"] else {}
                return TaskOutcome(
                    instance,
                    "window",
                    _source_groups(value),
                    moved_by=int_or_none(value.get("records")),
                    offset=sum(ends.values()) if ends else None,
                    plan_only=True,
                )
            case "certificate":
                certificate = Certificate.parse(value)
                groups = _source_groups(certificate.window)
                moved_by, verdict = certificate.counts["offsets"], certificate.verdict
                return TaskOutcome(instance, "audit", groups, moved_by=moved_by, verdict=verdict)
            case "mirror":
                groups, checkpoint = _texts(value.get("group_ids")), text_or_none(value.get("checkpoint"))
                found = text_or_none(value.get("verdict"))
                return TaskOutcome(instance, "mirror", groups, checkpoint, verdict=found)
            case "reading":
                return _reading_outcome(instance, value)
            case "receipt":
                return _receipt_outcome(instance, kind, value)
    return None


def _receipt_outcome(instance: TaskInstance, kind: str, value: Value) -> TaskOutcome:
    receipt = Receipt.parse(value)
    groups, moved = receipt.groups, receipt.checkpoint
    partitions = [tp for group in groups for tp in group.after]
    offsets = [offset for group in groups for offset in group.after.values()]
    ends = [
        end for group in groups for tp, end in group.log_end.items() if tp in group.after and end is not None
    ]
    offset = sum(offsets) if offsets else None
    # The names of a failover's plan are those of the cluster that it has left.
    names = {} if kind == "failover" else receipt.names
    # Sums over different partitions must not be combined.
    log_end = sum(ends) if ends and len(ends) == len(offsets) else None
    return TaskOutcome(
        instance,
        kind if kind in ("commit", "failover", "reset", "restore", "window") else "commit",
        tuple(group.group_id for group in groups),
        text_or_none(receipt.source.get("checkpoint")) if moved is None else moved.location,
        int_or_none(value.get("moved_by")),
        None if offset is None or log_end is None else max(0, log_end - offset),
        offset,
        log_end,
        partitions_digest(partitions),
        receipt.plan_only,
        receipt.verified,
        pipelines=(names,) if names else (),
        connections={name: conn_id for name in CONNECTION_IDS if isinstance(conn_id := value.get(name), str)},
    )


def _reading_outcome(instance: TaskInstance, value: Value) -> TaskOutcome:
    partitions = value.get("partitions")
    rows = [row for row in partitions if isinstance(row, Mapping)] if isinstance(partitions, list) else []
    sums = [
        sum(row[name] for row in rows)
        if rows and all(int_or_none(row.get(name)) is not None for row in rows)
        else None
        for name in ("committed", "log_end")
    ]
    return TaskOutcome(
        instance,
        "wait",
        _texts(value.get("group_id")),
        lag=int_or_none(value.get("total_lag")),
        offset=sums[0],
        log_end=sums[1],
        over=partitions_digest(
            (topic, number)
            for row in rows
            if isinstance(topic := row.get("topic"), str)
            and (number := int_or_none(row.get("partition"))) is not None
        ),
    )


def _source_groups(value: Value) -> tuple[str, ...]:
    source = value.get("source")
    return _texts(source.get("group_id")) if isinstance(source, Mapping) else ()


def int_or_none(value: object) -> int | None:
    """Return a whole number as it is, ``None`` for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text_or_none(value: object) -> str | None:
    """Return a text as it is, ``None`` for any other value."""
    return value if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    found = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return tuple(dict.fromkeys(each for each in found if isinstance(each, str)))
