"""Several MariaDB servers write the same tables (profile fusion and its like). What one has committed
another sees at once, no update is lost, a server that is killed comes back with all it had acknowledged, and one can be added.
Tables that one makes, changes, renames and drops are so for all; who is killed in the middle of a change keeps others waiting
until it is back, and no longer.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from fusion_cluster import DEADLINE_S, PROFILES, Several, several_in
from pausing import pause
from strata_cli import paths
from strata_cli.server import Server
from strata_cli.several_health import tells_of_its_lease
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion"
ACCOUNTS = 30
BALANCE = 1000


@pytest.fixture(params=PROFILES)
def several(request: pytest.FixtureRequest) -> Iterator[Several]:
    with several_in(FOLDER, profile=request.param) as made:
        yield made


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


def writes(server: Server) -> bool:
    try:
        execute(server, "UPDATE test.counter SET n = n + 1 WHERE id = 1")
    except pymysql.MySQLError:
        return False
    return True


def run_for(work: list[Transfers], each: int) -> None:
    for transfers in work:
        transfers.start()
    done = wait_until(lambda: all(len(t.acknowledged) >= each or not t.is_alive() for t in work), DEADLINE_S)
    for transfers in work:
        transfers.stop_wanted.set()
        transfers.join()
    assert [t.failure for t in work] == [""] * len(work)
    assert done, [len(t.acknowledged) for t in work]


def expect_time_between_servers(server: Server) -> None:
    """It says what it waited for, and what others waited for that it had."""
    said = {name: int(value) for name, value in server.query("SHOW GLOBAL STATUS LIKE 'Strata_fusion_%'")}
    zero = {name for name, value in said.items() if value == 0 and name != "Strata_fusion_pages_from_storage"}
    assert len(said) == 11 and not zero, said


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
        expect_time_between_servers(server)
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


def test_a_commit_that_was_acknowledged_before_it_is_durable_is_there_for_the_others(several: Several) -> None:
    """Whoever reads what is committed now, or wants the row without waiting, finds it free and newest (READ COMMITTED looks at
    rows before it locks them)."""
    one, two = several.add(), several.add()
    make_tables(one)
    execute(two, "CREATE DATABASE IF NOT EXISTS test")
    for server in (one, two):
        execute(server, "SET GLOBAL strata_flush_log_at_commit = 0")
    with two.connect(autocommit=True, database="test") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        for number in range(1, 21):
            execute(one, f"UPDATE test.counter SET n = {number} WHERE id = 1")
            assert cursor.execute(f"UPDATE counter SET n = n + 100 WHERE n = {number} ORDER BY id") == 1
            execute(one, f"INSERT INTO test.done VALUES (7, {number})")
            assert cursor.execute(f"DELETE FROM done WHERE n = {number} ORDER BY n") == 1
            execute(one, f"UPDATE test.counter SET n = {number} WHERE id = 1")
            cursor.execute("SELECT n FROM counter WHERE id = 1 FOR UPDATE NOWAIT")
            assert cursor.fetchall() == ((number,),)
            execute(one, f"UPDATE test.counter SET n = {number} WHERE id = 1")
            cursor.execute("SELECT n FROM counter FOR UPDATE SKIP LOCKED")
            assert cursor.fetchall() == ((number,),)


# --- definitions of tables ----------------------------------------------------------------------------------------------------


def missing(server: Server, table: str) -> bool:
    try:
        server.query(f"SELECT * FROM {table}")
    except pymysql.err.ProgrammingError as error:
        assert error.args[0] == 1146, error
        return True
    return False


def rows(server: Server, table: str) -> list[tuple[Any, ...]]:
    return server.query(f"SELECT * FROM {table} ORDER BY 1")


def test_what_one_makes_of_tables_the_others_see_at_once(several: Several) -> None:
    one, two = several.add(), several.add()
    both = (one, two)
    for server in both:
        execute(server, "CREATE DATABASE IF NOT EXISTS test")
        assert missing(server, "test.t")
    execute(one, "CREATE TABLE test.t (id INT PRIMARY KEY, v INT) ENGINE=STRATA", "INSERT INTO test.t VALUES (1, 1)")
    execute(two, "INSERT INTO test.t VALUES (2, 2)")
    assert two.query("SHOW TABLES FROM test") == [("t",)]
    assert [rows(server, "test.t") for server in both] == [[(1, 1), (2, 2)]] * 2
    # Back and forth: who changes the definition has used the table just now, as has the other one.
    for changer, other in (both, both[::-1]):
        execute(changer, "ALTER TABLE test.t ADD COLUMN w INT DEFAULT 7")
        assert rows(other, "test.t") == [(1, 1, 7), (2, 2, 7)]
        execute(other, "INSERT INTO test.t VALUES (3, 3, 3)", "CREATE INDEX of_v ON test.t (v)")
        assert changer.query("SELECT id FROM test.t FORCE INDEX (of_v) WHERE v = 3") == [(3,)]
        execute(changer, "DELETE FROM test.t WHERE id = 3", "ALTER TABLE test.t DROP INDEX of_v")
        execute(other, "ALTER TABLE test.t DROP COLUMN w")
        assert [rows(server, "test.t") for server in both] == [[(1, 1), (2, 2)]] * 2
    execute(two, "TRUNCATE TABLE test.t")
    assert rows(one, "test.t") == []
    execute(one, "INSERT INTO test.t VALUES (5, 5)", "RENAME TABLE test.t TO test.u")
    assert missing(two, "test.t")
    assert rows(two, "test.u") == [(5, 5)]
    execute(two, "DROP TABLE test.u", "CREATE TABLE test.u (name VARCHAR(20) PRIMARY KEY, d DATE) ENGINE=STRATA")
    execute(one, "INSERT INTO test.u (name) VALUES ('a')")
    execute(two, "INSERT INTO test.u (name) VALUES ('b')")
    three = several.add()
    for server in (*both, three):
        assert rows(server, "test.u") == [("a", None), ("b", None)]
        assert server.query("CHECK TABLE test.u")[-1][3] == "OK"
    execute(three, "DROP TABLE test.u")
    for server in both:
        assert missing(server, "test.u")
    assert three.stop() and two.stop() and one.stop()


def test_tables_are_made_and_dropped_on_all_servers_at_once(several: Several) -> None:
    servers = [several.add() for _ in range(3)]
    for server in servers:
        execute(server, "CREATE DATABASE IF NOT EXISTS test")
    failures: list[str] = []

    def make_and_drop(server: Server, number: int) -> None:
        """Tables of its own, which the others look at meanwhile."""
        try:
            for n in range(12):
                name = f"test.t{number}_{n}"
                execute(
                    server,
                    f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT) ENGINE=STRATA",
                    f"INSERT INTO {name} VALUES (1, {n})",
                )
                for other in servers:
                    if (found := rows(other, name)) != [(1, n)]:
                        failures.append(f"{other.data.name} reads {found} in {name}")
                execute(servers[(number + n) % len(servers)], f"DROP TABLE {name}")
        except pymysql.MySQLError as error:
            failures.append(f"{server.data.name}: {error}")

    work = [threading.Thread(target=make_and_drop, args=(server, number)) for number, server in enumerate(servers)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert failures == []
    for server in servers:
        for number in range(len(servers)):
            assert all(missing(server, f"test.t{number}_{n}") for n in range(12))


class Statement(threading.Thread):
    """Runs in the background, to whatever end."""

    def __init__(self, server: Server, sql: str) -> None:
        super().__init__(daemon=True)
        self._server, self._sql = server, sql
        self.found: list[tuple[Any, ...]] = []
        self.failure = ""
        self.start()

    def run(self) -> None:
        try:
            self.found = self._server.query(self._sql, read_timeout=DEADLINE_S)
        except pymysql.MySQLError as error:
            self.failure = str(error)


def test_what_a_killed_server_was_changing_waits_until_it_is_back(several: Several) -> None:
    one, two = several.add(), several.add()
    size = 60_000
    execute(
        one,
        "CREATE DATABASE IF NOT EXISTS test",
        "CREATE TABLE test.t (id INT PRIMARY KEY, v INT) ENGINE=STRATA",
        f"INSERT INTO test.t SELECT seq, seq * 7919 % 100003 FROM test.seq_1_to_{size}",
    )
    execute(two, "CREATE DATABASE IF NOT EXISTS test")
    began = time.monotonic()
    execute(one, "CREATE INDEX of_v ON test.t (v)", "DROP INDEX of_v ON test.t")
    takes_s = time.monotonic() - began
    waited = False
    for attempt in range(8):  # the moment is a guess: whoever came too early or too late waits for nothing
        assert two.query("SELECT COUNT(*) FROM test.t") == [(size,)]
        change = Statement(one, "CREATE INDEX of_v ON test.t (v)")
        time.sleep(takes_s * (2 + attempt) / 10)
        one.kill()
        change.join()
        reader = Statement(two, "SELECT COUNT(*) FROM test.t")
        reader.join(0.2)  # It takes far less if it waits for nothing, and the other server needs half a second to take over.
        waited = reader.is_alive()
        several.start(one)
        reader.join()
        assert (reader.found, reader.failure) == ([(size,)], "")
        for server in (one, two):
            assert server.query("CHECK TABLE test.t")[-1][3] == "OK"
        execute(two, "ALTER TABLE test.t ADD COLUMN w INT DEFAULT 9")
        assert one.query("SELECT w FROM test.t WHERE id = 1") == [(9,)]
        execute(one, "ALTER TABLE test.t DROP COLUMN w, DROP INDEX IF EXISTS of_v")
        if waited:
            break
    assert waited, "it was never killed in the middle of a change"


# --- storage is away ---


def test_servers_go_on_by_themselves_once_storage_is_back(several: Several) -> None:
    """Without a write quorum the memory node cannot tell whether it still serves, and gives no leases. Nobody is fenced for that:
    the same processes go on, and nothing that they acknowledged is lost."""
    servers = [several.add() for _ in range(2)]
    make_tables(servers[0])
    pids = [server.pid() for server in servers]
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    done: list[Transfers] = []
    for away_s in (4.0, 9.0):
        work = [Transfers(server, len(done) + i, seed) for i, server in enumerate(servers, 1)]
        done += work
        for transfers in work:
            transfers.start()
        assert wait_until(lambda work=work: all(len(t.acknowledged) > 3 for t in work), DEADLINE_S)  # type: ignore[misc]
        for node in several.storage[:2]:
            node.kill()
        time.sleep(away_s)
        for node in several.storage[:2]:
            node.launch()
        for node in several.storage[:2]:
            node.wait_ready()
        for server in servers:
            assert wait_until(lambda server=server: writes(server), DEADLINE_S), server.log_tail()  # type: ignore[misc]
        for transfers in work:
            transfers.stop_wanted.set()
            transfers.join()
    assert [server.pid() for server in servers] == pids
    for server in servers:
        expect_whole(server, done)


# --- the memory node's pool is small -------------------------------------------------------------------------------------------

ROW_BYTES = 1_500
ROWS_AT_ONCE = 60  # some seven pages


class Fillers(threading.Thread):
    """Inserts long rows on one server, each statement a transaction of its own, until told to stop."""

    def __init__(self, server: Server, number: int) -> None:
        super().__init__(daemon=True)
        self._server, self.number = server, number
        self.stop_wanted = threading.Event()
        self.acknowledged: list[int] = []
        self.errors: list[str] = []

    def run(self) -> None:
        connection = self._server.connect(read_timeout=DEADLINE_S)
        batch = 0
        while not self.stop_wanted.is_set():
            batch += 1
            first = batch * ROWS_AT_ONCE
            try:
                with connection.cursor() as cursor:
                    cursor.execute(
                        f"INSERT INTO test.fat SELECT {self.number}, {first} + seq, REPEAT('f', {ROW_BYTES})"
                        f" FROM test.seq_1_to_{ROWS_AT_ONCE}"
                    )
                connection.commit()
                self.acknowledged.append(first)
            except pymysql.MySQLError as error:
                self.errors.append(str(error))
                if self.stop_wanted.wait(0.05):
                    break
                with contextlib.suppress(pymysql.MySQLError):
                    connection.close()
                    connection = self._server.connect(read_timeout=DEADLINE_S)


def fill_on(servers: list[Server], first: int) -> list[Fillers]:
    fillers = [Fillers(server, first + i) for i, server in enumerate(servers * 2)]
    for filler in fillers:
        filler.start()
    return fillers


def go_on(fillers: list[Fillers], each: int) -> None:
    before = [len(filler.acknowledged) for filler in fillers]
    goal = [count + each for count in before]
    reached = wait_until(lambda: all(len(f.acknowledged) >= n for f, n in zip(fillers, goal, strict=True)), 3 * DEADLINE_S)
    assert reached, [(before[i], len(f.acknowledged), f.errors[-1:]) for i, f in enumerate(fillers)]


def stop_filling(fillers: list[Fillers]) -> None:
    for filler in fillers:
        filler.stop_wanted.set()
    for filler in fillers:
        filler.join(DEADLINE_S)
        assert not filler.is_alive()


def expect_filled(servers: list[Server], fillers: list[Fillers]) -> None:
    for server in servers:
        for filler in fillers:
            rows = server.query(f"SELECT n DIV {ROWS_AT_ONCE}, COUNT(*) FROM test.fat WHERE id = {filler.number} GROUP BY 1")
            found = dict(rows)
            for first in filler.acknowledged:
                inside = found.get(first // ROWS_AT_ONCE, 0)
                assert inside >= ROWS_AT_ONCE - 1, f"{server.data.name} lacks rows from {first} on of {filler.number}"
        assert server.query("CHECK TABLE test.fat")[-1][3] == "OK"


@pytest.fixture(params=PROFILES)
def cramped(request: pytest.FixtureRequest) -> Iterator[Several]:
    """A pool of 64 pages for three servers, whose own memory has room for 512 each."""
    options = ("--strata-buffer-pool-size=8M",)
    with several_in(FOLDER, slots=64, server_options=options, profile=request.param) as made:
        yield made


def test_writers_wait_for_room_in_the_pool(cramped: Several) -> None:
    """Nobody is refused because the pool is full: who writes waits until storage has taken some pages. Without storage for a
    while they wait, or hear why they cannot go on; nothing that was acknowledged is lost."""
    servers = [cramped.add() for _ in range(3)]
    execute(
        servers[0],
        "CREATE DATABASE IF NOT EXISTS test",
        "CREATE TABLE test.fat (id INT, n INT, b VARCHAR(2000), PRIMARY KEY (id, n)) ENGINE=STRATA",
    )
    first = fill_on(servers, 1)
    go_on(first, 25)  # 3,000 pages and more
    # Away for less than a lease.
    for _ in range(3):
        pids = [pid for node in cramped.storage[:2] if (pid := node.pid()) is not None]
        for pid in pids:
            pause(pid)
        time.sleep(1.0)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        go_on(first, 3)
    stop_filling(first)
    refused = [error for filler in first for error in filler.errors if not tells_of_its_lease(error)]
    assert refused == []
    expect_filled(servers, first)
    # Away for longer than anybody waits.
    second = fill_on(servers, 11)
    go_on(second, 2)
    for node in cramped.storage[:2]:
        node.kill()
    time.sleep(12.0)
    cramped.launch_storage(cramped.storage[:2])
    for node in cramped.storage[:2]:
        node.wait_ready()
    go_on(second, 5)
    stop_filling(second)
    expect_filled(servers, first + second)


# --- the memory node is lost ---------------------------------------------------------------------------------------------------


def test_nothing_is_lost_with_the_memory_node(several: Several) -> None:
    """What it had in memory only is redone from the servers' logs before anybody is served again: with it killed first and the
    servers after it, and with everything killed at once."""
    one, two, three = servers = [several.add() for _ in range(3)]
    make_tables(one)
    for server in (two, three):
        execute(server, "CREATE DATABASE IF NOT EXISTS test")
    execute(two, "CREATE TABLE test.big (id INT PRIMARY KEY, b VARCHAR(2000)) ENGINE=STRATA")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    done: list[Transfers] = []
    for round_number in range(3):
        work = [Transfers(server, 10 * round_number + i, seed) for i, server in enumerate(servers, 1)]
        done += work
        undecided = three.connect(read_timeout=60)
        with undecided.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE test.counter SET n = n + 1000 WHERE id = 1")
        # A table that goes in the middle: the logs still speak of it.
        execute(two, "CREATE TABLE test.gone (id INT PRIMARY KEY, n INT) ENGINE=STRATA")
        execute(one, "INSERT INTO test.gone SELECT seq, seq FROM test.seq_1_to_500")
        first = 1000 * round_number
        execute(three, f"INSERT INTO test.big SELECT {first} + seq, REPEAT('b', 1500) FROM test.seq_1_to_900")
        for transfers in work:
            transfers.start()
        assert wait_until(lambda work=work: all(len(t.acknowledged) > 30 or not t.is_alive() for t in work), DEADLINE_S)  # type: ignore[misc]
        execute(one, "DROP TABLE test.gone")
        several.memory.kill()
        for server in servers:
            server.kill()
        if round_number == 1:
            for node in several.storage:
                node.kill()
        for transfers in work:
            transfers.join()
        if round_number == 1:
            for node in several.storage:
                node.launch()
            for node in several.storage:
                node.wait_ready()
        several.memory.launch()
        several.memory.wait_ready()
        assert wait_until(lambda: several.memory.illness() is None, DEADLINE_S), several.memory.log_tail()
        order = list(servers)
        random.Random(seed + round_number).shuffle(order)
        for server in order:
            several.start(server)
        for server in servers:
            expect_whole(server, done)
            assert server.query("SELECT COUNT(*), SUM(LENGTH(b)) FROM test.big") == [
                (900 * (round_number + 1), 1500 * 900 * (round_number + 1))
            ]
            assert server.query("CHECK TABLE test.big")[-1][3] == "OK"
            assert missing(server, "test.gone")
        # What was not committed is undone, and its locks are free.
        execute(one, "UPDATE test.counter SET n = n + 1 WHERE id = 1")
        assert two.query("SELECT n FROM test.counter WHERE id = 1") == [(round_number + 1,)]
    again = [Transfers(server, number, seed) for number, server in enumerate(servers, 91)]
    run_for(again, 20)
    for server in servers:
        expect_whole(server, done + again)
