"""
A mirror that is killed copies records again: nothing is lost then, and the plan counts what comes again.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from mirrored_clusters import (
    MIRRORS,
    SYNCS,
    Mirrored,
    alter_topic,
    keep_failover_data,
    mirrored_clusters,
    produce,
    produce_in_transactions,
)
from written_query import Query

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.model.failover_data import FailoverData
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.readings.mirror import last_reads, read_syncs

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(scope="module")
def restarted(tmp_path_factory) -> Iterator[Mirrored]:
    """
    Clusters whose MirrorMaker may be killed, and flushes its own position so rarely that it copies again.
    """
    directory = tmp_path_factory.mktemp("restarted")
    with mirrored_clusters(directory, **{"offset.flush.interval.ms": "600000"}) as found:
        yield found


def check_positions(
    mirrored: Mirrored, way: str, tp: TopicPartition, number: int = 12
) -> list[tuple[int, int, int]]:
    """Translate positions alive, from what was kept and from the syncs alone; return what was read again."""
    truth = mirrored.truth(way, tp)
    start, end = mirrored.on_source.log_ranges([tp])[tp]
    chance = random.Random(tp.topic)
    found = []
    for at in sorted({*(chance.randint(start + 1, end) for _ in range(number)), end}):
        kept = mirrored.kept(tp, at)
        for alive, data in ((True, FailoverData()), (False, kept), (False, FailoverData())):
            each = mirrored.translate(MIRRORS[way], tp, at, data, alive=alive).translation
            if each.offset is not None:
                truth.check(at, each)
                found.append((at, truth.again(at, each.offset), each.again))
    assert found
    return found


@pytest.mark.parametrize("kind", ["plain", "transactions"])
def test_a_mirror_that_was_killed_and_started_again(restarted: Mirrored, kind):
    topic = restarted.topic("same")
    tp = TopicPartition(topic, 0)
    write = produce if kind == "plain" else produce_in_transactions
    write(restarted.source, topic, 400)
    restarted.wait_for_copy("same", topic)
    restarted.maker.kill()
    restarted.maker.start()
    write(restarted.source, topic, 300, first=1_000)
    restarted.wait_for_copy("same", topic)
    copies = [len(each.copies) for each in restarted.truth("same", tp).written]
    assert max(copies) > 1, "nothing was copied again"
    check_positions(restarted, "same", tp)


def test_a_mirror_that_has_stopped_before_it_had_passed_all_again(restarted: Mirrored):
    """
    What only the first copy holds must not be passed over: the mirror ends in the middle of copying again.
    """
    topic = restarted.topic("same")
    tp = TopicPartition(topic, 0)
    produce(restarted.source, topic, 500)
    restarted.wait_for_copy("same", topic)
    restarted.maker.kill()
    check_positions(restarted, "same", tp)
    restarted.maker.start()

    def is_told() -> bool:
        # Without a sync since the restart, nothing shows that records were copied again.
        syncs = read_syncs(restarted.on_target, SYNCS["same"], [tp]).by_partition.get(tp, ())
        return any(sync.downstream >= 500 for sync in syncs)

    restarted.until(is_told, "a sync of the records that are copied again", 90)
    restarted.maker.kill()
    check_positions(restarted, "same", tp)
    restarted.maker.start()


def test_a_mirror_that_lags_behind(restarted: Mirrored):
    """The position lies behind what the mirror has: it goes on at its end, or a little before it."""
    topic = restarted.topic("same")
    tp = TopicPartition(topic, 0)
    produce(restarted.source, topic, 300)
    restarted.wait_for_copy("same", topic)
    restarted.maker.kill()
    earlier = last_reads(restarted.on_source, {tp: 250}, restarted.on_source.log_ranges([tp]))[tp]
    produce(restarted.source, topic, 300, first=300)
    logs = restarted.on_source.log_ranges([tp])
    newest = last_reads(restarted.on_source, {tp: 500}, logs)[tp]
    kept = FailoverData().with_position(1, 1, "", {tp: [newest, earlier]}, {tp: 600})
    each = restarted.translate(MIRRORS["same"], tp, 500, kept, alive=False)
    assert each.translation.offset == restarted.on_target.log_ranges([tp])[tp].end
    assert each.translation.exact
    assert "ends before the position" in each.translation.why
    assert each.unmirrored == 300
    # While the source is there, the mirror may yet copy what was read already.
    assert restarted.translate(MIRRORS["same"], tp, 500, kept).translation.again >= 200
    check_positions(restarted, "same", tp)
    restarted.maker.start()


def test_the_syncs_that_a_commit_has_kept_outlive_their_compaction(restarted: Mirrored, tmp_path):
    """The compacted topic keeps the newest sync of a partition, which translates no earlier position."""
    topic, syncs = restarted.topic("same"), TopicPartition(SYNCS["same"], 0)
    tp, at = TopicPartition(topic, 0), 1_234
    for first in range(0, 3_000, 500):
        produce(restarted.source, topic, 500, first=first)
        restarted.wait_for_copy("same", topic)
    query = Query(tmp_path / "checkpoint")
    query.run(0, {topic: {0: at}})
    checkpoint = SparkCheckpoint(query.location)
    kept = keep_failover_data(restarted.on_source, restarted.on_target, checkpoint, MIRRORS["same"])
    assert not kept.error
    alter_topic(restarted.target, syncs.topic, {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"})

    def of_topic() -> int:
        found = read_syncs(restarted.on_target, syncs.topic, [tp])
        return len(found.by_partition.get(tp, ()))

    def is_compacted() -> bool:
        # A new sync ends the segment; only ended ones are compacted.
        produce(restarted.source, topic, 200, first=10_000)
        return of_topic() <= 2

    before = of_topic()
    restarted.until(is_compacted, "the compaction of the syncs", 120)
    assert before > 2
    truth = restarted.truth("same", tp)
    found = {
        name: restarted.translate(MIRRORS["same"], tp, at, data, alive=False).translation
        for name, data in (("all", kept), ("syncs", replace(kept, read={})), ("nothing", FailoverData()))
    }
    for each in found.values():
        if each.offset is not None:
            truth.check(at, each)
    assert found["all"].exact
    assert found["syncs"].offset is not None
    assert found["syncs"].offset > 0
    # Without what was kept all is read again.
    assert found["nothing"].offset in (None, 0)
