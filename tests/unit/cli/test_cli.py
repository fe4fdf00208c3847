"""
What the command line refuses before it asks anybody: in this process, as each start of another takes its
time.
"""

import os
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
from command_line_words import commands

from airflow_kafka_offsets.cli.execution import Execution, save_offsets
from airflow_kafka_offsets.errors import PlanRefusedError, StorageUnavailableError, UsageError
from airflow_kafka_offsets.kafka import admin_process
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.model.offsets import LogRange, TopicPartition, as_commits
from airflow_kafka_offsets.model.pipeline_plan import PipelinePlan
from airflow_kafka_offsets.model.plan import OffsetPlan

COMMAND = [sys.executable, "-m", "airflow_kafka_offsets.cli"]
NOBODY = "--bootstrap-server 127.0.0.1:1"
PREFIX = "AIRFLOW_KAFKA_OFFSETS_"


@pytest.fixture
def run(cli):
    """run("drift cp g --grace soon") -> exit status and standard error."""

    def run(line):
        done = cli(*shlex.split(line))
        return done.code, done.err

    return run


@pytest.fixture
def silent_worker(monkeypatch):
    """The time of a call to the admin process is over at once, without an answer."""
    worker = SimpleNamespace(is_usable=True, ask=lambda *_: None, end=lambda *_: (0, ""))
    monkeypatch.setattr(admin_process, "AdminWorker", lambda *_: worker)


@pytest.fixture
def run_group(run):
    """Runs a command on groups of a broker that is not there; returns exit status and standard error."""
    return lambda line: run(f"group {line} {NOBODY}")


