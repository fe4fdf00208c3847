"""Many pipelines that fail over as one, with the commands of a recovery."""

import json
from collections import Counter
from typing import Any

import pytest
from memory_broker import filled_broker
from memory_clients import open_client
from moved_fleet import Fleet

from airflow_kafka_offsets.checkpoint.archive import write_archive
from airflow_kafka_offsets.checkpoint.archived_moves import ArchivedMoves
from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.cli.recovery_file import StateFile
from airflow_kafka_offsets.errors import StorageError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.offsets import TopicPartition

ORDERS = TopicPartition("orders", 0)
READ, THERE = 90, 80
"""Where the queries are, and the same record on the mirror, which has no copy of the first 10."""
BOTH = ("--bootstrap-server", "source:9092", "--to-bootstrap-server", "mirror:9092")
SOURCE, MIRROR = BOTH[:2], ("--bootstrap-server", "mirror:9092")


class Killed(BaseException):
    """The process has ended."""


class Pipelines(Fleet):
    """Queries on a cluster that is mirrored."""

    def __init__(self, root: Any, cli: Any, many: int) -> None:
        self.brokers = {}
        for name, first in (("source", 0), ("mirror", 10)):
            self.brokers[name] = filled_broker(range(first, 100), cluster_id=f"cluster-{name}")
            self.brokers[name].config(address=f"{name}:9092")
        self.clients = {name: open_client(broker) for name, broker in self.brokers.items()}
        self.cli, ends = cli, ({"orders": {0: at}} for at in (50, READ))
        names = [f"etl-{number}" for number in range(many)]
        super().__init__(root, names, *ends, mirror={"kafka_config_id": "standby"})
        for name in names:
            self.clients["source"].commit(name, {ORDERS: READ})

    def run(self, verb: str, *options: str, code: int = 0) -> Any:
        clusters = () if "--bootstrap-server" in options else BOTH if verb == "plan-failover" else MIRROR
        quiet = ("--quiet-period", "0") if verb in ("apply", "restore") else ()
        done = self.cli("recover", verb, self.file, *clusters, *quiet, *options)
        assert done.code == code, (done.out, done.err)
        return done

    def now(self) -> dict[str, str]:
        """Where `recover status` says that each pipeline is."""
        done = self.cli("recover", "status", self.file, *MIRROR, "--output", "json")
        return {each["pipeline"]: each["now"] for each in json.loads(done.out)["pipelines"]}

    def at(self) -> dict[tuple[int, int | None], int]:
        """{(offset of the query, of its group on the mirror): how many pipelines are there}."""
        commits = {name: self.clients["mirror"].committed(name, [ORDERS])[ORDERS] for name in self.names}
        return Counter(
            (query.stands()[0], commit and commit.offset)
            for query, commit in zip(self.queries.values(), commits.values(), strict=True)
        )


@pytest.fixture
def pipelines(tmp_path, monkeypatch, cli):
    """pipelines(3) -> so many."""
    monkeypatch.delenv("AIRFLOW_KAFKA_OFFSETS_BOOTSTRAP_SERVER", raising=False)
    return lambda many: Pipelines(tmp_path, cli, many)


@pytest.fixture
def planned(pipelines):
    """planned(3) -> so many with a plan."""

    def plan(many):
        made = pipelines(many)
        made.run("plan-failover")
        return made

    return plan


@pytest.fixture
def killed_after(failing_progress):
    """killed_after(3, run, saved=False) -> the process ends at its third write of the progress."""

    def kill(after, run, *, saved):
        with failing_progress(after, Killed, saved=saved), pytest.raises(BaseException, match="|"):
            run()

    return kill


