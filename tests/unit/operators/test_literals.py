"""
Parameters that are written in the DAG's file are checked when it is parsed, templates when the task runs.
"""

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.operators.audit_window import AuditWindowOperator
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.check_mirror import CheckMirrorOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.operators.plan_resets import PlanResetsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor

GROUP: dict[str, Any] = {"group_id": "orders"}
CHECKPOINT: dict[str, Any] = {"checkpoint_location": "/cp/orders"}
ORDERS: dict[str, Any] = GROUP | CHECKPOINT
MIRROR: dict[str, Any] = {"mirror": {"kafka_config_id": "b"}}
OFFSETS = GROUP | {"offsets": {"orders": {"0": 1}}}
WINDOW: dict[str, Any] = GROUP | {"window": "/window.json"}
WHOLE_WINDOW: dict[str, Any] = {
    "version": 1,
    **{name: {"orders": {"0": 1}} for name in ("start", "end", "committed")},
}
RESET: dict[str, Any] = ORDERS | {"to_offset": "earliest"}
BACK: dict[str, Any] = ORDERS | {"from_file": "/before.csv"}
OF_FILES = RESET | {"sink": "file"}
TABLE: dict[str, Any] = {"conn_id": "lake", "table": "orders"}
AUDIT: dict[str, Any] = TABLE | {"window": "/window.json"}
WITH_PASSWORD = "s3a://key:a-secret@bucket/x"
PASSWORD = r" \(s3a://...\) holds a password, .* name it with "

