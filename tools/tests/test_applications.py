"""What the tests of other programs have said is read right: which failed, with what, and how many passed."""

from dataclasses import replace

from applications.__main__ import compare, expected_failures
from applications.tools import ALL, Result, read_django, read_pytest

DJANGO = """Testing against Django installed in '/x'
Found 5 test(s).
E.Fs.
======================================================================
ERROR: setUpClass (basic.tests.ModelTest)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "x.py", line 1, in y
django.db.utils.OperationalError: (1478, "Table storage engine 'STRATA'")

======================================================================
FAIL: test_two (queries.tests.Q.test_two) [with a part]
----------------------------------------------------------------------
Traceback (most recent call last):
AssertionError: 1 != 2

----------------------------------------------------------------------
Ran 5 tests in 1.000s

FAILED (failures=1, errors=1, skipped=1)
"""
PYTEST = """..F..E
=========================== short test summary info ============================
FAILED test/a_test.py::T::test_b[x-y z] - AssertionError: no
ERROR test/b_test.py::T::test_c
1 failed, 4 passed, 1 error in 2.50s
"""


def test_failures_of_django_are_found_with_their_last_line() -> None:
    result = read_django(DJANGO)
    assert result.bad == {
        "basic.tests.ModelTest": "django.db.utils.OperationalError: (1478, \"Table storage engine 'STRATA'\")",
        "queries.tests.Q.test_two": "AssertionError: 1 != 2",
    }
    assert result.passed == 2


def test_failures_of_pytest_are_found_with_their_reason() -> None:
    result = read_pytest(PYTEST)
    assert result.bad == {"test/a_test.py::T::test_b[x-y z]": "AssertionError: no", "test/b_test.py::T::test_c": ""}
    assert result.passed == 4


def test_a_run_that_did_not_come_to_its_end_is_no_success() -> None:
    assert read_django("Traceback\nImportError: no x\n").bad == {"the run itself": "ImportError: no x"}
    assert read_pytest("INTERNALERROR> x\n").bad == {"the run itself": "INTERNALERROR> x"}


def test_what_fails_on_both_engines_or_is_listed_is_no_failure() -> None:
    expected = expected_failures("# a comment\ndjango:b  # as it is\n")
    innodb, strata = Result(7, {"a": "x"}), Result(5, {"a": "x", "b": "y", "c": "z"})
    assert compare(ALL["django"], innodb, strata, expected) == (6, ["django: c: z"])
    fewer = Result(4, {"a": "x", "b": "y", "c": "z"})
    assert (
        compare(ALL["django"], innodb, fewer, expected)[1][-1] == "django: 1 tests that passed on InnoDB were not run on STRATA"
    )
    listed = expected_failures("django:b  # as it is\ndjango:d  # not run: it asks for the engine by name\n")
    assert compare(ALL["django"], innodb, fewer, listed)[1] == ["django: c: z"]


def test_what_fails_on_several_servers_only_is_listed_by_itself() -> None:
    expected = expected_failures("django:a  # on one\ndjango-several:b  # numbers\n")
    one, three = Result(7, {}), Result(5, {"a": "x", "b": "y"})
    several = replace(ALL["django"], name="django-several")
    assert compare(several, one, three, expected) == (6, ["django-several: a: x"])
    told = ["django-several: 3 tests that passed on one server were not run on three"]
    assert compare(several, one, Result(4, {}), expected, ("one server", "three")) == (4, told)


def test_what_is_run_on_several_servers_is_run_on_one_too() -> None:
    assert all(set(tool.several) <= set(tool.tests) for tool in ALL.values())
    assert ALL["django"].several and ALL["sqlalchemy"].several
