"""The wheel and the sdist, as they are published."""

from __future__ import annotations

import email
import shutil
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

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
