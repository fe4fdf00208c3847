"""Receipts as operators return them."""

from typing import Any


def receipt(
    group_id: str, before: int | None, after: int, *, topic: str = "orders", log_end: int = 100, **more: Any
) -> dict[str, Any]:
    """Return the receipt of one partition."""
    names = ("before", "after", "log_start", "log_end")
    offsets = [{topic: {"0": each}} for each in (before, after, 0, log_end)]
    return {
        "version": 1,
        "group_id": group_id,
        **dict(zip(names, offsets, strict=True)),
        "changed": int(before != after),
        "moved_by": after - (before or 0),
        "plan_only": False,
        "verified": True,
        "source": {},
        "kafka_config_id": "kafka_default",
        **more,
    }
