"""DDL between several MariaDB servers that write the same tables (profile fusion): what one changes all see at once, nothing is
lost, and nobody is blocked for longer than the statement takes.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pymysql
import pytest
from fusion_clients import LOCK_WAIT_TIMEOUT, Behind, Client, drop_all, has_database
from fusion_cluster import DEADLINE_S, Several, two_servers_in
from pausing import pause
from strata_cli import paths
from strata_cli.server import Server
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion-ddl"
SECONDS_OF_RENAMES, SECONDS_OF_KILLS = 5.0, 8.0
INTERRUPTED, NO_SUCH_SEQUENCE = 1317, 4091
WRONG_OBJECT, TRIGGER_ON_VIEW = 1347, 1361
DEADLOCK, DEFINITION_CHANGED = 1213, 1412
NO_SUCH_TABLE, UNKNOWN_DATABASE, TABLE_EXISTS = 1146, 1049, 1050


def has_begun(server: Server, statement: str) -> bool:
    """Whether somebody runs it."""
    return bool(server.query(f"SELECT 1 FROM information_schema.processlist WHERE info LIKE '{statement}%'"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Several]:
    with two_servers_in(FOLDER) as made:
        yield made


@pytest.fixture
def clients(cluster: Several, request: pytest.FixtureRequest) -> Iterator[Callable[[int], Client]]:
    made: list[Client] = []

    def connect(number: int) -> Client:
        made.append(Client(cluster.servers[number]))
        return made[-1]

    assert wait_until(lambda: all(has_database(server) for server in cluster.servers), DEADLINE_S)
    yield connect
    for client in made:
        client.close()
    drop_all(cluster.servers[0])


Connect = Callable[[int], Client]


def test_what_one_server_changes_the_other_sees_at_once(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "INSERT INTO t VALUES (1, 1)")
    assert two.run("SELECT * FROM t") == [(1, 1)]
    # A copy, an index in place, a name that changes at once; each on either server.
    two.run("ALTER TABLE t ADD COLUMN c INT DEFAULT 7, ALGORITHM=COPY")
    assert one.run("SELECT * FROM t") == [(1, 1, 7)]
    one.run("INSERT INTO t VALUES (2, 2, 2)", "ALTER TABLE t ADD INDEX of_b (b), ALGORITHM=INPLACE")
    assert "of_b" in two.run("SHOW CREATE TABLE t")[0][1]
    two.run("INSERT INTO t VALUES (3, 3, 3)")
    assert one.run("SELECT a FROM t FORCE INDEX (of_b) WHERE b > 1 ORDER BY b") == [(2,), (3,)]
    two.run("ALTER TABLE t RENAME COLUMN c TO d, ALGORITHM=INSTANT")
    assert one.run("SELECT d FROM t WHERE a = 1") == [(7,)]
    assert one.error_of("SELECT c FROM t") == 1054
    assert [row[0] for row in one.run("SHOW COLUMNS FROM t")] == ["a", "b", "d"]
    one.run("ALTER TABLE t DROP INDEX of_b")
    assert "of_b" not in two.run("SHOW CREATE TABLE t")[0][1]
    # Another name, and a new table of the old one.
    one.run("RENAME TABLE t TO u")
    assert two.error_of("SELECT * FROM t") == NO_SUCH_TABLE
    assert two.run("SELECT COUNT(*) FROM u") == [(3,)]
    two.run("CREATE TABLE t (x VARCHAR(10)) ENGINE=STRATA", "INSERT INTO t VALUES ('new')")
    assert one.run("SELECT * FROM t") == [("new",)]
    assert one.error_of("CREATE TABLE u (a INT) ENGINE=STRATA") == TABLE_EXISTS
    # Empty, and gone.
    one.run("TRUNCATE TABLE u")
    assert two.run("SELECT * FROM u") == []
    two.run("INSERT INTO u VALUES (9, 9, 9)")
    assert one.run("SELECT * FROM u") == [(9, 9, 9)]
    two.run("DROP TABLE u")
    assert one.error_of("INSERT INTO u VALUES (1, 1, 1)") == NO_SUCH_TABLE
    assert one.run("SHOW TABLES LIKE 'u'") == [] == two.run("SHOW TABLES LIKE 'u'")
    # Made again, otherwise.
    one.run("DROP TABLE t", "CREATE TABLE t (k INT PRIMARY KEY, v TEXT) ENGINE=STRATA", "INSERT INTO t VALUES (5, 'five')")
    assert two.run("SELECT v FROM t WHERE k = 5") == [("five",)]
    two.run("CREATE OR REPLACE TABLE t (z INT) ENGINE=STRATA")
    assert one.run("SHOW COLUMNS FROM t")[0][0] == "z"
    for client in (one, two):
        assert client.run("CHECK TABLE t")[-1][3] == "OK"


def test_a_table_may_change_often(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (id INT PRIMARY KEY, c0 INT) ENGINE=STRATA", "INSERT INTO t VALUES (1, 0)")
    for number in range(1, 21):
        changes, reads = (one, two) if number % 2 else (two, one)
        changes.run(f"ALTER TABLE t CHANGE c{number - 1} c{number} INT")
        assert reads.run(f"SELECT c{number} FROM t") == [(number - 1,)]
        reads.run(f"UPDATE t SET c{number} = {number}")


def test_ddl_waits_for_transactions_of_others(clients: Connect) -> None:
    one, two, three = clients(0), clients(1), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "INSERT INTO t VALUES (1, 1)")
    statements = [
        "ALTER TABLE t ADD COLUMN c INT, ALGORITHM=COPY",
        "ALTER TABLE t ADD INDEX (b)",
        "ALTER TABLE t CHANGE b d INT",
        "TRUNCATE TABLE t",
        "RENAME TABLE t TO u",
        "DROP TABLE t",
    ]
    for statement in statements:
        two.run("BEGIN", "INSERT INTO t VALUES (2, 2)")
        one.run("SET lock_wait_timeout = 2")
        began = time.monotonic()
        assert one.error_of(statement) == LOCK_WAIT_TIMEOUT, statement
        assert 1 < time.monotonic() - began < 60
        # Nothing has happened, and everybody goes on.
        assert two.run("SELECT * FROM t") == [(1, 1), (2, 2)]
        assert three.run("SELECT * FROM t") == [(1, 1)]
        two.run("ROLLBACK")
        assert one.run("SELECT * FROM t") == [(1, 1)]
        assert one.run("SHOW TABLES") == [("t",)]
    # It gets what it waits for when the transaction ends.
    two.run("BEGIN", "INSERT INTO t VALUES (2, 2)")
    one.run("SET lock_wait_timeout = 100")
    altering = Behind(one, "ALTER TABLE t ADD COLUMN c INT DEFAULT 3, ALGORITHM=COPY")
    assert not wait_until(lambda: not altering.is_alive(), 1.5)
    two.run("COMMIT")
    altering.ended()
    assert two.run("SELECT * FROM t") == [(1, 1, 3), (2, 2, 3)]


def test_readers_and_old_views(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY) ENGINE=STRATA", "INSERT INTO t VALUES (1)")
    one.run("CREATE TABLE other (a INT PRIMARY KEY) ENGINE=STRATA")
    two.run("START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT * FROM other")
    one.run("ALTER TABLE t ADD COLUMN b INT DEFAULT 1, ALGORITHM=COPY")
    # The view is older than what is in the table now.
    assert two.error_of("SELECT * FROM t") == DEFINITION_CHANGED
    two.run("ROLLBACK")
    assert two.run("SELECT * FROM t") == [(1, 1)]


def test_prepared_statements_and_cached_tables(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "INSERT INTO t VALUES (1, 10)")
    two.run("PREPARE all_of FROM 'SELECT * FROM t'", "PREPARE put FROM 'INSERT INTO t (a, b) VALUES (?, ?)'")
    assert two.run("EXECUTE all_of") == [(1, 10)]
    one.run("ALTER TABLE t ADD COLUMN c INT DEFAULT 5 FIRST")
    assert two.run("EXECUTE all_of") == [(5, 1, 10)]
    one.run("ALTER TABLE t MODIFY b VARCHAR(20)")
    two.run("SET @a = 2, @b = 'text'", "EXECUTE put USING @a, @b")
    assert one.run("SELECT * FROM t WHERE a = 2") == [(5, 2, "text")]
    one.run("DROP TABLE t")
    assert two.error_of("EXECUTE all_of") == NO_SUCH_TABLE
    one.run("CREATE TABLE t (a INT, b INT, c INT, d INT) ENGINE=STRATA", "INSERT INTO t VALUES (1, 2, 3, 4)")
    assert two.run("EXECUTE all_of") == [(1, 2, 3, 4)]


def test_handler_and_lock_tables_are_waited_for(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY) ENGINE=STRATA", "INSERT INTO t VALUES (1)", "SET lock_wait_timeout = 2")
    two.run("HANDLER t OPEN", "HANDLER t READ FIRST")
    assert one.error_of("ALTER TABLE t ADD COLUMN b INT") == LOCK_WAIT_TIMEOUT
    two.run("HANDLER t CLOSE")
    one.run("ALTER TABLE t ADD COLUMN b INT")
    for kind in ("READ", "WRITE"):
        two.run(f"LOCK TABLES t {kind}")
        assert one.error_of("DROP TABLE t") == LOCK_WAIT_TIMEOUT
        assert two.run("SELECT a FROM t") == [(1,)]
        two.run("UNLOCK TABLES")
    # DDL of its own under LOCK TABLES, more than once.
    two.run(
        "LOCK TABLES t WRITE", "ALTER TABLE t ADD COLUMN c INT", "ALTER TABLE t ADD INDEX (b)", "INSERT INTO t VALUES (2, 2, 2)"
    )
    assert one.error_of("ALTER TABLE t DROP COLUMN b") == LOCK_WAIT_TIMEOUT
    two.run("ALTER TABLE t DROP COLUMN c", "TRUNCATE TABLE t", "UNLOCK TABLES")
    assert one.run("SHOW COLUMNS FROM t")[-1][0] == "b"
    two.run("LOCK TABLES t WRITE", "DROP TABLE t", "UNLOCK TABLES")
    assert one.error_of("SELECT * FROM t") == NO_SUCH_TABLE
    # So does a server that keeps all others still.
    one.run("CREATE TABLE t (a INT PRIMARY KEY) ENGINE=STRATA", "SET lock_wait_timeout = 100")
    two.run("SELECT * FROM t", "FLUSH TABLES WITH READ LOCK")
    altering = Behind(one, "ALTER TABLE t ADD COLUMN b INT")
    assert altering.is_waiting()
    two.run("UNLOCK TABLES")
    altering.ended()
    assert two.run("SHOW COLUMNS FROM t")[-1][0] == "b"


def test_row_locks_of_the_other_server(clients: Connect) -> None:
    """What applications do with locks that somebody else has, with the holder on another server; the table is new to this one
    each time, since a statement that waits for nobody's work (NOWAIT) has to ask for its name all the same."""
    one, two, third = clients(0), clients(1), clients(1)
    for table in ("t", "u"):
        one.run(
            f"CREATE TABLE {table} (a INT PRIMARY KEY, b INT, KEY (b)) ENGINE=STRATA",
            f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 3)",
        )
    one.run("BEGIN", "UPDATE t SET b = 9 WHERE a = 2", "UPDATE u SET b = 9 WHERE a = 2")
    assert two.error_of("SELECT * FROM t WHERE a = 2 FOR UPDATE NOWAIT") == 1205
    two.run("BEGIN")
    assert two.run("SELECT a FROM u FOR UPDATE SKIP LOCKED") == [(1,), (3,)]
    two.run("COMMIT", "SET strata_lock_wait_timeout = 1")
    assert two.error_of("DELETE FROM t WHERE a = 2") == 1205
    assert two.run("SELECT a FROM t WHERE a = 1 FOR UPDATE NOWAIT") == [(1,)]
    two.run("SET strata_lock_wait_timeout = 50")
    number = two.number()
    waits = Behind(two, "UPDATE t SET b = b + 1 WHERE a = 2")
    assert waits.is_waiting()
    # Who waits for whom.
    listed = "SELECT waiting_connection_id, blocking_trx_id, blocking_node, table_name FROM information_schema.strata_lock_waits"
    holder = one.run(f"SELECT trx_id FROM information_schema.strata_trx WHERE connection_id = {one.number()}")[0][0]
    assert third.run(listed) == [(number, holder, holder >> 56, "t")]
    assert one.run(listed) == []
    third.run(f"KILL QUERY {number}")
    waits.ended(1317)
    waits = Behind(two, "UPDATE t SET b = b + 1 WHERE a = 2")
    assert waits.is_waiting()
    one.run("COMMIT")
    waits.ended()
    assert one.run("SELECT b FROM t WHERE a = 2") == [(10,)]
    # Shared locks are shared between servers, and what a SERIALIZABLE transaction has read stays.
    one.run("BEGIN", "SELECT * FROM t WHERE a = 1 LOCK IN SHARE MODE")
    assert two.run("SELECT a FROM t WHERE a = 1 LOCK IN SHARE MODE NOWAIT") == [(1,)]
    assert two.error_of("SELECT a FROM t WHERE a = 1 FOR UPDATE NOWAIT") == 1205
    one.run("COMMIT", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN", "SELECT COUNT(*) FROM t WHERE a > 1")
    waits = Behind(two, "INSERT INTO t VALUES (7, 7)")
    assert waits.is_waiting()
    one.run("COMMIT")
    waits.ended()


def test_who_waits_for_a_name_hears_why_it_ends(clients: Connect) -> None:
    one, two, third = clients(0), clients(1), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "INSERT INTO t SELECT seq, seq FROM seq_1_to_100000")
    copy = Behind(one, *["ALTER TABLE t FORCE, ALGORITHM=COPY"] * 8)
    two.run("SET lock_wait_timeout = 50, strata_lock_wait_timeout = 50")
    number = two.number()
    waits = Behind(two, "SELECT COUNT(*) FROM t")
    if waits.is_waiting():
        third.run(f"KILL QUERY {number}")
        waits.join()
        assert waits.error in (0, 1317)
    copy.ended()
    assert two.run("SELECT COUNT(*) FROM t") == [(100000,)]


