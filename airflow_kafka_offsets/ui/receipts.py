"""Parses the results of tasks in XCom: receipts, windows, certificates, drift reports and sensor readings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.errors import OffsetsFormatError
from airflow_kafka_offsets.model.certificate import Certificate
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.receipt import CONNECTION_IDS, RECEIPT_VERSION, read_receipt
from airflow_kafka_offsets.model.text import size_error
from airflow_kafka_offsets.ui.partition_sets import partition_set

Value = Mapping[str, Any]

_MOST_DIGITS = 10
"""Maximum digits of a partition number, which has 32 bits."""


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

    :param groups: the groups in the result; empty for a checkpoint alone.
    :param checkpoint: the checkpoint in the result, if the result names one.
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
    """The names of the pipelines that a drift report is about, or that a receipt has from a saved plan."""
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
    is_own = isinstance(stored, Mapping) and stored.get("version") == RECEIPT_VERSION and value_kind(stored)
    return stored if is_own and isinstance(stored, Mapping) else None


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
    """
    Return the summary of a value; ``None`` if the value does not have its expected format.

    :param kind: kind of the task's moves.
    """
    match value_kind(value):
        case "drift":
            return _drift_outcome(instance, value)
        case "window":
            return _window_outcome(instance, value)
        case "certificate":
            return _certificate_outcome(instance, value)
        case "mirror":
            return _mirror_outcome(instance, value)
        case "reading":
            return _reading_outcome(instance, value)
        case "receipt":
            return _receipt_outcome(instance, kind, value)
    return None


def _receipt_outcome(instance: TaskInstance, kind: str, value: Value) -> TaskOutcome | None:
    try:
        groups = read_receipt(value)
    except (OffsetsFormatError, KeyError, TypeError):
        return None
    partitions = [tp for group in groups for tp in group.after]
    offsets = [offset for group in groups for offset in group.after.values()]
    ends = [
        end
        for group, part in zip(groups, group_receipts(value), strict=True)
        for end in _offsets_of(part.get("log_end"), group.after)
    ]
    offset = sum(offsets) if offsets else None
    # The names of a failover's plan are those of the cluster that it has left.
    names = None if kind == "failover" else value.get("names")
    # Sums over different partitions must not be combined.
    log_end = sum(ends) if ends and len(ends) == len(offsets) else None
    return TaskOutcome(
        instance,
        kind if kind in ("commit", "failover", "reset", "restore", "window") else "commit",
        tuple(group.group_id for group in groups),
        checkpoint_location(value),
        _count(value.get("moved_by")),
        None if offset is None or log_end is None else max(0, log_end - offset),
        offset,
        log_end,
        partition_set(partitions),
        bool(value.get("plan_only")),
        value.get("verified") is True,
        pipelines=(names,) if isinstance(names, Mapping) else (),
        connections={name: conn_id for name in CONNECTION_IDS if isinstance(conn_id := value.get(name), str)},
    )


def _window_outcome(instance: TaskInstance, value: Value) -> TaskOutcome:
    ends = [offset for _, _, offset in offset_cells(value["end"]) if offset is not None]
    return TaskOutcome(
        instance,
        "window",
        _source_groups(value),
        moved_by=_count(value.get("records")),
        offset=sum(ends) if ends else None,
        plan_only=True,
    )


def _certificate_outcome(instance: TaskInstance, value: Value) -> TaskOutcome | None:
    try:
        certificate = Certificate.parse(value)
    except OffsetsFormatError:
        return None
    return TaskOutcome(
        instance,
        "audit",
        _source_groups(certificate.window),
        moved_by=certificate.counts["offsets"],
        verdict=certificate.verdict,
    )


def _source_groups(window: Value) -> tuple[str, ...]:
    source = window.get("source")
    return _texts(source.get("group_id")) if isinstance(source, Mapping) else ()


def _mirror_outcome(instance: TaskInstance, value: Value) -> TaskOutcome:
    verdict, location = value.get("verdict"), value.get("checkpoint")
    return TaskOutcome(
        instance,
        "mirror",
        _texts(value.get("group_ids")),
        location if isinstance(location, str) else None,
        verdict=verdict if isinstance(verdict, str) else None,
    )


def _drift_outcome(instance: TaskInstance, value: Value) -> TaskOutcome:
    pipelines = [each for each in value["pipelines"] if isinstance(each, Mapping)]
    groups = (group for each in pipelines for group in _texts(each.get("group_id")))
    return TaskOutcome(instance, "drift", tuple(dict.fromkeys(groups)), pipelines=tuple(pipelines))


def _reading_outcome(instance: TaskInstance, value: Value) -> TaskOutcome:
    partitions = value.get("partitions")
    rows = [row for row in partitions if isinstance(row, Mapping)] if isinstance(partitions, list) else []
    sums = [
        sum(row[name] for row in rows)
        if rows and all(_count(row.get(name)) is not None for row in rows)
        else None
        for name in ("committed", "log_end")
    ]
    return TaskOutcome(
        instance,
        "wait",
        _texts(value.get("group_id")),
        lag=_count(value.get("total_lag")),
        offset=sums[0],
        log_end=sums[1],
        over=partition_set(
            (topic, number)
            for row in rows
            if isinstance(topic := row.get("topic"), str)
            and (number := _count(row.get("partition"))) is not None
        ),
    )


def group_receipts(value: Value) -> list[Mapping[str, Any]]:
    """Return the parts of a receipt, one for each group."""
    groups = value.get("groups")
    return list(groups) if isinstance(groups, Sequence) and not isinstance(groups, str) else [value]


def checkpoint_location(value: Value) -> str | None:
    """Return the location of the checkpoint in a receipt."""
    part, source = value.get("checkpoint"), value.get("source")
    found = part.get("location") if isinstance(part, Mapping) else None
    found = source.get("checkpoint") if found is None and isinstance(source, Mapping) else found
    return found if isinstance(found, str) else None


def offset_cells(offsets: object) -> Iterator[tuple[str, int, int | None]]:
    """Yield topic, partition and offset of each entry; skip entries that are not in Spark's format."""
    for topic, numbers in offsets.items() if isinstance(offsets, Mapping) else ():
        for number, offset in numbers.items() if isinstance(numbers, Mapping) else ():
            if (
                isinstance(number, str)
                and number.isdecimal()
                and len(number) <= _MOST_DIGITS
                and (offset is None or _count(offset) is not None)
            ):
                yield str(topic), int(number), offset


def _offsets_of(offsets: object, partitions: Iterable[TopicPartition]) -> Iterator[int]:
    """Yield the offsets of the given partitions that have an offset."""
    for topic, number in partitions:
        numbers = offsets.get(topic) if isinstance(offsets, Mapping) else None
        offset = _count(numbers.get(str(number))) if isinstance(numbers, Mapping) else None
        if offset is not None:
            yield offset


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    found = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return tuple(dict.fromkeys(each for each in found if isinstance(each, str)))
