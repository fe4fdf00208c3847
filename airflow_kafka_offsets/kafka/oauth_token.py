"""Tokens of the function ``oauth_cb`` in a Kafka configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.errors import BrokerAuthenticationError, TokenUnavailableError


def get_token(config: Mapping[str, Any]) -> list[Any] | None:
    """
    Return a token and its expiry time from ``oauth_cb``, as plain JSON; ``None`` without this function.

    An error text never has the function's own text, which may contain anything.

    :raises TokenUnavailableError: if the function raises an error, as in an outage of the token service.
    :raises BrokerAuthenticationError: if the function returns another value.
    """
    if (oauth_cb := config.get("oauth_cb")) is None:
        return None
    try:
        returned = oauth_cb(str(config.get("sasl.oauthbearer.config", "")))
    except Exception as error:  # noqa: BLE001  # code of the user
        raise TokenUnavailableError(
            f"oauth_cb of the Kafka configuration raised {type(error).__name__}, so there is no token: try "
            "again; if the token service answers, correct the function"
        ) from None
    try:
        token, expires, *more = returned
        found = [token, expires + 0.0, *more]
        json.dumps(found)
    except (TypeError, ValueError):
        raise BrokerAuthenticationError(
            "oauth_cb of the Kafka configuration returned no token and expiry time (in seconds since 1970): "
            "correct the function"
        ) from None
    return found
