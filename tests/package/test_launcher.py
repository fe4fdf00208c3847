"""The launcher of a Spark job, started as spark-submit starts it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_offsets.spark.listener import launcher


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("ending", "status"), [("sys.exit(3)", 3), ("raise ValueError('of the job')", 1), ("pass", 0)]
)
def test_the_exit_status_is_the_jobs(ending, status, tmp_path):
    job = tmp_path / "job.py"
    (tmp_path / "beside.py").write_text("found = True")
    job.write_text(
        "import json, sys\nimport beside\nprint(json.dumps([__name__, sys.argv]))\nassert "
        f"beside.found\n{ending}\n"
    )
    done = python(launcher.launcher_path(), "--group-id", "g", str(job), "--group-id", "its own", "-x")
    assert json.loads(done.stdout) == ["__main__", [str(job), "--group-id", "its own", "-x"]]
    assert done.returncode == status
    assert ("of the job" in done.stderr) == (status == 1)


def test_a_job_that_is_not_there_is_said():
    done = python(launcher.launcher_path(), "/no/such/job.py")
    assert done.returncode == 1
    assert "file /no/such/job.py does not exist" in done.stderr


@pytest.mark.parametrize("group", ["", "padded ", '{"source:0": "g"}'])
def test_a_group_that_cannot_be_is_refused_before_the_job_runs(group, tmp_path):
    job = tmp_path / "job.py"
    job.write_text("print('it ran')")
    done = python(launcher.launcher_path(), "--group-id", group, str(job))
    assert (done.returncode, done.stdout) == (2, "")
    assert "argument --group-id: group_id" in done.stderr


def test_without_the_package_it_is_said_how_to_give_it(tmp_path):
    alone = tmp_path / "a" / "b" / "launcher.py"
    alone.parent.mkdir(parents=True)
    alone.write_bytes(Path(launcher.launcher_path()).read_bytes())
    done = python("-I", "-S", str(alone), "job.py")
    assert done.returncode == 1
    assert "--py-files the zip that spark_py_files() returns" in done.stderr
