"""Several servers that write the same tables, from the command line: started, added, killed, removed, stopped, started again.

Tables are made while there is one server. The memory node is killed, too: what only it had is redone from the servers' logs.
"""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
from fusion_cluster import nothing_left_of
from strata_cli import paths
from strata_cli.cluster import Cluster
from strata_cli.process import kill_all
from strata_cli.server import Server, port_is_free
from strata_cli.status import DEGRADED, NOTHING_RUNS, RUNNING
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion-command"
DATA = FOLDER / "cluster"
COMMAND_TIMEOUT_S = 600  # On a machine ten times slower.
ROWS = 40
READ_ONLY = 1290


def strata(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(paths.ROOT / "strata"), *(str(argument) for argument in arguments), "--data", str(DATA)]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)


def done(*arguments: str | Path) -> str:
    ended = strata(*arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def facts(*arguments: str | Path) -> Any:
    return json.loads(done(*arguments, "--json"))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with nothing_left_of(DATA):
        yield


def servers() -> dict[str, Server]:
    return Cluster(DATA).computes


def states() -> tuple[int, dict[str, str]]:
    told = strata("compute", "status", "--json")
    return told.returncode, {line["node"]: line["state"] for line in json.loads(told.stdout)}


def execute(server: Server, statement: str) -> None:
    server.query(statement, database="test", autocommit=True)


def rows(server: Server) -> list[int]:
    return [row[0] for row in server.query("SELECT a FROM t ORDER BY a", database="test")]


def started_with_a_table(count: int) -> None:
    done("up", "--profile", "fusion", "--compute", "1", "--memory", "64M")
    execute(servers()["compute-1"], "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(100) NOT NULL) ENGINE=STRATA")
    for _ in range(count - 1):
        done("compute", "add")


def write(name: str, *keys: int) -> list[int]:
    for key in keys:
        execute(servers()[name], f"INSERT INTO t VALUES ({key}, REPEAT('x', 50))")
    return list(keys)


def test_three_servers_are_started_changed_stopped_and_started_again() -> None:
    shown = facts("up", "--profile", "fusion", "--compute", "3", "--memory", "64M")
    assert [server["name"] for server in shown["servers"]] == ["compute-1", "compute-2", "compute-3"]
    assert len({server["port"] for server in shown["servers"]}) == 3
    assert states() == (RUNNING, dict.fromkeys(("compute-1", "compute-2", "compute-3"), "serves"))
    assert strata("status").returncode == RUNNING
    again = done("up")
    assert again.count("already running") == 8 and "./strata sql" in again and "--on compute-3" in again

    ended = strata("up", "--compute", "2")
    assert ended.returncode == 1 and "has its servers already" in ended.stderr
    assert "1" in done("sql", "--on", "compute-2", "-e", "SELECT 1")
    assert "ready for connections" in done("logs", "compute-2", "--lines", "200")
    assert strata("down").returncode == 0
    assert states()[0] == NOTHING_RUNS
    # The tables are made by one while there is no other.
    done("up")
    for name in ("compute-2", "compute-3"):
        done("node", "stop", name)
    execute(servers()["compute-1"], "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(100) NOT NULL) ENGINE=STRATA")
    assert states()[0] == DEGRADED
    done("up")
    written = [key for n in (1, 2, 3) for key in write(f"compute-{n}", *range(n * 1000, n * 1000 + ROWS))]
    for server in servers().values():
        assert rows(server) == written
    # What only the memory node had the next one redoes from the logs.
    done("node", "kill", "memory-1")
    done("up")
    for server in servers().values():
        assert rows(server) == written

    # One more, one killed and back, one out, and in again.
    added = facts("compute", "add", "--name", "reports")
    assert added["node"] == "reports" and rows(servers()["reports"]) == written
    killed = facts("compute", "kill", "compute-2")
    assert killed["pid"] and killed["back_s"] > 0
    assert rows(servers()["compute-2"]) == written
    written += write("compute-2", 5001) + write("reports", 5002)
    removed = facts("compute", "remove", "compute-1")
    assert removed["left"] == ["compute-2", "compute-3", "reports"]
    assert strata("compute", "remove", "compute-1").returncode == 1
    written += write("reports", 5003)
    assert rows(servers()["compute-3"]) == written
    assert facts("compute", "add", "--name", "compute-1")["node"] == "compute-1"
    assert rows(servers()["compute-1"]) == written
    done("compute", "remove", "reports", "--wipe")
    assert not (DATA / "computes" / "reports").exists()

    # One that was killed and stays down is started by down, so that it ends in order; then all of it again.
    written += write("compute-2", 5004)
    done("compute", "kill", "compute-2", "--stay-down")
    assert states() == (DEGRADED, {"compute-2": "not running", "compute-3": "serves", "compute-1": "serves"})
    told = done("down")
    assert "compute-2  is started, so that it ends in order" in told and "not every process" not in told
    done("up")
    for server in servers().values():
        assert rows(server) == written
        assert server.query("CHECK TABLE test.t")[-1][3] == "OK"
    done("down", "--wipe")
    assert not DATA.exists()


def test_a_server_that_only_reads() -> None:
    started_with_a_table(1)
    writer = servers()["compute-1"]
    # Which a database for tests gives to everybody.
    writer.query("CREATE DATABASE shop")
    writer.query("CREATE TABLE shop.t (a INT PRIMARY KEY) ENGINE=STRATA")
    writer.query("CREATE USER anna IDENTIFIED BY 'a'")
    writer.query("GRANT ALL ON shop.* TO anna")
    assert facts("compute", "add", "--name", "reports", "--read-only")["read_only"]

    def anna(server: Server, statement: str) -> int:
        try:
            with closing(server.connect(user="anna", password="a", autocommit=True)) as connection:
                connection.cursor().execute(statement)
        except pymysql.MySQLError as error:
            return int(error.args[0])
        return 0

    def is_as_it_should_be(key: int) -> None:
        assert {line["node"]: line["read_only"] for line in facts("compute", "status")} == {"compute-1": False, "reports": True}
        reader = servers()["reports"]
        assert anna(writer, f"INSERT INTO shop.t VALUES ({key})") == 0
        assert (key,) in reader.query("SELECT a FROM shop.t")
        for statement in (f"INSERT INTO shop.t VALUES ({-key})", "DROP TABLE shop.t", "CREATE TABLE shop.u (a INT)"):
            assert anna(reader, statement) == READ_ONLY, statement
        assert anna(reader, "SELECT * FROM shop.t") == anna(reader, "CREATE TEMPORARY TABLE shop.u (a INT)") == 0
        assert anna(writer, f"UPDATE shop.t SET a = a + 100 WHERE a = {key}") == 0

    is_as_it_should_be(1)
    done("compute", "kill", "reports")
    is_as_it_should_be(2)
    # Whoever runs events is one that writes.
    done("sql", "--on", "reports", "-e", "SET GLOBAL event_scheduler = ON")
    done("sql", "--on", "compute-1", "-e", "SET GLOBAL event_scheduler = ON")
    writer.query("CREATE EVENT shop.e ON SCHEDULE EVERY 1 SECOND DO INSERT INTO shop.t SELECT 1000 + COUNT(*) FROM shop.t")
    assert wait_until(lambda: bool(writer.query("SELECT a FROM shop.t WHERE a > 1000")), 60)
    assert "this server runs the events" in writer.log.read_text()
    assert "this server runs the events" not in servers()["reports"].log.read_text()
    writer.query("DROP EVENT shop.e")
    ended = strata("compute", "remove", "compute-1")
    assert ended.returncode == 1 and "the only server that writes" in ended.stderr
    assert strata("down").returncode == 0
    done("up")
    is_as_it_should_be(3)


def test_everything_but_the_memory_node_is_killed_and_comes_back() -> None:
    started_with_a_table(3)
    written = [key for n in (1, 2, 3) for key in write(f"compute-{n}", *range(n * 1000, n * 1000 + ROWS))]
    for server in servers().values():
        execute(server, "UPDATE t SET b = CONCAT(b, 'y')")
    cluster = Cluster(DATA)
    kill_all(part for name, part in cluster.parts().items() if name not in cluster.memory)
    done("up")
    assert states() == (RUNNING, dict.fromkeys(("compute-1", "compute-2", "compute-3"), "serves"))
    for server in servers().values():
        assert rows(server) == written
        assert server.query("SELECT COUNT(*) FROM test.t WHERE b LIKE '%yyy'") == [(len(written),)]
    write("compute-3", 9000)


def test_over_storage_nodes_that_replay_everything_is_killed_and_comes_back() -> None:
    """Storage nodes make the pages from both servers' logs. With the memory node its pool is gone, too."""
    done("up", "--profile", "fusion-sr", "--compute", "2", "--memory", "64M")
    execute(servers()["compute-1"], "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(100) NOT NULL) ENGINE=STRATA")
    written: list[int] = []
    for start in (0, 5000):
        written += [key for n in (1, 2) for key in write(f"compute-{n}", *range(start + n * 1000, start + n * 1000 + ROWS))]
        for server in servers().values():
            execute(server, "UPDATE t SET b = CONCAT(b, 'y')")
        kill_all(Cluster(DATA).parts().values())
        done("up")
        assert states() == (RUNNING, dict.fromkeys(("compute-1", "compute-2"), "serves"))
        for server in servers().values():
            assert rows(server) == sorted(written)
            assert server.query("SELECT COUNT(*) FROM test.t WHERE b LIKE '%yy'") == [(len(written),)]
            assert server.query("CHECK TABLE test.t")[-1][3] == "OK"


def test_a_server_that_cannot_start_leaves_the_others_running() -> None:
    started_with_a_table(2)
    done("node", "stop", "compute-2")
    port = servers()["compute-2"].settings().port
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        ended = strata("up")
        assert ended.returncode == 1
        assert "not started: compute-2; compute-1 serves" in ended.stderr
        assert f"its port {port} is in use by another program" in ended.stderr.replace("\n", " ")
        assert "--on compute-1" in ended.stdout
    assert states() == (DEGRADED, {"compute-1": "serves", "compute-2": "not running"})
    assert port_is_free(port)
    done("up")
    assert write("compute-2", 1) == rows(servers()["compute-1"])
    # Storage nodes of which too few run.
    done("node", "stop", "s1")
    done("node", "stop", "s2")
    ended = strata("compute", "add")
    assert ended.returncode == 1 and "needs etcd and 2 storage nodes" in ended.stderr
    assert list(servers()) == ["compute-1", "compute-2"]
    before = [server.pid() for server in servers().values()]
    done("up")
    assert wait_until(lambda: states()[0] == RUNNING, 60), states()
    assert [server.pid() for server in servers().values()] == before, "a server that had no lease for a while was started again"
    assert write("compute-1", 2) == [2] and rows(servers()["compute-2"]) == [1, 2]


def test_the_demo_proves_its_point_and_leaves_the_servers() -> None:
    shown = done("demo", "--profile", "fusion", "--no-build", "--seconds", "3")
    # On each of four servers.
    assert shown.count(" ok  compute-") == 8, shown
    assert "kill -9 of compute-2" in shown and "Added compute-4" in shown
    assert states() == (RUNNING, dict.fromkeys((f"compute-{n}" for n in (1, 2, 3, 4)), "serves"))
