"""Options that connect Spark's Kafka source and sink to the cluster of an Airflow connection."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.kafka_security import PEM_FILES, PROBE, is_plain_pkcs8, java_settings
from airflow_kafka_offsets.model.text import MAX_SIZE, too_large_error

OPTIONS_FILE = "AIRFLOW_KAFKA_OFFSETS_OPTIONS_FILE"
"""Environment variable of the driver that names the file with the options."""

_KEY = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL)


def spark_kafka_options(config: Mapping[str, Any] | None = None) -> dict[str, str]:
    """
    Return the ``kafka.*`` options with the address and the security of a Kafka connection.

    The options contain the credentials as text, so do not log them. From this call on, py4j logs nothing
    below INFO, because it would log them. The options secure only Spark's connections to Kafka: Spark sends
    the options from the driver to its executors.

    :param config: librdkafka's settings, as ``KafkaOffsetsHook(...).client_config()`` returns them. Their PEM
        files are read here. An encrypted key is decrypted, which needs ``cryptography``: before version 19,
        Java cannot read keys that OpenSSL 3 encrypts. Default: the options that
        :class:`~airflow_kafka_offsets.operators.spark_submit.KafkaSparkSubmitOperator` has passed to this
        job.
    :raises UsageError: if a setting that affects security has no counterpart, a file cannot be read, or no
        options were passed.
    """
    quiet_py4j()
    if config is None:
        return _handed_over()
    given = dict(config)
    for name, content in PEM_FILES.items():
        path = given.pop(name, None)
        if path in (None, "", PROBE):
            continue
        if given.get(content):
            raise UsageError(f"{name} and {content} are both given: give only one")
        given[content] = _read(name, Path(str(path)))
    if (key := given.get("ssl.key.pem")) and not is_plain_pkcs8(key):
        given["ssl.key.pem"] = _plain_key(key, given.get("ssl.key.password"))
    return {f"kafka.{name}": value for name, value in java_settings(given).items()}


def quiet_py4j() -> None:
    """Keep py4j from logging calls: at DEBUG it logs arguments and results, including these options."""
    for name in ("py4j", "py4j.clientserver", "py4j.java_gateway"):
        logger = logging.getLogger(name)
        if logger.getEffectiveLevel() < logging.INFO:
            logger.setLevel(logging.INFO)


def _handed_over() -> dict[str, str]:
    path = os.environ.get(OPTIONS_FILE)
    if not path:
        raise UsageError(
            f"no Kafka options were passed to this job (there is no {OPTIONS_FILE} in its environment): "
            "start it with KafkaSparkSubmitOperator in client mode, or give spark_kafka_options the settings "
            "of librdkafka"
        )
    options: dict[str, str] = json.loads(_read(OPTIONS_FILE, Path(path)))
    return options


def _plain_key(pem: str, password: str | None) -> str:
    """Convert a key to a form that Java reads, without encryption: its password would be an option too."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        return pem
    found = _KEY.search(pem)
    if found is None:
        return pem
    encrypted = "ENCRYPTED" in found[0]
    if encrypted and not password:
        raise UsageError("ssl.key.password is missing: the key in ssl.key.pem is encrypted")
    try:
        key = serialization.load_pem_private_key(
            found[0].encode(), password.encode() if encrypted and password else None
        )
    except (ValueError, TypeError, UnsupportedAlgorithm):
        what = "ssl.key.pem with ssl.key.password" if encrypted else "ssl.key.pem"
        raise UsageError(f"the private key cannot be read: correct {what} (or the file)") from None
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _read(name: str, path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MAX_SIZE:
            raise UsageError(too_large_error(f"{name}={path}", size))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name}={path} cannot be read on this machine ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name}={path} is not text in UTF-8") from None