def test_they_are_planned_approved_moved_shown_taken_back_and_moved_again(planned):
    some = planned(3)
    before = {name: query.sparks_files() for name, query in some.queries.items()}
    digest = json.loads(some.state.read_text())["digest"]
    assert (some.at(), some.now()) == ({(READ, None): 3}, dict.fromkeys(some.names, "not moved"))
    refused = some.run("apply", "--execute", "--digest", "0" * 8, code=1)
    assert f"found plan {digest[:8]}; expected 00000000" in refused.err
    assert "3 pipelines: 3 applied" in some.run("apply", "--execute", "--digest", digest[:8]).out
    assert (some.at(), some.now()) == ({(THERE, THERE): 3}, dict.fromkeys(some.names, "moved"))
    commit = some.clients["mirror"].committed(some.names[0], [ORDERS])[ORDERS]
    made = CommitMetadata.of(commit)
    assert (made.kind, made.plan != "") == ("failover", True)
    some.run("restore", "--execute")
    assert some.stages() == {"restored": 3}
    assert {name: query.sparks_files() for name, query in some.queries.items()} == before
    assert some.now() == dict.fromkeys(some.names, "not moved")
    some.run("plan-failover")
    some.run("apply", "--execute")
    assert (some.at(), some.stages()) == ({(THERE, THERE): 3}, {"applied": 3})


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("after", range(1, 5))
def test_a_failover_that_was_killed_goes_on_and_may_be_taken_back(planned, killed_after, after, saved):
    some = planned(2)
    apply = ("apply", "--execute", "--max-active", "1")
    killed_after(after, lambda: some.run(*apply), saved=saved)
    assert set(some.now().values()) <= {"not moved", "moved"}
    some.run("apply", "--execute")
    assert (some.at(), some.stages()) == ({(THERE, THERE): 2}, {"applied": 2})
    killed_after(after, lambda: some.run("restore", "--execute", "--max-active", "1"), saved=saved)
    some.run("restore", "--execute")
    assert [query.stands()[0] for query in some.queries.values()] == [READ] * 2


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_one_that_was_killed_half_way_is_shown_so_and_taken_back_by_the_fleet(
    pipelines, monkeypatch, again, copied
):
    some = pipelines(2)
    if copied:
        # MirrorMaker copies the groups' offsets, with the metadata that names the old cluster.
        for name in some.names:
            by = CommitMetadata(tool="commit", cluster="cluster-source")
            some.clients["mirror"].commit(name, {ORDERS: THERE - 1}, by.text())
    some.run("plan-failover")
    with monkeypatch.context() as patched:
        patched.setattr("airflow_kafka_offsets.moves.apply.commit_groups", kill)
        with pytest.raises(BaseException, match="|"):
            some.run("apply", "--execute", "--max-active", "1")
    assert some.now() == {"etl-0": "moved in part", "etl-1": "not moved"}
    if again:
        some.run("apply", "--execute")
    with monkeypatch.context() as patched:
        patched.setattr("airflow_kafka_offsets.moves.apply.commit_groups", kill)
        with pytest.raises(BaseException, match="|"):
            some.run("restore", "--execute", "--max-active", "1")
    assert some.now()["etl-0"] == "moved in part"
    some.run("restore", "--execute")
    assert [query.stands()[0] for query in some.queries.values()] == [READ] * 2


@pytest.mark.parametrize("runs", [True, False])
def test_one_that_was_taken_back_by_another_command_counts_as_restored(planned, runs):
    some = planned(2)
    some.run("apply", "--execute")
    query = some.queries["etl-0"]
    back = ("--checkpoint", query.location, "--archive", "0001-failover", "--execute", "--quiet-period", "0")
    assert some.cli("group", "restore", "etl-0", *back, *MIRROR).code == 0
    if runs:
        query.run(2, {"orders": {0: 95}})
    again = some.cli("group", "restore", "etl-0", *back, *MIRROR, "--allow-stale")
    assert again.code == 1
    assert "was taken back already, to cluster cluster-source: there is nothing to restore" in again.err
    some.run("restore", "--execute")
    assert some.stages() == {"restored": 2}
    assert [each.stands()[0] for each in some.queries.values()] == [95 if runs else READ, READ]


def kill(*_: Any) -> None:
    raise Killed


