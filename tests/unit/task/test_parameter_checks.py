"""An option that was given and renders to nothing is an error, and never its default."""

import re
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task_group
from every_task import GIVEN, ORDERS

import airflow_kafka_offsets
from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.groups import GroupSelection
from airflow_kafka_offsets.model.place import RESETS
from airflow_kafka_offsets.operators.audit_window import AuditWindowOperator
from airflow_kafka_offsets.operators.base import OffsetsOperator
from airflow_kafka_offsets.operators.check_drift import CheckOffsetDriftOperator
from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator
from airflow_kafka_offsets.operators.commit_window import CommitOffsetWindowOperator
from airflow_kafka_offsets.operators.plan_window import PlanOffsetWindowOperator
from airflow_kafka_offsets.operators.reset import ResetOffsetsOperator
from airflow_kafka_offsets.operators.restore import RestoreOffsetsOperator
from airflow_kafka_offsets.pipeline import KafkaPipeline
from airflow_kafka_offsets.sensors.lag import ConsumerGroupLagSensor
from airflow_kafka_offsets.sensors.reached import OffsetsReachedSensor
from airflow_kafka_offsets.sensors.topic import TopicReachedSensor
from airflow_kafka_offsets.task.wait_memory import WaitMemory
from airflow_kafka_offsets.triggers.event import LagEventTrigger
from airflow_kafka_offsets.waits.lag import LagWait

WITH_PLAN = {"plan": "/plan.json", "to_offset": None, "approval": "{{ 'approved' }}"}
ALONE: dict[str, dict[str, Any]] = {
    "pipelines": {"group_id": None, "checkpoint_location": None},
    "offsets": {"checkpoint_location": None},
    "checkpoint_conn_id": {"checkpoint_location": "/cp"},
    "sink_location": {"sink": "file"},
    "save_conn_id": {"save_to": "/certificate.json"},
    "store_table": {"store_conn_id": "db"},
    "store_pipeline": {"store_conn_id": "db"},
    "window_conn_id": {"window_file": "/window.json"},
    "on_no_commit": {"checkpoint_location": None, "to_offset": "committed"},
    "idle_after": {"on_idle_partition": "ignore"},
    "allow_stale": {"restore_when": "always", "receipt": "{{ 'receipt' }}"},
    "from_file": {"receipt": None},
    **dict.fromkeys(("plan", "max_age", "approval", "allow_self_approval"), WITH_PLAN),
    "timezone": {"every": "hour"},
}
CONTEXT: Any = {"nothing": None, "ti": None}


def rendered(operator, *, native=False, context=CONTEXT, **parameters):
    with DAG("d", render_template_as_native_obj=native):
        task = operator(task_id="t", **parameters)
    task.render_template_fields(context)
    return task


def rendered_index(mapped, dag, index=0, **values):
    """Render one index of a mapped task; return its context, which then has the task."""
    context: Any = {"ti": SimpleNamespace(map_index=index), "dag": dag, "dag_run": SimpleNamespace(conf={})}
    context |= values
    mapped.render_template_fields(context)
    return context


def refusal_of(call):
    """The text of what a call is refused with; ``None`` if it is not."""
    try:
        call()
    except UsageError as error:
        return str(error)
    return None


def alone_with(operator, name):
    """What an operator is given beside what it needs, if it is given an option."""
    return {key: value for key, value in ALONE.get(name, {}).items() if key in operator.template_fields}


def test_each_task_that_names_a_pipeline_is_tried_here():
    others = {"ApprovePlanOperator", "KafkaSparkSubmitOperator", "PlanResetsOperator"}
    tasks = {name for name in airflow_kafka_offsets.__all__ if name.endswith(("Operator", "Sensor"))}
    assert {each.__name__ for each in GIVEN} == tasks - others


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("operator", GIVEN, ids=lambda operator: operator.__name__)
def test_an_option_that_renders_to_nothing_is_refused_by_its_name(operator, native):
    refusals = {}
    for name in operator.template_fields:
        given = GIVEN[operator] | alone_with(operator, name) | {name: "{{ nothing }}"}
        refusals[name] = refusal_of(rendered(operator, native=native, **given).check_rendered_parameters)
    resets = set(RESETS) if operator is ResetOffsetsOperator else set()
    assert {name for name, text in refusals.items() if text is None} == resets
    found = {name: text for name, text in refusals.items() if name not in resets}
    empty = "={{ nothing }} rendered to '?None'?, which is empty"
    assert not {name: text for name, text in found.items() if not re.match(name + empty, text)}


