"""Errors of storage drivers as ours: those about credentials, which a retry cannot fix, and all others."""

from __future__ import annotations

import re
from typing import Any, Literal

from airflow_kafka_offsets.errors import StorageError, StorageUnavailableError
from airflow_kafka_offsets.model.text import shorten

Refusal = Literal["no permission", "no valid credentials"]

_BOTOCORE = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoAuthTokenError"}
_BOTOCORE_SSO = {"SSOTokenLoadError", "UnauthorizedSSOTokenError"}
_GOOGLE_AUTH = {"DefaultCredentialsError", "MalformedError"}
_AZURE_CORE = {"ClientAuthenticationError"}
_MISSING = _BOTOCORE | _BOTOCORE_SSO | _GOOGLE_AUTH | _AZURE_CORE
"""Names of the drivers' error classes; the drivers may not be installed here."""

# Only the beginning of a word may begin a user's name: a long text without spaces would take minutes.
_SECRET = re.compile(r"(?<=\?)[^\s?=]+=\S*|(?<![^\s/@])[^\s/@:]*:[^\s/@]*(?=@)")
"""A URL's query, in which WebHDFS has the delegation token, or its user and password, in an error text."""


def driver_text(error: BaseException) -> str:
    """Return the text of a driver's error without the secrets of URLs in it."""
    return shorten(_SECRET.sub("...", str(error)))


def driver_cause(error: BaseException) -> BaseException | None:
    """Return an error as the cause to raise from; ``None`` if its traceback would show a secret of a URL."""
    each: BaseException | None = error
    while each is not None and not _SECRET.search(str(each)):
        each = each.__cause__ or each.__context__
    return error if each is None else None


def storage_error(error: Exception, location: str, doing: str, credentials: str) -> StorageError:
    """Return the StorageError for an error of a driver; ``credentials`` is their origin, for the text."""
    text, why = driver_text(error), access_refusal(error)
    reason = f"{type(error).__name__}: {text}"
    if why == "no permission":
        return StorageError(
            f"{location}: {why} to {doing} it ({text}) with the credentials of {credentials}: allow them to "
            f"list the directory and {doing} its files, or correct them"
        )
    if why is not None:
        return StorageError(
            f"{location}: {why} to {doing} it ({reason}); they come from {credentials}: correct them there"
        )
    done, room = ("read", "") if doing == "read" else ("written", ", has free space,")
    return StorageUnavailableError(
        f"{location}: the storage could not be {done} ({reason}): check that it is reachable from here{room} "
        f"and that the credentials of {credentials} are valid"
    )


def access_refusal(error: BaseException) -> Refusal | None:
    """
    Return why a storage refused access; ``None`` for any other error.

    The causes of the error are checked too, because s3fs turns a response into an ``OSError``.
    """
    cause: BaseException | None = error
    while cause is not None:
        status = _status(cause)
        if "rate limit" in str(cause).lower():  # a retry may succeed
            return None
        # gcsfs's error for status 403 has no status number.
        forbidden = type(cause) is OSError and str(cause).startswith("Forbidden")
        if isinstance(cause, PermissionError) or status == 403 or forbidden:
            return "no permission"
        if status == 401 or _MISSING & {kind.__name__ for kind in type(cause).__mro__}:
            return "no valid credentials"
        cause = cause.__cause__
    return None


def is_empty_object(error: BaseException) -> bool:
    """Whether an object store has no bytes for a range that begins at 0: the object is empty."""
    return 416 in (_status(error), error.__cause__ and _status(error.__cause__))


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of aiohttp, gcsfs, azure or botocore."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        found = [(response.get("ResponseMetadata") or {}).get("HTTPStatusCode")]
    else:
        found = [getattr(response, "status_code", None)]
    found += [getattr(error, name, None) for name in ("status_code", "status", "code")]
    return next((value for value in found if isinstance(value, int)), None)
