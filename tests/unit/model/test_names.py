import pytest

from airflow_kafka_offsets.errors import UsageError
from airflow_kafka_offsets.model.groups import parse_group_id
from airflow_kafka_offsets.model.names import MAX_GROUP_BYTES, parse_existing_group, parse_group

UNCLEAN = ["a\0b", "\0", "\ud800", "a\udfff", "x" * (MAX_GROUP_BYTES + 1), "é" * (MAX_GROUP_BYTES // 2 + 1)]


@pytest.mark.parametrize(
    "name", ["a", "a b", "à", "\x85a", "a\xa0", "\u3000", "a\x1bb", "{{ g }}", "x" * MAX_GROUP_BYTES, "💾"]
)
def test_a_name_that_the_client_passes_on_is_taken_as_it_is(name):
    assert parse_group(name) == parse_existing_group(name) == name


@pytest.mark.parametrize("name", ["", " ", "\t\n", " a", "a ", "\ta", "a\n", "\va", "a\f", "\ra", *UNCLEAN])
def test_a_name_that_the_client_would_change_or_die_of_is_refused(name):
    with pytest.raises(UsageError, match=r"^group_id.*expected the name of a consumer group") as refused:
        parse_group(name)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["", None, 5, ["a"], *UNCLEAN])
def test_what_is_looked_up_must_be_a_name(name):
    with pytest.raises(UsageError, match="expected the name of a consumer group"):
        parse_existing_group(name)


@pytest.mark.parametrize("name", [" ", " a", "a\n"])
def test_whatever_others_have_created_can_be_looked_up_and_deleted(name):
    assert parse_existing_group(name) == name


@pytest.mark.parametrize(
    "value", [" a", {"orders": " "}, {"orders": "a", "payments": "b\n"}, '{"orders": "a\\u0000"}']
)
def test_names_are_refused_where_they_are_read(value):
    with pytest.raises(UsageError, match=r"^group_id"):
        parse_group_id(value)
