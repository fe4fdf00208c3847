"""
Checks of a task's options: literals when the DAG is parsed, templates after they are rendered.

An option that is not given, or is ``None``, has its default. A given option that renders to an empty value is
an error: the default would be something else than the DAG's author has asked for, such as all topics, or a
group with the name ``None``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, Context, XComArg
from jinja2.nativetypes import NativeEnvironment

from airflow_kafka_offsets.annotation_types import SparkCheckpoint
from airflow_kafka_offsets.errors import OffsetsFormatError, UsageError
from airflow_kafka_offsets.model.parameters import has_template, is_blank
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS
from airflow_kafka_offsets.task.identity import map_index
from airflow_kafka_offsets.task.mapped import is_being_mapped, is_group_argument
from airflow_kafka_offsets.task.outcome import fail_without_retry

if TYPE_CHECKING:
    import jinja2

_HINTS = {
    "data_interval": (
        ". A run without a data interval, such as a run that an asset triggered, has no data_interval_start "
        "and no data_interval_end"
    ),
    "xcom_pull": ". A task has no XCom if it was skipped, has not run in this run, or was cleared since",
}
"""Frequent reasons why a template renders to an empty value."""

_RESULTS = ("window", "receipt", "plan", "target")
"""Parameters for the output of another task, which is a list if that task is mapped."""

MAP_INDEX_TEMPLATE = (
    "{%% set group = task.group_id or task.checkpoint_location or task.topics %%}{%% set group = "
    "group.values() if group is mapping else group %%}{%% set several = group is iterable and group is not "
    "string %%}{{ (group | unique | join(', ') if several else group | string)[:250] %s }}"
)
"""
Default name of a mapped task in the UI: its group, limited to the length of Airflow's column.

If templates are rendered to objects the name is quoted, because a group such as ``42`` would become a number.
"""


def none_is_default(init: Callable[..., None]) -> Callable[..., None]:
    """
    Let a constructor replace ``None`` by a parameter's default, unless its type includes ``None``.

    The constructor of a mapped task runs when the task runs: an error there is not retried.
    """
    defaults = {
        name
        for name, parameter in signature(init).parameters.items()
        if parameter.default not in (None, parameter.empty) and "None" not in str(parameter.annotation)
    }

    @wraps(init)
    def make(self: object, **parameters: Any) -> None:
        given = {name: it for name, it in parameters.items() if it is not None or name not in defaults}
        mapped = is_being_mapped(self)
        with fail_without_retry() if mapped else nullcontext():
            # In a DAG file None is the author's decision; in an index it is a value that was lost.
            if mapped and parameters.get("approval", ...) is None:
                raise UsageError(
                    f"task {parameters['task_id']}: found approval=None in an index of this mapped task, "
                    "which would move without one; expected the output of an approval, or no approval key",
                    parameter="approval",
                )
            init(self, **given)

    return make


@cache
def default_values(kind: type) -> dict[str, object]:
    """Return the defaults of a constructor's parameters, and of those that it passes on to base classes."""
    found: dict[str, object] = {}
    for each in reversed(kind.__mro__):
        found |= {name: it.default for name, it in signature(each.__init__).parameters.items()}  # type: ignore[misc]
    return found


