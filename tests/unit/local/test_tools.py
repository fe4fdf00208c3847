from __future__ import annotations

from kafka_shell import ToolResult, parse_describe

DESCRIBED = """
Consumer group 'daily flights' has no active members.

GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID     HOST            CLIENT-ID
daily flights   flights         0          7               10              3               -               -               -
daily flights   flights         1          -               4               -               -               -               -
daily flights   flights         2          4               4               0               rdkafka-1f      /127.0.0.1      rdkafka
"""


def test_describe_is_read_row_by_row():
    rows = parse_describe(DESCRIBED)
    assert [(r["partition"], r["current_offset"], r["log_end_offset"], r["lag"]) for r in rows] == [
        (0, 7, 10, 3),
        (1, None, 4, None),
        (2, 4, 4, 0),
    ]
    assert {(r["group"], r["topic"]) for r in rows} == {("daily flights", "flights")}


def test_an_error_is_found_though_the_tool_exits_0():
    assert ToolResult("\nError: Group x not found.\n", "trace", 0).error == "Error: Group x not found."
    assert ToolResult("", "Missing required argument", 1).error == "Missing required argument"
    assert ToolResult("fine\n", "", 0).error is None
