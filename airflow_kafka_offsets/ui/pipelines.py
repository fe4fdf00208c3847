"""Pipelines, and the tasks that name them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.pipeline import NAME_PARSERS, PIPELINE_PARAMETERS
from airflow_kafka_offsets.task.parameter_checks import is_template

PACKAGE = "airflow_kafka_offsets."
DEFAULTS = {"kafka_config_id": "kafka_default"}

_KINDS = {
    "CommitOffsetsOperator": "commit",
    "CommitOffsetWindowOperator": "window",
    "PlanOffsetWindowOperator": "window",
    "ResetOffsetsOperator": "reset",
    "RestoreOffsetsOperator": "restore",
    "CheckOffsetDriftOperator": "drift",
    "AuditWindowOperator": "audit",
    "FailOverOperator": "failover",
    "CheckMirrorOperator": "mirror",
}
# How Airflow begins a rendered field that was too long for max_templated_field_length.
_TRUNCATED = "Truncated. You can change this behaviour"

Names = Mapping[str, Any]
"""The five names of a pipeline, as far as they are given."""


@dataclass(frozen=True)
class NamedTask:
    """A task of a DAG that names pipelines; which, only its runs know."""

    dag_id: str
    task_id: str
    operator: str

    @property
    def kind(self) -> str:
        """What its moves are called."""
        return operator_kind(self.operator)


@dataclass(frozen=True)
class Pipeline:
    """
    A pipeline of one DAG.

    :param names: its five names.
    :param tasks: the tasks that name it, each with the indexes that do, ``None`` for all of them.
    """

    dag_id: str
    names: Names
    tasks: tuple[tuple[NamedTask, frozenset[int] | None], ...] = ()
    found_in: frozenset[str] = frozenset()

    @cached_property
    def groups(self) -> GroupSelection:
        """The groups and topics; without any if they are templates."""
        if is_unknown(self.names.get("group_id")) or is_unknown(self.names.get("topics")):
            return GroupSelection(None)
        return GroupSelection.parse(self.names.get("group_id"), self.names.get("topics"), required=False)

    @property
    def group_ids(self) -> list[str]:
        """The names of the groups."""
        return self.groups.group_ids

    @property
    def kafka_config_id(self) -> str:
        """The Kafka connection."""
        return str(self.names.get("kafka_config_id") or DEFAULTS["kafka_config_id"])

    @property
    def checkpoint(self) -> str | None:
        """The location of the checkpoint."""
        return self.names.get("checkpoint_location")

    @property
    def topics(self) -> list[str] | None:
        """The topics and partitions that are named, as Kafka spells them; ``None`` for all."""
        named = self.groups.scope.as_json()
        if named is None:
            return None
        return [
            topic if numbers is None else f"{topic}:{','.join(map(str, numbers))}"
            for topic, numbers in named.items()
        ]

    @property
    def unresolved_parameters(self) -> list[str]:
        """The parameters that are templates which no run has rendered."""
        return unresolved_parameters(self.names)

    @cached_property
    def key(self) -> str:
        """A short name for addresses; the same as long as connection, groups and checkpoint are."""
        open_task = [self.tasks[0][0].task_id] if self.unresolved_parameters and self.tasks else []
        return digest(self.kafka_config_id, self.group_ids, self.checkpoint, open_task)


def operator_kind(operator: str) -> str:
    """Return what the moves of an operator are called."""
    return _KINDS.get(operator, "wait" if operator.endswith("Sensor") else "commit")


def is_unknown(value: object) -> bool:
    """Whether a value is a template, or was cut off or masked when Airflow stored it."""
    if isinstance(value, Mapping):
        return any(map(is_unknown, value.values()))
    if isinstance(value, list):
        return any(map(is_unknown, value))
    return is_template(value) or (isinstance(value, str) and (value == "***" or value.startswith(_TRUNCATED)))


def unresolved_parameters(names: Names) -> list[str]:
    """Return the parameters that are known only when the task runs."""
    return [name for name in PIPELINE_PARAMETERS if is_unknown(names.get(name))]


def named_tasks(dag_id: str, listed: Iterable[Mapping[str, Any]]) -> list[NamedTask]:
    """
    Return those tasks of a DAG that name a pipeline.

    Those of this package, and of classes derived from it: they have the same templated parameters.

    :param listed: the DAG's tasks, as Airflow's API returns them.
    """
    found = []
    for task in listed:
        of, fields = task.get("class_ref") or {}, set(task.get("template_fields") or ())
        if str(of.get("module_path")).startswith(PACKAGE) or fields.issuperset(PIPELINE_PARAMETERS):
            found.append(NamedTask(dag_id, str(task["task_id"]), str(of.get("class_name") or "")))
    return found


def merge_pipelines(pipelines: Iterable[Pipeline]) -> list[Pipeline]:
    """
    Return each pipeline of a DAG once, with all tasks that name it.

    A task that names less (a sensor without the checkpoint) names the pipeline of its group. Of several
    topics all count: the lag of a part is not that of the pipeline.
    """
    found: dict[object, Pipeline] = {}
    places: dict[object, object] = {}
    ordered = sorted(
        pipelines,
        key=lambda each: (
            not each.group_ids,
            each.checkpoint is None,
            -sum(value is not None for value in each.names.values()),
        ),
    )
    for pipeline in ordered:
        cluster, groups = (pipeline.dag_id, pipeline.kafka_config_id), tuple(pipeline.group_ids)
        whole: object = (*cluster, groups, pipeline.checkpoint)
        # What names less comes later: a group without its checkpoint, or a checkpoint without its group.
        less: list[object] = [(*cluster, groups, None), (*cluster, (), pipeline.checkpoint)]
        if pipeline.unresolved_parameters:
            whole, less = (pipeline.dag_id, json.dumps(dict(pipeline.names), sort_keys=True)), []
        place = places.get(whole, whole)
        for each in (whole, *less):
            places.setdefault(each, place)
        other = found.setdefault(place, pipeline)
        if other is not pipeline:
            found[place] = replace(
                other,
                names=_widest(other, pipeline),
                tasks=_joined((*other.tasks, *pipeline.tasks)),
                found_in=other.found_in | pipeline.found_in,
            )
    return sorted(found.values(), key=lambda each: (each.dag_id, each.group_ids, each.checkpoint or ""))


def check_names(names: Names) -> str | None:
    """Return why names are none of a pipeline, ``None`` if they are."""
    try:
        for name, value in names.items():
            if name in NAME_PARSERS and value is not None and not is_unknown(value):
                NAME_PARSERS[name](value, name)
        check_location(names.get("checkpoint_location"))
    except KafkaOffsetsError as error:
        return str(error)
    return None


def pick_names(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the five names of a mapping, those that are given."""
    return {name: value[name] for name in PIPELINE_PARAMETERS if value.get(name) is not None}