def test_foreign_keys(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE p (id INT PRIMARY KEY, v INT) ENGINE=STRATA", "INSERT INTO p VALUES (1, 1), (2, 2)")
    two.run("CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE) ENGINE=STRATA")
    one.run("INSERT INTO c VALUES (1, 1), (2, 2)")
    assert two.error_of("INSERT INTO c VALUES (3, 3)") == 1452
    one.run("DELETE FROM p WHERE id = 1")
    assert two.run("SELECT * FROM c") == [(2, 2)]
    assert two.error_of("DROP TABLE p") == 1451
    two.run("ALTER TABLE p ADD COLUMN w INT, ALGORITHM=COPY")
    assert one.error_of("INSERT INTO c VALUES (3, 3)") == 1452
    one.run("INSERT INTO p VALUES (3, 3, 3)", "INSERT INTO c VALUES (3, 3)")
    two.run("RENAME TABLE p TO q")
    assert "`q`" in one.run("SHOW CREATE TABLE c")[0][1]
    one.run("DELETE FROM q WHERE id = 3")
    assert two.run("SELECT * FROM c") == [(2, 2)]
    one.run("ALTER TABLE c DROP FOREIGN KEY c_ibfk_1")
    two.run("INSERT INTO c VALUES (9, 9)")
    assert two.error_of("ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES q (id)") == 1452
    two.run("DELETE FROM c WHERE id = 9", "ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES q (id)")
    assert one.error_of("DELETE FROM q WHERE id = 2") == 1451
    one.run("DROP TABLE c")
    two.run("DROP TABLE q")


def test_auto_increment_gives_no_number_twice(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, server INT) ENGINE=STRATA AUTO_INCREMENT=100")
    for _ in range(3):
        work = [Behind(client, *[f"INSERT INTO t (server) VALUES ({n}), ({n})"] * 20) for n, client in ((1, one), (2, two))]
        for behind in work:
            behind.ended()
        two.run("ALTER TABLE t ADD COLUMN x INT, ALGORITHM=COPY")
        one.run("ALTER TABLE t DROP COLUMN x, ALGORITHM=COPY")
    assert one.run("SELECT COUNT(*), COUNT(DISTINCT id), MIN(id) >= 100 FROM t") == [(240, 240, 1)]


def test_sequences(clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE SEQUENCE s START 5 CACHE 10 ENGINE=STRATA", "CREATE SEQUENCE nocache NOCACHE ENGINE=STRATA")
    for sequence in ("s", "nocache"):
        values = []
        for _ in range(15):
            values += [client.run(f"SELECT NEXTVAL({sequence})")[0][0] for client in (one, two, two)]
        assert len(set(values)) == len(values), values
    assert min(v for v in [one.run("SELECT next_not_cached_value FROM s")[0][0]]) > 5
    two.run("ALTER SEQUENCE s RESTART 1000")
    assert one.run("SELECT NEXTVAL(s)")[0][0] >= 1000
    two.run("DROP SEQUENCE s")
    assert one.error_of("SELECT NEXTVAL(s)") == 4091  # Unknown sequence


def test_kinds_of_what_was_never_used_here(clients: Connect) -> None:
    """The server looks for a file that says what a name is, and there is none before the first use."""
    one, two = clients(0), clients(1)
    one.run("CREATE SEQUENCE s ENGINE=STRATA", "CREATE SEQUENCE kept ENGINE=STRATA", "CREATE TABLE t (a INT) ENGINE=STRATA")
    on_sequence = "CREATE TRIGGER r BEFORE INSERT ON kept FOR EACH ROW SET @a = NEW.cache_size"
    assert two.error_of(on_sequence) == one.error_of(on_sequence) == TRIGGER_ON_VIEW
    kinds = [("kept", "SEQUENCE"), ("s", "SEQUENCE"), ("t", "BASE TABLE")]
    assert two.run("SHOW FULL TABLES") == one.run("SHOW FULL TABLES") == kinds
    for statement in ("CREATE OR REPLACE VIEW t AS SELECT 1", "CREATE OR REPLACE VIEW kept AS SELECT 1"):
        assert two.error_of(statement) == one.error_of(statement) == WRONG_OBJECT
    one.run("DROP SEQUENCE s", "CREATE TABLE s (a INT) ENGINE=STRATA")
    kinds[1] = ("s", "BASE TABLE")
    assert two.run("SHOW FULL TABLES") == one.run("SHOW FULL TABLES") == kinds


def test_kinds_are_shown_while_a_sequence_is_changed(clients: Connect) -> None:
    """A list does not fail over what others do to the names in it, nor is it behind."""
    one, two, other = clients(0), clients(1), clients(0)
    kind = {"s": "SEQUENCE", "t": "BASE TABLE"}
    for number in range(30):
        made = ["CREATE SEQUENCE s ENGINE=STRATA", "CREATE TABLE t (a INT) ENGINE=STRATA"]
        work = Behind(one, *made, "ALTER SEQUENCE s RESTART 9", "DROP SEQUENCE s", "DROP TABLE t")
        while work.is_alive():
            assert {name for name, _ in two.run("SHOW FULL TABLES")} <= set(kind)
        work.ended()
        other.run(*(made if number % 2 else made[::-1]))
        assert dict(two.run("SHOW FULL TABLES")) == kind
        other.run("DROP SEQUENCE s", "DROP TABLE t")


def test_servers_number_by_turns(cluster: Several, clients: Connect) -> None:
    """INCREMENT BY 0: as AUTO_INCREMENT, whoever took numbers before."""
    one, two = clients(0), clients(1)
    for offset, client in ((1, one), (3, two)):
        client.run(f"SET GLOBAL auto_increment_increment = 5, auto_increment_offset = {offset}")
    try:
        one.run("CREATE SEQUENCE s INCREMENT BY 0 CACHE 3 MAXVALUE 60 CYCLE ENGINE=STRATA")
        for offset, client in ((1, one), (3, two), (3, two), (1, one)):
            values = [client.run("SELECT NEXTVAL(s)")[0][0] for _ in range(7)]
            assert {value % 5 for value in values} == {offset}, values
        one.run("DROP SEQUENCE s")
    finally:
        for client in (one, two):
            client.run("SET GLOBAL auto_increment_increment = 1, auto_increment_offset = 1")


def test_databases(cluster: Several, clients: Connect) -> None:
    one, two = clients(0), clients(1)
    here, there = cluster.servers[0], cluster.servers[1]
    one.run("CREATE DATABASE shop CHARACTER SET latin1")
    assert wait_until(lambda: has_database(there, "shop"), DEADLINE_S)
    two.run("CREATE TABLE shop.t (a INT PRIMARY KEY, v VARCHAR(5)) ENGINE=STRATA", "INSERT INTO shop.t VALUES (1, 'x')")
    assert "latin1" in one.run("SHOW CREATE TABLE shop.t")[0][1]
    assert one.run("SELECT * FROM shop.t") == [(1, "x")]
    # A table is found even where the folder has not come yet.
    two.run("CREATE DATABASE fast", "CREATE TABLE fast.t (a INT) ENGINE=STRATA", "INSERT INTO fast.t VALUES (7)")
    assert one.run("SELECT * FROM fast.t") == [(7,)]
    one.run("CREATE TABLE fast.u (a INT) ENGINE=STRATA")
    one.run("DROP DATABASE shop", "DROP DATABASE fast")
    assert two.error_of("SELECT * FROM shop.t") in (NO_SUCH_TABLE, UNKNOWN_DATABASE)
    assert two.error_of("CREATE TABLE shop.u (a INT) ENGINE=STRATA") == UNKNOWN_DATABASE
    assert wait_until(lambda: not has_database(there, "shop") and not has_database(there, "fast"), DEADLINE_S)
    two.run("CREATE DATABASE shop")
    assert wait_until(lambda: has_database(here, "shop"), DEADLINE_S)
    assert one.run("SHOW TABLES FROM shop") == []
    one.run("CREATE TABLE shop.t (b INT) ENGINE=STRATA")
    assert two.run("SHOW COLUMNS FROM shop.t")[0][0] == "b"
    two.run("DROP DATABASE shop")
    assert wait_until(lambda: not has_database(here, "shop"), DEADLINE_S)


def test_a_table_is_made_and_dropped_on_both_servers_at_once(clients: Connect) -> None:
    """With IF NOT EXISTS, OR REPLACE and IF EXISTS nothing fails, as on one server: what a statement was told stays so."""
    statements = (
        "CREATE TABLE IF NOT EXISTS t (a INT PRIMARY KEY) ENGINE=STRATA",
        "CREATE OR REPLACE TABLE t (a INT PRIMARY KEY, b INT) ENGINE=STRATA",
        "CREATE OR REPLACE TABLE t ENGINE=STRATA AS SELECT 1 AS a",
        "DROP TABLE IF EXISTS t",
        "CREATE TABLE IF NOT EXISTS t AS SELECT 2 AS a",
        "DROP TABLE IF EXISTS t",
    )
    until = time.monotonic() + 10
    failed: list[tuple[str, str]] = []
    done: list[str] = []

    def work(client: Client, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < until:
            statement = rng.choice(statements)
            try:
                client.run(statement)
                done.append(statement)
            except pymysql.MySQLError as error:
                failed.append((statement, str(error)))

    workers = [threading.Thread(target=work, args=(clients(n % 2), n), daemon=True) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_S)
    print(f"{len(done)} done, {len(failed)} failed {failed[:30]}")
    assert failed == [] and set(done) == set(statements)
    # Nothing stays locked.
    clients(0).run("CREATE OR REPLACE TABLE t (a INT) ENGINE=STRATA")
    clients(1).run("DROP TABLE t")


def test_a_database_is_dropped_while_another_server_fills_it(clients: Connect) -> None:
    """What the other one makes while the folder is emptied is dropped, too."""
    one, two = clients(0), clients(1)
    ended = threading.Event()
    filled: list[int] = []
    refused: list[int] = []

    def fill() -> None:
        while not ended.is_set():
            try:
                two.run("CREATE DATABASE IF NOT EXISTS shop")
                two.run("CREATE TABLE shop.t (a INT PRIMARY KEY) ENGINE=STRATA", "CREATE VIEW shop.v AS SELECT a FROM shop.t")
                filled.append(1)
            except pymysql.MySQLError as error:
                refused.append(int(error.args[0]))

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    until = time.monotonic() + 8
    drops = 0
    while time.monotonic() < until:
        one.run("DROP DATABASE IF EXISTS shop" if drops % 2 else "CREATE OR REPLACE DATABASE shop")
        drops += 1
        time.sleep(random.uniform(0, 0.04))  # in which it is filled, or has begun to be
    ended.set()
    filling.join(DEADLINE_S)
    print(f"dropped {drops} times, filled {len(filled)} times, refused {sorted(set(refused))}")
    assert filled and drops > 5
    one.run("DROP DATABASE IF EXISTS shop")


def test_tables_change_places_at_once_for_all(clients: Connect) -> None:
    """RENAME of several tables, as tools that copy a table end: no statement on another server finds one under neither name."""
    one, two = clients(0), clients(1)
    for name in ("t", "u"):
        one.run(f"CREATE TABLE {name} (a INT PRIMARY KEY, b INT) ENGINE=STRATA", f"INSERT INTO {name} VALUES (1, 0)")
    ended = threading.Event()
    failed: list[int] = []
    done: list[int] = []

    def use(client: Client, statement: str) -> None:
        while not ended.is_set():
            try:
                client.run(statement)
                done.append(1)
            except pymysql.MySQLError as error:
                failed.append(int(error.args[0]))

    statements = ("SELECT * FROM t", "UPDATE t SET b = b + 1 WHERE a = 1", "SELECT u.b FROM t JOIN u USING (a)")
    workers = [threading.Thread(target=use, args=(clients(n % 2), s), daemon=True) for n, s in enumerate(2 * statements)]
    for worker in workers:
        worker.start()
    for _ in range(20):
        one.run("RENAME TABLE t TO old, u TO t, old TO u")
        two.run("RENAME TABLE u TO old, t TO u, old TO t")
        one.run("RENAME TABLE t TO aside, aside TO t")
    ended.set()
    for worker in workers:
        worker.join(DEADLINE_S)
    print(f"{len(done)} statements, {len(failed)} found a changed definition")
    assert set(failed) <= {DEFINITION_CHANGED} and len(done) > 20
    assert two.error_of("SELECT * FROM old") == NO_SUCH_TABLE
    for name in ("t", "u"):
        assert one.run(f"CHECK TABLE {name}")[-1][3] == "OK"


def test_a_rename_of_several_tables_that_fails_changes_nothing(cluster: Several, clients: Connect) -> None:
    one, two = clients(0), clients(1)
    for name in ("t", "u", "v"):
        one.run(f"CREATE TABLE {name} (a INT PRIMARY KEY) ENGINE=STRATA", f"INSERT INTO {name} VALUES (1)")
    # It has to wait for too long for the second one.
    two.run("BEGIN", "SELECT * FROM u")
    one.run("SET lock_wait_timeout = 2")
    logged = len(cluster.servers[0].log_lines())
    began = time.monotonic()
    assert one.error_of("RENAME TABLE t TO t_old, u TO u_old") == LOCK_WAIT_TIMEOUT
    assert one.error_of("RENAME TABLE u TO u_old") == LOCK_WAIT_TIMEOUT
    # None of them for twice as long, as if there were something to take back.
    assert time.monotonic() - began < 7
    assert not any("DDL_LOG" in line for line in cluster.servers[0].log_lines()[logged:])
    assert two.run("SELECT * FROM u") == [(1,)] == clients(1).run("SELECT * FROM t")
    two.run("COMMIT")
    # There is something of the last one's name.
    assert one.error_of("RENAME TABLE t TO t_old, u TO v") == TABLE_EXISTS
    for client in (one, two):
        assert [client.run(f"SELECT * FROM {name}") for name in ("t", "u", "v")] == [[(1,)]] * 3
        assert client.error_of("SELECT * FROM t_old") == NO_SUCH_TABLE
    # Nothing stays locked.
    two.run("DROP TABLE t", "ALTER TABLE u ADD COLUMN b INT", "RENAME TABLE u TO u_old, v TO u")
    assert one.run("SELECT * FROM u") == [(1,)]


def test_a_rename_meets_what_another_server_does_to_the_table(clients: Connect) -> None:
    """What the server is told of the table before the rename stays so: it is there while it is changed, or it is not there."""
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY) ENGINE=STRATA")
    until = time.monotonic() + SECONDS_OF_RENAMES
    failed: list[tuple[str, str]] = []
    done: list[str] = []

    def use(client: Client, may: tuple[int, ...], *statements: str) -> None:
        while time.monotonic() < until:
            for statement in statements:
                try:
                    client.run(statement)
                    done.append(statement)
                except pymysql.MySQLError as error:
                    if error.args[0] not in (*may, DEADLOCK, DEFINITION_CHANGED):
                        failed.append((statement, str(error)))

    work: list[tuple[Client, tuple[int, ...], tuple[str, ...]]] = [
        (one, (), ("ALTER TABLE t FORCE", "ALTER TABLE t FORCE, ALGORITHM=COPY")),
        (two, (), ("RENAME TABLE t TO aside, aside TO t",)),
        (clients(0), (), ("CREATE TABLE IF NOT EXISTS u (a INT PRIMARY KEY) ENGINE=STRATA", "DROP TABLE IF EXISTS u")),
        (clients(1), (TABLE_EXISTS,), ("RENAME TABLE IF EXISTS u TO v", "RENAME TABLE IF EXISTS v TO u")),
        (clients(1), (TABLE_EXISTS, NO_SUCH_TABLE), ("ALTER TABLE u RENAME TO v", "ALTER TABLE v RENAME TO u")),
    ]
    workers = [threading.Thread(target=use, args=(client, may, *statements), daemon=True) for client, may, statements in work]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_S)
    print(f"{len(done)} statements")
    assert failed == [] and len(done) > 20
    assert two.run("SELECT * FROM t") == []


def test_a_killed_create_leaves_nothing(clients: Connect) -> None:
    """The server drops what it has made when the statement is killed in the middle: a sequence without its row is of no use."""
    one, two, killer = clients(0), clients(1), clients(0)
    number = int(one.run("SELECT CONNECTION_ID()")[0][0])
    until = time.monotonic() + SECONDS_OF_KILLS
    rng = random.Random(number)
    killed = 0
    while time.monotonic() < until:
        work = Behind(one, rng.choice(("CREATE OR REPLACE SEQUENCE q", "CREATE SEQUENCE q")))
        time.sleep(rng.uniform(0, 0.03))
        killer.run(f"KILL QUERY {number}")
        work.join(DEADLINE_S)
        killed += work.error == INTERRUPTED
        assert work.error in (0, INTERRUPTED, TABLE_EXISTS)
        asked = Behind(two, "SELECT NEXT VALUE FOR q")
        asked.join(DEADLINE_S)
        assert asked.error in (0, NO_SUCH_TABLE, NO_SUCH_SEQUENCE)
        if rng.random() < 0.5:
            two.run("DROP SEQUENCE IF EXISTS q")
    print(f"{killed} were killed")
    assert killed > 0
    two.run("DROP SEQUENCE IF EXISTS q")


def test_ddl_on_both_servers_at_once(clients: Connect) -> None:
    """None waits for another until a timeout; each is done, or has failed for a reason."""
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "INSERT INTO t VALUES (1, 1)")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    choices = [
        "ALTER TABLE t ADD COLUMN c{n} INT, ALGORITHM=COPY",
        "ALTER TABLE t ADD INDEX i{n} (b)",
        "ALTER TABLE t FORCE",
        "OPTIMIZE TABLE t",
        "TRUNCATE TABLE t",
        "RENAME TABLE t TO t{n}, t{n} TO t",
        "INSERT INTO t (a, b) VALUES ({n}, {n})",
        "CREATE TABLE IF NOT EXISTS t (a INT PRIMARY KEY, b INT) ENGINE=STRATA",
        "CREATE OR REPLACE TABLE t (a INT PRIMARY KEY, b INT) ENGINE=STRATA",
    ]
    slowest = 0.0
    for number in range(1, 41):  # No row of theirs is the one above.
        began = time.monotonic()
        chosen = [rng.choice(choices).format(n=f"{number}{i}") for i in (1, 2)]
        work = [Behind(client, statement) for client, statement in zip((one, two), chosen, strict=True)]
        for behind in work:
            behind.join(DEADLINE_S)
            assert not behind.is_alive(), chosen
            # The other one's statement may have come in between two steps of this one (RENAME, CREATE OR REPLACE).
            fine = (0, DEADLOCK, DEFINITION_CHANGED, NO_SUCH_TABLE, TABLE_EXISTS, 1005, 1025, 1051)
            assert behind.error in fine, (chosen, behind.error)
        slowest = max(slowest, time.monotonic() - began)
    print(f"slowest {slowest:.1f} s")
    one.run("INSERT INTO t (a, b) VALUES (-1, -1)")
    assert two.run("SELECT b FROM t WHERE a = -1") == [(-1,)]
    assert two.run("CHECK TABLE t")[-1][3] == "OK"


