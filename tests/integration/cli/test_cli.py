"""Commands against a real broker; what they refuse before they ask it is in ``tests/unit/cli``."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "airflow_kafka_offsets.cli"]


@pytest.fixture
def group(topic, new_group, commit):
    """A group that has read 7 of 10 records of one partition, and nothing of the other."""
    name = new_group()
    commit(name, topic, {0: 7})
    return name


@pytest.fixture
def rows(kafka_tools, group):
    """rows() -> what Kafka's own tool says of the group."""
    return lambda: kafka_tools.describe_rows(group)


def test_group_lag_shows_the_headroom_in_words_and_as_json_in_seconds(do, value, topic):
    done = do("group lag GROUP --headroom")
    assert done.code == 0, done.err
    lines = [line.split(maxsplit=5) for line in done.out.splitlines()]
    assert lines[1][-1] == "HEADROOM"
    assert lines[2][:2] == [topic, "0"]
    assert lines[2][-1].startswith(("6 d 23 h", "7 d"))
    assert lines[3][-1] == "-"  # without a commit nothing is counted
    found = value("group lag GROUP --headroom")
    first, second = found["partitions"]
    assert 6 * 86_400 < found["headroom"] == first["headroom"] <= 7 * 86_400
    assert found["headroom_state"] == first["headroom_state"] == "time"
    assert first["headroom_reason"] is second["headroom"] is second["headroom_state"] is None


def test_the_lag_of_all_groups_is_that_of_each_and_of_kafkas_own_describe(do, value, group, rows):
    # The exit status is also that of other tests' groups, of which some are beyond their log ends.
    all_groups = json.loads(do("group lag --all-groups --output json").out)["groups"]
    found = {each["group_id"]: each for each in all_groups}
    assert {"version": 1, **found[group]} == value("group lag GROUP")
    assert set(found) <= {each["group_id"] for each in value("group list")["groups"]} | {group}
    theirs = sum(row["lag"] or 0 for row in rows())
    (line,) = [line for line in do("group lag --all-groups").out.splitlines() if group in line]
    assert line.split() == [group, "2", str(theirs), "3", "0"]


def test_doctor_checks_machine_and_broker(do, value):
    checks = [check["name"] for check in value("doctor")["checks"]]
    assert any("java" in name.lower() for name in checks)
    assert any("retention" in name for name in checks)
    bad = do("doctor --package org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3")
    assert (bad.code, "spark-sql-kafka-0-10_2.13:4.2.0" in bad.out) == (1, True)


def test_what_a_reset_overwrites_is_saved_and_kafkas_tool_puts_it_back(
    do, group, rows, kafka_tools, tmp_path
):
    saved = tmp_path / "before.csv"
    assert do(f"group reset GROUP --all-topics --shift-by -5 --execute --save {saved}").code == 0
    assert [row["current_offset"] for row in rows()] == [2]
    flags = ("--from-file", str(saved), "--execute")
    assert not kafka_tools.consumer_groups("--reset-offsets", "--group", group, *flags).error
    assert [row["current_offset"] for row in rows()] == [7]


def test_a_group_is_deleted_only_with_execute(do, group, topic, rows, kafka_tools):
    before = rows()
    shown = do("group delete GROUP")
    assert (shown.code, "Nothing was changed: give --execute" in shown.err) == (0, True)
    assert [topic, "0", "7", "10", "3"] in [line.split() for line in shown.out.splitlines()]
    assert f"Empty group {group}: total lag 3" in shown.out
    assert rows() == before
    done = do("group delete GROUP --execute")
    assert (done.code, done.out.splitlines()[-1]) == (0, f"{group}: deleted")
    assert group not in kafka_tools.consumer_groups("--list").stdout


