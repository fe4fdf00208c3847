"""Selects and checks the connection settings that our clients use, and reads files of settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.oauth_token import has_token_source, needs_token
from airflow_kafka_offsets.model.broker_addresses import SERVERS, check_addresses
from airflow_kafka_offsets.model.kafka_security import PROBE
from airflow_kafka_offsets.model.text import MAX_SIZE, escape_controls, is_plain, shorten, size_error

RETENTION = "offsets.retention.minutes"
"""Name of the broker's setting for how long offsets of a group without members are kept."""

_OLD_SERVERS = "metadata.broker.list"
# An allow-list: consumer settings such as isolation.level would change the meaning of responses.
_KEPT = re.compile(
    r"(security|sasl|ssl|enable\.ssl|enable\.sasl|socket|https\.ca)\..*"
    r"|bootstrap\.servers|api\.version\.request(\.timeout\.ms)?|broker\.address\.(family|ttl)"
    r"|broker\.version\.fallback|client\.(dns\.lookup|id|rack)|connections\.max\.idle\.ms"
)
_CALLBACKS = ("error_cb", "oauth_cb")

_JAVA_ONLY = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "sasl.client.callback.handler.class": "sasl.oauthbearer.method",
    "sasl.login.callback.handler.class": "sasl.oauthbearer.method",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.truststore.password": "ssl.ca.location, a PEM file without a password",
    "ssl.truststore.type": "ssl.ca.location, a PEM file",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.type": "ssl.keystore.location (PKCS#12), or ssl.certificate.location and ssl.key.location",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
}

_SECRET = re.compile(
    r"(?!sasl\.(mechanisms?|kerberos\.service\.name|oauthbearer\.method)$)"
    r"(?!ssl\.endpoint\.identification\.algorithm$)(sasl|ssl)\."
)
# Paths are not secrets: an error has to name the missing file.
_FILES = frozenset(f"ssl.{what}.location" for what in ("ca", "certificate", "crl", "key", "keystore"))
_BETWEEN_FIELDS = re.compile(r"[\s=,]+")
_LISTS = ("sasl.oauthbearer.config", "sasl.oauthbearer.extensions")
_TOKEN_FIELDS = frozenset(("principal", "principalClaimName", "scope", "scopeClaimName", "lifeSeconds"))
_QUOTED = re.compile(r"\"((?:\\.|[^\"\\])*)\"")
_SHORTEST_SECRET = 3
"""Shorter values are not secrets; masking them would mask most of a text."""

_SENT_AS_IT_IS = re.compile(r"client\.id|sasl\.(username|password|oauthbearer\.client\..*)|ssl\..*password")
_NUMERIC = re.compile(r".*\.(ms|bytes|ttl|fails)")

_INDENT = " \t\f"
# The name's length is limited: the regex engine stores hundreds of bytes for each repetition of a group.
_SETTING = re.compile(r"((?:\\.|[^\\\s=:]){1,1000})(?:\s*[=:]\s*|\s+)(.*)", re.DOTALL)
# Escapes as java.util.Properties reads them.
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
ALLOWED_SETTINGS = "AIRFLOW_KAFKA_OFFSETS_ALLOWED_SETTINGS"
"""Environment variable: a JSON object of settings and the values that connections may have."""

# A user who may edit a connection must not be able to run code in workers, triggerer or API server. The
# official provider guards its callbacks in the same way (``[apache_kafka] callback_allowlist``).
_GUARDED = {
    "ssl.engine.location": "loads a library into this process",
    "ssl.engine.id": "loads a library into this process",
    "ssl.providers": "loads libraries into this process",
    "sasl.kerberos.kinit.cmd": "runs a command in a shell",
    "sasl.oauthbearer.assertion.file": "sends a file to the token endpoint",
    "sasl.oauthbearer.assertion.jwt.template.file": "sends a file to the token endpoint",
}
_IN_SHELL_COMMAND = frozenset(("sasl.kerberos.principal", "sasl.kerberos.keytab"))
"""librdkafka inserts these values into its ``kinit`` command without quoting."""
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./@:+][A-Za-z0-9_./@:+-]*")


