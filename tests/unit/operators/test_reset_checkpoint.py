"""A reset of a pipeline with a checkpoint: group and checkpoint, as one."""

import json
from copy import copy
from datetime import datetime, timedelta, timezone

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow_task import reset
from recovery_pipeline import broken_commit
from waiting import Store

from airflow_kafka_offsets.checkpoint import apply_move
from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TIMES = [int((NOON + timedelta(minutes=minute)).timestamp() * 1000) for minute in range(10)]
ENDS = {0: 10, 1: 4, 2: 6}
COMMITTED = {0: 5, 1: 2}
READ = {0: 8, 1: 3, 2: 4}
"""Where the checkpoint stands; the group is behind, and has no commit for partition 2."""


@pytest.fixture
def make_log(make_topic, produce):
    def make():
        name = make_topic(config={"retention.ms": "-1"})
        produce(name, ENDS, dict.fromkeys(ENDS, TIMES))
        return name

    return make


@pytest.fixture
def topic(make_log):
    return make_log()


@pytest.fixture
def group(topic, new_group, commit):
    name = new_group()
    commit(name, topic, COMMITTED)
    return name


@pytest.fixture
def query(topic, new_query):
    return new_query({topic: READ})


@pytest.fixture
def unmoved(query, group, topic, committed):
    """Says whether neither store has changed since the test began."""
    before = query.files()
    return lambda: (query.files(), committed(group, topic)) == (before, COMMITTED)


def test_two_sources_of_one_topic_and_another_topic_move_with_their_groups(
    topic, make_log, new_group, new_query, commit, committed, context
):
    other = make_log()
    query = new_query({topic: {0: 8}}, {topic: {0: 6}}, {other: {0: 9}})
    groups = {"source:0": new_group(), "source:1": new_group(), other: new_group()}
    commit(groups["source:0"], topic, {0: 8})
    commit(groups["source:1"], topic, {0: 6})
    receipt = reset(context, query, groups, shift_by=-2)
    assert [query.stands(source) for source in "012"] == [{0: 6}, {0: 4}, {0: 7}]
    assert committed(groups["source:0"], topic) == {0: 6}
    assert committed(groups["source:1"], topic) == {0: 4}
    # It had no commit, and stood where the checkpoint did.
    assert committed(groups[other], other) == {0: 7}
    assert {part["group_id"] for part in receipt["groups"]} == set(groups.values())
    csv = (query.root / "_kafka_offsets" / "0001-seek" / "before.csv").read_text()
    assert sorted(csv.split()) == sorted(
        [f"{groups['source:0']},{topic},0,8", f"{groups['source:1']},{topic},0,6"]
    )


def test_offsets_of_ones_own_may_be_of_several_groups(
    topic, make_log, new_group, new_query, committed, context
):
    other = make_log()
    query = new_query({topic: {0: 8}, other: {0: 9}})
    groups = {topic: new_group(), other: new_group()}
    reset(context, query, groups, to_offset={topic: {"0": 1}, other: {"0": 2}})
    assert (committed(groups[topic], topic), committed(groups[other], other)) == ({0: 1}, {0: 2})


def test_topics_narrows_both(topic, group, query, committed, context):
    reset(context, query, group, topics=f"{topic}:0", to_offset=1)
    assert committed(group, topic) == {0: 1, 1: 2}
    assert query.stands() == {0: 1, 1: 3, 2: 4}


def test_a_group_with_a_member_is_refused_and_the_checkpoint_stays(
    topic, group, query, unmoved, member, context
):
    member(group, topic)
    with pytest.raises(
        AirflowFailException, match=r"nothing was changed: .* 1 member .*a-reader on 127\.0\.0\.1"
    ):
        reset(context, query, group, to_offset="earliest")
    assert unmoved()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"to_offset": 5}, r"offset 5 of topic-\w+-1 is outside its log, which holds 0 to 4"),
        ({"to_datetime": "2226-03-01"}, "is in the future"),
        ({"topics": "nowhere", "to_offset": 1}, "topics names 'nowhere', which the checkpoint does not have"),
    ],
)
def test_what_cannot_be_done_is_refused_and_neither_is_changed(
    parameters, says, group, query, unmoved, context
):
    with pytest.raises(AirflowFailException, match=says):
        reset(context, query, group, **parameters)
    assert unmoved()


@pytest.mark.parametrize("recorded", [1, 2])
def test_after_data_loss_a_batch_that_the_table_has_not_recorded_is_discarded(
    recorded, make_log, new_group, new_query, commit, committed, context, delete_records, tmp_path
):
    topic, group = make_log(), new_group()
    commit(group, topic, READ)
    query = new_query({topic: READ})
    query.plan(2, {topic: ENDS})
    log = tmp_path / "orders" / "_delta_log"
    log.mkdir(parents=True)
    for batch in range(recorded + 1):
        transaction = {"txn": {"appId": "11111111-2222-3333-4444-555555555555", "version": batch}}
        (log / f"{batch:020}.json").write_text(json.dumps(transaction) + "\n")
    delete_records(topic, {0: 9})
    how = {"to_offset": "committed", "on_out_of_range": "clamp", "on_pending_batch": "discard"}
    how |= {"sink": "delta", "sink_location": str(log.parent)}
    if recorded == 2:
        before = query.files()
        with pytest.raises(
            AirflowFailException, match="the sink has recorded batch 2 .* failOnDataLoss=false"
        ):
            reset(context, query, group, **how)
        assert (query.files(), committed(group, topic)) == (before, READ)
    else:
        receipt = reset(context, query, group, **how)
        assert receipt["checkpoint"]["discarded"] == [2]
        assert query.stands() == committed(group, topic) == READ | {0: 9}