def _widest(one: Pipeline, other: Pipeline) -> Names:
    """Return the names of one entry of a pipeline, with the topics of both."""
    if one.unresolved_parameters or (one.checkpoint and one.checkpoint != other.checkpoint):
        # What others read of the group need not be in the checkpoint.
        return one.names
    names = dict(one.names)
    topics = None if one.topics is None or other.topics is None else [*one.topics, *other.topics]
    if not one.checkpoint and one.groups.group_id != other.groups.group_id and len(one.group_ids) == 1:
        # {topic: group} names the topic too.
        names["group_id"], topics = one.group_ids[0], None
    names["topics"] = topics and list(dict.fromkeys(topics))
    return names


def _joined(
    tasks: Sequence[tuple[NamedTask, frozenset[int] | None]],
) -> tuple[tuple[NamedTask, frozenset[int] | None], ...]:
    found: dict[str, tuple[NamedTask, frozenset[int] | None]] = {}
    for task, indexes in tasks:
        before = found.get(task.task_id, (task, frozenset()))[1]
        found[task.task_id] = (task, None if before is None or indexes is None else before | indexes)
    return tuple(found.values())


def read_pipelines(value: object) -> list[Names]:
    """Return the entries of a drift check's ``pipelines``, as far as they can be read."""
    listed = value
    if isinstance(value, str):
        # JSON as it was given; or the whole list as its ``repr``, before Airflow 3.2.2.
        try:
            listed = json.loads(value)
        except (ValueError, RecursionError):
            listed = _from_repr(value)
    found: list[Names] = []
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, Mapping):
            found.append(pick_names(each))
        elif isinstance(each, str):
            found += map(pick_names, _from_repr(each))
    return found


def _from_repr(text: str) -> list[dict[str, Any]]:
    """Read a KafkaPipeline as Airflow stores an object that it does not know, or a list of them and dicts."""
    try:
        whole = ast.parse(text, mode="eval").body
        return [_literal(each) for each in (whole.elts if isinstance(whole, ast.List) else [whole])]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []


def _literal(node: ast.expr) -> dict[str, Any]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "KafkaPipeline":
        return {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    found = ast.literal_eval(node)
    if not isinstance(found, dict):
        raise ValueError("it is neither a KafkaPipeline nor a dict")  # noqa: TRY004 - as literal_eval does
    return found
