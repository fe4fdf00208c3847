"""Resets that were interrupted, and what follows before the same task runs again."""

from dataclasses import replace

import pytest

from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.moves import apply, write

RESET = CommitMetadata(run="r", task="reset", token="a", tool="reset")


def interrupt(pipeline, groups, *to):
    """Reset in a process that ends after it has committed this number of groups."""
    committed = []

    def overwrite(client, plan, texts):
        if len(committed) == groups:
            raise KeyboardInterrupt
        committed.append(plan)
        write.overwrite(client, plan, texts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apply, "overwrite", overwrite)
        with pytest.raises(KeyboardInterrupt):
            pipeline.reset(*to)


@pytest.mark.parametrize("by", [RESET, replace(RESET, token="b")], ids=["retry", "clear"])
def test_after_the_query_has_run_an_interrupted_reset_does_not_hide_other_parameters(two_groups, by):
    interrupt(two_groups, 1, 50, RESET)
    two_groups.run(2, 60)
    assert two_groups.at() == [50, 90, 60, 60]
    receipt = two_groups.reset(20, by, interrupted=True)
    assert two_groups.at() == [20] * 4
    assert [group["before"] for group in receipt["groups"]] == [{"orders": {"0": 90}}, {"refunds": {"0": 90}}]


@pytest.mark.parametrize(("to", "parameter"), [(50, "to_offset"), (-40, "shift_by")])
@pytest.mark.parametrize("groups", [0, 1])
def test_a_retry_does_not_move_again_what_was_taken_back_meanwhile_and_clearing_the_task_does(
    two_groups, groups, to, parameter
):
    interrupt(two_groups, groups, to, RESET, parameter)
    two_groups.take_back("0001-seek")
    assert two_groups.at() == [90] * 4
    with pytest.raises(
        PlanRefusedError, match=r"0001-seek .* was taken back by 0002-restore \(group restore,"
    ):
        two_groups.reset(to, RESET, parameter)
    assert two_groups.at() == [90] * 4
    two_groups.reset(to, replace(RESET, token="b"), parameter)
    assert two_groups.at() == [50] * 4


def test_a_retry_does_not_move_again_after_another_runs_move_that_was_taken_back(two_groups):
    two_groups.reset(-10, RESET, "shift_by")
    two_groups.reset(20, replace(RESET, run="other", token="c"))
    two_groups.take_back("0002-seek")
    assert two_groups.at() == [80] * 4
    two_groups.reset(-10, RESET, "shift_by")
    assert two_groups.at() == [80] * 4
