"""./strata backup and restore of clusters: what is restored is the database of one moment, with everything that was committed
before the backup began, and compute is asked nothing. Whatever goes wrong, the error says what, no half of anything is left, and
no storage node stays held.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from strata_cli import cluster_backup, node_changes, paths
from strata_cli.cluster import FIRST_COMPUTE, Cluster, Wishes
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "cluster-backup"
DEADLINE_S = 400
ACCOUNTS = 20
BALANCE = 1000


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    yield
    for name in ("source", "restored", ".restored.restoring"):
        cluster = Cluster(FOLDER / name)
        if cluster.exists():
            cluster.kill()
            cluster.wipe()
    shutil.rmtree(FOLDER, ignore_errors=True)


def start(profile: str) -> tuple[Cluster, Server]:
    cluster = Cluster(FOLDER / "source")
    cluster.start(profile, wishes=Wishes(memory="64M") if profile.startswith("lego") else None)
    server = cluster.computes[FIRST_COMPUTE]
    server.query("CREATE TABLE test.account (id INT PRIMARY KEY, amount INT NOT NULL)")
    rows = ", ".join(f"({i}, {BALANCE})" for i in range(ACCOUNTS))
    server.query(f"INSERT INTO test.account VALUES {rows}", autocommit=True)
    server.query("CREATE TABLE test.done (n INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(2000))")
    server.query("CREATE USER clerk IDENTIFIED BY 'x'")
    server.query("CREATE PROCEDURE test.nothing() SELECT 1")
    return cluster, server


def strata(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(paths.ROOT / "strata"), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def done(*arguments: str | Path) -> dict[str, Any]:
    outcome = strata(*arguments, "--json")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    answer: dict[str, Any] = json.loads(outcome.stdout)
    return answer


def refused(*arguments: str | Path) -> str:
    outcome = strata(*arguments)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "Traceback" not in outcome.stderr
    return " ".join(outcome.stderr.split())


class Load(threading.Thread):
    """Moves money, notes what it has done, and makes and drops tables, until it is told to stop."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._stop_wanted = threading.Event()
        self.acknowledged = 0
        self.failures: list[str] = []

    def run(self) -> None:
        connection = self._server.connect(read_timeout=None)
        round_number = 0
        while not self._stop_wanted.is_set():
            round_number += 1
            try:
                with connection.cursor() as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute("UPDATE test.account SET amount = amount - 7 WHERE id = %s", (round_number % ACCOUNTS,))
                    cursor.execute("UPDATE test.account SET amount = amount + 7 WHERE id = %s", ((round_number + 3) % ACCOUNTS,))
                    cursor.execute("INSERT INTO test.done (note) VALUES (REPEAT('n', 1500))")
                    cursor.execute("COMMIT")
                    self.acknowledged += 1
                    if round_number % 40 == 0 and round_number > 80:
                        cursor.execute(f"CREATE TABLE test.t{round_number} (a INT PRIMARY KEY) SELECT 1 AS a")
                        cursor.execute(f"DROP TABLE IF EXISTS test.t{round_number - 80}")
            except pymysql.MySQLError as error:
                self.failures.append(str(error))
                return

    def end(self) -> None:
        self._stop_wanted.set()
        self.join()


def expect_whole(server: Server, acknowledged: int) -> None:
    assert server.query("SELECT COUNT(*), SUM(amount) FROM test.account") == [(ACCOUNTS, ACCOUNTS * BALANCE)]
    count, most = server.query("SELECT COUNT(*), MAX(n) FROM test.done")[0]
    assert count >= acknowledged and most >= acknowledged
    assert server.query("SELECT COUNT(*) FROM test.done WHERE note <> REPEAT('n', 1500)") == [(0,)]
    assert server.query("SELECT User FROM mysql.user WHERE User = 'clerk'") == [("clerk",)]
    assert server.query("CALL test.nothing()") == [(1,)]


