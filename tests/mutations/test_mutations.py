"""The mutations that tests/mutations/run.py tries fit the code, and name tests that are there."""

import ast
import re
from functools import cache
from pathlib import Path

from mutations import MutationError, all_mutations

ROOT = Path(__file__).parents[2]
MUTATIONS = all_mutations()


@cache
def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def syntax_of(path):
    return ast.dump(ast.parse(text_of(path)))


def fault_of(mutation):
    """Why a mutation is none; empty if it is one."""
    try:
        mutated = mutation.apply(text_of(mutation.path))
    except MutationError as error:
        return str(error)
    unchanged = ast.dump(ast.parse(mutated)) == syntax_of(mutation.path)
    return f"{mutation.name} changes nothing" if unchanged else ""


def test_a_mutation_fits_the_code_and_changes_what_it_does():
    faults = filter(None, map(fault_of, MUTATIONS))
    assert not [*faults]


def has_test(name):
    file, _, function = name.partition("::")
    start = rf"^def {re.escape(function.partition('[')[0])}\("
    return (ROOT / file).is_file() and re.search(start, text_of(file), re.MULTILINE)


def test_the_tests_of_a_mutation_are_there():
    assert not [(each.name, test) for each in MUTATIONS for test in each.tests if not has_test(test)]


def test_no_two_mutations_are_the_same():
    changes = [(each.path, each.hunks) for each in MUTATIONS]

    assert len(set(changes)) == len(changes) >= 1
