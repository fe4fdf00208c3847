"""
The failover demo: a DAG runs two days on one Kafka, which is then killed, and the third day on its mirror.

MirrorMaker 2 copies the first Kafka to the second. The offsets on both differ, because the first Kafka has
deleted records before the mirror started.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import click
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.local.demo import (
    FIRST_DAY,
    GROUP,
    check_machine,
    copy_dags,
    demo_directory,
    demo_environment,
    describe_demo_group,
    find_dag,
    migrate_airflow,
    run_days,
)
from airflow_kafka_offsets.local.kafka import EmbeddedKafka
from airflow_kafka_offsets.local.mirror_maker import MirrorMaker, mirror_settings
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.table import align_rows

TOPIC = "flights"
PARTITIONS = 3
OLD_RECORDS = 1_000
"""Records of each partition that the first Kafka deletes before the first day."""
PIPELINE = 'checkpoint_location=f"{HOME}/checkpoint",'
MIRROR = "mirror={'kafka_config_id':'kafka_standby'},"
"""The line that the demo adds to the DAG's pipeline."""


def run_fail_over_demo(directory: Path | None) -> bool:
    """Run the demo in a directory, by default a new one; return whether all results agree."""
    home = demo_directory(directory)
    check_machine()
    with EmbeddedKafka(home / "primary") as primary, EmbeddedKafka(home / "standby") as standby:
        began = time.monotonic()
        _delete_old_records(primary.bootstrap_servers)
        settings = mirror_settings(primary.bootstrap_servers, standby.bootstrap_servers, [TOPIC])
        with MirrorMaker(home, settings) as mirror:
            click.echo("MirrorMaker 2 copies the primary to the standby")
            dag_file = _mirrored_dag(home)
            environment = _environment(home, dag_file.parent, primary, standby)
            migrate_airflow(environment, home)
            run_days(environment, home, dag_file, range(2))
            _wait_for_mirror(mirror, primary, standby)
            click.echo("The primary is killed (SIGKILL), and MirrorMaker with it")
            for broker in primary.brokers.values():
                broker.signal(signal.SIGKILL)
            mirror.kill()
        translated = _fail_over(home, primary.bootstrap_servers, standby.bootstrap_servers)
        # Without the mirror, and with the connection that leads to the standby.
        plain = find_dag()
        run_days(_environment(home, plain.parent, standby, standby), home, plain, range(2, 3))
        agrees = _report(home, standby.bootstrap_servers, translated)
        click.echo(f"It took {time.monotonic() - began:.0f} s")
        return agrees


def _delete_old_records(servers: str) -> None:
    """Create the topic, with records that are deleted before the mirror starts."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    new = NewTopic(TOPIC, num_partitions=PARTITIONS, config={"retention.ms": "-1"})
    admin.create_topics([new])[TOPIC].result(60)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(PARTITIONS * OLD_RECORDS):
        producer.produce(TOPIC, b"{}", partition=number % PARTITIONS)
    producer.flush(60)
    gone = [ClientPartition(TOPIC, number, OLD_RECORDS) for number in range(PARTITIONS)]
    for done in admin.delete_records(gone).values():
        done.result(60)


def _mirrored_dag(home: Path) -> Path:
    """Copy the DAG, and add the mirror to its pipeline."""
    dag_file = copy_dags(find_dag(), home / "dags")
    text = dag_file.read_text(encoding="utf-8")
    if PIPELINE not in text:
        raise SetupError(f"{dag_file}: found no line {PIPELINE}; the demo adds a mirror after this line")
    dag_file.write_text(text.replace(PIPELINE, f"{PIPELINE}\n    {MIRROR}"), encoding="utf-8")
    return dag_file


def _environment(home: Path, dags: Path, kafka: EmbeddedKafka, standby: EmbeddedKafka) -> Mapping[str, str]:
    environment = demo_environment(home, dags, kafka.bootstrap_servers)
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": standby.bootstrap_servers}}
    return {**environment, "AIRFLOW_CONN_KAFKA_STANDBY": json.dumps(connection)}


def _wait_for_mirror(mirror: MirrorMaker, primary: EmbeddedKafka, standby: EmbeddedKafka) -> None:
    """Wait until the mirror has every record of the two days."""
    wanted = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    with (
        OffsetsClient({"bootstrap.servers": primary.bootstrap_servers}) as left,
        OffsetsClient({"bootstrap.servers": standby.bootstrap_servers}) as entered,
    ):

        def caught_up() -> bool:
            if TOPIC not in entered.partitions([TOPIC]):
                return False
            ends = {tp: each.end - OLD_RECORDS for tp, each in left.log_ranges(wanted).items()}
            return ends == {tp: each.end for tp, each in entered.log_ranges(wanted).items()}

        mirror.wait(caught_up, "the mirror to catch up")


def _fail_over(home: Path, primary: str, standby: str) -> dict[str, object]:
    """Fail over with a command, which is shown; return the translation of the position."""
    checkpoint = home / "flights" / "checkpoint"
    command = [
        *("failover", "apply", str(checkpoint), GROUP),
        *("--bootstrap-server", primary, "--to-bootstrap-server", standby),
    ]
    click.echo(f"$ airflow-kafka-offsets {' '.join(command)}")
    done = subprocess.run(
        [sys.executable, "-m", "airflow_kafka_offsets.cli", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    click.echo("\n".join(filter(None, [done.stderr.rstrip(), done.stdout.rstrip()])))
    if done.returncode:
        raise SetupError(f"the failover ended with status {done.returncode}")
    archive = checkpoint / "_kafka_offsets" / "0001-failover" / "failover.json"
    translated: dict[str, object] = json.loads(archive.read_text(encoding="utf-8"))
    return translated


def _report(home: Path, servers: str, translated: Mapping[str, object]) -> bool:
    import pyarrow.parquet as pq

    output = home / "flights" / "output"
    rows = [("DAY", "KAFKA", "FLIGHTS LEFT", "IN THE TABLE", "EACH ONCE", "READ AGAIN")]
    agrees, again = True, 0
    for number in range(3):
        day = (FIRST_DAY + timedelta(days=number)).isoformat()
        published = json.loads((output / "published" / f"{day}.json").read_text(encoding="utf-8"))["rows"]
        table = pq.read_table(output / "flights" / f"day={day}" / "flights.parquet", partitioning=None)
        there, once = table.num_rows, len(set(table.column("id").to_pylist()))
        again += there - once
        agrees = agrees and published == there == once > 0
        kafka = "primary" if number < 2 else "standby"
        rows.append((day, kafka, str(published), str(there), str(once), str(there - once)))
    described, committed, lag = describe_demo_group(servers)
    agrees = agrees and lag == 0 < committed
    click.echo("\n".join(align_rows(rows)))
    click.echo(f"kafka-consumer-groups --describe, on the standby, prints:{described}")
    promised = f"the plan said at most {translated.get('again')}"
    click.echo(
        f"{'Everything agrees: each flight is in the table once' if agrees else 'Something does not agree'}, "
        f"{again} records were read again ({promised}), lag {lag} on the standby."
    )
    return agrees
