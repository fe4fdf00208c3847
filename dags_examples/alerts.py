"""
A gate that mails its last reading if it fails, a deadline for the whole run, and an hourly check that
retention is not about to delete unread records.

Mails are sent through the Airflow connection ``smtp_default``, whose extra has the sender as ``from_email``.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG, task

# Airflow 3.1 does not export these classes in airflow.sdk itself.
from airflow.sdk.definitions.deadline import (  # type: ignore[attr-defined]
    AsyncCallback,
    DeadlineAlert,
    DeadlineReference,
)
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor

ON_CALL = "data-on-call@example.com"

# --8<-- [start:message]
# The sensor's last reading is in its XCom, even if the sensor has failed. If the broker has never answered,
# there is no reading.
GATE_FAILED = """
<p>{{ dag.dag_id }}.{{ ti.task_id }} failed in run {{ run_id }}. {{ exception | default("") | e }}</p>
{% set reading = ti.xcom_pull(task_ids=ti.task_id) %}
{% if reading %}
<p>Group {{ reading.group_id }}: {{ reading.total_lag }} unread records, {{ reading.lost }} lost to retention.</p>
<ul>
  {% for topic, records in reading.topics.items() %}
  <li>{{ topic }}: {{ records }}</li>
  {% endfor %}
</ul>
{% endif %}
"""
# --8<-- [end:message]

# --8<-- [start:deadline]
not_ready = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_QUEUED_AT,
    interval=timedelta(hours=2),
    # The callback runs in the triggerer. It may be any awaitable that can be imported there.
    callback=AsyncCallback(
        SmtpNotifier,
        kwargs={
            "to": ON_CALL,
            "subject": "{{ dag_run.dag_id }} is late",
            "html_content": "Run {{ dag_run.dag_run_id }} has not succeeded by {{ deadline.deadline_time }}.",
        },
    ),
)

with DAG(
    dag_id="alerts",
    schedule=CronDataIntervalTimetable("0 6 * * *", timezone="UTC"),
    catchup=False,
    deadline=not_ready,
    tags=["kafka"],
    doc_md=__doc__,
) as dag:
    # --8<-- [end:deadline]
    # --8<-- [start:gate]
    gate = ConsumerGroupLagSensor(
        task_id="gate",
        group_id="orders-etl",
        topics=["orders"],
        max_lag=1000,
        timeout=3600,
        on_failure_callback=SmtpNotifier(
            to=ON_CALL,
            subject="{{ dag.dag_id }}: the group is behind",
            html_content=GATE_FAILED,
        ),
    )

    @task
    def publish() -> None:
        """Placeholder for a task that needs complete data."""

    gate >> publish()
    # --8<-- [end:gate]

# --8<-- [start:expiring]
with DAG(dag_id="about_to_be_lost", schedule="@hourly", catchup=False, tags=["kafka"]):
    CheckOffsetDriftOperator(
        task_id="check",
        group_id="orders-etl",
        checkpoint_location="s3a://lake/checkpoints/orders",
        grace="PT30M",
        # Longer than a query may be down, including the time until an engineer repairs it.
        min_headroom="PT24H",
        on_failure_callback=SmtpNotifier(
            to=ON_CALL,
            subject="{{ dag.dag_id }}: the pipeline needs attention",
            html_content="<pre>{{ exception | default('') | e }}</pre>",
        ),
    )
# --8<-- [end:expiring]
