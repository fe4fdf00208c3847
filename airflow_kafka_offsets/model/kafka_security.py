"""
Translation of a connection's address and security settings between librdkafka and Java clients.

Both directions share these tables. A setting that affects security and has no counterpart is refused by name;
errors never contain values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.broker_addresses import SERVERS, check_servers, with_port
from airflow_kafka_offsets.model.text import shorten

PEM_FILES = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
"""librdkafka's settings that name a file -> the settings that take the file's content."""

PROBE = "probe"
"""librdkafka's value of ``ssl.ca.location`` that makes it search the system's usual paths."""

_STORES = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
_JAVA_FILES = {
    # One PEM file with both the key and the certificates; librdkafka accepts the same file for both settings.
    "ssl.truststore.location": ("ssl.ca.location",),
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
}
_HOST_CHECK = "ssl.endpoint.identification.algorithm"
_JAAS = "sasl.jaas.config"

_SECURITY = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_OIDC_HANDLER = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
_OIDC = {"sasl.oauthbearer.client.id": "clientId", "sasl.oauthbearer.client.secret": "clientSecret"}
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_UNSECURED = "enable.sasl.oauthbearer.unsecure.jwt"
_OTHER_LOGINS = {
    False: ("sasl.kerberos.", "sasl.oauthbearer.", "enable.sasl.", "oauth_cb", "https."),
    True: ("sasl.kerberos.", "sasl.username", "sasl.password"),
}
"""Whether the mechanism is OAUTHBEARER -> prefixes of the settings that librdkafka then ignores too."""

_ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b", "a": "\a", "v": "\v"}
_WRITTEN = str.maketrans({char: f"\\{name}" for name, char in _ESCAPES.items()})
_LOGIN_MODULE = re.compile(r"\s*(?:[\w$]+\.)*(Plain|Scram)LoginModule\s+required\s", re.ASCII)
# Escapes as in Java's StreamTokenizer: an octal number, or the character after a backslash.
_ESCAPED = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)", re.DOTALL)
_LOGIN_VALUE = re.compile(
    r"\b(username|password)\s*=\s*(?:\"((?:\\.|[^\"\\])*)\"|'((?:\\.|[^'\\])*)')", re.DOTALL
)

_OF_SSL = ("ssl.", "enable.ssl.")
_OF_SASL = ("sasl.", "enable.sasl.", "https.", "oauth_cb")
_LOGIN_OPTION = re.compile(r"[\w$.-]*[A-Za-z0-9]", re.ASCII)
_CERTIFICATES = re.compile(
    r"-----BEGIN ([A-Z0-9 ]*)CERTIFICATE-----.*?-----END \1CERTIFICATE-----", re.DOTALL
)
_REDACTED = "password secret token\n"
"""
Prefix for a private key. Spark logs ``ssl.keystore.key`` at DEBUG, but redacts a value that contains one of
these words (``spark.redaction.regex``). A PEM may begin with any text.
"""

_WHY = {
    "oauth_cb": (
        "a Python function makes its tokens: give the job's Kafka source the Java login of that service"
    ),
    "sasl.mechanism": "only PLAIN, SCRAM and OAUTHBEARER are translated",
    "sasl.oauthbearer.method": "only oidc is translated, and unsecured tokens for tests",
    "ssl.keystore": "a PKCS#12 file is not passed on: use ssl.certificate.pem and ssl.key.pem",
    "ssl.cipher.suites": "OpenSSL and Java have different names for ciphers",
    "enable.ssl.certificate.verification": "Java always verifies: give ssl.ca.pem",
    "https.ca": "for the token endpoint Java uses its own trust store: add the CA to that store",
}
"""Setting, or prefix of settings, without a counterpart -> the reason and the remedy."""


def is_plain_pkcs8(pem: str) -> bool:
    """Whether every Java client can read a private key: only unencrypted PKCS#8 works in all versions."""
    return "-----BEGIN PRIVATE KEY-----" in pem


