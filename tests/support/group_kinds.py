"""Makes groups that are not consumer groups, with Kafka's own classes."""

import socket
import struct
import time
from typing import Any

from kafka_oracle import Oracle

WITH_ALL_KINDS = {
    # Kafka 4.1 has them, but switched off.
    "unstable.api.versions.enable": "true",
    "unstable.feature.versions.enable": "true",
    "group.coordinator.rebalance.protocols": "classic,consumer,share,streams",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
"""Properties of a broker that may have share groups and streams groups, see :func:`allow_all_kinds`."""

DEADLINE = 60.0


def allow_all_kinds(oracle: Oracle, servers: str) -> None:
    """Switch share groups and streams groups on; later versions of Kafka have them switched on already."""
    clients = oracle.jvm.org.apache.kafka.clients.admin
    upgrade = getattr(clients, "FeatureUpdate$UpgradeType").UPGRADE
    updates = oracle.jvm.java.util.HashMap()
    for feature in ("share.version", "streams.version"):
        updates.put(feature, clients.FeatureUpdate(1, upgrade))
    oracle.admin(servers).updateFeatures(updates, clients.UpdateFeaturesOptions()).all().get()


def make_share_group(oracle: Oracle, servers: str, group_id: str, topic: str) -> None:
    """Let a share consumer join a group, and leave it."""
    jvm = oracle.jvm
    settings = jvm.java.util.Properties()
    settings.put("bootstrap.servers", servers)
    settings.put("group.id", group_id)
    deserializer = jvm.org.apache.kafka.common.serialization.ByteArrayDeserializer
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaShareConsumer(
        settings, deserializer(), deserializer()
    )
    consumer.subscribe(_list(jvm, topic))
    deadline = time.monotonic() + DEADLINE
    while group_id not in oracle.admin(servers).listGroups().all().get().toString():
        assert time.monotonic() < deadline, "the share consumer has not joined"
        consumer.poll(jvm.java.time.Duration.ofMillis(100))
    consumer.close()


def make_streams_group(oracle: Oracle, servers: str, group_id: str, topic: str) -> None:
    """Send what an application of Kafka Streams sends when it joins a group, and when it leaves it."""
    jvm = oracle.jvm
    message = jvm.org.apache.kafka.common.message
    name = "StreamsGroupHeartbeatRequestData"
    part = getattr(message, f"{name}$Subtopology")().setSubtopologyId("0").setSourceTopics(_list(jvm, topic))
    topology = getattr(message, f"{name}$Topology")().setSubtopologies(_list(jvm, part))
    data = getattr(message, name)().setGroupId(group_id).setMemberId("member").setProcessId("process")
    nothing = _list(jvm)
    data.setRebalanceTimeoutMs(1000).setClientTags(nothing).setTopology(topology)
    data.setActiveTasks(nothing).setStandbyTasks(nothing).setWarmupTasks(nothing)
    joined = _send(jvm, servers, data)
    assert "errorCode=0," in joined, joined
    data.setMemberEpoch(-1).setClientTags(None).setTopology(None)
    data.setActiveTasks(None).setStandbyTasks(None).setWarmupTasks(None)
    left = _send(jvm, servers, data)
    assert "errorCode=0," in left, left


def _send(jvm: Any, servers: str, data: Any) -> str:
    requests = jvm.org.apache.kafka.common.requests
    key = jvm.org.apache.kafka.common.protocol.ApiKeys.STREAMS_GROUP_HEARTBEAT
    header = requests.RequestHeader(key, 0, "test", 1)
    builder = getattr(requests, "StreamsGroupHeartbeatRequest$Builder")(data, True)
    request = builder.build(0).serializeWithHeader(header)
    # The buffer is larger than what is written in it.
    sent = bytes(request.array())[request.position() : request.limit()]
    host, _, port = servers.rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        connection.sendall(struct.pack(">i", len(sent)) + sent)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = jvm.java.nio.ByteBuffer.wrap(answers.read(size))
    return str(requests.AbstractResponse.parseResponse(answer, header).toString())


def _list(jvm: Any, *items: Any) -> Any:
    found = jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return found
