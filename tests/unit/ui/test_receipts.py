"""What tasks leave in XCom."""

import json
import shlex
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from offsets_receipts import receipt

from airflow_kafka_offsets.model.audited_rows import TableRows
from airflow_kafka_offsets.model.certificate import Certificate, MissingOffsets
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror_check import MirrorCheck
from airflow_kafka_offsets.model.offset_ranges import merge
from airflow_kafka_offsets.model.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.window import OffsetWindow
from airflow_kafka_offsets.ui.history import move_json
from airflow_kafka_offsets.ui.instances import (
    InstanceResult,
    instance_question,
    read_instance,
    receipt_table,
    restore_command,
)
from airflow_kafka_offsets.ui.receipts import TaskInstance, parse_package_value, read_outcome

WHEN = datetime(2026, 1, 1, tzinfo=timezone.utc)
ROW = {"dag_id": "d", "dag_run_id": "r", "task_id": "t", "map_index": -1, "try_number": 1, "state": "success"}
INSTANCE = TaskInstance("d", "r", "t", -1, WHEN, 1, "success")


def command_for(value):
    return restore(value)[0]


def restore(value):
    return restore_command(value, Receipt.parse(value), move(value))


def table_of(value):
    return receipt_table(value, Receipt.parse(value), move(value))


def of_several(parts):
    own = {"changed": 2, "moved_by": 30, "plan_only": False, "source": {}, "kafka_config_id": "kafka_default"}
    return {"version": 1, "groups": parts, **own}


def move(value, kind="commit"):
    return read_outcome(INSTANCE, kind, value)


def test_a_receipt_in_short():
    found = move(receipt("g", 40, 60, log_end=100, source={"checkpoint": "/data"}))

    assert (found.kind, found.groups, found.checkpoint) == ("commit", ("g",), "/data")
    assert (found.moved_by, found.offset, found.log_end, found.lag) == (20, 60, 100, 40)


def test_a_receipt_of_several_groups_adds_up():
    parts = [receipt("a", 0, 10, topic="x"), receipt("b", 5, 25, topic="y")]

    found = move(of_several(parts), "reset")

    assert (found.kind, found.groups) == ("reset", ("a", "b"))
    assert (found.offset, found.log_end, found.lag) == (35, 200, 165)


def test_a_reading_of_a_sensor():
    rows = [{"topic": "t", "partition": 0, "committed": 3, "log_end": 9, "lag": 6}]
    value = {"version": 1, "group_id": "g", "position": "group", "total_lag": 6, "partitions": rows}

    found = move(value, "wait")

    assert (found.kind, found.groups, found.lag, found.offset, found.log_end) == ("wait", ("g",), 6, 3, 9)


def test_a_drift_report_names_its_pipelines():
    names = {"group_id": {"t": "g"}, "checkpoint_location": "/data"}
    found = move({"version": 1, "drifted": False, "pipelines": [names]}, "drift")

    assert (found.kind, found.groups, found.pipelines) == ("drift", ("g",), (names,))


def test_the_plan_of_a_window():
    value = {
        "version": 1,
        "spark_options": {},
        "end": {"t": {"0": 9}},
        "records": 4,
        "source": {"group_id": "g"},
    }

    found = move(value, "window")

    assert (found.kind, found.groups, found.offset, found.moved_by) == ("window", ("g",), 9, 4)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "text",
        "{" * 100_000,
        [],
        {},
        {"version": 2, "changed": 1, "after": {}},
        {"version": 1},
        {"version": True, "state": "x"},
        {"pipelines": []},
    ],
)
def test_a_value_of_others_is_left_alone(value):
    assert parse_package_value(value) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"after": {"t": {"x": 1}}},
        {"after": [1]},
        {"group_id": 7},
        {"groups": "abc"},
        {"groups": [7]},
        {"before": {"t": {"0": -5}}},
    ],
)
def test_a_receipt_that_is_not_in_its_form_is_no_move(broken):
    value = parse_package_value({**receipt("g", 1, 2), **broken})

    assert value is None or move(value) is None


def test_kafka_is_not_asked_about_a_receipt_that_is_not_in_its_form():
    value = parse_package_value({**receipt("g", 1, 2), "groups": [7]})
    assert value is not None
    instance = InstanceResult({**ROW, "state": "running", "rendered_fields": {}}, value, WHEN)

    assert instance_question(instance) is None


def test_a_value_as_text_is_read_too():
    assert parse_package_value(json.dumps(receipt("g", 1, 2))) == receipt("g", 1, 2)


def test_the_table_of_a_receipt():
    value = receipt("g", None, 60)

    table = table_of(value)["partitions"]

    assert (table["group"], table["topic"], table["partition"]) == (["g"], ["orders"], [0])
    assert [table[name] for name in ("before", "after", "moved_by", "log_end")] == [
        [None],
        [60],
        [None],
        [100],
    ]


def test_the_command_that_takes_a_reset_of_groups_back():
    value = receipt("g", 40, 60, kafka_config_id="kafka_prod")

    command = command_for(value)

    first, text, end, last = command.split("\n")
    assert (first, end) == ("cat > kafka-offsets-receipt.json <<'EOF'", "EOF")
    assert json.loads(text) == value
    assert last == (
        "airflow-kafka-offsets group restore --kafka-config-id kafka_prod --receipt "
        "kafka-offsets-receipt.json g"
    )


def test_the_command_that_takes_a_reset_of_a_checkpoint_back():
    moved = {"location": "s3a://lake/x", "query_id": "q", "before": {}, "after": {}, "archive": "0001-seek"}
    value = receipt("g", 40, 60, checkpoint=moved, checkpoint_conn_id="lake")

    command = command_for(value)

    assert command == (
        "airflow-kafka-offsets group restore --kafka-config-id kafka_default --checkpoint s3a://lake/x "
        "--archive 0001-seek --checkpoint-conn-id lake g"
    )


