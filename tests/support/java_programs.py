"""Jars of programs that only tests start: from Maven Central, kept beside those of the embedded Kafka."""

from collections.abc import Callable
from pathlib import Path

from jgo.maven import MavenContext

from airflow_kafka_offsets.local.jars import cached_jars, listing_file, with_dependencies

S3PROXY_VERSION = "2.6.0"
HADOOP_VERSION = "3.4.1"
OPENLINEAGE_VERSION = "1.53.0"
AWS_SDK_VERSION = "2.24.12"
"""Hadoop 3.4.1 names 2.24.6; in one jar of 560 MB, of which these parts are what S3A needs."""
AWS_SDK_PARTS = ("apache-client", "netty-nio-client", "s3", "s3-transfer-manager", "sts")


def s3proxy() -> list[Path]:
    """Return S3Proxy, one jar."""
    artifact = ("org.gaul", "s3proxy", S3PROXY_VERSION)
    return _jars("S3Proxy", f"S3Proxy {S3PROXY_VERSION}", "41 MB", _alone(*artifact, "jar-with-dependencies"))


def hadoop_aws(version: str) -> list[Path]:
    """Return what Spark needs beside its own jars for ``s3a``; ``version`` is that of Spark's Hadoop."""
    parts = [f"software.amazon.awssdk:{part}:{AWS_SDK_VERSION}" for part in AWS_SDK_PARTS]
    resolve = with_dependencies(
        [f"org.apache.hadoop:hadoop-aws:{version}", *parts], [("software.amazon.awssdk", "bundle")]
    )
    jars = _jars("S3A", f"hadoop-aws {version}", "about 15 MB", resolve)
    # These come with Spark, in other versions.
    return [jar for jar in jars if not jar.name.startswith(("slf4j-", "netty-"))]


def hadoop_minicluster() -> list[Path]:
    """Return an HDFS for one process."""
    # It serves HTTP with classes that came with Java 8.
    names = [f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP_VERSION}", "javax.xml.bind:jaxb-api:2.3.1"]
    resolve = with_dependencies(names)
    return _jars("HDFS", f"hadoop-minicluster {HADOOP_VERSION}", "93 MB", resolve)


def openlineage_spark() -> list[Path]:
    """Return OpenLineage's agent for Spark, one jar."""
    artifact = ("io.openlineage", "openlineage-spark_2.13", OPENLINEAGE_VERSION)
    return _jars("OpenLineage", f"openlineage-spark {OPENLINEAGE_VERSION}", "43 MB", _alone(*artifact, ""))


def _alone(group: str, name: str, version: str, classifier: str) -> Callable[[MavenContext], list[Path]]:
    def resolve(context: MavenContext) -> list[Path]:
        project = context.project(group, name).at_version(version)
        return [Path(project.artifact(classifier=classifier).resolve())]

    return resolve


def _jars(owner: str, title: str, size: str, resolve: Callable[[MavenContext], list[Path]]) -> list[Path]:
    return cached_jars(owner, title, size, resolve, listing_file(title))
