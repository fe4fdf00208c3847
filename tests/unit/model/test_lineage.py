"""What tasks tell OpenLineage, as plain data."""

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openlineage_schemas import SPEC

from airflow_kafka_offsets.errors import (
    BrokerUnavailableError,
    CommitError,
    CommitProgress,
    GroupMovedError,
    PlanRefusedError,
)
from airflow_kafka_offsets.model import lineage
from airflow_kafka_offsets.model.checkpoint_plan import MoveKind
from airflow_kafka_offsets.model.drift import DriftReport, NewestBatch
from airflow_kafka_offsets.model.headroom import Headroom
from airflow_kafka_offsets.model.lineage import (
    LAG,
    MOVE,
    MoveRecord,
    Operation,
    lineage_of_reports,
    lineage_of_window,
    namespace_of,
)
from airflow_kafka_offsets.model.offsets import LogRange, OffsetRange, TopicPartition, as_commits
from airflow_kafka_offsets.model.partition_state import PartitionState
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan
from airflow_kafka_offsets.model.window import OffsetWindow

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)
LOG = {A: LogRange(10, 100), B: LogRange(0, 50), C: LogRange(0, 7)}
BEFORE = {A: 20, B: None, C: 7}
SOURCE = {"checkpoint": "s3a://lake/c", "query_id": "q", "batch_id": 7}
SERVERS = "b1:9092,b2:9092"
ORDERS, PAYMENTS = ("kafka://b1:9092", "orders"), ("kafka://b1:9092", "payments")


def plan(group="g", targets=None, before=BEFORE, **allowed):
    return OffsetPlan.make(
        group, targets or {A: 30, B: 50}, as_commits(before), LOG, source=SOURCE, **allowed
    )


def record(*plans, verified=True, servers=SERVERS, plan_only=False, **known):
    receipt = PipelinePlan(plans, provenance={"kafka_config_id": "kafka_main"}).make_receipt(
        verified=verified, plan_only=plan_only
    )
    return MoveRecord("commit", json.loads(json.dumps(receipt)), servers, **known)


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("b1:9092", "kafka://b1:9092"),
        (" b1:9092 , b2:9093", "kafka://b1:9092"),
        (",b2:9093", "kafka://b2:9093"),
        ("SASL_SSL://Broker-1.example.com:9093,b2:9092", "kafka://Broker-1.example.com:9093"),
        ("b1", "kafka://b1:9092"),
        ("[::1]:9092", "kafka://[::1]:9092"),
        ("[::1]", "kafka://[::1]:9092"),
        ("", None),
        (" , ", None),
        (None, None),
    ],
)
def test_a_cluster_is_named_after_its_first_bootstrap_server(servers, namespace):
    assert namespace_of(servers) == namespace


def test_a_commit_tells_the_range_of_each_partition_and_the_move():
    told = record(plan(targets={A: 30, B: 50, C: 7})).lineage()
    orders, payments = told.inputs
    assert (orders[:2], payments[:2]) == (ORDERS, PAYMENTS)
    assert orders.groups == [
        {
            "groupId": "g",
            "state": "written",
            "partitions": 2,
            "offsetDifference": 60,
            "ranges": [
                {"partition": 0, "from": 20, "until": 30},
                # There was no commit: it is counted from the log start.
                {"partition": 1, "until": 50},
            ],
        }
    ]
    assert told.run == {
        MOVE: {
            "operation": "commit",
            "planOnly": False,
            "verified": True,
            "groups": [
                {
                    "groupId": "g",
                    "written": "all",
                    "partitions": 3,
                    "changed": 2,
                    "offsetDifference": 60,
                    "skipped": 0,
                    "clamped": 0,
                    "lost": 0,
                }
            ],
            "kafkaConfigId": "kafka_main",
            "checkpointLocation": "s3a://lake/c",
            "queryId": "q",
            "batchId": 7,
        }
    }


def test_no_topic_is_named_where_the_brokers_are_not_known():
    told = record(plan(), servers=None).lineage()
    assert told.inputs == ()
    assert told.run[MOVE]["verified"] is True


