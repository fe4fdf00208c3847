"""A table is audited: each loss, each double and each foreign row fails the task, and nothing else does."""

import json
import sys
import uuid
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from deadlines import until

from airflow_kafka_offsets.errors import BrokerUnavailableError
from airflow_kafka_offsets.local.broker_config import LOOPBACK, free_port
from airflow_kafka_offsets.model.certificate import Certificate
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.offsets import TopicPartition
from airflow_kafka_offsets.model.place import Place
from airflow_kafka_offsets.operators.audit_window import AuditWindowOperator
from airflow_kafka_offsets.readings.window import plan_window

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def lake(postgres, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(postgres.airflow_connection))


@pytest.fixture
def table(postgres):
    """A table for records, with its methods add(topic, {partition: offsets}, run_id) and run(statement)."""
    engine = sa.create_engine(postgres.url)
    name = f"events_{uuid.uuid4().hex[:12]}"

    def run(statement):
        with engine.begin() as connection:
            connection.execute(sa.text(statement.format(name)))

    def add(topic, offsets, run_id="this"):
        rows = [f"('{topic}', {tp}, {offset}, '{run_id}')" for tp, its in offsets.items() for offset in its]
        run(f"INSERT INTO {{}} VALUES {', '.join(rows)}")

    run('CREATE TABLE {} (topic TEXT, partition INTEGER, "offset" BIGINT, run_id TEXT)')
    yield SimpleNamespace(name=name, add=add, run=run)
    run("DROP TABLE {}")
    engine.dispose()


def window_of(client, topic, **parameters):
    """The window of all that is in a topic, as its plan returns it."""
    window = plan_window(
        client,
        GroupSelection.parse(None, topic, required=False),
        Place.parse("earliest", "start"),
        Place.parse("latest", "end"),
        now=datetime.now(tz=timezone.utc),
        **parameters,
    )
    return window.as_json()


@pytest.fixture
def window(broker, topic):
    return window_of(broker, topic)


@pytest.fixture
def audit(table, context):
    """audit(window, ...) -> the certificate; audit.refused(window, ...) -> error and certificate in XCom."""

    def task(window, **parameters):
        names = {"task_id": "audit", "conn_id": "lake", "table": table.name}
        return AuditWindowOperator(window=window, **{**names, **parameters})

    def run(window, **parameters):
        result = task(window, **parameters).execute(context)
        assert context["ti"].xcoms["return_value"] == result
        assert Certificate.parse(json.dumps(result)).verdict == result["verdict"]
        return result

    def refused(window, kind=AirflowFailException, **parameters):
        with pytest.raises(kind) as error:
            task(window, **parameters).execute(context)
        return str(error.value), context["ti"].xcoms.get("return_value")

    return SimpleNamespace(run=run, refused=refused, task=task)


def counted(certificate):
    return {name: count for name, count in certificate["counts"].items() if count}


def ended(broker, partition, end):
    """Wait until no transaction is open before an offset, which is the log end."""

    def stable():
        return broker.log_ranges([partition], isolation_level="read_committed")[partition].end

    until(lambda: stable() == end, f"{partition} to end at {end}")


def test_a_complete_table_is_certified_without_asking_kafka(audit, table, topic, window, connect):
    table.add(topic, {0: range(10), 1: range(6)})
    connect(f"{LOOPBACK}:{free_port()}")
    found = audit.run(window)
    assert found["verdict"] == "complete"
    assert counted(found) == {"offsets": 16, "rows": 16}
    assert found["window"]["end"] == {topic: {"0": 10, "1": 6}}
    assert found["window"]["logs"] == window["source"]["logs"]
    assert found["audited"]["table"] == table.name


def test_a_lost_record_fails_the_task_and_its_certificate_is_kept(audit, table, topic, window):
    table.add(topic, {0: [*range(3), *range(5, 10)], 1: range(6)})
    error, found = audit.refused(window)
    said = f"{table.name} is incomplete: 2 records lost ({topic}-0: offsets 3 to 4); read the window again"
    assert said in error
    assert found["verdict"] == "incomplete"
    assert counted(found) == {"offsets": 16, "rows": 14, "lost": 2}
    assert found["lost"] == {topic: {"0": [[3, 5]]}}


def test_rows_of_other_windows_may_be_in_the_table_and_not_in_the_selection(audit, table, topic, window):
    before = window | {"start": {topic: {"0": 4, "1": 0}}, "committed": {topic: {"0": 4, "1": 0}}}
    table.add(topic, {0: range(4)}, "another")
    table.add(topic, {0: range(4, 10), 1: range(6)})
    assert audit.run(before)["verdict"] == "complete"
    assert audit.run(before, where={"run_id": "this"})["verdict"] == "complete"
    table.add(topic, {0: [3]})
    error, found = audit.refused(before, where={"run_id": "this"})
    assert f"1 row from outside the window ({topic}-0: offset 3)" in error
    assert found["foreign"] == [{"topic": topic, "partition": 0, "first": 3, "last": 3, "rows": 1}]


