"""Short histories of both engines: right at their own level, and found wrong when they claim a higher one."""

from collections.abc import Iterator

import pytest
from strata_cli import paths

from .campaign import SNAPSHOT_ISOLATION, Campaign, Plan
from .checker import check
from .history import History, Level

SECONDS = 2.0


@pytest.fixture(scope="module", params=["STRATA", "InnoDB"])
def campaign(request: pytest.FixtureRequest) -> Iterator[Campaign]:
    running = Campaign(paths.BUILD / "isolation" / "test", request.param)
    running.start()
    yield running
    running.stop()


def plan(kind: str, kills: int = 0) -> Plan:
    return Plan(f"test/{kind}", kind, clients=8, keys=6, durable=kills > 0, kills=kills, long_share=0.1)


def claim(history: History, level: Level) -> set[str]:
    for transaction in history.transactions:
        transaction.level = level
    return {problem.kind for problem in check(history).problems}


def test_what_a_level_permits_is_an_anomaly_of_the_next(campaign: Campaign) -> None:
    dirty = campaign.record(plan("RU"), SECONDS)
    assert check(dirty).ok
    assert {"G1a aborted read", "G1b intermediate read"} & claim(dirty, Level.RC)
    committed = campaign.record(plan("RC"), SECONDS)
    assert check(committed).ok
    assert "G-single read skew" in claim(committed, Level.RR)
    repeatable = campaign.record(plan("RR"), SECONDS)
    assert check(repeatable).ok
    assert claim(repeatable, Level.SER)


def test_serializable_transactions_and_all_levels_at_once(campaign: Campaign) -> None:
    for kind in ("SER", "mixed"):
        report = check(campaign.record(plan(kind), SECONDS))
        assert report.ok, [str(problem) for problem in report.problems]
        assert report.committed > 50


# InnoDB shows commits before they are durable, and a crash may take them back.
@pytest.mark.parametrize("campaign", ["STRATA"], indirect=True)
def test_a_server_killed_in_the_middle(campaign: Campaign) -> None:
    history = campaign.record(plan("SER", kills=1), SECONDS)
    report = check(history)
    assert report.ok, [str(problem) for problem in report.problems]


def test_snapshot_isolation(campaign: Campaign) -> None:
    report = check(campaign.record(plan(SNAPSHOT_ISOLATION), SECONDS))
    assert report.ok, [str(problem) for problem in report.problems]
    assert report.permitted["P4 lost update"] == 0
    if campaign.engine == "STRATA":  # InnoDB passes rows that have left an index
        assert report.permitted["G-single read skew"] == 0
    assert report.permitted["G2 write skew"] > 0