def client_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return only the settings for connection and authentication.

    Settings of a consumer or producer (``group.id``, ``enable.auto.commit``, ``auto.offset.reset``, ``acks``,
    ...) are left out; :func:`dropped_keys` returns their names. So is an ``oauth_cb`` that the login does not
    use, such as the one that the official provider adds for each cluster of Google.

    :param config: librdkafka's configuration, as in the extra of an Airflow connection.
    :raises UsageError: if ``bootstrap.servers`` is missing or contains a user, a key exists in Java clients
        only, the client would change a value or fail on it without an error, nothing gives the token of the
        login, or a setting would run code that the environment does not allow.
    """
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if key in _JAVA_ONLY:
            raise _java_only(key)
        if _passes(key, value):
            _check_value(key, value)
            check_guarded(key, value)
            kept[key] = value
    _replace_old_name(kept, "the Kafka configuration")
    check_addresses(kept)
    if not needs_token(kept):
        # The client would wait in vain until its token is set, and then refuse the configuration.
        kept.pop("oauth_cb", None)
    elif not has_token_source(kept):
        raise UsageError(
            "the Kafka configuration has sasl.mechanisms=OAUTHBEARER and nothing that gives a token to log "
            "in with: set sasl.oauthbearer.method=oidc and what it needs, or use an Airflow connection with "
            "oauth_cb (the official Kafka provider adds it for Amazon MSK and Google)"
        )
    return kept


def dropped_keys(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that :func:`client_config` leaves out, without their values."""
    return sorted(key for key, value in config.items() if not _passes(key, value))


def plain_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with names for its callbacks, which are new objects at each reading."""
    return {name: _name(value) if callable(value) else value for name, value in config.items()}


def _name(callback: Callable[..., Any]) -> str:
    named = callback if hasattr(callback, "__qualname__") else type(callback)
    return f"{named.__module__}.{named.__qualname__}"


def unusable_setting(config: Mapping[str, Any]) -> str | None:
    """Name a setting that is missing or whose file cannot be read, of a configuration that was refused."""
    for key in sorted(_FILES & config.keys()):
        path = str(config[key])
        if path != PROBE and not os.access(path, os.R_OK):
            found = "cannot be read by this user" if os.path.exists(path) else "does not exist"  # noqa: PTH110
            return f"{key}={path} {found} on this machine"
    if "sasl.username" in config and not {"sasl.mechanism", "sasl.mechanisms"} & config.keys():
        return "sasl.mechanism is missing, and the client then logs in by Kerberos (GSSAPI)"
    return None


def load_properties(path: str | Path) -> dict[str, str]:
    """
    Read librdkafka's settings from a properties file.

    The syntax is Java's: ``key=value``, comments with ``#`` or ``!``. A backslash escapes the next character
    (so a backslash in a password is written twice), and continues a line at its end.

    :raises UsageError: naming the file and line, never a value.
    """
    try:
        # Editors on Windows mark a file as UTF-8 at its beginning.
        with Path(path).open(encoding="utf-8-sig") as file:
            text = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): name a file of Kafka settings"
        ) from error
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8: name a file of lines key=value") from None
    if refusal := size_error(str(path), text, "\n"):
        raise UsageError(refusal)
    settings: dict[str, str] = {}
    for number, line in _logical_lines(text):
        where = f"{path}, line {number}"
        found = _SETTING.fullmatch(line.rstrip())
        if found is None:
            raise UsageError(f"{where}: expected key=value")
        try:
            key, value = (_ESCAPED.sub(_unescaped, part) for part in found.groups())
            # Java writes a character beyond U+FFFF as two.
            value = value.encode("utf-16", "surrogatepass").decode("utf-16")
        except ValueError:
            raise UsageError(f"{where}: expected four hexadecimal digits of a character after \\u") from None
        if key in _JAVA_ONLY:
            raise UsageError(f"{where}: {_java_only(key)}")
        settings[key] = value
    _replace_old_name(settings, str(path))
    return settings


def _replace_old_name(settings: dict[str, Any], where: str) -> None:
    if servers := settings.pop(_OLD_SERVERS, None):
        settings[SERVERS] = settings.get(SERVERS) or servers
        if settings[SERVERS] != servers:
            raise UsageError(
                f"{SERVERS} of {where} and its old name {_OLD_SERVERS} differ; expected the brokers of one "
                "cluster: remove one of the two"
            )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each setting as one line, continuations joined, with the number of its first line."""
    parts: list[str] = []
    began = 0
    for number, line in enumerate(text.split("\n"), 1):
        part = line.lstrip(_INDENT)
        if not parts:
            if not part or part[0] in "#!" or part[0].isspace():
                continue
            began = number
        is_continued = (len(part) - len(part.rstrip("\\"))) % 2
        parts.append(part[:-1] if is_continued else part)
        if not is_continued:
            yield began, "".join(parts)
            parts.clear()
    if parts:
        yield began, "".join(parts)


