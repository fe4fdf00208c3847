"""
What becomes of new records if a batch id comes again, in each sink? And after data loss?

Run it from the development environment. It needs jars of Delta Lake, Iceberg and Hudi from Maven Central::

    python tests/compatibility/sinks.py        # Spark 3.5 and 4.0
    python tests/compatibility/sinks.py 4.0

The table that it prints is in ``docs/contributing/evidence/versions.md``. The option ``sink`` of the
operators and of the command line follows from it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from environments import (  # type: ignore[import-not-found]  # it is beside this script
    ROOT,
    VERSIONS,
    environment_of,
    jar_of,
)
from rich.console import Console
from rich.table import Table

from airflow_kafka_offsets.local.cache import cache_directory
from airflow_kafka_offsets.local.kafka import EmbeddedKafka

LIMIT = 1200
BUILT_IN = ("foreachBatch that overwrites", "foreachBatch that appends", "kafka", "file")
DELTA, ICEBERG, HUDI = (
    ("foreachBatch with txnVersion", "delta"),
    ("iceberg",),
    ("hudi", "hudi with an identifier"),
)
JARS: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {
    "3.5": {
        BUILT_IN: (),
        DELTA: ("io.delta:delta-spark_2.12:3.3.2", "io.delta:delta-storage:3.3.2"),
        ICEBERG: ("org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.1",),
        HUDI: ("org.apache.hudi:hudi-spark3.5-bundle_2.12:1.1.1",),
    },
    # No bundle of Hudi for Spark 4.0 was found.
    "4.0": {
        BUILT_IN: (),
        DELTA: ("io.delta:delta-spark_2.13:4.0.0", "io.delta:delta-storage:4.0.0"),
        ICEBERG: ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",),
    },
}
SETTINGS = {
    BUILT_IN: {},
    DELTA: {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    ICEBERG: {
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "hadoop",
    },
    HUDI: {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    },
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("versions", nargs=-1, type=click.Choice(list(JARS)))
@click.option("--directory", type=click.Path(path_type=Path), help="Where environments and jars are kept.")
def main(versions: tuple[str, ...], directory: Path | None) -> None:
    """Try each sink on VERSIONS of Spark (default: all)."""
    directory = (directory or cache_directory() / "compatibility").absolute()
    found: dict[tuple[str, str], Any] = {}
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as work:
        for version in versions or JARS:
            python = environment_of(VERSIONS[version], directory, sys.executable)
            for sinks, coordinates in JARS[version].items():
                jars = [jar_of(jar, directory / "jars") for jar in (*VERSIONS[version].jars, *coordinates)]
                report = _run(python, version, sinks, jars, kafka.bootstrap_servers, Path(work))
                found.update({(sink, VERSIONS[version].pyspark): result for sink, result in report.items()})
    moves = ("truncate", "discard", "data loss")
    table = Table("sink", "Spark", *(head for move in moves for head in (f"{move}: lost", "twice")))
    for (sink, version), result in found.items():
        cells = []
        for move in moves:
            counts = result[move]
            cells += [str(counts["lost"]), str(counts["twice"])] if isinstance(counts, dict) else [counts, ""]
        table.add_row(sink, version, *cells)
    Console().print(table)


def _run(
    python: Path, version: str, sinks: tuple[str, ...], jars: list[Path], servers: str, work: Path
) -> dict[str, Any]:
    report = work / "report.json"
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.catalog.local.warehouse": str(work / "iceberg"),
        **SETTINGS[sinks],
    }
    told = {
        "version": VERSIONS[version].pyspark,
        "sinks": sinks,
        "servers": servers,
        "settings": settings,
        "directory": str(work / version),
        "report": str(report),
    }
    environment = {
        name: value for name, value in os.environ.items() if not re.match("AIRFLOW__|PYSPARK_|SPARK_", name)
    }
    subprocess.run(
        [str(python), str(Path(__file__).with_name("sink_job.py"))],
        input=json.dumps(told),
        text=True,
        env=environment | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)},
        cwd=work,
        timeout=LIMIT,
        check=True,
    )
    result: dict[str, Any] = json.loads(report.read_text())
    return result


if __name__ == "__main__":
    main()