@pytest.mark.parametrize(
    "line",
    [
        "lag ''",
        "lag ' '",
        "lag ' padded'",
        "describe ''",
        "delete ''",
        "reset ' ' --all-topics --to-earliest",
        "restore ' ' --from-file f",
        "lag g --timeout inf",
        "lag g --timeout nan",
        "lag g --timeout -1",
        "lag g --timeout 0",
        "lag g --timeout PT2H",
        "lag g --timeout '1 minute'",
        "lag g --topic orders:2147483648",
        "lag g --topic orders:" + "9" * 5_000,
        "reset g --all-topics --to-offset " + "9" * 5_000,
        "reset g --all-topics --by-duration P999999999DT999999999H",
        "reset g --all-topics --to-batch -1",
        "reset g --all-topics --to-earliest --quiet-period nan",
        "reset g --all-topics --to-earliest --quiet-period -PT1S",
    ],
)
def test_names_and_numbers_that_cannot_be_are_exit_2_and_a_sentence(run_group, line):
    status, error = run_group(line)
    assert status == 2
    assert "Error: " in error
    assert "expected" in error


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "group",
        "group lag",
        "group reset g --to-latest",
        "group reset g --all-topics --to-latest --dry-run --execute",
        "group reset g --all-topics --topic t --to-latest",
        "group reset g --all-topics --to-latest --all-groups",
        "group reset g --all-topics --to-offset 1 --to-offset 2",
        "group reset g --all-topics --to-latest --output json --output table",
        "group reset g --all-topics --to-latest --save ''",
        'group reset \'{"orders": "g"}\' --topic orders --to-latest',
        "group reset g --all-topics --by-duration '1 hour'",
        "group reset g h --checkpoint /c --to-latest",
        "group reset --checkpoint /c --to-latest",
        "group reset g --checkpoint /c",
        "group reset g --checkpoint /c --to-latest --sink s3",
        "group reset g --checkpoint /c --to-latest --dry-run --execute",
        "group commit g",
        "group commit '' --checkpoint /c",
        "group commit g --checkpoint /c --dry-run --execute",
        "group delete g --dry-run --execute",
        "group restore g",
        f"group restore g --receipt {__file__} --from-file {__file__}",
        f"group restore g --from-file {__file__} --dry-run --execute",
        "group restore g --receipt /nowhere",
        "checkpoint seek /c",
        "checkpoint seek /c --to-earliest --to-latest",
        "checkpoint seek /c --to-batch -1",
        "checkpoint seek /c --to-earliest --dry-run --execute",
        "checkpoint truncate /c",
        "checkpoint truncate /c --to-batch -1",
        "checkpoint truncate /c --to-batch 1 --dry-run --execute",
        "checkpoint restore",
        "checkpoint restore /c --dry-run --execute",
    ],
)
def test_what_is_missing_or_contradicts_itself_is_exit_2(run, monkeypatch, line):
    monkeypatch.setenv(f"{PREFIX}BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert run(line)[0] == 2


@pytest.mark.parametrize(
    "content", ['hunter2"', '{"hunter2": 1}', '{"version": 1, "groups": ["hunter2"]}', "[" * 100_000]
)
def test_what_is_in_a_file_that_is_no_receipt_is_not_shown(run_group, tmp_path, content):
    file = tmp_path / "receipt.json"
    file.write_text(content)
    status, error = run_group(f"restore g --receipt {file}")
    assert status == 1
    assert error.startswith("Error: ")
    assert str(file) in error
    assert "hunter2" not in error


@pytest.mark.parametrize("line", ["restore g --receipt", "restore g --from-file", "reset g --from-file"])
def test_a_file_that_is_too_large_is_not_read(run_group, tmp_path, line):
    file = tmp_path / "dump"
    with file.open("wb") as large:
        large.truncate(20_000_000)
    status, error = run_group(f"{line} {file}")
    assert status == 2
    assert "is 20,000,000 bytes large; expected at most 10,000,000" in error


@pytest.mark.parametrize("line", ["restore g --receipt", "restore g --from-file", "reset --plan"])
def test_a_storage_that_does_not_answer_is_no_wrong_option(run_group, monkeypatch, line):
    def read_bytes(*_):
        raise StorageUnavailableError("s3://lake/file: no answer within 30 s: try again")

    monkeypatch.setattr("airflow_kafka_offsets.storage.read_bytes", read_bytes)
    status, error = run_group(f"{line} memory://lake/file")
    assert (status, error) == (1, "Error: s3://lake/file: no answer within 30 s: try again\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("", "no broker is given: give --bootstrap-server"),
        ("--kafka-config-id k --bootstrap-server b:1", "--kafka-config-id replaces --bootstrap-server"),
        (
            f"--kafka-config-id k --command-config {__file__}",
            "--kafka-config-id replaces --command-config: leave one of them out",
        ),
        ("--kafka-config-id nowhere", "connection 'nowhere' is not defined: correct --kafka-config-id,"),
        ("--kafka-config-id empty", "connection 'empty' of type 'kafka' has no bootstrap.servers"),
        ("--command-config /nowhere", "/nowhere"),
        (f"--config {__file__}", "No such option"),
    ],
)
def test_a_broker_that_is_not_named_or_named_twice_is_exit_2(run, monkeypatch, options, text):
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", '{"conn_type": "kafka"}')
    status, error = run(f"group lag g {options}")
    assert status == 2
    assert text in error


