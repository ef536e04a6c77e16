"""A server of several that write the same tables is killed in CREATE TABLE ... SELECT or CREATE SEQUENCE: what it has left is
whole or gone, on all servers, whoever recovers it; and what such a statement has finished no later kill takes away."""

import os
import random
import threading
import time
from collections.abc import Iterator

import pymysql
import pytest
from fusion_clients import INTERRUPTED, NO_SUCH_TABLE, Behind, Client, Rows, has_database
from fusion_cluster import DEADLINE_S, PROFILES, Several, several_in
from strata_cli import paths
from strata_cli.server import TEST_BINLOG, Server
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion-half-made"
KILLS = 6
PREPARES = os.environ.get(TEST_BINLOG) == "1"  # With a binary log transactions are prepared before they are committed.
ROWS = 4000
SELECTED = f"SELECT seq AS a, REPEAT('x', 100) AS b FROM seq_1_to_{ROWS}"
NO_SUCH_SEQUENCE, TABLE_EXISTS, DUPLICATE, NOT_LOCKED, UNKNOWN_TABLE = 4091, 1050, 1062, 1100, 1051
# What a table or a sequence is made by, again and again: in one step, or anew each time.
WORK = (
    (f"CREATE OR REPLACE TABLE t0 ENGINE=STRATA {SELECTED}",),
    (f"CREATE TABLE t1 (PRIMARY KEY (a)) ENGINE=STRATA {SELECTED}", "DROP TABLE t1"),
    ("CREATE OR REPLACE SEQUENCE q0 ENGINE=STRATA",),
    ("CREATE SEQUENCE q1 ENGINE=STRATA", "DROP SEQUENCE q1"),
)


@pytest.fixture(params=PROFILES)
def several(request: pytest.FixtureRequest) -> Iterator[Several]:
    with several_in(FOLDER, profile=request.param) as made:
        yield made


def servers_of(several: Several, count: int) -> list[Server]:
    several.add().query("CREATE DATABASE IF NOT EXISTS test", autocommit=True)
    servers = [several.servers[0], *(several.add() for _ in range(count - 1))]
    assert wait_until(lambda: all(has_database(server) for server in servers), DEADLINE_S)
    return servers


class Making(threading.Thread):
    """Runs its statements in turn until its server is gone."""

    def __init__(self, server: Server, statements: tuple[str, ...]) -> None:
        super().__init__(daemon=True)
        self._client, self._statements = Client(server), statements
        self.begun = 0
        self.start()

    def run(self) -> None:
        try:
            while True:
                for statement in self._statements:
                    self.begun += 1
                    try:
                        self._client.run(statement)
                    except pymysql.MySQLError as error:
                        if error.args[0] not in (TABLE_EXISTS, UNKNOWN_TABLE, NO_SUCH_SEQUENCE):
                            return
        finally:
            self._client.close()