def test_rows_are_told_only_where_each_record_is_known_to_have_been_read():
    def rows(*plans, **known):
        return [each.rows for each in record(*plans, **{"reads": True, **known}).lineage().inputs]

    read = {"targets": {A: 30}, "before": {A: 20}}
    assert rows(plan(**read)) == [10]
    assert rows(plan(**read), reads=False) == [None]
    assert rows(plan(**read), verified=False) == [None]
    assert rows(plan()) == [None], "a partition had no commit"
    assert rows(plan(targets={A: 15}, before={A: 20})) == [None], "the group goes back"
    assert rows(plan(targets={A: 200}, before={A: 20}, on_out_of_range="clamp")) == [None]
    skips = plan(targets={A: 30, B: 60}, before={A: 20, B: 1}, on_out_of_range="skip")
    assert rows(skips) == [None], "a partition was left alone"
    assert rows(plan("g", **read), plan("h", **read)) == [None], "two groups read the topic"


def test_the_lag_after_a_commit_is_that_of_its_plan():
    targets = {A: 30, B: 60, C: 7}
    moved = plan(targets=targets, on_out_of_range="skip")
    told = record(moved, reads=True).lineage().run[LAG]
    # Nothing is known of a topic of which a partition is left alone.
    assert told == {
        "groups": [{"groupId": "g", "topics": [{"topic": "orders"}, {"topic": "payments", "lag": 0}]}]
    }
    assert moved.lag.by_topic == {"payments": 0}
    assert LAG not in record(moved).lineage().run
    assert LAG not in record(moved, reads=True, verified=False).lineage().run


def written(error, *plans, begun=True):
    known = record(*(plans or [plan()]), verified=False, begun=begun)
    told = (known if error is None else replace(known, error=error)).lineage()
    assert told.run[MOVE]["verified"] is False
    return [group["written"] for group in told.run[MOVE]["groups"]], told


def with_progress(error, failed, *before):
    error.progress = CommitProgress(failed, before)
    return error


GROUPS = (plan("a"), plan("b"), plan("c"))


def test_a_refused_move_has_written_nothing():
    assert written(PlanRefusedError("no"))[0] == ["none"]
    assert written(None, begun=False)[0] == ["none"]


def test_a_task_that_ends_while_it_writes_does_not_know_how_much():
    assert written(None)[0] == ["unknown"]
    assert written(BrokerUnavailableError("away"))[0] == ["unknown"]


def test_of_several_groups_those_before_the_failure_were_written_and_those_after_it_were_not():
    away = with_progress(BrokerUnavailableError("away"), "b", "a")
    assert written(away, *GROUPS)[0] == ["all", "unknown", "none"]
    moved = with_progress(GroupMovedError("moved"), "b", "a")
    assert written(moved, *GROUPS)[0] == ["all", "none", "none"]


def test_a_commit_in_part_tells_each_partition():
    error = with_progress(CommitError("refused", failed={B: "NO"}, written=[A]), "g")
    groups, told = written(error, plan(targets={A: 30, B: 50, C: 7}))
    assert groups == ["some"]
    orders, payments = (each.groups[0] for each in told.inputs)
    assert (orders["state"], payments["state"]) == ("partly written", "unknown")
    assert [entry["written"] for entry in orders["ranges"]] == [True, False]
    assert "written" not in payments["ranges"][0]


def test_the_checkpoint_moves_before_its_groups_are_committed():
    def moved(error=None, *, verified=False, begun=True, archive="0001-seek"):
        receipt = dict(record(plan(), verified=verified).receipt)
        receipt["checkpoint"] = {"kind": "seek", "location": "s3a://lake/c", "query_id": "q", "batch_id": 7}
        receipt["checkpoint"]["archive"] = archive
        facet = MoveRecord("reset", receipt, begun=begun, error=error).lineage().run[MOVE]
        assert (facet["operation"], facet["checkpointMove"]) == ("reset", "seek")
        return facet.get("checkpointWritten")

    assert moved(verified=True) is True
    assert moved(verified=True, archive=None) is None
    assert moved(begun=False) is False
    assert moved(PlanRefusedError("no")) is False
    assert moved(with_progress(CommitError("refused", failed={A: "NO"}), "g")) is True
    assert moved(BrokerUnavailableError("away")) is None


