"""
Writes code from ``dags_examples`` into the pages that show it, so that they can be read in the repository.

A page names the file, and a section of it unless it shows all of it, in a comment before the code. Run this
after an example has changed::

    python tests/support/doc_examples.py
"""

import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(
    r"(<!-- (dags_examples/[\w/]+\.\w+)(?::(\w+))? -->\n```(?:python|yaml)\n)(.*?)(?=^```$)",
    re.DOTALL | re.MULTILINE,
)
MARKER = re.compile(r"(\n*)\n *# --8<-- .*\n(\n*)")


def with_examples(pages: list[str]) -> list[str]:
    """Return pages with the code that their comments name, as ruff formats it."""
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, f"{number}.md") for number, _ in enumerate(pages)]
        for file, page in zip(files, pages, strict=True):
            written = SHOWN.sub(lambda shown: shown[1] + _code(shown[2], shown[3]), page)
            file.write_text(written, encoding="utf-8")
        settings = str(ROOT / "pyproject.toml")
        command = [
            sys.executable,
            "-m",
            "ruff",
            "format",
            "--no-cache",
            "--config",
            settings,
            *map(str, files),
        ]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        return [file.read_text(encoding="utf-8") for file in files]


def _code(path: str, section: str | None) -> str:
    source = (ROOT / path).read_text(encoding="utf-8")
    if section is None:
        return source
    start, end = (rf"^ *# --8<-- \[{mark}:{section}\]\n" for mark in ("start", "end"))
    found = re.search(f"{start}(.*?){end}", source, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"{path} has no section {section!r}")
    # The formatter puts blank lines around the markers of other sections, too.
    code = MARKER.sub(lambda marker: "\n" + max(marker[1], marker[2]), "\n" + textwrap.dedent(found[1]))
    return code.strip("\n") + "\n"


if __name__ == "__main__":
    before = [file.read_text(encoding="utf-8") for file in PAGES]
    for file, page in zip(PAGES, with_examples(before), strict=True):
        file.write_text(page, encoding="utf-8")