def what_is_left(server: Server) -> list[str]:
    """Of each name: whole, gone, or what else."""
    client = Client(server)
    client.run("SET lock_wait_timeout = 100", "SET strata_lock_wait_timeout = 100")
    found = []
    for statement, whole in (
        ("SELECT COUNT(*), SUM(a) FROM t0", (ROWS, ROWS * (ROWS + 1) // 2)),
        ("SELECT COUNT(*), SUM(a) FROM t1", (ROWS, ROWS * (ROWS + 1) // 2)),
        ("SELECT NEXT VALUE FOR q0", None),
        ("SELECT NEXT VALUE FOR q1", None),
    ):
        try:
            rows = client.run(statement)
            found.append("whole" if whole is None or rows == [whole] else f"{statement}: {rows}")
        except pymysql.MySQLError as error:
            gone = error.args[0] in (NO_SUCH_TABLE, NO_SUCH_SEQUENCE)
            found.append("gone" if gone else f"{statement}: {error}")
    client.close()
    return found


def test_what_a_killed_server_was_making_is_whole_or_gone(several: Several) -> None:
    servers = servers_of(several, 3)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for kill in range(KILLS):
        victim = servers[rng.randrange(3)]
        survivors = [server for server in servers if server is not victim]
        makers = [Making(victim, statements) for statements in WORK]
        assert wait_until(lambda: all(maker.begun > 2 or not maker.is_alive() for maker in makers), DEADLINE_S)  # noqa: B023
        time.sleep(rng.random())
        waits = Behind(Client(survivors[0]), "SET lock_wait_timeout = 100", "SELECT COUNT(*) FROM t0")  # before it is killed
        victim.kill()
        for maker in makers:
            maker.join(DEADLINE_S)
        waits.join(DEADLINE_S)
        fine: list[Rows] = [[], [(ROWS,)], *([[(0,)]] if PREPARES else [])]  # Nobody there knows of what is prepared.
        assert waits.error in (0, NO_SUCH_TABLE) and waits.rows in fine, (waits.error, waits.rows)
        asked = [*survivors]
        if kill % 2 == 0 or PREPARES:  # It may be a moment before its adopter has left, or be its own successor.
            several.start(victim)
            asked.append(victim)
        else:
            assert wait_until(lambda: adoptions(survivors) > 0, DEADLINE_S)  # noqa: B023
        left = [what_is_left(server) for server in asked]
        print(kill, left[0])
        assert all(one == left[0] for one in left) and not set(left[0]) - {"whole", "gone"}, left
        if victim not in asked:
            several.start(victim)
            assert what_is_left(victim) == left[0]
        Client(rng.choice(servers)).run("DROP TABLE IF EXISTS t0, t1", "DROP SEQUENCE IF EXISTS q0, q1")
    kept = [line for server in servers for line in server.log_lines() if "left by a statement that was killed" in line]
    print("\n".join(kept))


def adoptions(servers: list[Server]) -> int:
    return sum(int(server.query("SHOW GLOBAL STATUS LIKE 'Strata_cluster_adoptions'")[0][1]) for server in servers)


def make_without_a_kill(client: Client, killer: Client) -> dict[str, int]:
    """Tables that statements have made, and their rows."""
    client.run("CREATE TABLE two (a INT) ENGINE=STRATA", "INSERT INTO two VALUES (1), (1)")
    client.run("CREATE FUNCTION f(x INT) RETURNS INT READS SQL DATA RETURN x + (SELECT COUNT(*) FROM two)")
    client.run("CREATE TABLE empty ENGINE=STRATA SELECT * FROM two WHERE a > 1")
    client.run("CREATE TABLE emptied ENGINE=STRATA SELECT f(a) AS a FROM two", "DELETE FROM emptied")
    client.run("CREATE TABLE truncated ENGINE=STRATA SELECT a FROM two", "TRUNCATE TABLE truncated")
    client.run("CREATE TABLE IF NOT EXISTS two ENGINE=STRATA SELECT 5 AS a")
    client.run("CREATE TABLE keyed ENGINE=STRATA VALUES (1)", "CREATE TABLE likes LIKE two")
    client.run("CREATE TEMPORARY TABLE own ENGINE=STRATA SELECT * FROM two")
    assert client.error_of("CREATE TABLE fails (PRIMARY KEY (a)) ENGINE=STRATA SELECT a FROM two") == DUPLICATE
    assert client.error_of("CREATE TABLE fails ENGINE=STRATA SELECT (SELECT a FROM two) AS a") == 1242
    client.run("CREATE TABLE fails (a INT) ENGINE=STRATA")  # and the mark of those before is gone
    client.run(
        "SET autocommit = 0", "CREATE TABLE off ENGINE=STRATA SELECT * FROM two WHERE a > 1", "ROLLBACK", "SET autocommit = 1"
    )
    client.run("LOCK TABLES two WRITE, likes WRITE", "CREATE OR REPLACE TABLE likes ENGINE=STRATA SELECT a FROM two WHERE a > 1")
    assert client.error_of("CREATE TABLE outside ENGINE=STRATA SELECT a FROM two") == NOT_LOCKED
    client.run("UNLOCK TABLES", "CREATE SEQUENCE q ENGINE=STRATA", "CREATE SEQUENCE IF NOT EXISTS q ENGINE=STRATA")
    client.run(
        "PREPARE p FROM 'CREATE OR REPLACE TABLE prepared ENGINE=STRATA SELECT a FROM two WHERE a > 1'", "EXECUTE p", "EXECUTE p"
    )
    client.run(
        "CREATE PROCEDURE r() CREATE OR REPLACE TABLE called ENGINE=STRATA SELECT f(a) FROM two WHERE a > 1",
        "CALL r()",
        "CALL r()",
    )
    for number in range(5):
        work = Behind(client, f"CREATE TABLE killed ENGINE=STRATA {SELECTED.replace(str(ROWS), '400000')}")
        time.sleep(0.05 + 0.1 * number)
        killer.run(f"KILL QUERY {client_number(client, work, killer)}")
        work.join(DEADLINE_S)
        assert work.error == INTERRUPTED
    client.run("CREATE TABLE killed (a INT) ENGINE=STRATA")
    empty = ("empty", "emptied", "truncated", "fails", "off", "likes", "prepared", "called", "killed")
    return {"two": 2, "keyed": 1, **dict.fromkeys(empty, 0)}


def client_number(client: Client, work: Behind, killer: Client) -> int:
    """Its connection is busy with `work`."""
    assert work.is_alive()
    return int(killer.run("SELECT id FROM information_schema.processlist WHERE info LIKE 'CREATE TABLE killed%'")[0][0])


def test_what_is_finished_outlives_every_kill(several: Several) -> None:
    """Nothing that a statement has made keeps its mark, and what has failed leaves none to a table of its name."""
    one, two = servers_of(several, 2)
    there = make_without_a_kill(Client(two), Client(two))
    two.kill()
    several.start(two)
    for server in (one, two):
        client = Client(server)
        assert {name: client.run(f"SELECT COUNT(*) FROM {name}")[0][0] for name in there} == there
        assert client.error_of("SELECT * FROM outside") == NO_SUCH_TABLE
        assert len(client.run("SELECT NEXT VALUE FOR q")) == 1
    assert not any("left by a statement that was killed" in line for line in two.log_lines())
