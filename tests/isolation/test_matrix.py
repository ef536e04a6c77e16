"""Runs the anomaly matrix on a private server: each case on each engine at each level comes out as MATRIX.md says."""

from collections.abc import Iterator

import pytest
from strata_cli import paths
from strata_cli.server import Server

from . import target
from .cases import CASES, Case
from .matrix import COLUMNS, KINDS, TABLE_FILE, differences, explained, read_expected, run_case, verdict

EXPECTED = read_expected(TABLE_FILE.read_text())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = target.start(paths.BUILD / "isolation" / "matrix")
    yield running
    target.remove(running)


def test_the_table_is_complete() -> None:
    wanted = {(kind, case.name, column.title) for kind in KINDS for case in CASES for column in COLUMNS}
    assert EXPECTED.keys() == wanted


def test_where_strata_is_weaker_than_innodb_is_explained() -> None:
    weaker = {(case, title.split()[1]) for _, case, title in differences(EXPECTED)}
    assert weaker == explained(TABLE_FILE.read_text())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_anomaly(server: Server, case: Case, kind: str) -> None:
    found = {column.title: verdict(case, run_case(server, case, column, KINDS[kind])) for column in COLUMNS}
    assert found == {column.title: EXPECTED[kind, case.name, column.title] for column in COLUMNS}
