"""The mutations that tests/mutations/run.py tries fit the code, and name tests that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from mutations import all_mutations

ROOT = Path(__file__).parents[2]
MUTATIONS = all_mutations()


@cache
def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def syntax_of(path):
    return ast.dump(ast.parse(text_of(path)))


def test_a_mutation_fits_the_code_and_changes_what_it_does():
    for each in MUTATIONS:
        assert ast.dump(ast.parse(each.apply(text_of(each.path)))) != syntax_of(each.path), each.name


def test_the_tests_of_a_mutation_are_there():
    for each in MUTATIONS:
        for test in each.tests:
            file, _, function = test.partition("::")
            name = re.escape(function.partition("[")[0])
            assert re.search(rf"^def {name}\(", text_of(file), re.MULTILINE), f"{each.name}: {test}"


def test_no_two_mutations_are_the_same():
    changes = [(each.path, each.hunks) for each in MUTATIONS]

    assert len(set(changes)) == len(changes) >= 1