def java_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the settings of a Java client for the same brokers with the same security.

    Only address and security are translated. As in librdkafka, ``ssl.*`` is used only with a TLS protocol,
    and ``sasl.*`` only with a SASL protocol.

    :param config: librdkafka's settings, with PEM text instead of the files in :data:`PEM_FILES`, and with a
        key that :func:`is_plain_pkcs8` accepts.
    :raises UsageError: the text names each setting that affects security and has no counterpart.
    """
    given = {key: _text(value) for key, value in config.items() if value not in (None, "")}
    servers = given.pop(SERVERS, None) or given.pop("metadata.broker.list", "")
    check_servers(servers)
    if not servers.strip():
        raise UsageError(f"the Kafka configuration has no {SERVERS}; expected host:port of a broker")
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    java = {SERVERS: ",".join(map(with_port, servers.split(","))), "security.protocol": protocol}
    java |= {key: given[key] for key in ("client.dns.lookup", "client.rack") if key in given}
    if protocol.endswith("SSL"):
        java |= _tls({key: value for key, value in given.items() if key.startswith(_OF_SSL)})
    if protocol.startswith("SASL"):
        java |= _login({key: value for key, value in given.items() if key.startswith(_OF_SASL)})
    return java


def librdkafka_settings(settings: Mapping[str, str], refused: Callable[[str], Exception]) -> dict[str, Any]:
    """
    Return librdkafka's settings for those of a Java client; ``refused`` returns the error for any other.

    For PLAIN and SCRAM, user and password are extracted from ``sasl.jaas.config``. PEM stores get
    librdkafka's names.
    """
    settings = dict(settings)
    config: dict[str, Any] = {}
    types = {key: settings.pop(key, "JKS").upper() for key in ("ssl.truststore.type", "ssl.keystore.type")}
    names = {java: name for name, java in _STORES.items()}
    for key, value in settings.items():
        if key == _JAAS:
            config.update(_user_and_password(value, refused))
        elif key in names:
            config[names[key]] = value
        elif key in _JAVA_FILES and types[f"{key.rpartition('.')[0]}.type"] == "PEM":
            config.update(dict.fromkeys(_JAVA_FILES[key], value))
        elif key == "ssl.keystore.location" and types["ssl.keystore.type"] == "PKCS12":
            config[key] = value
        elif key in _JAVA_FILES or key.endswith(".callback.handler.class"):
            raise refused(key)
        elif key == _HOST_CHECK:
            # In Java, an empty value turns the host check off.
            config[key] = value or "none"
        elif key != "ssl.truststore.password":
            config[key] = value
    return config


def _tls(given: dict[str, Any]) -> dict[str, str]:
    java: dict[str, str] = {}
    if given.get("enable.ssl.certificate.verification", "").lower() in ("true", "1"):
        del given["enable.ssl.certificate.verification"]
    if (check := given.pop(_HOST_CHECK, None)) is not None:
        java[_HOST_CHECK] = "" if check.lower() == "none" else check
    if (authority := given.pop("ssl.ca.pem", None)) is not None:
        java |= {"ssl.truststore.type": "PEM", _STORES["ssl.ca.pem"]: _certificates("ssl.ca.pem", authority)}
    chain, key = given.pop("ssl.certificate.pem", None), given.pop("ssl.key.pem", None)
    # The key is already decrypted, because Java's encrypted form differs.
    given.pop("ssl.key.password", None)
    if given:
        raise _untranslated(given)
    if (chain is None) != (key is None):
        missing = "ssl.certificate.pem" if chain is None else "ssl.key.pem"
        raise UsageError(f"{missing} is missing: Java clients need the certificate and its key")
    if chain is None or key is None:
        return java
    if not is_plain_pkcs8(key):
        raise UsageError(
            "ssl.key.pem is not a plain key in the form PKCS#8 (-----BEGIN PRIVATE KEY-----), the only one "
            "that every Java client reads: install cryptography here, or convert the key with openssl pkcs8 "
            "-topk8 -nocrypt"
        )
    return java | {
        "ssl.keystore.type": "PEM",
        _STORES["ssl.certificate.pem"]: _certificates("ssl.certificate.pem", chain),
        _STORES["ssl.key.pem"]: _REDACTED + key,
    }


def _certificates(name: str, pem: str) -> str:
    """Return only the certificates of a PEM, without a key: Spark logs them at DEBUG."""
    if found := [each[0] for each in _CERTIFICATES.finditer(pem)]:
        return "\n".join(found) + "\n"
    raise UsageError(f"{name} contains no certificate; expected PEM with -----BEGIN CERTIFICATE-----")


def _login(given: dict[str, Any]) -> dict[str, str]:
    # librdkafka's default mechanism is Kerberos.
    found = {name: given.pop(name, None) for name in ("sasl.mechanisms", "sasl.mechanism")}
    named = {name: str(value).upper() for name, value in found.items() if value}
    if len(set(named.values())) > 1:
        both = " and ".join(f"{name}={shorten(value)}" for name, value in named.items())
        raise UsageError(f"found {both}; expected one mechanism: remove one setting")
    mechanism = next(iter(named.values()), "GSSAPI")
    if mechanism not in _MODULES:
        raise _untranslated(["sasl.mechanism"])
    if mechanism == "OAUTHBEARER":
        java, options = _oauth(given)
    else:
        java, options = {}, {name: given.pop(f"sasl.{name}", None) for name in ("username", "password")}
    if left := [key for key in given if not key.startswith(_OTHER_LOGINS[mechanism == "OAUTHBEARER"])]:
        raise _untranslated(left)
    if missing := [name for name, value in options.items() if value is None]:
        raise UsageError(f"sasl.mechanism is {mechanism}, but {' and '.join(missing)} is missing")
    # Other characters in a name would be parsed as further options; a value is quoted.
    if strange := sum(_LOGIN_OPTION.fullmatch(name) is None for name in options):
        raise UsageError(
            f"sasl.oauthbearer.* of the Kafka configuration has {strange} name{'s' * (strange > 1)} of a "
            "claim or an extension that Java's login does not accept; expected only letters, digits, _, $, "
            ". and -: correct the Kafka connection"
        )
    values = " ".join(f'{name}="{(value or "").translate(_WRITTEN)}"' for name, value in options.items())
    return {"sasl.mechanism": mechanism, **java, _JAAS: f"{_MODULES[mechanism]} required {values};"}


def _oauth(given: dict[str, Any]) -> tuple[dict[str, str], dict[str, str | None]]:
    """Remove the translated settings from ``given``; return Java's settings, and the options of its login."""
    method = given.pop("sasl.oauthbearer.method", "default").lower()
    unsecured = given.pop(_UNSECURED, "").lower() in ("true", "1")
    if method == "default" and unsecured and "oauth_cb" not in given:
        return {}, _unsecured(given.pop("sasl.oauthbearer.config", ""))
    if method != "oidc":
        raise _untranslated(["oauth_cb" if "oauth_cb" in given else "sasl.oauthbearer.method"])
    if given.get("sasl.oauthbearer.grant.type", "").lower() == "client_credentials":
        del given["sasl.oauthbearer.grant.type"]
    # Spark logs the login at DEBUG, but redacts the text after "password".
    options = {"password": "", **{java: given.pop(name, None) for name, java in _OIDC.items()}}
    if (scope := given.pop("sasl.oauthbearer.scope", None)) is not None:
        options["scope"] = scope
    for pair in filter(None, given.pop("sasl.oauthbearer.extensions", "").split(",")):
        name, _, value = pair.strip().partition("=")
        options[f"extension_{name}"] = value
    endpoint = given.pop(_ENDPOINT, None)
    if endpoint is None:
        raise UsageError(f"{_ENDPOINT} is missing: sasl.oauthbearer.method is oidc")
    # With a file: URL, Java would send the file to the broker; librdkafka refuses such URLs.
    if not endpoint.lower().startswith(("http://", "https://")):
        raise UsageError(
            f"{_ENDPOINT} is not an http:// or https:// URL; expected one of these, as librdkafka does"
        )
    return {_ENDPOINT: endpoint, "sasl.login.callback.handler.class": _OIDC_HANDLER}, options