def test_a_plan_that_is_only_shown_is_planned():
    told = record(plan(), verified=False, plan_only=True).lineage()
    (orders,) = told.inputs
    assert orders.groups[0]["state"] == "planned"
    assert told.run[MOVE]["planOnly"] is True


def test_an_event_of_many_partitions_has_totals_only(monkeypatch):
    monkeypatch.setattr(lineage, "MOST_RANGES", 1)
    (orders,) = record(plan()).lineage().inputs
    assert orders.groups == [{"groupId": "g", "state": "written", "partitions": 2, "offsetDifference": 60}]
    (orders,) = lineage_of_window(WINDOW, {"kafka_main": SERVERS}).inputs
    assert "ranges" not in orders.groups[0]
    orders, _ = lineage_of_reports(reports(), {"kafka_main": SERVERS}).inputs
    assert "ranges" not in orders.groups[0]


WINDOW = OffsetWindow(
    {A: OffsetRange(20, 30), B: OffsetRange(0, 0)}, source={"group_id": "g", "kafka_config_id": "kafka_main"}
)


def test_a_window_tells_what_the_job_is_about_to_read_and_its_digest():
    told = lineage_of_window(WINDOW, {"kafka_main": SERVERS})
    (orders,) = told.inputs
    assert (orders[:2], orders.rows) == (ORDERS, None)
    ranges = [{"partition": 0, "from": 20, "until": 30}, {"partition": 1, "from": 0, "until": 0}]
    part = {"groupId": "g", "state": "planned", "partitions": 2, "offsetDifference": 10, "ranges": ranges}
    assert orders.groups == [part]
    committed = record(plan(), window=WINDOW).lineage().run[MOVE]
    assert told.run[MOVE]["digest"] == committed["digest"] == WINDOW.digest


def test_a_window_of_another_connection_names_no_topic():
    assert lineage_of_window(WINDOW, {"kafka_dr": SERVERS}).inputs == ()


def test_a_window_of_several_groups_and_one_of_none():
    source = {"group_id": {"orders": "g"}, "kafka_config_id": "kafka_main"}
    several = OffsetWindow({A: OffsetRange(20, 30), C: OffsetRange(0, 7)}, source=source)
    orders, payments = lineage_of_window(several, {"kafka_main": SERVERS}).inputs
    assert orders.groups[0]["groupId"] == "g"
    assert "groupId" not in payments.groups[0]


def entry(tp, checkpoint, committed, log, headroom=None, **more):
    log = None if log is None else LogRange(*log)
    return PartitionState(tp, committed, log, checkpoint=checkpoint, headroom=headroom, **more)


def reports(*partitions):
    entries = partitions or (
        entry(A, 20, 20, (10, 100)),
        entry(B, 50, 50, (0, 50)),
        entry(C, 2, 0, (0, 7)),
    )
    at = datetime(2026, 3, 1, tzinfo=timezone.utc)
    return [("kafka_main", DriftReport("g", NewestBatch("s3a://lake/c"), entries, at))]


def test_a_drift_check_tells_what_waits_the_lag_and_the_verdicts():
    told = lineage_of_reports(reports(), {"kafka_main": SERVERS})
    orders, payments = told.inputs
    assert (orders[:2], payments[:2]) == (ORDERS, PAYMENTS)
    assert orders.groups[0] == {
        "groupId": "g",
        "state": "waiting",
        "partitions": 2,
        "offsetDifference": 80,
        "ranges": [
            {"partition": 0, "from": 20, "until": 100},
            {"partition": 1, "from": 50, "until": 50},
        ],
    }
    (group,) = told.run[LAG]["groups"]
    assert group["topics"] == [{"topic": "orders", "lag": 80}, {"topic": "payments", "lag": 7}]
    assert (group["drifted"], group["verdicts"]) == (
        True,
        [{"verdict": "in step", "partitions": 2}, {"verdict": "group behind", "partitions": 1}],
    )


