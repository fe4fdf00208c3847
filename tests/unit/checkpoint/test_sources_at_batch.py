import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.checkpoint.batch import source_offsets_at_batch
from airflow_kafka_offsets.errors import PlanRefusedError
from airflow_kafka_offsets.model.offsets import TopicPartition, summarize
from airflow_kafka_offsets.model.topics import TopicScope

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SOURCES = st.dictionaries(
    st.sampled_from("012"),
    st.dictionaries(st.sampled_from([A, B, TopicPartition("u", 0)]), st.integers(0, 99)),
)
SCOPES = st.sampled_from([None, "t", "t:0", ["t:1", "u"]]).map(TopicScope.parse)


@given(SOURCES, SOURCES, SCOPES)
def test_each_partition_of_the_newest_batch_is_where_it_was_or_the_batch_is_refused(ends, newest, scope):
    added = {
        tp for s, offsets in newest.items() for tp in offsets if tp in scope and tp not in ends.get(s, {})
    }
    if added:
        with pytest.raises(PlanRefusedError) as refused:
            source_offsets_at_batch(3, ends, newest, scope)
        assert f"has no offset for {summarize(added)}, " in str(refused.value)
        return
    found = source_offsets_at_batch(3, ends, newest, scope)
    assert {source: set(offsets) for source, offsets in found.items()} == {
        s: set(o) for s, o in newest.items()
    }
    for source, offsets in found.items():
        for tp, offset in offsets.items():
            assert offset == (ends if tp in scope else newest)[source][tp]
