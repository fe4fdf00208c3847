"""The command `checkpoint show`, of checkpoints that Spark has written."""

import json
from pathlib import Path

RECORDED = Path(__file__).parents[2] / "checkpoints"


def test_checkpoint_show_as_json(cli):
    location = RECORDED / "spark-4.2.0-named-sources-v2" / "checkpoint"
    shown = json.loads(cli("checkpoint", "show", location, "--output", "json").out)
    assert shown["batch_id"] == 0
    assert shown["pending_batch_id"] is None
    assert shown["query_id"]
    assert shown["sources"] == [
        {"source": "orders", "kafka": True, "offsets": {"sp_nm42_a": {"0": 10, "1": 10, "2": 10}}},
        {"source": "pay_2", "kafka": True, "offsets": {"sp_nm42_b": {"0": 15, "1": 15}}},
        {"source": "rt", "kafka": False, "offsets": None},
    ]


def test_checkpoint_show_as_a_table(cli):
    done = cli("checkpoint", "show", RECORDED / "spark-4.0.0-uncommitted-last" / "checkpoint")
    assert done.code == 0
    assert "pending  none" not in done.out
    assert "SOURCE" in done.out


def test_a_location_without_a_checkpoint_is_exit_1_and_a_sentence(cli, tmp_path):
    done = cli("checkpoint", "show", tmp_path)
    assert done.code == 1
    assert done.err.startswith("Error: ")
