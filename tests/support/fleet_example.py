"""
The example that moves many pipelines together, and the file of its pipelines.

``PIPELINES=60`` takes a fleet, for which the tests need some minutes.
"""

import os
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "recover_pipelines.py"
FEW = 8
FLEET = int(os.environ.get("PIPELINES", str(FEW)))
"""How many pipelines are moved together."""
WAVES = "max_active_tis_per_dag=8"


def pipeline_names(topic: str) -> list[str]:
    """Return the group of each pipeline, which is also the name of its checkpoint."""
    return [f"fleet-{number}-{topic}" for number in range(FLEET)]


def write_example(directory: Path, lake: Path, topic: str) -> tuple[Path, Path]:
    """Write the DAG file and its list of pipelines; few pipelines go two at a time, so that some wait."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert WAVES in text
    if FLEET == FEW:
        text = text.replace(WAVES, "max_active_tis_per_dag=2")
    pipelines = [
        f"- {{group_id: {name}, checkpoint_location: {lake / name}}}" for name in pipeline_names(topic)
    ]
    dag_file, list_file = directory / EXAMPLE.name, directory / "pipelines.yaml"
    dag_file.write_text(text, encoding="utf-8")
    list_file.write_text("\n".join(pipelines), encoding="utf-8")
    return dag_file, list_file
