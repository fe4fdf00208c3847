import contextlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow_users import WithUsers, user_variables
from fleet_example import FEW, FLEET, write_example
from java_programs import openlineage_spark
from running_airflow import RunningAirflow, make_sqlite
from warm_python import DAG_FOLDER, WarmPython

from airflow_kafka_offsets.checkpoint.reader import SparkCheckpoint
from airflow_kafka_offsets.local.demo import FIRST_DAY, demo_environment
from airflow_kafka_offsets.local.demo_days import MARK
from airflow_kafka_offsets.model.offsets import TopicPartition

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
SYSTEM = Path(__file__).parent
MOVED_BY_USERS = (
    SYSTEM / "live_recovery" / "recovery.py",
    SYSTEM / "live_recovery" / "judged.py",
    SYSTEM / "live_approval" / "approval.py",
    EXAMPLES / "approved_reset.py",
)
FLIGHTS, REFUSED = EXAMPLES / "daily_flights.py", SYSTEM / "lineage_dags" / "refused.py"
TIMEOUT = 300.0

RUN_FIRST_DAY = """
import sys
from pathlib import Path
from datetime import datetime, timezone
from airflow_kafka_offsets.local import demo_days

flights, refused, day = sys.argv[1:]
day_ended = demo_days.main(flights, [day])
sys.path.insert(0, str(Path(refused).parent))
import refused
run = refused.dag.test(logical_date=datetime.now(tz=timezone.utc))
print(f"\\n@@ {day_ended} {run.state}")
"""

RUN = """
import importlib.util, json, sys
from datetime import datetime, timezone

file, conf = sys.argv[1], json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location("the_dag", file)
module = importlib.util.module_from_spec(spec)
sys.modules["the_dag"] = module
spec.loader.exec_module(module)
at = datetime.fromisoformat(sys.argv[3]) if sys.argv[3:] else datetime.now(tz=timezone.utc)
run = module.dag.test(run_conf=conf, logical_date=at)
instances = run.get_task_instances()
# Airflow 3.1 cannot pull what all instances of a mapped task have left.
results = {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in instances if ti.map_index < 0}
states = {ti.task_id: str(ti.state) for ti in instances}
print("@@" + json.dumps({"state": str(run.state), "states": states, "results": results}, default=str))
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Show what the processes of a running Airflow have said when a test with it fails."""
    report = yield
    if report.failed:
        for name, value in item.funcargs.items():
            airflow = getattr(value, "live", value)
            if isinstance(airflow, RunningAirflow):
                report.sections.append((f"Airflow of {name}", airflow.said()))
    return report


@pytest.fixture(scope="session")
def airflow(bootstrap_servers, run_directory, tmp_path_factory, spark_settings):
    """
    An Airflow of the tests' own, with connections to the real Kafka and to a Spark on this machine.

    The connector that its jobs name is fetched for spark_settings.
    """
    home = tmp_path_factory.mktemp("airflow")
    environment = demo_environment(home, EXAMPLES, bootstrap_servers)
    quick = spark_settings["spark.driver.extraJavaOptions"]
    environment |= dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), quick)
    make_sqlite(environment, home, run_directory)

    def run(*arguments, log=None, **variables):
        """Run Python; with a log the output and the errors go there, to be watched meanwhile."""
        if not any(name.startswith("AIRFLOW__") for name in variables if name != DAG_FOLDER):
            return warm.run(arguments, variables, log, TIMEOUT)
        with log.open("w") if log else contextlib.nullcontext(subprocess.PIPE) as output:
            return subprocess.run(
                [sys.executable, *arguments],
                env={**environment, **variables},
                cwd=home,
                stdout=output,
                stderr=subprocess.STDOUT if log else subprocess.PIPE,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )

    vars(run).update(home=home, environment=environment)
    with WarmPython(environment, home) as warm:
        yield run


@pytest.fixture(scope="session")
def folder_of(airflow):
    """folder_of(file) -> a DAG folder, as a variable: before each run Airflow reads all of its files."""

    def alone(*files):
        folder = airflow.home / "alone" / "-".join(file.stem for file in files)
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            if not (link := folder / file.name).exists():
                link.symlink_to(file)
        return {DAG_FOLDER: str(folder)}

    return alone


def results_of_days(printed):
    """What the tasks left in XCom, by day."""
    told = [json.loads(line.removeprefix(MARK)) for line in printed.splitlines() if line.startswith(MARK)]
    return [results for results in told if "state" in results]


