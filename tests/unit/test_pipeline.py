from __future__ import annotations

import json

import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.pipeline import PIPELINE_PARAMETERS, SPARK_CONF_KEY, KafkaPipeline

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
        ORDERS.group_id = "other"


def test_its_asset_needs_no_broker():
    assert ORDERS.asset.uri == "kafka-group://kafka_default/orders-spark"
    assert ORDERS.asset.name == "orders-spark"


def test_several_groups_have_an_asset_each():
    pipeline = KafkaPipeline(group_id={"a": "g", "b": "h", "c": "g"})
    assert [asset.name for asset in pipeline.assets] == ["g", "h"]
    with pytest.raises(UsageError, match="2 groups"):
        _ = pipeline.asset


def test_a_spark_job_gets_the_names_from_its_configuration():
    conf = ORDERS.spark_conf()
    assert json.loads(conf[SPARK_CONF_KEY]) == dict(ORDERS)


@pytest.mark.parametrize(
    "location", ["s3a://key:secret@bucket/cp", "s3a://key:sec/ret@bucket/cp", "abfss://user:secret@host/cp"]
)
def test_a_password_in_the_location_is_refused_and_not_repeated(location):
    with pytest.raises(UsageError, match="holds a password") as refused:
        KafkaPipeline(group_id="g", checkpoint_location=location)
    assert "sec" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    "location", ["abfss://container@account.dfs.core.windows.net/cp", "/data/a@b:c@d", "file:/x"]
)
def test_other_locations_are_taken(location):
    assert KafkaPipeline(group_id="g", checkpoint_location=location).checkpoint_location == location
