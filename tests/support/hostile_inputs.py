"""Hostile inputs: valid ones that are damaged, and values that hypothesis makes up."""

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hypothesis import strategies as st

DIGITS = "9" * 5_000
DEEP = "[" * 100_000

any_text = st.text(st.characters(exclude_categories=()), max_size=30)
WORDS = """
version start end committed source group_id groups before after checkpoint location query_id archive plan_only
at token batch run query latest P1D 2026-03-01 0001-01-01 nan
"""
words = st.sampled_from(
    [
        *WORDS.split(),
        *("orders", "0", "1", "00", "-1", str(2**31), str(2**63), DIGITS, "", " ", "a\0b", "\ud800"),
    ]
)
numbers = st.sampled_from([0, 1, -1, 2**31, 2**63, 10**30, float("nan"), float("inf"), 1e300])
leaves = st.none() | st.booleans() | st.integers() | numbers | st.floats() | words | any_text
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | any_text, inner, max_size=4),
    max_leaves=12,
)
texts = any_text | words | st.lists(words, max_size=8).map(",".join) | values.map(json.dumps)
inputs = (
    st.binary(max_size=60)
    | texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | values.map(lambda value: json.dumps(value).encode())
)

_ODD_TEXTS = """
0 -1 01 1e3 \0 \u202e \x1b[2J \ud800 é ٣ None null source:0 v1 - latest ( a{9999999999}
../../outside/there /etc/passwd offsets/../../x .. . ~ $(id)
"""
_LEAVES: Sequence[Any] = [
    *_ODD_TEXTS.split(),
    *(None, True, False, 0, 1, -1, 2, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**18, 10**19),
    *(0.0, -0.0, 1.5, 1e308, float("inf"), float("nan"), {}, [], [[]], {"": {}}, {"0": 1}, [None], ""),
    *("\r\n", " orders ", "{{ x }}", "offsets/1\n"),
    *("9" * 400, "9" * 5_000, "x" * 300, "x" * 40_000),
]
_ODD_WORDS = rb"\u \ud800 null NaN -Infinity 1e999 0x10 true +00:00 ../ offsets/"
_TOKENS = [
    *_ODD_WORDS.split(),
    *(bytes([byte]) for byte in b"\0\xff\n\r\t,:=\\\"'{}[]-\xc3ZPTS"),
    *(b"\r\n", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x1b[2J", b"v1\n", b"v2\n", b"v3\n"),
    *(b"9" * 20, b"9" * 5_000, b"[" * 2_000, b'{"a":' * 1_200, b"(" * 300, b" " * 500),
]
_NUMBER = re.compile(rb"-?[0-9]+")
_NUMBERS = [b"0", b"-1", b"00", b"1.0", b"1e3", b"%d" % (2**31), b"%d" % (2**63), b"9" * 30, b"9" * 5_000]
_MOST = 200_000


def damaged(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Return one of the inputs with some damage."""
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        data = rng.choice(_DAMAGES)(data, seeds, rng)[:_MOST]
    return data


def _flip(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + rng.choice((0, 1)) :]


def _cut(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return rng.choice((data[:start], data[start:], data[:start] + data[end:]))


def _repeat(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    times = min(rng.choice((1, 1, 2, 50, 1_000)), _MOST // (end - start + 1))
    return data[:end] + data[start:end] * times + data[end:]


def _insert(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_TOKENS) * rng.choice((1, 1, 1, 3)) + data[at:]


def _renumber(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data + rng.choice(_NUMBERS)
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(_NUMBERS) + data[one.end() :]


def _splice(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _lines(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, [b"-"], [b"{}"], [b""], [lines[at], b"7:{}"]))
    rng.choice((lambda _: None, rng.shuffle))(lines)
    return b"\n".join(lines)


def _retree(data: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Change one node of a JSON text, or of the last JSON in it."""
    start = next((at for at in (data.rfind(b"\n{") + 1, data.find(b"{"), data.find(b"[")) if at > 0), 0)
    head, text = data[:start], data[start:]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _insert(data, seeds, rng)
    holder = [value]
    nodes: list[tuple[Any, Any]] = [(holder, 0)]
    for parent, key in nodes:
        if len(nodes) > 500:
            break
        child = parent[key]
        nodes += (
            [(child, key) for key in (child if isinstance(child, dict) else range(len(child)))]
            if isinstance(child, dict | list)
            else []
        )
    parent, key = rng.choice(nodes)
    new = rng.choice(_LEAVES)
    match rng.randrange(5):
        case 0 | 1:
            parent[key] = new
        case 2 if isinstance(parent, dict):
            del parent[key]
        case 3 if isinstance(parent, dict):
            parent[new if isinstance(new, str) else str(new)] = parent[key]
        case _:
            # Close to where Python's own readers give up.
            for _ in range(rng.choice((1, 3, rng.randrange(150, 340), rng.randrange(900, 1_050)))):
                new = [new] if rng.random() < 0.5 else {"a": new}
            parent[key] = new
    try:
        return head + json.dumps(holder[0]).encode()
    except (RecursionError, ValueError):
        return data


_DAMAGES = (_flip, _cut, _repeat, _insert, _renumber, _splice, _lines, _retree, _retree, _retree)


def grown(reader: str) -> dict[str, Callable[[int], bytes]]:
    """Return makers of inputs of a size, in which one thing occurs again and again."""
    before = {"checkpoint": b"offsets/2\0", "manifest": b"\0"}.get(reader, b"")
    makers = {**_REPEATED, **_COUNTED, **_WHOLE.get(reader, {})}
    return {name: partial(_after, before, make) for name, make in makers.items()}


def _after(before: bytes, make: Callable[[int], bytes], size: int) -> bytes:
    return before + make(size)


def _repeated(unit: bytes) -> Callable[[int], bytes]:
    return lambda size: unit * (size // len(unit))


def _counted(start: str, unit: str, end: str, separator: str = ",") -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        number = size // (len(unit.format(100_000)) + len(separator))
        return (start + separator.join(unit.format(at) for at in range(number)) + end).encode()

    return make


def _window(size: int) -> bytes:
    offsets = {"orders": {str(number): 1 for number in range(size // 36)}}
    return json.dumps({"version": 1, "start": offsets, "end": offsets, "committed": offsets}).encode()


def _receipt(size: int) -> bytes:
    offsets = {"orders": {str(number): 1 for number in range(size // 24)}}
    return json.dumps(
        {"version": 1, "group_id": "g", "before": offsets, "after": offsets, "changed": 1}
    ).encode()


_UNITS = [
    *(bytes([byte]) for byte in b'[9 \\\n,:=a"\0-\r\xff'),
    *(b'{"a":', b"(a", rb"\u", b"{},"),
    *(b"a\\\n", b"k=v\n", b"orders,0,1\n", b"\t\\\n", b"k\\ ", b"#\n", b"v1\n", b"\xc3\xa9"),
]
_REPEATED = {repr(unit): _repeated(unit) for unit in _UNITS}
_COUNTED = {
    "an object of many keys": _counted("{", '"k{}":0', "}"),
    "many partitions": _counted('{{"orders":{{'.format(), '"{}":1', "}}"),
    "many topics": _counted("{", '"t{}":{{"0":1}}', "}"),
    "many names": _counted("{", '"t{}":"g{}"'.replace("{}", "{0}"), "}"),
    "many partitions in a list": _counted("[", '"orders:{}"', "]"),
    "many topics in a list": _counted("[", '"t{}"', "]"),
    "partitions after a colon": _counted("orders:", "{}", ""),
    "empty objects": _counted("[", "{{}}", "]"),
    "lines of three columns": _counted("", "orders,{},1", "\n", "\n"),
    "lines of many groups": _counted("", "g{},orders,0,1", "\n", "\n"),
    "settings": _counted("", "key.{}=value", "\n", "\n"),
    "sources of version 1": _counted("v1\n{}\n", '{{"orders":{{"{}":1}}}}', "", "\n"),
    "sources of version 2": _counted("v2\n{}\n", 's{}:{{"orders":{{"0":1}}}}', "", "\n"),
    "partitions of a source": _counted('v1\n{}\n{"orders":{', '"{}":1', "}}"),
    "groups of a receipt": _counted('{"version":1,"groups":[', '{{"group_id":"g{}"}}', "]}"),
    "metadata of many keys": _counted("v1\n{", '"k{}":0', '}\n{"orders":{"0":1}}'),
}
_WHOLE: dict[str, dict[str, Callable[[int], bytes]]] = {
    "window": {"a window": _window},
    "receipt": {"a receipt": _receipt},
    "checkpoint": {
        "many archives": _counted("", "_kafka_offsets/{:06}-seek/manifest.json\0x", "", "\xff"),
        "many batches": _counted("", "offsets/{}\0x", "", "\xff"),
    },
    "CSV": {"spaces behind an offset": lambda size: b"orders,0,1" + b" " * size},
    "manifest": {
        "files": lambda size: _manifest(
            files={f"offsets/{at}": {"before": None, "after": None} for at in range(size // 50)}
        ),
        "sources": lambda size: _manifest(
            before={f"s{at}": {"orders": {"0": 1}} for at in range(size // 26)}
        ),
    },
}


def _manifest(**changed: Any) -> bytes:
    from hostile_readers import manifest

    return json.dumps(manifest(**changed)).encode()
