"""Recognises errors of storage drivers about credentials, which a retry cannot fix."""

from __future__ import annotations

from typing import Any, Literal

Refusal = Literal["no permission", "no valid credentials"]

_BOTOCORE = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoAuthTokenError"}
_BOTOCORE_SSO = {"SSOTokenLoadError", "UnauthorizedSSOTokenError"}
_GOOGLE_AUTH = {"DefaultCredentialsError", "MalformedError"}
_AZURE_CORE = {"ClientAuthenticationError"}
_MISSING = _BOTOCORE | _BOTOCORE_SSO | _GOOGLE_AUTH | _AZURE_CORE
"""Names of the drivers' classes, none of which need be installed here."""

_FORBIDDEN = "Forbidden"
"""How gcsfs begins an OSError for status 403, which has no number."""

_PASSES = "rate limit"


def access_refusal(error: BaseException) -> Refusal | None:
    """
    Return why a storage refuses; ``None`` if the error is of another kind.

    What has caused the error counts too: s3fs makes an ``OSError`` of an answer.
    """
    cause: BaseException | None = error
    while cause is not None:
        status = _status(cause)
        if _PASSES in str(cause).lower():
            return None
        forbidden = type(cause) is OSError and str(cause).startswith(_FORBIDDEN)
        if isinstance(cause, PermissionError) or status == 403 or forbidden:
            return "no permission"
        if status == 401 or _MISSING & {kind.__name__ for kind in type(cause).__mro__}:
            return "no valid credentials"
        cause = cause.__cause__
    return None


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error is about, as aiohttp, gcsfs, azure or botocore keep it."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        found = [(response.get("ResponseMetadata") or {}).get("HTTPStatusCode")]
    else:
        found = [getattr(response, "status_code", None)]
    found += [getattr(error, name, None) for name in ("status_code", "status", "code")]
    return next((value for value in found if isinstance(value, int)), None)
