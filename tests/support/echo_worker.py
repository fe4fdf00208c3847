"""A worker that answers as the group's name says, for tests of what asks it."""

import json
import os
import sys
import time


def main() -> None:
    """Answer as the name says, or with the number of questions so far."""
    print(json.dumps({"ready": True}), flush=True)
    for number, line in enumerate(sys.stdin, 1):
        question = json.loads(line)
        group = question["names"]["group_id"]
        if group == "die":
            os._exit(1)
        if group.startswith("hang"):
            continue
        if group == "slow":
            time.sleep(0.3)
        if group == "late":
            # It gives up at its deadline, and takes a moment to say so.
            time.sleep(max(0.0, question["end"] - time.monotonic()) + 0.2)
        result = (
            {"error": "it failed"} if group == "fail" else {"value": {"asked": number, "pid": os.getpid()}}
        )
        print(json.dumps({"id": question["id"], **result}), flush=True)
