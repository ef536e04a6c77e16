"""Storage nodes are replaced, added and taken out while a server writes: dead ones, living ones, with kill -9 of the server.

The nodes keep all of their log here: a new one gets the pages by replaying it.
"""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from strata_cli import node_changes, paths
from strata_cli.cluster import CLUSTER_NAME, FIRST_COMPUTE, Cluster
from strata_cli.placement import Placement
from strata_cli.removal_request import RemovalRequest
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.status import DEGRADED
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "node-changes"
DATA = FOLDER / "cluster"
WHOLE_TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    yield
    Cluster(DATA).kill()
    shutil.rmtree(FOLDER, ignore_errors=True)


def made() -> Cluster:
    cluster = Cluster(DATA, program=[paths.storenode_path("release"), "--checkpoint-interval", "3600"])
    cluster.lease_s = 2
    return cluster


def strata(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(paths.ROOT / "strata"), *(str(argument) for argument in arguments), "--data", str(DATA)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def be_silent(_: str) -> None:
    pass


class Writer:
    """Inserts rows 1, 2, 3 ... one transaction each; goes on when the server comes back."""

    def __init__(self, server: Server) -> None:
        server.query("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)", database="test")
        self._server = server
        self._stop = threading.Event()
        self.tried = 0
        self.acknowledged: set[int] = set()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            self.tried += 1
            try:
                self._server.query(f"INSERT INTO t VALUES ({self.tried}, REPEAT('x', 500))", database="test", autocommit=True)
                self.acknowledged.add(self.tried)
            except (pymysql.MySQLError, OSError):
                self._stop.wait(0.05)

    def goes_on(self, rows: int = 50) -> bool:
        before = len(self.acknowledged)
        return wait_until(lambda: len(self.acknowledged) >= before + rows, 60)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Every acknowledged row is there, and none that was never tried."""
        found = {int(row[0]) for row in self._server.query("SELECT a FROM t", database="test")}
        assert self.acknowledged <= found, f"lost: {sorted(self.acknowledged - found)[:10]}"
        assert max(found) <= self.tried


def whole(cluster: Cluster, change: node_changes.Change) -> None:
    node_changes.wait_whole(cluster, change, WHOLE_TIMEOUT_S, be_silent)
    assert change.caught_up, change.note


def test_a_dead_and_a_living_node_are_replaced_under_writes() -> None:
    cluster = made()
    cluster.start("logdb-mv-sr")
    server = cluster.computes[FIRST_COMPUTE]
    writer = Writer(server)
    try:
        assert writer.goes_on()
        cluster.kill_part("s1")
        with pytest.raises(StrataError, match=r"s1 is not well: not running.*nothing was changed"):
            node_changes.replace(cluster, "s2", None, be_silent)
        change = node_changes.replace(cluster, "s1", None, be_silent)
        assert (change.node, change.generation, change.write_quorum) == ("s4", 2, 2)
        whole(cluster, change)
        assert writer.goes_on()

        # A living one; the server dies while the new one has nothing.
        change = node_changes.replace(cluster, "s2", "s5", be_silent)
        cluster.kill_part(FIRST_COMPUTE)
        cluster.start_part(FIRST_COMPUTE)
        whole(cluster, change)
        assert cluster.placement() == Placement(3, ("s4", "s5", "s3"), 2)
        assert cluster.outsiders["s2"].pid() is None
        cluster.outsiders["s2"].launch()
        with pytest.raises(StrataError, match="s2 is in no storage group"):
            cluster.outsiders["s2"].wait_ready()

        # What s3 alone had of the first ones is on the new ones.
        cluster.kill_part("s3")
        assert writer.goes_on()
    finally:
        writer.stop()
    writer.check()
    # Everything again, as the registry names it.
    cluster.kill()
    again = made()
    again.start("logdb-mv-sr")
    assert list(again.storage) == ["s4", "s5", "s3"]
    writer.check()
    again.kill_part("s4")
    writer.check()


def test_a_node_is_taken_out_under_writes() -> None:
    cluster = made()
    cluster.start("logdb-mv-sr")
    server = cluster.computes[FIRST_COMPUTE]
    writer = Writer(server)
    try:
        with pytest.raises(StrataError, match=r"there are 3 storage nodes; 3 are needed.*node replace s1"):
            node_changes.remove(cluster, "s1", be_silent)
        whole(cluster, node_changes.add(cluster, None, 0, be_silent))
        assert cluster.placement() == Placement(2, ("s1", "s2", "s3", "s4"), 3)
        cluster.kill_part("s3")
        with pytest.raises(StrataError, match=r"s3 is not well: not running.*nothing was changed"):
            node_changes.remove(cluster, "s1", be_silent)
        # A lost one goes as well as a living one; here the writer serves pages from s1, the first.
        cluster.start_part("s3")
        assert writer.goes_on()
        removal = node_changes.remove(cluster, "s1", be_silent)
        assert (removal.generation, removal.nodes, removal.write_quorum) == (3, ("s2", "s3", "s4"), 2)
        assert cluster.outsiders["s1"].pid() is None
        assert writer.goes_on()
        # Now one of three may be lost, and the server with it.
        cluster.kill_part("s2")
        assert writer.goes_on()
        cluster.kill_part(FIRST_COMPUTE)
        cluster.start_part(FIRST_COMPUTE)
        assert writer.goes_on()
        cluster.start_part("s2")
        # The name is never given again, nor does the process come back.
        with pytest.raises(StrataError, match="names are not used again"):
            node_changes.add(cluster, "s1", 0, be_silent)
        cluster.outsiders["s1"].launch()
        with pytest.raises(StrataError, match="s1 is in no storage group"):
            cluster.outsiders["s1"].wait_ready()
    finally:
        writer.stop()
    writer.check()
    cluster.kill()
    again = made()
    again.start("logdb-mv-sr")
    assert list(again.storage) == ["s2", "s3", "s4"]
    again.kill_part("s3")
    writer.check()


def in_sync(server: Server) -> int:
    return int(str(server.query("SHOW GLOBAL STATUS LIKE 'strata_cluster_page_nodes_in_sync'")[0][1]))


def pages_are_equal(cluster: Cluster) -> tuple[bool, str]:
    """Of all storage nodes, byte for byte; nobody is writing. And what the tool says."""
    tool = paths.preset_dir("release") / "src" / "storenode" / "copy" / "strata_compare_pages"
    addresses = [node.address() for node in cluster.storage.values()]
    done = subprocess.run([str(tool), "--written", str(cluster.secret), *addresses], capture_output=True, text=True, timeout=60)
    return done.returncode == 0, done.stdout + done.stderr


def test_pages_written_by_compute_follow_every_change() -> None:
    """Profile remote-disk: one is added, one taken out, dead and living ones are replaced; the server and a new node die."""
    cluster = made()
    cluster.start("remote-disk")
    server = cluster.computes[FIRST_COMPUTE]
    server.query("CREATE TABLE filler (a INT AUTO_INCREMENT PRIMARY KEY, b TEXT)", database="test")
    for _ in range(20):
        server.query("INSERT INTO filler (b) SELECT REPEAT('y', 3000) FROM seq_1_to_200", database="test", autocommit=True)
    writer = Writer(server)
    try:
        assert writer.goes_on()
        change = node_changes.add(cluster, None, 0, be_silent)
        assert (change.node, change.generation, change.write_quorum) == ("s4", 2, 3)
        whole(cluster, change)
        assert writer.goes_on()

        removal = node_changes.remove(cluster, "s1", be_silent)
        assert (removal.generation, removal.nodes, removal.write_quorum) == (3, ("s2", "s3", "s4"), 2)
        assert writer.goes_on()

        # A dead one, by a new one that dies while it copies, and the server with it.
        cluster.kill_part("s2")
        change = node_changes.replace(cluster, "s2", "s5", be_silent)
        cluster.kill_part("s5")
        cluster.kill_part(FIRST_COMPUTE)
        cluster.start_part(FIRST_COMPUTE)
        assert writer.goes_on()
        with pytest.raises(StrataError, match=r"s5 is not well.*nothing was changed"):
            node_changes.replace(cluster, "s3", None, be_silent)
        cluster.start_part("s5")
        whole(cluster, change)

        # A living one: the last one that was there from the start.
        whole(cluster, node_changes.replace(cluster, "s3", None, be_silent))
        assert cluster.placement() == Placement(5, ("s5", "s6", "s4"), 2)
        cluster.kill_part("s4")
        assert writer.goes_on()
        cluster.start_part("s4")
    finally:
        writer.stop()
    writer.check()
    assert wait_until(lambda: in_sync(server) == 3, 60)
    assert server.stop()  # A checkpoint, and nobody writes any more.
    equal, said = pages_are_equal(cluster)
    assert equal, said
    cluster.kill()
    again = made()
    again.start("remote-disk")
    assert list(again.storage) == ["s5", "s6", "s4"]
    writer.check()
    server = again.computes[FIRST_COMPUTE]
    assert server.query("SELECT COUNT(*), SUM(LENGTH(b)) FROM filler", database="test") == [(4000, 12_000_000)]
    # The registry does not know that a node's disk was lost while nobody wrote; its store has another number.
    again.kill_part(FIRST_COMPUTE)
    again.kill_part("s4")
    shutil.rmtree(again.storage["s4"].data)
    again.start_part("s4")
    with pytest.raises(StrataError, match=r"s4 does not have every page yet.*nothing was changed"):
        node_changes.replace(again, "s5", None, be_silent)


def test_nobody_takes_a_node_out_while_no_compute_node_runs() -> None:
    cluster = made()
    cluster.start("logdb", with_compute=False)
    change = node_changes.add(cluster, None, 0, be_silent)
    assert change.generation == 2
    with pytest.raises(StrataError, match=r"no compute node runs.*\./strata up"):
        node_changes.remove(cluster, "s1", be_silent)
    # A request that was left is nobody's business any more once its asker has gone.
    request = RemovalRequest(cluster.settings().etcd_port, CLUSTER_NAME)
    with request.asked("s1", 2, 60):
        assert request.refusal() is None
    cluster.start_part(FIRST_COMPUTE)
    cluster.computes[FIRST_COMPUTE].query("CREATE TABLE t (a INT)", database="test")
    with request.asked("s1", 1, 60):
        assert wait_until(lambda: request.refusal() is not None, 30)
        assert "changed meanwhile" in str(request.refusal())
    assert cluster.placement() == Placement(2, ("s1", "s2", "s3", "s4"), 3)


def test_the_command_line() -> None:
    assert strata("up", "--profile", "logdb").returncode == 0
    for arguments, why in [
        (["node", "remove", "s1"], "3 are needed"),
        (["node", "remove", "s9"], "s9 is no storage node of this cluster; there is: s1, s2, s3"),
        (["node", "replace", "s9"], "s9 is no storage node of this cluster; there is: s1, s2, s3"),
        (["node", "replace", "s1", "--with", "s2"], "names are not used again"),
        (["node", "add", "--write-quorum", "2"], "no majority"),
    ]:
        refused = strata(*arguments)
        assert refused.returncode == 1 and why in refused.stderr, refused.stderr
    cluster = Cluster(DATA)
    assert cluster.settings().joining == {} and cluster.placement() == Placement(1, ("s1", "s2", "s3"), 2)
    added = strata("node", "add", "--json", "--timeout", "0")
    assert added.returncode == 0, added.stderr
    change = json.loads(added.stdout)
    assert (change["node"], change["generation"], change["write_quorum"]) == ("s4", 2, 3)
    told = strata("status", "--json")
    facts = json.loads(told.stdout)
    assert facts["placement"] == {"generation": 2, "nodes": ["s1", "s2", "s3", "s4"], "write_quorum": 3}
    assert strata("node", "kill", "s4").returncode == 0
    assert strata("status").returncode == DEGRADED
    assert strata("up").returncode == 0
    assert Cluster(DATA).storage["s4"].pid() is not None
    assert wait_until(lambda: strata("status").returncode == 0, 60)
    removed = strata("node", "remove", "s2", "--wipe", "--json")
    assert removed.returncode == 0, removed.stderr
    assert json.loads(removed.stdout)["nodes"] == ["s1", "s3", "s4"]
    assert not (DATA / "storage" / "s2").exists()
    assert strata("status").returncode == 0
    assert strata("node", "remove", "s2").returncode == 0  # As after an interruption: it is out already.
    assert "replace" in strata("node", "replace", "--help").stdout
    assert strata("down", "--wipe").returncode == 0
