import contextlib
import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from deadlines import until

from airflow_kafka_offsets.model.offsets import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.integration]

GATE_DAG = """
import sys
from airflow.sdk import DAG, task
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor

orders = KafkaPipeline(group_id="GROUP", topics=["TOPIC"])

with DAG("gate", default_args=dict(orders)) as dag:
    commit = CommitOffsetsOperator(
        task_id="commit", offsets={"TOPIC": {"0": 2}}, outlets=[orders.asset], topics="{{ ['TOPIC'] | tojson }}"
    )
    gate = OffsetsReachedSensor(task_id="gate", deferrable=True, poke_interval=0.5, timeout=60, target="latest")
    commit >> gate

if __name__ == "__main__":
    import json
    run = dag.test()
    results = {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in run.get_task_instances()}
    print("@@" + json.dumps({"state": str(run.state), **results}))
"""


def test_the_package_is_listed_among_the_providers(airflow):
    listed = json.loads(airflow("-m", "airflow", "providers", "list", "-o", "json").stdout)
    assert "airflow-kafka-offsets" in {provider["package_name"] for provider in listed}


def test_a_deferred_gate_lets_the_run_end_when_somebody_else_commits(
    airflow, make_topic, produce, new_group, broker, tmp_path
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 5})
    dags = tmp_path / "dags"
    dags.mkdir()
    file = dags / "gate.py"
    file.write_text(GATE_DAG.replace("GROUP", group).replace("TOPIC", topic))
    log = tmp_path / "log"
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(airflow, str(file), log=log, AIRFLOW__CORE__DAGS_FOLDER=str(dags))
        until(
            lambda: run.done() or (log.exists() and "running trigger in line" in log.read_text()), seconds=120
        )
        broker.commit(group, {TopicPartition(topic, 0): 5})
        run.result()
    said = log.read_text()
    assert "Trigger completed" in said, said[-4000:]
    (told,) = [json.loads(line[2:]) for line in said.splitlines() if line.startswith("@@")]
    assert told["state"] == "success"
    assert told["commit"]["after"] == {topic: {"0": 2}}
    assert told["gate"]["reached"] is True
    assert told["gate"]["target"] == {topic: {"0": 5}}


def children_of(marker):
    """Processes whose command line names the marker."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # It may end while we look.
        with contextlib.suppress(OSError):
            if marker.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("ctrl_c_is_heard")
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="finds processes by /proc")
def test_a_demo_that_is_interrupted_leaves_no_process_behind(tmp_path):
    home = tmp_path / "demo"
    demo = subprocess.Popen(
        [sys.executable, "-m", "airflow_kafka_offsets.cli", "demo", "--directory", str(home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = home / "airflow-dag.log"

    def in_the_middle_of_sparks_work():
        return log.exists() and "starting task_id=process" in log.read_text()

    until(lambda: demo.poll() is not None or in_the_middle_of_sparks_work(), seconds=240)
    assert demo.poll() is None, demo.communicate()[0]
    assert children_of(str(home))
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, said
    assert "no process is left running" in said
    assert children_of(str(home)) == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.spark
def test_the_failover_demo_goes_on_at_the_mirror_where_the_first_kafka_ended(tmp_path):
    command = [sys.executable, "-m", "airflow_kafka_offsets.cli", "demo", "--fail-over"]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert (done.returncode, "Everything agrees" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.usefixtures("ctrl_c_is_heard")
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="finds processes by /proc")
def test_a_demo_with_a_ui_shows_it_until_ctrl_c_and_leaves_no_process_behind(tmp_path):
    home = tmp_path / "demo"
    log = tmp_path / "demo.log"
    with log.open("w") as output:
        demo = subprocess.Popen(
            [sys.executable, "-m", "airflow_kafka_offsets.cli", "demo", "--ui", "--directory", str(home)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: demo.poll() is not None or "Press Ctrl-C" in log.read_text(), seconds=600)
        said = log.read_text()
        assert demo.poll() is None, said
        ((address, user, password),) = re.findall(
            r"Airflow is at +(\S+)\nlog in as +(\S+)\nwith password +(\S+)\n", said
        )
        url = address.partition("/dags/")[0]
        assert httpx.get(address, timeout=30).status_code == 200
        assert httpx.get(f"{url}/kafka-offsets/", timeout=30).status_code == 401
        answer = httpx.post(f"{url}/auth/token", json={"username": user, "password": password}, timeout=30)
        token = {"Authorization": f"Bearer {answer.json()['access_token']}"}
        found = httpx.get(f"{url}/kafka-offsets/api/pipelines", headers=token, timeout=30).json()["pipelines"]
        assert {pipeline["dag_id"] for pipeline in found} == {
            "daily_flights",
            "one_bad_day",
            "recover_flights",
        }
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(timeout=90)
    assert demo.returncode == 0, log.read_text()
    assert "no process is left running" in log.read_text()
    assert children_of(str(home)) == []
    with pytest.raises(httpx.TransportError):
        httpx.get(url, timeout=5)
