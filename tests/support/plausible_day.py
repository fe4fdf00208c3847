"""A day of a dozen pipelines as the Offsets pages show it: hourly jobs, and a reset in the morning."""

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import offsets_pages
from offsets_pages import OffsetsPages, columns, instance_now, now, pipeline, task_instance

from airflow_kafka_offsets.model.drift import remedies

MIDNIGHT = datetime(2026, 3, 2, tzinfo=timezone.utc)
NOW = 14 * 60 + 21
"""The minute of the day at which somebody looks."""
RESET, BACK = 10 * 60 + 32, 8 * 60
"""When the orders were reset, and to when."""
PARTITIONS = 12
DAY = 86_400.0
RUN = "manual__2026-03-02T10:32:00+00:00"


def at(minute: float) -> str:
    """Return a time of the day."""
    return (MIDNIGHT + timedelta(minutes=minute)).isoformat()


def log_end(minute: float) -> int:
    """Return the sum of the log ends of ``orders``: more is ordered by day than by night."""
    return 8_400_000 + int(620 * minute - 55_000 * math.sin(2 * math.pi * minute / 1_440))


def move(kind: str, minute: float, offset: int, **values: Any) -> dict[str, Any]:
    """Return a move of the orders."""
    run, end = f"scheduled__{at(60 * (minute // 60))}", log_end(minute)
    logs = {"offset": offset, "log_end": end, "lag": end - offset, "over": "orders"}
    own = {"at": at(minute), "run_id": run, "moved_by": None, "tool": None, **logs}
    return offsets_pages.move(kind) | own | values


