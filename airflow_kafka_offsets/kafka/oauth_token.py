"""Tokens of the login OAUTHBEARER: of the function ``oauth_cb``, or of the service that librdkafka asks."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.errors import BrokerAuthenticationError, TokenUnavailableError
from airflow_kafka_offsets.kafka.failures import NO_TOKEN, Failure

_OUTAGES = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which librdkafka asks again for 50 seconds, before it reports an error."""
_TRY_AGAIN = "try again when the service works"


def needs_token(config: Mapping[str, Any]) -> bool:
    """Whether a connection logs in with a token."""
    mechanism = str(config.get("sasl.mechanisms") or config.get("sasl.mechanism")).upper()
    return mechanism == "OAUTHBEARER" and str(config.get("security.protocol")).upper().startswith("SASL")


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


def probe_token_service(config: Mapping[str, Any], timeout: float) -> Failure | None:
    """
    Return why the service that librdkafka asks gives no token; ``None`` if it works, or is not needed.

    The request contains no credentials: a service that works refuses it.
    """
    endpoint = str(config.get("sasl.oauthbearer.token.endpoint.url", ""))
    if not needs_token(config) or not endpoint.lower().startswith(("http://", "https://")):
        return None
    # Imported here, because few connections need it.
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    request = Request(endpoint, b"grant_type=client_credentials")  # noqa: S310  # the scheme was checked
    # The client itself verifies the certificate.
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    try:
        urlopen(request, timeout=timeout, context=unverified).close()  # noqa: S310
    except HTTPError as error:
        error.close()
        if error.code in _OUTAGES:
            return Failure(NO_TOKEN, f"the token service answers with HTTP status {error.code}", _TRY_AGAIN)
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        # A slow service may still answer the client, which waits longer.
        remedy = "" if isinstance(reason, TimeoutError) else _TRY_AGAIN
        return Failure(NO_TOKEN, f"the token service does not answer: {reason}", remedy)
    return None
