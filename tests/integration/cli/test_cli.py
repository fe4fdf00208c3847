from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line_words import words_of_dags

from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = pytest.mark.integration

RECORDED = Path(__file__).parents[2] / "checkpoints"


@pytest.fixture
def cli(bootstrap_servers):
    """Runs the command line as a user does, in a process of its own."""

    def run(*arguments, broker=True):
        command = [sys.executable, "-m", "airflow_kafka_offsets.cli", *arguments]
        command += ["--bootstrap-server", bootstrap_servers] if broker else []
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert not words_of_dags(done.stderr, keys="--pipelines" in arguments), done.stderr
        assert done.stdout.startswith("{") or not words_of_dags(done.stdout), done.stdout
        return done

    return run


@pytest.fixture
def group(make_topic, produce, new_group, bootstrap_servers):
    """A group that has read 7 of 10 records of one partition, and nothing of the other."""
    topic, name = make_topic(2), new_group()
    produce(topic, {0: 10, 1: 4})
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        client.commit(name, {TopicPartition(topic, 0): 7})
    return name, topic


def test_checkpoint_show_as_json():
    command = [sys.executable, "-m", "airflow_kafka_offsets.cli", "checkpoint", "show", "--output", "json"]
    location = RECORDED / "spark-4.2.0-named-sources-v2" / "checkpoint"
    done = subprocess.run([*command, str(location)], capture_output=True, text=True, timeout=60, check=True)
    shown = json.loads(done.stdout)
    assert shown["batch_id"] == 0
    assert shown["pending_batch_id"] is None
    assert shown["query_id"]
    assert shown["sources"] == [
        {"source": "orders", "kafka": True, "offsets": {"sp_nm42_a": {"0": 10, "1": 10, "2": 10}}},
        {"source": "pay_2", "kafka": True, "offsets": {"sp_nm42_b": {"0": 15, "1": 15}}},
        {"source": "rt", "kafka": False, "offsets": None},
    ]


def test_checkpoint_show_as_a_table(cli):
    done = cli(
        "checkpoint", "show", str(RECORDED / "spark-4.0.0-uncommitted-last" / "checkpoint"), broker=False
    )
    assert done.returncode == 0
    assert "pending  none" not in done.stdout
    assert "SOURCE" in done.stdout


def test_a_location_without_a_checkpoint_is_exit_1_and_a_sentence(cli, tmp_path):
    done = cli("checkpoint", "show", str(tmp_path), broker=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_group_lag_has_stable_keys_and_null_for_no_commit(cli, group):
    name, topic = group
    done = cli("group", "lag", name, "--output", "json")
    assert json.loads(done.stdout) == {
        "version": 1,
        "group_id": name,
        "total_lag": 3,
        "max_partition_lag": 3,
        "lost": 0,
        "topics": {topic: 3},
        "partitions": [
            {
                "topic": topic,
                "partition": 0,
                "committed": 7,
                "log_start": 0,
                "log_end": 10,
                "lag": 3,
                "lost": 0,
            },
            {
                "topic": topic,
                "partition": 1,
                "committed": None,
                "log_start": 0,
                "log_end": 4,
                "lag": None,
                "lost": 0,
            },
        ],
    }


def test_group_lag_shows_the_headroom_in_words_and_as_json_in_seconds(cli, group):
    name, topic = group
    done = cli("group", "lag", name, "--headroom")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=5) for line in done.stdout.splitlines()]
    assert lines[1][-1] == "HEADROOM"
    assert lines[2][:2] == [topic, "0"]
    assert lines[2][-1].startswith(("6 d 23 h", "7 d"))
    assert lines[3][-1] == "-"  # without a commit nothing is counted
    value = json.loads(cli("group", "lag", name, "--headroom", "--output", "json").stdout)
    first, second = value["partitions"]
    assert 6 * 86_400 < value["headroom"] == first["headroom"] <= 7 * 86_400
    assert (value["headroom_state"], first["headroom_state"], first["headroom_reason"]) == (
        "time",
        "time",
        None,
    )
    assert (second["headroom"], second["headroom_state"]) == (None, None)


