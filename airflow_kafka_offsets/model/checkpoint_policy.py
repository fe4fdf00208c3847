"""What a caller allows a move of a checkpoint to do, and the sinks that decide it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import Literal, cast, get_args

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.location import check_location
from airflow_kafka_offsets.model.parameters import parse_choice, parse_seconds, parse_switch
from airflow_kafka_offsets.model.wording import parameter_error, parameter_text, unexpected

PendingBatch = Literal["fail", "discard"]
"""What to do about a batch that was not finished: refuse the move, or archive and remove the batch."""

Sink = Literal["kafka", "noop", "file", "delta", "iceberg", "hudi"]
"""
The sink of the query, which is not recorded in its checkpoint.

``kafka`` and ``noop`` accept a batch id that was used before for other records. The :data:`RECORDING_SINKS`
skip batch ids that they have recorded, so the records of a reused batch id are lost. For any other sink, the
caller must declare that it is idempotent; otherwise only a seek is safe, because a seek never reuses a batch
id. ``tests/compatibility/sinks.py`` tests each sink.
"""

RECORDING_SINKS = {"file": "_spark_metadata", "delta": "_delta_log", "iceberg": "metadata", "hudi": ".hoodie"}
"""Sinks that record the batches they have written -> the directory of this record under ``sink_location``."""

QUIET_PERIOD = 10.0
"""Seconds without a write to a checkpoint after which its query counts as stopped."""


@dataclass(frozen=True)
class CheckpointPolicy:
    """What the caller allows a move of a checkpoint to do."""

    on_pending_batch: PendingBatch = "fail"
    sink: Sink | None = None
    """Required if the move reuses a batch id, unless the sink is idempotent."""
    _: KW_ONLY
    idempotent_sink: bool = False
    """
    Whether the query writes with a ``foreachBatch`` function that overwrites by the records' own key and does
    not use the batch id (Delta's ``txnVersion`` would use it).
    """
    sink_location: str | None = None
    """Directory that one of the :data:`RECORDING_SINKS` writes to; for a table, the table's location."""
    allow_stateful: bool = False
    """Whether to move a stateful query, whose state does not move with it."""

    @classmethod
    def parse(
        cls,
        on_pending_batch: object = "fail",
        sink: object = None,
        idempotent_sink: object = False,
        sink_location: object = None,
        allow_stateful: object = False,
    ) -> CheckpointPolicy:
        """Read the parameters of an operator; errors name the parameter, its value and the choices."""
        check_location(sink_location, "sink_location")
        policy = cls(
            parse_choice(on_pending_batch, PendingBatch, "on_pending_batch"),
            None if sink is None else parse_sink(sink),
            idempotent_sink=parse_switch(idempotent_sink, "idempotent_sink"),
            sink_location=None if sink_location is None else str(sink_location),
            allow_stateful=parse_switch(allow_stateful, "allow_stateful"),
        )
        if policy.idempotent_sink and policy.sink is not None:
            raise UsageError(
                f"{parameter_text('sink', sink)} and {parameter_text('idempotent_sink')} are both given: "
                f"{parameter_text('idempotent_sink', True)} is for a sink that {parameter_text('sink')} "
                "cannot name; give only one parameter"
            )
        if policy.sink_location is not None and policy.sink not in RECORDING_SINKS:
            raise parameter_error(
                "sink_location",
                f" would be ignored with {parameter_text('sink', sink)}: expected {parameter_text('sink')} "
                f"{' or '.join(map(repr, RECORDING_SINKS))}, or no {parameter_text('sink_location')}",
                sink_location,
            )
        # Spark uses the id of a discarded batch again.
        if policy.on_pending_batch == "discard" and not policy.idempotent_sink:
            if policy.sink is None:
                needs = f" needs the sink: set {parameter_text('sink')} to {sink_choices()}"
                raise parameter_error("on_pending_batch", needs, "discard")
            if policy.sink in RECORDING_SINKS and policy.sink_location is None:
                needs = f"{parameter_text('sink_location')}, the directory that the query writes to"
                with_sink = f" with {parameter_text('sink', policy.sink)} needs {needs}"
                raise parameter_error("on_pending_batch", with_sink, "discard")
        return policy


POLICY = tuple(field.name for field in fields(CheckpointPolicy))
"""The parameters that say how a checkpoint may be changed: a saved plan has decided them."""


def sink_choices() -> str:
    """Return the choices of ``sink``, for an error text."""
    return (
        "'kafka', 'noop', 'file' (parquet, json, ...), 'delta', 'iceberg' or 'hudi'; for any other sink set "
        f"{parameter_text('idempotent_sink', True)} if it is a foreachBatch that overwrites by the records' "
        "own key and does not use the batch id; otherwise only a seek without an unfinished batch works"
    )


def parse_sink(value: object, parameter: str = "sink") -> Sink:
    """Read ``sink``; an error names its value and the choices."""
    if value not in get_args(Sink):
        raise unexpected(parameter, value, sink_choices())
    return cast("Sink", value)


def parse_quiet_period(value: object, parameter: str = "quiet_period") -> float:
    """Read ``quiet_period``: a duration of at most a day, in seconds; ``None`` is the default."""
    # A quiet period of more than a day is probably a typing mistake.
    seconds = parse_seconds(value, parameter, maximum=86_400)
    return QUIET_PERIOD if seconds is None else seconds
