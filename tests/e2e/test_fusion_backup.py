"""./strata backup and restore of a cluster whose servers write the same tables: what is restored is one moment of all servers,
with everything that any of them had acknowledged before; whatever goes wrong, no server and no storage node stays held.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from strata_cli import paths
from strata_cli.cluster import Cluster, Wishes
from strata_cli.held_processes import STOPPED, state_of
from strata_cli.profile_list import BY_NAME, OF_SEVERAL_WRITERS
from strata_cli.server import Server
from strata_cli.several_health import trouble_of
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion-backup"
PROFILE = "fusion"
DEADLINE_S = 400
ACCOUNTS = 40
BALANCE = 1000
TRIED_AGAIN = (1205, 1213)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    wipe()
    FOLDER.mkdir(parents=True)
    yield
    wipe()


def wipe() -> None:
    for folder in FOLDER.iterdir() if FOLDER.exists() else ():
        cluster = Cluster(folder)
        if cluster.exists():
            cluster.kill()
            cluster.wipe()
    shutil.rmtree(FOLDER, ignore_errors=True)


def execute(server: Server, *statements: str) -> None:
    for statement in statements:
        server.query(statement, autocommit=True)


def start(profile: str = PROFILE) -> tuple[Cluster, list[Server]]:
    cluster = Cluster(FOLDER / "source")
    cluster.start(profile, wishes=Wishes(memory="64M", servers=3))
    servers = list(cluster.computes.values())
    accounts = ", ".join(f"({i}, {BALANCE})" for i in range(ACCOUNTS))
    execute(
        servers[0],
        "CREATE TABLE test.account (id INT PRIMARY KEY, amount INT NOT NULL)",
        f"INSERT INTO test.account VALUES {accounts}",
        "CREATE TABLE test.turns (id INT PRIMARY KEY, n INT NOT NULL)",
        "INSERT INTO test.turns VALUES (1, 0)",
        "CREATE TABLE test.done (server INT, n INT, note VARCHAR(2000) NOT NULL, PRIMARY KEY (server, n), INDEX (n))",
        "CREATE VIEW test.all_done AS SELECT server, n FROM test.done",
        "CREATE USER clerk IDENTIFIED BY 'x'",
        "CREATE PROCEDURE test.nothing() SELECT 1",
    )
    return cluster, servers


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
    """On one server: moves money, takes its turn with a row that all change, notes both; makes and drops tables."""

    def __init__(self, server: Server, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self.number = server, number
        self._rng = random.Random(f"{seed} {number}")
        self._stop_wanted = threading.Event()
        self.acknowledged: list[int] = []
        self.failure = ""

    def run(self) -> None:
        number = 0
        try:
            connection = self._server.connect(read_timeout=120)
            while not self._stop_wanted.is_set():
                number += 1
                try:
                    self._one(connection, number)
                    self.acknowledged.append(number)
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in TRIED_AGAIN:
                        raise
                    connection.rollback()
        except pymysql.MySQLError as error:
            self.failure = str(error)

    def _one(self, connection: "pymysql.connections.Connection[Any]", number: int) -> None:
        giver, taker = self._rng.sample(range(ACCOUNTS), 2)
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE test.account SET amount = amount - 3 WHERE id = %s", (giver,))
            cursor.execute("UPDATE test.account SET amount = amount + 3 WHERE id = %s", (taker,))
            cursor.execute("INSERT INTO test.done VALUES (%s, %s, REPEAT('n', 1000))", (self.number, number))
            cursor.execute("UPDATE test.turns SET n = n + 1 WHERE id = 1")
            cursor.execute("COMMIT")
            if number % 40 == 0:
                cursor.execute(f"CREATE TABLE test.t{self.number} (a INT PRIMARY KEY) SELECT 1 AS a")
                cursor.execute(f"DROP TABLE test.t{self.number}")

    def end(self) -> None:
        self._stop_wanted.set()
        self.join()


def loaded(servers: list[Server]) -> list[Load]:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    load = [Load(server, number, seed) for number, server in enumerate(servers, 1)]
    for one in load:
        one.start()
    expect_progress(load)
    return load


def expect_progress(load: list[Load]) -> None:
    before = [len(one.acknowledged) for one in load]

    def all_went_on() -> bool:
        return all(len(one.acknowledged) > n + 20 or not one.is_alive() for one, n in zip(load, before, strict=True))

    assert wait_until(all_went_on, DEADLINE_S), before
    assert [one.failure for one in load] == [""] * len(load)


def acknowledged(load: list[Load]) -> dict[int, set[int]]:
    return {one.number: set(one.acknowledged) for one in load}


def end(load: list[Load]) -> dict[int, set[int]]:
    for one in load:
        one.end()
    assert [one.failure for one in load] == [""] * len(load)
    return acknowledged(load)


def expect_whole(server: Server, before: dict[int, set[int]]) -> None:
    """All of `before`, and no half of anything."""
    assert server.query("SELECT COUNT(*), SUM(amount) FROM test.account") == [(ACCOUNTS, ACCOUNTS * BALANCE)]
    for number, numbers in before.items():
        found = {row[0] for row in server.query(f"SELECT n FROM test.done WHERE server = {number}")}
        assert numbers <= found, f"of server {number} {sorted(numbers - found)[:10]} are missing"
    assert server.query("SELECT n FROM test.turns") == server.query("SELECT COUNT(*) FROM test.all_done")
    for table in ("account", "turns", "done"):
        assert server.query(f"CHECK TABLE test.{table}")[-1][3] == "OK"
    assert server.query("SELECT User FROM mysql.user WHERE User = 'clerk'") == [("clerk",)]
    assert server.query("CALL test.nothing()") == [(1,)]


def expect_well(cluster: Cluster) -> None:
    """Nobody is held, and nobody was put out meanwhile."""
    assert wait_until(
        lambda: not any(part.illness() for part in (*cluster.storage.values(), *cluster.memory.values())), DEADLINE_S
    )
    if BY_NAME[cluster.profile].pages_are_written:
        assert wait_until(lambda: set(cluster.nodes_in_sync() or ()) == set(cluster.storage), DEADLINE_S)
    assert [trouble_of(server) for server in cluster.computes.values() if server.pid()] == [""] * len(cluster.serving_computes())


def restored_from(backup: Path, to: str, before: dict[int, set[int]], profile: str = PROFILE) -> Cluster:
    answer = done("restore", backup, "--to", FOLDER / to)
    assert answer["tables"] >= 3 and len(answer["storage_nodes"]) == 3
    assert answer["servers"] == ["compute-1", "compute-2", "compute-3"]
    restored = Cluster(FOLDER / to)
    assert not restored.running(), "a restore leaves nothing running"
    restored.start(profile)
    for server in restored.computes.values():
        expect_whole(server, before)
    return restored


@pytest.mark.parametrize("profile", OF_SEVERAL_WRITERS)
def test_what_is_restored_is_one_moment_of_all_servers(profile: str) -> None:
    cluster, servers = start(profile)
    prepared = servers[1].connect()
    with prepared.cursor() as cursor:
        for statement in ("XA START 'kept'", "INSERT INTO test.done VALUES (9, 1, 'kept')", "XA END 'kept'", "XA PREPARE 'kept'"):
            cursor.execute(statement)
    load = loaded(servers)
    moments = []
    for name in ("first", "second"):
        before = acknowledged(load)
        made = done("backup", FOLDER / name, "--data", cluster.data)
        print(f"{name}: {made}")
        assert made["servers"] == list(cluster.computes) and 0 < made["servers_held_s"] < 1.5
        moments.append(before)
        expect_progress(load)
    expect_well(cluster)
    everything = end(load)
    expect_whole(servers[2], everything)
    assert cluster.stop()

    for name, before in zip(("first", "second"), moments, strict=True):
        restored = restored_from(FOLDER / name, f"restored-{name}", before, profile)
        one, two, three = restored.computes.values()
        # Whose it was can end it, in the place that it had.
        assert one.query("XA RECOVER") == []
        assert two.query("XA RECOVER") == [(1, 4, 0, b"kept")]
        execute(two, "XA COMMIT 'kept'")
        assert three.query("SELECT note FROM test.done WHERE server = 9") == [("kept",)]
        execute(one, "DELETE FROM test.done WHERE server = 9")
        # It is a whole cluster: all write, and it loses a storage node and the memory node, and nothing else.
        before_writes = len(two.query("SELECT 1 FROM test.done"))
        again = loaded_from(restored)
        restored.kill_part(made["node"])
        expect_progress(again)
        restored.kill_part("memory-1")
        restored.start_part("memory-1")
        expect_progress(again)
        new = end(again)
        for server in (one, two, three):
            expect_whole(server, new)
        assert len(one.query("SELECT 1 FROM test.done")) >= before_writes + sum(map(len, new.values()))
        restored.kill()
        restored.wipe()


def loaded_from(cluster: Cluster) -> list[Load]:
    """With numbers of their own."""
    seed = random.randrange(1 << 32)
    load = [Load(server, 100 + number, seed) for number, server in enumerate(cluster.computes.values())]
    for one in load:
        one.start()
    expect_progress(load)
    return load


def test_a_backup_that_is_killed_leaves_nobody_held() -> None:
    cluster, servers = start()
    load = loaded(servers)
    command = [str(paths.ROOT / "strata"), "backup", str(FOLDER / "backup"), "--data", str(cluster.data)]
    held = {name: part.pid() for name, part in {**cluster.storage, **cluster.computes}.items()}

    def stopped(names: list[str]) -> bool:
        return any(state_of(pid) == STOPPED for name, pid in held.items() if pid is not None and name in names)

    def kill_when(moment: Callable[[], bool]) -> None:
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(lambda: moment() or process.poll() is not None, DEADLINE_S, every_s=0.001)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was quicker"
        assert wait_until(lambda: not stopped(list(held)), DEADLINE_S), "somebody stays held"
        assert "was not finished" in refused("restore", FOLDER / "backup", "--to", FOLDER / "restored")
        shutil.rmtree(FOLDER / "backup")
        expect_progress(load)

    for _ in range(3):
        kill_when(lambda: stopped(list(cluster.computes)))
    kill_when(lambda: stopped(list(cluster.storage)))
    expect_well(cluster)
    assert done("backup", FOLDER / "backup", "--data", cluster.data)["files"] > 0
    expect_whole(servers[0], end(load))


@pytest.mark.parametrize("wait_s", [0.0, 1.5, 2.5], ids=["just now", "is put out", "is taken over"])
def test_a_server_that_was_killed_before_the_backup_is_in_it(wait_s: float) -> None:
    cluster, servers = start()
    load = loaded(servers)
    before = acknowledged(load)
    servers[2].kill()
    threading.Event().wait(wait_s)
    made = done("backup", FOLDER / "backup", "--data", cluster.data)
    print(made)
    assert wait_until(lambda: not load[2].is_alive(), DEADLINE_S)
    before[3] |= set(load[2].acknowledged)  # All of it was before.
    expect_progress(load[:2])
    end(load[:2])
    cluster.start(PROFILE)
    expect_whole(servers[2], acknowledged(load))
    expect_well(cluster)
    assert cluster.stop()
    restored = restored_from(FOLDER / "backup", "restored", before)
    end(loaded_from(restored))


def test_what_cannot_be_is_refused_and_leaves_nothing() -> None:
    cluster, servers = start()
    for server in servers[:2]:
        execute(server, f"CREATE TABLE test.here_{server.name.replace('-', '_')} (a INT) ENGINE=MyISAM")
    said = refused("backup", FOLDER / "backup", "--data", cluster.data)
    assert "test.here_compute_1" in said and "test.here_compute_2" in said and "--lose-local-tables" in said
    cluster.kill_part("memory-1")
    said = refused("backup", FOLDER / "backup", "--data", cluster.data, "--lose-local-tables")
    assert "memory-1 is not well" in said
    assert not (FOLDER / "backup").exists()
    cluster.start_part("memory-1")
    assert wait_until(lambda: not any(trouble_of(server) for server in servers), DEADLINE_S)
    done("backup", FOLDER / "backup", "--data", cluster.data, "--lose-local-tables")
    assert cluster.stop()

    largest = max((path for path in (FOLDER / "backup" / "node").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    with largest.open("r+b") as damaged:
        damaged.seek(largest.stat().st_size // 2)
        byte = damaged.read(1)
        damaged.seek(-1, os.SEEK_CUR)
        damaged.write(bytes([byte[0] ^ 1]))
    assert f"{largest} is damaged" in refused("restore", FOLDER / "backup", "--to", FOLDER / "restored").replace("- ", "-")
    assert not (FOLDER / "restored").exists() and not (FOLDER / ".restored.restoring").exists()