WRONG = [
    (RestoreOffsetsOperator, GROUP, "receipt", "x", ": x is not JSON.*; expected a receipt"),
    (CheckOffsetDriftOperator, {}, "pipelines", "x", ": x is not JSON.*; expected a list of pipelines"),
    (CheckOffsetDriftOperator, ORDERS, "grace", "P8D", "='P8D': expected seconds.* of at most 7 days"),
    (CheckOffsetDriftOperator, ORDERS, "on_drift", "shrug", "='shrug': expected one of 'fail', 'warn'"),
    (CommitOffsetsOperator, ORDERS, "on_out_of_range", "clmap", "='clmap': expected one of 'fail'"),
    (CommitOffsetsOperator, ORDERS, "allow_rewind", "no", "='no': expected true or false"),
    (CommitOffsetsOperator, ORDERS, "allow_new_query", 1, "=1: expected true or false"),
    (CommitOffsetsOperator, GROUP, "offsets", {"orders": {"0": "x"}}, ": "),
    (CommitOffsetWindowOperator, WINDOW, "fenced", "yes", "='yes': expected true or false"),
    (CommitOffsetWindowOperator, WINDOW, "on_out_of_range", "clmap", "='clmap': expected one of"),
    (ResetOffsetsOperator, RESET, "on_out_of_range", "clmap", "='clmap': expected one of"),
    (ResetOffsetsOperator, RESET, "plan_only", "maybe", "='maybe': expected true or false"),
    (ResetOffsetsOperator, RESET, "allow_stateful", "yes", "='yes': expected true or false"),
    (ResetOffsetsOperator, RESET, "quiet_period", "soon", "='soon': expected seconds"),
    (ResetOffsetsOperator, RESET, "quiet_period", "P2D", "='P2D': expected seconds.* of at most"),
    (ResetOffsetsOperator, RESET, "on_pending_batch", "drop", "='drop': expected one of 'fail', 'discard'"),
    (ResetOffsetsOperator, RESET, "sink", "parquet", "='parquet': expected 'kafka'"),
    (ResetOffsetsOperator, GROUP | {"shift_by": 1}, "on_no_commit", "zero", "='zero': expected one of"),
    (ResetOffsetsOperator, ORDERS, "to_offset", "lates", "='lates': expected a whole number"),
    (ResetOffsetsOperator, ORDERS, "to_datetime", "yesterday", "='yesterday': expected a time"),
    (ResetOffsetsOperator, ORDERS, "shift_by", "far", "='far': expected a whole number"),
    (ResetOffsetsOperator, ORDERS, "by_duration", "1 day", "='1 day': expected seconds"),
    (ResetOffsetsOperator, ORDERS, "to_batch", "newest", "='newest': expected 0 or more"),
    (ResetOffsetsOperator, ORDERS, "to_group", {"orders": "blue"}, ": found .*; expected the name of"),
    (RestoreOffsetsOperator, BACK, "restore_when", "never", "='never': expected one of 'failed', 'always'"),
    (
        RestoreOffsetsOperator,
        ORDERS | {"receipt": "{{ it }}"},
        "on_no_commit",
        "latest",
        "='latest': expected one of 'skip'",
    ),
    (PlanOffsetWindowOperator, GROUP, "on_empty", "go", "='go': expected one of 'skip', 'fail', 'continue'"),
    (PlanOffsetWindowOperator, GROUP, "on_no_commit", "zero", "='zero': expected one of"),
    (PlanOffsetWindowOperator, GROUP, "start", "", "='': expected 'committed', 'earliest', a time"),
    (PlanOffsetWindowOperator, GROUP, "start", "yesterday", "='yesterday': expected 'committed', 'earliest'"),
    (PlanOffsetWindowOperator, GROUP, "start", "latest", "='latest': expected 'committed', 'earliest'"),
    (PlanOffsetWindowOperator, GROUP, "max_records", 0, "=0: expected 1 or more"),
    (PlanOffsetWindowOperator, GROUP, "topics_pattern", "[", r"='\[' is not a regular expression"),
    (PlanOffsetWindowOperator, GROUP, "window_file", "", "='' is empty: expected a value"),
    (CommitOffsetsOperator, ORDERS, "kafka_config_id", "", "='' is empty: expected a value"),
    (CommitOffsetsOperator, GROUP, "checkpoint_location", " ", "=' ' is empty: expected a value"),
    (CommitOffsetsOperator, GROUP, "checkpoint_location", Path("/cp"), ": found PosixPath; expected text"),
    (CommitOffsetsOperator, GROUP, "checkpoint_location", WITH_PASSWORD, f"{PASSWORD}checkpoint_conn_id"),
    (ResetOffsetsOperator, OF_FILES, "sink_location", WITH_PASSWORD, f"{PASSWORD}checkpoint_conn_id"),
    (ResetOffsetsOperator, GROUP, "from_file", WITH_PASSWORD, r" \(s3a://...\) holds a password, "),
    (RestoreOffsetsOperator, GROUP, "from_file", WITH_PASSWORD, r" \(s3a://...\) holds a password, "),
    (AuditWindowOperator, {"conn_id": "lake", "window": "/w.json"}, "table", " ", "=' ' is empty"),
    (AuditWindowOperator, AUDIT, "on_undecided", "skip", "='skip': expected one of 'fail', 'warn'"),
    (AuditWindowOperator, AUDIT, "where", {}, "={}: expected"),
    (AuditWindowOperator, AUDIT, "where", {"run_id": None}, ": found None for column 'run_id'; .* a text"),
    (AuditWindowOperator, AUDIT, "where", {"run_id": []}, r": found \[\] for column 'run_id'; .* a text"),
    (AuditWindowOperator, AUDIT, "where", {"run_id": ["a", {}]}, ": .* for column 'run_id'; expected a text"),
    (AuditWindowOperator, AUDIT, "where", "run_id = 'this'", ": .*is not JSON"),
    (AuditWindowOperator, AUDIT, "read_timeout", "soon", "='soon': expected seconds"),
    (AuditWindowOperator, AUDIT, "read_timeout", 7200, "=7200: expected seconds"),
    (AuditWindowOperator, AUDIT, "save_to", WITH_PASSWORD, f"{PASSWORD}save_conn_id"),
    (PlanOffsetWindowOperator, GROUP, "window_file", WITH_PASSWORD, f"{PASSWORD}window_conn_id"),
    (CommitOffsetWindowOperator, GROUP, "window", WITH_PASSWORD, f"{PASSWORD}window_conn_id"),
    (CommitOffsetsOperator, CHECKPOINT, "group_id", "", ": found ''; expected the name of a consumer group"),
    (CommitOffsetsOperator, ORDERS, "topics", "", ": found ''; expected the name of a topic"),
    (CommitOffsetsOperator, GROUP | {"store_conn_id": "db"}, "store_table", "", "='' is empty"),
    (CommitOffsetsOperator, GROUP | {"store_conn_id": "db"}, "store_pipeline", "", "='' is empty"),
    (ResetOffsetsOperator, OF_FILES, "sink_location", "", "='' is empty"),
    (RestoreOffsetsOperator, ORDERS, "receipt", {"a": 1}, "|found {'a': 1}; expected a receipt of version 1"),
    (RestoreOffsetsOperator, ORDERS, "receipt", {}, "|found {}; expected a receipt of version 1"),
    (RestoreOffsetsOperator, ORDERS, "receipt", "done", ": .*is not JSON"),
    (RestoreOffsetsOperator, ORDERS, "receipt", "", "='' is empty: expected a value"),
    (CommitOffsetWindowOperator, GROUP, "window", {}, ": found {}; expected a window of version 1"),
    (CommitOffsetWindowOperator, GROUP, "window", "", "='' is empty: expected a value"),
    (PlanOffsetWindowOperator, GROUP, "end", "earliest", "='earliest': expected 'latest'"),
    (PlanOffsetWindowOperator, GROUP, "max_records", "many", "='many': expected 1 or more, as a whole"),
    (
        OffsetsReachedSensor,
        GROUP,
        "target",
        "lastest",
        "='lastest': expected 'latest', a time such as .*, offsets such as .*, or the receipt of a task",
    ),
]


