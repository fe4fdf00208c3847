"""A pipeline moves to another topic of its cluster: to a copy of the old topic, or to its successor."""

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from memory_broker import MemoryBroker
from mirrored_clusters import keep_failover_data
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.mirror import Mirror
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.check_mirror import CheckMirrorOperator
from airflow_kafka_offsets.operators.fail_over import FailOverOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline

pytestmark = pytest.mark.usefixtures("memory")

ENDS = {0: 10, 1: 6}
READ = {0: 7, 1: 4}
SHIFT = 3
"""Records that the new topic had before the copy."""


@pytest.fixture
def copy(memory: MemoryBroker) -> Callable[..., None]:
    """copy(old, new) does what a tool does: it writes the records of all partitions with their times."""

    def write(old: str, new: str, ends: dict[int, int] | None = None) -> None:
        for number, end in (ends or ENDS).items():
            memory.append(new, number, memory.log(TopicPartition(old, number)).times[:end])

    return write


def seconds(first: int, count: int) -> list[int]:
    """Times of records, a second apart."""
    return [1_700_000_000_000 + 1_000 * number for number in range(first, first + count)]


@pytest.fixture
def old(make_topic, produce) -> str:
    name = make_topic(2)
    produce(name, ENDS, {number: seconds(0, end) for number, end in ENDS.items()})
    return name


@pytest.fixture
def new(make_topic, produce) -> str:
    name = make_topic(2)
    produce(name, dict.fromkeys(READ, SHIFT), dict.fromkeys(READ, seconds(-SHIFT, SHIFT)))
    return name


@pytest.fixture
def query(old: str, tmp_path) -> Query:
    made = Query(tmp_path / "checkpoint")
    made.run(0, {old: {0: 2, 1: 1}})
    made.run(1, {old: READ})
    return made


@pytest.fixture
def orders(query: Query, new_group) -> KafkaPipeline:
    return KafkaPipeline(group_id=new_group(), checkpoint_location=query.location)


@pytest.fixture
def move(orders: KafkaPipeline, context) -> Callable[..., dict[str, Any]]:
    """move({"old": "new"}, **parameters) runs the operator on the one cluster."""

    def run(names: dict[str, str], **parameters: Any) -> dict[str, Any]:
        mirror = {"kafka_config_id": "kafka_default", "topics": names, **parameters.pop("mirror", {})}
        quick = {} if parameters.get("plan_only") else {"quiet_period": 0}
        wanted = {**quick, **orders, "mirror": mirror, **parameters}
        return FailOverOperator(task_id="move", **wanted).execute(context)

    return run


def at(query: Query, source: str = "0") -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for tp, offset in SparkCheckpoint(query.location).read().kafka_offsets[source].items():
        found.setdefault(tp.topic, {})[tp.partition] = offset
    return found


SHIFTED = {number: offset + SHIFT for number, offset in READ.items()}


def test_a_copy_is_read_on_after_the_last_record_that_was_read(
    old, new, query, orders, copy, move, committed, capsys
):
    copy(old, new)
    plan = move({old: new}, plan_only=True)
    assert plan["failover"]["kinds"] == {"exact (record)": 2}
    assert at(query) == {old: READ}
    receipt = move({old: new})
    assert at(query) == {new: SHIFTED}
    assert committed(orders.group_id, new) == SHIFTED
    assert receipt["verified"]
    assert receipt["failover"]["again"] == 0
    assert "batch 1, to other topics of cluster" in capsys.readouterr().out


def test_a_saved_plan_moves_as_planned_or_is_refused(old, new, query, orders, copy, move, committed):
    copy(old, new)
    plan = move({old: new}, plan_only=True)
    move({old: new}, plan=plan)
    assert at(query) == {new: SHIFTED}
    assert committed(orders.group_id, new) == SHIFTED


