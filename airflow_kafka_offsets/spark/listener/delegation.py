"""Does Spark reach a Kafka cluster with a delegation token, so that a source's options hold no credentials?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.kafka.config import SERVERS

_CLUSTER = re.compile(r"spark\.kafka\.clusters\.(.+)\.auth\.bootstrap\.servers")
_TARGETS = "spark.kafka.clusters.{}.target.bootstrap.servers.regex"
_GLOBAL_LOGIN = "java.security.auth.login.config"


def token_targets(conf: Mapping[str, str]) -> dict[str, str]:
    """
    Return the clusters for which Spark obtains tokens, and the pattern of the servers that each is used for.

    :param conf: Spark's configuration.
    """
    names = [found[1] for key in conf if (found := _CLUSTER.fullmatch(key))]
    return {name: conf.get(_TARGETS.format(name), ".*") for name in names}


def refuse_delegation_tokens(jvm: Any, targets: Mapping[str, str], settings: Mapping[str, str]) -> None:
    """
    Refuse to connect where only Spark's own sources have the credentials.

    :param jvm: py4j's view of the driver's JVM.
    :param targets: from :func:`token_targets`.
    :param settings: those of the client, without ``kafka.``.
    :raises SetupError: saying what to set.
    """
    if "sasl.jaas.config" in settings or jvm.java.lang.System.getProperty(_GLOBAL_LOGIN) is not None:
        return
    servers = settings.get(SERVERS, "")
    for name, pattern in targets.items():
        if any(re.fullmatch(pattern, server.strip()) for server in servers.split(",")):
            raise SetupError(
                f"Spark reaches {servers} with a delegation token (spark.kafka.clusters.{name}.*), so the source's "
                "options hold no credentials to commit with: give the listener config={'security.protocol': ..., "
                "'sasl.mechanism': ..., 'sasl.jaas.config': ...} for a user who may read the group"
            )
