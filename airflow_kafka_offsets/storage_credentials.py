"""Detection of storage drivers' errors about credentials, which a retry cannot fix."""

from __future__ import annotations

from typing import Any, Literal

Refusal = Literal["no permission", "no valid credentials"]

_BOTOCORE = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoAuthTokenError"}
_BOTOCORE_SSO = {"SSOTokenLoadError", "UnauthorizedSSOTokenError"}
_GOOGLE_AUTH = {"DefaultCredentialsError", "MalformedError"}
_AZURE_CORE = {"ClientAuthenticationError"}
_MISSING = _BOTOCORE | _BOTOCORE_SSO | _GOOGLE_AUTH | _AZURE_CORE
"""Names of the drivers' error classes; the drivers may not be installed here."""

_FORBIDDEN = "Forbidden"
"""The beginning of gcsfs's OSError for status 403, which has no status number."""

_PASSES = "rate limit"


def access_refusal(error: BaseException) -> Refusal | None:
    """
    Return why a storage refused access; ``None`` for any other error.

    The causes of the error are checked too, because s3fs turns a response into an ``OSError``.
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
    """Return the HTTP status of an error of aiohttp, gcsfs, azure or botocore."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        found = [(response.get("ResponseMetadata") or {}).get("HTTPStatusCode")]
    else:
        found = [getattr(response, "status_code", None)]
    found += [getattr(error, name, None) for name in ("status_code", "status", "code")]
    return next((value for value in found if isinstance(value, int)), None)
