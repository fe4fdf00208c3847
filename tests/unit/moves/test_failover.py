"""Failovers between two clusters in memory: what is not as the request says, or has changed since."""

import itertools
import json
import shutil
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from memory_broker import filled_broker
from memory_clients import open_client
from mirrored_clusters import keep_failover_data
from written_query import QUERY_ID, Query

from airflow_kafka_offsets.checkpoint.archived_move import DIRECTORY
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.failover_data_file import READINESS
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.errors import (
    CheckpointError,
    MisnamedError,
    MoveUnfinishedError,
    PlanRefusedError,
    UnknownTopicPartitionError,
)
from airflow_kafka_offsets.model.checkpoint_policy import CheckpointPolicy
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.failover_plan import FAILOVER_FILE, FailoverPlan, FailoverPolicy
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.mirror_check import MirrorCheck
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.plan_markdown import plans_markdown
from airflow_kafka_offsets.model.receipt import Receipt
from airflow_kafka_offsets.model.saved_plan import Names
from airflow_kafka_offsets.moves.apply import apply_pipeline
from airflow_kafka_offsets.moves.failover import plan_failover
from airflow_kafka_offsets.moves.restore import plan_restore_archive, plan_restore_receipt
from airflow_kafka_offsets.moves.saved import plan_saved_failover, save_plan
from airflow_kafka_offsets.readings import failover
from airflow_kafka_offsets.readings.failover import translate_sources
from airflow_kafka_offsets.readings.log_checks import check_logs_again
from airflow_kafka_offsets.readings.mirror_check import check_mirror

MIRROR = Mirror("standby")
ORDERS = TopicPartition("orders", 0)
DISCARD = CheckpointPolicy("discard", idempotent_sink=True)


class Pipeline:
    """A query that has read 90 of 100 records; its mirror has no copy of the first 10."""

    def __init__(self, root: Any) -> None:
        firsts = {"source": 0, "mirror": 10}
        self.brokers = {name: filled_broker(range(at, 100), cluster_id=name) for name, at in firsts.items()}
        clients: list[Any] = [open_client(broker) for broker in self.brokers.values()]
        self.source, self.mirror = clients
        self.query = Query(root)
        self.query.run(0, {"orders": {0: 90}})
        self.checkpoint = SparkCheckpoint(self.query.location)

    def plan(
        self,
        *clusters: Any,
        groups: object = "etl",
        topics: str | None = None,
        mirror: Mirror = MIRROR,
        **allowed: Any,
    ) -> FailoverPlan:
        source, target = clusters or (self.source, self.mirror)
        selection, policy = GroupSelection.parse(groups, topics), FailoverPolicy(**allowed)
        return plan_failover(source, target, self.checkpoint, selection, mirror, policy=policy)

    def check(self, *clusters: Any, topics: str | None = None, mirror: Mirror = MIRROR) -> MirrorCheck:
        source, target = clusters or (self.source, self.mirror)
        return check_mirror(source, target, self.checkpoint, GroupSelection.parse("etl", topics), mirror)

    def move(self, plan: FailoverPlan) -> None:
        apply_pipeline(self.mirror, plan, CommitMetadata(), self.checkpoint, 0)

    def moves(self) -> dict[str, bool]:
        """The moves of the checkpoint, and whether each is done."""
        return {each.name: each.done for each in ArchivedMoves(self.checkpoint)}

    def commit(self, on: str, offset: int = 90, **made: Any) -> None:
        """Commit the group on a cluster, by default as a batch of the query there."""
        by = {"query": self.checkpoint.query_id(), "cluster": on, "batch": 0, **made}
        client = self.source if on == "source" else self.mirror
        client.commit("etl", {ORDERS: offset}, CommitMetadata(**by).text())


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    return Pipeline(tmp_path)


def test_the_last_record_that_was_read_is_found_on_the_mirror(pipeline):
    plan = pipeline.plan()
    assert plan.refusals == []
    assert plan.checkpoint_plan.after == {"0": {ORDERS: 80}}
    assert plan.as_json()["kinds"] == {"exact (record)": 1}


def test_without_its_archive_a_failover_is_not_taken_back_on_the_mirror(pipeline):
    """Its receipt has offsets of the source, which would be written as those of the mirror."""
    plan = pipeline.plan()
    pipeline.move(plan)
    shutil.rmtree(pipeline.query.root / DIRECTORY)
    receipt, selection = Receipt.parse(plan.make_receipt()), GroupSelection.parse("etl", None)
    with pytest.raises(PlanRefusedError, match="has no archive of the failover of the receipt"):
        plan_restore_receipt(pipeline.mirror, receipt, pipeline.checkpoint, selection)