def test_a_drift_check_tells_the_least_headroom_and_no_lag_that_is_not_known():
    told = lineage_of_reports(
        reports(
            entry(A, 20, None, (10, 100), Headroom("unknown")),
            entry(B, 50, 50, (0, 50), Headroom("time", 30.5)),
            entry(C, 9, 9, (0, 7)),
        ),
        {"kafka_main": SERVERS},
    )
    (group,) = told.run[LAG]["groups"]
    assert group["topics"] == [{"topic": "orders", "headroomSeconds": 30.5}, {"topic": "payments"}]
    assert "offsetDifference" not in told.inputs[0].groups[0]
    # A position beyond the log end is of another log.
    assert told.inputs[1].groups[0]["ranges"] == [{"partition": 0, "until": 7}]


def test_a_drift_check_names_no_topic_that_is_gone_and_no_pipeline_that_was_not_checked():
    gone = lineage_of_reports(reports(entry(A, 20, 20, None)), {"kafka_main": SERVERS})
    assert gone.inputs == ()
    assert lineage_of_reports(reports(), {}).inputs == ()
    assert lineage_of_reports([], {}) == lineage.Lineage()


@st.composite
def plans(draw):
    groups = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True))
    made = []
    for group in groups:
        ends = draw(st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 99), min_size=1))
        logs = {tp: LogRange(draw(st.integers(0, end)), end) for tp, end in ends.items()}
        targets = {tp: draw(st.integers(log.start, log.end)) for tp, log in logs.items()}
        before = {tp: draw(st.none() | st.integers(0, 99)) for tp in targets}
        made.append(OffsetPlan.make(group, targets, as_commits(before), logs, source=SOURCE))
    return made


@given(plans(), st.booleans(), st.booleans())
def test_every_partition_of_a_receipt_is_told_once_and_the_records_add_up(made, verified, reads):
    told = record(*made, verified=verified, reads=reads, begun=True).lineage()
    ranges = [
        (group["groupId"], each.name, entry["partition"], entry.get("from"), entry["until"])
        for each in told.inputs
        for group in each.groups
        for entry in group["ranges"]
    ]
    planned = [
        (moves.group_id, *move.topic_partition, move.before, move.after)
        for moves in made
        for move in moves.moves
    ]
    assert sorted(ranges, key=str) == sorted(planned, key=str)
    records = sum(group["offsetDifference"] for each in told.inputs for group in each.groups)
    assert records == sum(moves.moved_by for moves in made)
    assert all(each.rows is None or (verified and reads and each.rows >= 0) for each in told.inputs)
    json.dumps([told.run, [each.groups for each in told.inputs]], allow_nan=False)


@given(plans(), st.data())
def test_what_was_written_agrees_in_both_facets(made, data):
    failed = data.draw(st.sampled_from([each.group_id for each in made]))
    before = [each.group_id for each in made if each.group_id < failed]
    (of,) = (each for each in made if each.group_id == failed)
    some = data.draw(st.sets(st.sampled_from(sorted(of.after))))
    error = with_progress(
        CommitError("no", failed=dict.fromkeys(of.after.keys() - some, "NO"), written=[*some]),
        failed,
        *before,
    )
    told = replace(record(*made, verified=False, begun=True), error=error).lineage()
    for group in told.run[MOVE]["groups"]:
        states = {
            part["state"]
            for each in told.inputs
            for part in each.groups
            if part["groupId"] == group["groupId"]
        }
        expected = {"all": {"written"}, "none": {"not written"}}.get(group["written"])
        assert states == expected if expected else states & {"written", "partly written"}
        if group["groupId"] != failed:
            assert group["written"] == ("all" if group["groupId"] in before else "none")


def test_the_published_schema_names_each_operation_and_each_move_of_a_checkpoint():
    facet = json.loads((SPEC / "1-0-0" / "KafkaOffsetsMoveRunFacet.json").read_text(encoding="utf-8"))

    def names(key, value):
        if isinstance(value, dict):
            found = value.get(key)
            yield from found.get("enum", []) if isinstance(found, dict) else []
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            yield from names(key, each)

    assert set(names("checkpointMove", facet)) == set(get_args(MoveKind))
    assert set(names("operation", facet)) == {*get_args(Operation), "plan"}