def test_a_query_that_was_started_before_the_end_was_saved_counts_as_moved(planned, killed_after):
    some = planned(1)
    killed_after(2, lambda: some.run("apply", "--execute"), saved=False)
    assert some.stages() == {"applying": 1}
    (query,) = some.queries.values()
    query.run(2, {"orders": {0: THERE + 5}})
    some.run("apply", "--execute")
    assert (some.stages(), some.now()) == ({"applied": 1}, {"etl-0": "read on"})
    # Its position is one of the mirror now: it goes back by another translation only.
    refused = some.run("restore", "--execute", "--allow-stale", code=1)
    assert "failover back" in refused.err
    assert query.stands() == {0: THERE + 5}


@pytest.mark.parametrize("restores", [True, False])
def test_one_that_has_run_after_it_was_killed_before_its_first_file_is_planned_again(
    planned, monkeypatch, restores
):
    some = planned(1)
    (query,) = some.queries.values()
    with monkeypatch.context() as patched:
        patched.setattr("airflow_kafka_offsets.checkpoint.apply_move._apply_step", kill)
        with pytest.raises(BaseException, match="|"):
            some.run("apply", "--execute")
    query.run(2, {"orders": {0: 95}})
    if restores:
        some.run("restore", "--execute")
    assert "the query has run since" in some.run("apply", "--execute", code=1).err
    assert (query.stands(), some.stages()) == ({0: 95}, {"planned": 1})
    some.run("plan-failover")
    some.run("apply", "--execute")
    assert some.now() == {"etl-0": "moved"}


def test_one_that_another_copy_of_the_file_has_moved_is_taken_back_to_its_cluster(
    planned, monkeypatch, tmp_path
):
    """The first apply has died with a claim on the number of its archive, so the other one has the next."""
    some = planned(1)
    (query,) = some.queries.values()
    other = tmp_path / "other" / some.file.name
    other.parent.mkdir()
    for file in (some.file, some.state):
        (other.parent / file.name).write_text(file.read_text())
    with monkeypatch.context() as patched:
        patched.setattr("airflow_kafka_offsets.checkpoint.apply_move.write_archive", kill)
        with pytest.raises(BaseException, match="|"):
            some.run("apply", "--execute")
    assert some.cli("recover", "apply", other, *MIRROR, "--execute", "--quiet-period", "0").code == 0
    assert some.at() == {(THERE, THERE): 1}
    some.run("restore", "--execute")
    newest = ArchivedMoves(SparkCheckpoint(query.location)).newest
    assert newest is not None
    assert (query.stands(), newest.log_ids.cluster) == ({0: READ}, "cluster-source")


def test_one_whose_failover_another_command_has_made_or_begun_is_left_out(pipelines, monkeypatch):
    """A plan of its move would be another request, and refused by each apply."""
    some = pipelines(2)
    failover = ("failover", "apply", some.queries["etl-0"].location, "etl-0", *BOTH, "--quiet-period", "0")
    with monkeypatch.context() as patched:
        patched.setattr("airflow_kafka_offsets.moves.apply.commit_groups", kill)
        with pytest.raises(BaseException, match="|"):
            some.cli(*failover)
    for _ in range(2):
        refused = some.run("plan-failover", code=1)
        assert (
            "group etl-0: nothing was changed: an earlier task or command has begun this move" in refused.err
        )
        assert some.stages() == {"planned": 1}
        assert some.cli(*failover).code == 0


def test_one_that_the_plan_refuses_is_named_and_the_others_move(pipelines):
    some = pipelines(3)
    some.queries["etl-1"].plan(2, {"orders": {0: 95}})
    planned = some.run("plan-failover", code=1)
    assert "Error: group etl-1: nothing was changed" in planned.err
    assert "1 are not in the plan" in planned.err
    applied = some.run("apply", "--execute", code=1)
    assert "3 pipelines: 2 applied, 1 refused" in applied.out
    assert "the plan refused them: etl-1" in applied.err
    assert some.at() == {(THERE, THERE): 2, (READ, None): 1}
    assert "etl-1     refused" in some.run("status").out


