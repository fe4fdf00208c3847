"""Tries the installed package in an environment that has nothing else."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points, requires, version
from pathlib import Path

import airflow_kafka_offsets

COMMAND = str(Path(sys.executable).with_name("airflow-kafka-offsets"))
CHECKPOINT = {
    "metadata": '{"id":"975d5cb5-daf7-40c6-ad83-ae84395a7b2a"}',
    "offsets/0": 'v1\n{"batchTimestampMs":1795228309758}\n{"orders":{"0":42}}',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


def main() -> None:
    """Import every module, and use the command on a checkpoint and on no broker."""
    package = Path(airflow_kafka_offsets.__file__).parent
    if "site-packages" not in package.parts:
        sys.exit(f"{package} is not the installed package")
    modules = [each.name for each in pkgutil.walk_packages([str(package)], "airflow_kafka_offsets.")]
    # What the demo needs is an extra; what runs as a process of its own is no module to import.
    modules = [
        name for name in modules if ".local" not in name and not name.endswith(("__main__", "dags_examples"))
    ]
    for name in modules:
        importlib.import_module(name)
    for missing in ("py.typed", "ui/static", "local/dags_examples"):
        if not (package / missing).exists():
            sys.exit(f"{missing} is not in the package")
    providers = [each.load()()["package-name"] for each in entry_points(group="apache_airflow_provider")]
    if "airflow-kafka-offsets" not in providers:
        sys.exit(f"Airflow would not find the provider among {providers}")
    with tempfile.TemporaryDirectory() as directory:
        for path, text in CHECKPOINT.items():
            file = Path(directory, path)
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        shown = run("checkpoint", "show", directory, "--output", "json")
        if shown.returncode or json.loads(shown.stdout)["sources"][0]["offsets"] != {"orders": {"0": 42}}:
            sys.exit(f"checkpoint show: {shown.returncode}, {shown.stdout}{shown.stderr}")
    refused = run("group", "list", "--bootstrap-server", "127.0.0.1:1", "--timeout", "2")
    if refused.returncode != 1 or "127.0.0.1:1" not in refused.stderr or "Traceback" in refused.stderr:
        sys.exit(f"group list: {refused.returncode}, {refused.stderr}")
    needs = [need for need in requires("airflow-kafka-offsets") or () if "extra ==" not in need]
    number = version("airflow-kafka-offsets")
    print(f"airflow-kafka-offsets {number}: {len(modules)} modules, {len(needs)} dependencies, works")


if __name__ == "__main__":
    main()
