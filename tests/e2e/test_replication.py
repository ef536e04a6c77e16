"""A replica in another engine than its primary is equal to it after kill -9 of both. Longer: `./strata test --replication 6`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from replication.run import Plan, run
from strata_cli import paths


@pytest.fixture
def folder() -> Iterator[Path]:
    yield paths.BUILD / "e2e" / "replication"
    shutil.rmtree(paths.BUILD / "e2e" / "replication", ignore_errors=True)


@pytest.mark.parametrize(("primary", "replica"), [("InnoDB", "STRATA"), ("STRATA", "InnoDB")])
def test_both_are_killed_in_turns(folder: Path, primary: str, replica: str) -> None:
    assert run(folder, Plan(primary, replica, kills=3, pause_s=0.7, seed=1, positions_in=replica)) == []
