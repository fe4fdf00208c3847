"""The commands that wait."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
from memory_clients import Clock

from airflow_kafka_offsets.cli import wait as wait_command
from airflow_kafka_offsets.waits import progress


@pytest.fixture
def wait(do):
    """wait("lag GROUP ...") -> exit code, output, errors."""
    return lambda line: do(f"wait {line} --every 0.1s")


@pytest.fixture
def without_pauses(monkeypatch):
    """The time between two polls passes at once."""
    clock = Clock(time.time)
    now = {"time": clock.monotonic, "monotonic": clock.monotonic}
    for module in (progress, wait_command):
        monkeypatch.setattr(module, "time", SimpleNamespace(**now, sleep=clock.wait))


def test_a_lag_that_is_low_enough_is_exit_0(wait):
    done = wait("lag GROUP --max-lag 3 --output json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["total_lag"] == 3


@pytest.mark.usefixtures("without_pauses")
def test_a_lag_that_stays_is_exit_1_with_the_last_reading(wait, group):
    done = wait("lag GROUP --max-lag 2 --timeout 1s --output json")
    assert done.code == 1
    assert json.loads(done.out)["total_lag"] == 3
    assert "the wait ends at --max-lag 2" in done.err
    assert f"Error: not reached within 1 s: {group}: total lag 3" in done.err


@pytest.mark.usefixtures("without_pauses")
def test_a_position_that_does_not_move_is_exit_1_before_the_time_is_up(wait):
    done = wait("reached GROUP --target latest --stalled-after 1s")
    assert done.code == 1
    assert "nothing has moved for 1 s (--stalled-after 1 s)" in done.err
    assert done.err.rstrip().endswith("then wait again")


def test_a_target_is_frozen_and_reached_when_somebody_commits(wait, topic, group, produce, commit):
    def go_on():
        produce(topic, {0: 4})
        commit(group, topic, {0: 10, 1: 4})

    later = threading.Timer(0.3, go_on)
    later.start()
    done = wait("reached GROUP --target latest --timeout 30s --output json")
    later.join()
    assert done.code == 0, done.err
    assert json.loads(done.out)["target"] == {topic: {"0": 10, "1": 4}}
    assert "3 records before the target" in done.err


@pytest.mark.usefixtures("without_pauses")
def test_a_checkpoint_is_waited_for_without_a_group(wait):
    assert wait("lag --checkpoint URI --max-lag 3").code == 0
    done = wait("""reached --checkpoint URI --target '{"TOPIC": {"0": 9}}' --timeout 0.3s""")
    assert (done.code, "1 record before the target" in done.err) == (1, True)


@pytest.mark.usefixtures("without_pauses")
def test_a_topic_is_waited_for_until_it_has_a_record_of_a_time(wait):
    assert wait("topic --topic TOPIC --target 2020-01-01").code == 0
    done = wait("topic --topic TOPIC --target 2100-01-01 --timeout 0.3s")
    assert done.code == 1
    assert "2 of 2 partitions have no record since 2100-01-01T00:00:00Z" in done.err


def test_a_broker_that_is_away_is_said_and_asked_again_until_the_time_is_up(cli):
    nobody = ("--bootstrap-server", "127.0.0.1:1")
    done = cli("wait", "lag", "g", "--max-lag", 0, "--timeout", "1s", "--every", "0.1s", *nobody)
    assert done.code == 1
    assert "no answer this time: " in done.err
    assert "Error: not reached within 1 s: the last poll failed: " in done.err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("lag g", "no threshold: give --max-lag, --max-partition-lag, --max-time-lag or --min-headroom"),
        ("lag --max-lag 0", "no position to read: give GROUP or --checkpoint"),
        ("lag g --max-lag 1e3", "--max-lag 1e3: expected 0 or more, as a whole number"),
        ("lag g --max-lag 0 --position checkpoint", "--position checkpoint without --check"),
        ("reached g", "--target is missing: give 'latest', a time such as '2026-03-01T00:00:00+00:00', off"),
        ("reached g --topic TOPIC --target 2100-01-01", "is in the future"),
        ("reached g --target '{'", "--target: { is not JSON"),
        ("""reached g --target '{"t": {"0": -1}}'""", "--target: found -1 instead of the offset of t-0"),
        ("topic --target 2020-01-01", "no topic to read: give --topic"),
        ("topic --topic t", "--target is missing: give a time such as '2026-03-01T00:00:00+00:00'"),
        ("topic --topic t --target 2020-01-01 --idle-after 5m", "--on-idle-partition ignore"),
    ],
)
def test_what_cannot_be_waited_for_is_exit_2_in_words_of_the_options(wait, line, text):
    done = wait(line)
    assert (done.code, text in done.err) == (2, True), done.err
    assert "{{" not in done.err
