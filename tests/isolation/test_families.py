"""Histories of parents and children: short ones of both engines, and what the judge must find in made-up ones."""

from collections.abc import Iterator

import pytest
from strata_cli import paths

from .campaign import KINDS, Campaign, Plan
from .families import Born, Deed, Kind, compare
from .history import End

SECONDS = 1.5
Found = dict[str, dict[int, tuple[int | None, int]]]
EMPTY: Found = {
    "parent": {},
    Kind.cascade: {},
    Kind.null: {},
    Kind.strict: {},
    "grandchild": {},
}


@pytest.fixture(scope="module", params=["STRATA", "InnoDB"])
def campaign(request: pytest.FixtureRequest) -> Iterator[Campaign]:
    running = Campaign(paths.BUILD / "isolation" / "test-families", request.param)
    running.start()
    yield running
    running.stop()


def test_no_orphan_in_any_committed_state_at_any_level(campaign: Campaign) -> None:
    for kind in KINDS:
        report = campaign.family(Plan(f"test/{kind}", kind, clients=8, keys=0, durable=False, kills=0, long_share=0), SECONDS)
        assert report.ok, report.problems
        assert report.committed > 20
        assert report.looks > 5 or kind == "RU"  # which sees what is not committed
        assert report.refused > 0


@pytest.mark.parametrize("campaign", ["STRATA"], indirect=True)
def test_a_server_killed_in_the_middle_of_cascades(campaign: Campaign) -> None:
    report = campaign.family(Plan("test/kill", "mixed", clients=8, keys=0, durable=True, kills=1, long_share=0), 2 * SECONDS)
    assert report.ok, report.problems


def test_what_must_be_there_in_the_end() -> None:
    child = Born(Kind.cascade, 5, 1, 1)
    orphan = Born(Kind.null, 6, 1, 1)
    born = Deed(End.committed, [child, orphan], [1])
    whole: Found = {**EMPTY, "parent": {1: (1, 1)}, Kind.cascade: {5: (1, 1)}, Kind.null: {6: (1, 1)}}
    assert compare([born], whole) == []
    assert compare([born], {**whole, Kind.cascade: {}})  # a child has gone by itself
    assert compare([born], {**whole, "parent": {}})  # a parent has
    gone: Found = {**EMPTY, Kind.null: {6: (None, 1)}}
    taken = Deed(End.committed, gone=[1])
    assert compare([born, taken], gone) == []
    assert compare([born, taken], {**gone, Kind.cascade: {5: (1, 1)}})  # left behind
    assert compare([born, taken], whole)  # a committed deletion without effect
    assert compare([Deed(End.aborted, [child], [1])], whole)  # what was rolled back is there
    unknown = Deed(End.unknown, gone=[1])
    assert compare([born, unknown], gone) == []
    assert compare([born, unknown], whole) == []
    assert compare([born, unknown], {**whole, Kind.cascade: {}})  # half of it
    moved: Found = {**whole, "parent": {9: (9, 1)}}
    assert compare([born], moved)  # the parent has another id, its child the old one
