"""Does the runbook repair what it says it repairs, and do its commands print what it shows?"""

import pytest
from broken_pipelines import SITUATIONS, BrokenPipeline
from runbook import agrees, read_sections, run_step

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    # PySpark leaves sockets to its JVM open until the process ends.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

SECTIONS = read_sections()
PROOF = "kafka-consumer-groups "
ALONE = {"another-cluster", "read-what-was-skipped", "reprocess-since-a-time"}
"""What has a test of its own."""
SLOW = {"a-batch-fails-for-ever"}


@pytest.fixture
def pipeline(bootstrap_servers, tmp_path, new_group):
    return BrokenPipeline(bootstrap_servers, tmp_path, f"{new_group()}-")


@pytest.mark.parametrize(
    "anchor",
    [
        pytest.param(anchor, marks=pytest.mark.long if anchor in SLOW else [])
        for anchor in sorted(SITUATIONS.keys() - ALONE)
    ],
)
def test_each_section_repairs_its_pipeline_as_kafkas_own_tool_shows(anchor, pipeline, spark):
    SITUATIONS[anchor](pipeline, spark)
    _follow(anchor, pipeline, spark)


def test_a_pipeline_is_moved_to_another_cluster(pipeline, spark, own_kafka):
    pipeline = pipeline._replace(other_servers=own_kafka().bootstrap_servers)
    SITUATIONS["another-cluster"](pipeline, spark)
    _follow("another-cluster", pipeline, spark)


@pytest.mark.parametrize(
    ("anchor", "before", "after"),
    [
        pytest.param("reprocess-since-a-time", 1500, 2400, marks=pytest.mark.long),
        ("read-what-was-skipped", 1220, 2420),
    ],
)
def test_records_are_written_that_were_not_or_once_more(pipeline, spark, anchor, before, after):
    SITUATIONS[anchor](pipeline, spark)
    assert len([*pipeline.output.iterdir()]) == before
    _follow(anchor, pipeline, spark)
    assert len([*pipeline.output.iterdir()]) == after


def test_each_section_with_commands_is_run_and_ends_with_kafkas_own_tool():
    with_commands = {anchor: steps for anchor, steps in SECTIONS.items() if steps}
    assert with_commands.keys() == SITUATIONS.keys()
    assert [
        anchor for anchor, steps in with_commands.items() if not steps[-1].command.startswith(PROOF)
    ] == []


def _follow(anchor: str, pipeline: BrokenPipeline, spark: object) -> None:
    for step in SECTIONS[anchor]:
        printed = run_step(step, pipeline, spark)
        assert agrees(step, printed), f"$ {step.command}\n{printed}"
