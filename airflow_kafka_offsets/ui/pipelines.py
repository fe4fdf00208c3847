"""Finds the pipelines that a serialized DAG names."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.model.groups import Groups
from airflow_kafka_offsets.pipeline import NAME_READERS, PIPELINE_PARAMETERS, check_location
from airflow_kafka_offsets.task.given import is_template

PACKAGE = "airflow_kafka_offsets."
DEFAULTS = {"kafka_config_id": "kafka_default"}

_KINDS = {
    "CommitOffsetsOperator": "commit",
    "CommitOffsetWindowOperator": "window",
    "PlanOffsetWindowOperator": "window",
    "ResetOffsetsOperator": "reset",
    "RestoreOffsetsOperator": "restore",
    "CheckOffsetDriftOperator": "drift",
}
_TRUNCATED = "Truncated. You can change this behaviour"
_MOST_COMBINATIONS = 1_000

Names = Mapping[str, Any]
"""The five names of a pipeline, as far as they are given."""


@dataclass(frozen=True)
class NamedTask:
    """
    A task of a DAG that names pipelines.

    :param names: what it names as literals or templates; of a mapped task what its indexes share.
    :param several: what its indexes name each, or the entries of ``pipelines``; empty if only a run knows.
    :param numbered: whether the map indexes count the entries of ``several``.
    """

    dag_id: str
    task_id: str
    operator: str
    names: Names
    mapped: bool = False
    several: tuple[Names, ...] = ()
    numbered: bool = False

    @property
    def kind(self) -> str:
        """What its moves are called."""
        return kind_of_operator(self.operator)

    @property
    def literal(self) -> list[Names]:
        """The pipelines that the DAG's file names without a template."""
        return [names for names, _ in self.entries]

    @property
    def entries(self) -> list[tuple[Names, frozenset[int] | None]]:
        """The same, each with the map indexes that name it, ``None`` if that is not known."""
        entries = [{**self.names, **each} for each in self.several] if self.several else [self.names]
        return [
            (each, frozenset([index]) if self.numbered else None)
            for index, each in enumerate(entries)
            if not unresolved(each)
        ]

    def names_of(self, map_index: int) -> Names:
        """Return what one instance names, as far as the DAG's file says; without what may be a default."""
        if not self.mapped:
            # Of a mapped task group it names what the group is mapped over.
            return self.names if map_index < 0 else {}
        # A derived class may have other defaults, which are not stored for a mapped task.
        if self.operator not in _KINDS or not (self.numbered and 0 <= map_index < len(self.several)):
            return {}
        return {**self.names, **self.several[map_index]}

    @property
    def complete(self) -> bool:
        """Whether the DAG's file says all, so that no run has to be asked."""
        return len(self.literal) == max(1, len(self.several)) and (not self.mapped or bool(self.several))


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
    def groups(self) -> Groups:
        """The groups and topics; without any if they are templates."""
        if is_unknown(self.names.get("group_id")) or is_unknown(self.names.get("topics")):
            return Groups(None)
        return Groups.parse(self.names.get("group_id"), self.names.get("topics"), required=False)

    @property
    def group_ids(self) -> list[str]:
        """The names of the groups."""
        return self.groups.ids

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
    def unresolved(self) -> list[str]:
        """The parameters that are templates which no run has rendered."""
        return unresolved(self.names)

    @cached_property
    def key(self) -> str:
        """A short name for addresses; the same as long as connection, groups and checkpoint are."""
        open_task = [self.tasks[0][0].task_id] if self.unresolved and self.tasks else []
        text = json.dumps([self.kafka_config_id, self.group_ids, self.checkpoint, open_task])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def kind_of_operator(operator: str) -> str:
    """Return what the moves of an operator are called."""
    return _KINDS.get(operator, "wait" if operator.endswith("Sensor") else "commit")