@pytest.mark.parametrize("profile", ["remote-disk", "logdb-mv-sr", "lego"])
def test_what_is_restored_is_the_database_of_one_moment(profile: str) -> None:
    cluster, server = start(profile)
    load = Load(server)
    load.start()
    assert wait_until(lambda: load.acknowledged > 100 or not load.is_alive(), DEADLINE_S)
    before = load.acknowledged
    made = done("backup", FOLDER / "backup", "--data", cluster.data)
    assert made["node"] in cluster.storage and made["profile"] == profile
    reached = load.acknowledged
    assert wait_until(lambda: load.acknowledged > reached or not load.is_alive(), DEADLINE_S), "the cluster does not go on"
    load.end()
    assert load.failures == []
    assert wait_until(lambda: all(node.illness() is None for node in cluster.storage.values()), DEADLINE_S)
    expect_whole(server, load.acknowledged)
    assert cluster.stop()

    answer = done("restore", FOLDER / "backup", "--to", FOLDER / "restored")
    assert answer["tables"] >= 3 and len(answer["storage_nodes"]) == 3
    assert not Cluster(FOLDER / "restored").running(), "a restore leaves nothing running"
    restored = Cluster(FOLDER / "restored")
    restored.start(profile)
    again = restored.computes[FIRST_COMPUTE]
    expect_whole(again, before)
    again.query("INSERT INTO test.done (note) VALUES (REPEAT('n', 1500))", autocommit=True)
    # It is a whole cluster: it loses a storage node, and nothing else.
    restored.kill_part(made["node"])
    again.query("INSERT INTO test.done (note) VALUES (REPEAT('n', 1500))", autocommit=True)
    expect_whole(again, before + 2)
    assert restored.stop()


def test_a_backup_that_is_killed_leaves_no_node_held() -> None:
    cluster, server = start("logdb-mv")
    command = [str(paths.ROOT / "strata"), "backup", str(FOLDER / "backup"), "--data", str(cluster.data)]
    nodes = {name: node.pid() for name, node in cluster.storage.items()}

    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in nodes.values()}

    def kill_when(moment: Callable[[], bool], every_s: float) -> None:
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(lambda: moment() or process.poll() is not None, DEADLINE_S, every_s)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was quicker"
        assert wait_until(lambda: "T" not in states(), DEADLINE_S), "a node stays held"
        assert "was not finished" in refused("restore", FOLDER / "backup", "--to", FOLDER / "restored")
        assert not (FOLDER / "restored").exists()
        shutil.rmtree(FOLDER / "backup")
        server.query("INSERT INTO test.done (note) VALUES ('goes on')", autocommit=True)

    kill_when(lambda: "T" in states(), 0.002)
    kill_when((FOLDER / "backup" / "node").exists, 0.005)
    assert done("backup", FOLDER / "backup", "--data", cluster.data)["files"] > 0


def test_what_cannot_be_is_refused_and_leaves_nothing() -> None:
    cluster, _ = start("logdb-mv")
    assert "without --since" in refused("backup", FOLDER / "backup", "--data", cluster.data, "--since", FOLDER / "other")
    cluster.kill_part("s2")
    said = refused("backup", FOLDER / "backup", "--data", cluster.data)
    assert "s2 is not well" in said
    assert not (FOLDER / "backup").exists()
    cluster.start_part("s2")
    assert wait_until(lambda: all(node.illness() is None for node in cluster.storage.values()), DEADLINE_S)
    assert "is there already" in refused("backup", FOLDER, "--data", cluster.data)
    done("backup", FOLDER / "backup", "--data", cluster.data)
    assert cluster.stop()

    binary_logs = refused("restore", FOLDER / "backup", "--to", FOLDER / "restored", "--binary-logs", FOLDER)
    assert "does not say where in a binary log" in binary_logs
    largest = max((path for path in (FOLDER / "backup" / "node").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    with largest.open("r+b") as damaged:
        damaged.seek(largest.stat().st_size // 2)
        byte = damaged.read(1)
        damaged.seek(-1, os.SEEK_CUR)
        damaged.write(bytes([byte[0] ^ 1]))
    assert f"{largest} is damaged" in refused("restore", FOLDER / "backup", "--to", FOLDER / "restored").replace("- ", "-")
    (FOLDER / "backup" / "manifest.json").write_text("{}")
    assert "is damaged" in refused("restore", FOLDER / "backup", "--to", FOLDER / "restored")
    assert not (FOLDER / "restored").exists() and not (FOLDER / ".restored.restoring").exists()


def test_a_node_that_ends_while_it_is_held_fails_the_backup() -> None:
    cluster, _ = start("logdb-mv")
    node = cluster.storage["s1"]
    with pytest.raises(StrataError, match="ended, or somebody let it go on"), cluster_backup.held(node):
        node.kill()
    with pytest.raises(StrataError, match="does not run any more"), cluster_backup.held(node):
        pass
    cluster.start_part("s1")
    assert wait_until(lambda: node.illness() is None, DEADLINE_S)
    assert node_changes.current(cluster).nodes == ("s1", "s2", "s3")
