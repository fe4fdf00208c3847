"""The documentation as it is published."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation, built as strictly as MkDocs can."""
    pytest.importorskip("mkdocs")
    target = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(
        [*build, "-f", str(ROOT / "mkdocs.yml"), "-d", str(target)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_is_in_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        built = site / (name.parent if name.name == "index" else name) / "index.html"
        assert built.is_file(), name


def test_the_site_fetches_nothing_from_elsewhere(site):
    fetched = re.compile(
        r'<(?:link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href|script[^>]*src|img[^>]*src)="(https?:)'
    )
    for page in site.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), page.name


def test_an_example_names_its_file(site):
    named = re.findall(r'<span class="filename">(.*?)</span>', (site / "how-to/gate/index.html").read_text())
    assert named == ["dags_examples/commit_and_gate.py", "dags_examples/daily_flights.py"]
