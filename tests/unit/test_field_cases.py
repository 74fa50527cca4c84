"""The page of field cases and the tests that carry their ids name each other, and each test a line that it fails without."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(
    r"^\| ([A-Z]{3}-\d\d) \| (.+?) \| (.+?) \| (.+?) \|$",
    (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
FILES = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "sched" / "store" / "conformance").glob("*.py")]
DOCSTRINGS = [
    (each.name, ast.get_docstring(each) or "")
    for file in FILES
    for each in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
]
TESTS = [test for test, _ in DOCSTRINGS]


def ids(test):
    """SGL-01 and PGC-07 for test_sgl_01_pgc_07_clocks."""
    (found,) = re.findall(r"^test((?:_[a-z]{3}_\d\d)*)", test)
    return [f"{kind.upper()}-{number}" for kind, number in re.findall(r"([a-z]{3})_(\d\d)", found)]


def test_every_case_is_there_once():
    cases = [row[0] for row in ROWS]
    assert cases
    assert len(set(cases)) == len(cases)


@pytest.mark.parametrize(("case", "verdict", "tests"), [(row[0], row[2], row[3]) for row in ROWS])
def test_every_verdict_is_one_and_rests_on_tests_of_that_case(case, verdict, tests):
    assert re.match(r"holds|does not apply: |not yet: ", verdict)
    named = re.findall(r"`(\w+)`", tests)
    assert named
    for test in named:
        assert test in TESTS
        assert case in ids(test)


def test_every_test_with_an_id_is_named_in_the_row_of_that_case():
    told = defaultdict(set)
    for case, _, _, tests in ROWS:
        told[case] |= set(re.findall(r"`(\w+)`", tests))
    assert [test for test in TESTS for case in ids(test) if test not in told[case]] == []


@pytest.mark.parametrize(("test", "told"), [(test, told) for test, told in DOCSTRINGS if ids(test)])
def test_every_test_with_an_id_names_a_line_in_a_file_that_has_it(test, told):
    """As code, or as the name of a statement or constant."""
    files = re.findall(r"[\w/]+\.(?:py|sql)", told)
    assert files, f"{test} does not say in which file the line is that it fails without"
    text = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    words = re.findall(r"`([^`]+)`", told) + re.findall(r"\b[A-Z][A-Z_]+\b", told)
    assert [word for word in words if word in text], f"{test}: nothing of {words} is in {files}"
