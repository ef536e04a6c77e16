"""A cluster with a memory node over storage nodes that make pages from the log: a killed compute node finds them warm, each as
its log gives it, and whatever becomes of the memory node, compute goes on."""

import shutil
import threading
from collections.abc import Iterator

import pymysql
import pytest
from strata_cli import paths
from strata_cli.cluster import FIRST_COMPUTE, Cluster, Wishes
from strata_cli.profile_list import ALL
from strata_cli.server import Server
from strata_cli.waiting import wait_until

PROFILE = next(profile.name for profile in ALL if profile.has_memory_nodes and not profile.pages_are_written)
FOLDER = paths.BUILD / "e2e" / "lego-copies"
DATA = FOLDER / "cluster"
WAIT_S = 60.0
ROWS = 12_000  # of some 500 bytes: about the local pool
BATCH = 500
OPTIONS = ("--strata-buffer-pool-size=8M", "--strata-lego-tier1-interval-ms=100", "--strata-lego-timeout-s=2")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    made = Cluster(DATA)
    made.lease_s = 3
    made.compute_options = OPTIONS
    try:
        made.start(PROFILE, wishes=Wishes(memory="32M"))
        server(made).query("CREATE TABLE t (a INT PRIMARY KEY, n INT, b VARCHAR(600))", database="test")
        yield made
    finally:
        made.kill()
        if made.exists():
            made.wipe()
        shutil.rmtree(FOLDER, ignore_errors=True)


def server(cluster: Cluster) -> Server:
    return cluster.computes[FIRST_COMPUTE]


def fill(cluster: Cluster) -> None:
    for first in range(0, ROWS, BATCH):
        values = ", ".join(f"({key}, 0, REPEAT(CHAR(97 + {key} % 26), 500))" for key in range(first, first + BATCH))
        server(cluster).query(f"INSERT INTO t VALUES {values}", database="test", autocommit=True)


def check(cluster: Cluster, changed: int) -> None:
    sums = "SELECT COUNT(*), SUM(n), SUM(b = REPEAT(CHAR(97 + a % 26), 500)) FROM t"
    assert [int(value) for value in server(cluster).query(sums, database="test")[0]] == [ROWS, changed, ROWS]


def variable(cluster: Cluster, name: str) -> int:
    return int(server(cluster).query(f"SHOW GLOBAL STATUS LIKE 'strata_{name}'")[0][1])


class Changes:
    """A thread that adds 1 to some row, over and over, but no more often than `most`, each change acknowledged or an error."""

    def __init__(self, cluster: Cluster, most: int = 1 << 30) -> None:
        self.acknowledged = 0
        self._most = most
        self.errors: list[str] = []
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = server(self._cluster).connect(database="test", autocommit=True)
        with connection, connection.cursor() as cursor:
            key = 0
            while not self._stop.is_set() and self.acknowledged < self._most:
                key = (key + 4_999) % ROWS
                try:
                    cursor.execute(f"UPDATE t SET n = n + 1 WHERE a = {key}")
                    self.acknowledged += 1
                except pymysql.MySQLError as error:
                    self.errors.append(str(error))
                    return

    def go_on(self) -> bool:
        until = self.acknowledged + 200
        return wait_until(lambda: self.acknowledged >= until or bool(self.errors), WAIT_S) and not self.errors

    def end(self) -> int:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self.errors, self.errors
        return self.acknowledged


def test_a_killed_compute_node_finds_its_pages_warm_and_none_of_them_old(cluster: Cluster) -> None:
    fill(cluster)
    check(cluster, 0)
    # Copies of pages that are not flushed are old after the kill: on a fast machine those are most.
    assert wait_until(lambda: variable(cluster, "buffer_pool_dirty") == 0, WAIT_S)
    changes = Changes(cluster, most=200)
    assert changes.go_on()
    done = changes.end()
    # What was changed last is in no checkpoint: the log says which copies are old.
    cluster.kill_part(FIRST_COMPUTE)
    cluster.start_part(FIRST_COMPUTE)
    check(cluster, done)
    hits, misses = variable(cluster, "lego_remote_hits"), variable(cluster, "lego_storage_reads")
    assert hits > 4 * misses, f"{hits} pages from the memory node, {misses} from storage"
    # What its log has changed again is flushed before long. Dirty is nothing there, ever.
    assert wait_until(lambda: variable(cluster, "lego_pages_flushed") > 0, WAIT_S)
    assert variable(cluster, "lego_pool_dirty") == 0


def test_a_lost_memory_node_ends_nothing(cluster: Cluster) -> None:
    fill(cluster)
    changes = Changes(cluster)
    pid = server(cluster).pid()
    assert changes.go_on()
    cluster.kill_part("memory-1")
    cluster.memory["memory-1"].wipe_pools()
    assert changes.go_on()  # After the time for which it waits.
    assert variable(cluster, "lego_attached") == 0
    cluster.start_part("memory-1")
    assert wait_until(lambda: variable(cluster, "lego_attached") == 1, WAIT_S)
    assert changes.go_on()
    done = changes.end()
    check(cluster, done)
    assert server(cluster).pid() == pid and variable(cluster, "lego_ended") == 0
    # Both at once.
    cluster.memory["memory-1"].kill()
    cluster.kill_part(FIRST_COMPUTE)
    cluster.memory["memory-1"].wipe_pools()
    cluster.start_part("memory-1")
    cluster.start_part(FIRST_COMPUTE)
    check(cluster, done)
