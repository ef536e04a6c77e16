"""What a server answers while its registry, or the disks of its storage nodes, are out of order for long: errors that say what
it is, never a false answer; and that it goes on by itself afterwards."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator

import pymysql
import pytest
from crash.cluster_under_test import ClusterUnderTest
from pausing import pause
from strata_cli import paths
from strata_cli.status import Process, compute_process, server_facts
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "outages"
NODES = ("s1", "s2", "s3")
GOT_TEMPORARY_ERROR = 1297


@pytest.fixture
def parts(request: pytest.FixtureRequest) -> Iterator[ClusterUnderTest]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    made = ClusterUnderTest(FOLDER, request.param, "release", seed=1, small=True, power_loss=False)
    try:
        made.found()
        made.compute.query("CREATE DATABASE test")
        yield made
    finally:
        made.close()
        shutil.rmtree(FOLDER, ignore_errors=True)


def health(parts: ClusterUnderTest) -> Process:
    return compute_process("compute-1", parts.compute, server_facts(parts.compute))


def refusal(parts: ClusterUnderTest, sql: str, *codes: int) -> str:
    with pytest.raises(pymysql.MySQLError) as caught:
        parts.compute.query(sql, database="test", autocommit=True)
    assert caught.value.args[0] in codes, (sql, caught.value)
    return str(caught.value.args[1])


def count(parts: ClusterUnderTest) -> int:
    return int(str(parts.compute.query("SELECT COUNT(*) FROM t", database="test")[0][0]))


@pytest.mark.parametrize("parts", ["remote-disk"], indirect=True)
def test_the_registry_is_away_for_longer_than_the_lease(parts: ClusterUnderTest) -> None:
    parts.compute.query("CREATE TABLE t (a INT PRIMARY KEY)", database="test")
    parts.compute.query("CREATE TABLE not_opened (a INT PRIMARY KEY)", database="test")
    parts.compute.query("INSERT INTO t VALUES (1)", database="test", autocommit=True)
    parts.compute.query("FLUSH TABLES")
    parts.kill_nodes(["s3"])
    etcd = parts.cluster.etcd.pid()
    assert etcd is not None
    pause(etcd)
    assert wait_until(lambda: "has lost its lease" in health(parts).reason, 30)
    # Known to the server or not, there or not: nobody can say.
    for sql in (
        "SELECT * FROM t",
        "SELECT * FROM not_opened",
        "SELECT * FROM nowhere",
        "SHOW CREATE TABLE not_opened",
        "DROP TABLE nowhere",
        "CREATE TABLE IF NOT EXISTS nowhere (a INT) ENGINE=STRATA",
        "SHOW TABLES",
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'test'",
    ):
        told = refusal(parts, sql, GOT_TEMPORARY_ERROR)  # It may pass, and the text says what to do.
        assert "lost its lease" in told and "to do: wait" in told, (sql, told)
    os.kill(etcd, signal.SIGCONT)
    assert wait_until(lambda: health(parts).reason == "" or "storage nodes" in health(parts).reason, 30), health(parts).reason
    parts.compute.query("INSERT INTO t VALUES (2)", database="test", autocommit=True)
    assert count(parts) == 2
    # Those that had every page are restarted at once.
    parts.kill_nodes(["s1", "s2"])
    parts.start_nodes(NODES)
    parts.compute.query("INSERT INTO t VALUES (3)", database="test", autocommit=True)
    parts.wait_in_sync()
    assert count(parts) == 3
    assert wait_until(lambda: health(parts).healthy, 30), health(parts).reason


@pytest.mark.parametrize("parts", ["logdb-mv-sr"], indirect=True)
def test_the_disks_are_full(parts: ClusterUnderTest) -> None:
    parts.compute.query("CREATE TABLE t (a INT AUTO_INCREMENT PRIMARY KEY, b LONGTEXT)", database="test")
    parts.compute.query("CREATE TABLE others (a INT PRIMARY KEY) SELECT 7 AS a", database="test")
    for name in NODES:
        parts.full_marker(name).touch()
    acknowledged: list[int] = []
    failed: list[str] = []

    def insert(rows: int) -> None:
        try:
            parts.compute.query(
                f"INSERT INTO t (b) SELECT REPEAT('x', 100000) FROM seq_1_to_{rows}", database="test", autocommit=True
            )
            acknowledged.append(rows)
        except pymysql.MySQLError as error:
            failed.append(str(error))

    def insert_until_it_waits() -> None:
        while not stop.is_set() and len(failed) < 3:
            insert(20)

    stop = threading.Event()
    writer = threading.Thread(target=insert_until_it_waits)
    writer.start()
    try:
        assert wait_until(lambda: "cannot be written" in health(parts).reason, 60), (health(parts).reason, acknowledged, failed)
        # Rows whose commit waits are waited for, all others are read.
        assert parts.compute.query("SELECT a FROM others", database="test") == [(7,)]
        assert "cannot be written" in refusal(parts, "INSERT INTO t (b) VALUES ('y')", GOT_TEMPORARY_ERROR)
    finally:
        stop.set()
        for name in NODES:
            parts.full_marker(name).unlink()
    writer.join(60)
    assert not writer.is_alive()
    assert wait_until(lambda: "cannot be written" not in health(parts).reason, 30), health(parts).reason
    insert(1)
    assert not [text for text in failed if "cannot be written" not in text], failed
    assert count(parts) == sum(acknowledged)
    parts.compute.kill()
    parts.start_compute(fresh=True)
    assert count(parts) == sum(acknowledged)
