import re
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.kafka.config import client_config
from airflow_kafka_offsets.model.kafka_security import java_settings, librdkafka_settings

SERVERS = {"bootstrap.servers": "host:9093"}
SCRAM = {
    **SERVERS,
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "flights",
    "sasl.password": "a-secret",
}
TLS = {**SERVERS, "security.protocol": "SSL"}
CHAIN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nsecret-key\n-----END PRIVATE KEY-----\n"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"
OAUTH = {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OAUTH_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
OIDC = {
    **OAUTH,
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "spark",
    "sasl.oauthbearer.client.secret": "a-secret",
    "sasl.oauthbearer.token.endpoint.url": "https://login/token",
}


def refused(key):
    return UsageError(f"refused {key}")


def test_scram_over_tls():
    assert java_settings({**SCRAM, "ssl.ca.pem": CHAIN}) == {
        "bootstrap.servers": "host:9093",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": CHAIN,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM_LOGIN} username="flights" password="a-secret";',
    }


def test_a_client_certificate_with_its_key():
    certificate = {"ssl.certificate.pem": CHAIN, "ssl.key.pem": KEY, "ssl.key.password": "not needed"}
    java = java_settings({**TLS, **certificate})
    assert java.pop("ssl.keystore.key").endswith(KEY)
    assert java == {
        "bootstrap.servers": "host:9093",
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": CHAIN,
    }


def test_a_key_is_not_beside_the_certificates_which_spark_shows():
    certificates = {"ssl.certificate.pem": f"text\n{KEY}{CHAIN}{CHAIN}", "ssl.ca.pem": f"{KEY}{CHAIN}"}
    java = java_settings({**TLS, **certificates, "ssl.key.pem": KEY})
    assert java["ssl.keystore.certificate.chain"] == CHAIN + CHAIN
    assert java["ssl.truststore.certificates"] == CHAIN


@pytest.mark.parametrize("words", ["(?i)secret|password|token|access[.]?key", "(?i)password", "token"])
def test_spark_redacts_a_key(words):
    java = java_settings({**TLS, "ssl.certificate.pem": CHAIN, "ssl.key.pem": KEY})
    assert re.search(words, java["ssl.keystore.key"])


def test_spark_redacts_the_secret_of_oidc():
    login = java_settings(OIDC)["sasl.jaas.config"]
    # KafkaRedactionUtil.redactJaasParam
    assert "a-secret" not in re.sub('password=".*"', "", login)


def test_oidc():
    more = {"sasl.oauthbearer.scope": "kafka", "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,pool=p"}
    java = java_settings({**OIDC, **more, "sasl.oauthbearer.grant.type": "client_credentials"})
    assert java["sasl.jaas.config"] == (
        f'{OAUTH_LOGIN} password="" clientId="spark" clientSecret="a-secret" scope="kafka" '
        'extension_logicalCluster="lkc-1" extension_pool="p";'
    )
    assert java["sasl.oauthbearer.token.endpoint.url"] == "https://login/token"
    assert java["sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")


def test_unsecured_tokens():
    config = "principal=flights scope=read,write lifeSeconds=600 extension_pool=p"
    unsecured = {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": config}
    java = java_settings({**OAUTH, **unsecured})
    assert java["sasl.jaas.config"] == (
        f'{OAUTH_LOGIN} unsecuredLoginStringClaim_sub="flights" unsecuredLoginListClaim_scope=",read,write" '
        'unsecuredLoginScopeClaimName="scope" unsecuredLoginLifetimeSeconds="600" '
        'unsecuredLoginExtension_pool="p";'
    )


@pytest.mark.parametrize(
    ("servers", "java"),
    [
        ("a,b:9093", "a:9092,b:9093"),
        ("SASL_SSL://a , b", "SASL_SSL://a:9092,b:9092"),
        ("[::1]:9093,[::1]", "[::1]:9093,[::1]:9092"),
    ],
)
def test_java_wants_a_port(servers, java):
    assert java_settings({"bootstrap.servers": servers})["bootstrap.servers"] == java


@pytest.mark.parametrize(
    ("setting", "java"),
    [("none", ""), ("https", "https")],
)
def test_whether_the_host_name_is_checked_is_passed_on(setting, java):
    translated = java_settings({**TLS, "ssl.endpoint.identification.algorithm": setting})
    assert translated["ssl.endpoint.identification.algorithm"] == java


def test_both_names_of_the_mechanism_may_be_given_if_they_agree():
    both = {**SCRAM, "sasl.mechanisms": "scram-sha-512"}
    assert java_settings(both) == java_settings(SCRAM) == java_settings({**SCRAM, "sasl.mechanisms": ""})
    with pytest.raises(UsageError, match="sasl.mechanisms=PLAIN and sasl.mechanism=SCRAM-SHA-512; expected"):
        java_settings({**both, "sasl.mechanisms": "PLAIN"})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**TLS, "ssl.crl.location": "a-secret"}, "ssl.crl.location"),
        ({**TLS, "ssl.cipher.suites": "a-secret"}, "ssl.cipher.suites"),
        ({**TLS, "ssl.keystore.location": "a-secret", "ssl.keystore.password": "x"}, "ssl.keystore.location"),
        ({**TLS, "enable.ssl.certificate.verification": False}, "enable.ssl.certificate.verification"),
        ({**TLS, "ssl.a.later.version": "a-secret"}, "ssl.a.later.version"),
        ({**SCRAM, "sasl.a.later.version": "a-secret"}, "sasl.a.later.version"),
        ({**SCRAM, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({**SERVERS, "security.protocol": "SASL_SSL"}, "sasl.mechanism"),
        ({**OAUTH, "oauth_cb": print}, "oauth_cb .*a Python function"),
        ({**OAUTH, "sasl.oauthbearer.config": "a-secret"}, "sasl.oauthbearer.method"),
        ({**OIDC, "https.ca.pem": "a-secret"}, "https.ca.pem"),
        ({**OIDC, "sasl.oauthbearer.grant.type": "jwt-bearer"}, "sasl.oauthbearer.grant.type"),
        ({**OIDC, "sasl.oauthbearer.assertion.private.key.pem": "a-secret"}, "assertion.private.key.pem"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_affects_security_and_has_no_counterpart_is_named(config, named):
    with pytest.raises(UsageError, match=f"has no counterpart for .*{named}") as error:
        java_settings(config)
    assert "a-secret" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({**TLS, "ssl.key.pem": KEY}, "ssl.certificate.pem is missing"),
        ({**TLS, "ssl.certificate.pem": CHAIN}, "ssl.key.pem is missing"),
        ({**TLS, "ssl.certificate.pem": CHAIN, "ssl.key.pem": KEY.replace("P", "ENCRYPTED P")}, "PKCS#8"),
        (
            {**TLS, "ssl.certificate.pem": CHAIN, "ssl.key.pem": KEY.replace("PRIVATE", "RSA PRIVATE")},
            "PKCS#8",
        ),
        ({**TLS, "ssl.ca.pem": "a-secret"}, "ssl.ca.pem contains no certificate"),
        ({**SCRAM, "sasl.password": ""}, "password is missing"),
        ({**OIDC, "sasl.oauthbearer.client.secret": None}, "clientSecret is missing"),
        ({**OIDC, "sasl.oauthbearer.token.endpoint.url": "file:///a-secret"}, "endpoint.url .* http"),
        ({"security.protocol": "SSL"}, "has no bootstrap.servers"),
        ({"bootstrap.servers": "user:a-secret@host:9092"}, "contains an @"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_missing_is_named(config, found):
    with pytest.raises(UsageError, match=found) as error:
        java_settings(config)
    assert "secret" not in str(error.value).replace("clientSecret", "")


def test_settings_that_the_protocol_does_not_use_are_passed_over_as_by_librdkafka():
    unused = {"ssl.crl.location": "x", "sasl.kerberos.keytab": "y", "sasl.username": "u", "ssl.key.pem": "k"}
    assert java_settings({**SERVERS, **unused}) == {**SERVERS, "security.protocol": "PLAINTEXT"}
    other_logins = {"sasl.kerberos.service.name": "kafka", "sasl.oauthbearer.method": "default"}
    assert java_settings({**SCRAM, **other_logins}) == java_settings(SCRAM)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


UNSECURED = {**OAUTH, "enable.sasl.oauthbearer.unsecure.jwt": "true"}
A_MODULE = 'a="1";com.sun.security.auth.module.JndiLoginModule/**/required/**/user.provider.url="ldap://x/y"'


@pytest.mark.parametrize(
    "config",
    [
        {**UNSECURED, "sasl.oauthbearer.config": f"principalClaimName={A_MODULE};z principal=a-secret"},
        {**UNSECURED, "sasl.oauthbearer.config": "principal=u scopeClaimName=a;b scope=a-secret"},
        {**UNSECURED, "sasl.oauthbearer.config": 'principal=u extension_";x=a-secret'},
        {**OIDC, "sasl.oauthbearer.extensions": "a b;=a-secret"},
        {**OIDC, "sasl.oauthbearer.extensions": "=a-secret"},
    ],
)
def test_a_name_cannot_add_to_java_s_login(config):
    with pytest.raises(UsageError, match=r"1 name .* expected only letters") as error:
        java_settings(config)
    assert "a-secret" not in str(error.value)
    assert "Jndi" not in str(error.value)


CLASSES = [
    "ssl.engine.factory.class",
    "ssl.provider",
    "security.providers",
    "sasl.login.class",
    "metric.reporters",
    "interceptor.classes",
    "sasl.login.callback.handler.class",
    "sasl.client.callback.handler.class",
    "ssl.trustmanager.algorithm",
    "sasl.oauthbearer.jwt.retriever.class",
    "key.deserializer",
    "partition.assignment.strategy",
    "config.providers",
    "sasl.jaas.config",
]


def test_no_class_of_a_connection_reaches_java():
    reached = []
    for base, name in product([SERVERS, TLS, SCRAM, OIDC, UNSECURED], CLASSES):
        with suppress(UsageError):
            if "com.example.Evil" in str(java_settings({**base, name: "com.example.Evil"})):
                reached.append((base, name))
    assert not reached


LOGIN = re.compile(r'[\w.]+ required( [\w$.-]+="(?:[^"\\]|\\.)*")*;', re.DOTALL)


@given(st.text(), st.text(), st.sampled_from(["principalClaimName", "scopeClaimName", "extension_x", ""]))
def test_a_login_of_java_is_one_module_with_its_options(name, value, field):
    config = f"principal=u scope=s {field}{'=' if field.endswith('Name') else ''}{name}={value}"
    for given_ in (
        {**UNSECURED, "sasl.oauthbearer.config": config},
        {**OIDC, "sasl.oauthbearer.extensions": f"{name}={value}"},
        {**SCRAM, "sasl.username": name, "sasl.password": value or "x"},
    ):
        try:
            java = java_settings(given_)
        except UsageError:
            continue
        assert LOGIN.fullmatch(java["sasl.jaas.config"]), java["sasl.jaas.config"]


@given(TEXT, TEXT, st.sampled_from(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]))
def test_there_and_back_again_is_the_same(user, password, mechanism):
    config = {**SCRAM, "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    config |= {"ssl.ca.pem": CHAIN, "ssl.certificate.pem": CHAIN + CHAIN, "ssl.key.pem": KEY}
    config |= {"ssl.endpoint.identification.algorithm": "none"}
    back = librdkafka_settings(java_settings(config), refused)
    assert back.pop("ssl.key.pem").endswith(config.pop("ssl.key.pem"))
    assert back == config


@given(st.dictionaries(st.sampled_from([*OIDC, *SCRAM, *TLS, "ssl.crl.location", "oauth_cb"]), TEXT))
def test_any_settings_are_translated_or_refused(config):
    try:
        java_settings(config)
    except UsageError:
        return


def test_a_user_in_the_brokers_addresses_is_refused_for_every_client():
    with pytest.raises(UsageError, match="contains an @") as error:
        client_config({"bootstrap.servers": "SASL_SSL://user:a-secret@host:9092"})
    assert "a-secret" not in str(error.value)