def test_state_is_refused_unless_it_is_allowed(topic, group, query, committed, context):
    query.write("state/0/0/1.delta", "")
    before = query.files()
    with pytest.raises(AirflowFailException, match="counted twice, and the watermark does not go back"):
        reset(context, query, group, to_offset=1)
    assert (query.files(), committed(group, topic)) == (before, COMMITTED)
    reset(context, query, group, to_offset=1, allow_stateful=True)
    assert query.stands() == committed(group, topic) == {0: 1, 1: 1, 2: 1}


def test_a_topic_that_the_broker_has_no_more_is_refused(topic, group, new_query, committed, context):
    query = new_query({topic: READ, "deleted": {0: 4}})
    before = query.files()
    with pytest.raises(AirflowFailException, match="topic deleted is not on the broker"):
        reset(context, query, group, to_offset="earliest")
    assert (query.files(), committed(group, topic)) == (before, COMMITTED)


@pytest.mark.parametrize(
    ("policy", "group_at", "checkpoint_at"),
    [("clamp", {0: 5, 1: 4, 2: 5}, {0: 5, 1: 4, 2: 5}), ("skip", {0: 5, 1: 2, 2: 5}, {0: 5, 1: 3, 2: 5})],
)
def test_a_policy_for_offsets_outside_the_log_goes_for_both(
    policy, group_at, checkpoint_at, topic, group, query, committed, context
):
    reset(context, query, group, to_offset=5, on_out_of_range=policy)
    assert (committed(group, topic), query.stands()) == (group_at, checkpoint_at)


@pytest.mark.parametrize(
    ("given", "seconds"), [({"quiet_period": "PT0.3S"}, 0.3), ({"quiet_period": None}, 10)]
)
def test_the_quiet_period_is_waited_for(given, seconds, query, group, context, monkeypatch):
    waited = []
    monkeypatch.setattr(apply_move, "wait_until_quiet", lambda _, period: waited.append(period))
    reset(context, query, group, to_offset=1, **given)
    assert waited == [seconds]


@pytest.mark.parametrize("store", [True, False], ids=["task-state-store", "no-store"])
@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ({"shift_by": -1}, {0: 4, 1: 1}),
        ({"by_duration": "PT0.001S"}, {0: 10, 1: 4}),
        ({"to_offset": "latest"}, {0: 10, 1: 4}),
    ],
    ids=["shift_by", "by_duration", "latest"],
)
def test_a_reset_that_ended_between_checkpoint_and_group_is_finished_by_its_retry(
    store, scenario, expected, make_log, produce, new_group, new_query, commit, committed, context
):
    topic, group = make_log(), new_group()
    commit(group, topic, COMMITTED)
    query = new_query({topic: {0: 8, 1: 3}})
    context |= {"task_state_store": Store()} if store else {}
    with broken_commit(), pytest.raises(BrokerUnavailableError, match="running it again finishes the rest"):
        reset(context, query, group, **scenario)
    assert query.stands() == expected
    assert committed(group, topic) == COMMITTED
    produce(topic, {0: 3})
    receipt = reset(context, query, group, **scenario)
    assert query.stands() == committed(group, topic) == expected
    assert receipt["before"] == {topic: {"0": 5, "1": 2}}
    assert receipt["checkpoint"]["before"] == {"0": {topic: {"0": 8, "1": 3}}}
    assert receipt["checkpoint"]["archive"] == "0001-seek"


def test_a_retry_does_not_move_again_what_another_task_has_committed_meanwhile(
    topic, group, query, committed, context
):
    context |= {"task_state_store": Store()}
    reset(context, query, group, shift_by=-1)
    other = copy(context)
    other |= {"ti": copy(context["ti"]), "task_state_store": Store()}
    other["ti"].task_id, other["ti"].run_id = "publish", "another run"
    names = {"group_id": group, "checkpoint_location": query.location}
    CommitOffsetsOperator(task_id="publish", **names).execute(other)
    retried = reset(context, query, group, shift_by=-1)
    assert query.stands() == committed(group, topic) == {0: 4, 1: 1, 2: 3}
    assert retried["checkpoint"]["archive"] == "0001-seek"


def test_a_third_try_moves_nothing_and_clearing_the_task_moves_again(topic, group, query, committed, context):
    context |= {"task_state_store": Store()}
    with broken_commit(), pytest.raises(BrokerUnavailableError):
        reset(context, query, group, shift_by=-1)
    first = context["ti"].xcoms["return_value"]
    second = reset(context, query, group, shift_by=-1)
    assert second["source"] == first["source"]
    third = reset(context, query, group, shift_by=-1)
    assert third == second
    assert query.stands() == committed(group, topic) == {0: 4, 1: 1, 2: 3}
    context["ti"].max_tries = 1
    cleared = reset(context, query, group, shift_by=-1)
    assert query.stands() == committed(group, topic) == {0: 3, 1: 0, 2: 2}
    assert cleared["before"] == {topic: {"0": 4, "1": 1, "2": 3}}