@pytest.mark.parametrize(("operator", "names", "parameter", "value", "says"), WRONG)
def test_a_literal_is_refused_when_the_dag_is_parsed(operator, names, parameter, value, says):
    with pytest.raises(UsageError, match=f"^task wrong: {parameter}{says}"):
        operator(task_id="wrong", **names, **{parameter: value})


@pytest.mark.parametrize(
    ("operator", "names", "says"),
    [
        (OffsetsReachedSensor, GROUP, "target is missing: give 'latest', a time such as .*, offsets"),
        (TopicReachedSensor, {"topics": "orders"}, "target is missing: give a time such as"),
        (ConsumerGroupLagSensor, GROUP, "no threshold: give max_lag, .*, max_time_lag or min_headroom"),
        (TopicReachedSensor, {"target": "2026-03-01"}, "no topic to read: give topics"),
        (OffsetsReachedSensor, {"target": "latest"}, "no position to read"),
        (ConsumerGroupLagSensor, {"max_lag": 0}, "no position to read"),
        (CommitOffsetsOperator, {}, "group_id is missing"),
        (ResetOffsetsOperator, {"to_offset": "earliest"}, "group_id is missing"),
        (RestoreOffsetsOperator, {"from_file": "/before.csv"}, "group_id is missing"),
        (RestoreOffsetsOperator, {}, "nothing to restore: give receipt, usually reset.output, or from_file"),
        (RestoreOffsetsOperator, ORDERS, "nothing to restore: give receipt"),
        (RestoreOffsetsOperator, ORDERS | {"restore_when": "always"}, "nothing to restore: give receipt"),
        (CommitOffsetWindowOperator, {"window": "/window.json"}, "group_id is missing"),
        (FailOverOperator, {}, "group_id is missing"),
        (CommitOffsetsOperator, GROUP, "nothing to commit: give checkpoint_location"),
        (CommitOffsetWindowOperator, GROUP, "window is missing"),
        (AuditWindowOperator, TABLE, "window is missing: give the output of PlanOffsetWindowOperator"),
        (AuditWindowOperator, AUDIT | {"conn_id": None}, "conn_id is missing: name the Airflow connection"),
        (AuditWindowOperator, AUDIT | {"table": None}, "table is missing: name the table"),
        (CheckOffsetDriftOperator, {}, "nothing to compare: give group_id and checkpoint_location"),
        (ResetOffsetsOperator, GROUP, "nothing was given; expected exactly one of to_offset"),
    ],
)
def test_a_parameter_that_is_missing_is_named_with_its_task(operator, names, says):
    with pytest.raises(UsageError, match=f"^task wrong: {says}"):
        operator(task_id="wrong", **names)


@pytest.mark.parametrize(
    ("operator", "names", "parameter", "value", "says"),
    [case for case in WRONG if case[2] not in ("offsets", "start", "end")],
)
def test_a_template_is_left_for_the_task(operator, names, parameter, value, says):
    with DAG("d", render_template_as_native_obj=True):
        task = operator(task_id="later", **names, **{parameter: "{{ it }}"})
    task.render_template_fields({"it": value})
    assert getattr(task, parameter) == value