@pytest.fixture(scope="session")
def first_day(airflow, folder_of, tmp_path_factory):
    """
    The results of the first day of flights. Both sides of it have told their lineage, and so has a commit
    that was refused after it: ``airflow_events`` and ``spark_events`` are files.
    """
    conf = tmp_path_factory.mktemp("lineage")
    airflow_events, spark_events = conf / "airflow.jsonl", conf / "spark.jsonl"
    settings = {
        "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
        "spark.jars": ",".join(map(str, openlineage_spark())),
        "spark.openlineage.transport.type": "file",
        "spark.openlineage.transport.location": str(spark_events),
    }
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (conf / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    transport = {"type": "file", "log_file_path": str(airflow_events), "append": True}
    done = airflow(
        *("-c", RUN_FIRST_DAY, str(FLIGHTS), str(REFUSED), FIRST_DAY.isoformat()),
        AIRFLOW__OPENLINEAGE__NAMESPACE="flights",
        AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO="True",
        AIRFLOW__OPENLINEAGE__TRANSPORT=json.dumps(transport),
        SPARK_CONF_DIR=str(conf),
        **folder_of(FLIGHTS, REFUSED),
    )
    assert "@@ 0 failed" in done.stdout.splitlines(), done.stdout[-4000:] + done.stderr[-2000:]
    (results,) = results_of_days(done.stdout)
    return SimpleNamespace(results=results, airflow_events=airflow_events, spark_events=spark_events)


@pytest.fixture(scope="session")
def run_days(airflow, folder_of, first_day):
    """Runs the daily DAG for days after the first, and returns what its tasks left in XCom."""

    def run(*days):
        module = "airflow_kafka_offsets.local.demo_days"
        done = airflow("-m", module, str(FLIGHTS), *days, **folder_of(FLIGHTS))
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return results_of_days(done.stdout)

    return run


@pytest.fixture(scope="session")
def output(airflow):
    """What the daily DAG has written."""
    return airflow.home / "flights" / "output"


@pytest.fixture(scope="session")
def run_dag(airflow, folder_of):
    """
    run_dag("recover_flights.py", since=...) -> the state of the run, and what unmapped tasks left in XCom.

    logical_date: ISO 8601 text; variables: of the environment; the other keywords are the run's conf.
    """

    def run(name, *, logical_date=None, variables=None, **conf):
        date = [logical_date] if logical_date else []
        file = EXAMPLES / name
        folder = folder_of(file) if file.parent == EXAMPLES else {DAG_FOLDER: str(file.parent)}
        done = airflow("-c", RUN, str(file), json.dumps(conf), *date, **folder, **(variables or {}))
        told = [line for line in done.stdout.splitlines() if line.startswith("@@")]
        assert told, done.stdout[-4000:] + done.stderr[-2000:]
        print(done.stdout)  # shown where a test fails
        return json.loads(told[0][2:])

    return run


@pytest.fixture(scope="module")
def two_days_of_flights(make_topic, produce):
    """A topic with two days of flights, in the order in which they left."""
    flights = runpy.run_path(str(EXAMPLES / "daily_flights.py"))
    days = date(2013, 1, 1), date(2013, 1, 2)
    events = [event for day in days for event in flights["departures"](day)]
    name = make_topic(3, config={"retention.ms": "-1"})
    produce(
        name,
        [
            {
                "partition": flights["AIRPORTS"].index(event["origin"]),
                "value": json.dumps(event),
                "timestamp": event["timestamp"],
            }
            for event in sorted(events, key=lambda event: event["timestamp"])
        ],
    )
    return name


@pytest.fixture(scope="session")
def broker_end(broker):
    """broker_end(topic) -> {partition: log end}."""

    def ends(topic):
        partitions = [TopicPartition(topic, number) for number in broker.partitions([topic])[topic]]
        return {tp.partition: log.end for tp, log in broker.log_ranges(partitions).items()}

    return ends


@pytest.fixture(scope="session")
def airflow_with_users(until_scope_ends, bootstrap_servers, make_topic, postgres, tmp_path_factory):
    """A running Airflow with the users ada and bob; its DAGs find ``variables`` in their environment."""
    home = tmp_path_factory.mktemp("with-users")
    # A picture shows the path.
    lake = Path(tempfile.mkdtemp(prefix="lake-"))
    shared = ("RECOVERY", "APPROVAL", "FLEET")
    variables = {
        **{f"{name}_HOME": str(home / name.lower()) for name in shared},
        **{f"{name}_TOPIC": make_topic(1) for name in shared},
        "LAKE": str(lake),
        "APPROVAL_NAMES": "approved,rejected,unanswered,defaulted,own,planned_again,triggered",
    }
    # A run of a schedule that was deleted is created again when its DAG's file is read.
    more = {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5"} if os.environ.get("LONG_TESTS") else {}
    if FLEET != FEW:
        more["AIRFLOW__CORE__PARALLELISM"] = "8"
    users = user_variables(home)
    fleet = write_example(home, Path(variables["FLEET_HOME"]), variables["FLEET_TOPIC"])
    files = [*MOVED_BY_USERS, *fleet]
    airflow = WithUsers(home / "airflow", bootstrap_servers, files, postgres, **variables, **users, **more)
    with until_scope_ends.enter(airflow) as running:
        vars(running).update(variables=variables)
        yield running
    shutil.rmtree(lake, ignore_errors=True)


@pytest.fixture
def at(live, topic, broker):
    """at(name) -> where a pipeline's group and checkpoint are, in a module with ``live`` and ``topic``."""
    tp = TopicPartition(topic, 0)

    def look(name):
        state = SparkCheckpoint(str(live.pipelines / name)).read()
        return broker.committed(f"{name}-{topic}", [tp])[tp].offset, state.kafka_offsets["0"][tp]

    return look
