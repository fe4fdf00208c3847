"""Task loops of Airflow 3.4 that plan and commit windows, and that reset groups, in each iteration."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, task
from airflow.sdk import task_group as make_group

from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator

task_group: Any = make_group
"""Its ``loop`` came with Airflow 3.4."""
TOPIC = os.environ["LOOP_TOPIC"]
ITERATIONS = 3
RETRIED: Any = {"retries": 1, "retry_delay": 0.1}


def fails_once(context):
    """Fail the first try of the second iteration, before the task does anything."""
    if context["loop"].index == 1 and context["ti"].try_number == 1:
        raise RuntimeError("as it was told to")


class PlanAtTheSecondTry(PlanOffsetWindowOperator):
    def execute(self, context):
        window = super().execute(context)
        fails_once(context)
        return window


class ResetAtTheSecondTry(ResetOffsetsOperator):
    def execute(self, context):
        fails_once(context)
        return super().execute(context)


def third(*, loop):
    return loop.index == ITERATIONS - 1


with DAG("windows", schedule=None, is_paused_upon_creation=False):

    @task_group
    def batch():
        plan = PlanAtTheSecondTry(
            task_id="plan",
            group_id=f"windows-{TOPIC}",
            topics=TOPIC,
            max_records=2,
            on_no_commit="earliest",
            **RETRIED,
        )

        @task
        def read(window):
            return window["records"]

        commit = CommitOffsetWindowOperator(task_id="commit", group_id=f"windows-{TOPIC}", window=plan.output)
        read(plan.output) >> commit

    @task
    def told(*, ti: Any = None):
        return list(ti.xcom_pull(task_ids="batch.read"))

    batch.loop(max_iterations=ITERATIONS, until=third) >> told()


with DAG("resets", schedule=None, is_paused_upon_creation=False):

    @task_group
    def back():
        reset = ResetAtTheSecondTry.partial(task_id="reset", topics=TOPIC, shift_by=-1, **RETRIED).expand(
            group_id=[f"first-{TOPIC}", f"second-{TOPIC}"]
        )

        @task(trigger_rule="all_done")
        def done():
            return None

        reset >> done()

    back.loop(max_iterations=ITERATIONS, until=third)


with DAG("outside", schedule=None, is_paused_upon_creation=False):

    @task_group
    def plans():
        PlanOffsetWindowOperator(task_id="plan", group_id=f"outside-{TOPIC}", topics=TOPIC)

    loop = plans.loop(max_iterations=1)
    commit = CommitOffsetWindowOperator(
        task_id="commit",
        group_id=f"outside-{TOPIC}",
        window="{{ ti.xcom_pull(task_ids='plans.plan') }}",
        do_xcom_push=False,
    )
    loop >> commit
