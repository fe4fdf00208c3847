"""
Every public parameter with a value of another type: a type checker has to refuse each of them.

The operators take Airflow's own parameters too (`**kwargs: Any`), so a type checker accepts a name that they
no longer have. An `ignore` that nothing needs is an error: so a parameter that is gone, or takes anything, is
found here.
"""

from typing import Any

from pyspark.sql import SparkSession

from airflow_kafka_offsets import (
    ApprovePlanOperator,
    AuditWindowOperator,
    CheckMirrorOperator,
    CheckOffsetDriftOperator,
    CommitOffsetsOperator,
    CommitOffsetWindowOperator,
    CompletedIntervalsOperator,
    ConsumerGroupLagSensor,
    FailOverOperator,
    KafkaOffsetsHook,
    KafkaPipeline,
    KafkaSparkSubmitOperator,
    LagEventTrigger,
    OffsetsReachedSensor,
    PlanOffsetWindowOperator,
    PlanResetsOperator,
    ResetOffsetsOperator,
    RestoreOffsetsOperator,
    TopicReachedSensor,
)
from airflow_kafka_offsets.assets import create_asset
from airflow_kafka_offsets.kafka.client import OffsetsClient
from airflow_kafka_offsets.spark import (
    KafkaOffsetCommitterListener,
    OffsetWindow,
    SparkCheckpoint,
    SqlOffsetStore,
    audit_window,
    batch_ranges,
    commit_ranges,
    committing,
    pipeline_names,
    read_window,
    reading_window,
    spark_kafka_options,
    starting_offsets,
)

flat: dict[str, int] = {"orders": 42}
numbers: dict[int, int] = {0: 42}

KafkaPipeline(
    group_id=1,  # type: ignore[arg-type]
    topics=numbers,  # type: ignore[arg-type]
    checkpoint_location=1,  # type: ignore[arg-type]
    checkpoint_conn_id=1,  # type: ignore[arg-type]
    kafka_config_id=None,  # type: ignore[arg-type]
    asset_name=1,  # type: ignore[arg-type]
    mirror="kafka_standby",  # type: ignore[arg-type]
)
KafkaPipeline("g", None, None, None, "kafka_default", "name")  # type: ignore[call-arg]
KafkaPipeline("g", gruop="g")  # type: ignore[call-arg]
KafkaPipeline.load(
    file=1,  # type: ignore[arg-type]
)
create_asset(
    group_id=1,  # type: ignore[arg-type]
    kafka_config_id=None,  # type: ignore[arg-type]
    extra="extra",  # type: ignore[arg-type]
)