OPERATORS = [each for each in GIVEN if issubclass(each, OffsetsOperator)]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_an_object_that_no_literal_may_be_is_refused_before_anything_is_read(operator):
    # These are refused for the values in ALONE already.
    for name in set(operator.template_fields).difference(
        RESETS, WITH_PLAN, ("max_age", "allow_self_approval", "allow_stale")
    ):
        given = GIVEN[operator] | alone_with(operator, name) | {name: "{{ [] }}"}
        task = rendered(operator, native=True, **given)
        with pytest.raises(AirflowFailException, match=rf"\b{name}\b"), task.run_checked():
            pass


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (CommitOffsetsOperator, "topics"),
        (CommitOffsetsOperator, "left_topics"),
        (ConsumerGroupLagSensor, "topics"),
    ],
)
def test_an_iterator_to_which_topics_render_is_read_as_a_list(operator, name):
    """Jinja's filters, such as map, return iterators where templates are rendered to objects."""
    given = GIVEN[operator] | {name: "{{ ['A', 'B'] | map('lower') }}"}
    task = rendered(operator, native=True, **given)
    with task.run_checked() if isinstance(task, OffsetsOperator) else nullcontext():
        assert getattr(task, name) == ["a", "b"]


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (CommitOffsetWindowOperator, "window"),
        (OffsetsReachedSensor, "target"),
        (RestoreOffsetsOperator, "receipt"),
    ],
)
def test_a_task_in_place_of_its_result_is_refused(operator, name):
    plan = PlanOffsetWindowOperator(task_id="plan", group_id="orders")
    with pytest.raises(UsageError, match=f"task t: {name}: found the task 'plan'.* plan.output"):
        operator(task_id="t", **GIVEN[operator] | {name: plan})


@pytest.mark.parametrize("operator", GIVEN, ids=lambda operator: operator.__name__)
def test_the_task_fails_at_once_and_asks_nobody(operator):
    task = rendered(operator, **GIVEN[operator] | {"kafka_config_id": "{{ nothing or '' }}"})
    with pytest.raises(AirflowFailException, match="kafka_config_id=.*rendered to '', which is empty"):
        task.execute({"ti": None})


@pytest.mark.parametrize("nothing", ["", " ", "None", "null", '""'])
def test_a_text_that_is_nothing_is_no_value_either(nothing):
    task = rendered(ResetOffsetsOperator, **ORDERS, to_offset=1, topics="{{ it }}", context={"it": nothing})
    with pytest.raises(UsageError, match="topics={{ it }} rendered to"):
        task.check_rendered_parameters()


def test_an_option_that_was_not_given_keeps_its_default():
    task = rendered(CommitOffsetsOperator, **ORDERS, topics=None, kafka_config_id="{{ 'main' }}")
    task.check_rendered_parameters()
    assert (task.topics, task.kafka_config_id, task.on_out_of_range) == (None, "main", "fail")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"group_id": {"orders": "{{ nothing }}"}}, r"group_id\['orders'\]={{ nothing }}"),
        ({"topics": ["orders", "{{ nothing }}"]}, r"topics\[1\]={{ nothing }}"),
        ({"offsets": {"orders": {"0": "{{ nothing }}"}}}, r"offsets\['orders'\]\['0'\]={{ nothing }}"),
    ],
)
@pytest.mark.parametrize("native", [False, True])
def test_a_part_that_renders_to_nothing_is_named(options, named, native):
    task = rendered(CommitOffsetsOperator, native=native, **ORDERS | options)
    with pytest.raises(UsageError, match=named):
        task.check_rendered_parameters()


