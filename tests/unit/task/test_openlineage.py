"""Events of the OpenLineage provider: facets that fit their published schemas."""

import pytest
from openlineage.client.serde import Serde
from openlineage_schemas import ROOT, check_facet, schemas, site

from airflow_kafka_offsets import __version__
from airflow_kafka_offsets.model.lineage import LAG, MOVE, RANGES, Input, Lineage
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.task import openlineage

PART = {
    "groupId": "g",
    "state": "partly written",
    "partitions": 2,
    "offsetDifference": -3,
    "ranges": [{"partition": 0, "from": 4, "until": 1, "written": True}, {"partition": 1, "until": 0}],
}
TOTALS = dict.fromkeys(("partitions", "changed", "offsetDifference", "skipped", "clamped", "lost"), 1)
FULL_MOVE = {
    "operation": "reset",
    "planOnly": False,
    "verified": False,
    "groups": [{"groupId": "g", "written": "some", **TOTALS}],
    "kafkaConfigId": "kafka_default",
    "checkpointLocation": "s3a://lake/c",
    "checkpointMove": "seek",
    "checkpointWritten": True,
    "queryId": "q",
    "batchId": 0,
    "digest": "0123456789ab",
}
FULL_LAG = {
    "groups": [
        {
            "groupId": "g",
            "topics": [{"topic": "orders", "lag": 0, "headroomSeconds": 1.5}, {"topic": "payments"}],
            "kafkaConfigId": "kafka_default",
            "checkpointLocation": "s3a://lake/c",
            "drifted": True,
            "verdicts": [{"verdict": "in step", "partitions": 1}],
            "lost": 0,
        }
    ]
}
SMALL_MOVE = {"operation": "plan", "planOnly": True, "verified": False, "groups": []}


def told(lineage):
    return Serde.to_dict(openlineage.operator_lineage(lineage))


@pytest.mark.parametrize(
    ("key", "facet"), [(MOVE, FULL_MOVE), (MOVE, SMALL_MOVE), (LAG, FULL_LAG), (LAG, {"groups": []})]
)
def test_a_run_facet_fits_its_schema(key, facet):
    found = told(Lineage(run={key: facet}))["run_facets"]
    assert found.keys() == {key}
    check_facet(key, found[key])
    assert facet.items() <= found[key].items()


def test_an_input_is_a_topic_with_its_ranges_and_the_records_that_were_read():
    (dataset,) = told(Lineage((Input("kafka://b1:9092", "orders", [PART], 0),)))["inputs"]
    assert (dataset["namespace"], dataset["name"]) == ("kafka://b1:9092", "orders")
    check_facet(RANGES, dataset["inputFacets"][RANGES])
    assert dataset["inputFacets"][RANGES]["groups"] == [PART]
    assert dataset["inputFacets"]["inputStatistics"]["rowCount"] == 0


def test_an_input_of_which_it_is_not_known_what_was_read_has_no_statistics():
    (dataset,) = told(Lineage((Input("kafka://b1:9092", "orders", [PART]),)))["inputs"]
    assert dataset["inputFacets"].keys() == {RANGES}


def test_a_facet_names_its_producer_and_an_address_of_the_documentation():
    found = told(Lineage(run={MOVE: SMALL_MOVE}))["run_facets"][MOVE]
    assert found["_producer"].endswith(f"/airflow-kafka-offsets/tree/v{__version__}")
    assert site() == openlineage.SITE
    assert found["_schemaURL"].partition("#")[0] in schemas()


def test_a_schema_is_at_the_address_that_it_has_as_its_id():
    assert len(schemas()) == 3
    for address, schema in schemas().items():
        assert schema["$id"] == address


def properties(schema):
    if schema.get("type") == "array":
        return properties(schema["items"])
    found = schema.get("properties", {})
    return {*found}.union(*map(properties, found.values()))


def test_the_documentation_names_each_property_of_a_facet():
    page = (ROOT / "docs" / "lineage.md").read_text(encoding="utf-8")
    for address, schema in schemas().items():
        (facet,) = schema["$defs"].values()
        missing = [name for name in properties(facet["allOf"][1]) if f"`{name}`" not in page]
        assert not missing, address


def test_a_facet_that_a_schema_does_not_describe_is_found():
    found = told(Lineage(run={MOVE: SMALL_MOVE}))["run_facets"][MOVE]
    with pytest.raises(AssertionError):
        check_facet(MOVE, {**found, "secret": 1})


@pytest.mark.parametrize(
    "operator",
    [
        CommitOffsetsOperator(task_id="commit", group_id="g", offsets={"orders": {"0": 1}}),
        PlanOffsetWindowOperator(task_id="plan", group_id="g", topics="orders"),
        CheckOffsetDriftOperator(task_id="check", group_id="g", checkpoint_location="/c"),
    ],
    ids=lambda operator: operator.task_id,
)
def test_a_task_that_found_out_nothing_tells_nothing(operator):
    for ask in (operator.get_openlineage_facets_on_complete, operator.get_openlineage_facets_on_failure):
        lineage = ask(None)
        assert (lineage.inputs, lineage.outputs, lineage.run_facets) == ([], [], {})