def test_markers_and_aborted_records_are_no_loss(
    audit, table, make_topic, send_in_transaction, produce, broker
):
    partition = TopicPartition(make_topic(1), 0)
    for number in range(20):
        send_in_transaction(partition, 1_700_000_000_000, abort=number % 3 == 0)
    # The broker writes a marker some time after it has confirmed the end of a transaction.
    ended(broker, partition, 40)
    produce(partition.topic, {0: 5})
    send_in_transaction(partition, 1_700_000_000_000, abort=True)
    ended(broker, partition, 47)
    window = window_of(broker, partition.topic)
    committed = [*(2 * number for number in range(20) if number % 3), *range(40, 45)]
    table.add(partition.topic, {0: committed})
    found = audit.run(window)
    assert counted(found) == {"offsets": 47, "rows": 18, "without_record": 29}
    table.run('DELETE FROM {} WHERE "offset" = 8')
    error, found = audit.refused(window)
    assert counted(found) == {"offsets": 47, "rows": 17, "lost": 1, "without_record": 29}
    assert f"1 record lost ({partition}: offset 8)" in error


@pytest.mark.usefixtures("kafka")
def test_a_compacted_topic_has_lost_nothing(audit, table, make_topic, produce, broker, bootstrap_servers):
    compacting = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    topic = make_topic(1, config=compacting)
    same = {"value": b"x", "key": b"same", "partition": 0}
    produce(topic, [same for _ in range(20)])

    def offsets():
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "log_level": 0}
        consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
        consumer.assign([ClientPartition(topic, 0, 0)])
        found = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            found.append(message.offset())
        consumer.close()
        return found

    def compacted():
        produce(topic, [same])
        return len(offsets()) < 10

    until(compacted)
    window = window_of(broker, topic)
    # What a job has read now; more may be compacted away meanwhile.
    held = [offset for offset in offsets() if offset < window["end"][topic]["0"]]
    table.add(topic, {0: held})
    found = audit.run(window)
    assert counted(found) == {
        "offsets": window["records"],
        "rows": len(held),
        "without_record": window["records"] - len(held),
    }


def test_what_retention_has_deleted_cannot_be_said(audit, table, topic, window, delete_records):
    table.add(topic, {0: range(3, 10), 1: range(6)})
    delete_records(topic, {0: 2})
    error, found = audit.refused(window)
    assert "1 record lost" in error
    assert counted(found) == {"offsets": 16, "rows": 13, "lost": 1, "undecided": 2}
    delete_records(topic, {0: 5})
    error, found = audit.refused(window)
    assert f"cannot decide whether a record is lost at {topic}-0: offsets 0 to 2: retention" in error
    assert found["verdict"] == "undecided"
    assert found["undecided"] == {"retention": {topic: {"0": [[0, 3]]}}}
    assert audit.run(window, on_undecided="warn")["verdict"] == "undecided"


def test_the_records_of_an_open_transaction_cannot_be_said(audit, table, topic, broker, bootstrap_servers):
    settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": f"open-{topic}", "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(20) == 0
    window = window_of(broker, topic)
    table.add(topic, {0: range(9), 1: range(6)})
    error, found = audit.refused(window)
    assert found["undecided"] == {"open_transaction": {topic: {"0": [[10, 11]]}}}
    assert "1 record lost" in error
    assert "a transaction is still open there: audit again after it has ended" in error
    producer.commit_transaction(20)
    ended(broker, TopicPartition(topic, 0), 12)
    _, found = audit.refused(window)
    assert counted(found) == {"offsets": 17, "rows": 15, "lost": 2}


def test_a_broker_that_does_not_answer_is_tried_again_and_leaves_a_certificate(
    audit, table, topic, window, connect, monkeypatch
):
    table.add(topic, {0: range(9), 1: range(6)})
    connect(f"{LOOPBACK}:{free_port()}")
    monkeypatch.setattr(AuditWindowOperator, "calls_timeout", 1.0)
    error, found = audit.refused(window, BrokerUnavailableError)
    assert found["undecided"] == {"not_read": {topic: {"0": [[9, 10]]}}}
    assert found["problems"] == [error]


