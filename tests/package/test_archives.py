"""The wheel and the sdist, as they are published, and the zip that a Spark job takes along."""

import email
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from airflow_kafka_offsets.spark.listener.py_files import spark_py_files

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_what_is_published_has_the_offsets_tab_and_names_the_licence_of_each_part(tmp_path, builder):
    (built,) = builder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    shutil.unpack_archive(built, tmp_path / "content", "zip" if built.endswith("whl") else "gztar")
    files = [path for path in (tmp_path / "content").rglob("*") if path.is_file()]
    (metadata,) = (
        email.message_from_string(path.read_text()) for path in files if path.name in ("METADATA", "PKG-INFO")
    )
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    # What only a clone needs is in dependency groups, which are not published.
    assert sorted(metadata.get_all("Provides-Extra") or ()) == ["delete-offsets", "demo", "spark", "sql"]
    named = metadata.get_all("License-File")
    assert named == ["LICENSE", "airflow_kafka_offsets/ui/static/uPlot.LICENSE"]
    texts = {path.read_text() for path in files if path.name.endswith("LICENSE")}
    assert texts == {(ROOT / name).read_text() for name in named}
    if builder is WheelBuilder:
        for name in named:
            assert [path for path in files if path.match(f"*.dist-info/licenses/{name}")], name
    published = {path.name for path in files if path.match("airflow_kafka_offsets/ui/static/*")}
    assert published == {path.name for path in (ROOT / "airflow_kafka_offsets/ui/static").iterdir()}


def test_what_is_in_the_zip_needs_nothing_else_of_this_package(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = spark_py_files.__wrapped__()  # which is not kept for other tests
    code = (
        "import importlib, sys, zipfile; path, packages = sys.argv[1:]; sys.path += [packages];"
        "sys.path.insert(0, path);"
        "[importlib.import_module(name[:-3].replace('/', '.')) for name in zipfile.ZipFile(path).namelist()"
        " if not name.endswith('__init__.py')]"
    )
    # Without the .pth files of the environment, so that the package is found in the zip only.
    command = [sys.executable, "-I", "-S", "-c", code, path, sysconfig.get_path("purelib")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