@pytest.mark.parametrize(
    ("variables", "options", "text"),
    [
        ({"BOOTSTRAP_SERVER": "127.0.0.1:1"}, "", "answer from 127.0.0.1:1"),
        ({"BOOTSTRAP_SERVER": "other:1"}, NOBODY, "answer from 127.0.0.1:1"),
        ({"COMMAND_CONFIG": "FILE"}, "", "answer from 127.0.0.1:2"),
        ({"COMMAND_CONFIG": "FILE", "BOOTSTRAP_SERVER": "127.0.0.1:1"}, "", "answer from 127.0.0.1:1"),
        ({"BOOTSTRAP_SERVER": ""}, "", "no broker is given"),
        ({"COMMAND_CONFIG": "/nowhere"}, "", f"'--command-config' (env var: '{PREFIX}COMMAND_CONFIG')"),
        ({"KAFKA_CONFIG_ID": "nowhere"}, "", f"{PREFIX}KAFKA_CONFIG_ID: connection 'nowhere' is not defined"),
        # What is typed wins over variables that contradict it.
        ({"BOOTSTRAP_SERVER": "other:1"}, "--kafka-config-id nowhere", "connection 'nowhere' is not def"),
        ({"KAFKA_CONFIG_ID": "k"}, NOBODY, "answer from 127.0.0.1:1"),
        ({"BOOTSTRAP_SERVER": "127.0.0.1:1"}, "--command-config FILE", "answer from 127.0.0.1:2"),
        (
            {"KAFKA_CONFIG_ID": "k", "BOOTSTRAP_SERVER": "other:1"},
            "",
            f"{PREFIX}KAFKA_CONFIG_ID replaces {PREFIX}BOOTSTRAP_SERVER: leave one of them out",
        ),
    ],
)
def test_the_environment_may_name_the_broker(
    run, silent_worker, monkeypatch, tmp_path, variables, options, text
):
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:2\n")
    for name, value in variables.items():
        monkeypatch.setenv(PREFIX + name, str(file) if value == "FILE" else value)
    status, error = run(f"group lag g --timeout 0.2 {options.replace('FILE', str(file))}")
    assert status in (1, 2)
    assert text in error


@pytest.mark.parametrize(
    "line",
    ["group reset g --topic t --to-latest --timeout 0.2", "recover plan FILE --to-latest --timeout 0.2"],
)
def test_a_move_says_which_brokers_a_variable_has_named(run, silent_worker, monkeypatch, tmp_path, line):
    file = tmp_path / "pipelines.json"
    file.write_text('[{"group_id": "g", "topics": "t"}]')
    line = line.replace("FILE", str(file))
    monkeypatch.setenv(f"{PREFIX}BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert run(line)[1].startswith(f"On 127.0.0.1:1, as {PREFIX}BOOTSTRAP_SERVER says.\n")
    assert run(f"{line} --bootstrap-server 127.0.0.1:2")[1].startswith("Error: ")
    monkeypatch.setenv(f"{PREFIX}BOOTSTRAP_SERVER", "user:hunter2@127.0.0.1:1")
    assert "hunter2" not in run(line)[1]


def test_a_failover_of_a_file_says_which_brokers_a_variable_has_named(run, monkeypatch, tmp_path):
    file = tmp_path / "pipelines.json"
    file.write_text('[{"group_id": "g", "checkpoint_location": "/cp", "mirror": {"kafka_config_id": "k"}}]')
    monkeypatch.setenv(f"{PREFIX}BOOTSTRAP_SERVER", "127.0.0.1:1")
    line = f"recover plan-failover {file} --to-bootstrap-server 127.0.0.1:2 --timeout 0.2"
    assert f"On 127.0.0.1:1, as {PREFIX}BOOTSTRAP_SERVER says.\n" in run(line)[1]


def test_a_failover_does_not_show_the_password_of_a_cluster_that_it_does_not_ask(run, monkeypatch):
    monkeypatch.setenv(f"{PREFIX}BOOTSTRAP_SERVER", "user:hunter2@127.0.0.1:1")
    line = "failover plan /cp g --source-is-down --to-bootstrap-server 127.0.0.1:2 --timeout 0.2"
    assert "hunter2" not in run(line)[1]


def test_the_exit_status_is_the_same_without_a_standard_output():
    command = [*COMMAND, "drift", "/nowhere", "g", *shlex.split(NOBODY)]
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.startswith("Error: /nowhere: ")) == (3, True)


@pytest.mark.parametrize("command", ["reset", "restore"])
@pytest.mark.parametrize(
    ("uri", "text"),
    [
        (
            "/no/such/file.csv",
            "Error: --from-file: cannot be read (/no/such/file.csv: there is no such file)",
        ),
        ("/usr", "Error: --from-file: cannot be read (/usr: is a directory; expected a file)"),
        ("s3://key:hunter2@bucket/f.csv", "(s3://...) holds a password"),
    ],
)
def test_a_file_of_offsets_that_cannot_be_read_is_named_without_a_password(run_group, command, uri, text):
    status, error = run_group(f"{command} g --from-file {uri}")
    assert status == 2
    assert text in error
    assert "hunter2" not in error