def test_topics_select_a_part_of_the_window(audit, table, topic, make_topic, produce, broker):
    other = make_topic(1)
    produce(other, {0: 3})
    both = window_of(broker, [topic, other])
    table.add(topic, {0: range(10), 1: range(6)})
    assert audit.run(both, topics=topic)["counts"]["offsets"] == 16
    # Rows of the window's other topics are not foreign.
    table.add(other, {0: range(3)})
    assert audit.run(both, topics=topic, where={"run_id": "this"})["verdict"] == "complete"
    table.run("DELETE FROM {} WHERE topic = '" + other + "'")
    assert audit.run(both, topics=[topic], topic_column=None)["verdict"] == "complete"
    assert counted(audit.refused(both)[1])["lost"] == 3
    assert counted(audit.run(both, topics=f"{topic}:1")) == {"offsets": 6, "rows": 6}
    error, _ = audit.refused(both, topics="oders")
    assert "topics names 'oders', which the window does not have" in error


def test_templates_are_rendered(audit, table, topic, window, context):
    table.add(topic, {0: range(10), 1: range(6)})
    with DAG("d"):
        where = {"run_id": "{{ 'th' + 'is' }}"}
        task = audit.task("{{ the_window | tojson }}", table="{{ it }}", where=where)
    values: Any = {"the_window": window, "it": table.name}
    task.render_template_fields(values)
    assert task.execute(context)["audited"]["where"] == {"run_id": "this"}


def test_the_certificate_is_saved_also_of_a_table_that_is_not_complete(audit, table, topic, window, tmp_path):
    table.add(topic, {0: range(10), 1: range(6)})
    file = tmp_path / "new" / "certificate.json"
    found = audit.run(window, save_to=f"file://{file}")
    assert json.loads(file.read_text()) == found
    table.run('DELETE FROM {} WHERE "offset" = 3 AND partition = 0')
    _, found = audit.refused(window, save_to=str(file))
    assert json.loads(file.read_text()) == found
    assert Certificate.parse(file.read_text()).verdict == "incomplete"


def test_no_other_file_is_overwritten_by_a_certificate(audit, table, topic, window, tmp_path):
    table.add(topic, {0: range(10), 1: range(6)})
    file = tmp_path / "certificate.json"
    audit.run(window, save_to=str(file))
    another = window | {"source": window["source"] | {"run_id": "manual__another"}}
    for kept, says in (
        (file.read_text(), "contains the certificate of another audit"),
        ("notes", "certificate.json: a text of 5 characters is not JSON"),
    ):
        file.write_text(kept)
        error, _ = audit.refused(another, save_to=str(file))
        assert says in error
        assert file.read_text() == kept


def test_audits_of_one_run_do_not_overwrite_each_others_certificates(
    audit, broker, table, make_topic, produce, tmp_path
):
    topic, other = make_topic(1), make_topic(1)
    for each in (topic, other):
        produce(each, {0: 3})
        table.add(each, {0: range(3)})
    table.run("CREATE VIEW {0}_view AS SELECT * FROM {0}")
    both, file = window_of(broker, [topic, other]), tmp_path / "certificate.json"
    try:
        audit.run(both, topics=topic, save_to=str(file))
        kept = file.read_text()
        for parts in ({"topics": other}, {"topics": topic, "table": f"{table.name}_view"}):
            error, _ = audit.refused(both, save_to=str(file), **parts)
            assert f"another audit (table {table.name} of lake, topics {topic}," in error
        assert file.read_text() == kept
        audit.run(both, topics=topic, save_to=str(file))
    finally:
        table.run("DROP VIEW {}_view")


def test_a_window_may_be_in_a_file(audit, table, topic, window, tmp_path):
    table.add(topic, {0: range(10), 1: range(6)})
    file = tmp_path / "window.json"
    file.write_text(json.dumps(window))
    assert audit.run(str(file))["verdict"] == "complete"
    file.unlink()
    error, _ = audit.refused(str(file))
    assert "the file does not exist" in error


def test_the_error_says_how_to_read_the_window_again(audit, table, topic, window):
    table.add(topic, {0: range(9), 1: range(6)})
    window["source"]["run_id"] = "scheduled__1"
    # A window in a file may be of a run of another DAG.
    context: Any = {"dag_run": SimpleNamespace(run_id="scheduled__2")}
    with pytest.raises(AirflowFailException) as error:
        audit.task(window).execute(context)
    assert str(error.value).endswith(
        f"1 record lost ({topic}-0: offset 9); read the window again: clear its job in run 'scheduled__1' "
        "with the tasks after it. If the job does not replace the rows that it wrote before, first delete "
        "them"
    )


@pytest.mark.parametrize("missing", ["sqlalchemy", "airflow_kafka_offsets.readings.table_rows"])
def test_without_the_extra_the_error_names_it(audit, window, monkeypatch, missing):
    for name in [name for name in sys.modules if name == missing or name.endswith("readings.table_rows")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    error, _ = audit.refused(window)
    assert "pip install 'airflow-kafka-offsets[sql]'" in error
