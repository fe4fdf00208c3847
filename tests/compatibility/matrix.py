"""
Runs a part of the tests on every version that the package is for, and prints the table of the documentation.

A cell changes one thing and leaves the others as they are in ``constraints.txt``: Python, Airflow, the broker
or Spark. Run it from the development environment::

    python tests/compatibility/matrix.py                          # every cell
    python tests/compatibility/matrix.py kafka-3.9 spark-4.2      # those that you name
    python tests/compatibility/matrix.py spark-3.5 --python python3.10 -k pending
    python tests/compatibility/matrix.py --list

Environments and jars are kept for the next time. The exit status is 1 if a test failed in any cell, or a cell
did not run. ``uv`` installs the environments if it is on the PATH, else ``pip``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import click
from environments import (  # type: ignore[import-not-found]  # it is beside this script
    ROOT,
    VERSIONS,
    Outcome,
    output_of,
    run_tests,
    run_version,
)

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local.cache import cache_directory, lock_file

INSTALL_LIMIT = 1200
DEFAULT_PYTHON = "3.11"
AIRFLOW, PYTHON = ("3.4.0b2", "3.3.2", "3.2.2", "3.1.8"), ("3.11", "3.12", "3.13")
OF_AIRFLOW = (
    "tests/unit/hooks",
    "tests/unit/model",
    "tests/unit/operators",
    "tests/unit/sensors",
    "tests/unit/task",
    "tests/unit/triggers",
    "tests/unit/ui",
    "tests/integration/operators/test_commit.py",
    "tests/integration/sensors/test_gates.py",
    "tests/integration/ui",
    "tests/browser",
    "tests/system/test_hours_3_1.py",
    "tests/system/test_task_loops.py",
)
OF_KAFKA = (
    "tests/contract",
    "tests/integration/kafka/test_client.py",
    "tests/integration/kafka/test_fenced.py",
    "tests/integration/kafka/test_many_groups.py",
    "tests/integration/kafka/test_records.py",
    "tests/integration/readings/test_headroom.py",
)
OF_SPARK = "not connect"


class Cell(NamedTuple):
    """One version that is tried: of what, which, and with which Python."""

    subject: str
    version: str
    python: str = DEFAULT_PYTHON

    @property
    def name(self) -> str:
        """As it is named on the command line."""
        short = ".".join(self.version.split(".")[:2])
        other = "" if self.python == DEFAULT_PYTHON else f"-python-{self.python}"
        return f"{self.subject.lower()}-{short}{other}"


CELLS = {
    cell.name: cell
    for cell in (
        *(Cell("Airflow", version, python) for version in AIRFLOW for python in PYTHON),
        Cell("Kafka", "3.9.1"),
        *(Cell("Kafka", version) for version in ("4.0.0", "4.1.0", "4.2.0", "4.3.1", "4.4.0")),
        *(Cell("Spark", version) for version in VERSIONS),
    )
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(CELLS)), metavar="[CELL]...")
@click.option("--list", "listed", is_flag=True, help="Only print the names of the cells.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where environments and jars are kept.")
@click.option("--python", default=sys.executable, help="The Python of Spark's cells. Default: this one.")
@click.option(
    "-k", "chosen", default=OF_SPARK, show_default=True, help="Tests of Spark's cells, as in pytest."
)
def main(names: tuple[str, ...], listed: bool, directory: Path | None, python: str, chosen: str) -> None:
    """Run the cells of the matrix (default: all) and print its table."""
    if listed:
        click.echo("\n".join(CELLS))
        return
    directory = (directory or cache_directory() / "compatibility").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    # A shell lets what it starts in the background ignore Ctrl-C, by which the tests are asked to end.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # So that an end from outside is one to clean up after, like Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    outcomes = {}
    for name in names or CELLS:
        click.echo(f"--- {name}", err=True)
        outcomes[name] = _run(CELLS[name], directory, python, chosen)
        # Each at once: a matrix that is given up has shown what it knows.
        click.echo(_row(CELLS[name], outcomes[name]))
    click.echo(
        "\n| | version | Python | passed | failed | skipped | seconds |\n|---|---|---|---|---|---|---|"
    )
    for name, outcome in outcomes.items():
        click.echo(_row(CELLS[name], outcome))
    sys.exit(any(outcome.failed or outcome.trouble for outcome in outcomes.values()))


def _row(cell: Cell, outcome: Outcome) -> str:
    version = VERSIONS[cell.version].pyspark if cell.subject == "Spark" else cell.version
    ran = f"{outcome.passed} | {outcome.failed} | {outcome.skipped} | {outcome.seconds:.0f}"
    last = ran if not outcome.trouble else f"{ran} ({outcome.trouble.strip().splitlines()[-1][:100]})"
    return f"| {cell.subject} | {version} | {outcome.python} | {last} |"


def _run(cell: Cell, directory: Path, python: str, chosen: str) -> Outcome:
    started = time.monotonic()
    try:
        if cell.subject == "Spark":
            return run_version(cell.version, directory, python, ["-k", chosen])
        if cell.subject == "Kafka":
            settings = {"AIRFLOW_KAFKA_OFFSETS_KAFKA_VERSION": cell.version}
            return run_tests(Path(sys.executable), ["-n0", *OF_KAFKA], settings)
        return run_tests(_environment(cell, directory), ["-n0", *OF_AIRFLOW], {})
    except (OSError, RuntimeError, SetupError, subprocess.SubprocessError) as error:
        return Outcome(cell.python, 0, 0, 0, time.monotonic() - started, str(error))


def _environment(cell: Cell, directory: Path) -> Path:
    """Make the environment of a version of Airflow unless it is there, and return its Python."""
    home = directory / f"airflow-{cell.version}-python-{cell.python}"
    python, made = home / "bin" / "python", home / "made-from"
    constraints = ROOT / "constraints.txt"
    wanted = constraints.read_text() + (ROOT / "pyproject.toml").read_text()
    with lock_file(directory / f"{home.name}.lock", f"making {home.name}", INSTALL_LIMIT):
        if not made.exists() or made.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            output_of([_python(cell.python), "-m", "venv", str(home)])
            # The development environment has uv. A new venv's pip is older than 25.1 and knows no groups.
            uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
            install = [uv, "pip", "install", "-q", "--python", str(python)]
            group = ["--group", f"{ROOT / 'pyproject.toml'}:dev"]
            output_of([*install, "-c", str(constraints), "-e", f"{ROOT}[demo,sql]", *group])
            if f"apache-airflow=={cell.version}\n" not in wanted:
                # On top of the constraints: it replaces Airflow and what that needs in another version.
                # uv takes the parts of a version that is not released yet only if it is told to.
                early = not cell.version.replace(".", "").isdecimal()
                allowed = ["--prerelease=allow"] if early else []
                output_of([*install, *allowed, f"apache-airflow=={cell.version}"])
            made.write_text(wanted)
    return python


def _python(version: str) -> str:
    """Return a Python of a version that runs: pyenv's, or one on the PATH (a shim there may refuse)."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [*map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))), shutil.which(f"python{version}")]
    for candidate in filter(None, candidates):
        with contextlib.suppress(OSError, RuntimeError):
            output_of([candidate, "--version"])
            return candidate
    raise RuntimeError(f"no Python {version} was found that runs")


if __name__ == "__main__":
    main()
