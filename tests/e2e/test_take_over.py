"""Two servers of one name: who starts on a copy of a running server's folder is refused, and a server that comes back takes the
database from nobody but its own older self."""

import shutil
from collections.abc import Iterator

import pytest
from crash.cluster_under_test import ClusterUnderTest
from strata_cli import paths
from strata_cli.server import Server
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "take-over"
IDENTITY = "#strata/node-identity"


@pytest.fixture
def parts() -> Iterator[ClusterUnderTest]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    made = ClusterUnderTest(FOLDER, "logdb-mv-sr", "release", seed=1, small=True, power_loss=False)
    copy = Server(FOLDER / "copy")
    try:
        made.found()
        made.compute.query("CREATE DATABASE test")
        made.compute.query("CREATE TABLE t (a INT PRIMARY KEY)", database="test")
        yield made
    finally:
        copy.kill()
        made.close()
        shutil.rmtree(FOLDER, ignore_errors=True)


def insert(server: Server, key: int) -> None:
    server.query(f"INSERT INTO t VALUES ({key})", database="test", autocommit=True)


def rows(server: Server) -> list[int]:
    return [int(str(row[0])) for row in server.query("SELECT a FROM t ORDER BY a", database="test")]


def is_refused(parts: ClusterUnderTest, server: Server) -> str:
    """What it says about it."""
    server.launch(parts.cluster.compute_settings("compute-1", 0), extra=("--skip-networking",))

    def refusals() -> list[str]:
        return [
            line for line in server.log_lines() if "STRATA" in line and "is held by" in line and "has changed nothing" in line
        ]

    assert wait_until(lambda: len(refusals()) > 0, 60), server.log_tail(20)
    server.kill()
    return refusals()[-1]


def test_a_copied_folder_is_another_node(parts: ClusterUnderTest) -> None:
    original = parts.compute
    insert(original, 1)
    copy = Server(FOLDER / "copy")
    copy.create()
    (copy.datadir / IDENTITY).parent.mkdir(exist_ok=True)
    shutil.copy2(original.datadir / IDENTITY, copy.datadir / IDENTITY)
    assert "compute-1" in is_refused(parts, copy)
    assert (copy.datadir / IDENTITY).read_bytes() == (original.datadir / IDENTITY).read_bytes()
    insert(original, 2)
    assert rows(original) == [1, 2]

    # Somebody else has the database when the original comes back.
    original.kill()
    parts.start_compute(fresh=True)
    insert(parts.compute, 3)
    assert "compute-2" in is_refused(parts, original)
    assert rows(parts.compute) == [1, 2, 3]
