import pytest
from airflow.providers.openlineage.utils.utils import translate_airflow_asset
from airflow.sdk import Asset

from airflow_kafka_offsets import assets
from airflow_kafka_offsets.pipeline import KAFKA_GROUP_SCHEME, KafkaPipeline

try:
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime as ProvidersManager
except ImportError:  # Airflow 3.1
    from airflow.providers_manager import ProvidersManager  # type: ignore[assignment]


def test_airflow_finds_handler_and_factory():
    found = ProvidersManager()
    assert found.asset_uri_handlers[KAFKA_GROUP_SCHEME] is assets.sanitize_uri
    assert found.asset_factories[KAFKA_GROUP_SCHEME] is assets.create_asset


def test_the_scheme_of_the_official_provider_keeps_its_own_handler():
    assert KAFKA_GROUP_SCHEME != "kafka"
    handler = ProvidersManager().asset_uri_handlers["kafka"]
    assert handler.__module__ == "airflow.providers.apache.kafka.assets.kafka"


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("kafka-group://kafka_default/orders", "kafka-group://kafka_default/orders"),
        ("KAFKA-GROUP://kafka_default/orders/", "kafka-group://kafka_default/orders"),
        ("kafka-group://kafka_default/orders%2Detl", "kafka-group://kafka_default/orders-etl"),
        ("kafka-group://kafka_default/daily orders", "kafka-group://kafka_default/daily%20orders"),
        ("kafka-group://a%3Ab/x%2fy", "kafka-group://a%3Ab/x%2Fy"),
    ],
)
def test_a_uri_is_normalised_so_that_one_group_has_one_uri(given, uri):
    assert Asset(given).uri == uri
    assert Asset(uri).uri == uri


@pytest.mark.parametrize(
    "uri",
    ["kafka-group://kafka_default", "kafka-group:///orders", "kafka-group://c/a/b", "kafka-group://c/a?b=c"],
)
def test_a_uri_that_does_not_name_one_group_is_refused_with_the_form_expected(uri):
    with pytest.raises(ValueError, match="expected kafka-group://<kafka_config_id>/<group_id>"):
        Asset(uri)


def test_an_asset_by_its_uri_is_the_one_of_the_pipeline():
    pipeline = KafkaPipeline(group_id="x/y?z", kafka_config_id="a:b")
    assert Asset(pipeline.asset.uri) == pipeline.asset


def test_the_factory_makes_the_asset_of_the_pipeline():
    made = assets.create_asset(group_id="orders", kafka_config_id="kafka_dr", extra={"team": "sales"})
    assert made.uri == KafkaPipeline(group_id="orders", kafka_config_id="kafka_dr").asset.uri
    assert made.extra == {"team": "sales"}
    assert assets.create_asset(group_id="orders").uri == "kafka-group://kafka_default/orders"


def test_openlineage_is_told_no_dataset_of_a_group():
    """A dataset of its own would join nothing: the tasks name the group's topics, as Spark does."""
    asset = assets.create_asset(group_id="daily orders")
    assert translate_airflow_asset(asset, None) is None
    topic = translate_airflow_asset(Asset("kafka://broker:9092/orders"), None)
    assert topic is not None
    assert (topic.namespace, topic.name) == ("kafka://broker:9092", "orders")
