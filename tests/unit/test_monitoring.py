"""Do the rules and the dashboard name metrics that there are, and can Prometheus read them?"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml

from airflow_kafka_offsets.task.metrics import CounterName

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "monitoring"
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
REPORTED = dict(re.findall(r"^\| `kafka_offsets\.(\w+)` \| (\w+) \|", METRICS, re.MULTILINE))
RULES = MONITORING / "prometheus-rules.yml"
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
NAMED = re.compile(r"airflow_kafka_offsets_([a-z_]+?)(\(_total\)\?|_total)?(?![a-z_])")


def rules():
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def queries():
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])


def test_the_documentation_lists_what_the_package_reports():
    source = (ROOT / "airflow_kafka_offsets" / "task" / "metrics.py").read_text(encoding="utf-8")
    gauges = re.findall(r'_gauge\("(\w+)"', source)
    assert {*gauges, *get_args(CounterName)} == REPORTED.keys()


@pytest.mark.parametrize("query", [*queries()])
def test_each_query_names_a_metric_as_prometheus_has_it(query):
    named = NAMED.findall(query)
    assert named
    for name, suffix in named:
        assert name in REPORTED
        assert bool(suffix) == (REPORTED[name] == "counter"), name


def test_the_dashboard_shows_every_metric():
    shown = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    assert {name for name, _ in NAMED.findall(shown)} == REPORTED.keys()


def test_each_alert_links_to_a_section_of_the_runbook():
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    anchors = {
        "",
        *(title.lower().replace(" ", "-") for title in re.findall(r"^## (.*)$", page, re.MULTILINE)),
    }
    (site,) = re.findall(
        r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    for rule in rules():
        address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert address == f"{site}runbook/"
        assert anchor in anchors, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_panels_of_the_dashboard_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus's promtool")
@pytest.mark.parametrize("command", [["check", "rules", "--lint-fatal"], ["test", "rules"]])
def test_promtool_reads_the_rules_and_they_fire(command):
    file = RULES if command[0] == "check" else MONITORING / "prometheus-rules-test.yml"
    done = subprocess.run(
        ["promtool", *command, file.name],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
