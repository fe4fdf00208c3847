"""Tokens of the login OAUTHBEARER: of the function ``oauth_cb``, or of the service that librdkafka asks."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.errors import BrokerAuthenticationError, TokenUnavailableError
from airflow_kafka_offsets.kafka.failures import NO_TOKEN, Failure
from airflow_kafka_offsets.model.text import shorten

_OUTAGES = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which librdkafka asks again for 50 seconds, before it reports an error."""
_SHORTEST = 0.5
"""Seconds: a service that works may take as long, so nothing is learned in less time."""
_USER = re.compile(r"(?<=^http://)[^/?#]*@|(?<=^https://)[^/?#]*@", re.IGNORECASE)


def needs_token(config: Mapping[str, Any]) -> bool:
    """Whether a connection logs in with a token."""
    mechanism = str(config.get("sasl.mechanisms") or config.get("sasl.mechanism")).upper()
    return mechanism == "OAUTHBEARER" and str(config.get("security.protocol")).upper().startswith("SASL")


def has_token_source(config: Mapping[str, Any]) -> bool:
    """Whether anything gives the token: without it the client waits, and says nothing."""
    method = str(config.get("sasl.oauthbearer.method", "default")).lower()
    unsecured = str(config.get("enable.sasl.oauthbearer.unsecure.jwt")).lower() in ("true", "t", "1")
    metadata = str(config.get("sasl.oauthbearer.metadata.authentication.type", "none")).lower() != "none"
    return "oauth_cb" in config or method != "default" or unsecured or metadata


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
    Return why the service that librdkafka asks gives no token; ``None`` if it works, or is not asked.

    The request contains no credentials: a service that works refuses it.
    """
    endpoint = str(config.get("sasl.oauthbearer.token.endpoint.url", ""))
    is_asked = str(config.get("sasl.oauthbearer.method")).lower() == "oidc" and "oauth_cb" not in config
    if not (is_asked and needs_token(config) and endpoint.lower().startswith(("http://", "https://"))):
        return None
    if timeout < _SHORTEST:
        return None
    # Imported here, because few connections need it.
    from http.client import HTTPException, InvalidURL
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    # Python would take a user in the URL for a part of the host's name.
    address = _USER.sub("", endpoint, count=1)
    request = Request(address, b"grant_type=client_credentials")  # noqa: S310  # the scheme was checked
    # The client itself verifies the certificate.
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    try:
        urlopen(request, timeout=timeout, context=unverified).close()  # noqa: S310
    except HTTPError as error:
        error.close()
        if error.code not in _OUTAGES:
            return None
        found = f"the token service answers with HTTP status {error.code}"
    except (InvalidURL, ValueError):
        # The error quotes the URL, which may contain a secret.
        found = "the token service does not answer: its URL is not valid"
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        found = f"the token service does not answer: {shorten(str(reason), 300)}"
    else:
        return None
    # No remedy, which would end the call: the service may soon answer the client.
    return Failure(NO_TOKEN, found)
