"""All commits of all groups in their order, from Kafka's own topic of them."""

import struct
import threading
import time
from collections import defaultdict

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.soak.model import Position

_PARTITIONS = 3
_PATIENCE = 30.0


class History:
    """Reads ``__consumer_offsets`` in a thread of its own."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.commits: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._consumer = consumer
        self._over = threading.Event()
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(_PARTITIONS)])
        self._thread = threading.Thread(target=self._read, name="history", daemon=True)
        self._thread.start()

    def of(self, group: str, now: Position) -> list[tuple[int, int, str]]:
        """Return the commits of a group, once those that it is at have arrived."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            found = list(self.commits.get(group, ()))
            last = {partition: offset for partition, offset, _ in found}
            if all(
                last.get(partition) == offset for partition, offset in enumerate(now) if offset is not None
            ):
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"the commits of group {group} did not arrive: {last}, expected {now}")
            time.sleep(0.05)

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(30)
        self._consumer.close()

    def _read(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(500, timeout=0.2):
                if message.error() is None and message.key() and message.value():
                    self._note(message.key(), message.value())

    def _note(self, key: bytes, value: bytes) -> None:
        (version,) = struct.unpack_from(">h", key)
        if version > 1:
            return  # of a group's members
        group, at = _text(key, 2)
        _, at = _text(key, at)
        (partition,) = struct.unpack_from(">i", key, at)
        version, offset = struct.unpack_from(">hq", value)
        metadata = _compact(value, 14) if version >= 4 else _text(value, 14 if version == 3 else 10)[0]
        self.commits[group].append((partition, offset, metadata.rstrip("\0")))


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode("utf-8", "replace"), at + 2 + length


def _compact(data: bytes, at: int) -> str:
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return data[at : at + length - 1].decode("utf-8", "replace")
        shift += 7