def test_what_is_given_whole_may_hold_nothings():
    """As a receipt does, of partitions without a commit."""
    receipt = {
        "version": 1,
        "group_id": "orders",
        "before": {"orders": {"0": None}},
        "source": {"to_offset": ""},
    }
    rendered(RestoreOffsetsOperator, **ORDERS, receipt=receipt).check_rendered_parameters()


def test_a_mapped_task_is_checked_with_its_own_values():
    with DAG("d") as dag:
        mapped = CommitOffsetsOperator.partial(task_id="t", checkpoint_location="/cp").expand(
            group_id=["orders", "{{ nothing }}"]
        )
    context = rendered_index(mapped, dag, 1, nothing=None)
    with pytest.raises(UsageError, match="group_id={{ nothing }} rendered to 'None'"):
        context["task"].check_rendered_parameters()


class Ti:
    """Pulls nothing: the task that is asked for was skipped."""

    task_id, map_index, dag_id, run_id = "restore", -1, "d", "r"
    task = None  # Airflow 3.4 asks which loop it is in

    def xcom_pull(self, *_, default=None, **__):
        return default

    def get_task_states(self, **_):
        return {"r": {"reset": "skipped"}}


def restore(receipt):
    with DAG("d"):
        reset = ResetOffsetsOperator(task_id="reset", to_offset="earliest", **ORDERS)
        task = RestoreOffsetsOperator(task_id="restore", receipt=receipt(reset), **ORDERS)
    context: Any = {"ti": Ti(), "nothing": None}
    task.render_template_fields(context)
    return task, context


def test_a_restore_of_a_reset_that_was_skipped_does_nothing():
    task, context = restore(lambda reset: reset.output)
    assert task.receipt is None
    assert task.execute(context) is None


@pytest.mark.parametrize(("how", "nothing"), [("", "None"), (" | tojson", "null")])
def test_a_restore_with_a_receipt_that_a_text_does_not_find_is_refused(how, nothing):
    task, context = restore(lambda _: f"{{{{ ti.xcom_pull(task_ids='resett'){how} }}}}")
    says = f"receipt=.* rendered to '{nothing}'.*A task has no XCom if"
    with pytest.raises(AirflowFailException, match=says):
        task.execute(context)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (CommitOffsetWindowOperator, "window"),
        (AuditWindowOperator, "window"),
        (RestoreOffsetsOperator, "receipt"),
        (ResetOffsetsOperator, "plan"),
        (OffsetsReachedSensor, "target"),
    ],
)
def test_the_list_of_a_mapped_task_is_refused_with_what_to_write(operator, name):
    with DAG("d"):
        names = GIVEN[operator] | ({"to_offset": None} if name == "plan" else {}) | {name: "{{ it }}"}
        task = operator(task_id="t", **names)
    task.render_template_fields({"it": "1"})
    setattr(task, name, [{"version": 1}, {"version": 1}])
    with pytest.raises(UsageError, match=f"^{name}: found a list, .*: map this task too, .*expand.{name}="):
        task.check_rendered_parameters()


def test_a_run_without_a_data_interval_is_told_so():
    task = rendered(
        PlanOffsetWindowOperator,
        topics="orders",
        end="{{ data_interval_end or '' }}",
        context={"data_interval_end": None},
    )
    with pytest.raises(UsageError, match="end=.*no data_interval_start and no data_interval_end"):
        task.check_rendered_parameters()


