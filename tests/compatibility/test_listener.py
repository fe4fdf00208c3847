"""Groups that follow real queries while they run, on every version of Spark."""

import json
import threading
import time

import pytest

from airflow_kafka_offsets.checkpoint.log import parse_offset_log
from airflow_kafka_offsets.errors import PlanRefusedError, SetupError, UsageError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.log_ids import LogIds
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.spark import KafkaOffsetCommitterListener, committing
from airflow_kafka_offsets.spark.listener.queries import ClassicQuery

OPTION = "kafka.consumer.commit.groupid"


@pytest.fixture
def says(broker):
    """says(group, topic) -> what the commit for its partition 0 says of itself."""

    def metadata(group, topic):
        (commit,) = broker.committed(group, [TopicPartition(topic, 0)]).values()
        assert commit
        assert commit.metadata
        return json.loads(commit.metadata)

    return metadata


def test_each_source_names_its_group_beside_one_that_is_none_of_kafka(
    spark, stream, run, make_topic, produce, location, new_group, holds
):
    spellings = ["kafka.consumer.commit.groupid", "consumer.commit.groupid", "Consumer.Commit.GroupId"]
    topics, groups = [make_topic(2) for _ in spellings], [new_group() for _ in spellings]
    sources = []
    for number, spelling in enumerate(spellings):
        produce(topics[number], {0: 5 + number})
        sources.append(stream(topics[number], **{spelling: groups[number]}).select("value"))
    rates = spark.readStream.format("rate").load()
    rates = rates.selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value")
    with committing(spark, raise_errors=True):
        run(sources[0].union(rates).union(sources[1]).union(sources[2]), location)
    for number, (topic, group) in enumerate(zip(topics, groups, strict=True)):
        assert holds(group) == {(topic, 0): 5 + number, (topic, 1): 0}


def test_a_union_with_one_shared_group(
    spark, stream, run, make_topic, produce, location, new_group, holds, says
):
    first, second, group = make_topic(2), make_topic(1), new_group()
    produce(first, {0: 7})
    produce(second, {0: 3})
    options = {OPTION: group, "maxOffsetsPerTrigger": 4}
    with committing(spark, raise_errors=True):
        query = run(stream(first, **options).union(stream(second, **options)), location)
    assert holds(group) == {(first, 0): 7, (first, 1): 0, (second, 0): 3}
    said = says(group, first)
    assert abs(said.pop("at") - time.time()) < 60
    assert said.pop("cluster")
    assert said.pop("topic")
    assert said == {"query": query.id, "batch": 1, "tool": "spark listener", "partitions": 3}


def test_a_topic_that_is_read_twice_with_a_group_each(
    spark, stream, start, make_topic, produce, location, new_group, holds
):
    topic, fast, slow = make_topic(1), new_group(), new_group()
    produce(topic, {0: 20})
    both = stream(topic, **{OPTION: slow, "maxOffsetsPerTrigger": 1}).union(
        stream(topic, **{OPTION: fast, "maxOffsetsPerTrigger": 10})
    )
    behind = []

    def compare(frame, batch_id):
        behind.append((holds(slow).get((topic, 0), 0), holds(fast).get((topic, 0), 0)))
        if batch_id == 3:
            raise RuntimeError("far enough")

    with committing(spark, raise_errors=True):
        query = start(both, location, batch_does=compare, processingTime="500 milliseconds")
        with pytest.raises(Exception, match="far enough"):
            query.awaitTermination(60)
    # After three finished batches; the fourth has failed.
    assert (holds(slow), holds(fast)) == ({(topic, 0): 3}, {(topic, 0): 20})
    assert behind == sorted(behind)
    assert behind[0] == (0, 0)


def test_a_frame_that_is_joined_with_itself_is_one_source(
    spark, stream, run, make_topic, produce, location, new_group, holds
):
    topic, other, groups = make_topic(1), make_topic(1), [new_group(), new_group()]
    produce(topic, {0: 4})
    produce(other, {0: 2})
    frame = stream(topic, **{OPTION: groups[0]})
    with committing(spark, raise_errors=True):
        run(frame.union(frame).union(stream(other, **{OPTION: groups[1]})), location)
    assert [holds(group) for group in groups] == [{(topic, 0): 4}, {(other, 0): 2}]


def test_topics_by_pattern_and_partitions_by_number(
    spark, stream, run, make_topic, produce, tmp_path, new_group, holds
):
    topic, by_pattern, by_number = make_topic(2), new_group(), new_group()
    produce(topic, {0: 1, 1: 2})
    with committing(spark, raise_errors=True):
        run(stream(subscribePattern=f"{topic}.*", **{OPTION: by_pattern}), str(tmp_path / "pattern"))
        run(stream(assign=json.dumps({topic: [1]}), **{OPTION: by_number}), str(tmp_path / "number"))
    assert holds(by_pattern) == {(topic, 0): 1, (topic, 1): 2}
    assert holds(by_number) == {(topic, 1): 2}


