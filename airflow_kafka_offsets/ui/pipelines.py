"""Pipelines and the tasks that name them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.model.digest import digest
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.pipeline import NAME_PARSERS, PIPELINE_PARAMETERS
from airflow_kafka_offsets.task.parameter_checks import is_template

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
NOT_RUN = "{{ not run yet }}"
"""The group of a task that has not run, whose names are therefore unknown."""

# Beginning of a rendered field that was longer than max_templated_field_length.
_TRUNCATED = "Truncated. You can change this behaviour"

PipelineNames = Mapping[str, Any]
"""The five names of a pipeline, or some of them."""


@dataclass(frozen=True)
class NamedTask:
    """A task of a DAG that names pipelines; the names are known only from its runs."""

    dag_id: str
    task_id: str
    operator: str


NamingTask = tuple[NamedTask, "frozenset[int] | None"]
"""A task that names a pipeline, with the map indexes that do (``None`` for all)."""


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of one DAG, by its five names."""

    dag_id: str
    names: PipelineNames
    tasks: tuple[NamingTask, ...] = ()

    @cached_property
    def groups(self) -> GroupSelection:
        """The groups and topics; empty if they are templates."""
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
        """The named topics and partitions in Kafka's notation; ``None`` for all."""
        named = self.groups.scope.as_json()
        if named is None:
            return None
        return [
            topic if numbers is None else f"{topic}:{','.join(map(str, numbers))}"
            for topic, numbers in named.items()
        ]

    @property
    def unresolved_parameters(self) -> list[str]:
        """The parameters that no run has rendered, or that Airflow has cut off or masked."""
        return unresolved(self.names)

    def as_json(self) -> dict[str, Any]:
        """Return the pipeline for the page."""
        return {
            "dag_id": self.dag_id,
            "key": self.key,
            "groups": self.group_ids,
            "topics": self.topics,
            "checkpoint": self.checkpoint,
            "kafka_config_id": self.kafka_config_id,
            "tasks": [task.task_id for task, _ in self.tasks],
            "unresolved": self.unresolved_parameters,
            "not_run": self.names.get("group_id") == NOT_RUN,
        }

    @cached_property
    def key(self) -> str:
        """A short name for addresses, derived from connection, groups and checkpoint."""
        open_task = [self.tasks[0][0].task_id] if self.unresolved_parameters and self.tasks else []
        return digest(self.kafka_config_id, self.group_ids, self.checkpoint, open_task)


def operator_kind(operator: str) -> str:
    """Return the kind of an operator's moves, as the page shows it."""
    return _KINDS.get(operator, "wait" if operator.endswith("Sensor") else "commit")


def is_unknown(value: object) -> bool:
    """Return whether a value is a template, or was cut off or masked when Airflow stored it."""
    if isinstance(value, Mapping):
        return any(map(is_unknown, value.values()))
    if isinstance(value, list):
        return any(map(is_unknown, value))
    return is_template(value) or (isinstance(value, str) and (value == "***" or value.startswith(_TRUNCATED)))


def unresolved(names: PipelineNames) -> list[str]:
    """Return the names that no run has rendered, or that Airflow has cut off or masked."""
    return [name for name in PIPELINE_PARAMETERS if is_unknown(names.get(name))]


def named_tasks(dag_id: str, listed: Iterable[Mapping[str, Any]]) -> list[NamedTask]:
    """
    Return those of a DAG's tasks, as Airflow's API lists them, that name a pipeline.

    These are tasks of this package's classes and of subclasses, which have the same templated parameters.
    """
    found = []
    for task in listed:
        of, fields = task.get("class_ref") or {}, set(task.get("template_fields") or ())
        is_own = str(of.get("module_path")).startswith("airflow_kafka_offsets.")
        if is_own or fields.issuperset(PIPELINE_PARAMETERS):
            found.append(NamedTask(dag_id, str(task["task_id"]), str(of.get("class_name") or "")))
    return found


def merge_pipelines(pipelines: Iterable[Pipeline]) -> list[Pipeline]:
    """
    Return each pipeline of a DAG once, with all tasks that name it.

    A task with fewer names (a sensor without the checkpoint) belongs to the pipeline of its group. If tasks
    name different topics, the pipeline has all of them: the lag of some topics is not the pipeline's lag.
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
        # Entries with fewer names come later: a group without its checkpoint, or the reverse.
        less: list[object] = [(*cluster, groups, None), (*cluster, (), pipeline.checkpoint)]
        if pipeline.unresolved_parameters:
            whole, less = (pipeline.dag_id, json.dumps(dict(pipeline.names), sort_keys=True)), []
        place = places.get(whole, whole)
        for each in (whole, *less):
            places.setdefault(each, place)
        other = found.setdefault(place, pipeline)
        if other is not pipeline:
            tasks = _joined((*other.tasks, *pipeline.tasks))
            found[place] = replace(other, names=_widest(other, pipeline), tasks=tasks)
    return sorted(
        found.values(),
        # The page of a DAG begins with the first one.
        key=lambda each: (
            each.dag_id,
            bool(each.unresolved_parameters),
            each.group_ids,
            each.checkpoint or "",
        ),
    )


def check_names(names: PipelineNames) -> str | None:
    """Return the reason why names are not a valid pipeline, ``None`` if they are valid."""
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


def _widest(one: Pipeline, other: Pipeline) -> PipelineNames:
    """Return the names of one entry of a pipeline, with the topics of both entries."""
    if one.unresolved_parameters or (one.checkpoint and one.checkpoint != other.checkpoint):
        # Topics that other tasks read with the group need not be in the checkpoint.
        return one.names
    names = dict(one.names)
    topics = None if one.topics is None or other.topics is None else [*one.topics, *other.topics]
    if not one.checkpoint and one.groups.group_id != other.groups.group_id and len(one.group_ids) == 1:
        # {topic: group} also names the topic.
        names["group_id"], topics = one.group_ids[0], None
    names["topics"] = topics and list(dict.fromkeys(topics))
    return names


def _joined(tasks: Iterable[NamingTask]) -> tuple[NamingTask, ...]:
    """Return each task of a DAG once, with all its map indexes."""
    found: dict[NamedTask, frozenset[int] | None] = {}
    for task, indexes in tasks:
        before = found.get(task, frozenset())
        found[task] = None if before is None or indexes is None else before | indexes
    return tuple(found.items())


def listed_pipelines(value: object) -> list[PipelineNames]:
    """Return the entries of a drift check's ``pipelines``, as far as they can be read."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    found: list[PipelineNames] = []
    for each in value if isinstance(value, list) else ():
        if isinstance(each, Mapping):
            names = each.get("names")  # of a plan
            found.append(pick_names(names if isinstance(names, Mapping) else each))
    return found
