"""What has to hold of the workflows, the issue forms and the groups of dependencies that they install."""

import re
from pathlib import Path

import pytest
import tomllib
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yml"

PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+")


def jobs(workflow):
    return yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_pinned_by_its_commit_with_the_version_beside_it(workflow):
    used = re.findall(r"uses: (.+)", workflow.read_text(encoding="utf-8"))
    assert used
    assert [each for each in used if not PINNED.fullmatch(each)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_no_rights_beyond_reading_unless_a_job_names_them(workflow):
    assert yaml.safe_load(workflow.read_text(encoding="utf-8"))["permissions"] in ({}, {"contents": "read"})


def test_one_version_of_an_action_is_used_everywhere():
    used = {
        each for path in WORKFLOWS for each in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    }
    names = [each.partition("@")[0] for each in used]
    assert sorted(names) == sorted(set(names))


def test_only_the_jobs_that_run_no_code_of_the_repository_may_sign_publish_or_write():
    for name, job in jobs(RELEASE).items():
        runs_it = any("checkout" in step.get("uses", "") for step in job["steps"])
        writes = {right for right, level in job["permissions"].items() if level == "write"}
        assert not (runs_it and writes), name


def test_what_is_published_was_tested_built_checked_and_attested():
    release = jobs(RELEASE)
    assert ".ci/supply" in [step.get("run") for step in release["build"]["steps"]]
    assert ".ci/run" in [step.get("run") for step in release["test"]["steps"]]
    assert set(release["attest"]["needs"]) == {"test", "build"}
    assert release["publish"]["needs"] == "attest"
    assert release["publish"]["environment"]["name"] == "pypi"
    assert release["publish"]["permissions"] == {"id-token": "write"}


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_an_issue_form_asks_for_the_versions_that_doctor_prints(form):
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text(encoding="utf-8")
    fields = {each["id"]: each for each in yaml.safe_load(text)["body"] if each["type"] != "markdown"}
    assert "airflow-kafka-offsets doctor" in fields["doctor"]["attributes"]["description"]


def test_every_group_that_a_script_or_workflow_installs_is_there():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "supply", *WORKFLOWS]
    lines = [line for file in files for line in file.read_text("utf-8").splitlines() if "pip" in line]
    installed = {name for line in lines for name in re.findall(r"--group (\w+)", line)}
    assert installed == {"dev", "docs", "release"}
    assert installed <= set(groups)