def test_if_none_can_move_nothing_is_saved(pipelines):
    some = pipelines(2)
    for query in some.queries.values():
        query.plan(2, {"orders": {0: 95}})
    assert some.run("plan-failover", code=1).err.count("was begun and not finished") == 2
    assert not some.state.exists()


def test_one_that_fails_does_not_hold_the_others_back(planned):
    some = planned(4)
    some.brokers["mirror"].join("etl-1", "m", "a-reader", ("orders",))
    failed = some.run("apply", "--execute", "--max-active", "1", code=1)
    assert "a-reader" in failed.err
    assert some.stages() == {"applied": 3, "planned": 1}
    some.brokers["mirror"].leave("etl-1", "m")
    some.run("apply", "--execute")
    assert some.at() == {(THERE, THERE): 4}


def test_one_that_another_tool_has_moved_is_not_moved_again(planned):
    some = planned(3)
    location = some.queries["etl-1"].location
    assert some.cli("failover", "apply", location, "etl-1", *BOTH, "--quiet-period", "0").code == 0
    some.clients["mirror"].commit("etl-2", {ORDERS: 60})
    assert some.now() == {"etl-0": "not moved", "etl-1": "elsewhere", "etl-2": "elsewhere"}
    failed = some.run("apply", "--execute", code=1)
    assert "group 'etl-2' has changed on orders-0" in failed.err
    assert "Error: group etl-1: " in failed.err
    assert some.stages() == {"applied": 1, "planned": 2}
    # What it has not moved it does not take back.
    some.run("restore", "--execute")
    assert len([*ArchivedMoves(SparkCheckpoint(location))]) == 1


def test_one_that_is_on_another_cluster_than_that_of_a_reset_is_elsewhere(pipelines):
    """Its offset there is behind the target, as if it had read on."""
    some = pipelines(1)
    location = some.queries["etl-0"].location
    some.run("plan", "--to-offset", "60", "--sink", "noop", *SOURCE)
    assert some.cli("failover", "apply", location, "etl-0", *BOTH, "--quiet-period", "0").code == 0
    status = json.loads(some.run("status", *SOURCE, "--output", "json").out)
    assert status["pipelines"][0]["now"] == "elsewhere"


def test_one_whose_checkpoint_is_at_the_target_already_is_not_elsewhere_after_an_earlier_failover(planned):
    some = planned(1)
    some.run("apply", "--execute")
    some.clients["mirror"].commit("etl-0", {ORDERS: THERE - 5})
    some.state.unlink()
    some.run("plan", "--to-offset", str(THERE), "--sink", "noop", *MIRROR)
    assert some.now() == {"etl-0": "not moved"}
    some.run("apply", "--execute")
    assert some.now() == {"etl-0": "moved"}


@pytest.mark.parametrize(("command", "now"), [("failover", "elsewhere"), ("restore", "not moved")])
def test_one_that_reads_on_the_old_cluster_again_has_not_read_on_since_its_move(planned, command, now):
    some = planned(1)
    some.run("apply", "--execute")
    (query,) = some.queries.values()
    if command == "failover":
        query.run(2, {"orders": {0: THERE + 5}})
        swapped = ("--bootstrap-server", "mirror:9092", "--to-bootstrap-server", "source:9092")
        done = some.cli("failover", "apply", query.location, "etl-0", *swapped, "--quiet-period", "0")
    else:
        archive = ("--archive", "0001-failover", "--execute", "--quiet-period", "0")
        done = some.cli("group", "restore", "etl-0", "--checkpoint", query.location, *archive, *MIRROR)
    assert done.code == 0, done.err
    query.run(3, {"orders": {0: READ + 7}})
    assert some.now() == {"etl-0": now}


