"""Options that several commands share; each set is combined into one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import click
from click.core import ParameterSource

from airflow_kafka_offsets.errors import PlanRefusedError, SetupError, UsageError
from airflow_kafka_offsets.model.formats import as_usage_error
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import IsolationLevel
from airflow_kafka_offsets.model.parameters import (
    LONGEST,
    MissingCommitPolicy,
    OutOfRangePolicy,
    exactly_one,
    is_blank,
    parse_seconds,
)
from airflow_kafka_offsets.model.place import RESETS, Place
from airflow_kafka_offsets.model.text import shorten
from airflow_kafka_offsets.model.wording import Wording, parameter_error, unexpected, worded

Command = Callable[..., Any]
Option = Callable[[Command], Command]
"""A decorator that adds one or more options to a command."""


EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)

_SECTIONS = {
    "Where to move": ("to_earliest", "to_latest", "to_current", *RESETS, "receipt", "archive"),
    "Checkpoint": (
        *("uri", "checkpoint_conn_id", "on_pending_batch", "sink", "idempotent_sink", "sink_location"),
        *("allow_stateful", "quiet_period"),
    ),
    "What is allowed": (
        *("on_out_of_range", "on_no_commit", "allow_rewind", "allow_new_query", "allow_new_cluster"),
        "allow_stale",
    ),
    "Waiting": ("every", "give_up_after", "stalled_after"),
    "Broker": ("bootstrap_server", "command_config", "kafka_config_id", "timeout"),
    "Plan and output": (
        *("dry_run", "execute", "save", "export", "output", "watch", "save_plan", "plan_file", "max_age"),
    ),
}
_SECTION_OF = {name: section for section, names in _SECTIONS.items() for name in names}

_ELSEWHERE = {"topics": "--topic", "group_id": "GROUP", "checkpoint_location": "--checkpoint"}
"""Parameters for which the options or arguments of other commands have another name."""

_PLACES = {"to_earliest": "earliest", "to_latest": "latest", "to_current": "committed"}
"""Options for values of ``to_offset``; Kafka's tool says current for committed."""


class OptionWording(Wording):
    """
    The wording of the command line, which names parameters as options of a command.

    A parameter that the command does not have is named like the option of another command.

    :param keys: parameter -> key of a file, which the texts name instead of an option.
    """

    for_dags = False

    def __init__(self, command: click.Command, keys: Mapping[str, str] | None = None) -> None:
        given = {
            str(each.name): each.opts[0] if each.param_type_name == "option" else each.human_readable_name
            for each in command.params
        }
        same = {"checkpoint_location": given.get("uri"), "group_id": given.get("group_ids")}
        self._names = {
            **_ELSEWHERE,
            **{name: option.strip("[].") for name, option in {**same, **given}.items() if option},
            **(keys or {}),
        }

    def parameter(self, name: str) -> str:
        """Return the option; other names, such as a file's name, stay unchanged."""
        base, bracket, key = name.partition("[")
        if not base.isidentifier():
            return name
        return f"{self._names.get(base) or option_name(base)}{bracket}{key}"

    def assignment(self, name: str, value: object) -> str:
        """Return the option with its value."""
        flags = {place: flag for flag, place in _PLACES.items()}
        if name == "to_offset" and isinstance(value, str) and value in flags:
            return self.parameter(flags[value])
        option = self.parameter(name)
        if value is True or value is ...:
            return option
        return f"no {option}" if value is None or value is False else f"{option} {shorten(value)}"


def no_group_error() -> PlanRefusedError:
    """Return the error for ``--all-groups`` without a visible group."""
    # A broker lists only groups that the user may describe: an empty list more likely means a missing right
    # than an empty cluster.
    return PlanRefusedError(
        "--all-groups: found no group that this user may see; expected at least one: correct the broker, or "
        "grant the user Describe on the groups"
    )


def option_name(parameter: str) -> str:
    """Return the option of a parameter."""
    return f"--{parameter.replace('_', '-')}"


class StrictCommand(click.Command):
    """
    A command that refuses options without a value, such as an unset shell variable.

    Its texts name parameters as options, and its help has sections.

    :cvar keys: parameter -> key of the command's file, which the texts name.
    """

    keys: ClassVar[Mapping[str, str]] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; refuse one without a value, or given twice: click would use its last value."""
        with worded(OptionWording(self, self.keys)):
            if not ctx.resilient_parsing:
                values, _, order = self.make_parser(ctx).parse_args([*args])
                for option in order:
                    if not isinstance(option, click.Option) or option.is_flag:
                        continue
                    name = str(option.name)
                    texts = values[name] if option.multiple else [values[name]]
                    if any(isinstance(text, str) and not text.strip() for text in texts):
                        raise parameter_error(name, " is empty: give a value, or leave it out")
                    if not option.multiple and order.count(option) > 1:
                        raise parameter_error(name, " is given twice: give it once")
            return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in sections, the command's own options first."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Options", *_SECTIONS)}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None and option.param_type_name == "option":
                own = "Plan and output" if "--help" in option.opts else "Options"
                sections[_SECTION_OF.get(str(option.name), own)].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error for a library that cannot be imported names the remedy."""
        with worded(OptionWording(self, self.keys)):
            try:
                return super().invoke(ctx)
            except ImportError as error:
                check = "check the installation with 'airflow-kafka-offsets doctor'"
                raise SetupError(f"a library cannot be imported ({error}): {check}") from error


