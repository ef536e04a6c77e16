"""Several MariaDB servers write the same tables (profile fusion, still being built: no command starts it). What one has committed
another sees at once, no update is lost, a server that is killed comes back with all it had acknowledged, and one can be added.

Tables are made before the other servers start: what a server makes of them later others do not see yet.
"""

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from strata_cli import paths
from strata_cli.cluster import CLUSTER_NAME, ensure_secret, free_ports
from strata_cli.etcd_server import Etcd
from strata_cli.memory_node import MemoryNode, MemorySettings
from strata_cli.process import BackgroundProcess
from strata_cli.server import Server, Settings, choose_port
from strata_cli.storage_node import NodeSettings, StorageNode
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion"
PROFILE = "fusion"
STORAGE = ("s1", "s2", "s3")
DEADLINE_S = 120.0
ACCOUNTS = 30
BALANCE = 1000


class SharingMemoryNode(MemoryNode):
    def flags(self) -> list[str]:
        return [*super().flags(), "--fusion-slots", "2048"]


class Several:
    """A cluster whose servers are started one by one."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.secret = folder / "secret"
        ensure_secret(self.secret)
        ports = free_ports(self.folder, 9)
        self.etcd = Etcd(self.folder / "etcd")
        self.etcd.start(ports[0])
        self.registry = self.etcd.endpoint()
        release = paths.preset_dir("release") / "cmd"
        self.storage = [
            StorageNode(
                name,
                self.folder / name,
                NodeSettings(ports[1 + 2 * i], ports[2 + 2 * i], self.registry, CLUSTER_NAME, self.secret, PROFILE, STORAGE, 2),
                [release / "strata-storenode" / "strata-storenode"],
            )
            for i, name in enumerate(STORAGE)
        ]
        memory = MemorySettings(ports[7], ports[8], "128M", self.folder / "pools", self.registry, CLUSTER_NAME, self.secret)
        self.memory = SharingMemoryNode(
            "memory-1", self.folder / "memory-1", memory, [release / "strata-memnode" / "strata-memnode"]
        )
        nodes = [*self.storage, self.memory]
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_ready()
        assert wait_until(lambda: self.memory.illness() is None, DEADLINE_S), self.memory.log_tail()
        self.servers: list[Server] = []

    def add(self) -> Server:
        name = f"compute-{len(self.servers) + 1}"
        server = Server(self.folder / name)
        self.servers.append(server)
        self.start(server)
        return server

    def start(self, server: Server) -> None:
        options = {
            "profile": PROFILE,
            "registry": self.registry,
            "cluster": CLUSTER_NAME,
            "node-name": server.data.name,
            "secret-file": self.secret,
            "buffer-pool-size": "32M",
            "lease-seconds": 5,
        }
        given = [f"--strata-{name}={value}" for name, value in options.items()]
        server.start(Settings(profile=PROFILE, port=choose_port(None, 23640), options=given))
        assert server.has_strata(), server.log_tail()

    def kill(self) -> None:
        parts: list[BackgroundProcess] = [*self.servers, self.memory, *self.storage, self.etcd]
        for part in parts:
            part.kill()


@pytest.fixture
def several() -> Iterator[Several]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    made = Several()
    yield made
    made.kill()
    shutil.rmtree(FOLDER, ignore_errors=True)


def execute(server: Server, *statements: str) -> None:
    for statement in statements:
        server.query(statement, autocommit=True)


class Transfers(threading.Thread):
    """Moves money on one server until told to stop; counts what was acknowledged, notes each in a table of its own."""

    def __init__(self, server: Server, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self.number = server, number
        self._rng = random.Random(f"{seed} {number}")
        self.stop_wanted = threading.Event()
        self.acknowledged: list[int] = []
        self.retried = 0
        self.failure = ""

    def run(self) -> None:
        number = 0
        try:
            connection = self._server.connect(read_timeout=60)
            while not self.stop_wanted.is_set():
                number += 1
                try:
                    self._one(connection, number)
                    self.acknowledged.append(number)
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in (1205, 1213):
                        raise
                    connection.rollback()
                    self.retried += 1
        except pymysql.MySQLError as error:
            self.failure = str(error)

    def _one(self, connection: "pymysql.connections.Connection[Any]", number: int) -> None:
        giver, taker = self._rng.sample(range(ACCOUNTS), 2)
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE test.account SET amount = amount - 3 WHERE id = %s", (giver,))
            cursor.execute("UPDATE test.account SET amount = amount + 3 WHERE id = %s", (taker,))
            cursor.execute("INSERT INTO test.done VALUES (%s, %s)", (self.number, number))
            cursor.execute("COMMIT")


def make_tables(server: Server) -> None:
    rows = ", ".join(f"({i}, {BALANCE})" for i in range(ACCOUNTS))
    execute(
        server,
        "CREATE DATABASE IF NOT EXISTS test",
        "CREATE TABLE test.account (id INT PRIMARY KEY, amount INT NOT NULL) ENGINE=STRATA",
        "CREATE TABLE test.done (server INT, n INT, PRIMARY KEY (server, n)) ENGINE=STRATA",
        "CREATE TABLE test.counter (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=STRATA",
        f"INSERT INTO test.account VALUES {rows}",
        "INSERT INTO test.counter VALUES (1, 0)",
    )


def expect_whole(server: Server, work: list[Transfers]) -> None:
    assert server.query("SELECT COUNT(*), SUM(amount) FROM test.account") == [(ACCOUNTS, ACCOUNTS * BALANCE)]
    for transfers in work:
        found = {row[0] for row in server.query(f"SELECT n FROM test.done WHERE server = {transfers.number}")}
        assert set(transfers.acknowledged) <= found, "an acknowledged commit is missing"
    for table in ("account", "done", "counter"):
        assert server.query(f"CHECK TABLE test.{table}")[-1][3] == "OK"


def run_for(work: list[Transfers], each: int) -> None:
    for transfers in work:
        transfers.start()
    done = wait_until(lambda: all(len(t.acknowledged) >= each or not t.is_alive() for t in work), DEADLINE_S)
    for transfers in work:
        transfers.stop_wanted.set()
        transfers.join()
    assert [t.failure for t in work] == [""] * len(work)
    assert done, [len(t.acknowledged) for t in work]


def test_servers_write_the_same_tables(several: Several) -> None:
    one = several.add()
    make_tables(one)
    two = several.add()
    # What one has committed the other sees at once, strictly.
    for number in range(1, 41):
        writer, reader = (one, two) if number % 2 else (two, one)
        execute(writer, "UPDATE test.counter SET n = n + 1 WHERE id = 1")
        assert reader.query("SELECT n FROM test.counter WHERE id = 1") == [(number,)]
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    work = [Transfers(server, number, seed) for number, server in enumerate((one, two, one, two), 1)]
    run_for(work, 50)
    for server in (one, two):
        expect_whole(server, work)
    # One more, which has never been there.
    three = several.add()
    expect_whole(three, work)
    more = [Transfers(server, number, seed) for number, server in enumerate((one, two, three), 11)]
    run_for(more, 30)
    for server in (one, two, three):
        expect_whole(server, work + more)
    assert three.stop() and two.stop() and one.stop()
    # All down, then one of them.
    several.start(two)
    expect_whole(two, work + more)


def test_a_server_that_is_killed_comes_back_with_all_it_had(several: Several) -> None:
    one = several.add()
    make_tables(one)
    two = several.add()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    work = [Transfers(server, number, seed) for number, server in enumerate((one, two, two), 1)]
    for transfers in work:
        transfers.start()
    assert wait_until(lambda: all(len(t.acknowledged) > 40 or not t.is_alive() for t in work), DEADLINE_S)
    two.kill()
    for transfers in work[1:]:
        transfers.join()
    several.start(two)
    before = len(work[0].acknowledged)
    assert wait_until(lambda: len(work[0].acknowledged) > before + 20 or not work[0].is_alive(), DEADLINE_S)
    work[0].stop_wanted.set()
    work[0].join()
    assert work[0].failure == ""
    for server in (one, two):
        expect_whole(server, work)
    again = [Transfers(server, number, seed) for number, server in enumerate((one, two), 11)]
    run_for(again, 20)
    for server in (two, one):
        expect_whole(server, work + again)