def test_the_groups_own_id_of_the_source_and_other_listeners_are_left_alone(
    spark, stream, run, make_topic, produce, location, new_group, holds
):
    from pyspark.sql.streaming import StreamingQueryListener

    class Heard(StreamingQueryListener):
        batches, ends = [], threading.Event()

        def onQueryStarted(self, event):  # noqa: N802
            pass

        def onQueryProgress(self, event):  # noqa: N802
            self.batches.append(event.progress.batchId)

        def onQueryTerminated(self, event):  # noqa: N802
            self.ends.set()

    topic, group, reading = make_topic(1), new_group(), new_group()
    produce(topic, {0: 3})
    heard = Heard()
    spark.streams.addListener(heard)
    try:
        with committing(spark, raise_errors=True):
            run(stream(topic, **{OPTION: group, "kafka.group.id": reading}), location)
        assert heard.ends.wait(30)
    finally:
        spark.streams.removeListener(heard)
    assert holds(group) == {(topic, 0): 3}
    assert holds(reading) == {}
    assert heard.batches == [0]


def test_a_run_with_nothing_new_commits_again(
    spark, stream, run, make_topic, produce, location, new_group, broker, holds, says
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 3})
    run(stream(topic, **{OPTION: group}), location)
    broker.commit(group, {TopicPartition(topic, 0): 3})
    with committing(spark, raise_errors=True) as listener:
        run(stream(topic, **{OPTION: group}), location)
    assert listener.counts.committed == 1
    assert holds(group) == {(topic, 0): 3}
    assert says(group, topic)["batch"] == 0


def test_a_query_that_fails_leaves_the_group_at_its_last_finished_batch_and_a_restart_goes_on(
    spark, stream, start, run, make_topic, produce, location, new_group, holds
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 9})
    frame = stream(topic, **{OPTION: group, "maxOffsetsPerTrigger": 3})

    def fail(batch, batch_id):
        if batch_id == 2:
            raise RuntimeError("this batch does not end")

    with pytest.raises(Exception, match="this batch does not end"):
        with committing(spark, raise_errors=True) as listener:
            start(frame, location, batch_does=fail, availableNow=True).awaitTermination(60)
    assert listener.errors == []
    assert holds(group) == {(topic, 0): 6}
    with committing(spark, raise_errors=True):
        run(frame, location)
    assert holds(group) == {(topic, 0): 9}


def test_a_query_that_is_always_on_is_followed_while_it_runs(
    spark, stream, start, make_topic, produce, location, new_group, holds, wait_until
):
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 1})
    with committing(spark, raise_errors=True) as listener:
        query = start(stream(topic, **{OPTION: group}), location, processingTime="100 milliseconds")
        for total in (1, 3):
            wait_until(lambda: holds(group) == {(topic, 0): total, (topic, 1): 0})  # noqa: B023
            produce(topic, {0: 2})
        query.processAllAvailable()
        listener.flush()
        assert holds(group) == {(topic, 0): 5, (topic, 1): 0}
        query.stop()


def test_the_plans_and_the_newest_move_of_a_querys_checkpoint_are_known_in_the_driver(
    spark, stream, run, make_topic, produce, tmp_path
):
    # As of a run of Airflow, whose id has colons.
    topic, location = make_topic(1), tmp_path / "check point [1] 2026-01-01T00:00:00+00:00"
    produce(topic, {0: 3})
    query = ClassicQuery(run(stream(topic), str(location)))
    assert query.newest_move() == 0
    for number, name in enumerate(["0001-seek", "0002-restore", "0010-truncate"]):
        (location / "_kafka_offsets" / name).mkdir(parents=True)
        (location / "_kafka_offsets" / "readiness.json").touch()
        # Without a manifest the move never began.
        assert query.newest_move() == number
        (location / "_kafka_offsets" / name / "manifest.json").touch()
    assert query.newest_move() == 10
    text = (location / "offsets/0").read_text()
    plan = parse_offset_log(text, "offsets/0")
    assert (query.planned(0), query.planned(1)) == (plan, None)
    # Only an archive that has written batches shows other logs, only of this query, and only of its topics.
    for archive, query_id, after, moved in (
        ("0001-seek", query.query_id, "sha256", topic),
        ("0002-restore", "another", "sha256", topic),
        ("0003-seek", query.query_id, "sha256", "moved"),
        ("0010-truncate", query.query_id, None, topic),
    ):
        (location / "_kafka_offsets" / archive).mkdir(exist_ok=True)
        files = {"offsets/0": {"before": None, "after": after}}
        of_logs = {"cluster": "cluster-1", "topics": {moved: "id-1"}}
        manifest = {"query_id": query_id, "files": files, "logs": of_logs}
        (location / "_kafka_offsets" / archive / "manifest.json").write_text(json.dumps(manifest))
    topics = {topic, "moved", "other"}
    found = [(*since[:2], [*since.batches]) for since in query.since_moves(1, topics)]
    assert found == [
        *((LogIds("cluster-1", {name: "id-1"}), {name}, []) for name in ("moved", topic)),
        (LogIds(), {"other"}, [plan]),
    ]
    # An archive of an early version does not name its logs: it may have moved all topics.
    early = {"query_id": query.query_id, "files": {"offsets/0": {"before": None, "after": "sha256"}}}
    (location / "_kafka_offsets/0001-seek/manifest.json").write_text(json.dumps(early))
    assert [since[:2] for since in query.since_moves(1, topics)][1:] == [
        (LogIds(), {topic, "other"}),
        (LogIds(), set()),
    ]
    (location / "_kafka_offsets/0001-seek/manifest.json").unlink()
    assert [(*since[:2], [*since.batches]) for since in query.since_moves(1, {topic})][-1] == (
        LogIds(),
        {topic},
        [plan],
    )
    assert [*query.since_moves(0, {topic})[-1].batches] == []


