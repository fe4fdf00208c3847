"""Positions are translated on a real mirror: nothing is lost, and no more is read again than it says."""

import os
import random
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from mirrored_clusters import MIRRORS, Mirrored, Truth, produce, produce_by_keys, produce_in_transactions

from airflow_kafka_offsets.local.java import find_java
from airflow_kafka_offsets.local.mirror_maker import IDENTITY, mirror_maker_classpath
from airflow_kafka_offsets.model.failover_data import FailoverData
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.translation import Translation
from airflow_kafka_offsets.readings.mirror import last_reads

pytestmark = pytest.mark.integration

RECORDS = 3_000
UTILITY = Path(__file__).parents[2] / "support" / "TranslateOffsets.java"
DEFAULT = "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"
MANY_SEGMENTS = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}


class Case(NamedTuple):
    """A topic, and positions in it."""

    way: str
    tp: TopicPartition
    positions: list[int]
    truth: Truth
    theirs: dict[int, int | None]
    """MirrorMaker's own translation of each position, by a group that was committed there."""


def some_positions(mirrored: Mirrored, tp: TopicPartition, number: int = 8) -> list[int]:
    start, end = mirrored.on_source.log_ranges([tp])[tp]
    chance = random.Random(5)  # not of the topic's name: its number depends on the tests before
    return sorted({*(chance.randint(start + 1, end) for _ in range(number)), end})


def commit_groups(mirrored: Mirrored, tp: TopicPartition, positions: list[int]) -> None:
    for at in positions:
        mirrored.on_source.commit(f"{tp.topic}-{at}", {tp: at})


def their_translation(mirrored: Mirrored, way: str, tp: TopicPartition, at: int) -> int | None:
    copy = MIRRORS[way].partition(tp)
    found = mirrored.on_target.committed(f"{tp.topic}-{at}", [copy])[copy]
    return found and found.offset


