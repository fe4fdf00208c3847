"""What the command line must not print: names and advice that only the author of a DAG can use."""

import re
from collections.abc import Iterator
from inspect import signature

import click

import airflow_kafka_offsets
from airflow_kafka_offsets.cli import cli
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS

WITHOUT_COMMAND = {"AuditWindowOperator", "CompletedIntervalsOperator", "KafkaSparkSubmitOperator"}
TASKS = [
    getattr(airflow_kafka_offsets, name)
    for name in airflow_kafka_offsets.__all__
    if name.endswith(("Operator", "Sensor", "Trigger")) and name not in WITHOUT_COMMAND
]
PARAMETERS = sorted(
    {
        name
        for task in TASKS
        for name, parameter in signature(task.__init__).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }.union(*(getattr(task, "template_fields", ()) for task in TASKS), PIPELINE_PARAMETERS)
)
"""The names of all parameters of operators, sensors and the event trigger."""

_MARKS = re.compile(
    r"=True\b|=False\b|=None\b|\{\{|\*\*|tojson|\bclear this task\b"
    rf"|(?<![\w.-])(?:{'|'.join(PARAMETERS)})=(?![\w\"])"
)


def commands(group: click.Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Return all commands of the command line with their paths."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        elif command is not None:
            yield f"{path}{name}", command


def words_of_dags(text: str, *, keys: bool = False) -> list[str]:
    """
    Return what a text of the command line has of Python and DAGs.

    :param keys: whether it may name the keys of a file of pipelines.
    """
    known = {name for name in PARAMETERS if "_" in name} - set(PIPELINE_PARAMETERS if keys else ())
    words = re.findall(r"(?<![\w./'\"-])[a-z]+(?:_[a-z]+)+(?![\w./'\"-])", text)
    return [*_MARKS.findall(text), *(word for word in words if word in known)]
