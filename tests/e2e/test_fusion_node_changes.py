"""Storage nodes are replaced and added while three servers write the same tables: dead ones and living ones, with kill -9 of a
server, of the memory node and of the new node in the middle, and with a server that has left, whose log nobody writes.

What every server was told to be committed is there afterwards: beside it, with another storage node away, and after kill -9 of
everything.
"""

import threading
from collections.abc import Iterator

import pymysql
import pytest
from fusion_cluster import DEADLINE_S, PROFILES, nothing_left_of
from strata_cli import cluster_cmd, node_changes, paths, several_logs
from strata_cli.cluster import Cluster, Wishes
from strata_cli.placement import Placement
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion-node-changes"
DATA = FOLDER / "cluster"
WHOLE_TIMEOUT_S = 90.0
SERVERS = ("compute-1", "compute-2", "compute-3")
OF_EACH = 1_000_000  # Keys of one server's rows.


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with nothing_left_of(DATA):
        yield


def made(profile: str) -> Cluster:
    cluster = Cluster(DATA)
    cluster.start(profile, wishes=Wishes(servers=len(SERVERS), memory="64M"))
    return cluster


def be_silent(_: str) -> None:
    pass


class Writer:
    """Inserts rows of its own and counts in a row of all, in one transaction each; goes on when its server comes back."""

    def __init__(self, server: Server, number: int) -> None:
        self._server = server
        self._next = number * OF_EACH
        self._stop = threading.Event()
        self._connection: pymysql.Connection | None = None
        self.tried: set[int] = set()
        self.acknowledged: set[int] = set()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            self._next += 1
            self.tried.add(self._next)
            try:
                self._insert(self._next)
                self.acknowledged.add(self._next)
            except (pymysql.MySQLError, OSError):
                self._connection = None
                self._stop.wait(0.05)
            self._stop.wait(0.002)  # The test is about storage nodes, on however slow a machine.

    def _insert(self, key: int) -> None:
        if self._connection is None:
            self._connection = self._server.connect(database="test", read_timeout=60)
        with self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"INSERT INTO t VALUES ({key}, {key % 97}, REPEAT('x', 400))")
            cursor.execute("UPDATE total SET n = n + 1")
        self._connection.commit()

    def goes_on(self, rows: int = 20) -> bool:
        before = len(self.acknowledged)
        return wait_until(lambda: len(self.acknowledged) >= before + rows, DEADLINE_S)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Load:
    def __init__(self, cluster: Cluster) -> None:
        first = cluster.computes[SERVERS[0]]
        for statement in (
            "CREATE TABLE t (a INT PRIMARY KEY, b INT NOT NULL, c TEXT, KEY (b))",
            "CREATE TABLE total (n BIGINT NOT NULL)",
            "INSERT INTO total VALUES (0)",
            "CREATE TABLE filler (a INT AUTO_INCREMENT PRIMARY KEY, b TEXT)",
            "INSERT INTO filler (b) SELECT REPEAT('y', 3000) FROM seq_1_to_2000",
        ):
            first.query(statement, database="test", autocommit=True)
        self.writers = [Writer(cluster.computes[name], number) for number, name in enumerate(SERVERS, 1)]

    def all_go_on(self) -> bool:
        return all(writer.goes_on() for writer in self.writers)

    def stop(self) -> None:
        for writer in self.writers:
            writer.stop()

    def check(self, cluster: Cluster) -> None:
        """Each server has all that was acknowledged, nothing that was never tried, and sound tables."""
        acknowledged = set.union(*(writer.acknowledged for writer in self.writers))
        tried = set.union(*(writer.tried for writer in self.writers))
        assert len(acknowledged) >= 60
        for name in cluster.serving_computes():
            server = cluster.computes[name]
            found = {int(row[0]) for row in server.query("SELECT a FROM t", database="test")}
            assert acknowledged <= found, f"{name}: lost {sorted(acknowledged - found)[:10]}"
            assert found <= tried, f"{name}: never tried {sorted(found - tried)[:10]}"
            assert server.query("SELECT n FROM total", database="test") == [(len(found),)]
            assert server.query("SELECT COUNT(*), SUM(LENGTH(b)) FROM filler", database="test") == [(2000, 6_000_000)]
        for table in ("t", "total", "filler"):
            said = server.query(f"CHECK TABLE test.{table}")
            assert said[-1][3] == "OK", said


