import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.model.commit_metadata import CommitMetadata
from airflow_kafka_offsets.model.digest import digest

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("parts", "length", "expected"),
    [
        ((), 16, "4f53cda18c2baa0c"),
        (("truncate", 41), 16, "11897d33b3cb6389"),
        (({"orders": {"1": 7, "0": 42}}, None), 16, "4520e0598cc3830d"),
        (("dag", "run", "task", -1), 12, "d8966c33a8c6"),
    ],
)
def test_a_digest_never_changes_since_it_is_stored(parts, length, expected):
    assert digest(*parts, length=length) == expected


def test_the_identity_of_a_task_in_commits_is_a_digest_of_its_names():
    metadata = CommitMetadata(dag="dag", run="run", task="task", map_index=-1)
    assert metadata.identity == digest("dag", "run", "task", -1, length=12)


@given(parts=st.lists(PLAIN, max_size=4), others=st.lists(PLAIN, max_size=4))
def test_digests_are_the_same_for_the_same_json_only(parts, others):
    same = json.dumps(parts, sort_keys=True) == json.dumps(others, sort_keys=True)
    assert (digest(*parts) == digest(*others)) == same


@given(names=st.sets(st.text(), min_size=1))
def test_sets_and_mappings_are_what_they_hold(names):
    assert digest(names) == digest(frozenset(names)) == digest(sorted(names))
    assert digest(MappingProxyType(dict.fromkeys(names))) == digest(dict.fromkeys(sorted(names)))


@given(part=st.dictionaries(st.text(), PLAIN), length=st.integers(1, 64))
def test_the_order_of_keys_does_not_count_and_a_shorter_one_is_the_beginning_of_a_longer_one(part, length):
    turned = dict(reversed(list(part.items())))
    assert digest(part, length=length) == digest(turned, length=64)[:length]