def test_a_batch_that_was_begun_is_refused_unless_it_may_be_discarded(pipeline):
    pipeline.query.plan(1, {"orders": {0: 95}})
    with pytest.raises(PlanRefusedError, match="batch 1 was begun and not finished"):
        pipeline.move(pipeline.plan())
    pipeline.move(pipeline.plan(checkpoint=DISCARD))
    state = pipeline.checkpoint.read()
    assert (state.pending_batch_id, state.kafka_offsets["0"]) == (None, {ORDERS: 80})


def test_what_the_source_has_lost_after_the_query_read_it_may_be_read_again(pipeline):
    """Its leader was replaced by a follower that was behind; the mirror has copied these records before."""
    pipeline.brokers["mirror"].append("orders", 0, range(100, 110))
    pipeline.query.run(1, {"orders": {0: 105}})
    (found,) = pipeline.plan().translated
    assert (found.translation.offset, found.translation.again) == (90, 5)


def test_a_topic_that_the_mirror_has_never_copied_is_refused_and_not_called_exact(pipeline):
    pipeline.brokers["mirror"].create("dr-orders")
    names: Any = {"mirror": Mirror("standby", topics={"orders": "dr-orders"})}
    for source in (pipeline.source, None):
        (refusal,) = pipeline.plan(source, pipeline.mirror, **names).refusals
        assert "unknown on orders-0: the mirror has no record of it: nothing was copied" in refusal
    assert pipeline.check(**names).verdict == "unknown"
    plan = pipeline.plan(on_unknown="earliest", **names)
    assert (plan.as_json()["kinds"], plan.as_json()["unmirrored"]) == ({"exact (empty)": 1}, 100)
    # A record that was never there, or was deleted before the mirror was made, has no copy.
    pipeline.brokers["source"].delete_records("orders", 0, 90)
    (found,) = pipeline.plan(**names).translated
    assert (str(found.translation), found.unmirrored) == ("exact (empty)", 10)


def test_records_that_were_not_read_in_time_are_not_taken_for_no_records(pipeline, monkeypatch):
    pipeline.brokers["mirror"].create("dr-orders")
    names: Any = {"mirror": Mirror("standby", topics={"orders": "dr-orders"})}
    monkeypatch.setattr(failover, "last_reads", lambda *_, **__: {})
    keep_failover_data(pipeline.source, pipeline.mirror, pipeline.checkpoint, **names)
    for source in (pipeline.source, None):
        (refusal,) = pipeline.plan(source, pipeline.mirror, **names).refusals
        assert "unknown on orders-0: the mirror has no record of it: nothing was copied" in refusal


@pytest.mark.parametrize("source_answers", [True, False])
def test_a_topic_of_the_mirrors_own_is_not_taken_for_the_copy(pipeline, source_answers):
    """Producers write to the mirror's cluster too, and MirrorMaker puts its prefix before the copies."""
    target = pipeline.brokers["mirror"]
    target.create("primary.orders")
    target.create("primary.checkpoints.internal")
    source = pipeline.source if source_answers else None
    said = r"the mirror has 'orders' and 'primary.orders': .* prefix of mirror \('primary.'\)"
    with pytest.raises(MisnamedError, match=said):
        pipeline.plan(source, pipeline.mirror)
    with pytest.raises(MisnamedError, match=said):
        pipeline.check()
    pipeline.plan(source, pipeline.mirror, mirror=Mirror("standby", topics={"orders": "orders"}))
    pipeline.plan(source, pipeline.mirror, mirror=Mirror("standby", prefix="primary."))
    # Which of several clusters is the pipeline's is not known.
    target.create("berlin.orders")
    target.create("mm2-offset-syncs.berlin.internal")
    every = r"'orders' and 'berlin.orders' and 'primary.orders': .* \('berlin.' or 'primary.'\)"
    with pytest.raises(MisnamedError, match=every):
        pipeline.plan(source, pipeline.mirror)


def test_an_interrupted_failover_is_finished_by_the_same_request_of_another_tool(pipeline, killed):
    """On the command line the mirror has no Airflow connection."""
    with killed():
        pipeline.move(pipeline.plan())
    with pytest.raises(MoveUnfinishedError, match="0001-failover .* was begun and not finished"):
        pipeline.plan(mirror=Mirror(prefix="primary."))
    pipeline.move(pipeline.plan(mirror=Mirror()))
    assert pipeline.moves() == {"0001-failover": True}


