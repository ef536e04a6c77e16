"""A whole cluster with nothing simulated: SQL while processes are stopped and killed, and the database moved to another compute
node."""

import json
import resource
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from fusion_cluster import nothing_left_of
from strata_cli import paths
from strata_cli.bench.process import cpu_s, wait_until_quiet
from strata_cli.cluster import FIRST_COMPUTE, Cluster
from strata_cli.profile_list import OF_ONE_WRITER
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.status import DEGRADED, NOTHING_RUNS, RUNNING
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "whole"
DATA = FOLDER / "cluster"
SECOND = FOLDER / "second"


def strata(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(paths.ROOT / "strata"), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with nothing_left_of(DATA):
        yield


def up(profile: str | None = None) -> Server:
    done = strata("up", "--data", DATA, *(["--profile", profile] if profile else []))
    assert done.returncode == 0, done.stdout + done.stderr
    return Cluster(DATA).computes[FIRST_COMPUTE]


def insert(server: Server, *keys: int) -> None:
    for key in keys:
        server.query(f"INSERT INTO t VALUES ({key}, REPEAT('x', 500))", database="test", autocommit=True)


def rows(server: Server) -> list[int]:
    return [row[0] for row in server.query("SELECT a FROM t ORDER BY a", database="test")]


def test_rows_outlive_every_process() -> None:
    server = up("logdb-mv-sr")
    server.query("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)", database="test")
    insert(server, 1, 2)
    told = strata("status", "--data", DATA)
    assert told.returncode == RUNNING, told.stdout

    cluster = Cluster(DATA)
    cluster.kill_part("compute-1")
    cluster.start_part("compute-1")
    assert rows(server) == [1, 2]

    # Two of three storage nodes are enough.
    assert strata("node", "stop", "s2", "--data", DATA).returncode == 0
    insert(server, 3)
    told = strata("status", "--data", DATA, "--json")
    assert told.returncode == DEGRADED
    missing = {process["name"]: process["reason"] for process in json.loads(told.stdout)["processes"] if not process["healthy"]}
    assert missing == {"s2": "not running"}
    cluster.start("logdb-mv-sr")
    insert(server, 4)
    cluster.disown()

    down = strata("down", "--data", DATA)
    assert down.returncode == 0 and "not every process" not in down.stdout, down.stdout
    assert strata("status", "--data", DATA).returncode == NOTHING_RUNS
    server = up()
    assert rows(server) == [1, 2, 3, 4]

    # kill -9 of everything at once.
    insert(server, 5)
    cluster.kill()
    cluster.start("logdb-mv-sr")
    assert rows(server) == [1, 2, 3, 4, 5]


class Idlers:
    """Connections that say nothing, to each of some addresses, always more than a process may have open; new ones come for those
    that are closed."""

    def __init__(self, addresses: list[tuple[str, int]], each: int) -> None:
        self.addresses, self.each = addresses, each
        self.sockets: dict[tuple[str, int], list[socket.socket]] = {address: [] for address in addresses}
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._crowd)

    def __enter__(self) -> "Idlers":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join()
        for sockets in self.sockets.values():
            for one in sockets:
                one.close()

    def _crowd(self) -> None:
        while not self.stopping.wait(0.005):
            for address, sockets in self.sockets.items():
                for _ in range(8):
                    one = socket.socket()
                    one.setblocking(False)
                    one.connect_ex(address)
                    sockets.append(one)
                while len(sockets) > self.each:
                    sockets.pop(0).close()

    def full(self) -> bool:
        return all(len(sockets) >= self.each for sockets in self.sockets.values())


def test_idle_connections_take_nothing_away() -> None:
    """Two of three nodes, which may have 1,024 files open, get more idle connections than that on every port they have, all the
    time: commits go on, whoever asks for their state is answered, and most of their descriptors stay free."""
    server = up("logdb-mv-sr")
    server.query("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)", database="test")
    insert(server, 0)
    nodes = [Cluster(DATA).storage[name] for name in ("s1", "s2")]
    pids = [pid for node in nodes if (pid := node.pid()) is not None]
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    ports = [port for node in nodes for port in (node.settings.port, node.settings.http_port)]
    with Idlers([("127.0.0.1", port) for port in ports], 1100) as idlers:
        assert wait_until(idlers.full, 60)
        insert(server, *range(1, 200))
        told = strata("status", "--data", DATA)
        assert told.returncode == RUNNING, told.stdout
        assert all(len(list(Path(f"/proc/{pid}/fd").iterdir())) < 512 for pid in pids)
        cluster = Cluster(DATA)
        cluster.kill_part("compute-1")  # The next one has to get in, too.
        cluster.start_part("compute-1")
        insert(server, 200)
        cluster.disown()
    assert rows(server) == list(range(201))