class Load(threading.Thread):
    """Inserts and reads until told to stop; keeps what was acknowledged."""

    def __init__(self, server: Server, table: str, number: int, may_fail: tuple[int, ...]) -> None:
        super().__init__(daemon=True)
        self._client, self._table, self._may_fail = Client(server), table, may_fail
        self.number = number
        self.acknowledged: list[int] = []
        self.failed = 0
        self.error = ""
        self.slowest = 0.0
        self.stop_wanted = threading.Event()
        self.start()

    def run(self) -> None:
        n = 0
        while not self.stop_wanted.is_set() and not self.error:
            n += 1
            began = time.monotonic()
            try:
                self._client.run(f"INSERT INTO {self._table} (server, n) VALUES ({self.number}, {n})")
                self.acknowledged.append(n)
                self._client.run(f"SELECT COUNT(*) FROM {self._table} WHERE server = {self.number}")
            except pymysql.MySQLError as error:
                self.failed += 1
                if error.args[0] not in self._may_fail:
                    self.error = str(error)
            self.slowest = max(self.slowest, time.monotonic() - began)

    def end(self) -> None:
        self.stop_wanted.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()
        self._client.close()
        assert self.error == ""


def test_others_go_on_while_one_changes_tables(cluster: Several, clients: Connect) -> None:
    one = clients(0)
    one.run("CREATE TABLE busy (server INT, n INT, PRIMARY KEY (server, n)) ENGINE=STRATA")
    one.run("CREATE TABLE altered (server INT, n INT, PRIMARY KEY (server, n)) ENGINE=STRATA")
    loads = [Load(cluster.servers[number % 2], "busy", number, ()) for number in (1, 2, 3)]
    for number in range(40):
        one.run(
            f"CREATE TABLE t{number} (a INT PRIMARY KEY, b INT) ENGINE=STRATA",
            f"ALTER TABLE t{number} ADD COLUMN c INT, ALGORITHM=COPY",
            f"ALTER TABLE t{number} ADD INDEX (b)",
            f"RENAME TABLE t{number} TO u{number}",
            f"DROP TABLE u{number}",
        )
    for load in loads:
        assert load.is_alive()
        load.end()
        assert len(load.acknowledged) > 0
    print("slowest", [f"{load.slowest:.2f}" for load in loads], "failed", [load.failed for load in loads])
    for load in loads:
        found = {row[0] for row in one.run(f"SELECT n FROM busy WHERE server = {load.number}")}
        assert set(load.acknowledged) == found