def test_a_commit_from_before_a_failover_by_a_clock_that_is_ahead_does_not_count_as_later(planned):
    some = planned(1)
    some.run("apply", "--execute")
    ((name, query),) = some.queries.items()
    query.run(2, {"orders": {0: THERE + 5}})
    query_id = SparkCheckpoint(query.location).query_id()
    made = CommitMetadata(query=query_id, cluster="cluster-mirror", move=1, at=2_000_000_000)
    some.clients["mirror"].commit(name, {ORDERS: THERE + 5}, made.text())
    swapped = ("--bootstrap-server", "mirror:9092", "--to-bootstrap-server", "source:9092")
    done = some.cli("failover", "apply", query.location, name, *swapped, "--quiet-period", "0")
    assert (done.code, query.stands()) == (0, {0: READ + 5}), done.err
    some.brokers["mirror"].append("orders", 0, range(100, 120))
    commit = ("group", "commit", name, "--checkpoint", query.location, "--execute")
    refused = some.cli(*commit, *MIRROR)
    assert (refused.code, "(archive 0002-failover) is of cluster cluster-source" in refused.err) == (1, True)
    assert some.cli(*commit, *SOURCE).code == 0


def test_one_that_is_on_other_topics_of_its_cluster_is_not_shown_as_not_moved(pipelines):
    some = pipelines(1)
    some.brokers["source"].create("renamed")
    some.brokers["source"].append("renamed", 0, range(10, 100))
    some.list([some.entry("etl-0", mirror={"kafka_config_id": "source", "topics": {"orders": "renamed"}})])
    here, quiet = (*SOURCE, "--to-bootstrap-server", "source:9092"), ("--quiet-period", "0")
    some.run("plan-failover", *here)
    some.run("apply", "--execute", *SOURCE)
    location = some.queries["etl-0"].location
    back = ("failover", "apply", location, "etl-0", *here, "--topic-map", "renamed=orders")
    restore = ("group", "restore", "etl-0", "--checkpoint", location, "--archive", "0002-failover", *SOURCE)
    for command in (back, (*restore, "--execute")):
        done = some.cli(*command, *quiet)
        assert done.code == 0, done.err
    status = json.loads(some.run("status", *SOURCE, "--output", "json").out)
    assert status["pipelines"][0]["now"] == "elsewhere"


def test_status_and_apply_name_the_cluster_that_was_meant(planned):
    some = planned(2)
    for line in (("status",), ("apply", "--execute")):
        done = some.run(*line, *SOURCE, code=1)
        assert "is of cluster cluster-mirror, and the connection leads to cluster cluster-source" in done.err
    assert "on cluster cluster-mirror" in some.run("status").out
    assert some.at() == {(READ, None): 2}


def test_a_topic_that_the_mirror_has_no_more_is_no_reason_to_leave_it_out(planned, monkeypatch):
    some = planned(2)
    with monkeypatch.context() as patched:
        patched.setattr("airflow_kafka_offsets.moves.apply.commit_groups", kill)
        with pytest.raises(BaseException, match="|"):
            some.run("apply", "--execute", "--max-active", "1")
    some.brokers["mirror"].delete_topic("orders")
    failed = some.run("apply", "--execute", code=1)
    assert "correct the connection, or undo the failover: 'airflow-kafka-offsets group restore" in failed.err
    assert "correct the connection, or plan again" in failed.err


def test_the_clusters_must_not_be_swapped(pipelines):
    some = pipelines(2)
    for name, query in some.queries.items():
        commit = ("group", "commit", name, "--checkpoint", query.location, *SOURCE, "--execute")
        assert some.cli(*commit).code == 0
    swapped = ("--bootstrap-server", "mirror:9092", "--to-bootstrap-server", "source:9092")
    done = some.run("plan-failover", *swapped, code=1)
    assert "already on cluster cluster-source" in done.err
    assert not some.state.exists()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"topics": ["ordres"]}, "ordres"),
        ({"checkpoint_location": "/nowhere/cp"}, "/nowhere/cp"),
        (
            {"mirror": {"kafka_config_id": "standby", "prefix": "primary."}},
            "primary.orders-0 is not on the m",
        ),
        (
            {"mirror": {"kafka_config_id": "standby", "topics": {"ordres": "dr-orders"}}},
            "mirror.topics names 'ordres', which neither",
        ),
    ],
)
def test_an_entry_with_a_wrong_name_is_named_and_left_out(pipelines, other, said):
    some = pipelines(3)
    some.list([some.entry("etl-0"), some.entry("etl-1", **other), some.entry("etl-2")])
    done = some.run("plan-failover", code=1)
    assert "Error: group etl-1: " in done.err
    assert said in done.err
    assert some.stages() == {"planned": 2}


