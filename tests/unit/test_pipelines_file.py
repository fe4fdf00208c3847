import json

import pytest
import yaml

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.pipeline import KafkaPipeline

YAML = """
- group_id: orders-etl
  checkpoint_location: s3a://lake/checkpoints/orders
  checkpoint_conn_id: lake
  kafka_config_id: kafka_main
- group_id: {payments: payments-etl, "source:1": refunds-etl}   # two groups
  topics: [payments, "refunds:0,1"]
  checkpoint_location: s3a://lake/checkpoints/payments
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """load(text) -> the pipelines of a file of that text."""
    monkeypatch.chdir(tmp_path)

    def load(text, name="pipelines.yaml"):
        (tmp_path / name).write_text(text)
        return KafkaPipeline.load(name)

    return load


def test_a_file_lists_pipelines_by_the_five_names(load):
    orders, payments = load(YAML)
    assert dict(orders) == {
        "group_id": "orders-etl",
        "topics": None,
        "checkpoint_location": "s3a://lake/checkpoints/orders",
        "checkpoint_conn_id": "lake",
        "kafka_config_id": "kafka_main",
    }
    assert payments.group_id == {"payments": "payments-etl", "source:1": "refunds-etl"}
    assert payments.topics == ["payments", "refunds:0,1"]
    assert payments.kafka_config_id == "kafka_default"


def test_what_pipelines_share_is_named_once(load):
    text = """
        defaults: {kafka_config_id: kafka_main, checkpoint_conn_id: lake}
        pipelines:
        - {group_id: orders-etl, checkpoint_location: s3a://lake/checkpoints/orders}
        - {group_id: clicks-etl, checkpoint_location: s3a://old/clicks, checkpoint_conn_id: old}
        - {group_id: alerts, kafka_config_id: kafka_eu}
    """
    for name, content in (("pipelines.yaml", text), ("pipelines.json", json.dumps(yaml.safe_load(text)))):
        assert [(each.kafka_config_id, each.checkpoint_conn_id) for each in load(content, name)] == [
            ("kafka_main", "lake"),
            ("kafka_main", "old"),
            ("kafka_eu", None),
        ]


def test_json_is_read_as_yaml_is(load):
    plain = [{key: value for key, value in dict(each).items() if value is not None} for each in load(YAML)]
    assert [dict(each) for each in load(json.dumps(plain), "pipelines.json")] == list(map(dict, load(YAML)))
    assert [dict(each) for each in load(json.dumps(plain))] == list(map(dict, load(YAML)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "pipelines.yaml: found nothing; expected a list with at least one pipeline"),
        ("[]", "found a list of 0 values; expected a list with at least one"),
        (
            "group_id: g",
            "yaml: found the key group_id; expected a list of pipelines, or keys of defaults, pipelines",
        ),
        ("defaults: {topics: t}", "yaml, pipelines: found nothing; expected a list with at least one"),
        ("pipelines: {group_id: g}", "yaml, pipelines: found an object of 1 key; expected a list with"),
        ("pipelines: []", "yaml, pipelines: found a list of 0 values; expected a list with at least"),
        (
            "defaults:\npipelines: [{group_id: g}]",
            "yaml, defaults: found nothing; expected an object with keys of topics, checkpoint_conn_id, ka",
        ),
        ("defaults: [lake]\npipelines: [{group_id: g}]", "defaults: found a list of 1 value; expected an"),
        (
            "defaults: {group_id: g}\npipelines: [{group_id: g}]",
            "yaml, defaults: found the key group_id; expected keys of topics, checkpoint_conn_id, kafka_c",
        ),
        ("defaults: {checkpoint_location: /c}\npipelines: [x]", "defaults: found the key checkpoint_loc"),
        ("defaults: {topics: ''}\npipelines: [x]", "yaml, defaults: topics is empty: give a value, or"),
        ("defaults: {kafka_config_id: [k]}\npipelines: [x]", "defaults: kafka_config_id: found a list of"),
        ("defaults: {kafka_config_id: '{{ k }}'}\npipelines: [x]", "defaults: kafka_config_id is a templ"),
        ("defaults: {}\npipelines: [x]", "yaml, entry 1: found a text of 1 characters; expected an object"),
        ("- orders", "entry 1: found a text of 6 characters; expected an object with keys of group_id, "),
        ("- topics: orders", "entry 1: group_id is missing: name the consumer group"),
        (
            "- group_id: g\n- group_id: h\n  topic: t",
            r"entry 2 \(h\): found the key topic; expected keys of gr",
        ),
        ("- group_id: g\n  asset_name: a", "found the key asset_name; expected keys of group_id, topics, "),
        ("- group_id: g\n  group_id: h", "line 2: key 'group_id' occurs twice; keep one"),
        (
            "- group_id: g\n  mirror:\n    kafka_config_id: standby",
            "mirror has no effect without checkpoint_lo",
        ),
        ("- group_id: g\n  topics:", r"entry 1 \(g\): topics is empty: give a value, or leave the key out"),
        ("- group_id: ''", "group_id is empty: give a value"),
        ("- {group_id: g, topics: [t, ' ']}", "topics is empty"),
        ("- {group_id: g, topics: []}", "topics is empty: expected the name of a topic"),
        ("- group_id: 42", "line 1: found 42, which YAML reads as int; expected text: put it into quotes"),
        ("- group_id: g\n  topics: no", "line 2: found no, which YAML reads as bool; expected text: put"),
        (
            "- {group_id: [g]}",
            "group_id: found a list of 1 value; expected text, or an object {topic: group}",
        ),
        ("- {group_id: {t: [g]}}", "group_id: found an object of 1 key; expected text, or an object"),
        ("- {group_id: g, topics: {t: u}}", "topics: found an object of 1 key; expected text or a list of"),
        ("- {group_id: g, topics: 'a b'}", r"entry 1 \(g\): topics: found a b; expected the name of a topic"),
        ("- {group_id: g, checkpoint_location: [x]}", "checkpoint_location: found a list .*expected text"),
        ("- {group_id: g, checkpoint_location: 's3://k:hunter2@b/c'}", "checkpoint_location .* holds a pass"),
        ("- group_id: '{{ params.g }}'", "group_id is a template; expected plain names"),
        ("- group_id: 'orders{# old #}'", "group_id is a template; expected plain names"),
        (
            "- group_id: &g orders\n- group_id: *g",
            r"line 1: found an alias \(\*name or <<\); expected values",
        ),
        ("- &p {group_id: g}\n- {<<: *p}", "found an alias"),
        ("- !!python/object/apply:os.system [ls]", "found a value, which YAML reads as python/object/apply"),
        ("- {group_id: g", "pipelines.yaml: is not YAML: .*line 1"),
        ("- group_id: g\n---\n- group_id: h", "is not YAML: but found another document"),
        ("- group_id: 'a\x07b'", "is not YAML: it has control characters"),
        ("[" * 500, "is not YAML: nested too deeply"),
        ("- group_id: g\n" * 60_000, "has about 60,000 values; expected at most 50,000"),
    ],
)
def test_what_is_wrong_is_named_with_file_entry_and_key(load, text, says):
    with pytest.raises(UsageError, match=says) as refused:
        load(text)
    assert str(refused.value).startswith("pipelines.yaml")
    assert "hunter2" not in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("text", "says"), [("[", "is not JSON"), ('[{"group_id": 42}]', "found 42; expected")]
)
def test_so_is_what_is_wrong_in_json(load, text, says):
    with pytest.raises(UsageError, match=says):
        load(text, "pipelines.json")


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({}, {}, True),
        ({"checkpoint_location": "/a"}, {"checkpoint_location": "/b"}, True),
        ({"topics": "t"}, {}, True),
        ({"topics": "t"}, {"topics": ["t:0", "u"]}, True),
        ({"topics": "t"}, {"topics": "u"}, False),
        ({"kafka_config_id": "a"}, {"kafka_config_id": "b"}, False),
        ({"group_id": {"t": "g", "u": "h"}}, {}, True),
        ({"group_id": "h"}, {}, False),
    ],
)
def test_no_two_entries_move_the_same_offsets(load, first, second, shared):
    text = json.dumps([{"group_id": "g", **first}, {"group_id": "g", **second}])
    if not shared:
        assert len(load(text)) == 2
        return
    with pytest.raises(UsageError, match="entries 1 and 2: both name the group 'g'; give each pipeline"):
        load(text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"pipelines\.yaml: there is no such file"):
        KafkaPipeline.load(tmp_path / "pipelines.yaml")
