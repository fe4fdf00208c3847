"""The comparison of pinned versions with a clone of PyPA's advisory database."""

import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version

SCRIPT = Path(__file__).parents[2] / ".ci" / "advisories.py"
PINS = "made-up==1.5\nother[extra]==2.0 ; python_full_version < '3.12'\n"
# 3.10 is a number for YAML.
AFFECTED = """\
aliases:
- CVE-2024-1
affected:
- package:
    ecosystem: PyPI
    name: Made_Up
  ranges:
  - type: ECOSYSTEM
    events:
    - introduced: "0"
    - fixed: 3.10
"""


@pytest.fixture(scope="module")
def advisories():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def advisory(*events, name="made-up", **more):
    ranges = [
        {"type": "GIT", "events": [{"introduced": "0"}]},
        {"type": "ECOSYSTEM", "events": list(events)},
    ]
    return {"affected": [{"package": {"name": name}, "ranges": ranges}], **more}


@pytest.mark.parametrize(
    ("events", "affected"),
    [
        ([{"introduced": "0"}], True),
        ([{"introduced": "1.5"}], True),
        ([{"introduced": "1.5.1"}], False),
        ([{"introduced": "1.0"}, {"fixed": "1.5"}], False),
        ([{"introduced": "1.0"}, {"fixed": "1.10"}], True),
        ([{"introduced": "1.0"}, {"last_affected": "1.5"}], True),
        ([{"introduced": "1.0"}, {"last_affected": "1.4.9"}], False),
        ([{"introduced": "1.0"}, {"fixed": "1.2"}, {"introduced": "1.4"}, {"fixed": "1.6"}], True),
        ([{"introduced": "1.0"}, {"fixed": "1.2"}, {"introduced": "1.6"}], False),
        ([{"introduced": "1.4"}, {"fixed": "1.2"}, {"introduced": "1.0"}], True),
    ],
)
def test_a_version_in_a_range_is_affected(advisories, events, affected):
    assert advisories.affects(advisory(*events), "made-up", Version("1.5")) is affected


@pytest.mark.parametrize(("listed", "affected"), [("1.50", False), ("1.5.0", True), ("2004b", False)])
def test_a_version_that_is_listed_is_affected(advisories, listed, affected):
    package = {"package": {"name": "Made_Up"}, "versions": [listed]}
    assert advisories.affects({"affected": [package]}, "made-up", Version("1.5")) is affected


@pytest.mark.parametrize("more", [{"withdrawn": "2024-02-01T00:00:00Z"}, {"name": "other"}])
def test_what_was_withdrawn_or_is_about_another_package_affects_nothing(advisories, more):
    assert not advisories.affects(advisory({"introduced": "0"}, **more), "made-up", Version("1.5"))


@pytest.fixture
def compare(advisories, tmp_path, capsys):
    """Return what is printed of a database with these files, and whether it is an error."""

    def compared(pins=PINS, **files):
        for name, text in files.items():
            (tmp_path / "vulns" / name).mkdir(parents=True)
            (tmp_path / "vulns" / name / "1.yaml").write_text(text)
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        for command in (["init", "-q"], ["add", "vulns"], [*who, "commit", "-q", "-m", "x"]):
            subprocess.run(["git", "-C", tmp_path, *command], check=True, timeout=60)
        constraints = tmp_path / "constraints.txt"
        constraints.write_text(pins)
        failed = False
        try:
            advisories.main(tmp_path, constraints)
        except SystemExit:
            failed = True
        return failed, capsys.readouterr().out

    return compared


def test_advisories_on_pinned_versions_are_printed_and_an_error(compare):
    failed, printed = compare(made_up=AFFECTED, other="id: x", unpinned=AFFECTED)
    assert failed
    assert "made-up 1.5: vulns/made_up/1.yaml (CVE-2024-1)\n" in printed
    assert "other 2.0: vulns/other/1.yaml cannot be compared: KeyError('affected')\n" in printed
    assert "2 pinned versions, 2 advisories on these packages, 2 apply.\n" in printed
    assert "0 days ago: nothing later is known" in printed


def test_no_advisory_on_a_pinned_version_is_no_error(compare):
    failed, printed = compare("made-up==3.10\n", made_up=AFFECTED)
    assert (failed, "1 advisories on these packages, 0 apply" in printed) == (False, True)


def test_a_database_that_knows_none_of_the_packages_is_an_error(compare):
    assert compare(unpinned=AFFECTED)[0]


@pytest.mark.parametrize("events", [[], [{"introduced": "soon"}]], ids=["only commits", "no version"])
def test_an_advisory_that_cannot_be_compared_is_an_error(advisories, events):
    one = advisory(*events)
    del one["affected"][0]["ranges"][1 if not events else 0]
    with pytest.raises(ValueError, match="only commits|soon"):
        advisories.affects(one, "made-up", Version("1.5"))


def test_a_line_that_pins_nothing_is_refused(advisories):
    with pytest.raises(ValueError, match="'made-up>=1.5' is not a pinned version"):
        advisories.read_pins("made-up>=1.5\n")