@pytest.fixture(scope="module")
def cases(mirrored: Mirrored) -> dict[str, Case]:
    """Topics of each kind, mirrored in both ways, with their truth and MirrorMaker's own translation."""
    made: dict[str, tuple[str, TopicPartition]] = {}
    for way in ("same", "other"):
        for kind in ("plain", "transactions"):
            topic = mirrored.topic(way)
            made[f"{kind}, {way}"] = way, TopicPartition(topic, 0)
            if kind == "plain":
                produce(mirrored.source, topic, RECORDS)
            else:
                produce_in_transactions(mirrored.source, topic, RECORDS // 10)
    for way, tp in made.values():
        mirrored.wait_for_copy(way, tp.topic)
    found: dict[str, Case] = {}
    positions = {name: some_positions(mirrored, tp) for name, (_, tp) in made.items()}
    for name, each in positions.items():
        commit_groups(mirrored, made[name][1], each)
    for name, each in positions.items():
        way, tp = made[name]
        # Of a position before its oldest sync MirrorMaker has no translation.
        mirrored.until(
            lambda w=way, t=tp, at=each[-1]: their_translation(mirrored, w, t, at) is not None, name
        )
        theirs = {at: their_translation(mirrored, way, tp, at) for at in each}
        found[name] = Case(way, tp, each, mirrored.truth(way, tp), theirs)
    return found


def translations(
    mirrored: Mirrored, case: Case, *, alive: bool, kept: bool
) -> Iterator[tuple[int, Translation]]:
    for at in case.positions:
        data = mirrored.kept(case.tp, at) if kept else FailoverData()
        yield at, mirrored.translate(MIRRORS[case.way], case.tp, at, data, alive=alive).translation


KINDS = ["plain, same", "plain, other", "transactions, same", "transactions, other"]


@pytest.mark.parametrize(
    ("alive", "kept"), [(True, False), (False, True), (False, False)], ids=["alive", "kept", "dead"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_and_no_more_read_again_than_it_says(mirrored, cases, kind, alive, kept):
    case = cases[kind]
    for at, found in translations(mirrored, case, alive=alive, kept=kept):
        case.truth.check(at, found)
        theirs = case.theirs[at]
        assert theirs is None or found.offset >= theirs, (at, found, "before MirrorMaker's own")


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_last_records_most_positions_are_exact(mirrored, cases, kind):
    case = cases[kind]
    found = dict(translations(mirrored, case, alive=False, kept=True))
    exact = Counter(each.exact for each in found.values())
    assert exact[True] >= (len(found) if kind.startswith("plain") else len(found) // 2), found
    # A tenth at most of what MirrorMaker's own offsets read again, in the median.
    ours = statistics.median(
        case.truth.again(at, each.offset) for at, each in found.items() if each.offset is not None
    )
    theirs = statistics.median(case.truth.again(at, to or 0) for at, to in case.theirs.items())
    assert ours <= theirs / 10


@pytest.mark.parametrize("way", ["other", pytest.param("same", marks=pytest.mark.long)])
def test_mirror_makers_own_utility_is_a_lower_bound(mirrored, cases, way):
    """``RemoteClusterUtils.translateOffsets`` never leads past the right place, nor past this package's."""
    # The utility takes a second for each group: a third of them is enough.
    of_way = [case._replace(positions=case.positions[::-3]) for case in cases.values() if case.way == way]
    groups = {(case.tp, at): f"{case.tp.topic}-{at}" for case in of_way for at in case.positions}
    theirs = translate_by_mirror_maker(mirrored, way, list(groups.values()))
    compared = 0
    for case in of_way:
        for at, found in translations(mirrored, case, alive=True, kept=False):
            at_theirs = theirs[groups[case.tp, at]].get(MIRRORS[way].partition(case.tp))
            if at_theirs is None:  # before MirrorMaker's oldest sync
                continue
            assert found.offset is not None
            assert case.truth.lost(at, at_theirs) == 0, (at, at_theirs)
            assert at_theirs <= found.offset, (at, found)
            compared += 1
    assert compared >= len(of_way)


def translate_by_mirror_maker(
    mirrored: Mirrored, way: str, groups: list[str]
) -> dict[str, dict[TopicPartition, int]]:
    """Return the offsets of groups on the mirror, as MirrorMaker's Java utility translates them."""
    java = find_java().path
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        pytest.skip("a Java source is run, which needs a JDK")
    alias, policy = ("source", IDENTITY) if way == "same" else ("other", DEFAULT)
    done = subprocess.run(
        [
            *(str(java), "-cp", os.pathsep.join(map(str, mirror_maker_classpath()))),
            *(str(UTILITY), mirrored.target, policy, alias, *groups),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, dict[TopicPartition, int]] = {}
    offsets: dict[TopicPartition, int] = {}
    for line in done.stdout.splitlines():
        match line.split("\t"):
            case ["group", group]:
                found[group], offsets = offsets, {}
            case [topic, partition, offset, *_]:
                offsets[TopicPartition(topic, int(partition))] = int(offset)
    assert set(found) == set(groups)
    return found


def test_a_topic_of_another_name_is_noticed(mirrored, cases):
    """A mirror that is named wrongly leads to another topic, which holds other records."""
    case = cases["plain, same"]
    wrong = mirrored.topic("same")
    produce(mirrored.source, wrong, RECORDS, first=1_000_000)
    mirrored.wait_for_copy("same", wrong)
    mirror = replace(MIRRORS["same"], topics={case.tp.topic: wrong})
    found = mirrored.translate(mirror, case.tp, case.positions[1])
    assert found.translation.offset is None
    assert "another name" in found.translation.why


def test_records_that_look_alike_are_not_taken_for_each_other(mirrored):
    """
    Equal values with equal times, and holes by aborted transactions: no position is called exact that is not.
    """
    topic = mirrored.topic("other")
    tp = TopicPartition(topic, 0)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": mirrored.source, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for number in range(40):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, b"same", partition=0, timestamp=1_700_000_000_000)
        assert producer.flush(30) == 0
        producer.abort_transaction(30) if number % 4 == 1 else producer.commit_transaction(30)
    copy = MIRRORS["other"].partition(tp)
    committed = [record.offset for record in mirrored.records(mirrored.on_source, tp, committed=True)]
    mirrored.until(lambda: copy.topic in mirrored.on_target.partitions([copy.topic]), topic)
    mirrored.until(lambda: mirrored.on_target.log_ranges([copy])[copy].end == len(committed), "the copies")
    for at in range(1, committed[-1] + 2, 7):
        place = sum(offset < at for offset in committed)
        found = mirrored.translate(MIRRORS["other"], tp, at)
        assert found.translation.offset is not None
        assert found.translation.offset <= place, (at, found)
        assert place - found.translation.offset <= found.translation.again, (at, found)


def test_times_that_are_out_of_order(mirrored):
    topic = mirrored.topic("same")
    tp = TopicPartition(topic, 0)
    chance = random.Random(5)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": mirrored.source, "log_level": 0})
    for number in range(1_000):
        producer.produce(
            topic, b"%d" % number, partition=0, timestamp=1_700_000_000_000 + chance.randrange(10_000)
        )
    assert producer.flush(30) == 0
    mirrored.wait_for_copy("same", topic)
    truth = mirrored.truth("same", tp)
    for at in some_positions(mirrored, tp):
        found = mirrored.translate(MIRRORS["same"], tp, at)
        assert found.translation.exact, (at, found)
        assert truth.lost(at, found.translation.offset) == truth.again(at, found.translation.offset) == 0


def test_a_compacted_topic(mirrored):
    topic = mirrored.topic("same", **MANY_SEGMENTS)
    tp = TopicPartition(topic, 0)
    produce_by_keys(mirrored.source, topic, 2_000, keys=50)
    mirrored.wait_for_copy("same", topic)
    end = mirrored.on_source.log_ranges([tp])[tp].end
    positions = list(range(100, end, 400))
    logs = mirrored.on_source.log_ranges([tp])
    read = [last_reads(mirrored.on_source, {tp: at}, logs)[tp] for at in positions]
    kept = FailoverData().with_position(1, 1, "", {tp: read}, {tp: end})
    before = mirrored.truth("same", tp)
    produce_by_keys(mirrored.source, topic, 50, keys=50, first=2_000)
    mirrored.compact(tp, fewer_than=1_500)
    for data in (kept, FailoverData()):
        for at in positions:
            before.check(at, mirrored.translate(MIRRORS["same"], tp, at, data).translation)