def test_a_listener_that_was_added_by_hand_ends_by_itself_with_its_queries(
    spark, stream, run, make_topic, produce, location, new_group, holds, wait_until
):
    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "kafka-offset-committer"]

    topic, group = make_topic(1), new_group()
    produce(topic, {0: 3})
    listener = KafkaOffsetCommitterListener(spark)
    spark.streams.addListener(listener)
    run(stream(topic, **{OPTION: group}), location)
    wait_until(lambda: holds(group) == {(topic, 0): 3})
    wait_until(lambda: not threads())
    listener.stop()
    listener.stop()
    assert listener.errors == []


def test_a_group_that_follows_another_query_is_not_taken_over_unless_that_is_said(
    spark, stream, run, make_topic, produce, location, new_group, broker, says
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 3})
    broker.commit(group, {TopicPartition(topic, 0): 2}, CommitMetadata(query="another").text())
    frame = stream(topic, **{OPTION: group})
    with pytest.raises(PlanRefusedError, match="two queries in one group.*allow_new_query=True"):
        with committing(spark, raise_errors=True):
            run(frame, location)
    assert says(group, topic)["query"] == "another"
    with committing(spark, raise_errors=True, allow_new_query=True):
        query = run(frame, location)
    assert says(group, topic)["query"] == query.id


def test_named_sources_in_another_order(
    spark, bootstrap_servers, run, make_topic, produce, location, new_group, holds
):
    if not hasattr(spark.readStream, "name"):
        pytest.skip("sources have names since Spark 4.2")
    topics, groups = [make_topic(1), make_topic(1)], [new_group(), new_group()]
    settings = {
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        "spark.sql.streaming.offsetLog.formatVersion": "2",
    }

    def named(number):
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
        reader = reader.option("subscribe", topics[number]).option(OPTION, groups[number])
        return reader.option("startingOffsets", "earliest").name(f"source_{number}").load()

    produce(topics[0], {0: 1})
    produce(topics[1], {0: 2})
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        with committing(spark, raise_errors=True):
            run(named(0).union(named(1)), location)
            produce(topics[1], {0: 3})
            run(named(1).union(named(0)), location)
    finally:
        for key in settings:
            spark.conf.unset(key)
    assert [holds(group) for group in groups] == [{(topics[0], 0): 1}, {(topics[1], 0): 5}]


def test_spark_connect(
    connect, bootstrap_servers, make_topic, produce, location, new_group, holds, says, wait_until
):
    config = {"bootstrap.servers": bootstrap_servers}
    if connect.version.startswith("3."):
        with pytest.raises(SetupError, match="runs listeners on the server"):
            KafkaOffsetCommitterListener(connect, group_id="orders", config=config)
        return
    topic, group = make_topic(2), new_group()
    produce(topic, {0: 5})
    with pytest.raises(UsageError, match=r"Spark Connect.*give group_id=.*and config="):
        KafkaOffsetCommitterListener(connect, group_id=group)
    reader = connect.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
    frame = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    frame = frame.option("maxOffsetsPerTrigger", 2).load()
    with committing(connect, group_id={topic: group}, config=config, raise_errors=True) as listener:
        writer = frame.writeStream.format("noop").option("checkpointLocation", location)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
    assert holds(group) == {(topic, 0): 5, (topic, 1): 0}
    assert says(group, topic)["query"] == query.id
    assert listener.counts.failed == 0
    # A run with nothing new commits again.
    again = new_group()
    with committing(connect, group_id=again, config=config, raise_errors=True):
        query = writer.trigger(processingTime="0 seconds").start()
        wait_until(lambda: query.lastProgress)
        query.stop()
    assert holds(again) == holds(group)