CommitOffsetsOperator(
    task_id="commit",
    offsets=flat,  # type: ignore[arg-type]
    store_conn_id=1,  # type: ignore[arg-type]
    store_table=None,  # type: ignore[arg-type]
    store_pipeline=1,  # type: ignore[arg-type]
    left_topics=numbers,  # type: ignore[arg-type]
    allow_rewind=1,  # type: ignore[arg-type]
    allow_new_query=1,  # type: ignore[arg-type]
    allow_new_cluster=1,  # type: ignore[arg-type]
    on_out_of_range=None,  # type: ignore[arg-type]
)
ResetOffsetsOperator(
    task_id="reset",
    to_offset=flat,  # type: ignore[arg-type]
    to_datetime=1,  # type: ignore[arg-type]
    shift_by=1.5,  # type: ignore[arg-type]
    by_duration=flat,  # type: ignore[arg-type]
    to_batch=1.5,  # type: ignore[arg-type]
    to_group=1,  # type: ignore[arg-type]
    from_file=1,  # type: ignore[arg-type]
    on_out_of_range=None,  # type: ignore[arg-type]
    on_no_commit=None,  # type: ignore[arg-type]
    allow_new_cluster=1,  # type: ignore[arg-type]
    plan_only=1,  # type: ignore[arg-type]
    plan=numbers,  # type: ignore[arg-type]
    max_age=None,  # type: ignore[arg-type]
    approval=numbers,  # type: ignore[arg-type]
    allow_self_approval=1,  # type: ignore[arg-type]
    stop_after_failure=1,  # type: ignore[arg-type]
    max_active_tis_per_dag="1",  # type: ignore[arg-type]
)
ApprovePlanOperator(
    task_id="approve",
    plan=numbers,  # type: ignore[arg-type]
    subject=1,  # type: ignore[arg-type]
    body=1,  # type: ignore[arg-type]
)
PlanResetsOperator(
    task_id="plans",
    pipelines=numbers,  # type: ignore[arg-type]
    max_active_tis_per_dag="1",  # type: ignore[arg-type]
)
RestoreOffsetsOperator(
    task_id="restore",
    receipt=numbers,  # type: ignore[arg-type]
    from_file=1,  # type: ignore[arg-type]
    restore_when=None,  # type: ignore[arg-type]
    on_no_commit=None,  # type: ignore[arg-type]
    on_out_of_range=None,  # type: ignore[arg-type]
    allow_new_cluster=1,  # type: ignore[arg-type]
    allow_stale=1,  # type: ignore[arg-type]
    max_active_tis_per_dag="1",  # type: ignore[arg-type]
).as_teardown(
    setups="reset",  # type: ignore[arg-type]
    on_failure_fail_dagrun="yes",  # type: ignore[arg-type]
)
FailOverOperator(
    task_id="fail_over",
    on_unknown=None,  # type: ignore[arg-type]
    on_out_of_range=None,  # type: ignore[arg-type]
    allow_running_mirror=1,  # type: ignore[arg-type]
    ask_source=1,  # type: ignore[arg-type]
    plan_only=1,  # type: ignore[arg-type]
    plan=numbers,  # type: ignore[arg-type]
    max_age=None,  # type: ignore[arg-type]
    approval=numbers,  # type: ignore[arg-type]
    allow_self_approval=1,  # type: ignore[arg-type]
    max_active_tis_per_dag="1",  # type: ignore[arg-type]
)
CheckMirrorOperator(
    task_id="check_mirror",
    max_again=1.5,  # type: ignore[arg-type]
    max_behind=1.5,  # type: ignore[arg-type]
)
CheckOffsetDriftOperator(
    task_id="drift",
    pipelines=numbers,  # type: ignore[arg-type]
    grace=None,  # type: ignore[arg-type]
    min_headroom=flat,  # type: ignore[arg-type]
    on_drift=None,  # type: ignore[arg-type]
)
PlanOffsetWindowOperator(
    task_id="plan",
    every=1,  # type: ignore[arg-type]
    timezone=1,  # type: ignore[arg-type]
    topics_pattern=["orders"],  # type: ignore[arg-type]
    start=1,  # type: ignore[arg-type]
    end=1,  # type: ignore[arg-type]
    max_records=1.5,  # type: ignore[arg-type]
    on_no_commit=None,  # type: ignore[arg-type]
    on_empty=None,  # type: ignore[arg-type]
    window_file=1,  # type: ignore[arg-type]
    window_conn_id=1,  # type: ignore[arg-type]
)
CommitOffsetWindowOperator(
    task_id="window",
    window=numbers,  # type: ignore[arg-type]
    window_conn_id=1,  # type: ignore[arg-type]
    fenced=1,  # type: ignore[arg-type]
    allow_new_cluster=1,  # type: ignore[arg-type]
    on_out_of_range=None,  # type: ignore[arg-type]
)
AuditWindowOperator(
    task_id="audit",
    window=numbers,  # type: ignore[arg-type]
    conn_id=1,  # type: ignore[arg-type]
    table=1,  # type: ignore[arg-type]
    topic_column=1,  # type: ignore[arg-type]
    partition_column=None,  # type: ignore[arg-type]
    offset_column=None,  # type: ignore[arg-type]
    where=numbers,  # type: ignore[arg-type]
    on_undecided=None,  # type: ignore[arg-type]
    read_timeout=None,  # type: ignore[arg-type]
    save_to=1,  # type: ignore[arg-type]
    save_conn_id=1,  # type: ignore[arg-type]
    window_conn_id=1,  # type: ignore[arg-type]
)
CompletedIntervalsOperator(
    task_id="intervals",
    every=1,  # type: ignore[arg-type]
    outlets=1,  # type: ignore[arg-type]
    timezone=None,  # type: ignore[arg-type]
    lateness=None,  # type: ignore[arg-type]
    on_idle_partition=None,  # type: ignore[arg-type]
    idle_after=flat,  # type: ignore[arg-type]
    start_from=1,  # type: ignore[arg-type]
    max_intervals=None,  # type: ignore[arg-type]
    position=1,  # type: ignore[arg-type]
    max_active_tis_per_dag="1",  # type: ignore[arg-type]
)
KafkaSparkSubmitOperator(
    task_id="spark",
    kafka_config_id=None,  # type: ignore[arg-type]
)
ConsumerGroupLagSensor(
    task_id="lag",
    max_lag=1.5,  # type: ignore[arg-type]
    max_partition_lag=1.5,  # type: ignore[arg-type]
    max_time_lag=flat,  # type: ignore[arg-type]
    min_headroom=flat,  # type: ignore[arg-type]
    tolerance=None,  # type: ignore[arg-type]
    on_no_commit=None,  # type: ignore[arg-type]
    position=1,  # type: ignore[arg-type]
)
OffsetsReachedSensor(
    task_id="reached",
    target=1,  # type: ignore[arg-type]
    tolerance=None,  # type: ignore[arg-type]
    position=1,  # type: ignore[arg-type]
)
TopicReachedSensor(
    task_id="topic",
    target=flat,  # type: ignore[arg-type]
    on_idle_partition=None,  # type: ignore[arg-type]
    idle_after=flat,  # type: ignore[arg-type]
)
LagEventTrigger(
    group_id=1,  # type: ignore[arg-type]
    topics=numbers,  # type: ignore[arg-type]
    checkpoint_location=1,  # type: ignore[arg-type]
    checkpoint_conn_id=1,  # type: ignore[arg-type]
    kafka_config_id=None,  # type: ignore[arg-type]
    mirror="kafka_standby",  # type: ignore[arg-type]
    min_lag="1",  # type: ignore[arg-type]
    min_time_lag=flat,  # type: ignore[arg-type]
    tolerance="1",  # type: ignore[arg-type]
    refire_after=None,  # type: ignore[arg-type]
    poll_interval=None,  # type: ignore[arg-type]
    position="groups",  # type: ignore[arg-type]
    isolation_level="uncommitted",  # type: ignore[arg-type]
    on_no_commit="none",  # type: ignore[arg-type]
)