def test_nothing_is_lost_under_alter(cluster: Several, clients: Connect) -> None:
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (server INT, n INT, PRIMARY KEY (server, n)) ENGINE=STRATA")
    may_fail = (LOCK_WAIT_TIMEOUT, DEADLOCK, DEFINITION_CHANGED)
    loads = [Load(cluster.servers[number % 2], "t", number, may_fail) for number in (1, 2, 3, 4)]
    for number in range(12):
        client = (one, two)[number % 2]
        client.run(f"ALTER TABLE t ADD COLUMN c{number} INT, ALGORITHM=COPY", f"ALTER TABLE t ADD INDEX i{number} (n)")
        client.run(f"ALTER TABLE t DROP COLUMN c{number}, DROP INDEX i{number}, ALGORITHM=COPY")
    for load in loads:
        load.end()
    print("failed", [(load.failed, len(load.acknowledged)) for load in loads])
    for client in (one, two):
        for load in loads:
            found = {row[0] for row in client.run(f"SELECT n FROM t WHERE server = {load.number}")}
            assert set(load.acknowledged) <= found
        assert client.run("CHECK TABLE t")[-1][3] == "OK"


def test_drop_under_load(cluster: Several, clients: Connect) -> None:
    one = clients(0)
    make = "CREATE TABLE t (server INT, n INT, PRIMARY KEY (server, n)) ENGINE=STRATA"
    one.run(make)
    may_fail = (LOCK_WAIT_TIMEOUT, DEADLOCK, DEFINITION_CHANGED, NO_SUCH_TABLE, 1062)
    loads = [Load(cluster.servers[number % 2], "t", number, may_fail) for number in (1, 2, 3)]
    for _ in range(15):
        one.run("DROP TABLE t", make, "TRUNCATE TABLE t")
    for load in loads:
        load.end()
    assert one.run("CHECK TABLE t")[-1][3] == "OK"