@pytest.mark.parametrize("timeout", ["abc", "0", "PT2H"])
def test_the_limit_of_a_timeout_is_that_of_a_client(run_group, timeout):
    status, error = run_group(f"lag g --timeout {timeout}")
    assert (status, "above 0 and of at most 3600 seconds" in error) == (2, True), error


OF_GROUPS = [
    # Nothing would read the option.
    (
        "reset g --all-topics --to-earliest --on-pending-batch discard --sink kafka",
        "--on-pending-batch and --sink would be ignored without --checkpoint",
    ),
    ("reset g --all-topics --to-earliest --quiet-period 99", "--quiet-period would be"),
    ("reset g --all-topics --to-earliest --on-no-commit latest", "--on-no-commit would be"),
    ("reset g --checkpoint cp --shift-by 1 --on-no-commit latest", "--on-no-commit"),
    ("reset g --checkpoint cp --shift-by 1 --all-topics", "--all-topics would be"),
    ("reset g --all-topics --to-earliest --export --output json", "--export"),
    ("reset g --all-topics --to-earliest --checkpoint-conn-id lake", "give --checkpoint URI as well"),
    ("restore g --from-file f --on-no-commit earliest", "--on-no-commit would be ignored"),
    ("restore g --from-file f --allow-stateful", "--allow-stateful would be ignored without"),
    ("restore g", "Error: nothing was given; expected exactly one of --receipt, --from-file, --archive"),
    ("restore g --from-file f --receipt r", "found --receipt r, --from-file f; expected exactly one of"),
    ("""reset g --all-topics --to-offset '{"t": {"0": 1}}'""", "--all-topics would be ignored"),
    (f"reset g --all-topics --from-file {__file__}", "--all-topics would be ignored"),
    ("reset g --to-batch 7", "--to-batch is a batch of a Spark checkpoint: give its --checkpoint as"),
    ("reset g --all-topics --to-batch 7", "--to-batch is a batch of a Spark checkpoint"),
    ("reset g --topic orders --to-batch 7", "--to-batch is a batch of a Spark checkpoint"),
    ("lag", "give the GROUP to measure, several groups, or --all-groups"),
    ("lag g --all-groups", "give the GROUP to measure, several groups, or --all-groups"),
    ("lag g h --topic t", "--topic would be ignored with several groups"),
    ("lag --all-groups --topic orders", "--topic would be ignored with several groups"),
    ("lag --all-groups --headroom", "--headroom would be ignored with several groups"),
    # Spoken of in options and JSON, and not in Python.
    ("reset g --all-topics --to-datetime soon", "a time such as '2026-03-01T00:00:00+00:00'"),
    ("""reset g --to-offset "{'t': {'0': 1}}" """, '{"topic": {"0": 42}}; JSON has double quotes'),
    (
        """reset g --to-offset '{"t": [true, null]}'""",
        '--to-offset: found {"t": [true, null]}; exp',
    ),
    ("reset g --all-topics --to-offset null", "--to-offset null: expected a value"),
    (
        "reset g --all-topics",
        "exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, ",
    ),
    ("reset g --all-topics --to-earliest --to-latest", "found --to-earliest, --to-latest; exp"),
    ("""commit '{"t": null}' --checkpoint cp""", 'GROUP: found {"t": null}; expected the name of a'),
    ("lag --watch g", "what follows --watch is its DURATION: put GROUP before it"),
    ("list --state Emtpy", "--state: found 'Emtpy'; expected"),
]
"""Commands on groups."""