def history() -> dict[str, Any]:
    """Return the day of the orders: a job and a commit each hour."""
    moves, batches, committed = [], [], log_end(-51)
    for hour in range(NOW // 60 + 1):
        start = 60 * hour
        if RESET < start <= RESET + 60:
            before, committed = committed, log_end(BACK + 9)
            moves.append(
                move(
                    "reset", RESET, committed, run_id=RUN, task_id="reset_orders", moved_by=committed - before
                )
            )
        moves.append(move("wait", start, committed, task_id="wait_for_records"))
        read, until = log_end(start) - committed, log_end(start)
        duration = 95 + read / 130 + 20 * (hour % 3)
        batches.append(
            {
                "batch": 812 + hour,
                "at": at(start + 1),
                "duration": duration,
                "records": read,
                "offset": until,
                "over": "orders",
                "pending": False,
                "moved_by": None,
            }
        )
        committed = until
        moves.append(move("commit", start + 1 + duration / 60, committed, moved_by=read))
    return {"batches": batches, "moves": moves, "problems": [], "batches_known": True}


def partitions() -> dict[str, list[Any]]:
    """Return the partitions of the orders: a few customers order most."""
    lag = log_end(NOW) - log_end(60 * (NOW // 60))
    shares = [1 / (2 + number) for number in range(PARTITIONS)]
    lags = [int(lag * share / sum(shares)) for share in shares]
    ends = [log_end(NOW) // PARTITIONS + 700 * number for number in range(PARTITIONS)]
    committed = [end - lag for end, lag in zip(ends, lags, strict=True)]
    return columns(PARTITIONS) | {
        "group": ["orders-to-lake"] * PARTITIONS,
        "committed": committed,
        "checkpoint": committed,
        "log_start": [end - 310_000 for end in ends],
        "log_end": ends,
        "lag": lags,
        "time_lag": [1_260.0 - 9 * number for number in range(PARTITIONS)],
        "headroom": [6 * DAY + 900 * number for number in range(PARTITIONS)],
    }


def reading(verdict: str | None = "in step", *, topics: list[str], **values: Any) -> dict[str, Any]:
    """Return where a pipeline is."""
    totals = {
        "lag": 1_840,
        "time_lag": 95.0,
        "headroom": 6.4 * DAY,
        "headroom_state": "time",
        "partitions": 12,
        "without_commit": 0,
        "unknown_lag": 0,
        "uncounted": 0,
        "over": "orders",
        **values.pop("totals", {}),
    }
    own = {
        "read_at": at(NOW),
        "totals": totals,
        "drift": verdict and {"verdict": verdict, "text": verdict},
        "topics": topics,
        "commits": [],
        "remedies": {**remedies()},
        "pace": None,
        "partitions": None,
        "checkpoint": {"batch": 826, "pending_batch": None, "age": 1_130.0},
    }
    return now() | own | values


def listed(group: str, dag: str, topics: list[str] | None, **values: Any) -> dict[str, Any]:
    """Return a pipeline as the list has it."""
    names = {"dag_id": dag, "key": group, "groups": [group], "topics": topics}
    tasks = ["wait_for_records", "commit", "check_drift"]
    return pipeline(tasks=tasks, checkpoint=f"s3a://lake/checkpoints/{group}") | names | values


def give(pages: OffsetsPages) -> None:
    """Let the pages show the day."""
    late = {"lag": 412_806, "time_lag": 5_430.0}
    listener = {
        "kind": "commit",
        "dag_id": None,
        "run_id": None,
        "task_id": None,
        "map_index": None,
        "by": None,
        "tool": "spark listener",
        "query": "5a1f",
        "batch": 9_417,
        "at": at(NOW - 0.5),
    }
    rows = partitions()
    orders = reading(
        topics=["orders"],
        partitions=rows,
        totals={"lag": sum(rows["lag"]), "time_lag": rows["time_lag"][0], "headroom": 6 * DAY},
        pace={"records_in": 611.0, "records_out": None, "lag_falls": None, "seconds_left": None},
    )
    dead = "connection 'kafka_iot': the broker does not answer"
    day: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (listed("orders-to-lake", "orders", None), orders),
        (listed("orders-to-lake", "orders_recovery", None), orders),
        (
            listed("payments-to-lake", "payments", ["payments"]),
            reading("group behind", topics=["payments"], totals=late),
        ),
        (
            listed("clickstream-sessions", "clickstream", None),
            reading(
                "records lost",
                topics=["clicks", "page-views"],
                totals={"lag": 9_204_311, "time_lag": 2.1 * DAY, "headroom": 0.0, "headroom_state": "lost"},
            ),
        ),
        (
            listed("iot-telemetry", "iot", ["telemetry"], kafka_config_id="kafka_iot"),
            reading(topics=["telemetry"], error={"message": dead, "since": at(NOW - 6)}),
        ),
        (
            listed("inventory-cdc", "inventory", None),
            reading(
                "partition added",
                topics=["inventory"],
                totals={
                    "lag": 96,
                    "uncounted": 1_310,
                    "unknown_lag": 1,
                    "without_commit": 1,
                    "time_lag": None,
                    "headroom_state": "unknown",
                },
            ),
        ),
        (
            listed("search-logs", "search", ["search-logs"]),
            reading(
                topics=["search-logs"], totals={"lag": 2_118_400, "time_lag": 9_000.0, "headroom": 0.4 * DAY}
            ),
        ),
        (
            listed("fraud-features", "fraud", ["payments", "logins"]),
            reading(
                topics=["payments", "logins"],
                commits=[listener],
                state="Stable",
                totals={"lag": 212, "time_lag": 1.4},
            ),
        ),
    ]
    calm = ("customers-cdc", "returns-to-lake", "shipments-eta", "pricing-2", "pricing-10", "email-events")
    for number, group in enumerate(calm):
        topic = group.split("-")[0]
        totals = {"lag": 37 * (5 * number % 7), "time_lag": 21.0 * (5 * number % 7)}
        day.append((listed(group, topic, None), reading(topics=[topic], totals=totals)))
    pages.answers = {"pipelines": {"pipelines": [each for each, _ in day], "problems": []}}
    for each, found in day:
        address = f"dags/{each['dag_id']}/pipelines"
        pages.answers |= {
            address: {"pipelines": [each], "problems": []},
            f"{address}/{each['key']}/now": found,
            f"{address}/{each['key']}/history": history(),
        }
    give_reset(pages)


def give_reset(pages: OffsetsPages) -> None:
    """Let the pages show the reset of the orders."""
    rows = partitions()
    after = [end - 260_000 - 400 * number for number, end in enumerate(rows["log_end"])]
    before = [offset + 7_800 + 90 * number for number, offset in enumerate(after)]
    receipt = task_instance()["receipt"]
    receipt |= {"groups": ["orders-to-lake"], "source": {"to_datetime": at(BACK)}, "changed": PARTITIONS}
    receipt["checkpoint"] = {
        "kind": "seek",
        "location": "s3a://lake/checkpoints/orders-to-lake",
        "batch_id": 822,
        "archive": "0003-seek",
    }
    moved_by = [b - a for a, b in zip(before, after, strict=True)]
    receipt["totals"] |= {"partitions": PARTITIONS, "moved_by": sum(moved_by), "lag": 118_220}
    known = {name: rows[name] for name in ("group", "topic", "partition", "log_start", "log_end")}
    unknown = dict.fromkeys(("note", "time_before", "time_after"), [None] * PARTITIONS)
    receipt["partitions"] = known | unknown | {"before": before, "after": after, "moved_by": moved_by}
    command = (
        "airflow-kafka-offsets group restore --kafka-config-id kafka_default --checkpoint "
        "s3a://lake/checkpoints/orders-to-lake --archive 0003-seek --checkpoint-conn-id lake orders-to-lake"
    )
    address = f"dags/orders/runs/{RUN}/tasks/reset_orders/-1"
    times = {
        "before": [at(RESET - 24 + number / 7) for number in range(PARTITIONS)],
        "after": [at(BACK + number / 60) for number in range(PARTITIONS)],
    }
    since = {"state": "moved on", "kind": "commit", "tool": None, "at": at(NOW - 14)}
    moved = move("reset", RESET, sum(after), run_id=RUN, task_id="reset_orders")
    pages.answers[address] = task_instance(receipt=receipt, move=moved, restore_command=command)
    pages.answers[f"{address}/now"] = instance_now(read_at=at(NOW), times=times, since=since)