def test_a_server_with_views_and_nothing_to_do_uses_no_cpu() -> None:
    server = up("logdb")
    server.query("CREATE TABLE test.t (a INT PRIMARY KEY)")
    server.query("CREATE VIEW test.v AS SELECT a FROM test.t")
    pids = [pid for part in Cluster(DATA).parts().values() if (pid := part.pid()) is not None]
    assert len(pids) == 5
    assert wait_until_quiet(lambda: sum(cpu_s(pid) for pid in pids), 20)


def test_the_database_moves_to_another_compute_node() -> None:
    cluster = Cluster(DATA)
    cluster.lease_s = 2  # Else the second one waits longer for the first, which was killed.
    cluster.start("logdb-mv-sr")
    first = cluster.computes[FIRST_COMPUTE]
    first.query("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)", database="test")
    insert(first, 1)
    first.query("CREATE USER guest IDENTIFIED BY 'secret'")
    first.query("GRANT SELECT, EXECUTE ON test.* TO guest")
    first.query("CREATE FUNCTION twice(n INT) RETURNS INT RETURN 2 * n", database="test")
    with pytest.raises(StrataError, match="compute-1 still serves the database"):
        cluster.add_compute(SECOND, None)
    first.kill()
    second = cluster.add_compute(SECOND, None)
    assert rows(second) == [1]
    assert second.query("SELECT twice(a) FROM t", database="test", user="guest", password="secret") == [(2,)]
    insert(second, 2)
    second.query("CREATE VIEW largest AS SELECT MAX(a) AS a FROM t", database="test")
    cluster.disown()
    assert strata("status", "--data", DATA).returncode == RUNNING
    again = strata("up", "--data", DATA)
    assert again.returncode == 0 and "not started: compute-2 serves" in again.stdout
    assert strata("compute", "down", "--data", SECOND, "--wipe").returncode == 0
    assert not SECOND.exists()
    assert strata("compute", "up", "--cluster", DATA).returncode == 0
    assert rows(first) == [1, 2]
    assert first.query("SELECT a FROM largest", database="test") == [(2,)]
    assert strata("down", "--data", DATA, "--wipe").returncode == 0
    assert not DATA.exists()


def in_folder(server: Server) -> list[str]:
    return sorted(path.name for path in (server.data / "mysql" / "test").glob("*.frm"))


def warnings_of(server: Server, statement: str) -> list[str]:
    connection = server.connect(database="test")
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            cursor.execute("SHOW WARNINGS")
            return [str(row[2]) for row in cursor.fetchall()]
    finally:
        connection.close()


def test_tables_of_one_server_are_named_and_not_lost_unasked() -> None:
    """And the definition files of the others follow the database from folder to folder."""
    first = up("logdb")
    assert warnings_of(first, "CREATE TABLE t (a INT PRIMARY KEY, b TEXT)") == []
    assert warnings_of(first, "CREATE TEMPORARY TABLE x (a INT) ENGINE=InnoDB") == []
    first.query("CREATE TABLE u (a INT)", database="test")
    for statement in (
        "CREATE TABLE inno (a INT) ENGINE=InnoDB",
        "CREATE SEQUENCE sq ENGINE=InnoDB",
        "CREATE TABLE alike LIKE inno",
    ):
        (told,) = warnings_of(first, statement)
        assert "by this server alone" in told
    first.query("CREATE TABLE moved (a INT)", database="test")
    assert any("`moved` is kept in engine" in told for told in warnings_of(first, "ALTER TABLE moved ENGINE=InnoDB"))
    assert first.log.read_text().count("by this server alone") == 4
    status = strata("status", "--data", DATA)
    assert status.returncode == RUNNING and "test.alike, test.inno, test.moved, test.sq" in status.stdout.replace("\n", " ")
    for command in (("down", "--data", DATA, "--wipe"), ("compute", "up", "--cluster", DATA, "--data", SECOND)):
        refused = strata(*command)
        assert refused.returncode != 0 and "test.inno" in refused.stderr + refused.stdout
    assert rows(first) == []

    assert strata("node", "stop", "compute-1", "--data", DATA).returncode == 0
    done = strata("compute", "up", "--cluster", DATA, "--data", SECOND, "--lose-local-tables")
    assert done.returncode == 0, done.stdout + done.stderr
    second = Cluster(DATA).computes["compute-2"]
    assert in_folder(second) == ["t.frm", "u.frm"]
    with pytest.raises(pymysql.err.Error, match="not a SEQUENCE"):
        second.query("DROP SEQUENCE t", database="test")
    second.query("DROP TABLE u", database="test")
    second.query("ALTER TABLE t ADD COLUMN c INT DEFAULT 3", database="test")
    second.query("CREATE TABLE w (a INT)", database="test")
    insert_into = "INSERT INTO t (a, b) VALUES (1, 'x')"
    second.query(insert_into, database="test", autocommit=True)
    assert strata("compute", "down", "--data", SECOND, "--wipe").returncode == 0

    done = strata("compute", "up", "--cluster", DATA)
    assert done.returncode == 0, done.stdout + done.stderr
    assert in_folder(first) == ["alike.frm", "inno.frm", "moved.frm", "sq.frm", "t.frm", "w.frm"]
    columns = "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA='test' AND TABLE_NAME='t' ORDER BY 1"
    assert first.query(columns) == [("a",), ("b",), ("c",)]
    assert rows(first) == [1]
    assert strata("down", "--data", DATA, "--wipe", "--lose-local-tables").returncode == 0
    assert not DATA.exists()