@pytest.mark.parametrize(
    ("mirror", "said"),
    [
        ({"prefix": "p.", "topics": {"orders": "p.orders"}}, "mirror.prefix: found for a move on one"),
        ({}, "name the topic (mirror.topics)"),
    ],
)
def test_a_move_to_another_topic_of_the_cluster_names_the_keys_of_the_file(pipelines, mirror, said):
    some = pipelines(1)
    some.list([some.entry("etl-0", mirror={"kafka_config_id": "primary", **mirror})])
    done = some.run("plan-failover", *SOURCE, "--to-bootstrap-server", "source:9092", code=1)
    assert said in done.err
    assert "--topic-map" not in done.err


def test_an_entry_without_a_mirror_is_a_wrong_file(pipelines):
    some = pipelines(1)
    some.file.write_text(json.dumps([some.entry("etl-0")]))
    assert "etl-0: mirror is missing" in some.run("plan-failover", code=2).err


@pytest.mark.parametrize("spelling", ["{}", "file://{}/"])
def test_the_same_checkpoint_twice_is_refused(pipelines, spelling):
    some = pipelines(2)
    same = spelling.format(some.queries["etl-0"].location)
    some.list([some.entry("etl-0"), {**some.entry("etl-1"), "checkpoint_location": same}])
    assert "two pipelines move checkpoint" in some.run("plan-failover", code=1).err


def test_a_plan_that_was_changed_after_its_approval_is_refused(planned):
    some = planned(2)
    value = json.loads(some.state.read_text())
    value["pipelines"][0]["plan"]["after"]["orders"]["0"] = 85
    some.state.write_text(json.dumps(value))
    assert "the plan was changed after it was made" in some.run("apply", "--execute", code=1).err
    # Planned again it has another digest than the one that was approved.
    assert "move the file away first" in some.run("plan-failover", code=2).err
    some.state.unlink()
    some.queries["etl-0"].run(2, {"orders": {0: 95}})
    some.run("plan-failover")
    refused = some.run("apply", "--execute", "--digest", value["digest"], code=1)
    assert "the plan was made again since" in refused.err
    assert some.at() == {(95, None): 1, (READ, None): 1}


@pytest.mark.parametrize("options", [(), ("--rest",)])
def test_pipelines_that_were_reset_are_not_left_out_of_a_failover(pipelines, options):
    some = pipelines(2)
    some.list([some.entry("etl-0")])
    some.run("plan", "--to-offset", "60", "--sink", "noop", *SOURCE)
    some.run("apply", "--execute", *SOURCE)
    some.list([some.entry(name) for name in some.names])
    refused = some.run("plan-failover", *options, code=2)
    assert "plan the failover in a file of its own" in refused.err
    assert some.stages() == {"applied": 1}


def test_pipelines_that_are_on_another_mirror_are_not_left_out_of_the_next_failover(pipelines):
    some = pipelines(2)
    some.list([some.entry("etl-0")])
    some.run("plan-failover")
    some.run("apply", "--execute")
    some.list([some.entry(name) for name in some.names])
    some.brokers["mirror"].cluster_id = "cluster-third"
    refused = some.run("plan-failover", "--rest", code=2)
    assert "plan the failover in a file of its own" in refused.err
    assert some.stages() == {"applied": 1}


def test_a_changed_entry_of_a_pipeline_that_was_moved_is_not_left_out_unseen(pipelines):
    some = pipelines(2)
    some.list([some.entry("etl-0")])
    some.run("plan-failover")
    some.run("apply", "--execute")
    some.list([some.entry("etl-0", group_id="other"), some.entry("etl-1")])
    refused = some.run("plan-failover", "--rest", code=1)
    assert "Error: group other: nothing was changed" in refused.err
    assert "is already on cluster cluster-mirror" in refused.err
    assert some.stages() == {"applied": 1, "planned": 1}


