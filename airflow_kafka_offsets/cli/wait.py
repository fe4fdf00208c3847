"""Commands that wait: the rules of the sensors, without Airflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from airflow_kafka_offsets.annotation_types import SparkCheckpoint
from airflow_kafka_offsets.cli.connections import (
    CALL_TIMEOUT,
    BrokerOptions,
    checkpoint_option,
    named_broker_options,
    open_client,
)
from airflow_kafka_offsets.cli.execution import now_text, print_result
from airflow_kafka_offsets.cli.options import (
    CommandGroup,
    add_options,
    choice_option,
    combine_options,
    duration_option,
    isolation_option,
    output_option,
    topics_option,
)
from airflow_kafka_offsets.errors import KafkaOffsetsError
from airflow_kafka_offsets.model.formats import as_usage_error
from airflow_kafka_offsets.model.parameters import MissingCommitPolicy, duration_text

if TYPE_CHECKING:
    from airflow_kafka_offsets.waits.wait import Reading, Wait


@click.group(cls=CommandGroup)
def wait() -> None:
    """
    Wait for a group, a checkpoint or a topic, as the sensors do.

    Exit 0 when the target is reached, 1 on a timeout or if it cannot be reached, 2 for wrong usage.
    """


@dataclass(frozen=True)
class WaitOptions:
    """How a command waits: the broker, the poll interval, the deadline, and the output's format."""

    broker: BrokerOptions
    every: float
    give_up_after: float
    output: str

    def run(
        self, kind: type[Wait], parameters: Mapping[str, Any], checkpoint: SparkCheckpoint | None = None
    ) -> None:
        """
        Poll until a wait ends, and print the last reading; progress goes to standard error.

        A temporary error is shown and does not end the wait.

        :raises KafkaOffsetsError: on a timeout, or if nothing moves.
        """
        from airflow_kafka_offsets.waits.progress import Progress

        location = None if checkpoint is None else checkpoint.location
        with as_usage_error():
            wait, frozen = kind(**parameters, checkpoint_location=location), False
        call_timeout = min(CALL_TIMEOUT, self.give_up_after)
        client = open_client(self.broker.client_config(), call_timeout, limited=False)
        progress = Progress(wait.stalled_after)
        last: Reading | None = None
        end = time.monotonic() + self.give_up_after
        while True:
            try:
                if not frozen:
                    wait, frozen = wait.freeze(client, checkpoint), True
                last = progress.add_reading(wait.poll(client, checkpoint))
            except KafkaOffsetsError as error:
                if not error.retriable:
                    raise
                if progress.is_new_error(error):
                    _say(f"no answer this time: {error}")
            else:
                if last.done:
                    print_result(self.output, last.as_json(), [last.text])
                    return
                if progress.news:
                    _say(last.text)
            # Checked after the poll: even the shortest wait polls once.
            left = end - time.monotonic()
            failure = progress.stalled
            if left <= 0 and not failure:
                failure = f"not reached within {duration_text(self.give_up_after)}: {progress.summary}"
            if failure:
                if last is not None and self.output == "json":
                    print_result(self.output, last.as_json(), ())
                raise KafkaOffsetsError(failure)
            time.sleep(min(self.every, left))


def _say(text: str) -> None:
    click.echo(f"{now_text()} {text}", err=True)


waiting_options = combine_options(
    "waiting",
    WaitOptions,
    duration_option("--every", "10s", "between two polls.", allow_zero=False),
    duration_option(
        "--timeout", "1h", "after which the command gives up.", parameter="give_up_after", allow_zero=False
    ),
    named_broker_options,
    output_option,
)

stalled_option = duration_option(
    "--stalled-after",
    None,
    "without any movement after which the wait fails. Default: never.",
    allow_zero=False,
)
position_options = add_options(
    click.argument("group_id", metavar="[GROUP]", required=False),
    topics_option,
    checkpoint_option("The checkpoint: the position without a GROUP, otherwise the source of the topics."),
    click.option(
        "--position",
        type=click.Choice(["group", "checkpoint"]),
        help="The position to use if both are given. Default: group.",
    ),
    isolation_option,
    stalled_option,
    click.option(
        "--tolerance", metavar="N", help="A partition that is at most this far behind counts as there."
    ),
)
"""The options that name the position: a group, or a checkpoint."""


@wait.command("lag")
@position_options
@click.option("--max-lag", metavar="N", help="Maximum records in all partitions together.")
@click.option("--max-partition-lag", metavar="N", help="Maximum records in each partition.")
@duration_option("--max-time-lag", None, "since the oldest unread record was written, at most.")
@duration_option(
    "--min-headroom", None, "that the oldest unread record must have left in retention.", allow_zero=False
)
@choice_option("--on-no-commit", MissingCommitPolicy, "fail", "How a partition without a commit counts.")
@waiting_options
def wait_lag(checkpoint: SparkCheckpoint | None, waiting: WaitOptions, **values: Any) -> None:
    """
    Wait until the lag of GROUP or a checkpoint is low enough.

    It must be at or below all given thresholds. The lag is measured live: with a producer that never stops,
    use "wait reached", which ends.
    """
    from airflow_kafka_offsets.waits.lag import LagWait

    waiting.run(LagWait, values, checkpoint)


@wait.command("reached")
@position_options
@click.option(
    "--target", metavar="latest|TIME|JSON", help="The current log end, a time, offsets, or a receipt."
)
@waiting_options
def wait_reached(checkpoint: SparkCheckpoint | None, waiting: WaitOptions, **values: Any) -> None:
    """
    Wait until GROUP or a checkpoint has reached a target.

    The target is looked up once and does not change, so the wait ends even with a producer that never stops.
    """
    from airflow_kafka_offsets.waits.reached import ReachedWait

    waiting.run(ReachedWait, values, checkpoint)


@wait.command("topic")
@topics_option
@click.option("--target", metavar="TIME", help="The time in ISO 8601; UTC if it has no zone.")
@choice_option(
    "--on-idle-partition",
    Literal["wait", "ignore"],
    "wait",
    "For a partition without new records, while other partitions of its topic have some.",
)
@duration_option(
    "--idle-after", None, "without records after which a partition is idle. Default: 10m.", allow_zero=False
)
@isolation_option
@stalled_option
@waiting_options
def wait_topic(waiting: WaitOptions, **values: Any) -> None:
    """Wait until every partition has a record at or after a time."""
    from airflow_kafka_offsets.waits.topic import TopicWait

    waiting.run(TopicWait, values)