@pytest.mark.parametrize("native", [False, True])
def test_a_pipeline_in_a_list_is_checked_name_by_name(native):
    entries = [dict(ORDERS), KafkaPipeline(**ORDERS, topics="{{ nothing }}")]
    task = rendered(CheckOffsetDriftOperator, native=native, pipelines=entries)
    with pytest.raises(AirflowFailException, match=r"pipelines\[1\]\['topics'\]={{ nothing }}"):
        task.execute({"nothing": None})
    task = rendered(CheckOffsetDriftOperator, native=native, pipelines=[ORDERS | {"topics": "{{ nothing }}"}])
    with pytest.raises(AirflowFailException, match=r"pipelines\[0\]\['topics'\]={{ nothing }}"):
        task.execute({})
    with pytest.raises(UsageError, match="pipelines, checkpoint_conn_id=''"):
        rendered(CheckOffsetDriftOperator, pipelines='[{"group_id": "g", "checkpoint_conn_id": ""}]')


@pytest.mark.parametrize("operator", GIVEN, ids=lambda operator: operator.__name__)
def test_none_is_the_default(operator):
    signatures = [signature(each).parameters for each in operator.__mro__]
    for name in operator.template_fields:
        given = GIVEN[operator] | alone_with(operator, name)
        needed = {key: value for key, value in given.items() if key != name}
        default = next(parameters[name] for parameters in signatures if name in parameters)
        if default.default in (default.empty, None) or "None" in str(default.annotation):
            continue
        with DAG("d", default_args={name: None}):
            for given in ({name: None}, {}):
                task = operator(task_id=f"t{len(given)}", **needed, **given)
                assert getattr(task, name) == default.default, name
            # Airflow maps no outlets.
            shared = {key: needed.pop(key) for key in ("outlets",) if key in needed}
            mapped = operator.partial(task_id="m", **{name: None}, **shared).expand_kwargs([needed])
        assert getattr(mapped.unmap(needed), name) == default.default, name


def test_none_stays_where_it_is_a_value():
    task = ResetOffsetsOperator(task_id="t", **ORDERS, to_offset=1, max_active_tis_per_dag=None)
    assert task.max_active_tis_per_dag is None


def test_none_is_the_default_of_a_trigger_too():
    missing: Any = dict.fromkeys(("kafka_config_id", "on_no_commit"))
    trigger = LagEventTrigger(group_id="g", min_lag=1, **missing)
    assert trigger.parameters == LagEventTrigger(group_id="g", min_lag=1).parameters


@pytest.mark.parametrize(
    ("operator", "shared", "values", "says"),
    [
        (CommitOffsetsOperator, ORDERS, {"on_out_of_range": "clmap"}, "task t: on_out_of_range='clmap'"),
        (ConsumerGroupLagSensor, {}, ORDERS, "task t: no threshold"),
    ],
)
def test_what_a_mapped_task_refuses_is_not_retried(operator, shared, values, says):
    with DAG("d"):
        mapped = operator.partial(task_id="t", **shared).expand_kwargs([values])
    with pytest.raises(AirflowFailException, match=says):
        mapped.unmap(values)


def test_an_index_of_a_mapped_task_that_has_lost_its_approval_is_refused():
    values: dict[str, Any] = {"plan": "/plan.json", "approval": None}
    with DAG("d"):
        # In the DAG's file it is the author who says so.
        alone = ResetOffsetsOperator(task_id="alone", **values)
        mapped = ResetOffsetsOperator.partial(task_id="t").expand_kwargs([values])
        without = ResetOffsetsOperator.partial(task_id="w", approval=None).expand(plan=["/plan.json"])
        shared = ResetOffsetsOperator.partial(task_id="s", approval="{{ it }}").expand(plan=["/plan.json"])
    with pytest.raises(AirflowFailException, match="task t: found approval=None in an index of this mapped"):
        mapped.unmap(values)
    other: Any = mapped.unmap({"plan": "/plan.json"})
    none: Any = without.unmap({"plan": "/plan.json"})
    assert alone.approval is other.approval is none.approval is None
    of_all: Any = shared.unmap({"plan": "/plan.json"})
    assert of_all.approval == "{{ it }}"