hook = KafkaOffsetsHook(
    kafka_config_id=None,  # type: ignore[arg-type]
    timeout="30",  # type: ignore[arg-type]
)
hook.get_offsets_client(
    total="60",  # type: ignore[arg-type]
)
hook.committed_offsets(
    group_id=1,  # type: ignore[arg-type]
    topics=1,  # type: ignore[arg-type]
)
hook.lag(
    group_id=1,  # type: ignore[arg-type]
    topics=1,  # type: ignore[arg-type]
    isolation_level="uncommitted",  # type: ignore[arg-type]
    headroom="yes",  # type: ignore[arg-type]
)
hook.log_offsets(
    topics=None,  # type: ignore[arg-type]
    isolation_level="uncommitted",  # type: ignore[arg-type]
)
hook.offsets_for_time(
    topics=None,  # type: ignore[arg-type]
    time=1,  # type: ignore[arg-type]
)
hook.check_drift(
    group_id=1,  # type: ignore[arg-type]
    checkpoint_location=None,  # type: ignore[arg-type]
    topics=1,  # type: ignore[arg-type]
    checkpoint_conn_id=1,  # type: ignore[arg-type]
    grace=None,  # type: ignore[arg-type]
    min_headroom=flat,  # type: ignore[arg-type]
)
hook.describe_groups(
    group_ids=1,  # type: ignore[arg-type]
)
hook.list_groups(
    states=1,  # type: ignore[arg-type]
)
hook.delete_groups(
    group_ids=1,  # type: ignore[arg-type]
)
OffsetsClient(
    config="kafka:9092",  # type: ignore[arg-type]
    timeout="30",  # type: ignore[arg-type]
    total="60",  # type: ignore[arg-type]
    chunk_size="250",  # type: ignore[arg-type]
)
SparkCheckpoint(
    location=None,  # type: ignore[arg-type]
    storage_options="anon",  # type: ignore[arg-type]
)
OffsetWindow.parse(
    "{}",
    what=1,  # type: ignore[arg-type]
    show="text",  # type: ignore[arg-type]
)


