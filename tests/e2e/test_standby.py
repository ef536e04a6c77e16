"""A compute node stands by and takes the database over by itself, under clients that know both ports: after kill -9 of the
writer, with every acknowledged row; after the writer stood still for longer than its lease, which then gets nothing through any
more; of two that stand by one wins. It does not when only the registry is away, and it says why when it cannot start, and tries
again."""

import contextlib
import itertools
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pausing
import pymysql
import pytest
from strata_cli import cluster_cmd, compute_standby, paths
from strata_cli.cluster import FIRST_COMPUTE, Cluster, Wishes
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.standby_process import FAILED, SERVING, WAITING
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "standby"
DATA = FOLDER / "cluster"
WAIT_S = 60.0
LEASE_S = 3
GAP_S = 8.0  # One second is the target; the machine may be busy.
AWAY_S = 7.0  # Of the registry, twice: two leases.


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    made = Cluster(DATA)
    made.lease_s = LEASE_S
    try:
        made.start("lego", wishes=Wishes(memory="64M"))
        made.computes[FIRST_COMPUTE].query("CREATE TABLE t (a INT, KEY (a))", database="test")
        yield made
    finally:
        for one in (made, Cluster(DATA)):  # A move has made another compute node, which only the folder knows.
            one.kill()
        if made.exists():
            made.wipe()
        shutil.rmtree(FOLDER, ignore_errors=True)


class Writer:
    """Inserts 1, 2, 3 ..., each once, at the first of some ports that takes it, and goes to the next one when it gets an error or
    no answer: as a client library does with a list of hosts."""

    def __init__(self, ports: Sequence[int], first_key: int = 1) -> None:
        self.acknowledged: list[tuple[int, float]] = []
        self.key = first_key - 1
        self._ports = ports
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._stop.is_set():
            with contextlib.suppress(pymysql.MySQLError, OSError):
                self._insert_at(self._ports[turn % len(self._ports)])
            turn += 1
            self._stop.wait(0.005)

    def _insert_at(self, port: int) -> None:
        with pymysql.connect(
            host="127.0.0.1",
            port=port,
            user="root",
            database="test",
            autocommit=True,
            connect_timeout=2,
            read_timeout=2,
            ssl_disabled=True,
        ) as connection:
            while not self._stop.is_set():
                self.key += 1
                with connection.cursor() as cursor:
                    cursor.execute(f"INSERT INTO t VALUES ({self.key})")
                self.acknowledged.append((self.key, time.monotonic()))

    def goes_on(self) -> bool:
        before = len(self.acknowledged)
        return wait_until(lambda: len(self.acknowledged) > before + 5, WAIT_S)

    def gap_s(self) -> float:
        """The longest time between two acknowledged commits."""
        times = [at for _, at in self.acknowledged]
        return max(after - before for before, after in itertools.pairwise(times))

    def end(self) -> set[int]:
        self._stop.set()
        self._thread.join(WAIT_S)
        return {key for key, _ in self.acknowledged}


def port_of(server: Server) -> int:
    return server.settings().port


def serving(cluster: Cluster) -> Server:
    return cluster.computes[cluster.serving_compute() or FIRST_COMPUTE]


def check_rows(server: Server, acknowledged: set[int]) -> None:
    found = [int(row[0]) for row in server.query("SELECT a FROM t", database="test")]
    assert acknowledged <= set(found), "an acknowledged row is lost"
    assert len(found) == len(set(found)), "a row is there twice"


def becomes(cluster: Cluster, name: str, state: str) -> bool:
    standby = cluster.standbys[name]
    if wait_until(lambda: standby.state().state == state, WAIT_S):
        return True
    print(
        f"{name} is {standby.state()}, serving is {cluster.serving_compute()}\n{standby.log_tail()}\n{standby.server.log_tail()}"
    )
    return False


