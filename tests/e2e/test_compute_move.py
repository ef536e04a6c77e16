"""A cluster's database moves to another compute node and back while a client writes: port and socket stay, nothing acknowledged
is lost; one that cannot take over leaves everything as it was. Under a profile with memory nodes: test_lego.py."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from strata_cli import cluster_cmd, compute_move, paths
from strata_cli.cluster import FIRST_COMPUTE, Cluster, Wishes
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "move"
DATA = FOLDER / "cluster"
WAIT_S = 60.0
GAP_S = 15.0  # Two are the target with a memory node; the machine may be busy.


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    made = Cluster(DATA)
    made.lease_s = 3
    try:
        made.start("remote-disk")
        made.computes[FIRST_COMPUTE].query("CREATE TABLE t (a INT PRIMARY KEY)", database="test")
        yield made
    finally:
        made.kill()
        if made.exists():
            made.wipe()
        shutil.rmtree(FOLDER, ignore_errors=True)


class Writer:
    """Inserts 1, 2, 3 ... through the cluster's socket, and connects again whenever it has to."""

    def __init__(self, socket: Path) -> None:
        self.acknowledged: list[int] = []
        self._socket = socket
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        key = 0
        while not self._stop.is_set():
            try:
                with pymysql.connect(user="root", unix_socket=str(self._socket), database="test", autocommit=True) as connection:
                    while not self._stop.is_set():
                        key += 1
                        with connection.cursor() as cursor:
                            cursor.execute(f"INSERT INTO t VALUES ({key})")
                        self.acknowledged.append(key)
            except pymysql.MySQLError:
                self._stop.wait(0.01)

    def goes_on(self) -> bool:
        before = len(self.acknowledged)
        return wait_until(lambda: len(self.acknowledged) > before + 5, WAIT_S)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)


def rows(cluster: Cluster) -> set[int]:
    server = cluster.computes[cluster.serving_compute() or FIRST_COMPUTE]
    return {int(row[0]) for row in server.query("SELECT a FROM t", database="test")}


def test_there_and_back_under_a_client_that_connects_again(cluster: Cluster) -> None:
    first = cluster.computes[FIRST_COMPUTE]
    port = first.settings().port
    writer = Writer(first.socket)
    try:
        assert writer.goes_on()
        there = compute_move.move(cluster, None, None, Wishes(buffer_pool="16M", cores=1.0), lambda _: None)
        assert (there.old, there.new, there.port, there.cores) == (FIRST_COMPUTE, "compute-2", port, 1.0)
        assert Path(there.folder) == DATA / "computes" / "compute-2"
        assert writer.goes_on()
        second = cluster.computes["compute-2"]
        assert second.query("SELECT @@strata_buffer_pool_size, @@port") == [(16 << 20, port)]
        # Another command finds it, and what it was given.
        found = Cluster(DATA)
        assert found.serving_compute() == "compute-2"
        assert (found.settings().buffer_pool, found.settings().cores) == ("16M", 1.0)
        cluster_cmd.compute_cores(DATA, 0)
        back = compute_move.move(cluster, None, None, Wishes(), lambda _: None)
        assert (back.new, back.buffer_pool, back.cores) == (FIRST_COMPUTE, "16M", 0.0)
        assert not first.socket.is_symlink() and writer.goes_on()
        assert max(there.gap_s, back.gap_s) < GAP_S
    finally:
        writer.end()
    assert set(writer.acknowledged) <= rows(cluster)


def test_one_that_cannot_take_over_changes_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = cluster.computes[FIRST_COMPUTE].pid()
    cluster.compute_options = ("--strata-secret-file=/nowhere",)
    with pytest.raises(StrataError, match="nothing was changed: open /nowhere"):
        compute_move.move(cluster, None, None, Wishes(buffer_pool="16M", cores=1.0), lambda _: None)
    assert cluster.computes[FIRST_COMPUTE].pid() == pid
    assert (cluster.settings().buffer_pool, cluster.settings().cores, cluster.settings().computes) == ("", 0.0, {})
    with pytest.raises(StrataError, match=r"is in .* already"):
        compute_move.move(cluster, DATA, None, Wishes(), lambda _: None)
    with pytest.raises(StrataError, match="this machine has"):
        compute_move.move(cluster, None, None, Wishes(cores=1000), lambda _: None)
    # Nor one that fails when the old one has stopped: that one is started again.
    cluster.compute_options = ()

    def fails(*_: object) -> None:
        raise StrataError("it does not serve")

    monkeypatch.setattr(compute_move, "_wait_serving", fails)
    with pytest.raises(StrataError, match="it does not serve"):
        compute_move.move(cluster, None, None, Wishes(buffer_pool="16M"), lambda _: None)
    assert cluster.serving_compute() == FIRST_COMPUTE and cluster.settings().buffer_pool == ""
    assert rows(cluster) == set()