def test_group_lag_agrees_with_kafkas_own_describe(cli, group, kafka_tools):
    name, _ = group
    ours = json.loads(cli("group", "lag", name, "--output", "json").stdout)["partitions"]
    committed = [entry for entry in ours if entry["committed"] is not None]
    theirs = kafka_tools.describe_rows(name)
    assert [(e["topic"], e["partition"], e["committed"], e["log_end"], e["lag"]) for e in committed] == [
        (r["topic"], r["partition"], r["current_offset"], r["log_end_offset"], r["lag"]) for r in theirs
    ]


def test_the_lag_of_all_groups_is_that_of_each_and_of_kafkas_own_describe(cli, group, kafka_tools):
    name, _ = group
    done = cli("group", "lag", "--all-groups", "--output", "json")
    found = {each["group_id"]: each for each in json.loads(done.stdout)["groups"]}
    alone = json.loads(cli("group", "lag", name, "--output", "json").stdout)
    del alone["version"]
    assert found[name] == alone
    listed = {
        each["group_id"] for each in json.loads(cli("group", "list", "--output", "json").stdout)["groups"]
    }
    assert set(found) >= {name}
    assert set(found) <= listed | {name}
    theirs = sum(row["lag"] or 0 for row in kafka_tools.describe_rows(name))
    (line,) = [line for line in cli("group", "lag", "--all-groups").stdout.splitlines() if name in line]
    assert line.split() == [name, "2", str(theirs), "3", "0"]


