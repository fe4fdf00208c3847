"""Refuses sessions, settings and offsets with which the listener cannot commit."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.errors import SetupError, UsageError
from airflow_kafka_offsets.model.broker_addresses import SERVERS, check_servers
from airflow_kafka_offsets.model.groups import SOURCE_PREFIX, GroupIds, parse_group_id

_CLUSTER = re.compile(r"spark\.kafka\.clusters\.(.+)\.auth\.bootstrap\.servers")
_TARGETS = "spark.kafka.clusters.{}.target.bootstrap.servers.regex"
_GLOBAL_LOGIN = "java.security.auth.login.config"


def topic_groups(value: object) -> GroupIds:
    """Parse the group, or ``{topic: group}``, of sources whose options name none."""
    groups = parse_group_id(value)
    if isinstance(groups, Mapping) and any(key.startswith(SOURCE_PREFIX) for key in groups):
        raise UsageError(
            f"group_id has a key {SOURCE_PREFIX}...: name topics here; a source names its group in its "
            "own options"
        )
    return groups


def token_targets(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the clusters for which Spark obtains tokens -> the pattern of their servers."""
    names = [found[1] for key in conf if (found := _CLUSTER.fullmatch(key))]
    return {name: conf.get(_TARGETS.format(name), ".*") for name in names}


def refuse_delegation_tokens(jvm: Any, targets: Mapping[str, str], settings: Mapping[str, str]) -> None:
    """Refuse a client's settings if only Spark's own sources have the credentials, by their tokens."""
    # A client with its own login needs no token.
    if "sasl.jaas.config" in settings or jvm.java.lang.System.getProperty(_GLOBAL_LOGIN) is not None:
        return
    servers = settings.get(SERVERS, "")
    check_servers(servers)
    for name, pattern in targets.items():
        if any(re.fullmatch(pattern, server.strip()) for server in servers.split(",")):
            raise SetupError(
                f"Spark reaches {servers} with a delegation token (spark.kafka.clusters.{name}.*), so the "
                "source's options contain no credentials to commit with: give the listener "
                "config={'security.protocol': ..., 'sasl.mechanism': ..., 'sasl.jaas.config': ...} for a "
                "user who may read the group"
            )


def check_connect(group_id: GroupIds | None, config: Mapping[str, Any]) -> None:
    """Check that a listener on a Spark Connect session has all that it needs."""
    from pyspark import __version__ as version

    if version.startswith("3."):
        raise SetupError(
            f"Spark Connect {version} runs listeners on the server, where this one cannot work: use Spark "
            "4.0 or newer, a classic session, or CommitOffsetsOperator after the job"
        )
    if group_id is None or not config:
        raise UsageError(
            "this is a session of Spark Connect, which shows neither the options of a query's sources nor "
            "the driver's JVM: give group_id=, a group or {topic: group}, and config=, librdkafka's settings "
            "with bootstrap.servers"
        )
    if importlib.util.find_spec("confluent_kafka") is None:
        raise SetupError(
            "Spark Connect commits with confluent-kafka, which is not installed: pip install confluent-kafka"
        )