def scrubber(config: Mapping[str, Any]) -> Callable[[str], str]:
    """
    Return a function that removes credentials from a text.

    It removes every value of ``sasl.*`` and ``ssl.*`` except the paths of certificates, each quoted value in
    Java's ``sasl.jaas.config``, and each word of ``sasl.oauthbearer.config`` and
    ``sasl.oauthbearer.extensions``.

    librdkafka quotes every value that it does not understand. The function also finds values that
    :func:`~airflow_kafka_offsets.model.text.escape_controls` has escaped.
    """
    secrets = {
        str(value)
        for key, value in config.items()
        if _SECRET.match(key) and key not in _FILES and not isinstance(value, bool | int)
    }
    secrets.update(_QUOTED.findall(str(config.get("sasl.jaas.config", ""))))
    # librdkafka quotes a list from the first unknown field to the end, or a single name or value.
    fields = ",".join(str(config.get(key, "")) for key in _LISTS)
    words = {word.removeprefix("extension_") for word in _BETWEEN_FIELDS.split(fields)}
    secrets.update(words - _TOKEN_FIELDS)
    secrets.update(list(map(escape_controls, secrets)))
    long_first = sorted((each for each in secrets if len(each) >= _SHORTEST_SECRET), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, long_first)))
    return (lambda text: pattern.sub("***", text)) if long_first else str


def _passes(key: str, value: Any) -> bool:
    if key in _CALLBACKS:
        return callable(value)
    known = key == _OLD_SERVERS or _KEPT.fullmatch(key) is not None
    # Clients refuse empty texts, and forms store empty fields.
    return known and value not in (None, "")


def _check_value(key: str, value: Any) -> None:
    """
    Refuse a value that librdkafka would change; do not quote the value.

    librdkafka cuts texts off at a NUL, removes leading whitespace, reads a number up to the first character
    that is not a digit, and keeps 32 bits of it.
    """
    remedy = "correct the Kafka connection, or the file or option"
    if not is_plain(key):
        raise UsageError(
            f"the Kafka configuration has a setting named {shorten(ascii(key))}, with a NUL or half of a "
            f"surrogate pair in it: {remedy}"
        )
    if not isinstance(value, str | int | float) and key not in _CALLBACKS:
        # Without the setting the client would connect with a default, such as one without TLS.
        reason = "is neither a text nor a number"
    elif isinstance(value, str) and not is_plain(value):
        reason = "has a NUL or half of a surrogate pair in it, where the client stops reading"
    elif isinstance(value, str) and not value.strip():
        if key == SERVERS:
            return
        reason = "is blank"
    elif isinstance(value, str) and _SENT_AS_IT_IS.fullmatch(key) and value[0].isspace():
        reason = "begins with whitespace, which the client cuts off"
    elif _NUMERIC.fullmatch(key) and not isinstance(value, bool) and not _fits_32_bits(value):
        reason = "is not a whole number of at most 32 bits"
    else:
        return
    raise UsageError(f"{shorten(key)} of the Kafka configuration {reason}: {remedy}")


def _fits_32_bits(value: str | float) -> bool:
    if isinstance(value, str):
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,10}\s*", value, re.ASCII):
            return False
        value = int(value)
    return -(2**31) <= value < 2**31 and value == int(value)


def _java_only(key: str) -> UsageError:
    return UsageError(
        f"{key} is a setting of Java clients only; expected librdkafka's: use {_JAVA_ONLY[key]}"
    )


def _unescaped(found: re.Match[str]) -> str:
    escaped = found[1]
    if escaped == "u":
        raise ValueError("a character's code is cut off")
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _ESCAPES.get(escaped, escaped)


def check_guarded(key: str, value: object) -> None:
    """Refuse a guarded setting, whose value is never named, that the environment does not allow."""
    if key in _IN_SHELL_COMMAND and not _PLAIN_WORD.fullmatch(str(value)):
        raise UsageError(
            f"{key} of the Kafka configuration has characters with a meaning in a shell, and the client "
            "runs kinit with it; expected letters, digits and _ . / @ : + -: correct the Kafka connection"
        )
    if key in _GUARDED and value not in _allowed(key):
        raise UsageError(
            f"{key} of the Kafka configuration {_GUARDED[key]}, and the environment does not allow this "
            f"value: remove it from the Kafka connection, or add it to {ALLOWED_SETTINGS} in the environment "
            f'of each process that uses the connection, as JSON: {{"{key}": "the value"}}'
        )


def _allowed(key: str) -> list[str]:
    text = os.environ.get(ALLOWED_SETTINGS, "").strip() or "{}"
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    values: Any = settings.get(key, []) if isinstance(settings, dict) else [None]
    values = [values] if isinstance(values, str) else values
    if isinstance(values, list) and all(isinstance(each, str) for each in values):
        return values
    raise UsageError(
        f"{ALLOWED_SETTINGS} in the environment cannot be read; expected a JSON object of settings and their "
        f'values, such as {{"{key}": "the value"}}: correct it where this process is started'
    )
