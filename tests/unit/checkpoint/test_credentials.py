"""Which errors of the storages' drivers say that the credentials are missing or refused?"""

import errno
from types import SimpleNamespace

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)

from airflow_kafka_offsets.storage_errors import access_refusal, is_empty_object


def of_s3(status: int, code: str, wrapped: type[OSError] = OSError) -> OSError:
    """What s3fs raises for an answer."""
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = wrapped(errno.EIO, "no")
    error.__cause__ = ClientError(answer, "ListObjectsV2")
    return error


def named(name: str, text: str = "no", **attributes: object) -> Exception:
    """What a driver raises that is not installed for the tests; recorded from the real one."""
    error: Exception = type(name, (Exception,), {})(text)
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


@pytest.mark.parametrize(
    ("error", "empty"),
    [
        (of_s3(416, "InvalidRange"), True),
        (named("HttpError", code=416), True),
        (named("HttpResponseError", status_code=416), True),
        (of_s3(503, "SlowDown"), False),
        (TimeoutError(), False),
    ],
)
def test_an_empty_object_has_no_range(error, empty):
    assert is_empty_object(error) == empty


@pytest.mark.parametrize(
    "error",
    [
        NoCredentialsError(),
        PartialCredentialsError(provider="env", cred_var="aws_secret_access_key"),
        of_s3(401, "AuthenticationFailed"),
        named("HttpError", code=401),
        named("DefaultCredentialsError"),
        named("ClientAuthenticationError", status_code=401),
        named("HTTPError", response=SimpleNamespace(status_code=401)),
        type("CredentialUnavailableError", (type(named("ClientAuthenticationError")),), {})("none"),
    ],
)
def test_missing_and_wrong_credentials(error):
    assert access_refusal(error) == "no valid credentials"


@pytest.mark.parametrize(
    "error",
    [
        PermissionError("Access Denied"),
        of_s3(403, "AccessDenied", PermissionError),
        of_s3(403, "AuthenticationFailed"),
        OSError("Forbidden: b/lake/o\nnope"),
        named("HttpError", code=403),
        named("HttpResponseError", status_code=403),
        named("HTTPError", response=SimpleNamespace(status_code=403)),
        named("ClientResponseError", status=403),
    ],
)
def test_missing_permission(error):
    assert access_refusal(error) == "no permission"


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="https://lake"),
        ConnectionResetError("reset"),
        TimeoutError(),
        of_s3(503, "SlowDown"),
        of_s3(500, "InternalError"),
        named("HttpError", code=429),
        named("HttpError", "The rate limit for requests was exceeded", code=403),
        named("HTTPError", response=SimpleNamespace(status_code=502)),
        named("HTTPError", response=None),
        named("Odd", code="403"),
        OSError(errno.EIO, "Forbidden planet"),
    ],
)
def test_everything_else_may_pass(error):
    assert access_refusal(error) is None


def test_an_error_that_was_only_handled_before_does_not_count():
    error = ConnectionResetError("reset")
    error.__context__ = PermissionError("of another file")
    assert access_refusal(error) is None