@pytest.mark.parametrize(
    ("operator", "needed"),
    [(ResetOffsetsOperator, {"to_offset": 1}), (ConsumerGroupLagSensor, {"max_lag": 0})],
)
def test_the_connection_of_a_checkpoint_that_is_not_named_is_refused(operator, needed):
    conn = {"checkpoint_conn_id": "lake"}
    with pytest.raises(UsageError, match="^task t: checkpoint_conn_id would be ignored without checkpoint"):
        operator(task_id="t", group_id="g", **needed, **conn)
    with DAG("d", default_args=conn):  # for all tasks, of which some have a checkpoint
        assert operator(task_id="t", group_id="g", **needed).checkpoint_conn_id == "lake"
        mapped = operator.partial(task_id="m", **needed).expand(group_id=["g"])
    assert mapped.unmap({"group_id": "g"}).checkpoint_conn_id == "lake"


# -- what is written in the DAG's file --


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"topics": "{'a': 'b'}"}, "topics: .*is not JSON.*| tojson"),
        ({"topics": {"a": 1}}, "topics: found"),
        ({"topics": []}, "topics is empty"),
        ({"topics": ""}, "topics: found"),
        ({"topics": "a b"}, "topics: found"),
        ({"group_id": "{'a': 'b'}"}, "group_id: .*is not JSON.*| tojson"),
        ({"group_id": ""}, "group_id: found"),
        ({"group_id": "None"}, "group_id: found"),
        ({"group_id": {"a": None}}, "group_id: found"),
        ({"group_id": {}}, "group_id: found"),
    ],
)
def test_names_that_cannot_be_names_are_refused_when_the_dag_is_parsed(names, says):
    refusals = {
        each: refusal_of(partial(each, task_id="t", **given | names)) for each, given in GIVEN.items()
    }
    assert not {each: text for each, text in refusals.items() if not re.search(says, text or "")}


LAG = {"group_id": "g", "max_lag": 0}
REACHED = {"group_id": "g", "target": "latest"}
TOPIC = {"topics": "a", "target": "2026-03-01"}
TIME = "2026-03-01T00:00:00Z"
CANNOT_BE = [
    (ConsumerGroupLagSensor, LAG | {"max_lag": -1}, "max_lag=-1: expected 0 or more, as a whole number"),
    (ConsumerGroupLagSensor, LAG | {"max_lag": "1e3"}, "max_lag='1e3': expected 0 or more"),
    (ConsumerGroupLagSensor, LAG | {"max_lag": float("nan")}, "max_lag=nan: expected 0 or more"),
    (ConsumerGroupLagSensor, LAG | {"max_partition_lag": True}, "max_partition_lag=True: expected 0 or more"),
    (ConsumerGroupLagSensor, LAG | {"max_time_lag": "soon"}, "max_time_lag='soon': expected seconds"),
    (ConsumerGroupLagSensor, LAG | {"min_headroom": "soon"}, "min_headroom='soon': expected seconds"),
    (ConsumerGroupLagSensor, LAG | {"min_headroom": 0}, "min_headroom=0: expected seconds, .* above 0"),
    (ConsumerGroupLagSensor, LAG | {"on_no_commit": "zero"}, "on_no_commit='zero': expected one of 'fail'"),
    (ConsumerGroupLagSensor, LAG | {"position": "grop"}, "position='grop': expected one of 'group'"),
    (ConsumerGroupLagSensor, LAG | {"position": "checkpoint"}, "without checkpoint_location: name"),
    (ConsumerGroupLagSensor, LAG | {"isolation_level": "dirty"}, "isolation_level='dirty': expected one of"),
    (OffsetsReachedSensor, REACHED | {"tolerance": "a"}, "tolerance='a': expected 0 or more"),
    (OffsetsReachedSensor, REACHED | {"stalled_after": "-1"}, "stalled_after='-1': expected seconds"),
    (OffsetsReachedSensor, REACHED | {"stalled_after": 0}, "stalled_after=0: expected seconds, .* above 0"),
    (OffsetsReachedSensor, REACHED | {"target": {"a": {"0": -1}}}, "target"),
    (TopicReachedSensor, TOPIC | {"target": "noon"}, "target='noon': expected a time"),
    (TopicReachedSensor, TOPIC | {"on_idle_partition": "skip"}, "on_idle_partition='skip': expected one of"),
    (TopicReachedSensor, TOPIC | {"idle_after": 60}, "idle_after is given, but idle partitions are not ign"),
]