@pytest.mark.parametrize("group", ["-rf", "a b", "$(reboot)", "'; reboot; '", "<script>", '"ü"', "EOF"])
def test_a_hostile_group_is_one_word_of_the_command(group):
    value = receipt(group, 40, 60)

    *written, command = command_for(value).split("\nEOF\n")

    assert len(written) == 1
    before, last = shlex.split(command)[-2:]
    assert last == group
    assert (before == "--") == group.startswith("-")


@pytest.mark.parametrize("more", [{"plan_only": True}, {"changed": 0}])
def test_what_moved_nothing_is_not_taken_back(more):
    value = {**receipt("g", 40, 60), **more}

    assert command_for(value) is None


def test_several_groups_are_named_by_topic():
    parts = [receipt("a", 0, 10, topic="x"), receipt("b", 5, 25, topic="y")]
    value = of_several(parts)

    command = command_for(value)

    assert json.loads(shlex.split(command.splitlines()[-1])[-1]) == {"x": "a", "y": "b"}


def test_groups_that_read_one_topic_are_all_named():
    value = of_several([receipt(group, 0, 10, topic="x") for group in "ab"])

    command = command_for(value)

    named = json.loads(shlex.split(command.splitlines()[-1])[-1])
    assert GroupSelection.parse(named).group_ids == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        *(
            (receipt("g", 40, 60, kafka_config_id=conn_id), "the Kafka connection")
            for conn_id in (None, 7, ["k"])
        ),
        (receipt("g", None, 60), "no partition had a commit before"),
        *(
            (receipt(group, 40, 60), "control characters")
            for group in ("a\nb", "a\x1b[2Jb", "a\u202eb", "a\u200bb", "a\u2028b", "a\ue000b")
        ),
    ],
)
def test_what_no_command_takes_back_for_sure_has_none_but_a_reason(value, why):
    command, (problem,) = restore(value)

    assert command is None
    assert why in problem


def test_partitions_without_a_commit_before_are_counted():
    value = receipt("g", 40, 60)
    value["before"]["orders"] |= {"1": None, "2": None}
    value["after"]["orders"] |= {"1": 5, "2": 5}

    command, (problem,) = restore(value)

    assert command is not None
    assert problem == "2 partitions had no commit before: taking the move back leaves the commits there"


def test_no_lag_from_sums_over_different_partitions():
    value = receipt("g", 40, 60)
    value["after"]["orders"]["1"] = 5_000

    found = move(value)

    assert (found.offset, found.log_end, found.lag) == (5_060, None, None)


def test_a_window_with_a_partition_of_thousands_of_digits_is_none():
    value = {"version": 1, "spark_options": {}, "end": {"t": {"9" * 5_000: 9, "0": 2}}, "source": {}}

    assert move(value, "window") is None


@pytest.mark.parametrize(
    ("state", "verified", "offset"), [("failed", False, None), ("failed", True, 60), ("success", False, 60)]
)
def test_a_receipt_of_a_task_that_failed_is_not_where_the_group_is(state, verified, offset):
    found = read_outcome(replace(INSTANCE, state=state), "reset", receipt("g", 40, 60, verified=verified))
    assert found is not None

    shown = move_json(found)

    assert (shown["offset"], shown["lag"]) == (offset, offset and 40)
    assert shown["state"] == state


def test_a_receipt_says_who_has_approved_its_plan():
    value = receipt("g", 40, 20, approval={"by": "ada", "user_id": "7", "at": "2026-03-02T10:40:00Z"})
    assert table_of(value)["approval"] == {"by": "ada", "at": "2026-03-02T10:40:00Z"}
    other = receipt("g", 40, 20, approval={"by": {"name": "ada"}})
    assert table_of(other)["approval"] == {"by": None, "at": None}
    assert table_of(receipt("g", 40, 20))["approval"] is None


def certificate(**source):
    window = OffsetWindow({TopicPartition("t", 0): OffsetRange(0, 9)}, source=source)
    rows = TableRows(10, doubled={TopicPartition("t", 0): merge([(3, 4)])})
    return Certificate.issue(window, rows, MissingOffsets(), {"table": "events"}, WHEN).as_json()


@pytest.mark.parametrize(
    ("group_id", "groups"), [("g", ("g",)), ({"t": "g"}, ("g",)), (None, ()), (7, ())], ids=str
)
def test_a_certificate_has_a_verdict_about_the_groups_of_its_window(group_id, groups):
    value = certificate(group_id=group_id)
    assert parse_package_value(json.dumps(value)) == value
    found = move(value, "audit")
    assert found is not None
    assert (found.kind, found.groups, found.moved_by, found.verdict) == ("audit", groups, 9, "incomplete")
    assert move_json(found)["verdict"] == "incomplete"
    assert move({**value, "verdict": "complete"}, "audit") is None
    left = InstanceResult({"operator": "AuditWindowOperator", **ROW}, value, WHEN)
    assert read_instance(left)["report"] == value


def test_a_check_of_a_mirror_has_a_verdict_about_its_pipeline():
    check = MirrorCheck("s3a://lake/g", 3, [], [], 3, syncs_on_mirror=True, group_ids=["g"])
    value = check.as_json()
    assert parse_package_value(json.dumps(value)) == value
    found = move(value, "mirror")
    assert found is not None
    assert (found.kind, found.groups) == ("mirror", ("g",))
    assert (found.checkpoint, found.verdict) == ("s3a://lake/g", "exact")
    left = InstanceResult({"operator": "CheckMirrorOperator", **ROW}, value, WHEN)
    assert read_instance(left)["report"] == value
