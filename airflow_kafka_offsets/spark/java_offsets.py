"""Creates the offset map of Kafka's Java client with a few calls into the JVM, whatever its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from airflow_kafka_offsets.model.formats import offsets_text
from airflow_kafka_offsets.model.offsets import TopicPartition


class JavaOffsets:
    """
    Creates maps of ``TopicPartition`` to ``OffsetAndMetadata`` in the JVM.

    With one call for each key, value and entry, 1,000 partitions would take 0.2 s of Python's time in each
    batch. Instead, Spark's connector reads all offsets from one text. Then a method handle of the
    ``OffsetAndMetadata`` constructor replaces each offset inside the JVM.

    :param jvm: py4j's view of a JVM with Spark's Kafka connector.
    """

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def __call__(self, offsets: Mapping[TopicPartition, int], metadata: str) -> Any:
        """Return a ``java.util.Map`` of the offsets, each with the metadata."""
        found = self._jvm.org.apache.spark.sql.kafka010.JsonUtils.partitionOffsets(offsets_text(offsets))
        values = self._jvm.scala.collection.JavaConverters.mapAsJavaMapConverter(found).asJava()
        commits = self._jvm.java.util.HashMap(values)
        commits.replaceAll(self._function(metadata))
        return commits

    def _function(self, metadata: str) -> Any:
        """Return ``(partition, offset) -> new OffsetAndMetadata(offset, metadata)``."""
        handles = self._jvm.java.lang.invoke.MethodHandles
        of_offset = handles.insertArguments(self._constructor, 1, java_list(self._jvm, [metadata]).toArray())
        of_entry = handles.dropArguments(
            of_offset, 0, java_list(self._jvm, [self._class("java.lang.Object")])
        )
        function = self._class("java.util.function.BiFunction")
        return self._jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(function, of_entry)

    @cached_property
    def _constructor(self) -> Any:
        java = self._jvm.java.lang
        # Taken from an instance, because only Spark's own loader knows the classes of --packages.
        made = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(0).getClass()
        arguments = java_list(self._jvm, [java.Long.TYPE, self._class("java.lang.String")])
        kind = java.invoke.MethodType.methodType(java.Void.TYPE, arguments)
        return java.invoke.MethodHandles.publicLookup().findConstructor(made, kind)

    def _class(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(name)


def java_list(jvm: Any, items: Iterable[Any]) -> Any:
    """Return a ``java.util.List`` of the items."""
    found = jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return found