def test_the_lag_of_several_groups_is_a_line_for_each_and_one_without_commits_an_error(cli, group):
    name, _ = group
    done = cli("group", "lag", name, "nobody-ever")
    assert done.returncode == 1
    assert [name, "2", "3", "3", "0"] in [line.split() for line in done.stdout.splitlines()]
    assert "nobody-ever: group 'nobody-ever' has no committed offsets on this broker" in done.stdout
    assert "name --topic to read" in done.stdout
    value = json.loads(cli("group", "lag", name, "nobody-ever", "--output", "json").stdout)
    assert [(each["group_id"], each.get("total_lag")) for each in value["groups"]] == [
        (name, 3),
        ("nobody-ever", None),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give the GROUP to measure, several groups, or --all-groups"),
        (["g", "--all-groups"], "give the GROUP to measure, several groups, or --all-groups"),
        (["--all-groups", "--topic", "orders"], "--topic would be ignored with several groups"),
        (["--all-groups", "--headroom"], "--headroom would be ignored with several groups"),
    ],
)
def test_group_lag_wants_groups_or_all(cli, arguments, says):
    done = cli("group", "lag", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_group_lag_of_an_unknown_group_is_exit_1(cli):
    done = cli("group", "lag", "nobody-ever")
    assert done.returncode == 1
    assert "has no committed offsets on this broker" in done.stderr


def test_group_list_and_describe(cli, group):
    name, _ = group
    listed = json.loads(cli("group", "list", "--output", "json").stdout)["groups"]
    assert {"group_id": name, "state": "Empty", "type": "classic"} in listed
    (described,) = json.loads(cli("group", "describe", name, "--output", "json").stdout)["groups"]
    assert (described["state"], described["members"]) == ("Empty", [])
    (missing,) = json.loads(cli("group", "describe", "nobody-ever", "--output", "json").stdout)["groups"]
    assert missing["state"] == "Dead"


def test_the_broker_may_be_named_in_a_file_of_properties(cli, group, tmp_path, bootstrap_servers):
    name, _ = group
    file = tmp_path / "client.properties"
    file.write_text(f"# ours\nbootstrap.servers={bootstrap_servers}\nclient.id=look\n")
    done = cli("group", "lag", name, "--command-config", str(file), broker=False)
    assert done.returncode == 0
    assert "total lag 3" in done.stdout


@pytest.mark.parametrize("arguments", [["group", "lag", "g"], ["group"], ["group", "lag"], ["nonsense"]])
def test_usage_errors_are_exit_2(cli, arguments):
    assert cli(*arguments, broker=False).returncode == 2


def test_a_dead_broker_is_exit_1_within_the_time_given(cli):
    done = cli("group", "lag", "g", "--bootstrap-server", "127.0.0.1:1", "--timeout", "3", broker=False)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_doctor_checks_machine_and_broker(cli):
    done = cli("doctor", "--output", "json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert any("java" in name.lower() for name in checks)
    assert any("retention" in name for name in checks)
    bad = cli("doctor", "--package", "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3", broker=False)
    assert bad.returncode == 1
    assert "spark-sql-kafka-0-10_2.13:4.2.0" in bad.stdout


def test_a_reset_without_execute_shows_the_plan_and_changes_nothing(cli, group, kafka_tools):
    name, topic = group
    before = kafka_tools.describe_rows(name)
    done = cli("group", "reset", name, "--topic", f"{topic}:0", "--to-latest")
    assert done.returncode == 0
    assert "Nothing was changed" in done.stderr
    assert [topic, "0", "7", "10", "+3", "0", "10"] in [line.split()[:7] for line in done.stdout.splitlines()]
    assert kafka_tools.describe_rows(name) == before


def test_a_plan_is_exported_as_kafkas_tool_exports_it(cli, group, kafka_tools):
    name, topic = group
    flags = ("--topic", topic, "--to-earliest", "--dry-run", "--export")
    ours = cli("group", "reset", name, *flags).stdout
    theirs = kafka_tools.consumer_groups("--reset-offsets", "--group", name, *flags).stdout
    assert sorted(ours.split()) == sorted(line for line in theirs.split() if line.count(",") == 2)


def test_what_a_reset_overwrites_is_saved_and_kafkas_tool_puts_it_back(cli, group, kafka_tools, tmp_path):
    name, _ = group
    saved = tmp_path / "before.csv"
    done = cli("group", "reset", name, "--all-topics", "--shift-by", "-5", "--execute", "--save", str(saved))
    assert done.returncode == 0
    assert [row["current_offset"] for row in kafka_tools.describe_rows(name)] == [2]
    result = kafka_tools.consumer_groups(
        "--reset-offsets", "--group", name, "--from-file", str(saved), "--execute"
    )
    assert not result.error
    assert [row["current_offset"] for row in kafka_tools.describe_rows(name)] == [7]


def test_a_reset_prints_its_receipt(cli, group):
    name, topic = group
    done = cli("group", "reset", name, "--topic", topic, "--to-offset", "3", "--execute", "--output", "json")
    receipt = json.loads(done.stdout)
    assert (receipt["before"], receipt["after"]) == ({topic: {"0": 7, "1": None}}, {topic: {"0": 3, "1": 3}})
    assert (receipt["plan_only"], receipt["verified"]) == (False, True)


def test_a_reset_that_is_refused_is_exit_1_and_shows_why(cli, group, kafka_tools):
    name, topic = group
    done = cli("group", "reset", name, "--topic", topic, "--to-offset", "99", "--execute")
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    assert [row["current_offset"] for row in kafka_tools.describe_rows(name)] == [7]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--to-latest"],
        ["--all-topics"],
        ["--all-topics", "--to-latest", "--to-earliest"],
        ["--all-topics", "--to-latest", "--dry-run", "--execute"],
        ["--all-topics", "--topic", "t", "--to-latest"],
        ["--all-topics", "--to-latest", "--all-groups"],
        ["--all-topics", "--by-duration", "1 hour"],
    ],
)
def test_a_reset_whose_options_contradict_each_other_is_exit_2(cli, flags):
    assert cli("group", "reset", "g", *flags).returncode == 2


def test_a_group_is_deleted_only_with_execute(cli, group, kafka_tools):
    name, topic = group
    before = kafka_tools.describe_rows(name)
    shown = cli("group", "delete", name)
    assert (shown.returncode, "Nothing was changed: give --execute" in shown.stderr) == (0, True)
    assert [topic, "0", "7", "10", "3"] in [line.split() for line in shown.stdout.splitlines()]
    assert f"Empty group {name}: total lag 3" in shown.stdout
    assert kafka_tools.describe_rows(name) == before
    done = cli("group", "delete", name, "--execute")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{name}: deleted")
    assert name not in kafka_tools.consumer_groups("--list").stdout


