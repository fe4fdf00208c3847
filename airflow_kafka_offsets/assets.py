"""Handlers of asset URIs of the scheme ``kafka-group``: ``kafka-group://<kafka_config_id>/<group_id>``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from airflow_kafka_offsets.pipeline import KAFKA_GROUP_SCHEME, group_uri

if TYPE_CHECKING:
    from airflow.sdk import Asset


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """
    Check a URI and quote it like ``KafkaPipeline``, without contacting a broker.

    :raises ValueError: if the URI does not name one connection and one group.
    """
    group = uri.path.removeprefix("/")
    if not uri.netloc or not group or "/" in group or uri.query:
        raise ValueError(
            f"the asset URI {uri.geturl()!r} does not name a connection and a group: expected "
            f"{KAFKA_GROUP_SCHEME}://<kafka_config_id>/<group_id>, with special characters such as / and ? "
            "percent-encoded"
        )
    return urlsplit(group_uri(unquote(uri.netloc, errors="strict"), unquote(group, errors="strict")))


def create_asset(
    *, group_id: str, kafka_config_id: str = "kafka_default", extra: dict[str, Any] | None = None
) -> Asset:
    """Return the asset of a consumer group."""
    from airflow.sdk import Asset

    return Asset(uri=group_uri(kafka_config_id, group_id), extra=extra)
