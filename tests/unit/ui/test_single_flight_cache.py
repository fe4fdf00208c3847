"""Values that viewers share."""

import asyncio

import pytest

from airflow_kafka_offsets.ui.single_flight_cache import SingleFlightCache


def test_a_hundred_viewers_make_a_value_once():
    made = []

    async def ask():
        values, go = SingleFlightCache(60.0, 10), asyncio.Event()

        async def make():
            await go.wait()
            made.append("a")
            return "A"

        viewers = [asyncio.ensure_future(values.get("a", make)) for _ in range(100)]
        await asyncio.sleep(0)
        # One leaves, and it may be the first.
        viewers[0].cancel()
        go.set()
        return await asyncio.gather(*viewers[1:])

    assert set(asyncio.run(ask())) == {"A"}
    assert made == ["a"]


def test_a_value_is_made_again_after_a_while_and_after_a_failure():
    answers = iter([ValueError("Airflow is away"), 1, 2])

    async def make():
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    async def ask():
        values = SingleFlightCache(60.0, 10)
        with pytest.raises(ValueError, match="away"):
            await values.get("a", make)
        assert (await values.get("a", make), await values.get("a", make)) == (1, 1)
        assert await values.get("a", make, seconds=0.0) == 2
        assert values.get_known("a") == 2
        assert values.get_known("a", 0.0) is values.get_known("b") is None

    asyncio.run(ask())


def test_the_values_may_have_a_size():
    values = SingleFlightCache(60.0, 5, len)
    for key, value in (("a", "xxx"), ("b", "xx"), ("a", "xx"), ("c", "x"), ("d", "xx")):
        values.put(key, value)
    assert [values.get_known(key) for key in "abcd"] == ["xx", None, "x", "xx"]


def test_the_values_that_were_asked_for_last_are_kept():
    made = []

    async def ask():
        values = SingleFlightCache(60.0, 2)
        for key in ("a", "b", "a", "c", "a", "b"):

            async def make(key=key):
                made.append(key)
                return key

            await values.get(key, make)

    asyncio.run(ask())
    assert made == ["a", "b", "c", "b"]