class PipelineTask(BaseOperator):
    """
    Base of the operators and sensors: the names of a pipeline, and checks of the task's options.

    A given option must not render to an empty value: the templates are kept, and compared with their values.
    ``None`` is replaced by a parameter's default. In the UI a mapped task has the name of its group, unless
    ``map_index_template`` is given.

    :param group_id: the consumer group, or ``{topic: group}``. A key ``"source:<index or name>"``
        distinguishes two sources of the same topic. (templated, except the mapping's keys)
    :param topics: allow-list of topics or ``topic:0,1``; by default all Kafka topics of the checkpoint, or
        all topics that the group has commits for and that the connection's user may see. (templated)
    :param checkpoint_location: URI of the Spark checkpoint, exactly as in the Spark job. (templated)
    :param checkpoint_conn_id: Airflow connection of the checkpoint's storage; without it fsspec's defaults
        are used. (templated)
    :param kafka_config_id: Airflow connection of the Kafka cluster. (templated)
    """

    template_fields: Sequence[str] = PIPELINE_PARAMETERS
    template_fields_renderers: ClassVar[dict[str, str]] = {"group_id": "json", "topics": "json"}
    _templates: Mapping[str, object] | None = None
    _renders_objects = False

    @none_is_default
    def __init__(
        self,
        *,
        group_id: str | Mapping[str, str] | XComArg | None = None,
        topics: str | Sequence[str] | XComArg | None = None,
        checkpoint_location: str | XComArg | None = None,
        checkpoint_conn_id: str | None = None,
        kafka_config_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group_id: Any = group_id
        self.topics: Any = topics
        self.checkpoint_location: Any = checkpoint_location
        self.checkpoint_conn_id = checkpoint_conn_id
        self.kafka_config_id = kafka_config_id
        self._default_args: Mapping[str, object] = kwargs.get("default_args") or {}
        if checkpoint_location is None:
            self.refuse_unused_unless_default("without checkpoint_location", "checkpoint_conn_id")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Done before Airflow's metaclass wraps the constructor to add the default_args. In a user's subclass
        # the user defines the meaning of None.
        if "__init__" in vars(cls) and cls.__module__.startswith("airflow_kafka_offsets."):
            cls.__init__ = none_is_default(cls.__init__)  # type: ignore[method-assign]

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        # Airflow calls this for every task. For a mapped task it creates the task with its values here.
        # Remove when Airflow has a documented hook between a task's templates and their values.
        if parent is self:
            self._templates = {name: getattr(self, name, None) for name in template_fields}
            self._renders_objects = isinstance(jinja_env, NativeEnvironment)
            self.name_mapped(context)
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        # Jinja's filters, such as map, return iterators, which can be read only once.
        for name in template_fields if parent is self else ():
            if isinstance(value := getattr(self, name, None), Iterator):
                setattr(self, name, list(value))

    def name_mapped(self, context: Context) -> None:
        """Give an index of a mapped task a name in the UI, once it has a pipeline."""
        named = any(getattr(self, name, None) for name in ("group_id", "checkpoint_location", "topics"))
        if map_index(context) >= 0 and named and not context.get("map_index_template"):
            # A default of the constructor would not be seen: Airflow reads it from the mapped operator.
            context["map_index_template"] = MAP_INDEX_TEMPLATE % ("| tojson" if self._renders_objects else "")

    def open_checkpoint(self) -> SparkCheckpoint | None:
        """Return the pipeline's checkpoint, ``None`` without a ``checkpoint_location``."""
        if self.checkpoint_location is None:
            return None
        # Imported here because a DAG file does not need the storage libraries.
        from airflow_kafka_offsets.hooks.checkpoint import spark_checkpoint

        return spark_checkpoint(self.checkpoint_location, self.checkpoint_conn_id)

    def refuse_unused(self, why: str, *names: str) -> None:
        """Refuse parameters that would have no effect, unless they have their defaults; ``why`` says when."""
        defaults = default_values(type(self))
        if given := [name for name in names if getattr(self, name) != defaults[name]]:
            text = f"task {self.task_id}: {' and '.join(given)} would be ignored {why}: leave it out"
            raise UsageError(text, parameter=given[0])

    def refuse_unused_unless_default(self, why: str, *names: str) -> None:
        """Refuse parameters that would have no effect, unless ``default_args`` set them for all tasks."""
        own = [name for name in names if getattr(self, name) != self._default_args.get(name)]
        self.refuse_unused(why, *own)

    def check_rendered_parameters(self) -> None:
        """Refuse given options that rendered to an empty value or a list; the error names the first one."""
        templates = self._templates
        if templates is None:  # nothing was rendered
            templates = {name: getattr(self, name, None) for name in self.template_fields}
        for name, template in templates.items():
            value = getattr(self, name, None)
            if not self.may_render_blank(name, template):
                check_rendered(name, template, value)
            if name in _RESULTS and isinstance(value, Sequence) and not isinstance(value, str):
                raise UsageError(
                    f"{name}: found a list, such as the output of a mapped task; expected one value: map "
                    f"this task too, with .partial(...).expand({name}=...), or both in a mapped task group",
                    parameter=name,
                )

    def may_render_blank(self, name: str, template: object) -> bool:
        """Return whether an option has a defined meaning if it renders to an empty value."""
        # In a mapped task group, an entry without this key passes None, which means the default.
        return (
            is_group_argument(template)
            and name in ("topics", "checkpoint_conn_id")
            and getattr(self, name) is None
        )


def check_rendered(name: str, given: object, found: object) -> None:
    """Refuse a given option if its value, or a part of its value, has rendered to an empty value."""
    parts = [] if given is None else [(name, given, found), *_templates_in(name, given, found)]
    for path, template, rendered in parts:
        if is_blank(rendered):
            raise _refused(path, template, rendered)


def is_template(value: object) -> bool:
    """Return whether a value, or a part of the value, is known only when the task runs."""
    if isinstance(value, str):
        return has_template(value)
    if isinstance(value, Mapping):
        return any(map(is_template, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(is_template, value))
    # Values that Airflow resolves or calls, such as the output of another task.
    return callable(value) or (hasattr(value, "resolve") and not isinstance(value, os.PathLike))


def check_literals(task: BaseOperator, **parsers: Callable[[Any, str], object]) -> None:
    """Parse the parameters that are literals or rendered; ``None`` and templates are left for later."""
    with with_task_name(task):
        for name, read in parsers.items():
            value = getattr(task, name)
            if isinstance(value, BaseOperator):
                of = value.task_id
                raise UsageError(f"{name}: found the task {of!r}; expected its result, {of}.output")
            if value is not None and not is_template(value):
                read(value, name)


@contextmanager
def with_task_name(task: BaseOperator) -> Iterator[None]:
    """Name the task in the errors of its constructor."""
    try:
        yield
    except (UsageError, OffsetsFormatError) as error:
        parameter = getattr(error, "parameter", None)
        raise UsageError(f"task {task.task_id}: {error}", parameter=parameter) from None


def _templates_in(path: str, given: object, found: object) -> Iterator[tuple[str, object, object]]:
    if isinstance(given, Mapping) and isinstance(found, Mapping):
        for key, cell in given.items():
            if key in found:
                yield from _templates_in(f"{path}[{key!r}]", cell, found[key])
    elif isinstance(given, list | tuple) and isinstance(found, list | tuple) and len(given) == len(found):
        for number, (cell, rendered) in enumerate(zip(given, found, strict=True)):
            yield from _templates_in(f"{path}[{number}]", cell, rendered)
    elif is_template(given):
        yield path, given, found


def _refused(path: str, given: object, found: object) -> UsageError:
    name, shown, correct = path.partition("[")[0], repr(given), ""
    if is_template(given):
        shown, correct = f"{shorten(str(given))} rendered to {found!r}, which", "correct the template, or "
    hints = [hint for mark, hint in _HINTS.items() if mark in str(given)]
    return UsageError(
        f"{path}={shown} is empty: expected a value; {correct}leave {name} out if it is not needed"
        f"{''.join(hints)}",
        parameter=name,
    )