@pytest.mark.parametrize("content", [None, "", "{", "{}", "[1]", '{"kinds": 1}'], ids=repr)
@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "unsaved"])
def test_a_failover_whose_kept_translation_is_lost_is_not_finished_but_can_be_taken_back(
    pipeline, killed, content, is_saved
):
    names = Names("etl", None, pipeline.query.location, mirror=MIRROR.as_json())
    saved = save_plan(pipeline.mirror, pipeline.checkpoint, pipeline.plan(), names)

    def plan() -> FailoverPlan:
        if not is_saved:
            return pipeline.plan()
        now = datetime.now(tz=timezone.utc)
        return plan_saved_failover(pipeline.mirror, pipeline.checkpoint, saved, now=now)

    with killed():
        pipeline.move(plan())
    kept = pipeline.query.root / DIRECTORY / "0001-failover" / FAILOVER_FILE
    kept.unlink()
    if content is not None:
        kept.write_text(content)
    with pytest.raises(CheckpointError, match="put it back, or undo the failover: .* 0001-failover"):
        plan()
    assert pipeline.moves() == {"0001-failover": False}
    selection = GroupSelection.parse("etl")
    back = plan_restore_archive(pipeline.mirror, "0001-failover", pipeline.checkpoint, selection)
    apply_pipeline(pipeline.mirror, back, CommitMetadata(), pipeline.checkpoint, 0)
    assert pipeline.checkpoint.read().kafka_offsets == {"0": {ORDERS: 90}}


def test_a_failover_that_is_killed_at_any_step_is_finished_and_once_begun_without_the_source(
    tmp_path, monkeypatch
):
    class KilledError(Exception):
        pass

    def killed_after(step: int, pipeline: Pipeline) -> bool:
        done = itertools.count(1)

        def counted(call: Any) -> Any:
            def counting(*given: Any, **named: Any) -> Any:
                found = call(*given, **named)
                if next(done) == step:
                    raise KilledError
                return found

            return counting

        with monkeypatch.context() as patched:
            for owner, name in (
                (SparkCheckpoint, "write_file"),
                (SparkCheckpoint, "remove_file"),
                (type(pipeline.mirror), "commit"),
            ):
                patched.setattr(owner, name, counted(getattr(owner, name)))
            try:
                pipeline.move(pipeline.plan(checkpoint=DISCARD))
            except KilledError:
                return True
        return False

    for step in itertools.count(1):
        pipeline = Pipeline(tmp_path / str(step))
        pipeline.query.plan(1, {"orders": {0: 95}})
        was_killed = killed_after(step, pipeline)
        if was_killed:
            source = None if pipeline.moves() else pipeline.source
            plan = pipeline.plan(source, pipeline.mirror, checkpoint=DISCARD)
            pipeline.move(plan)
            assert plan.make_receipt()["checkpoint"]["before"] == {"0": {"orders": {"0": 90}}}, step
        state, commits = pipeline.checkpoint.read(), pipeline.mirror.committed("etl", [ORDERS])
        assert (state.pending_batch_id, state.kafka_offsets["0"][ORDERS]) == (None, 80), step
        assert (commits[ORDERS].offset, [*pipeline.moves().values()]) == (80, [True]), step
        if not was_killed:
            break
    assert step > 8


def test_the_clusters_must_not_be_swapped(pipeline):
    keep_failover_data(pipeline.source, pipeline.mirror, pipeline.checkpoint, MIRROR)
    with pytest.raises(
        PlanRefusedError, match=r"is already on cluster source \(its last commit with a mirror was there"
    ):
        pipeline.plan(pipeline.mirror, pipeline.source)
    with pytest.raises(PlanRefusedError, match="according to its last commit with a mirror, is of"):
        pipeline.check(pipeline.mirror, pipeline.source)


def test_without_kept_data_the_groups_commits_show_that_the_clusters_are_swapped(pipeline):
    pipeline.commit("source")
    # MirrorMaker has copied the commit.
    pipeline.commit("mirror", cluster="source")
    assert pipeline.plan().refusals == []
    with pytest.raises(
        PlanRefusedError, match=r"is already on cluster source \(the last commit of its group was there"
    ):
        pipeline.plan(pipeline.mirror, pipeline.source)
    with pytest.raises(PlanRefusedError, match="according to the last commit of its group, is of"):
        pipeline.check(pipeline.mirror, pipeline.source)


@pytest.mark.parametrize(
    "there",
    [{"batch": 3}, {"query": "another"}, {"tool": "airflow-kafka-offsets failover apply"}],
    ids=["left-since", "another-query", "failover-that-was-taken-back"],
)
def test_an_older_commit_on_the_mirror_does_not_bar_a_failover(pipeline, there):
    pipeline.commit("source", batch=7)
    pipeline.commit("mirror", **{"batch": 9, **there})
    assert pipeline.plan().refusals == []