def test_a_saved_plan_is_refused_once_the_old_topic_has_new_records(old, new, query, copy, move, produce):
    copy(old, new)
    plan = move({old: new}, plan_only=True)
    produce(old, {0: 2})
    with pytest.raises(AirflowFailException, match=f"has not read {old}-0 to the end, and the new topic doe"):
        move({old: new}, plan=plan)
    assert at(query) == {old: READ}


def test_the_same_task_finishes_nothing_twice_and_a_restore_takes_it_back(
    old, new, query, orders, copy, move, cli
):
    copy(old, new)
    before = query.sparks_files()
    move({old: new})
    move({old: new})
    assert at(query) == {new: SHIFTED}
    names = ("--checkpoint", query.location, "--quiet-period", "0")
    done = cli("group", "restore", orders.group_id, *names, "--archive", "0001-failover", "--execute")
    assert done.code == 0, done
    assert query.sparks_files() == before


def test_drift_and_moves_know_the_new_topic(old, new, query, orders, copy, move, cli):
    copy(old, new)
    move({old: new})
    report = CheckOffsetDriftOperator(task_id="check", **orders).execute({})
    assert not report["drifted"]
    query.run(2, {new: {0: 12, 1: 8}})
    done = cli("checkpoint", "seek", query.location, "--to-batch", 0)
    assert done.code == 1
    assert "has moved the query to another cluster or topic" in done.err
    # The way back is another move.
    move({new: old})
    assert at(query) == {old: {0: 9, 1: 5}}


def test_other_topics_of_the_query_stay_as_they_are(
    old, new, make_topic, produce, tmp_path, new_group, copy, move, committed
):
    kept = make_topic(1)
    produce(kept, {0: 5})
    copy(old, new)
    query = Query(tmp_path / "both")
    query.run(0, {old: READ, kept: {0: 2}})
    query.run(1, {old: READ, kept: {0: 3}})
    groups = {old: new_group(), kept: new_group()}
    move({old: new}, group_id=groups, checkpoint_location=query.location)
    assert at(query) == {new: SHIFTED, kept: {0: 3}}
    assert committed(groups[old], new) == SHIFTED
    assert committed(groups[kept], kept) == {}


def test_a_topic_that_is_no_copy_is_read_from_its_start_once_the_old_one_is_read(
    old, new, query, orders, move, committed
):
    with pytest.raises(AirflowFailException, match="position on the mirror is unknown on .*no copy of the l"):
        move({old: new})
    with pytest.raises(AirflowFailException, match=f"has not read {old}-0, {old}-1 to the end, and the new"):
        move({old: new}, on_unknown="earliest")
    assert at(query) == {old: READ}
    query.run(2, {old: ENDS})
    move({old: new}, on_unknown="earliest")
    assert at(query) == {new: {0: 0, 1: 0}}
    assert committed(orders.group_id, new) == {0: 0, 1: 0}


def test_a_copy_that_is_not_finished_is_refused(old, new, query, copy, move):
    copy(old, new, {0: 9, 1: 6})
    with pytest.raises(AirflowFailException, match=f"has not read {old}-0 to the end, and the new topic doe"):
        move({old: new})
    assert at(query) == {old: READ}


def test_a_partition_that_was_added_to_the_old_topic_is_not_lost(old, new, query, copy, move, produce, grow):
    copy(old, new)
    for topic in (old, new):
        grow(topic, 3)
    produce(old, {2: 1})
    with pytest.raises(AirflowFailException, match=f"has not read {old}-2 to the end"):
        move({old: new})
    assert at(query) == {old: READ}


def test_another_number_of_partitions_has_no_positions(old, make_topic, query, copy, move):
    new = make_topic(3)
    copy(old, new)
    with pytest.raises(AirflowFailException, match=f"{old} has 2 partitions and {new} has 3, so records are"):
        move({old: new})
    query.run(2, {old: ENDS})
    receipt = move({old: new}, on_unknown="earliest")
    assert at(query) == {new: {0: 0, 1: 0}}
    assert receipt["failover"]["again"] == sum(ENDS.values())


