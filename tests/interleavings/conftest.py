from killed_moves import killed  # noqa: F401
from memory_kafka import memory_connected  # noqa: F401