@pytest.mark.parametrize("answers", [True, False])
def test_if_the_old_cluster_shows_no_commits_only_one_at_the_querys_position_counts(pipeline, answers):
    """It is not asked, or does not let this user read the group."""
    rights = [("topic", "*", "Read"), ("topic", "*", "Describe")]
    source = open_client(pipeline.brokers["source"], rights=rights) if answers else None
    pipeline.commit("mirror", 60)
    plan = pipeline.plan(source, pipeline.mirror)
    assert "already on cluster" not in str(plan.refusals)
    pipeline.commit("mirror", 90)
    said = r"already on cluster mirror \(the last commit of its group was there; if by mistake, delete the gr"
    with pytest.raises(PlanRefusedError, match=said):
        pipeline.plan(source, pipeline.mirror)


@pytest.mark.parametrize("source_answers", [True, False])
def test_a_name_of_no_topic_is_an_error_and_names_of_other_topics_are_not(pipeline, source_answers):
    pipeline.brokers["source"].create("payments")
    shared = Mirror("standby", topics={"orders": "orders", "payments": "dr-payments"})
    source = pipeline.source if source_answers else None
    pipeline.plan(source, pipeline.mirror, mirror=shared)
    mistyped = Mirror("standby", topics={"oders": "dr-orders"})
    said = "topics of mirror names 'oders', which "
    if source_answers:
        with pytest.raises(MisnamedError, match=f"{said}neither the query nor the cluster"):
            pipeline.plan(mirror=mistyped)
        with pytest.raises(MisnamedError, match=said):
            pipeline.check(mirror=mistyped)
    else:
        notes = pipeline.plan(source, pipeline.mirror, mirror=mistyped).notes
        assert any(f"{said}the query does not read" in note for note in notes)


def test_a_restore_of_a_failover_that_was_killed_is_finished_on_the_mirror(pipeline, killed):
    pipeline.move(pipeline.plan())

    def restore() -> None:
        selection = GroupSelection.parse("etl")
        plan = plan_restore_archive(pipeline.mirror, "0001-failover", pipeline.checkpoint, selection)
        plan = replace(plan, may_be_empty=True)
        apply_pipeline(pipeline.mirror, plan, CommitMetadata(tool="restore"), pipeline.checkpoint, 0)

    with killed():
        restore()
    restore()
    assert pipeline.checkpoint.read().kafka_offsets == {"0": {ORDERS: 90}}
    assert pipeline.moves() == {"0001-failover": True, "0002-restore": True}


def test_a_connection_to_a_third_cluster_is_refused(pipeline):
    keep_failover_data(pipeline.source, pipeline.mirror, pipeline.checkpoint, MIRROR)
    pipeline.brokers["source"].cluster_id = "third"
    pipeline.source = open_client(pipeline.brokers["source"])
    with pytest.raises(PlanRefusedError, match="is on cluster source according to its last commit with a m"):
        pipeline.plan()


def test_a_topic_that_was_deleted_on_the_source_is_moved_with_what_commits_have_kept(pipeline):
    keep_failover_data(pipeline.source, pipeline.mirror, pipeline.checkpoint, MIRROR)
    kept = pipeline.query.root / READINESS
    pipeline.brokers["source"].delete_topic("orders")
    plan = pipeline.plan()
    assert [each.translation.offset for each in plan.translated] == [80]
    assert "orders-0: deleted, so only what commits have kept is known" in plan.notes
    # Without that, or the cluster's id in it, the connection may lead to any cluster.
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"cluster": ""}))
    with pytest.raises(UnknownTopicPartitionError, match="orders-0 is not on"):
        pipeline.plan()
    kept.unlink()
    with pytest.raises(UnknownTopicPartitionError, match="orders-0 is not on"):
        pipeline.plan()


def test_a_group_without_commits_on_either_cluster_is_named_where_the_plan_is_approved(pipeline):
    """Its name may be mistyped; a query whose position was never committed looks the same."""
    note = "group etl has no commit on either cluster"
    plan = pipeline.plan()
    names = Names("etl", None, pipeline.query.location, mirror=MIRROR.as_json())
    saved = save_plan(pipeline.mirror, pipeline.checkpoint, plan, names)
    assert note in "\n".join(plan.tables())
    assert note in saved.markdown
    assert note in plans_markdown([saved, saved])
    assert note not in str(pipeline.plan(None, pipeline.mirror).notes)
    pipeline.commit("source")
    assert note not in str(pipeline.plan().notes)