def in_the_job(spark: SparkSession, anything: Any) -> None:
    """What a Spark job calls."""
    read_window(
        spark,
        window=1,  # type: ignore[arg-type]
        options="a",  # type: ignore[arg-type]
        exact_count="yes",  # type: ignore[arg-type]
        client_config="a",  # type: ignore[arg-type]
    )
    reading_window(
        spark,
        window=1,  # type: ignore[arg-type]
        options="a",  # type: ignore[arg-type]
        exact_count="yes",  # type: ignore[arg-type]
        client_config="a",  # type: ignore[arg-type]
    )
    commit_ranges(
        group_id=1,  # type: ignore[arg-type]
        ranges=flat,  # type: ignore[arg-type]
        options="a",  # type: ignore[arg-type]
        client_config="a",  # type: ignore[arg-type]
        on_no_commit="earliest",  # type: ignore[arg-type]
        query=None,  # type: ignore[arg-type]
        batch="1",  # type: ignore[arg-type]
        allow_new_query="yes",  # type: ignore[arg-type]
        allow_new_cluster="yes",  # type: ignore[arg-type]
        fenced="yes",  # type: ignore[arg-type]
        timeout="30",  # type: ignore[arg-type]
    )
    batch_ranges(
        checkpoint=1,  # type: ignore[arg-type]
        batch_id="1",  # type: ignore[arg-type]
        source=1.5,  # type: ignore[arg-type]
        options="a",  # type: ignore[arg-type]
        spark=anything,
        client_config="a",  # type: ignore[arg-type]
    )
    audit_window(
        anything,
        window=1,  # type: ignore[arg-type]
        topic_column=None,  # type: ignore[arg-type]
        partition_column=None,  # type: ignore[arg-type]
        offset_column=None,  # type: ignore[arg-type]
        exclusive="yes",  # type: ignore[arg-type]
        options="a",  # type: ignore[arg-type]
        client_config="a",  # type: ignore[arg-type]
        name=1,  # type: ignore[arg-type]
    )
    starting_offsets(
        source=1,  # type: ignore[arg-type]
        checkpoint=1,  # type: ignore[arg-type]
        query_source=1.5,  # type: ignore[arg-type]
        topics=1,  # type: ignore[arg-type]
        pipeline=1,  # type: ignore[arg-type]
        options="a",  # type: ignore[arg-type]
        spark=anything,
        client_config="a",  # type: ignore[arg-type]
        on_no_commit="skip",  # type: ignore[arg-type]
        on_out_of_range="skip",  # type: ignore[arg-type]
        allow_stateful="yes",  # type: ignore[arg-type]
        quiet_period=None,  # type: ignore[arg-type]
    )
    committing(
        spark,
        group_id=1,  # type: ignore[arg-type]
        config="a",  # type: ignore[arg-type]
        allow_new_query="yes",  # type: ignore[arg-type]
        allow_new_cluster="yes",  # type: ignore[arg-type]
        raise_errors="yes",  # type: ignore[arg-type]
        timeout="30",  # type: ignore[arg-type]
    )
    listener = KafkaOffsetCommitterListener(
        spark,
        group_id=1,  # type: ignore[arg-type]
        config="a",  # type: ignore[arg-type]
        allow_new_query="yes",  # type: ignore[arg-type]
        allow_new_cluster="yes",  # type: ignore[arg-type]
    )
    listener.flush(
        timeout="30",  # type: ignore[arg-type]
    )
    listener.stop(
        timeout="30",  # type: ignore[arg-type]
    )
    spark_kafka_options(
        config="a",  # type: ignore[arg-type]
    )
    pipeline_names(spark, "orders")  # type: ignore[call-arg]
    store = SqlOffsetStore(
        bind=1,  # type: ignore[arg-type]
        table=None,  # type: ignore[arg-type]
    )
    store.load(
        pipeline=1,  # type: ignore[arg-type]
    )
    store.save(
        connection=1,  # type: ignore[arg-type]
        pipeline=1,  # type: ignore[arg-type]
        ranges=flat,  # type: ignore[arg-type]
    )