def test_a_group_without_commits_is_deleted(value, group, topic, kafka_tools):
    kafka_tools.consumer_groups("--delete-offsets", "--group", group, "--topic", topic)
    (deleted,) = value("group delete GROUP --execute")["groups"]
    assert (deleted["deleted"], deleted["before"]) == (True, {})
    assert group not in kafka_tools.consumer_groups("--list").stdout


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_a_lag_is_watched_as_lines_of_json_until_ctrl_c(topic, group, commit):
    command = [*COMMAND, "group", "lag", group, "--watch", "0.2s", "--output", "json"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    try:
        first = json.loads(watching.stdout.readline())
        commit(group, topic, {0: 10})
        deadline = time.monotonic() + 30
        while json.loads(watching.stdout.readline())["total_lag"]:
            assert time.monotonic() < deadline
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=30)
    finally:
        watching.kill()
    assert (first["total_lag"], first["group_id"], first["at"][-1]) == (3, group, "Z")
    assert (watching.returncode, errors) == (0, "")


def test_broker_and_storage_may_be_airflow_connections(bootstrap_servers, group, query):
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers, "sasl.password": "abc"}}
    connections = {"AIRFLOW_CONN_CLUSTER": json.dumps(kafka), "AIRFLOW_CONN_LAKE": '{"conn_type": "fs"}'}
    command = [*COMMAND, "drift", f"file://{query.location}", group]
    command += ["--kafka-config-id", "cluster", "--checkpoint-conn-id", "lake", "--output", "json"]
    done = subprocess.run(
        command, env=os.environ | connections, capture_output=True, text=True, timeout=90, check=False
    )
    assert "Error" not in done.stderr
    (report,) = json.loads(done.stdout)["groups"]
    assert (report["group_id"], report["batch_id"]) == (group, 1)


def run_on_a_full_disk(*arguments):
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    with Path("/dev/full").open("w") as full:
        return subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=90, check=False
        )


@pytest.mark.parametrize("output", [None, "table", "json"])
def test_an_output_that_takes_no_more_is_exit_1_and_a_sentence(group, output):
    done = run_on_a_full_disk(*(["group", "lag", group, "--output", output] if output else ["--help"]))
    error = "Error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, error)


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize("there", [True, False])
def test_a_drift_check_whose_output_cannot_be_written_is_not_taken_for_drift(group, query, output, there):
    location = query.location if there else f"{query.location}-missing"
    done = run_on_a_full_disk("drift", location, group, "--output", output)
    assert (done.returncode, "expected the directory" in done.stderr) == (3, not there)
    if there or output == "json":
        assert done.stderr.endswith("Error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (["reset", "--all-topics", "--shift-by", "-1"], "the offsets were moved"),
        (["delete"], "groups were deleted"),
    ],
)
def test_a_change_says_that_it_was_made_when_nobody_reads_its_output_any_more(group, command, outcome):
    verb, *options = command
    line = [*COMMAND, "group", verb, group, *options, "--execute"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
        assert done.stdout
        assert done.stderr
        # The plan is one write, so the pipe is closed before the next one.
        done.stdout.readline()
        done.stdout.close()
        error = done.stderr.read()
    assert done.returncode == 1
    assert error.endswith(f"Error: the output cannot be written: Broken pipe; {outcome}\n")


def test_a_plan_that_cannot_be_written_is_not_applied(group, broker):
    before = broker.committed_everywhere(group)
    done = run_on_a_full_disk("group", "reset", group, "--all-topics", "--shift-by", "-1", "--execute")
    assert done.returncode == 1
    assert done.stderr.endswith("No space left on device; nothing was changed\n")
    assert broker.committed_everywhere(group) == before


def test_a_move_whose_receipt_cannot_be_written_says_that_it_was_made(group, topic, broker):
    reset = ("group", "reset", group, "--topic", f"{topic}:0", "--to-offset", "3", "--execute")
    done = run_on_a_full_disk(*reset, "--output", "json")
    assert done.returncode == 1
    assert done.stderr.endswith("No space left on device; the offsets were moved\n")
    assert broker.committed_everywhere(group)[TopicPartition(topic, 0)].offset == 3