@pytest.mark.parametrize("value", ["true", "True", True])
def test_a_switch_may_come_from_the_run(value):
    for operator, names, switch in (
        (CommitOffsetsOperator, ORDERS, "allow_rewind"),
        (CommitOffsetsOperator, ORDERS, "allow_new_query"),
        (CommitOffsetWindowOperator, WINDOW, "fenced"),
        (ResetOffsetsOperator, RESET, "plan_only"),
        (ResetOffsetsOperator, RESET, "allow_stateful"),
        (RestoreOffsetsOperator, BACK, "allow_stateful"),
    ):
        with DAG("d"):
            task = operator(task_id="t", **names, **dict[str, Any]({switch: "{{ params.it }}"}))
        task.render_template_fields({"params": {"it": value}})
        assert task.parse_parameter(switch) is True


def test_a_switch_that_is_no_switch_fails_the_task_at_once():
    task = ResetOffsetsOperator(task_id="t", **RESET, plan_only="{{ it }}")
    task.render_template_fields({"it": "perhaps"})
    with pytest.raises(AirflowFailException, match="plan_only='perhaps': expected true or false"):
        task.execute({})


@pytest.mark.parametrize(
    "scenarios",
    [
        {"to_offset": "{{ params.to }}", "shift_by": "{{ params.by }}"},
        {"to_offset": "{{ params.to }}", "shift_by": 5},
    ],
)
def test_templates_may_fill_in_the_scenario(scenarios):
    ResetOffsetsOperator(task_id="t", **ORDERS, **scenarios)


@pytest.mark.parametrize(
    ("operator", "parameters", "says"),
    [
        (CommitOffsetsOperator, OFFSETS | {"allow_new_query": True}, "allow_new_query would be ignored with"),
        (
            CommitOffsetsOperator,
            GROUP | {"store_conn_id": "db", "allow_new_query": "{{ params.it }}"},
            "allow_new_query would be ignored with offsets or store_conn_id",
        ),
        (
            CommitOffsetsOperator,
            ORDERS | {"store_table": "t", "store_pipeline": "p"},
            "store_table and store_pipeline would be ignored without store_conn_id",
        ),
        (PlanOffsetWindowOperator, GROUP | {"window_conn_id": "lake"}, "ignored without window_file"),
        (
            PlanOffsetWindowOperator,
            GROUP | {"start": "earliest", "on_no_commit": "skip"},
            "on_no_commit would be ignored with a start that is not 'committed'",
        ),
        (
            PlanOffsetWindowOperator,
            GROUP | {"topics": "orders", "topics_pattern": "orders.*"},
            "topics and topics_pattern are both given",
        ),
        (
            ResetOffsetsOperator,
            RESET | {"sink": "kafka", "sink_location": "/out"},
            "sink_location='/out' would be ignored with sink='kafka'",
        ),
        (
            ResetOffsetsOperator,
            RESET | {"on_pending_batch": "discard"},
            "on_pending_batch='discard' needs the sink: set sink to 'kafka'",
        ),
        (
            RestoreOffsetsOperator,
            ORDERS | {"receipt": "{{ it }}", "on_pending_batch": "discard", "sink": "delta"},
            "on_pending_batch='discard' with sink='delta' needs sink_location",
        ),
        (
            RestoreOffsetsOperator,
            ORDERS | {"receipt": "{{ it }}", "allow_stale": True},
            "allow_stale would be ignored with restore_when='failed'",
        ),
        (
            ResetOffsetsOperator,
            RESET | {"plan_only": True, "quiet_period": 30},
            "quiet_period would be ignored with plan_only",
        ),
        (
            ResetOffsetsOperator,
            RESET | {"plan_only": True, "stop_after_failure": "{{ params.it }}"},
            "stop_after_failure would be ignored with plan_only",
        ),
        (
            FailOverOperator,
            ORDERS | MIRROR | {"plan_only": "true", "quiet_period": 30},
            "quiet_period would be ignored with plan_only",
        ),
        (
            PlanResetsOperator,
            {"pipelines": [GROUP], "to_offset": "earliest", "quiet_period": "{{ params.it }}"},
            "quiet_period would be ignored by a plan: give it to the reset that applies it",
        ),
        (
            CommitOffsetWindowOperator,
            GROUP | {"window": WHOLE_WINDOW, "window_conn_id": "lake"},
            "window_conn_id would be ignored with a window that is not in a file",
        ),
        (ResetOffsetsOperator, RESET | {"on_no_commit": "skip"}, "on_no_commit would be ignored with check"),
        (
            ResetOffsetsOperator,
            GROUP | {"to_datetime": "{{ params.since }}", "on_no_commit": "skip"},
            "on_no_commit would be ignored with to_datetime",
        ),
        (
            ResetOffsetsOperator,
            GROUP | {"to_offset": "latest", "sink": "kafka", "quiet_period": 0},
            "sink and quiet_period would be ignored without checkpoint_location",
        ),
        (
            RestoreOffsetsOperator,
            GROUP | {"receipt": "{{ it }}", "on_pending_batch": "discard", "allow_stateful": True},
            "on_pending_batch and allow_stateful would be ignored without checkpoint_location",
        ),
        (
            RestoreOffsetsOperator,
            GROUP | {"from_file": "/before.csv", "on_no_commit": "earliest"},
            "on_no_commit would be ignored with from_file",
        ),
        (
            RestoreOffsetsOperator,
            GROUP | {"from_file": "/before.csv", "receipt": {}},
            "receipt and from_file are both given",
        ),
        (CommitOffsetsOperator, OFFSETS | {"store_conn_id": "db"}, "offsets and store_conn_id are both"),
        (CheckMirrorOperator, ORDERS, "mirror is missing"),
        (CheckMirrorOperator, GROUP | MIRROR, "checkpoint_location is missing"),
        (FailOverOperator, ORDERS, "mirror is missing"),
        (
            PlanOffsetWindowOperator,
            GROUP | {"every": "PT15M", "timezone": "Europe/Berlin"},
            "every='PT15M' is a length, and timezone='Europe/Berlin' has no effect on it",
        ),
        (AuditWindowOperator, AUDIT | {"save_conn_id": "s3"}, "save_conn_id would be ignored without"),
        (
            AuditWindowOperator,
            TABLE | {"window": WHOLE_WINDOW, "window_conn_id": "s3"},
            "window_conn_id would be ignored with a window that is not in a file",
        ),
    ],
)
def test_an_option_that_nothing_would_read_is_refused(operator, parameters, says):
    with pytest.raises(UsageError, match=f"^task t: .*{says}"):
        operator(task_id="t", **parameters)