REFUSED = [
    *((f"group {line} {NOBODY}", text) for line, text in OF_GROUPS),
    # Nothing would read it, or nobody could use it.
    ("doctor --timeout 5", "--timeout would be ignored without a broker"),
    ("doctor --package org.apache.spark:spark-sql-kafka-0-10_2.13", "expected group:artifact:ver"),
    ("doctor --package a:b:1,nonsense", "--package nonsense: expected group:artifact:version"),
    ("checkpoint truncate cp --to-batch 1 --on-pending-batch fail", "No such option"),
    ("checkpoint truncate cp --to-batch 1 --allow-stateful", "No such option"),
    (
        "checkpoint truncate cp --to-batch 1 --sink noop --sink-location /out",
        "--sink-location /out would be ignored",
    ),
    (
        f"checkpoint seek cp --to-latest --on-no-commit skip {NOBODY}",
        "--on-no-commit would be ignored where no commit is needed",
    ),
    *(
        (f"failover apply --plan plan.json --to-bootstrap-server localhost:1 {options}", text)
        for options, text in (
            ("uri orders", "--plan replaces URI and GROUP"),
            ("--bootstrap-server localhost:1", "--bootstrap-server would be ignored with --plan"),
            ("--source-is-down", "--source-is-down would be ignored with --plan"),
            ("--prefix a.", "--prefix would be ignored with --plan"),
            ("--on-unknown earliest", "--on-unknown would be ignored with --plan"),
            ("--allow-stateful", "--allow-stateful would be ignored with --plan"),
        )
    ),
    ("kafka start --directory ''", "--directory is empty: give a value, or leave it out"),
    ("demo --directory ''", "--directory is empty: give a value, or leave it out"),
    ("kafka start --directory cp --port 65536", "--port 65536: expected 1 to 65535"),
    ("kafka start --directory cp --port -1", "--port -1: expected 1 to 65535"),
    (
        "kafka start --directory cp --port 65535 --brokers 3",
        "--port 65535: expected 1 to 65533, with a port for each of 3 brokers",
    ),
    ("kafka start --directory a,b", "expected a path without a comma"),
    ("gruop", "Did you mean 'group'?"),
    (f"recover plan {__file__} --to-earliest --execute", "No such option '--execute'"),
    # It is given and empty.
    ("group lag g --kafka-config-id '' --bootstrap-server h:1", "--kafka-config-id is empty"),
    ("group restore g --receipt '' --from-file f", "--receipt is empty"),
    ("group reset g --all-topics --to-datetime '' --to-latest", "--to-datetime is empty"),
    ("group lag g --topic ' '", "--topic is empty"),
    ("checkpoint restore cp --archive ''", "--archive is empty"),
    ("drift cp g --checkpoint-conn-id ''", "--checkpoint-conn-id is empty"),
    # A connection for the storage that is not there.
    ("checkpoint show cp --checkpoint-conn-id nowhere", "--checkpoint-conn-id: connection 'nowhere' is not"),
    ("drift cp g --checkpoint-conn-id nowhere", "--checkpoint-conn-id: connection 'nowhere' is not defined"),
    ("checkpoint restore cp --checkpoint-conn-id nowhere", "--checkpoint-conn-id: connection 'nowhere' is"),
    ("checkpoint seek cp --to-earliest --checkpoint-conn-id nowhere", "connection 'nowhere' is not defined"),
]


@pytest.mark.parametrize(("line", "text"), REFUSED)
def test_what_nothing_would_read_or_nobody_could_use_is_exit_2(run, monkeypatch, tmp_path, line, text):
    monkeypatch.chdir(tmp_path)
    status, error = run(line)
    assert status == 2
    assert text in error
    assert not re.search(r"True|None|{{|tojson|Python|template|timedelta", error)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", "give the URI of a checkpoint and its GROUP, or --pipelines FILE"),
        ("cp", "give the URI of a checkpoint and its GROUP"),
        ("cp g --pipelines TWO", "--pipelines replaces URI and GROUP"),
        ("--pipelines TWO --topic t", "--topic would be ignored with --pipelines"),
        ("--pipelines nowhere.yaml", "'nowhere.yaml' does not exist"),
        (
            "--pipelines TWO --bootstrap-server h:1",
            "the file of --pipelines has 2 Kafka connections (a, b), and --boots",
        ),
        ("--pipelines WITHOUT", "entry 1 (g): checkpoint_location is missing"),
    ],
)
def test_a_drift_check_is_of_one_pipeline_or_of_a_file(run, monkeypatch, tmp_path, arguments, text):
    monkeypatch.chdir(tmp_path)
    entries = "- {{group_id: g{0}, checkpoint_location: /cp, kafka_config_id: {0}}}\n"
    (tmp_path / "TWO").write_text(entries.format("a") + entries.format("b"))
    (tmp_path / "WITHOUT").write_text('[{"group_id": "g"}]')
    status, error = run(f"drift {arguments}")
    assert status == 2
    assert text in error


