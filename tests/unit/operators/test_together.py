from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.errors import CommitError, GroupMovedError
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator

pytestmark = pytest.mark.usefixtures("memory")


def test_two_operators_that_commit_to_one_group_at_once_are_right_or_refused(
    make_topic, produce, new_group, holds
):
    topic, group = make_topic(1), new_group()
    produce(topic, {0: 20})

    def commit(offset):
        task = CommitOffsetsOperator(task_id=f"c{offset}", group_id=group, offsets={topic: {"0": offset}})
        try:
            return task.execute({})["after"][topic]["0"]
        except (AirflowFailException, CommitError, GroupMovedError) as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(commit, (5, 10, 15, 20)))
    refused = [end for end in ends if isinstance(end, str)]
    # The group was further on already, was committed since it was read, or the other's offset was read back.
    reasons = ("backwards", "another process commits to this group", "while its move was being prepared")
    assert not [text for text in refused if not any(reason in text for reason in reasons)]
    assert len(refused) < 4
    assert holds(group)[0] in (5, 10, 15, 20)