def test_a_server_is_killed_in_the_middle_of_an_alter(cluster: Several, clients: Connect) -> None:
    one = clients(0)
    one.run("CREATE TABLE big (a INT PRIMARY KEY, b VARCHAR(200)) ENGINE=STRATA")
    one.run("INSERT INTO big SELECT seq, REPEAT('x', 100) FROM seq_1_to_20000", "CREATE TABLE mark (a INT) ENGINE=STRATA")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    victim = cluster.servers[1]
    statements = ("ALTER TABLE big ADD COLUMN c{n} INT DEFAULT 1, ALGORITHM=COPY", "ALTER TABLE big ADD INDEX i{n} (b)")
    for n in range(4):
        client = Client(victim)
        Behind(client, statements[n % 2].format(n=n))
        time.sleep(rng.random() * 0.6)
        victim.kill()
        cluster.start(victim)
        # Whole, of one definition, and usable from both.
        for server in cluster.servers:
            assert server.query("SELECT COUNT(*), SUM(a) FROM test.big") == [(20000, 200010000)]
            assert server.query("CHECK TABLE test.big")[-1][3] == "OK"
        columns = [server.query("SHOW CREATE TABLE test.big") for server in cluster.servers]
        assert columns[0] == columns[1]
        one.run("ALTER TABLE big ADD COLUMN d INT, ALGORITHM=COPY")
        victim.query("ALTER TABLE test.big DROP COLUMN d, ALGORITHM=COPY")
        victim.query("INSERT INTO test.mark VALUES (1)", autocommit=True)
    assert one.run("SELECT COUNT(*) FROM mark") == [(4,)]


def test_ddl_fails_while_the_memory_node_is_silent(cluster: Several, clients: Connect) -> None:
    """Nothing hangs for ever, nothing is half done, and all goes on with its answer."""
    one, two = clients(0), clients(1)
    one.run("CREATE TABLE t (a INT PRIMARY KEY) ENGINE=STRATA", "INSERT INTO t VALUES (1)")
    two.run("SELECT * FROM t")
    one.run("SET lock_wait_timeout = 3")
    pid = cluster.memory.pid()
    assert pid is not None
    pause(pid)
    try:
        behind = Behind(one, "ALTER TABLE t ADD COLUMN b INT")
        assert wait_until(lambda: has_begun(cluster.servers[0], "ALTER TABLE t ADD COLUMN b"), DEADLINE_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    behind.join(DEADLINE_S)
    assert not behind.is_alive()
    again = Client(cluster.servers[0])
    columns = [row[0] for row in again.run("SHOW COLUMNS FROM t")]
    assert columns == (["a", "b"] if behind.error == 0 else ["a"])
    assert [row[0] for row in two.run("SHOW COLUMNS FROM t")] == columns
    again.close()