class CommandGroup(click.Group):
    """A group of such commands; the modules of those ``elsewhere`` are imported when they are used."""

    command_class = StrictCommand

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._elsewhere = elsewhere or {}
        # Placeholders: click suggests a name of these for a mistyped one.
        self.commands.update({name: click.Command(name) for name in self._elsewhere})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; import its module first if needed."""
        if cmd_name in self._elsewhere:
            module = import_module(f"airflow_kafka_offsets.cli.{self._elsewhere[cmd_name]}")
            found: click.Command = getattr(module, cmd_name)
            return found
        return super().get_command(ctx, cmd_name)


def refuse_unused(why: str, *names: str) -> None:
    """Refuse options that would be ignored ``why``, such as ``without --checkpoint``, by their parameters."""
    source = click.get_current_context().get_parameter_source
    options = {str(each.name): each.opts[0] for each in click.get_current_context().command.params}
    given = [options[name] for name in names if source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise UsageError(f"{' and '.join(given)} would be ignored {why}: leave it out")


def combine_options(parameter: str, read: Callable[..., object], *options: Option) -> Option:
    """
    Return a decorator that adds options to a command and passes their values as one parameter.

    :param read: creates this value from the options' values, which it takes by name.
    :param options: click's decorators, or combined ones.
    """

    def values_of(**values: Any) -> dict[str, Any]:
        return values

    gather = add_options(*options)(values_of)
    added: list[click.Parameter] = gather.__click_params__  # type: ignore[attr-defined]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**values: Any) -> Any:
            given = gather(**{str(option.name): values.pop(str(option.name)) for option in reversed(added)})
            return command(**values, **{parameter: read(**given)})

        run.__click_params__ = [*getattr(command, "__click_params__", ()), *added]  # type: ignore[attr-defined]
        return run

    return decorate


def choice_option(name: str, choices: object, default: str, text: str) -> Option:
    """Return an option that takes one value of a ``Literal`` type."""
    kind = click.Choice(get_args(choices))
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def duration_option(
    name: str,
    default: str | None,
    text: str,
    *,
    parameter: str | None = None,
    allow_zero: bool = True,
    maximum: timedelta = LONGEST,
) -> Option:
    """Return an option that takes a duration; ``parameter`` is its parameter, if named differently."""

    def read(_context: click.Context, option: click.Parameter, value: object) -> float | None:
        return parse_seconds(value, str(option.name), allow_zero=allow_zero, maximum=maximum.total_seconds())

    return click.option(
        *([name, parameter] if parameter else [name]),
        metavar="DURATION",
        default=default,
        callback=read,
        show_default=True,
        help=f"Time such as 10m {text}",
    )


def add_options(*options: Option) -> Option:
    """Return a decorator that adds options to a command, like these decorators one below the other."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _read_place(**options: Any) -> Place | None:
    from airflow_kafka_offsets.readings.places import read_place

    if click.get_current_context().params.get("plan_file") is not None:
        return None
    given = {name: None if value is False else value for name, value in options.items()}
    for name, value in given.items():
        if value is not None and is_blank(value):
            raise unexpected(name, value, "a value")
    name, value = exactly_one(given)
    with as_usage_error():
        return read_place("to_offset", _PLACES[name]) if value is True else read_place(name, value)


output_option = choice_option("--output", Literal["table", "json"], "table", "Format of the output.")

topics_option = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    callback=lambda _context, _option, topics: list(topics) or None,
    help="Only this topic, or these partitions of it; may be repeated.",
)

group_argument = click.argument("group_id", metavar="GROUP")

groups_argument = combine_options("groups", GroupSelection.parse, group_argument, topics_option)

save_option = click.option(
    "--save",
    type=NEW_FILE,
    help="With --execute: first write the offsets before the move or deletion to this new file, as "
    "Kafka's CSV.",
)

no_commit_option = choice_option(
    "--on-no-commit",
    MissingCommitPolicy,
    "fail",
    "Where to move a partition whose commit is needed but missing.",
)

isolation_option = choice_option(
    "--isolation-level",
    IsolationLevel,
    "read_uncommitted",
    "Measure to the high watermark, or to the last stable offset.",
)

place_options = combine_options(
    "place",
    _read_place,
    click.option("--to-earliest", is_flag=True, help="To the log start."),
    click.option("--to-latest", is_flag=True, help="To the log end."),
    click.option("--to-current", is_flag=True, help="To the committed offsets, which are committed again."),
    *(click.option(option_name(name), metavar=one.metavar, help=one.text) for name, one in RESETS.items()),
)

new_cluster_option = click.option(
    "--allow-new-cluster",
    is_flag=True,
    help="Use the offsets although the cluster or a topic is another one than before.",
)

allow_stale_option = click.option(
    "--allow-stale", is_flag=True, help="Take a move back although the pipeline has run since."
)

out_of_range_option = choice_option(
    "--on-out-of-range", OutOfRangePolicy, "fail", "For an offset outside the log, or a time in the future."
)