@pytest.mark.parametrize("form", ["--from-file", "--receipt"])
def test_a_deleted_group_is_restored_from_what_was_saved(cli, group, kafka_tools, tmp_path, form):
    name, topic = group
    before, saved, receipt = (
        kafka_tools.describe_rows(name),
        tmp_path / "saved.csv",
        tmp_path / "receipt.json",
    )
    done = cli("group", "delete", name, "--execute", "--save", str(saved), "--output", "json")
    receipt.write_text(done.stdout)
    (deleted,) = json.loads(done.stdout)["groups"]
    assert (deleted["deleted"], deleted["before"]) == (True, {topic: {"0": 7, "1": None}})
    assert saved.read_text() == f"{topic},0,7\n"
    assert name not in kafka_tools.consumer_groups("--list").stdout
    file = saved if form == "--from-file" else receipt
    assert cli("group", "restore", name, form, str(file), "--execute").returncode == 0
    assert kafka_tools.describe_rows(name) == before


def test_kafkas_tool_restores_what_a_delete_has_saved(cli, group, kafka_tools, tmp_path):
    name, _ = group
    before, saved = kafka_tools.describe_rows(name), tmp_path / "saved.csv"
    assert cli("group", "delete", name, "--execute", "--save", str(saved)).returncode == 0
    flags = ("--from-file", str(saved), "--execute")
    assert not kafka_tools.consumer_groups("--reset-offsets", "--group", name, *flags).error
    assert kafka_tools.describe_rows(name) == before


def test_no_group_is_deleted_if_one_has_members_or_is_not_there(cli, group, new_group, member, kafka_tools):
    name, topic = group
    active = new_group()
    member(active, topic)
    done = cli("group", "delete", name, active, "nobody-ever", "--execute")
    assert done.returncode == 1
    assert f"group {active!r} is Stable with 1 members (a-reader on " in done.stderr
    assert "there is no group 'nobody-ever'" in done.stderr
    assert "nothing was changed" in done.stderr
    assert {name, active} <= set(kafka_tools.consumer_groups("--list").stdout.split())


def test_a_group_without_commits_is_deleted(cli, group, kafka_tools):
    name, topic = group
    kafka_tools.consumer_groups("--delete-offsets", "--group", name, "--topic", topic)
    done = cli("group", "delete", name, "--execute", "--output", "json")
    (deleted,) = json.loads(done.stdout)["groups"]
    assert (deleted["deleted"], deleted["before"]) == (True, {})
    assert name not in kafka_tools.consumer_groups("--list").stdout


def test_broker_and_storage_may_be_airflow_connections(bootstrap_servers, group, new_query):
    name, topic = group
    query = new_query({topic: {0: 7}})
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers, "sasl.password": "abc"}}
    connections = {"AIRFLOW_CONN_CLUSTER": json.dumps(kafka), "AIRFLOW_CONN_LAKE": '{"conn_type": "fs"}'}
    command = [sys.executable, "-m", "airflow_kafka_offsets.cli", "drift", f"file://{query.location}", name]
    command += ["--kafka-config-id", "cluster", "--checkpoint-conn-id", "lake", "--output", "json"]
    done = subprocess.run(
        command, env=os.environ | connections, capture_output=True, text=True, timeout=90, check=False
    )
    assert "Error" not in done.stderr
    (report,) = json.loads(done.stdout)["groups"]
    assert (report["group_id"], report["batch_id"]) == (name, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["group", "lag"], ["group", "lag", "--output", "json"]])
def test_an_output_that_takes_no_more_is_exit_1_and_a_sentence(bootstrap_servers, group, arguments):
    command = [sys.executable, "-m", "airflow_kafka_offsets.cli", *arguments]
    if arguments[0] == "group":
        command += [group[0], "--bootstrap-server", bootstrap_servers]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=90, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "Error: the output cannot be written: No space left on device\n",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_move_whose_receipt_cannot_be_written_says_that_it_was_made(bootstrap_servers, group):
    name, topic = group
    command = [
        sys.executable,
        "-m",
        "airflow_kafka_offsets.cli",
        "group",
        "reset",
        name,
        "--topic",
        f"{topic}:0",
    ]
    command += ["--to-offset", "3", "--execute", "--output", "json", "--bootstrap-server", bootstrap_servers]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=90, check=False
        )
    assert done.returncode == 1
    assert done.stderr.endswith("No space left on device; the offsets were moved\n")
    with OffsetsClient({"bootstrap.servers": bootstrap_servers}) as client:
        assert client.committed_everywhere(name)[TopicPartition(topic, 0)].offset == 3