def test_of_a_deleted_topic_what_commits_have_kept_is_enough(old, new, query, copy, move, broker, memory):
    copy(old, new)
    keep_failover_data(broker, broker, SparkCheckpoint(query.location), Mirror("kafka_default"))
    memory.delete_topic(old)
    move({old: new})
    assert at(query) == {new: SHIFTED}


@pytest.mark.parametrize(
    ("names", "more", "says"),
    [
        ({"orders-typo": "new"}, {}, "names 'orders-typo'; expected topics that the query reads"),
        ({"OLD": "OLD"}, {}, "names no other topic"),
        ({"OLD": "NEW"}, {"prefix": "dr."}, "prefix: found for a move on one cluster"),
        ({"OLD": "NEW"}, {"syncs_topic": "mm2-offset-syncs.a.internal"}, "syncs_topic: found for a move"),
        ({"OLD": "missing-topic"}, {}, "missing-topic-0 is not on the mirror"),
    ],
)
def test_names_that_do_not_fit_are_refused(names, more, says, old, new, query, move):
    known = {"OLD": old, "NEW": new}
    with pytest.raises(AirflowFailException, match=says):
        move({known.get(key, key): known.get(name, name) for key, name in names.items()}, mirror=more)
    assert at(query) == {old: READ}


def test_a_topic_that_the_query_reads_already_is_refused(old, new, tmp_path, copy, move):
    copy(old, new)
    query = Query(tmp_path / "both")
    query.run(0, {old: READ, new: READ})
    query.run(1, {old: READ, new: READ})
    with pytest.raises(AirflowFailException, match=f"moves to '{new}', which the query reads already"):
        move({old: new}, checkpoint_location=query.location)


def test_each_topic_of_a_chain_of_names_must_have_been_copied(old, new, make_topic, tmp_path, copy, move):
    # The names move on by one: nothing has copied the last records of the second topic.
    last = make_topic(2)
    copy(new, last)
    copy(old, new)
    query = Query(tmp_path / "chain")
    query.run(0, {old: READ, new: dict.fromkeys(READ, SHIFT)})
    with pytest.raises(AirflowFailException, match=f"has not read {new}-0, {new}-1 to the end, and the new"):
        move({old: new, new: last}, checkpoint_location=query.location)


def test_one_cluster_has_no_mirror_to_check(old, new, orders, context):
    mirror = {"kafka_config_id": "kafka_default", "topics": {old: new}}
    with pytest.raises(AirflowFailException, match="both connections lead to cluster .* no mirror to check"):
        CheckMirrorOperator(task_id="check", **{**orders, "mirror": mirror}).execute(context)


def test_the_command_line_moves_too(old, new, query, orders, copy, cli, broker, committed):
    copy(old, new)
    to = ("--to-bootstrap-server", broker.servers, "--quiet-period", "0")
    names = (query.location, orders.group_id, *to)
    done = cli("failover", "apply", *names)
    assert done.code == 1
    assert "both connections lead there" in done.err
    assert "name the topic (--topic-map)" in done.err
    done = cli("failover", "apply", *names, "--topic-map", f"{old}={new}")
    assert done.code == 0, done
    assert at(query) == {new: SHIFTED}
    assert committed(orders.group_id, new) == SHIFTED


def test_a_copy_that_lacks_a_record_is_refused_also_if_an_earlier_one_is_alike(
    make_topic, produce, tmp_path, move
):
    old, new = make_topic(1), make_topic(1)
    produce(old, {0: 10}, {0: seconds(0, 10)})
    produce(new, {0: 9}, {0: seconds(0, 9)})
    query = Query(tmp_path / "alike")
    query.run(0, {old: {0: 10}})
    with pytest.raises(AirflowFailException):
        move({old: new}, checkpoint_location=query.location)
    assert query.stands() == {0: 10}