def _unsecured(config: str) -> dict[str, str | None]:
    """Return the options of Java's login with unsecured tokens, which are for tests."""
    given = dict(pair.partition("=")[::2] for pair in config.split())
    principal, scope = given.pop("principalClaimName", "sub"), given.pop("scopeClaimName", "scope")
    options: dict[str, str | None] = {f"unsecuredLoginStringClaim_{principal}": given.pop("principal", None)}
    if principal != "sub":
        options["unsecuredLoginPrincipalClaimName"] = principal
    if scopes := given.pop("scope", ""):
        # Java takes the first character as the separator of the list.
        options |= {f"unsecuredLoginListClaim_{scope}": f",{scopes}", "unsecuredLoginScopeClaimName": scope}
    if seconds := given.pop("lifeSeconds", ""):
        options["unsecuredLoginLifetimeSeconds"] = seconds
    for name in [name for name in given if name.startswith("extension_")]:
        options[f"unsecuredLoginExtension_{name.removeprefix('extension_')}"] = given.pop(name)
    if given:
        raise UsageError(
            f"sasl.oauthbearer.config has {len(given)} names that are not librdkafka's; expected principal=, "
            "scope=, lifeSeconds=, principalClaimName=, scopeClaimName= and extension_NAME="
        )
    return options


def _user_and_password(jaas: str, refused: Callable[[str], Exception]) -> dict[str, str]:
    module = _LOGIN_MODULE.match(jaas)
    found = {
        name: _ESCAPED.sub(_unescaped, double or single)
        for name, double, single in _LOGIN_VALUE.findall(jaas)
    }
    if module is None or found.keys() != {"username", "password"}:
        raise refused(_JAAS)
    return {"sasl.username": found["username"], "sasl.password": found["password"]}


def _unescaped(found: re.Match[str]) -> str:
    # As in Java's StreamTokenizer, including octal numbers.
    escaped = found[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)


def _untranslated(names: Iterable[str]) -> UsageError:
    def named(name: str) -> str:
        why = next((why for prefix, why in _WHY.items() if name.startswith(prefix)), None)
        return f"{name} ({why})" if why else name

    return UsageError(
        f"Spark's Kafka client has no counterpart for {', '.join(map(named, sorted(set(names))))}: change "
        "the Kafka connection, or give the job's Kafka source its own options"
    )


def _text(value: object) -> Any:
    if callable(value):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