def test_a_folder_that_cannot_take_the_views_costs_none() -> None:
    cluster = Cluster(DATA)
    cluster.start("logdb")
    first = cluster.computes[FIRST_COMPUTE]
    first.query("CREATE VIEW one AS SELECT 1 AS a", database="test")
    assert first.stop()
    second = cluster.add_compute(SECOND, None)
    assert second.stop()
    first.start(first.settings())
    first.query("CREATE VIEW two AS SELECT 2 AS a", database="test")
    assert first.stop()
    obstacle = SECOND / "mysql" / "test" / "two.frm"
    obstacle.mkdir()
    second.start(second.settings())
    assert "could not be given to this folder" in second.log.read_text()
    assert second.stop()
    obstacle.rmdir()
    second.start(second.settings())
    assert second.query("SELECT a FROM two", database="test") == [(2,)]
    second.query("DROP VIEW one", database="test")
    second.kill()
    second.start(second.settings())
    assert second.query("SHOW TABLES", database="test") == [("two",)]


@pytest.mark.parametrize("profile", [profile for profile in OF_ONE_WRITER if profile != "logdb-mv-sr"])
def test_every_profile_serves_and_comes_back(profile: str) -> None:
    cluster = Cluster(DATA)
    cluster.start(profile)
    server = cluster.computes[FIRST_COMPUTE]
    server.query("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)", database="test")
    insert(server, 1, 2)
    server.kill()
    cluster.start(profile)
    assert rows(server) == [1, 2]


def status_of(server: Server, name: str) -> int:
    return int(str(server.query(f"SHOW GLOBAL STATUS LIKE 'strata_cluster_{name}'")[0][1]))


def test_pages_written_by_compute_outlive_nodes_and_servers() -> None:
    """Profile remote-disk: what proves it, and what a node does that was away."""
    cluster = Cluster(DATA)
    cluster.start("remote-disk")
    server = cluster.computes[FIRST_COMPUTE]
    server.query("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)", database="test")
    insert(server, *range(200))
    cluster.kill_part("s2")
    insert(server, *range(200, 300))
    server.kill()
    cluster.start_part(FIRST_COMPUTE)
    assert rows(server) == list(range(300))
    assert status_of(server, "page_nodes_in_sync") == 2
    told = strata("status", "--data", DATA)
    assert told.returncode == DEGRADED and "its pages are on 2 of 3 storage nodes" in told.stdout, told.stdout

    cluster.start_part("s2")
    assert wait_until(lambda: status_of(server, "page_nodes_in_sync") == 3, 30.0)
    assert strata("status", "--data", DATA).returncode == RUNNING
    # The one that was away has everything now: it and one other are enough.
    cluster.kill_part("s1")
    insert(server, 300)
    server.kill()
    cluster.start_part(FIRST_COMPUTE)
    assert rows(server) == list(range(301))
    assert server.stop()  # A checkpoint.
    cluster.start("remote-disk")
    assert rows(server) == list(range(301))
    values = cluster.storage["s2"].status()["values"]
    assert values["pages_written_total"] > 0 and "replay_backlog_bytes" not in values


def test_only_remote_disk_writes_pages() -> None:
    cluster = Cluster(DATA)
    cluster.start("logdb")
    server = cluster.computes[FIRST_COMPUTE]
    server.query("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)", database="test")
    insert(server, 1)
    assert status_of(server, "pages_written") == status_of(server, "page_nodes") == 0
