"""The mutations that tests/mutations/run.py tries fit the code, and name tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from mutations import PATCHES, all_mutations, read_mutation

ROOT = Path(__file__).parents[2]
MUTATIONS = sorted(path.stem for path in PATCHES.glob("*.patch"))


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_fits_the_code_and_changes_what_it_does(name):
    mutation = read_mutation(PATCHES / f"{name}.patch")
    text = (ROOT / mutation.path).read_text(encoding="utf-8")

    assert ast.dump(ast.parse(mutation.apply(text))) != ast.dump(ast.parse(text))


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_tests_of_a_mutation_are_there(name):
    for test in read_mutation(PATCHES / f"{name}.patch").tests:
        file, _, function = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {re.escape(function.partition('[')[0])}\(", text, re.MULTILINE), test


def test_no_two_mutations_are_the_same():
    changes = [(each.path, each.hunks) for each in all_mutations()]

    assert len(set(changes)) == len(changes) >= 1