def test_one_of_two_follows_a_killed_writer(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    added = [compute_standby.add(cluster, None, None, lambda _: None) for _ in range(2)]
    assert [one.node for one in added] == ["compute-2", "compute-3"]
    first = cluster.computes[FIRST_COMPUTE]
    with pytest.raises(StrataError, match="runs already"):
        compute_standby.add(cluster, first.data, None, lambda _: None)
    assert becomes(cluster, "compute-2", WAITING), "it hears of another neighbour and starts again"
    writer = Writer([port_of(first), *(one.port for one in added)])
    try:
        assert writer.goes_on()
        cluster.kill_part(FIRST_COMPUTE)
        assert writer.goes_on()
        gap_s = writer.gap_s()
        with capsys.disabled():
            print(f" [{gap_s:.2f} s without a commit]", end="")
        assert gap_s < GAP_S
        winner, other = sorted(added, key=lambda one: cluster.computes[one.node].pid() is None)
        assert becomes(cluster, winner.node, SERVING) and becomes(cluster, other.node, WAITING)
        check_rows(cluster.computes[winner.node], {key for key, _ in writer.acknowledged})
        assert first.socket.readlink() == cluster.computes[winner.node].socket
        # The first one, whose socket is the cluster's, stands by from now on and takes over in turn; the winner stands by again.
        compute_standby.remove(cluster, other.node, False, lambda _: None)
        compute_standby.add(cluster, first.data, None, lambda _: None)
        cluster.kill_part(winner.node)
        assert becomes(cluster, FIRST_COMPUTE, SERVING) and writer.goes_on()
        assert cluster.standbys[FIRST_COMPUTE].state().tries == 0 and becomes(cluster, winner.node, WAITING)
        assert first.query("SELECT 1") == [(1,)]
    finally:
        acknowledged = writer.end()
    check_rows(serving(cluster), acknowledged)
    # Stopped as a whole nothing takes anything over, and it comes back as it was.
    assert cluster.stop() and cluster.running() == []
    again = Cluster(DATA)
    again.start("lego")
    assert all(becomes(again, name, WAITING) for name in again.standbys if name != again.serving_compute())
    check_rows(serving(again), acknowledged)


def test_a_writer_that_stood_still_is_out(cluster: Cluster) -> None:
    first = cluster.computes[FIRST_COMPUTE]
    added = compute_standby.add(cluster, None, None, lambda _: None)
    pid = first.pid()
    assert pid is not None
    old = first.connect(database="test", autocommit=True)
    in_transaction = first.connect(database="test")
    with old.cursor() as cursor, in_transaction.cursor() as other:
        cursor.execute("INSERT INTO t VALUES (0)")
        other.execute("INSERT INTO t VALUES (-1)")
        writer = Writer([port_of(first), added.port])
        try:
            assert writer.goes_on()
            pausing.pause(pid)
            assert writer.goes_on()
            assert cluster.serving_compute() == added.node
        finally:
            Server._signal(first, pid, signal.SIGCONT)
        try:
            with pytest.raises(pymysql.MySQLError):
                cursor.execute("SELECT COUNT(*) FROM t")
            with pytest.raises(pymysql.MySQLError):
                cursor.execute("INSERT INTO t VALUES (-2)")
            with pytest.raises(pymysql.MySQLError):
                in_transaction.commit()
            assert writer.goes_on()
        finally:
            acknowledged = writer.end()
    second = cluster.computes[added.node]
    check_rows(second, acknowledged | {0})
    assert second.query("SELECT COUNT(*) FROM t WHERE a < 0", database="test") == [(0,)]


def test_nothing_is_taken_over_while_only_the_registry_is_away(cluster: Cluster) -> None:
    first = cluster.computes[FIRST_COMPUTE]
    added = compute_standby.add(cluster, None, None, lambda _: None)
    epoch = first.query("SHOW STATUS LIKE 'Strata_cluster_epoch'")
    writer = Writer([port_of(first), added.port])
    try:
        assert writer.goes_on()
        etcd = cluster.etcd.pid()
        assert etcd is not None
        pausing.pause(etcd)  # All leases run out meanwhile.
        try:
            time.sleep(AWAY_S)
        finally:
            cluster.etcd._signal(etcd, signal.SIGCONT)
        assert writer.goes_on()
        cluster.kill_part("etcd")
        time.sleep(AWAY_S)
        cluster.start_part("etcd")
        assert writer.goes_on()
        # Long enough for a lease that nobody has renewed to end, too.
        assert not wait_until(lambda: cluster.standbys[added.node].state().state != WAITING, 2 * LEASE_S)
    finally:
        acknowledged = writer.end()
    assert first.query("SHOW STATUS LIKE 'Strata_cluster_epoch'") == epoch
    assert not any("takes the database over" in line for line in cluster.computes[added.node].log_lines())
    check_rows(first, acknowledged)


def test_one_that_cannot_start_says_why_and_tries_again(cluster: Cluster) -> None:
    added = compute_standby.add(cluster, None, None, lambda _: None)
    standby = cluster.standbys[added.node]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", added.port))
        taken.listen()
        standby.waiting.kill()
        assert wait_until(lambda: standby.state().tries >= 2, WAIT_S)
        state = standby.state()
        assert state.state == FAILED and f"port {added.port} is in use" in state.why and state.again_s > 1
        line = compute_standby.status(cluster)[0]
        assert (line.node, line.pid) == (added.node, None) and "in use" in line.why
    assert becomes(cluster, added.node, WAITING)
    # Moving the database on purpose is nobody's turn, and one is gone when it is removed.
    cluster_cmd.compute_move_to(DATA, None, None, Wishes(), lose_local_tables=False, as_json=True)
    assert Cluster(DATA).serving_compute() == "compute-3" and becomes(cluster, added.node, WAITING)
    compute_standby.remove(Cluster(DATA), added.node, True, lambda _: None)
    assert Cluster(DATA).standbys == {} and standby.pid() is None and standby.waiting.pid() is None
