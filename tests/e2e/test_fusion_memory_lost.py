"""The memory node that several servers share is lost: killed, alone or with a server, again while it comes back, or stopped for
so long that a spare one takes over. The servers and their connections stay; statements wait, go on, and lose nothing."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from fusion_clients import Behind, Client
from fusion_cluster import DEADLINE_S, PROFILES, Several, several_in
from pausing import pause
from strata_cli import paths
from strata_cli.server import Server
from strata_cli.waiting import wait_until
from test_fusion import Transfers, execute, expect_whole, make_tables

FOLDER = paths.BUILD / "e2e" / "fusion-memory-lost"
GO_ON_S = 80.0  # Generous, for busy machines; what it takes is printed. Of a spare the registry's lease of 10 s comes first.


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def several(request: pytest.FixtureRequest, profile: str) -> Iterator[Several]:
    with several_in(FOLDER, spare=getattr(request, "param", False), profile=profile) as made:
        yield made


def started(several: Several) -> list[Server]:
    servers = [several.add()]
    make_tables(servers[0])
    servers += [several.add(), several.add()]
    return servers


class Work:
    """Transfers on some servers, each over one connection, and a transaction that was begun before on the first of them."""

    def __init__(self, servers: list[Server], first: int) -> None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        self.transfers = [Transfers(server, first + i, seed) for i, server in enumerate(servers)]
        self._open = servers[0].connect(read_timeout=120)
        with self._open.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE test.counter SET n = n + 1 WHERE id = 1")
        for transfers in self.transfers:
            transfers.start()
        self.expect_progress()

    def expect_progress(self) -> float:
        """All go on; how long it took."""
        began = time.monotonic()
        before = [len(t.acknowledged) for t in self.transfers]

        def all_went_on() -> bool:
            return all(len(t.acknowledged) > n + 5 or not t.is_alive() for t, n in zip(self.transfers, before, strict=True))

        assert wait_until(all_went_on, DEADLINE_S), [t.failure for t in self.transfers]
        assert [t.failure for t in self.transfers] == [""] * len(self.transfers)
        return time.monotonic() - began

    def end(self) -> None:
        for transfers in self.transfers:
            transfers.stop_wanted.set()
            transfers.join()
        assert [t.failure for t in self.transfers] == [""] * len(self.transfers)
        with self._open.cursor() as cursor:
            cursor.execute("UPDATE test.counter SET n = n + 10 WHERE id = 1")
        self._open.commit()
        self._open.close()


def lose(several: Several, servers: list[Server], first: int, strike: Callable[[], None]) -> Work:
    work = Work(servers, first)
    strike()
    seconds = work.expect_progress()
    print(f"all go on {seconds:.2f} s after it is there again")
    assert seconds < GO_ON_S
    work.end()
    return work


def relaunch(several: Several) -> None:
    several.memory.kill()
    several.memory.launch()


def test_servers_outlive_their_memory_node(several: Several) -> None:
    servers = started(several)
    pids = [server.pid() for server in servers]
    done: list[Transfers] = []
    for number in range(3):
        done += lose(several, servers, 10 * number + 1, lambda: relaunch(several)).transfers
        for server in servers:
            expect_whole(server, done)
            assert server.query("SELECT n FROM test.counter") == [(11 * (number + 1),)]
    assert [server.pid() for server in servers] == pids
    execute(servers[1], "CREATE TABLE test.later (id INT PRIMARY KEY) ENGINE=STRATA", "INSERT INTO test.later VALUES (1)")
    assert servers[2].query("SELECT id FROM test.later") == [(1,)]
    assert wait_until(lambda: several.memory.illness() is None, DEADLINE_S), several.memory.log_tail()
    for server in servers:
        assert server.stop()


def test_so_do_locks_of_statements(several: Several) -> None:
    """Who has them keeps them; those who wait go on waiting, and have them in the end."""
    servers = started(several)
    servers[0].query("CREATE DATABASE IF NOT EXISTS test", autocommit=True)
    connections: list[Client] = []

    def client(number: int) -> Client:
        connections.append(Client(servers[number]))
        connections[-1].run("SET lock_wait_timeout = 300", "SET strata_lock_wait_timeout = 300")
        return connections[-1]

    one, two, three = client(0), client(1), client(2)
    for table in ("t", "u"):
        one.run(f"CREATE TABLE {table} (a INT PRIMARY KEY, b INT) ENGINE=STRATA", f"INSERT INTO {table} VALUES (1, 0)")
    one.run("LOCK TABLES t WRITE, u READ")
    two.run("LOCK TABLES u READ")
    reading, writing = Behind(client(2), "SELECT b FROM t"), Behind(three, "UPDATE u SET b = 1")
    assert reading.is_waiting() and writing.is_waiting()
    relaunch(several)
    one.run("UPDATE t SET b = 7")
    assert two.run("SELECT b FROM u") == [(0,)]
    assert reading.is_waiting() and writing.is_waiting()
    one.run("UNLOCK TABLES")
    assert reading.ended() == [(7,)]
    assert writing.is_waiting()
    two.run("UNLOCK TABLES")
    writing.ended()
    one.run("FLUSH TABLES WITH READ LOCK")
    writing, flushing = Behind(two, "UPDATE t SET b = 8"), Behind(three, "FLUSH TABLES WITH READ LOCK")
    assert writing.is_waiting() and flushing.is_waiting()
    relaunch(several)
    assert one.run("SELECT b FROM t") == [(7,)]
    time.sleep(5.0)  # Longer than whoever is told of the new memory node takes to say something wrong.
    assert writing.is_waiting() and flushing.is_waiting()
    one.run("UNLOCK TABLES")
    flushing.ended()
    three.run("UNLOCK TABLES")
    writing.ended()
    assert one.run("SELECT b FROM t") == [(8,)]
    for connection in connections:
        connection.close()


def test_so_they_do_if_it_dies_again_while_it_comes_back(several: Several) -> None:
    servers = started(several)

    def strike() -> None:
        relaunch(several)
        for _ in range(3):
            time.sleep(random.uniform(0.2, 4.0))
            relaunch(several)

    work = lose(several, servers, 1, strike)
    for server in servers:
        expect_whole(server, work.transfers)


def test_so_do_the_others_if_a_server_dies_with_it(several: Several) -> None:
    servers = started(several)
    survivors, victim = servers[:2], servers[2]
    dying = Transfers(victim, 9, 9)
    dying.start()

    def strike() -> None:
        assert wait_until(lambda: len(dying.acknowledged) > 5, DEADLINE_S), dying.failure
        several.memory.kill()
        victim.kill()
        several.memory.launch()

    work = lose(several, survivors, 1, strike)
    dying.join()
    assert dying.failure
    several.start(victim)
    for server in servers:
        expect_whole(server, [*work.transfers, dying])
        assert server.query("SELECT n FROM test.counter") == [(11,)]


@pytest.mark.parametrize("several", [True], indirect=True)
def test_a_memory_node_that_was_stopped_for_too_long_does_no_harm(several: Several) -> None:
    servers = started(several)
    pid = several.memory.pid()
    assert pid is not None

    def strike() -> None:
        pause(pid)

    try:
        work = lose(several, servers, 1, strike)
    finally:
        os.kill(pid, signal.SIGCONT)
    more = Work(servers, 11)
    more.expect_progress()
    more.end()
    for server in servers:
        expect_whole(server, work.transfers + more.transfers)
        assert server.query("SELECT n FROM test.counter") == [(22,)]
    # The one that was stopped has found out, and stands by.
    assert wait_until(lambda: several.memory.illness() is None, DEADLINE_S), several.memory.log_tail()
