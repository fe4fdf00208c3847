"""The drift of a pipeline, and of those of a file."""

import json
import os
import time

import pytest


@pytest.fixture
def group(topic, new_group, commit):
    """A group that has not committed the end of the newest batch in partition 1."""
    name = new_group()
    commit(name, topic, {0: 10, 1: 3})
    return name


@pytest.fixture
def query(topic, new_query):
    """A query whose newest batch ended a minute ago at 10 and 4."""
    query = new_query({topic: {0: 10, 1: 4}})
    os.utime(query.root / "commits" / "1", (time.time() - 60,) * 2)
    return query


def test_the_report_as_json_for_a_group_by_topic(do, topic, group, query):
    done = do("""drift URI '{"TOPIC": "GROUP"}' --topic TOPIC:0 --output json""")
    report = json.loads(done.out)
    assert (done.code, report["version"], report["drifted"]) == (0, 1, False)
    (shown,) = report["groups"]
    assert (shown["group_id"], shown["verdicts"]) == (group, {"in step": 1})
    assert shown["checkpoint"] == query.location


def test_drift_is_shown_with_what_to_do_and_is_exit_1(do, topic):
    done = do("drift URI GROUP")
    rows = [line.split(maxsplit=6) for line in done.out.splitlines()]
    assert [topic, "1", "4", "3", "0", "4", "group behind"] in rows
    assert "group behind: the newest batch was not committed" in done.out
    assert (done.code, done.err) == (1, "")


def test_a_batch_within_grace_is_exit_0(do):
    done = do("drift URI GROUP --grace 600")
    assert (done.code, "within grace" in done.out) == (0, True)


@pytest.mark.parametrize("option", ["--grace soon", "--min-headroom 0"])
def test_a_time_that_is_none_is_a_usage_error(do, option):
    done = do(f"drift URI GROUP {option}")
    assert done.code == 2
    assert f"{option}: expected seconds" in done.err


@pytest.mark.parametrize("below", ["/nothing", ""], ids=["no checkpoint", "no broker"])
def test_what_could_not_be_checked_is_exit_3_a_sentence_and_json(cli, new_query, below):
    location = new_query({"orders": {0: 10}}).location + below
    nobody = ("--timeout", "0.3", "--bootstrap-server", "127.0.0.1:1")
    done = cli("drift", location, "g", *nobody, "--output", "json")
    assert done.code == 3
    assert done.err.startswith("Error: ")
    found = json.loads(done.out)
    assert found.pop("error") == done.err.removeprefix("Error: ").rstrip("\n")
    assert found == {"version": 1, "drifted": None, "groups": []}


def test_too_little_headroom_is_drift(cli, make_topic, produce, new_group, commit, new_query):
    topic, group = make_topic(2, {"retention.ms": str(7 * 86_400_000)}), new_group()
    produce(topic, {0: 11, 1: 4})
    commit(group, topic, {0: 10, 1: 4})
    drift = ("drift", new_query({topic: {0: 10, 1: 4}}).location, group, "--min-headroom")
    assert cli(*drift, "P6D").code == 0
    done = cli(*drift, "P8D")
    assert done.code == 1
    assert f"expiring on 1 of 2 partitions ({topic}-0, " in done.out


@pytest.fixture
def write(tmp_path):
    """write((group, location), ...) -> a file of these pipelines."""

    def write(*pipelines):
        file = tmp_path / "p.json"
        keys = ("group_id", "checkpoint_location")
        file.write_text(json.dumps([dict(zip(keys, each, strict=True)) for each in pipelines]))
        return file

    return write


def test_all_pipelines_of_a_file_are_checked_whatever_one_of_them_says(
    cli, write, topic, group, query, new_group
):
    missing, nothing = new_group(), f"{query.location}/nothing"
    file = write((missing, nothing), (group, query.location))
    done = cli("drift", "--pipelines", file)
    assert done.code == 1
    drifted = f"group '{group}' and {query.location} (batch 1): group behind on 1 of 2 partitions ({topic}-1)"
    assert drifted in done.out
    assert done.out.endswith("2 pipelines: 1 drifted, 1 could not be checked\n")
    assert f"Error: group '{missing}' could not be checked: {nothing}: " in done.err
    report = json.loads(cli("drift", "--pipelines", file, "--output", "json").out)
    assert report["drifted"] is True
    found = [(each["group_id"], each["error"] is None) for each in report["pipelines"]]
    assert found == [(missing, False), (group, True)]


def test_one_of_a_file_that_could_not_be_checked_is_exit_3_where_nothing_has_drifted(
    cli, write, group, query
):
    there = (group, query.location)
    file = write(there, ("other", f"{query.location}/nothing"))
    assert cli("drift", "--pipelines", file, "--grace", "10m").code == 3
    assert cli("drift", "--pipelines", write(there), "--grace", "10m").code == 0
