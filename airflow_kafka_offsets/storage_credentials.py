"""Tells from the error of a storage's driver that its credentials are missing or refused, as they would be again."""

from __future__ import annotations

from typing import Any, Literal

Refusal = Literal["no permission", "no valid credentials"]

_MISSING = frozenset(
    {
        # botocore's
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "NoAuthTokenError",
        "SSOTokenLoadError",
        "UnauthorizedSSOTokenError",
        # google-auth's
        "DefaultCredentialsError",
        "MalformedError",
        # azure-core's, and what azure-identity makes of it
        "ClientAuthenticationError",
    }
)
"""Names of the drivers' classes, none of which need be installed here."""

_FORBIDDEN = "Forbidden"
"""How gcsfs begins an OSError for status 403, which has no number."""

_PASSES = "rate limit"


def refusal(error: BaseException) -> Refusal | None:
    """
    Say what a storage has against whoever asks; ``None`` if the error is of another kind.

    :param error: what the driver has raised. What has caused it counts too: s3fs makes an ``OSError`` of an answer.
    """
    cause: BaseException | None = error
    while cause is not None:
        status = _status(cause)
        if _PASSES in str(cause).lower():
            return None
        if isinstance(cause, PermissionError) or status == 403 or _is_forbidden(cause):
            return "no permission"
        if status == 401 or _MISSING & {kind.__name__ for kind in type(cause).__mro__}:
            return "no valid credentials"
        cause = cause.__cause__
    return None


def _is_forbidden(error: BaseException) -> bool:
    return type(error) is OSError and str(error).startswith(_FORBIDDEN)


def _status(error: BaseException) -> int | None:
    """Return the status of the answer over HTTP that an error is about, as aiohttp, gcsfs, azure or botocore keep it."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        response = response.get("ResponseMetadata") or {}
        found = [response.get("HTTPStatusCode")]
    else:
        found = [getattr(response, "status_code", None)]
    found += [getattr(error, name, None) for name in ("status_code", "status", "code")]
    return next((value for value in found if isinstance(value, int)), None)