@pytest.mark.parametrize(("sensor", "parameters", "says"), CANNOT_BE)
def test_parameters_that_cannot_be_are_refused_when_the_dag_is_parsed(sensor, parameters, says):
    with pytest.raises(UsageError, match=f"^task gate: .*{says}"):
        sensor(task_id="gate", **parameters)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({}, "needs a threshold: give min_lag, min_time_lag, or both"),
        ({"min_lag": 0}, "min_lag=0 is always reached"),
        ({"min_time_lag": 0}, "min_time_lag=0 is always reached"),
        ({"min_lag": 1, "refire_after": 0}, "refire_after=0"),
        ({"min_lag": 1, "group_id": None}, "no position to read"),
        ({"min_lag": "a"}, "min_lag='a': expected 0 or more, as a whole number"),
        ({"min_lag": -1}, "min_lag=-1"),
        ({"min_lag": 1, "tolerance": 1.5}, "tolerance=1.5"),
        ({"min_lag": 1, "poll_interval": 0}, "poll_interval=0: expected seconds, .* above 0"),
        ({"min_lag": 1, "refire_after": "PT"}, "refire_after='PT': expected seconds"),
        ({"min_lag": 1, "topics": ""}, "topics: found"),
        ({"min_lag": 1, "group_id": "None"}, "group_id: found None"),
        ({"min_lag": 1, "group_id": "", "checkpoint_location": "/cp"}, "group_id: found"),
        ({"min_lag": 1, "checkpoint_conn_id": ""}, "checkpoint_conn_id=''"),
    ],
)
def test_an_event_trigger_refuses_what_cannot_be(parameters, says):
    with pytest.raises(UsageError, match=says):
        LagEventTrigger(**{"group_id": "g"} | parameters)


@pytest.mark.parametrize("duration", [600, 600.0, "600", "10m", "PT10M", timedelta(minutes=10)])
def test_a_duration_is_seconds_a_timedelta_or_text(duration):
    trigger = LagEventTrigger(
        group_id="g", min_time_lag=duration, refire_after=duration, poll_interval=duration
    )
    assert (trigger.min_time_lag, trigger.refire_after, trigger.poll_interval) == (600, 600, 600)
    durations = dict.fromkeys(("max_time_lag", "min_headroom", "stalled_after"), duration)
    task = ConsumerGroupLagSensor(task_id="t", group_id="g", topics="a", **durations)
    wait = task.make_wait(WaitMemory({}))
    assert isinstance(wait, LagWait)
    assert (wait.max_time_lag, wait.min_headroom, wait.stalled_after) == (600, 600, 600)


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
def test_what_one_run_may_need_otherwise_is_templated(native):
    parameters = {
        "max_lag": "5",
        "max_partition_lag": "3",
        "max_time_lag": "PT1M",
        "min_headroom": "P1D",
        "tolerance": "1",
        "on_no_commit": "earliest",
        "position": "group",
        "isolation_level": "read_committed",
        "stalled_after": "90",
    }
    templates = {name: f"{{{{ {name} }}}}" for name in parameters}
    task = rendered(ConsumerGroupLagSensor, native=native, group_id="g", **templates, context=parameters)
    wait = task.make_wait(WaitMemory({}))
    assert isinstance(wait, LagWait)
    found = {name: getattr(wait, name) for name in parameters}
    assert found == parameters | {
        "max_lag": 5,
        "max_partition_lag": 3,
        "max_time_lag": 60,
        "min_headroom": 86_400,
        "tolerance": 1,
        "stalled_after": 90,
    }


