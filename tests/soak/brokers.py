"""The cluster of the soak: three brokers behind proxies, of which one at a time may be struck."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from breakable_kafka import BreakableKafka
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_kafka_offsets.local.broker_config import LOOPBACK
from airflow_kafka_offsets.local.certificates import Authority
from tests.soak.proxy import Proxies
from tests.soak.schedule import Fault

BROKERS = 3
PROXIED = "LANE"
USER, PASSWORD = "soak", "soak-password"
HEALTHY = 60.0
OFFSETS = "__consumer_offsets"


class SoakKafka(BreakableKafka):
    """
    Three brokers; the workers of each lane reach them through proxies of the lane, the soak itself directly.

    :param secured: whether the workers have to log in, with SCRAM over TLS.
    """

    def __init__(self, proxies: Proxies, *, lanes: int, secured: bool) -> None:
        self._proxies = proxies
        self._secured = secured
        self._lanes = [f"{PROXIED}{lane}" for lane in range(lanes)]
        super().__init__(
            brokers=BROKERS,
            users={USER: PASSWORD} if secured else None,
            listeners=dict.fromkeys(self._lanes, "SASL_SSL" if secured else "PLAINTEXT"),
            heap="384m",
        )
        self._authority = Authority(self.directory / "certificates") if secured else None
        if self._authority is not None:
            certificate = self._authority.issue("broker")
            self._properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate)}
        proxies.upstream = lambda lane, number: self._ports[number - 1][self._lanes[lane]]

    def server_properties(self, number: int) -> dict[str, str]:
        """Advertise the proxies' ports in place of the broker's own."""
        properties = super().server_properties(number)
        advertised = properties["advertised.listeners"]
        for lane, name in enumerate(self._lanes):
            own = f"{name}://{LOOPBACK}:{self._ports[number - 1][name]}"
            proxied = f"{name}://{LOOPBACK}:{self._proxies.ports[lane, number]}"
            advertised = advertised.replace(own, proxied)
        return properties | {"advertised.listeners": advertised}

    def worker_config(self, lane: int) -> dict[str, Any]:
        """Return the configuration of the clients of a lane's workers."""
        ports = [self._proxies.ports[lane, number] for number in self.brokers]
        config = {"bootstrap.servers": ",".join(f"{LOOPBACK}:{port}" for port in ports)}
        if self._authority is None:
            return config
        return config | {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._authority.file),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }


class Cluster:
    """Strikes brokers, one at a time, and knows who leads what."""

    def __init__(self, *, lanes: int, secured: bool = False) -> None:
        self.proxies = Proxies(BROKERS, lanes, tls=secured)
        try:
            self.kafka = SoakKafka(self.proxies, lanes=lanes, secured=secured).start()
        except BaseException:
            self.proxies.close()
            raise
        self.servers = self.kafka.bootstrap_servers
        self._client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        # Who strikes a broker keeps it until the cluster is whole again.
        self._whole = threading.Lock()
        self._repairs: list[threading.Thread] = []
        self.broken: BaseException | None = None

    def close(self) -> None:
        """End everything."""
        for repair in self._repairs:
            repair.join(HEALTHY + 10)
        self.kafka.stop()
        self.proxies.close()

    def make_topic(self, name: str, partitions: int) -> None:
        """Make a topic, and wait until it can be used."""
        new = NewTopic(name, num_partitions=partitions, replication_factor=-1)
        self._client.create_topics([new], request_timeout=30)[name].result(30)
        self._wait_until_whole(name)

    def strike(self, fault: Fault, group: str, topic: str) -> None:
        """Strike a broker; it comes back by itself."""
        if not self._whole.acquire(timeout=2 * HEALTHY):
            raise TimeoutError("a broker that was struck did not come back")
        try:
            leaders = self._leaders(OFFSETS if fault.kind.endswith("coordinator") else topic)
            partition = _java_hash(group) % len(leaders) if fault.kind.endswith("coordinator") else 0
            number = leaders[partition]
            if fault.kind.startswith("kill"):
                self.kafka.kill(number)
            elif fault.kind.startswith("freeze"):
                self.kafka.freeze(number)
        except BaseException:
            self._whole.release()
            raise
        repair = threading.Thread(target=self._repair, args=(fault, number), name="repair", daemon=True)
        self._repairs = [*(each for each in self._repairs if each.is_alive()), repair]
        repair.start()

    def _repair(self, fault: Fault, number: int) -> None:
        try:
            if fault.kind.startswith("roll"):
                self.kafka.brokers[number].end()
            time.sleep(fault.amount)
            if fault.kind.startswith("freeze"):
                self.kafka.thaw(number)
            else:
                self.kafka.start_broker(number)
            self._wait_until_whole()
        except BaseException as error:
            self.broken = error
            raise
        finally:
            self._whole.release()

    def _leaders(self, topic: str) -> Mapping[int, int]:
        deadline = time.monotonic() + HEALTHY
        while time.monotonic() < deadline:
            try:
                partitions = self._client.list_topics(topic, timeout=5).topics[topic].partitions
            except KafkaException:
                continue
            leaders = {number: each.leader for number, each in partitions.items()}
            if leaders and all(leader > 0 for leader in leaders.values()):
                return leaders
            time.sleep(0.05)
        raise TimeoutError(f"{topic} has no leaders")

    def _wait_until_whole(self, topic: str | None = None) -> None:
        """Wait until each partition has all of its replicas in step."""
        deadline = time.monotonic() + HEALTHY
        while time.monotonic() < deadline:
            try:
                topics = self._client.list_topics(topic, timeout=5).topics.values()
            except KafkaException:
                continue
            partitions = [each for found in topics for each in found.partitions.values()]
            if partitions and all(each.leader > 0 and len(each.isrs) == BROKERS for each in partitions):
                return
            time.sleep(0.1)
        raise TimeoutError("the cluster did not become whole again")

    def consumer(self, group: str) -> Consumer:
        """Return a client of the soak's own, past the proxies."""
        config = {"bootstrap.servers": self.servers, "group.id": group, "log_level": 0}
        return Consumer(config | {"enable.auto.commit": False, "auto.offset.reset": "earliest"})


def _java_hash(text: str) -> int:
    """Return what Kafka finds the coordinator of a group by."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
