import json
import re
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import unquote

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.names import SPARK_CONF_KEY
from airflow_kafka_offsets.pipeline import (
    PIPELINE_PARAMETERS,
    KafkaPipeline,
    group_uri,
)
from airflow_kafka_offsets.spark import pipeline_names

ORDERS = KafkaPipeline(group_id="orders-spark", topics=["orders"], checkpoint_location="s3a://lake/cp/orders")


def test_it_unpacks_into_the_five_parameters():
    assert dict(ORDERS) == {
        "group_id": "orders-spark",
        "topics": ["orders"],
        "checkpoint_location": "s3a://lake/cp/orders",
        "checkpoint_conn_id": None,
        "kafka_config_id": "kafka_default",
    }
    assert tuple(ORDERS) == PIPELINE_PARAMETERS
    with pytest.raises(KeyError):
        ORDERS["group"]


def test_it_is_frozen():
    with pytest.raises(AttributeError):
        ORDERS.group_id = "other"  # type: ignore[misc]


def test_a_group_from_a_variable_that_is_not_set_is_refused():
    # Otherwise a gate would wait for the checkpoint in place of the group.
    unset: Any = None
    with pytest.raises(UsageError, match="group_id is missing: name the consumer group"):
        KafkaPipeline(unset, checkpoint_location="s3a://lake/cp/orders")


def test_its_asset_needs_no_broker_and_is_named_by_its_uri():
    assert ORDERS.asset.uri == "kafka-group://kafka_default/orders-spark"
    assert ORDERS.asset.name == ORDERS.asset.uri


@pytest.mark.parametrize(
    ("connection", "group"), [("a:b/c#d", "x%2F?y=1#z"), ("Main", "Orders A"), ("kafka_dr", "../ü")]
)
def test_no_two_groups_share_a_uri_and_airflow_leaves_it_as_it_is(connection, group):
    asset = KafkaPipeline(group_id=group, kafka_config_id=connection).asset
    assert asset.name == asset.uri == group_uri(connection, group)
    assert [unquote(part) for part in asset.uri.removeprefix("kafka-group://").split("/")] == [
        connection,
        group,
    ]


def test_an_asset_may_have_another_name_that_no_task_gets():
    named = KafkaPipeline(group_id="orders-spark", asset_name="orders")
    assert (named.asset.name, named.asset.uri) == ("orders", "kafka-group://kafka_default/orders-spark")
    assert tuple(named) == PIPELINE_PARAMETERS
    assert "asset_name" not in dict(named)
    assert "asset_name" not in named.spark_conf()[SPARK_CONF_KEY]


def test_several_groups_have_an_asset_each():
    pipeline = KafkaPipeline(group_id={"a": "g", "b": "h", "c": "g"}, asset_name={"h": "payments"})
    assert [asset.name for asset in pipeline.assets] == ["kafka-group://kafka_default/g", "payments"]
    with pytest.raises(UsageError, match="2 groups"):
        _ = pipeline.asset


@pytest.mark.parametrize(
    ("name", "said"),
    [("orders", "one name for 2 groups"), ({"x": "orders"}, "asset_name names 'x': expected")],
)
def test_a_name_that_does_not_fit_the_groups_is_refused(name, said):
    with pytest.raises(UsageError, match=said):
        KafkaPipeline(group_id={"a": "g", "b": "h"}, asset_name=name)


@pytest.mark.parametrize(
    "names",
    [
        {"group_id": "{{ params.g }}"},
        {"kafka_config_id": "{% if x %}a{% endif %}"},
        {"group_id": "orders{# old #}"},
    ],
)
def test_a_template_has_no_asset(names):
    pipeline = KafkaPipeline(**{"group_id": "g", **names})
    with pytest.raises(UsageError, match="is a template.*AssetAlias"):
        _ = pipeline.asset


def test_a_spark_job_gets_the_names_from_its_configuration():
    conf = ORDERS.spark_conf()
    assert json.loads(conf[SPARK_CONF_KEY]) == dict(ORDERS)


class Session:
    """What of a Spark session is asked."""

    def __init__(self, **conf):
        self.conf = conf


@pytest.mark.parametrize("group", ["orders", "100% of 'it'", 'a "b" c\\', "größe"])
def test_one_text_for_emr_serverless_has_no_character_that_needs_quotes(group):
    pipeline = KafkaPipeline(group_id=group, checkpoint_location="s3://lake/orders")
    text = pipeline.spark_submit_parameters()
    assert re.fullmatch(r"--conf [A-Za-z0-9._]+=[A-Za-z0-9._%~-]+", text)
    key, value = text.removeprefix("--conf ").split("=")
    assert pipeline_names(cast("Any", Session(**{key: value}))) == dict(pipeline)
    assert pipeline_names(cast("Any", Session(**pipeline.spark_conf()))) == dict(pipeline)


def test_a_template_in_one_text_is_refused_because_nobody_would_render_it():
    pipeline = KafkaPipeline(group_id="orders-{{ ds }}")
    with pytest.raises(UsageError, match="found a template"):
        pipeline.spark_submit_parameters()


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({}, "has no spark.kafkaOffsets.pipeline: expected the result of the pipeline's spark_conf"),
        ({SPARK_CONF_KEY: "%5B1%5D"}, "found a list of 1 value, expected a JSON object of names"),
    ],
)
def test_a_job_without_names_says_so(conf, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        pipeline_names(cast("Any", Session(**conf)))


@pytest.mark.parametrize(
    "location",
    [
        "s3a://key:secret@bucket/cp",
        "s3a://key:sec/ret@bucket/cp",
        "abfss://user:secret@host/cp",
        "s3a://{{ conn.lake.login }}:{{ conn.lake.password }}@bucket/cp",
    ],
)
def test_a_password_in_the_location_is_refused_and_not_repeated(location):
    with pytest.raises(UsageError, match="holds a password") as refused:
        KafkaPipeline(group_id="g", checkpoint_location=location)
    assert "sec" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    "location",
    [
        "abfss://container@account.dfs.core.windows.net/cp",
        "/data/a@b:c@d",
        "file:/x",
        "hdfs://namenode:8020/user/jane@corp.com/cp",
        "s3a://lake-{{ ds[:4] }}/cp",
        "s3a://{% if params.eu %}{{ {'a': 'eu'}['a'] }}{% endif %}/cp",
    ],
)
def test_other_locations_are_taken(location):
    assert KafkaPipeline(group_id="g", checkpoint_location=location).checkpoint_location == location


@pytest.mark.parametrize("group", ["", " ", " orders", "a\0b", "\ud800"])
def test_a_group_that_no_client_may_be_given_has_no_asset(group):
    with pytest.raises(UsageError, match="expected the name of a consumer group"):
        _ = KafkaPipeline(group_id={"orders": group}).assets


def test_names_of_any_kind_go_to_the_spark_job_as_json():
    names: Any = {"orders"}
    pipeline = KafkaPipeline(MappingProxyType({"orders": "g"}), topics=names)
    assert json.loads(pipeline.spark_conf()[SPARK_CONF_KEY]) | {"checkpoint_location": None} == {
        "group_id": {"orders": "g"},
        "topics": ["orders"],
        "checkpoint_location": None,
        "checkpoint_conn_id": None,
        "kafka_config_id": "kafka_default",
    }