def test_those_that_have_not_begun_are_planned_again_beside_the_others(pipelines):
    some = pipelines(3)
    some.queries["etl-1"].plan(2, {"orders": {0: 95}})
    some.run("plan-failover", code=1)
    some.queries["etl-2"].run(2, {"orders": {0: READ + 1}})
    failed = some.run("apply", "--execute", code=1)
    assert "is no longer valid" in failed.err
    assert some.stages() == {"applied": 1, "planned": 1}
    some.queries["etl-1"].finish(2)
    assert "give --rest to plan the others" in some.run("plan-failover", code=2).err
    some.list([{**some.entry("etl-1"), "group_id": "etl-0"}, some.entry("etl-2")])
    assert "two pipelines move orders-0 of group etl-0" in some.run("plan-failover", "--rest", code=1).err
    some.list([some.entry(name) for name in some.names])
    some.run("plan-failover", "--rest")
    assert some.stages() == {"applied": 1, "planned": 2}
    some.run("apply", "--execute")
    assert some.now() == dict.fromkeys(some.names, "moved")
    assert "nothing is left to plan" in some.run("plan-failover", "--rest", code=2).err
    some.run("restore", "--execute")
    assert [query.stands()[0] for query in some.queries.values()] == [READ, 95, READ + 1]


def test_one_that_has_failed_before_its_first_write_is_planned_again_beside_those_that_have_moved(
    planned, monkeypatch
):
    some = planned(3)
    query = some.queries["etl-1"]

    def write(checkpoint, *how):
        if checkpoint.location == query.location:
            raise StorageError("no space left")
        write_archive(checkpoint, *how)

    with monkeypatch.context() as patched:
        patched.setattr("airflow_kafka_offsets.checkpoint.apply_move.write_archive", write)
        some.run("apply", "--execute", code=1)
    assert some.stages() == {"applied": 2, "applying": 1}
    query.run(2, {"orders": {0: READ + 5}})
    assert "plan again" in some.run("apply", "--execute", code=1).err
    some.run("plan-failover", "--rest")
    some.run("apply", "--execute")
    assert some.at() == {(THERE, THERE): 2, (THERE + 5, THERE + 5): 1}
    some.run("restore", "--execute")
    assert [query.stands()[0] for query in some.queries.values()] == [READ, READ + 5, READ]


def test_without_the_progress_what_has_moved_is_not_moved_again(planned, killed_after):
    some = planned(3)
    killed_after(3, lambda: some.run("apply", "--execute", "--max-active", "1"), saved=True)
    some.state.unlink()
    again = some.run("plan-failover", code=1)
    assert "Error: group etl-0: nothing was changed: " in again.err
    assert "is already on cluster cluster-mirror" in again.err
    assert "3 pipelines: 2 applied, 1 refused" in some.run("apply", "--execute", code=1).out
    assert some.at() == {(THERE, THERE): 3}


def test_while_one_person_applies_a_plan_no_other_moves_or_plans(planned):
    some = planned(2)
    with StateFile(some.file).locked():
        for line in (("apply", "--execute"), ("restore", "--execute"), ("plan-failover",)):
            assert "another process is running this recovery" in some.run(*line, code=1).err
    assert some.now() == dict.fromkeys(some.names, "not moved")


def test_two_people_who_apply_one_plan_move_each_pipeline_once(planned, tmp_path):
    """Each has a copy of the file on another machine, where no lock is seen."""
    some = planned(3)
    other = tmp_path / "other" / some.file.name
    other.parent.mkdir()
    other.write_text(some.file.read_text())
    (other.parent / some.state.name).write_text(some.state.read_text())
    some.run("apply", "--execute")
    again = some.cli("recover", "apply", other, *MIRROR, "--execute", "--quiet-period", "0")
    assert again.code == 0, again.err
    assert some.at() == {(THERE, THERE): 3}
    for query in some.queries.values():
        assert len([*ArchivedMoves(SparkCheckpoint(query.location))]) == 1