def is_unknown(value: object) -> bool:
    """Whether a value is a template, or was cut off or masked when Airflow stored it."""
    if isinstance(value, Mapping):
        return any(map(is_unknown, value.values()))
    if isinstance(value, list):
        return any(map(is_unknown, value))
    return is_template(value) or (isinstance(value, str) and (value == "***" or value.startswith(_TRUNCATED)))


def unresolved(names: Names) -> list[str]:
    """Return the parameters that are known only when the task runs."""
    return [name for name in PIPELINE_PARAMETERS if is_unknown(names.get(name))]


def named_tasks(dag_id: str, data: Mapping[str, Any]) -> list[NamedTask]:
    """
    Return the tasks of a serialized DAG that name a pipeline.

    Those of this package, and of classes derived from it: they have the same templated parameters.
    """
    found = []
    for entry in data.get("dag", {}).get("tasks", ()):
        task = entry.get("__var", entry)
        fields = set(task.get("template_fields", ()))
        if not str(task.get("_task_module", "")).startswith(PACKAGE) and not fields.issuperset(
            PIPELINE_PARAMETERS
        ):
            continue
        mapped = bool(task.get("_is_mapped"))
        given = _plain(task.get("partial_kwargs", {}) if mapped else task)
        expands = _plain(task.get("expand_input"))
        listed = None if mapped else given.get("pipelines")
        several = tuple(_expanded(expands) if mapped else read_pipelines(listed))
        names = DEFAULTS | {name: given[name] for name in PIPELINE_PARAMETERS if given.get(name) is not None}
        if listed is not None and not several:
            names["group_id"] = "{{ pipelines }}"
        found.append(
            NamedTask(
                dag_id,
                str(task["task_id"]),
                str(task.get("task_type", "")),
                names,
                mapped,
                several,
                bool(several) and mapped and _is_numbered(expands),
            )
        )
    return found


def merged(pipelines: Iterable[Pipeline]) -> list[Pipeline]:
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
        if pipeline.unresolved:
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
            if name in NAME_READERS and value is not None and not is_unknown(value):
                NAME_READERS[name](value, name)
        check_location(names.get("checkpoint_location"))
    except KafkaOffsetsError as error:
        return str(error)
    return None


def only_names(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the five names of a mapping, those that are given."""
    return {name: value[name] for name in PIPELINE_PARAMETERS if value.get(name) is not None}


def _widest(one: Pipeline, other: Pipeline) -> Names:
    """Return the names of one entry of a pipeline, with the topics of both."""
    if one.unresolved or (one.checkpoint and one.checkpoint != other.checkpoint):
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


def _plain(value: Any) -> Any:
    """Undo the encoding of dictionaries and lists in a serialized DAG; other kinds are no names."""
    if isinstance(value, Mapping):
        if value.keys() == {"__type", "__var"}:
            return _plain(value["__var"]) if value["__type"] in ("dict", "set", "tuple") else None
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _expanded(value: Any) -> list[Names]:
    """Return what each index of a mapped task names; nothing if another task decides that."""
    expands = value.get("value") if isinstance(value, Mapping) else None
    if isinstance(expands, list) and all(isinstance(each, Mapping) for each in expands):
        return [only_names(each) for each in expands]
    if isinstance(expands, Mapping):
        names = {name: each for name, each in expands.items() if name in PIPELINE_PARAMETERS}
        if names and all(isinstance(each, list) for each in names.values()):
            combinations = itertools.product(*names.values())
            return [
                dict(zip(names, each, strict=True))
                for each in itertools.islice(combinations, _MOST_COMBINATIONS)
            ]
    return []


def _is_numbered(value: Any) -> bool:
    # Of several arguments Airflow's order counts, which the database may not keep.
    expands = value.get("value") if isinstance(value, Mapping) else None
    return isinstance(expands, list) or (isinstance(expands, Mapping) and len(expands) == 1)


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
            found.append(only_names(each))
        elif isinstance(each, str):
            found += map(only_names, _from_repr(each))
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