def test_without_a_broker_the_pipelines_of_a_file_use_their_own_connections(run, tmp_path):
    file = tmp_path / "pipelines.yaml"
    file.write_text("- {group_id: g, checkpoint_location: /cp, kafka_config_id: nowhere}\n")
    status, error = run(f"drift --pipelines {file}")
    assert status == 3
    assert "group 'g' could not be checked: --pipelines: connection 'nowhere' is not defined" in error


def test_the_help_has_sections_and_names_the_environment(cli):
    out = cli("group", "reset", "--help").out
    sections = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections == [
        *("Options:", "Where to move:", "Checkpoint:", "What is allowed:", "Broker:", "Plan and output:")
    ]
    assert "AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER" in out


@pytest.mark.parametrize("group", sorted({name.rpartition(" ")[0] for name, _ in commands()}))
def test_a_list_of_commands_has_whole_sentences(cli, group):
    assert "..." not in cli(*group.split(), "--help").out.partition("Commands:")[2]


def test_a_shell_completes_commands_and_options():
    variables = {"COMP_WORDS": "airflow-kafka-offsets group reset --to-e", "COMP_CWORD": "3"}
    variables["_AIRFLOW_KAFKA_OFFSETS_COMPLETE"] = "bash_complete"
    done = subprocess.run(
        COMMAND, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["plain,--to-earliest"]


def test_all_groups_where_there_is_none_is_no_success(run_group, monkeypatch):
    monkeypatch.setattr(OffsetsClient, "list_groups", lambda _: [])
    status, error = run_group("reset --all-groups --all-topics --to-earliest --execute")
    assert status == 1
    assert "nothing was changed: --all-groups: found no group that this user may see" in error


def test_a_plan_that_is_refused_is_not_exported(capsys):
    tp = TopicPartition("orders", 0)
    group = OffsetPlan.make("g", {tp: -950}, as_commits({tp: 50}), {tp: LogRange(0, 100)}, source={})
    execution = Execution(dry_run=True, execute=False, output="table")
    with pytest.raises(PlanRefusedError, match="offset -950 of orders-0 is outside its log"):
        execution.finish_plan(PipelinePlan((group,)), lambda _: {}, export=True)
    assert capsys.readouterr().out == ""


BEFORE = {"g": {TopicPartition("orders", 0): 7, TopicPartition("orders", 1): None}}


@pytest.mark.parametrize("execute", [False, True])
def test_a_file_that_is_there_is_not_overwritten_with_what_is_saved(tmp_path, execute):
    saved = tmp_path / "before.csv"
    saved.write_text("the only copy")
    with pytest.raises(UsageError, match=r"--save .*before.csv: .*another file; nothing was changed"):
        save_offsets(saved, BEFORE, execute=execute)
    assert saved.read_text() == "the only copy"


def test_offsets_that_cannot_be_saved_are_not_overwritten(tmp_path):
    saved = tmp_path / "nowhere" / "before.csv"
    with pytest.raises(UsageError, match=r"--save .*: cannot be written \(No such .*; nothing was changed"):
        save_offsets(saved, BEFORE, execute=True)


def test_offsets_are_saved_only_where_they_will_be_overwritten(tmp_path):
    saved = tmp_path / "before.csv"
    save_offsets(saved, BEFORE, execute=False)
    assert not saved.exists()
    save_offsets(saved, BEFORE, execute=True)
    assert saved.read_text() == "orders,0,7\n"


def test_a_command_is_either_shown_or_carried_out():
    with pytest.raises(UsageError, match="--dry-run and --execute contradict each other"):
        Execution(dry_run=True, execute=True, output="json")
