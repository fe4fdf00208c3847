"""What has to hold of the README, the documentation and the example DAGs."""

import inspect
import json
import re
import runpy
from pathlib import Path

import click
import doc_examples
import pytest
import tomllib
from airflow.providers.common.compat.sdk import redact
from sqlalchemy import make_url

import airflow_kafka_offsets
from airflow_kafka_offsets.cli import cli
from airflow_kafka_offsets.kafka.config import client_config, dropped_keys
from airflow_kafka_offsets.kafka.oauth_token import needs_token
from airflow_kafka_offsets.operators.spark_submit import KafkaSparkSubmitOperator

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "dags_examples").glob("*.py"))
PLATFORMS = sorted((ROOT / "dags_examples" / "platforms").glob("*.py"))
CONTRIBUTING = sorted((ROOT / "docs" / "contributing").rglob("*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

SET_UP = (
    "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt uv "
    "&& .venv/bin/uv pip install -q -p .venv -c constraints.txt -e "
)
COMMANDS = {
    "demo": f"{SET_UP}'.[demo]' && .venv/bin/airflow-kafka-offsets demo",
    "tests": f"{SET_UP}'.[demo,sql]' --group dev && .venv/bin/pytest",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_readmes_commands_are_one_line_each(command):
    assert (ROOT / "README.md").read_text(encoding="utf-8").splitlines().count(command) == 1


def test_no_page_names_a_path_of_a_machine():
    path = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|work|Users|usr|opt|var|mnt)/|\b[A-Z]:\\")
    named = {page.name: path.search(page.read_text(encoding="utf-8")) for page in PAGES}
    assert not {page: found for page, found in named.items() if found}


def test_a_page_shows_the_code_of_its_examples():
    texts = [page.read_text(encoding="utf-8") for page in doc_examples.PAGES]
    shown = zip(doc_examples.PAGES, texts, doc_examples.with_examples(texts), strict=True)
    old = [str(page) for page, text, written in shown if written != text]
    assert not old, "run python tests/support/doc_examples.py"


def test_a_page_can_be_read_in_the_repository_and_pastes_no_code_that_could_be_an_example():
    block = re.compile(r"```(?:python| ?\{ \.python \})\n(.*?)```", re.DOTALL)
    for page in doc_examples.PAGES:
        text = page.read_text(encoding="utf-8")
        # The changelog is read in its own file.
        assert "--8<--" not in text or page == ROOT / "docs" / "changelog.md", page
        pasted = doc_examples.SHOWN.sub("", text)
        assert not any("Operator" in code for code in block.findall(pasted)), page


def commands_of(group, path=()):
    """The command line's commands, each with its words."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands_of(command, (*path, name))
        else:
            yield (*path, name), command


def test_the_page_of_the_command_line_has_each_option_in_its_commands_section_or_one_that_this_links():
    general, *parts = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").split("\n## ")
    sections = {part.partition("\n")[0]: part for part in parts}
    anchors = {f"(#{re.sub('[^a-z ]', '', heading).replace(' ', '-')})": heading for heading in sections}

    def linked(text):
        return "".join(sections[heading] for anchor, heading in anchors.items() if anchor in text)

    missing = {}
    for path, command in commands_of(cli):
        own = [heading for heading in sections if {*path} <= {*re.findall("[a-z-]+", heading)}] or [path[0]]
        text = "".join(map(sections.__getitem__, own))
        named = set(
            re.findall("--[a-z-]*[a-z]", "".join((general, text, linked(text), linked(linked(text)))))
        )
        missing[path] = {name for each in command.params for name in each.opts if name[:2] == "--"} - named
    assert len(missing) > 20
    assert not {path: names for path, names in missing.items() if names}


@pytest.mark.parametrize("name", ["connection.md", "production.md"])
def test_each_connection_to_copy_reaches_the_client_whole(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    assert blocks
    for block in blocks:
        settings = block.get("extra", block)
        if needs_token(settings):
            # The official provider adds it for Amazon MSK and Google.
            settings["oauth_cb"] = print
        assert client_config(settings) == settings
        assert dropped_keys(settings) == []


def test_a_page_shows_the_dag_of_each_platform():
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "platforms").glob("*.md"))
    for file in PLATFORMS:
        assert f"<!-- dags_examples/platforms/{file.name}:" in pages, file.name


@pytest.mark.parametrize("name", ["audited_window", "exactly_once"])
def test_a_database_url_in_an_example_is_masked_in_rendered_fields(name, monkeypatch):
    password = f"p@ss w/rd of {name}"
    for conn_id in ("DEPARTURES", "LAKE"):
        connection = {"conn_type": "postgres", "host": "host", "login": "user", "password": password}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps(connection))
    dag = runpy.run_path(str(ROOT / "dags_examples" / f"{name}.py"))["dag"]
    (job,) = (task for task in dag.tasks if isinstance(task, KafkaSparkSubmitOperator))
    url = job.render_template(job.env_vars, {"run_id": "manual"}, dag.get_template_env())["DATABASE_URL"]
    assert make_url(url).password == password
    assert redact(url) == "***"


def test_the_sdist_has_the_files_that_its_tests_read():
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    included = set(targets["targets"]["sdist"]["include"])
    assert {page.relative_to(ROOT).parts[0] for page in [*PAGES, *EXAMPLES]} <= included


def test_the_readme_on_pypi_has_no_relative_link():
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"][
        "hooks"
    ]["fancy-pypi-readme"]
    text = "".join((ROOT / part["path"]).read_text(encoding="utf-8") for part in hook["fragments"])
    relative = re.findall(r"\]\((?!https?:|#)([^)]+)\)", text)
    assert relative
    for path in relative:
        assert (ROOT / path.partition("#")[0]).exists(), path
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)|<(?:img|a)[^>]*(?:src|href)=\"([^\"]+)\"", text)
    assert [target for pair in targets for target in pair if target and "://" not in target] == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert all(picture.startswith("https://raw.githubusercontent.com/") for picture in pictures)


def test_the_public_api_page_shows_no_internals():
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: airflow_kafka_offsets\.(\S+)$", text, re.MULTILINE)
    internal = (
        "local",
        "moves",
        "task",
        "waits",
        "operators.base",
        "operators.moving",
        "sensors.base",
        "triggers.wait",
    )
    assert [name for name in shown if name.startswith(internal)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/reference/api.md", "docs/reference/security.md"])
def test_each_page_with_a_row_for_every_task_has_the_newest_one(page):
    tasks = {
        name for name in airflow_kafka_offsets.__all__ if name.endswith(("Operator", "Sensor", "Trigger"))
    }
    if page == "README.md":
        # It is the official provider's operator, and moves nothing.
        tasks.remove("KafkaSparkSubmitOperator")
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not [name for name in tasks if name not in text]


def test_each_parameter_of_a_task_is_on_a_page_about_tasks():
    pages = [*(ROOT / "docs" / "operators").glob("*.md"), *(ROOT / "docs").glob("*.md")]
    words = set(re.findall(r"\w+", "".join(page.read_text(encoding="utf-8") for page in pages)))
    missing = [
        (name, parameter)
        for name in airflow_kafka_offsets.__all__
        if name.endswith(("Operator", "Sensor", "Trigger"))
        for parameter in inspect.signature(getattr(airflow_kafka_offsets, name).__init__).parameters
        if parameter not in words | {"self", "args", "kwargs"}
    ]
    assert not missing


def test_the_files_that_a_page_for_contributors_names_are_there():
    bases = (ROOT, ROOT / "airflow_kafka_offsets")
    named = [
        (page.name, name)
        for page in CONTRIBUTING
        for name in re.findall(r"`([a-z_/]+/(?:[a-z_]+\.(?:py|md))?)`", page.read_text())
    ]
    assert [each for each in named if not any((base / each[1]).exists() for base in bases)] == []


def test_the_offsets_tab_links_to_sections_that_the_runbook_has():
    script = (ROOT / "airflow_kafka_offsets" / "ui" / "static" / "verdicts.js").read_text(encoding="utf-8")
    (site,) = re.findall(
        r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert f'const RUNBOOK = "{site}runbook/"' in script
    (table,) = re.findall(r"const SECTIONS = \{(.*?)\};", script, re.DOTALL)
    linked = {*re.findall(r': "([\w-]+)"', table), "drift"}
    titles = re.findall(
        r"^## (.*)$", (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert linked <= {title.lower().replace(" ", "-") for title in titles}


def test_a_decision_is_short_and_says_what_would_change_it():
    for page in CONTRIBUTING:
        if page.parent.name == "decisions" and page.stem != "index":
            text = page.read_text()
            assert len(text.splitlines()) <= 60, page
            headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
            assert headings == ["Context", "Decision", "Consequences", "What would change our mind"], page