def test_what_a_dag_gives_all_tasks_is_not_for_the_one_that_would_not_read_it():
    """A plan waits for nothing, what is allowed is in the plan, and not each task has a checkpoint."""
    with DAG("d", default_args={"quiet_period": 30, "sink": "delta"}):
        ResetOffsetsOperator(task_id="plan", **RESET, plan_only=True)
        PlanResetsOperator(task_id="plans", pipelines=[ORDERS], to_offset="earliest")
        applies = ResetOffsetsOperator(task_id="apply", **ORDERS, plan="/plan.json")
        ResetOffsetsOperator(task_id="group", **GROUP, topics="orders", to_offset="earliest")
    assert applies.quiet_period == 30


def test_a_window_without_length_is_refused_when_the_dag_is_parsed():
    noon, later = "2026-03-01T12:00:00Z", "2999-01-01T00:00:00Z"
    with pytest.raises(UsageError, match="^task t: start and end are both 2026-03-01T12:00:00"):
        PlanOffsetWindowOperator(task_id="t", group_id="g", start=noon, end=noon)
    PlanOffsetWindowOperator(task_id="t", group_id="g", start="{{ noon }}", end=noon)
    PlanOffsetWindowOperator(task_id="t", group_id="g", start=noon, end=later)  # it may run then


@pytest.mark.parametrize("batch", [7, "{{ params.batch }}"])
def test_a_batch_without_its_checkpoint_is_refused_when_the_dag_is_parsed(batch):
    with pytest.raises(
        UsageError, match="^task t: to_batch is a batch of a Spark checkpoint, and checkpoint_location is"
    ):
        ResetOffsetsOperator(task_id="t", **GROUP, to_batch=batch)
    ResetOffsetsOperator(task_id="t", **ORDERS, to_batch=batch)