def test_templates_are_not_judged_before_they_are_rendered():
    ConsumerGroupLagSensor(
        task_id="t",
        group_id={"orders": "{{ group }}"},
        topics=["{{ topic }}"],
        max_lag="{{ records }}",
        max_time_lag="{{ minutes }}",
        on_no_commit="{{ policy }}",
        stalled_after="{% if x %}1{% endif %}",
    )
    with DAG("d"):
        names = EmptyOperator(task_id="names")
        ConsumerGroupLagSensor(
            task_id="t",
            group_id=names.output,
            topics=names.output["topics"],  # type: ignore[index]
            max_lag=0,
        )
        OffsetsReachedSensor(task_id="u", group_id="g", target=names.output)
        OffsetsReachedSensor(task_id="v", group_id="g", target=lambda context, jinja_env: TIME)  # type: ignore[arg-type]


# -- mapped tasks --


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize(
    ("pipeline", "label"),
    [
        ({"group_id": "42"}, "42"),
        ({"group_id": "orders-{{ env }}"}, "orders-test"),
        ({"group_id": {"orders": "a", "clicks": "{{ env }}", "views": "a"}}, "a, test"),
        ({"checkpoint_location": "/cp/{{ env }}"}, "/cp/test"),
        ({"topics": ["orders", "clicks"], "target": TIME}, "orders, clicks"),
    ],
)
def test_a_mapped_task_is_called_after_its_group(pipeline, label, native):
    sensor = TopicReachedSensor if "target" in pipeline else OffsetsReachedSensor
    with DAG("d", render_template_as_native_obj=native) as dag:
        given = {} if "target" in pipeline else {"target": "latest"}
        mapped = sensor.partial(task_id="t", **given).expand_kwargs([pipeline])
    context = rendered_index(mapped, dag, env="test", map_index_template=None)
    template = dag.get_template_env().from_string(context["map_index_template"])
    assert template.render(context) == label


def test_the_name_of_a_mapped_task_may_be_given():
    with DAG("d") as dag:
        mapped = ConsumerGroupLagSensor.partial(
            task_id="t", max_lag=0, map_index_template="{{ mine }}"
        ).expand(group_id=["a", "b"])
    context = rendered_index(mapped, dag, map_index_template=mapped.map_index_template)
    assert context["map_index_template"] == "{{ mine }}"


def test_an_index_that_names_no_pipeline_has_the_name_that_airflow_gives_it():
    with DAG("d") as dag:
        mapped = ResetOffsetsOperator.partial(task_id="t").expand(plan=["/plan.json"])
    assert not rendered_index(mapped, dag, map_index_template=None)["map_index_template"]


# -- JSON, as the filter tojson writes it --


@pytest.mark.parametrize("native", [False, True])
def test_a_name_in_double_quotes_is_the_name(native):
    template = "{{ 'orders' | tojson }}"
    task = rendered(
        CommitOffsetsOperator, native=native, **ORDERS | {"group_id": template, "topics": template}
    )
    assert task.selection() == GroupSelection.parse("orders", "orders")
    task = rendered(
        CommitOffsetsOperator,
        native=native,
        **ORDERS | {"group_id": {"orders": template}, "topics": [template]},
    )
    assert task.selection() == GroupSelection.parse({"orders": "orders"}, "orders")


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("topics", None, False),
        ("checkpoint_conn_id", None, False),
        ("topics", "None", True),
        ("group_id", None, True),
    ],
)
def test_a_name_that_an_entry_of_a_mapped_task_group_leaves_out_has_its_default(name, value, refused):
    names = {"group_id": "g", "topics": None, "checkpoint_conn_id": None}
    with DAG("d") as dag:

        @task_group
        def pipeline(group_id, topics, checkpoint_conn_id):
            CommitOffsetsOperator(
                task_id="t",
                group_id=group_id,
                topics=topics,
                checkpoint_conn_id=checkpoint_conn_id,
                checkpoint_location="/cp",
            )

        pipeline.expand_kwargs([names])
    task: Any = dag.get_task("pipeline.t")
    task._templates = {name: getattr(task, name)}
    setattr(task, name, value)
    with pytest.raises(UsageError, match="is empty") if refused else nullcontext():
        task.check_rendered_parameters()
