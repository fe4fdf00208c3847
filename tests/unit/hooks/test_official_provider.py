"""What this package takes from the official Kafka provider although it is private there."""

import inspect
import json
from pathlib import Path

import pytest
from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.hooks.offsets import KNOWN_TO_WORK, OFFICIAL_PROVIDER, KafkaOffsetsHook

ROOT = Path(__file__).parents[3]


def test_the_private_method_that_builds_the_configuration_is_as_we_know_it(monkeypatch):
    build = getattr(KafkaBaseHook, "_build_config", None)
    assert build is not None, (
        "the official Kafka provider has renamed or removed KafkaBaseHook._build_config: find what builds a "
        "connection's librdkafka configuration now, and call that in hooks/offsets.py"
    )
    parameters = list(inspect.signature(build).parameters)
    assert parameters == ["self"], (
        f"KafkaBaseHook._build_config takes {parameters} now: hooks/offsets.py calls it without arguments"
    )
    extra = {"bootstrap.servers": "127.0.0.1:9092", "client.id": "x"}
    connection = {"conn_type": "kafka", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    assert build(KafkaBaseHook()) == extra, (
        "KafkaBaseHook._build_config no longer returns the connection's extra as a dictionary of librdkafka "
        "settings: hooks/offsets.py passes on what it returns"
    )


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_provider_with_another_method_is_refused_with_the_version_that_works(monkeypatch, is_missing):
    monkeypatch.setattr(KafkaBaseHook, "_build_config", lambda self: None)
    if is_missing:
        monkeypatch.delattr(KafkaBaseHook, "_build_config")
    with pytest.raises(SetupError, match=f"is missing, or .*: version {KNOWN_TO_WORK} is known to work"):
        KafkaOffsetsHook().client_config()


def test_the_version_that_is_known_to_work_is_the_one_the_tests_run_with():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"{OFFICIAL_PROVIDER}=={KNOWN_TO_WORK}" in pins
