"""LOCK TABLES and FLUSH TABLES WITH READ LOCK of one of several servers that write the same tables (profile fusion): they keep
the other servers away as they keep away connections of their own, and go with whoever has them.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator

import pymysql
import pytest
from fusion_clients import DEADLOCK, INTERRUPTED, LOCK_WAIT_TIMEOUT, NO_SUCH_TABLE, Behind, Client, drop_all, has_database
from fusion_cluster import DEADLINE_S, Several, two_servers_in
from strata_cli import paths
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion-locks"
OF_ANOTHER_SERVER = "Waiting for LOCK TABLES of another server"
Connect = Callable[[int], Client]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Several]:
    with two_servers_in(FOLDER) as made:
        yield made


@pytest.fixture
def clients(cluster: Several) -> Iterator[Connect]:
    made: list[Client] = []

    def connect(number: int) -> Client:
        made.append(Client(cluster.servers[number]))
        return made[-1]

    assert wait_until(lambda: all(has_database(server) for server in cluster.servers), DEADLINE_S)
    yield connect
    for client in made:
        client.close()
    drop_all(cluster.servers[0])


def make(client: Client, *tables: str) -> None:
    for table in tables:
        client.run(f"CREATE TABLE {table} (a INT PRIMARY KEY, b INT) ENGINE=STRATA", f"INSERT INTO {table} VALUES (1, 0), (2, 0)")


def test_a_deadlock_of_two_servers_is_described_on_both(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    make(one, "t")
    one.run("BEGIN", "UPDATE t SET b = 1 WHERE a = 1")
    two.run("BEGIN", "UPDATE t SET b = 1 WHERE a = 2")
    waits = Behind(one, "UPDATE t SET b = 2 WHERE a = 2")
    assert waits.is_waiting()
    assert two.error_of("UPDATE t SET b = 3 WHERE a = 1") == DEADLOCK
    waits.ended()
    one.run("ROLLBACK")
    for number, own in ((0, "UPDATE t SET b = 2 WHERE a = 2"), (1, "UPDATE t SET b = 3 WHERE a = 1")):
        text = str(clients(number).run("SHOW ENGINE STRATA STATUS")[0][2])
        latest = text[text.index("Latest deadlock") :]
        assert own in latest and f" of server {2 - number}" in latest and "test.t, index PRIMARY" in latest, text
        assert "is rolled back" in latest, text


def test_read_keeps_writers_of_others_away_and_lets_readers_go_on(clients: Connect) -> None:
    one, two, three = clients(0), clients(1), clients(1)
    make(one, "t")
    number = two.number()
    for kind in ("READ", "READ LOCAL"):
        two.run("UPDATE t SET b = b + 1")
        one.run(f"LOCK TABLES t {kind}")
        assert three.run("SELECT COUNT(*) FROM t") == [(2,)]
        writing = Behind(two, "UPDATE t SET b = b + 1 WHERE a = 1")
        assert writing.is_waiting()
        assert three.run(f"SELECT state FROM information_schema.processlist WHERE id = {number}") == [(OF_ANOTHER_SERVER,)]
        assert three.run("SELECT a FROM t WHERE a = 2") == [(2,)]
        one.run("UNLOCK TABLES")
        writing.ended()
    assert one.run("SELECT * FROM t") == [(1, 4), (2, 2)]
    # The wait of the writer ends by its time, by KILL, with the connection that has the lock.
    one.run("LOCK TABLES t READ")
    three.run("SET strata_lock_wait_timeout = 1")
    for statement in ("INSERT INTO t VALUES (3, 3)", "DELETE FROM t", "REPLACE INTO t VALUES (1, 1)"):
        assert three.error_of(statement) == LOCK_WAIT_TIMEOUT, statement
    writing = Behind(two, "DELETE FROM t")
    assert writing.is_waiting()
    three.run(f"KILL QUERY {number}")
    writing.ended(INTERRUPTED)
    writing = Behind(two, "DELETE FROM t WHERE a = 1")
    assert writing.is_waiting()
    clients(0).run(f"KILL {one.number()}")
    writing.ended()


def test_read_is_shared_between_servers_and_waits_for_writers_only(clients: Connect) -> None:
    one, two, three, reads = clients(0), clients(1), clients(1), clients(1)
    make(one, "t", "u")
    reads.run("BEGIN", "SELECT * FROM t")
    one.run("LOCK TABLES t READ, u READ")
    Behind(two, "LOCK TABLES t READ").ended()
    writing = Behind(clients(0), "UPDATE t SET b = 1")  # The server's own locks keep that one away.
    one.run("UNLOCK TABLES")
    assert writing.is_waiting()
    two.run("UNLOCK TABLES")
    writing.ended()
    # Who has written is waited for, on whichever server.
    for holder, locker in ((three, one), (clients(0), two)):
        holder.run("BEGIN", "UPDATE t SET b = b + 1")
        locker.run("SET lock_wait_timeout = 1")
        assert locker.error_of("LOCK TABLES u READ, t READ") == LOCK_WAIT_TIMEOUT
        assert clients(0).run("UPDATE u SET b = b + 1") == [] == clients(1).run("UPDATE u SET b = b + 1")
        locker.run("SET lock_wait_timeout = 100")
        locking = Behind(locker, "LOCK TABLES t READ")
        assert locking.is_waiting()
        holder.run("COMMIT")
        locking.ended()
        locker.run("UNLOCK TABLES")
    reads.run("COMMIT")


def test_write_keeps_everybody_else_away(clients: Connect) -> None:
    one, two, three = clients(0), clients(1), clients(1)
    make(one, "t", "u")
    assert two.run("SELECT COUNT(*) FROM t") == [(2,)]
    one.run("LOCK TABLES t WRITE, u READ", "UPDATE t SET b = 7")
    reading, writing = Behind(two, "SELECT b FROM t WHERE a = 1"), Behind(three, "UPDATE t SET b = b + 1")
    assert reading.is_waiting() and writing.is_waiting()
    # Statements that change the table let nobody in between.
    one.run("ALTER TABLE t ADD COLUMN c INT DEFAULT 5", "UPDATE t SET c = 6", "ALTER TABLE t ADD INDEX (c)")
    assert reading.is_waiting() and writing.is_waiting()
    one.run("UNLOCK TABLES")
    assert reading.ended() in ([(7,)], [(8,)])
    writing.ended()
    assert two.run("SELECT * FROM t") == [(1, 8, 6), (2, 8, 6)]
    # Autocommit off, as InnoDB's manual has it; and what BEGIN, or another LOCK TABLES, unlocks.
    one.run("SET autocommit = 0", "LOCK TABLES t WRITE", "UPDATE t SET b = 1", "COMMIT")
    writing = Behind(two, "UPDATE t SET b = b + 1")
    assert writing.is_waiting()
    one.run("UPDATE t SET b = 5", "LOCK TABLES u WRITE")
    writing.ended()
    reading = Behind(two, "SELECT * FROM u")
    assert reading.is_waiting()
    one.run("BEGIN")
    reading.ended()
    one.run("ROLLBACK", "SET autocommit = 1")
    assert one.run("SELECT b FROM t") == [(6,), (6,)]
    # By two names, one of them to read; a table with a trigger that writes elsewhere.
    one.run("CREATE TRIGGER also AFTER INSERT ON t FOR EACH ROW UPDATE u SET b = b + 1")
    one.run("LOCK TABLES t AS x READ, t WRITE", "INSERT INTO t VALUES (3, 3, 3)")
    reading = Behind(two, "SELECT * FROM u WHERE a = 1")
    assert reading.is_waiting()
    one.run("UNLOCK TABLES")
    assert reading.ended() == [(1, 1)]
    # A lock that is waited for in vain leaves nothing behind.
    two.run("BEGIN", "UPDATE u SET b = 9")
    one.run("SET lock_wait_timeout = 1")
    assert one.error_of("LOCK TABLES t WRITE, u WRITE") == LOCK_WAIT_TIMEOUT
    assert three.run("SELECT COUNT(*) FROM t") == [(3,)]
    one.run("SET lock_wait_timeout = 100")
    number = one.number()
    locking = Behind(one, "LOCK TABLES t WRITE, u WRITE")
    assert locking.is_waiting()
    clients(0).run(f"KILL QUERY {number}")
    locking.ended(INTERRUPTED)
    three.run("UPDATE t SET b = 0")
    two.run("COMMIT")


def test_the_last_locked_table_that_is_dropped_ends_the_locks(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    make(one, "t", "u")
    one.run("LOCK TABLES t WRITE, u WRITE", "DROP TABLE t")
    making, reading = Behind(two, "CREATE TABLE t (a INT) ENGINE=STRATA"), Behind(clients(1), "SELECT COUNT(*) FROM u")
    assert making.is_waiting() and reading.is_waiting()
    one.run("DROP TABLE u")
    making.ended()
    reading.ended(NO_SUCH_TABLE)
    # The server does not lock a table under its new name.
    one.run("LOCK TABLES t WRITE", "ALTER TABLE t RENAME TO u")
    assert two.run("SELECT COUNT(*) FROM u") == [(0,)]
    one.run("UNLOCK TABLES", "DROP TABLE u")
    two.run("CREATE TABLE t (a INT) ENGINE=STRATA", "CREATE TABLE u (a INT) ENGINE=STRATA")
    # What takes the table's place stays locked.
    one.run("LOCK TABLES t WRITE", "CREATE OR REPLACE TABLE t (b INT) ENGINE=STRATA")
    writing = Behind(two, "INSERT INTO t (b) VALUES (1)")
    assert writing.is_waiting()
    one.run("UNLOCK TABLES")
    writing.ended()


def test_flush_of_single_tables_locks_them_for_others(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    make(one, "t", "u")
    one.run("FLUSH TABLES t WITH READ LOCK")
    assert two.run("SELECT COUNT(*) FROM t") == [(2,)]
    two.run("UPDATE u SET b = 1")
    writing = Behind(two, "UPDATE t SET b = 1")
    assert writing.is_waiting()
    one.run("UNLOCK TABLES")
    writing.ended()


def test_a_lock_is_a_mutex_between_servers(clients: Connect) -> None:
    """Read, think, write, under locks on two tables that each names in another order: nothing is lost, nobody is a victim."""
    make(clients(0), "t", "u")
    rounds, seed = 25, random.randrange(1 << 30)
    print(f"seed {seed}")
    errors: list[str] = []

    def work(number: int) -> None:
        rng = random.Random(seed + number)
        client = clients(number % 2)
        try:
            client.run("SET strata_lock_wait_timeout = 100", "SET lock_wait_timeout = 100")
            for _ in range(rounds):
                tables = ["t WRITE", "u WRITE"]
                rng.shuffle(tables)
                client.run("LOCK TABLES " + ", ".join(tables))
                value = client.run("SELECT b FROM t WHERE a = 1")[0][0]
                client.run(
                    f"UPDATE t SET b = {value + 1} WHERE a = 1", f"UPDATE u SET b = {value + 1} WHERE a = 1", "UNLOCK TABLES"
                )
        except pymysql.MySQLError as error:
            errors.append(f"{number}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_S)
    assert errors == []
    assert clients(0).run("SELECT t.b, u.b FROM t, u WHERE t.a = 1 AND u.a = 1") == [(4 * rounds, 4 * rounds)]


def test_nobody_commits_anywhere_under_the_global_read_lock(clients: Connect) -> None:
    one, two, three, reads = clients(0), clients(1), clients(1), clients(1)
    make(one, "t")
    two.run("BEGIN", "UPDATE t SET b = 1")
    one.run("FLUSH TABLES WITH READ LOCK")
    assert one.run("SELECT b FROM t WHERE a = 1") == [(0,)] == reads.run("SELECT b FROM t WHERE a = 1")
    committing, writing = Behind(two, "COMMIT"), Behind(three, "INSERT INTO t VALUES (3, 3)")
    making = Behind(clients(1), "CREATE TABLE u (a INT) ENGINE=STRATA")
    assert committing.is_waiting() and writing.is_waiting() and making.is_waiting()
    assert reads.run("SELECT b FROM t WHERE a = 1") == [(0,)]
    # Of its own server anybody may have it as well; of others one after the other.
    second = clients(0)
    second.run("FLUSH TABLES WITH READ LOCK")
    one.run("UNLOCK TABLES")
    assert committing.is_waiting()
    third = Behind(reads, "FLUSH TABLES WITH READ LOCK")
    assert third.is_waiting()
    second.run("UNLOCK TABLES")
    third.ended()
    writing_here = Behind(one, "UPDATE t SET b = b + 1 WHERE a = 2")
    assert writing_here.is_waiting()
    reads.run("UNLOCK TABLES")
    for behind in (committing, writing, writing_here, making):
        behind.ended()
    assert one.run("SELECT * FROM t ORDER BY a") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_statement_that_waits_for_a_row_goes_on_with_the_commit_elsewhere(clients: Connect, number: int) -> None:
    """Server 1 waits for a row of a transaction of server 0; whichever of them the global read lock is wanted on."""
    one, two, flushes = clients(0), clients(1), clients(number)
    make(one, "t")
    one.run("BEGIN", "UPDATE t SET b = 1 WHERE a = 1")
    waiting = Behind(two, "UPDATE t SET b = b + 1 WHERE a = 1")
    assert waiting.is_waiting()
    flushing = Behind(flushes, "FLUSH TABLES WITH READ LOCK")
    assert flushing.is_waiting()
    Behind(one, "COMMIT").ended()
    waiting.ended()
    flushing.ended()
    assert flushes.run("SELECT b FROM t WHERE a = 1") == [(2,)]
    flushes.run("UNLOCK TABLES")


def test_a_global_read_lock_that_is_given_up_lets_all_go_on(cluster: Several, clients: Connect) -> None:
    one, two, three = clients(0), clients(1), clients(1)
    make(one, "t")
    two.run("SET strata_lock_wait_timeout = 100")
    for how in ("timeout", "kill"):
        working = Behind(two, "UPDATE t SET b = b + 1 WHERE a = 1 AND SLEEP(12) = 0")
        assert wait_until(
            lambda: three.run("SELECT 1 FROM information_schema.processlist WHERE state = 'User sleep'") == [(1,)], DEADLINE_S
        )
        one.run(f"SET lock_wait_timeout = {2 if how == 'timeout' else 100}")
        number = one.number()
        flushing = Behind(one, "FLUSH TABLES WITH READ LOCK")
        assert flushing.is_waiting()
        if how == "kill":
            clients(0).run(f"KILL QUERY {number}")
        flushing.ended(LOCK_WAIT_TIMEOUT if how == "timeout" else INTERRUPTED)
        clients(0).run("UPDATE t SET b = 5 WHERE a = 2")
        working.ended()
        Behind(three, "UPDATE t SET b = 6 WHERE a = 2").ended()
    # With its connection.
    leaves = Client(cluster.servers[0])
    leaves.run("FLUSH TABLES WITH READ LOCK")
    writing = Behind(two, "UPDATE t SET b = 7 WHERE a = 2")
    assert writing.is_waiting()
    leaves.close()
    writing.ended()


def test_a_backup_stage_that_blocks_commits_blocks_those_of_others(clients: Connect) -> None:
    one, two, three = clients(0), clients(1), clients(1)
    make(one, "t")
    two.run("BEGIN", "UPDATE t SET b = 1")
    one.run(*(f"BACKUP STAGE {stage}" for stage in ("START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT")))
    committing, writing = Behind(two, "COMMIT"), Behind(three, "INSERT INTO t VALUES (3, 3)")
    assert committing.is_waiting() and writing.is_waiting()
    assert clients(1).run("SELECT a, b FROM t ORDER BY a") == [(1, 0), (2, 0)]
    one.run("BACKUP STAGE END")
    committing.ended()
    writing.ended()
    assert one.run("SELECT * FROM t ORDER BY a") == [(1, 1), (2, 1), (3, 3)]


def test_read_only_waits_for_all_servers_and_keeps_only_its_own_clients_away(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    make(one, "t")
    two.run("BEGIN", "UPDATE t SET b = 1")
    try:
        setting = Behind(one, "SET GLOBAL read_only = 1")
        two.run("COMMIT")
        setting.ended()
        Behind(two, "UPDATE t SET b = b + 1").ended()
        assert one.run("SELECT b FROM t") == [(2,), (2,)]
    finally:
        clients(0).run("SET GLOBAL read_only = 0")


def test_two_servers_have_the_global_read_lock_in_turns(clients: Connect) -> None:
    holders: list[int] = []
    errors: list[str] = []

    def take(number: int) -> None:
        client = clients(number)
        for _ in range(5):
            try:
                client.run("FLUSH TABLES WITH READ LOCK")
                holders.append(number)
                errors.extend(f"{holders}" for _ in holders[1:])
                time.sleep(0.2)  # The other one would come meanwhile.
                holders.clear()
                client.run("UNLOCK TABLES")
            except pymysql.MySQLError as error:
                errors.append(str(error))

    takers = [threading.Thread(target=take, args=(number,)) for number in (0, 1)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(DEADLINE_S)
    assert errors == [] and not any(taker.is_alive() for taker in takers)


def test_what_is_read_under_the_global_read_lock_is_of_one_moment(clients: Connect) -> None:
    make(clients(0), "t", "u")
    stop = threading.Event()
    errors: list[str] = []

    def move(number: int) -> None:
        client = clients(number % 2)
        client.run("SET strata_lock_wait_timeout = 100", "SET lock_wait_timeout = 100")
        # One statement, as a transaction with another one would wait for a lock that waits for who waits for its row.
        both = "UPDATE t, u SET t.b = t.b - 1, u.b = u.b + 1 WHERE t.a = 1 AND u.a = 1"
        while not stop.is_set():
            try:
                client.run(*(("BEGIN", both, "COMMIT") if number < 2 else (both,)))
            except pymysql.MySQLError as error:
                errors.append(str(error))

    movers = [threading.Thread(target=move, args=(number,)) for number in range(4)]
    for mover in movers:
        mover.start()
    dumps, looks = [clients(0), clients(1)], [clients(0), clients(1)]
    before = None
    for round_ in range(8):
        dumps[round_ % 2].run("FLUSH TABLES WITH READ LOCK")
        seen = [look.run(f"SELECT b FROM {table} WHERE a = 1")[0][0] for table in ("t", "u") for look in looks for _ in range(2)]
        dumps[round_ % 2].run("UNLOCK TABLES")
        assert set(seen[:4]) == {-seen[4]} and set(seen[4:]) == {seen[4]}, (before, seen)
        before = seen
        moved = looks[0].run("SELECT b FROM u WHERE a = 1")[0][0]
        assert wait_until(lambda: looks[1].run("SELECT b FROM u WHERE a = 1")[0][0] > moved, DEADLINE_S), "nobody goes on"  # noqa: B023
    stop.set()
    for mover in movers:
        mover.join(DEADLINE_S)
    assert errors == []


def test_a_server_that_comes_stands_still_as_well(cluster: Several, clients: Connect) -> None:
    one = clients(0)
    make(one, "t")
    one.run("FLUSH TABLES WITH READ LOCK")
    cluster.add()
    comes = clients(2)
    assert comes.run("SELECT b FROM t WHERE a = 1") == [(0,)]
    number = comes.number()
    writing, making = Behind(comes, "UPDATE t SET b = 1"), Behind(clients(2), "CREATE TABLE u (a INT) ENGINE=STRATA")
    assert writing.is_waiting() and making.is_waiting()
    clients(2).run(f"KILL QUERY {number}")
    writing.ended(INTERRUPTED)
    comes.run("SET lock_wait_timeout = 1")
    assert comes.error_of("DELETE FROM t") == LOCK_WAIT_TIMEOUT
    # It can have that lock itself, in its turn.
    flushing, writing = (
        Behind(comes, "SET lock_wait_timeout = 100", "FLUSH TABLES WITH READ LOCK"),
        Behind(clients(1), "UPDATE t SET b = 2"),
    )
    assert flushing.is_waiting() and writing.is_waiting()
    one.run("UNLOCK TABLES")
    making.ended()
    flushing.ended()
    comes.run("UNLOCK TABLES")
    writing.ended()
    assert comes.run("SELECT b FROM t WHERE a = 1") == [(2,)]


def test_a_server_that_comes_between_the_two_steps_is_not_waited_for(cluster: Several, clients: Connect) -> None:
    one, long = clients(0), clients(0)
    make(one, "t")
    number = long.number()
    changing = Behind(long, "UPDATE t SET b = SLEEP(600) WHERE a = 1")
    assert changing.is_waiting()
    flushing = Behind(one, "FLUSH TABLES WITH READ LOCK")  # the others stand still; the statement above is waited for
    assert flushing.is_waiting()
    cluster.add()
    writing = Behind(clients(len(cluster.servers) - 1), "INSERT INTO t VALUES (3, 0)")
    assert writing.is_waiting()
    clients(0).run(f"KILL QUERY {number}")
    changing.ended(INTERRUPTED)
    flushing.ended()
    assert writing.is_waiting()
    one.run("UNLOCK TABLES")
    writing.ended()


@pytest.mark.parametrize("statement", ["LOCK TABLES t READ", "LOCK TABLES t WRITE", "FLUSH TABLES WITH READ LOCK"])
def test_locks_go_with_a_server_that_is_killed(cluster: Several, clients: Connect, statement: str) -> None:
    one = clients(0)
    make(one, "t")
    dies = cluster.servers[1]
    holder = Client(dies)  # Has the lock as long as it is connected.
    holder.run(statement)
    one.run("SET strata_lock_wait_timeout = 100", "SET lock_wait_timeout = 100")
    writing = Behind(one, "UPDATE t SET b = 1")
    assert writing.is_waiting()
    began = time.monotonic()
    dies.kill()
    writing.ended()
    assert time.monotonic() - began < DEADLINE_S
    cluster.start(dies)
    Behind(clients(1), "UPDATE t SET b = 2").ended()