def test_a_check_says_that_a_failover_would_be_refused_for_the_state_of_the_query(pipeline):
    keep_failover_data(pipeline.source, pipeline.mirror, pipeline.checkpoint, MIRROR)

    def notes() -> str:
        return "\n".join(pipeline.check().notes)

    pipeline.query.write("state/0/0/1.delta", "state")
    assert "keeps state" not in notes()
    pipeline.query.root.joinpath(READINESS).rename(pipeline.query.root / "kept")
    assert "keeps state" not in notes()  # without kept data the position is unknown, which is another refusal
    pipeline.query.root.joinpath("kept").rename(pipeline.query.root / READINESS)
    pipeline.query.run(1, {"orders": {0: 95}})
    assert "keeps state (state/): without the source a failover is refused, because at most 5 rec" in notes()


def test_what_was_kept_for_a_replaced_query_is_not_taken_for_the_new_one(pipeline):
    keep_failover_data(pipeline.source, pipeline.mirror, pipeline.checkpoint, MIRROR)
    new = "99999999-2222-3333-4444-555555555555"
    pipeline.query.write("metadata", json.dumps({"id": new}))
    # Its cluster is not the new query's, either.
    pipeline.brokers["source"].cluster_id = "third"
    pipeline.source = open_client(pipeline.brokers["source"])
    plan = pipeline.plan(None, pipeline.mirror)
    assert any(f"is ignored: it is of query {QUERY_ID}" in note for note in plan.notes)
    assert [each.translation.exact for each in plan.translated] == [False]
    kept = keep_failover_data(pipeline.source, pipeline.mirror, pipeline.checkpoint, MIRROR)
    assert (kept.query_id, kept.cluster) == (new, "third")


def test_what_an_earlier_version_has_kept_is_used_and_said_to_name_no_query(pipeline):
    kept = keep_failover_data(pipeline.source, pipeline.mirror, pipeline.checkpoint, MIRROR)
    written = json.loads(replace(kept, query_id="").as_text())
    del written["query_id"]
    pipeline.query.write(READINESS, json.dumps(written))
    plan = pipeline.plan(None, pipeline.mirror)
    assert any("names no query" in note for note in plan.notes)
    assert [each.translation.exact for each in plan.translated] == [True]


def test_a_batch_that_ends_while_its_position_is_translated_is_not_moved_but_a_drill_may_plan(
    pipeline, monkeypatch
):
    def translate(*arguments: Any) -> Any:
        pipeline.query.run(1, {"orders": {0: 95}})
        return translate_sources(*arguments)

    monkeypatch.setattr("airflow_kafka_offsets.moves.failover.translate_sources", translate)
    plan = pipeline.plan()
    moved = plan.checkpoint_plan
    assert (moved.batch_id, moved.before, plan.refusals) == (0, {"0": {ORDERS: 90}}, [])
    with pytest.raises(PlanRefusedError, match="has changed since the plan was made: the query is running"):
        pipeline.move(plan)
    assert pipeline.checkpoint.read().kafka_offsets == {"0": {ORDERS: 95}}


def test_the_last_check_sees_the_offset_of_each_source_of_a_topic(pipeline):
    pipeline.query.run(1, {"orders": {0: 20}}, {"orders": {0: 90}})
    groups = {"source:0": "etl", "source:1": "audit"}
    plan = pipeline.plan(groups=groups)
    check_logs_again(pipeline.mirror, plan)
    pipeline.brokers["mirror"].delete_records("orders", 0, 15)
    with pytest.raises(PlanRefusedError, match="orders-0: the target is 10, the log now holds 15 to 90"):
        check_logs_again(pipeline.mirror, plan)


def test_a_partition_that_topics_leaves_out_must_not_be_on_the_mirror_also_once_a_plan_was_saved(pipeline):
    pipeline.brokers["source"].create("payments")
    pipeline.query.run(1, {"orders": {0: 90}, "payments": {0: 5}})
    plan = pipeline.plan(topics="orders")
    names = Names("etl", "orders", pipeline.query.location, mirror=MIRROR.as_json())
    saved = save_plan(pipeline.mirror, pipeline.checkpoint, plan, names)
    now = datetime.now(tz=timezone.utc)
    assert plan_saved_failover(pipeline.mirror, pipeline.checkpoint, saved, now=now).refusals == []
    pipeline.brokers["mirror"].create("payments")
    says = "leaves out payments-0, which the mirror has under the same"
    assert says in pipeline.check(topics="orders").failures(None, None)[0]
    for again in (
        pipeline.plan(topics="orders"),
        plan_saved_failover(pipeline.mirror, pipeline.checkpoint, saved, now=now),
    ):
        with pytest.raises(PlanRefusedError, match=says):
            again.check()