def whole(cluster: Cluster, change: node_changes.Change) -> None:
    node_changes.wait_whole(cluster, change, WHOLE_TIMEOUT_S, be_silent)
    assert change.caught_up, change.note


def replace(cluster: Cluster, old: str) -> node_changes.Change:
    return node_changes.replace(cluster, old, None, be_silent)


def expect_refused(cluster: Cluster, old: str, why: str) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StrataError, match=why):
        patch.setattr(node_changes, "SETTLE_S", 0.5)  # It does not get well.
        replace(cluster, old)


def killed_and_up(cluster: Cluster) -> Cluster:
    cluster.kill()
    again = Cluster(DATA)
    again.start(cluster.profile)
    return again


@pytest.mark.parametrize("profile", PROFILES)
def test_nodes_are_replaced_and_added_while_three_servers_write(profile: str) -> None:
    cluster = made(profile)
    load = Load(cluster)
    try:
        assert load.all_go_on()
        with pytest.raises(StrataError, match=r"s1 is not taken out: under profile 'fusion.*node replace s1"):
            node_changes.remove(cluster, "s1", be_silent)
        # One is lost for good. While another one is away, too, or is not whole yet, nothing is changed.
        cluster.kill_part("s1")
        assert load.all_go_on()
        expect_refused(cluster, "s2", r"s1 is not well: not running.*nothing was changed")
        change = replace(cluster, "s1")
        assert (change.node, change.generation, change.write_quorum) == ("s4", 2, 2)
        # A server, the memory node and the new node die while that one has next to nothing.
        cluster.kill_part("compute-2")
        cluster.kill_part("s4")
        cluster.kill_part("memory-1")
        expect_refused(cluster, "s3", r"s4 is not well.*nothing was changed")
        cluster.start_part("s4")
        cluster.start_part("memory-1")
        whole(cluster, change)
        cluster.start_part("compute-2")
        assert load.all_go_on()

        # Now the new one counts: another old one may be away.
        cluster.kill_part("s2")
        assert load.all_go_on()
    finally:
        load.stop()
    load.check(cluster)
    again = killed_and_up(cluster)
    assert again.placement() == Placement(2, ("s4", "s2", "s3"), 2)
    load.check(again)
    again.kill_part("s3")
    load.check(again)


@pytest.mark.parametrize("profile", PROFILES)
def test_servers_come_and_go_when_most_nodes_are_new(profile: str) -> None:
    cluster = made(profile)
    load = Load(cluster)
    try:
        assert load.all_go_on()
        # Nobody writes its log while nodes are replaced; the memory node gives it to them.
        load.writers[2].stop()
        assert cluster.stop_part("compute-3")
        for old in ("s1", "s2"):
            whole(cluster, replace(cluster, old))
            assert all(writer.goes_on() for writer in load.writers[:2])
        assert cluster.placement() == Placement(3, ("s4", "s5", "s3"), 2)
        states = [several_logs.logs_of(node) for node in cluster.storage.values()]
        assert all({1, 2, 3, several_logs.AUTHORITY} <= logs.keys() for logs in states)
        assert all(log.votes for logs in states for log in logs.values())
        # One that is there again, and one that never was, find nodes that vote.
        cluster.start_part("compute-3")
        change = node_changes.add(cluster, None, 0, be_silent)
        assert (change.node, change.generation, change.write_quorum) == ("s6", 4, 3)
        cluster_cmd.server_add(DATA, "reports", None, False, True)
        whole(Cluster(DATA), change)
        cluster = Cluster(DATA)
        assert all(writer.goes_on() for writer in load.writers[:2])
        cluster.kill_part("s5")
        assert all(writer.goes_on() for writer in load.writers[:2])
    finally:
        load.stop()
    load.check(cluster)
    again = killed_and_up(cluster)
    assert list(again.storage) == ["s4", "s5", "s3", "s6"] and len(again.serving_computes()) == 4
    load.check(again)
