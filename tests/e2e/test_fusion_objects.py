"""Views, triggers, routines, users, events and options of databases of several servers that write the same tables: what is made,
altered or dropped on one is so on all, also on one that was away or comes later, and all end with the same.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pymysql
import pytest
from fusion_cluster import DEADLINE_S, Several, several_in
from pausing import pause
from strata_cli import paths
from strata_cli.server import Server
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion-objects"
ACCESS_DENIED, NO_SUCH_DATABASE, NO_SUCH_TABLE, LOCK_WAIT_TIMEOUT, NO_SUCH_ROUTINE = 1045, 1049, 1146, 1205, 1305
# What another one has made or dropped meanwhile: of tables and views, routines, triggers, users; a definition has changed.
THERE_OR_NOT = {1050, 1133, 1304, 1305, 1359, 1360, 1396, 1412, 4092}
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Several]:
    with several_in(FOLDER, server_options=["--event-scheduler=ON"], shares_accounts=True) as made:
        run(made.add(), "CREATE DATABASE IF NOT EXISTS test")
        made.add()
        yield made


@pytest.fixture
def servers(cluster: Several) -> Iterator[list[Server]]:
    run(cluster.servers[0], "DROP DATABASE IF EXISTS shop")
    for server in cluster.servers:  # Else another one may still have the old one.
        becomes(server, "SHOW DATABASES LIKE 'shop'", [])
    run(cluster.servers[0], "CREATE DATABASE shop")
    for server in cluster.servers:
        becomes(server, "SHOW DATABASES LIKE 'shop'", [("shop",)])
    yield cluster.servers
    run(cluster.servers[0], "DROP DATABASE IF EXISTS shop")


def run(server: Server, *statements: str) -> Rows:
    """In one connection."""
    rows: Rows = []
    with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            rows = list(cursor.fetchall())
    return rows


def error_of(server: Server, *statements: str) -> int:
    try:
        run(server, *statements)
    except pymysql.MySQLError as error:
        return int(error.args[0])
    return 0


def result(server: Server, statement: str) -> Rows | int:
    try:
        return run(server, statement)
    except pymysql.MySQLError as error:
        return int(error.args[0])


def soon(true: Callable[[], bool]) -> None:
    """Within a second on an idle machine; how long it took is told."""
    began = time.monotonic()
    assert wait_until(true, DEADLINE_S, every_s=0.05)
    print(f"after {time.monotonic() - began:.2f} s")


def can_run(server: Server, statement: str) -> bool:
    return error_of(server, statement) == 0


def becomes(server: Server, statement: str, expected: Rows | int) -> None:
    last: list[Rows | int] = []

    def true() -> bool:
        last[:] = [result(server, statement)]
        return last == [expected]

    if not wait_until(true, DEADLINE_S, every_s=0.05):
        raise AssertionError(f"{statement}: {last} instead of {expected}")


def user_may(server: Server, user: str, password: str, statement: str) -> int:
    try:
        with closing(server.connect(user=user, password=password, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
    except pymysql.MySQLError as error:
        return int(error.args[0])
    return 0


def may_soon(server: Server, user: str, password: str, statement: str, error: int = 0) -> None:
    last: list[int] = []

    def true() -> bool:
        last[:] = [user_may(server, user, password, statement)]
        return last == [error]

    assert wait_until(true, DEADLINE_S, every_s=0.05), last


def test_views(servers: list[Server]) -> None:
    one, two = servers[:2]
    run(one, "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "INSERT INTO shop.t VALUES (1, 10), (2, 20)")
    run(one, "CREATE VIEW shop.v AS SELECT a FROM shop.t")
    becomes(two, "SELECT * FROM shop.v ORDER BY a", [(1,), (2,)])
    run(two, "ALTER VIEW shop.v AS SELECT b FROM shop.t")
    becomes(one, "SELECT * FROM shop.v ORDER BY b", [(10,), (20,)])
    run(
        one,
        "CREATE OR REPLACE SQL SECURITY INVOKER VIEW shop.v AS SELECT a + b AS c FROM shop.t",
        "CREATE VIEW shop.w AS SELECT * FROM shop.v",
    )
    becomes(two, "SELECT SUM(c) FROM shop.w", [(33,)])
    assert run(one, "SHOW CREATE VIEW shop.v") == run(two, "SHOW CREATE VIEW shop.v")
    run(two, "RENAME TABLE shop.w TO shop.x")
    becomes(one, "SELECT SUM(c) FROM shop.x", [(33,)])
    becomes(one, "SELECT * FROM shop.w", NO_SUCH_TABLE)
    # From within other statements.
    run(one, "EXECUTE IMMEDIATE 'CREATE VIEW shop.y AS SELECT 7 AS n'")
    becomes(two, "SELECT n FROM shop.y", [(7,)])
    run(two, "DROP VIEW shop.v, shop.x, shop.y")
    for view in ("v", "x", "y"):
        becomes(one, f"SELECT * FROM shop.{view}", NO_SUCH_TABLE)
    # A table takes a view's name, and the other way round.
    run(one, "CREATE TABLE shop.v (n INT) ENGINE=STRATA")
    assert run(two, "SELECT COUNT(*) FROM shop.v") == [(0,)]
    run(two, "DROP TABLE shop.v", "CREATE VIEW shop.v AS SELECT 3 AS n")
    becomes(one, "SELECT n FROM shop.v", [(3,)])


def test_triggers_are_there_when_the_statement_returns(servers: list[Server]) -> None:
    one, two = servers[:2]
    run(one, "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "INSERT INTO shop.t VALUES (1, 0)")
    for number in range(1, 6):
        makes, uses = (one, two) if number % 2 else (two, one)
        run(uses, "SELECT * FROM shop.t")  # It is open.
        run(
            makes, f"CREATE TRIGGER shop.g{number} BEFORE INSERT ON shop.t FOR EACH ROW SET NEW.b = COALESCE(NEW.b, 0) + {number}"
        )
        run(uses, f"INSERT INTO shop.t (a) VALUES ({number * 10})")
        expected = number * (number + 1) // 2
        assert run(makes, f"SELECT b FROM shop.t WHERE a = {number * 10}") == [(expected,)]
    assert run(one, "SHOW TRIGGERS FROM shop") == run(two, "SHOW TRIGGERS FROM shop")
    run(two, "DROP TRIGGER shop.g3")
    run(one, "INSERT INTO shop.t (a) VALUES (100)")
    assert run(one, "SELECT b FROM shop.t WHERE a = 100") == [(12,)]
    # They go with the table, and not into another one of that name.
    run(one, "RENAME TABLE shop.t TO shop.u")
    run(two, "INSERT INTO shop.u (a) VALUES (101)", "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA")
    assert run(one, "SELECT b FROM shop.u WHERE a = 101") == [(12,)]
    run(one, "INSERT INTO shop.t (a) VALUES (1)")
    run(two, "INSERT INTO shop.t (a) VALUES (2)")
    assert run(one, "SELECT a, b FROM shop.t ORDER BY a") == [(1, None), (2, None)]
    run(one, "ALTER TABLE shop.u ADD COLUMN c INT, ALGORITHM=COPY", "TRUNCATE TABLE shop.u")
    run(two, "INSERT INTO shop.u (a) VALUES (102)")
    assert run(two, "SELECT b FROM shop.u") == [(12,)]
    run(two, "ALTER TABLE shop.u RENAME TO shop.w, ADD COLUMN d INT, ALGORITHM=COPY")
    run(one, "INSERT INTO shop.w (a) VALUES (103)")
    assert run(one, "SELECT b FROM shop.w WHERE a = 103") == [(12,)]
    # Dropped, made again: none.
    run(two, "DROP TABLE shop.w")
    run(one, "CREATE TABLE shop.w (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "INSERT INTO shop.w (a) VALUES (1)")
    assert run(two, "SELECT b FROM shop.w") == [(None,)]
    for server in (one, two):
        becomes(server, "SHOW TRIGGERS FROM shop", [])
    # What fails leaves nothing.
    assert error_of(one, "CREATE TRIGGER shop.bad BEFORE INSERT ON shop.w FOR EACH ROW SET NEW.nothing = 1") != 0
    run(two, "INSERT INTO shop.w (a) VALUES (2)")


def test_a_trigger_that_is_gone_already_leaves_no_lock(servers: list[Server]) -> None:
    one, two = servers[:2]
    run(one, "CREATE TABLE shop.t (a INT AUTO_INCREMENT PRIMARY KEY) ENGINE=STRATA", "SET GLOBAL lock_wait_timeout = 10")
    with closing(two.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        for number in range(10):
            run(one, f"CREATE TRIGGER shop.g{number} BEFORE INSERT ON shop.t FOR EACH ROW SET @x = 1")
            cursor.execute("INSERT INTO shop.t VALUES ()")
            run(one, f"DROP TRIGGER shop.g{number}")
            # Its file may still be here; whatever is said, the connection has nothing afterwards.
            with contextlib.suppress(pymysql.MySQLError):
                cursor.execute(f"DROP TRIGGER IF EXISTS shop.g{number}")
            run(one, "INSERT INTO shop.t VALUES ()")
    run(one, "SET GLOBAL lock_wait_timeout = DEFAULT")


def test_routines(servers: list[Server]) -> None:
    one, two = servers[:2]
    run(one, "CREATE FUNCTION shop.f(x INT) RETURNS INT DETERMINISTIC RETURN x + 1")
    becomes(two, "SELECT shop.f(1)", [(2,)])
    with closing(two.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT shop.f(1)")  # This connection has it cached.
        assert cursor.fetchall() == ((2,),)
        run(one, "CREATE OR REPLACE FUNCTION shop.f(x INT) RETURNS INT DETERMINISTIC RETURN x + 2")

        def is_new() -> bool:
            cursor.execute("SELECT shop.f(1)")
            return bool(cursor.fetchall() == ((3,),))

        soon(is_new)
    run(two, "CREATE PROCEDURE shop.p() BEGIN EXECUTE IMMEDIATE 'CREATE VIEW shop.made AS SELECT 1 AS n'; END")
    becomes(one, "CALL shop.p()", [])
    becomes(two, "SELECT n FROM shop.made", [(1,)])
    run(one, "ALTER PROCEDURE shop.p COMMENT 'of one'")
    becomes(two, "SELECT comment FROM mysql.proc WHERE db = 'shop' AND name = 'p'", [("of one",)])
    run(
        one,
        "SET sql_mode = 'ORACLE'",
        "CREATE PACKAGE shop.pack AS FUNCTION n RETURN INT; END",
        "CREATE PACKAGE BODY shop.pack AS FUNCTION n RETURN INT AS BEGIN RETURN 5; END; END",
    )
    becomes(two, "SELECT shop.pack.n()", [(5,)])
    run(two, "DROP FUNCTION shop.f")
    becomes(one, "SELECT shop.f(1)", NO_SUCH_ROUTINE)


def test_users_and_rights(servers: list[Server]) -> None:
    one, two = servers[:2]
    run(one, "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA")
    run(one, "CREATE USER anna IDENTIFIED BY 'secret one'", "GRANT SELECT ON shop.t TO anna")
    may_soon(two, "anna", "secret one", "SELECT * FROM shop.t")
    assert user_may(two, "anna", "secret one", "INSERT INTO shop.t VALUES (1, 1)") == 1142
    # What two does rests on what one has done a moment ago, and the other way round.
    for number in range(5):
        run(one, f"CREATE USER u{number} IDENTIFIED BY 'x'")
        run(two, f"GRANT INSERT ON shop.* TO u{number}", f"GRANT SELECT (a) ON shop.t TO u{number}")
        assert run(one, f"SHOW GRANTS FOR u{number}")[-1:] != []
        run(one, f"REVOKE INSERT ON shop.* FROM u{number}")
        may_soon(two, f"u{number}", "x", "SELECT a FROM shop.t")
        may_soon(two, f"u{number}", "x", "INSERT INTO shop.t VALUES (1, 1)", 1142)
        run(two, f"DROP USER u{number}")
        may_soon(one, f"u{number}", "x", "SELECT 1", ACCESS_DENIED)
    run(two, "SET PASSWORD FOR anna = PASSWORD('secret two')")
    may_soon(one, "anna", "secret two", "SELECT 1")
    assert user_may(one, "anna", "secret one", "SELECT 1") == ACCESS_DENIED
    run(
        one,
        "CREATE ROLE clerk",
        "GRANT INSERT, SELECT ON shop.* TO clerk",
        "GRANT clerk TO anna",
        "SET DEFAULT ROLE clerk FOR anna",
    )
    may_soon(two, "anna", "secret two", "INSERT INTO shop.t VALUES (7, 7)")
    run(two, "RENAME USER anna TO berta")
    may_soon(one, "berta", "secret two", "SELECT * FROM shop.t")
    run(one, "ALTER USER berta ACCOUNT LOCK")
    may_soon(two, "berta", "secret two", "SELECT 1", 4151)
    run(two, "DROP USER berta", "DROP ROLE clerk")
    may_soon(one, "berta", "secret two", "SELECT 1", ACCESS_DENIED)
    # What fails changes nothing, here or there.
    assert error_of(one, "CREATE USER carla IDENTIFIED BY 'x', root@localhost") == 1396
    run(one, "DROP USER IF EXISTS carla")
    assert error_of(one, "GRANT SELECT ON shop.* TO nobody_of_that_name") != 0
    for server in (one, two):
        becomes(server, "SELECT user FROM mysql.global_priv WHERE user = 'carla'", [])


def test_accounts_that_cannot_be_read_keep_statements_from_going_on(servers: list[Server]) -> None:
    """What another server has changed cannot be taken over for a while: GRANT and the like wait, and then fail."""
    one, two = servers[:2]
    run(one, "CREATE USER later IDENTIFIED BY 'o'")
    may_soon(two, "later", "o", "SELECT 1")
    run(one, "RENAME TABLE mysql.db TO mysql.away")
    try:
        run(one, "UPDATE mysql.global_priv SET user = user")
        began = time.monotonic()
        said = "SET PASSWORD FOR later = PASSWORD('p')"  # It opens mysql.global_priv only.
        with pytest.raises(
            pymysql.MySQLError, match="accounts, or foreign servers, that other servers have changed cannot be read"
        ):
            run(two, "SET lock_wait_timeout = 3", said)
        assert 2 < time.monotonic() - began < 60
        run(two, "CREATE TABLE shop.t (a INT) ENGINE=STRATA", "INSERT INTO shop.t VALUES (1)")
    finally:
        run(one, "RENAME TABLE mysql.away TO mysql.db")
    assert user_may(one, "later", "o", "SELECT 1") == 0
    run(two, "SET lock_wait_timeout = 100", said)
    may_soon(one, "later", "p", "SELECT 1")
    run(one, "DROP USER later")


def test_accounts_change_on_all_while_all_read_them_again(servers: list[Server]) -> None:
    """What a server remembers of accounts is read again without locks: no statement for them ends in a deadlock."""
    failed: list[str] = []

    def work(number: int, until: float) -> None:
        name = f"w{number}"
        with closing(servers[number % len(servers)].connect(autocommit=True)) as connection, connection.cursor() as cursor:
            while time.monotonic() < until and not failed:
                for statement in (
                    f"CREATE USER {name} IDENTIFIED BY 'x'",
                    f"GRANT SELECT ON shop.* TO {name}",
                    f"REVOKE SELECT ON shop.* FROM {name}",
                    f"DROP USER {name}",
                ):
                    try:
                        cursor.execute(statement)
                    except pymysql.MySQLError as error:
                        failed.append(f"{statement}: {error}")

    workers = [threading.Thread(target=work, args=(n, time.monotonic() + 8), daemon=True) for n in range(2 * len(servers))]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        for server in servers:
            run(server, "FLUSH PRIVILEGES")
    assert not failed


def test_a_statement_for_accounts_that_cannot_read_on_changes_nothing(servers: list[Server]) -> None:
    """The server passes over errors of its scans: a DROP ROLE that waits in vain for a row must not leave it and drop a role."""
    run(servers[0], "CREATE ROLE a, b", "GRANT a TO b", "CREATE USER u", "GRANT a TO u")
    granted = "SELECT user, role, admin_option FROM mysql.roles_mapping WHERE role = 'a' ORDER BY 1"
    before = run(servers[0], granted)
    with closing(servers[0].connect(autocommit=True)) as reader, reader.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM mysql.roles_mapping WHERE role = 'a' LOCK IN SHARE MODE")
        assert error_of(servers[0], "SET strata_lock_wait_timeout = 1", "DROP ROLE a") == LOCK_WAIT_TIMEOUT
    for server in servers:
        assert run(server, granted) == before
        assert run(server, "SELECT user FROM mysql.global_priv WHERE user = 'a'") == [("a",)]
        becomes(server, "SHOW GRANTS FOR a", [("GRANT USAGE ON *.* TO `a`",)])
    run(servers[0], "DROP ROLE a, b", "DROP USER u")
    assert run(servers[1], granted) == []


def test_foreign_servers_are_made_and_dropped_at_once_on_several(servers: list[Server]) -> None:
    """The server keeps its memory of them locked while such a statement runs, so these wait for nothing that reads it again."""
    one, two = servers[:2]
    began = time.monotonic()
    for number in range(10):
        for server, name in ((one, f"a{number}"), (two, f"b{number}")):
            run(server, f"CREATE SERVER {name} FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1', PORT {number})")
        assert error_of(two, f"CREATE SERVER a{number} FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'x')") == 1476
        run(two, f"CREATE USER s{number} IDENTIFIED BY 'p'", f"DROP USER s{number}")
    assert time.monotonic() - began < 40
    rows = [(f"{kind}{number}", number) for kind in "ab" for number in range(10)]
    assert run(one, "SELECT Server_name, Port FROM mysql.servers ORDER BY 1, 2") == rows
    for server, other in ((one, "b"), (two, "a")):
        for number in range(10):
            # It is in the server's memory within a moment, or it would not find it.
            assert wait_until(partial(can_run, server, f"DROP SERVER {other}{number}"), DEADLINE_S, every_s=0.05)
    assert run(two, "SELECT COUNT(*) FROM mysql.servers") == [(0,)]
    assert [error_of(server, "DROP SERVER a1") for server in (one, two)] == [1477, 1477]


def test_options_of_databases(servers: list[Server]) -> None:
    one, two = servers[:2]
    run(one, "ALTER DATABASE shop CHARACTER SET latin1 COMMENT 'cheap'")
    soon(
        lambda: "latin1" in run(two, "SHOW CREATE DATABASE shop")[0][1] and "cheap" in run(two, "SHOW CREATE DATABASE shop")[0][1]
    )
    run(two, "CREATE TABLE shop.t (a VARCHAR(10)) ENGINE=STRATA")
    assert "latin1" in run(one, "SHOW CREATE TABLE shop.t")[0][1]
    run(two, "ALTER DATABASE shop CHARACTER SET utf8mb4 COMMENT 'dear'")
    soon(lambda: "dear" in run(one, "SHOW CREATE DATABASE shop")[0][1])
    # Dropped with all there is in it, and made again: nothing of it comes back.
    run(one, "CREATE VIEW shop.v AS SELECT 1 AS n", "CREATE PROCEDURE shop.p() SELECT 1")
    run(one, "CREATE TRIGGER shop.g BEFORE INSERT ON shop.t FOR EACH ROW SET @x = 1")
    becomes(two, "SELECT n FROM shop.v", [(1,)])
    run(two, "DROP DATABASE shop")
    becomes(one, "SHOW DATABASES LIKE 'shop'", [])
    run(one, "CREATE DATABASE shop")
    becomes(two, "SHOW DATABASES LIKE 'shop'", [("shop",)])
    for server in (one, two):
        assert run(server, "SHOW TABLES FROM shop") == [] == run(server, "SHOW TRIGGERS FROM shop")
        assert error_of(server, "CALL shop.p()") == NO_SUCH_ROUTINE
        assert "dear" not in run(server, "SHOW CREATE DATABASE shop")[0][1]


def has_more_than(work: list[str], most: int) -> bool:
    return len(work) > most


def everything(server: Server) -> list[Any]:
    """What a user sees of the objects."""
    views = run(server, "SELECT table_name, view_definition FROM information_schema.views WHERE table_schema = 'shop' ORDER BY 1")
    triggers = run(
        server,
        "SELECT trigger_name, event_object_table, action_statement FROM information_schema.triggers"
        " WHERE trigger_schema = 'shop' ORDER BY 1",
    )
    routines = run(server, "SELECT name, body FROM mysql.proc WHERE db = 'shop' ORDER BY 1")
    users = run(server, "SELECT user, host, priv FROM mysql.global_priv ORDER BY 1, 2")
    return [views, triggers, routines, users, run(server, "SHOW CREATE DATABASE shop")]


def end_equal(servers: list[Server]) -> None:
    seen: list[Any] = []

    def true() -> bool:
        seen[:] = [everything(server) for server in servers]
        return all(one == seen[0] for one in seen)

    assert wait_until(true, DEADLINE_S), seen


def test_a_server_that_was_away_and_one_that_comes_later(cluster: Several, servers: list[Server]) -> None:
    one, two = servers[:2]
    run(one, "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA", "CREATE VIEW shop.goes AS SELECT 1 AS n")
    run(one, "CREATE TRIGGER shop.gone BEFORE INSERT ON shop.t FOR EACH ROW SET NEW.b = 1", "CREATE USER dora IDENTIFIED BY 'd'")
    becomes(two, "SELECT n FROM shop.goes", [(1,)])
    two.stop()
    run(one, "DROP VIEW shop.goes", "DROP TRIGGER shop.gone", "ALTER DATABASE shop COMMENT 'meanwhile'")
    run(
        one,
        "CREATE VIEW shop.v AS SELECT * FROM shop.t",
        "CREATE TRIGGER shop.g BEFORE INSERT ON shop.t FOR EACH ROW SET NEW.b = 9",
    )
    run(
        one,
        "CREATE FUNCTION shop.f() RETURNS INT RETURN 4",
        "SET PASSWORD FOR dora = PASSWORD('e')",
        "CREATE DATABASE IF NOT EXISTS other",
    )
    run(one, "CREATE VIEW other.v AS SELECT 5 AS n")
    cluster.start(two)
    three = cluster.add()
    for server in (two, three):
        becomes(server, "SELECT n FROM other.v", [(5,)])
        assert error_of(server, "SELECT * FROM shop.goes") == NO_SUCH_TABLE
        assert run(server, "SELECT shop.f()") == [(4,)]
        assert user_may(server, "dora", "e", "SELECT 1") == 0
        run(server, f"INSERT INTO shop.t (a) VALUES ({server.data.name[-1]})")
    assert run(one, "SELECT * FROM shop.v ORDER BY a") == [(2, 9), (3, 9)]
    end_equal([one, two, three])
    run(three, "DROP USER dora", "DROP DATABASE other")


def test_a_database_that_another_server_has_dropped_is_forgotten(servers: list[Server]) -> None:
    """The server remembers that there is a database; another one's DROP DATABASE must not leave that."""
    run(servers[0], "CREATE DATABASE goes")
    becomes(servers[1], "SHOW DATABASES LIKE 'goes'", [("goes",)])
    run(servers[1], "CREATE PROCEDURE goes.p() SELECT 1")
    run(servers[0], "DROP DATABASE goes")
    becomes(servers[1], "SHOW DATABASES LIKE 'goes'", [])
    assert error_of(servers[1], "CREATE PROCEDURE goes.p() SELECT 1") == NO_SUCH_DATABASE
    assert run(servers[1], "SELECT * FROM mysql.proc WHERE db = 'goes'") == []


def test_a_new_database_is_known_to_all_within_a_moment(servers: list[Server]) -> None:
    """A program that makes one may have its next connection to another server."""

    def known_after_s(maker: Server, other: Server) -> float:
        run(maker, "CREATE DATABASE fresh")
        began = time.monotonic()
        assert wait_until(lambda: error_of(other, "USE fresh") == 0, DEADLINE_S, every_s=0.01)
        took = time.monotonic() - began
        run(other, "DROP DATABASE fresh")
        assert wait_until(lambda: error_of(maker, "USE fresh") == NO_SUCH_DATABASE, DEADLINE_S, every_s=0.01)
        return took

    one, two = servers[:2]
    took = sorted(known_after_s(*pair) for pair in 5 * [(one, two), (two, one)])
    print([f"{each:.3f}" for each in took])
    assert took[len(took) // 2] < 0.3, took


def test_a_folder_of_a_database_without_a_row(cluster: Several, servers: list[Server]) -> None:
    """Its server was killed in the middle of CREATE DATABASE: it starts, and the database is there for all."""
    one, two = servers[:2]
    two.stop()
    (two.datadir / "half").mkdir()
    cluster.start(two)
    becomes(one, "SHOW DATABASES LIKE 'half'", [("half",)])
    run(one, "CREATE TABLE half.t (a INT) ENGINE=STRATA", "INSERT INTO half.t VALUES (1)")
    assert run(two, "SELECT a FROM half.t") == [(1,)]
    run(two, "DROP DATABASE half")
    becomes(one, "SHOW DATABASES LIKE 'half'", [])


def test_a_server_is_killed_in_the_middle(cluster: Several, servers: list[Server]) -> None:
    """What it had answered is there at last; all have the same, whatever it was at."""
    one, two = servers[:2]
    run(one, "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for life in range(4):
        acknowledged: list[str] = []

        def work(life: int = life, acknowledged: list[str] = acknowledged) -> None:
            try:
                with closing(two.connect(autocommit=True)) as connection, connection.cursor() as cursor:
                    for n in range(1000):
                        name = f"{life}x{n}"
                        for statement in (
                            f"CREATE VIEW shop.v{name} AS SELECT {n} AS n",
                            f"CREATE TRIGGER shop.g{name} BEFORE INSERT ON shop.t FOR EACH ROW SET @x = {n}",
                            f"CREATE PROCEDURE shop.p{name}() SELECT {n}",
                            f"CREATE USER u{name} IDENTIFIED BY 'x'",
                        ):
                            cursor.execute(statement)
                            acknowledged.append(statement)
            except pymysql.MySQLError:
                pass

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        assert wait_until(partial(has_more_than, acknowledged, 8), DEADLINE_S)
        time.sleep(rng.random())
        two.kill()
        worker.join(DEADLINE_S)
        run(one, f"CREATE VIEW shop.of_one{life} AS SELECT {life} AS n")
        cluster.start(two)
        end_equal(cluster.servers)
        views, triggers, routines, users = everything(one)[:4]
        names = {str(row[0]) for rows in (views, triggers, routines, users) for row in rows}
        for statement in acknowledged:
            name = statement.split()[2].removeprefix("shop.").removesuffix("()")
            assert name in names, statement
        run(one, *[f"DROP USER {row[0]}" for row in users if str(row[0]).startswith(f"u{life}x")])


def test_names_of_triggers_that_a_killed_server_left(cluster: Several, servers: list[Server]) -> None:
    """CREATE TRIGGER writes its name's file first. Nobody else gets it, and it does not keep the database from being dropped."""
    one, two = servers[:2]
    run(one, "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA")
    run(one, "CREATE TRIGGER shop.goes_on BEFORE INSERT ON shop.t FOR EACH ROW SET NEW.b = 7")
    becomes(two, "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = 'shop'", [(1,)])
    two.kill()
    for server in (one, two):
        (server.datadir / "shop" / f"half_{server.data.name[-1]}.TRN").write_text("TYPE=TRIGGERNAME\ntrigger_table=t\n")
    cluster.start(two)
    run(two, "CREATE TRIGGER shop.another BEFORE UPDATE ON shop.t FOR EACH ROW SET NEW.b = 8")
    end_equal(cluster.servers)
    assert not (one.datadir / "shop" / f"half_{two.data.name[-1]}.TRN").exists()
    run(one, "INSERT INTO shop.t VALUES (1, 0)", "UPDATE shop.t SET a = 2")
    assert run(two, "SELECT a, b FROM shop.t") == [(2, 8)]
    run(one, "DROP DATABASE shop")
    for server in (one, two):
        assert wait_until(lambda server=server: not (server.datadir / "shop").exists(), DEADLINE_S)  # type: ignore[misc]


def test_many_change_the_same_at_once(servers: list[Server]) -> None:
    run(servers[0], "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choices = [
        "CREATE VIEW shop.v{k} AS SELECT {n} AS n",
        "CREATE OR REPLACE VIEW shop.v{k} AS SELECT {n} AS n",
        "DROP VIEW shop.v{k}",
        "CREATE TRIGGER shop.g{k} BEFORE INSERT ON shop.t FOR EACH ROW SET @x = {n}",
        "DROP TRIGGER shop.g{k}",
        "CREATE OR REPLACE PROCEDURE shop.p{k}() SELECT {n}",
        "DROP PROCEDURE shop.p{k}",
        "CREATE USER m{k} IDENTIFIED BY '{n}'",
        "GRANT SELECT ON shop.t TO m{k}",
        "SET PASSWORD FOR m{k} = PASSWORD('{n}')",
        "DROP USER m{k}",
        "ALTER DATABASE shop COMMENT '{n}'",
    ]
    done = [0] * len(servers) * 2
    failed: set[int] = set()

    def work(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        with closing(servers[number % len(servers)].connect(autocommit=True)) as connection, connection.cursor() as cursor:
            for n in range(40):
                try:
                    cursor.execute(rng.choice(choices).format(k=rng.randrange(2), n=number * 1000 + n))
                    done[number] += 1
                except pymysql.MySQLError as error:
                    failed.add(int(error.args[0]))

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(done))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(3 * DEADLINE_S)
        assert not worker.is_alive()
    print(f"done {done}")
    assert failed <= THERE_OR_NOT
    end_equal(servers)
    for server in servers:
        assert run(server, "CHECK TABLE shop.t")[-1][3] == "OK"
    run(servers[0], "DROP USER IF EXISTS m0, m1")


def runs_the_events(server: Server) -> bool:
    return bool(run(server, "SELECT 1 FROM information_schema.processlist WHERE user = 'event_scheduler'"))


def test_who_runs_the_events_can_be_stopped_while_a_statement_ends(cluster: Several, servers: list[Server]) -> None:
    """EV5: the server stops its scheduler first, and then waits for statements; nobody starts it again meanwhile."""
    assert wait_until(lambda: any(map(runs_the_events, servers)), DEADLINE_S)
    runner = next(server for server in servers if runs_the_events(server))
    run(runner, "CREATE TABLE shop.t (id INT PRIMARY KEY) ENGINE=STRATA")
    with ThreadPoolExecutor(2) as pool:
        with contextlib.ExitStack() as standing:
            for node in cluster.storage[:2]:
                pid = node.pid()
                assert pid is not None
                pause(pid)
                standing.callback(os.kill, pid, signal.SIGCONT)
            commits = pool.submit(result, runner, "INSERT INTO shop.t VALUES (1)")  # No KILL ends that.
            time.sleep(0.3)
            stopping = pool.submit(runner.stop, 40)
            time.sleep(1.5)
        assert stopping.result(), runner.log_tail()
        commits.result()
    cluster.start(runner)


def test_events_run_once_and_on_one_server(cluster: Several, servers: list[Server]) -> None:
    one, two = servers[:2]
    run(one, "CREATE TABLE shop.ran (id INT AUTO_INCREMENT PRIMARY KEY, server VARCHAR(200), at DATETIME) ENGINE=STRATA")
    run(two, "CREATE EVENT shop.tick ON SCHEDULE EVERY 1 SECOND DO INSERT INTO shop.ran (server, at) VALUES (@@datadir, NOW())")
    counts = "SELECT COUNT(*) FROM shop.ran"
    assert wait_until(lambda: run(one, counts)[0][0] >= 4, DEADLINE_S)
    who = run(one, "SELECT DISTINCT server FROM shop.ran")
    assert len(who) == 1
    # Switched on where it runs already by another one: nothing runs twice.
    for server in servers:
        run(server, "SET GLOBAL event_scheduler = ON")
    before = run(one, counts)[0][0]
    assert wait_until(lambda: run(one, counts)[0][0] >= before + 4, DEADLINE_S)
    assert run(one, "SELECT DISTINCT server FROM shop.ran") == who
    assert run(one, "SELECT at, COUNT(*) FROM shop.ran GROUP BY at HAVING COUNT(*) > 1") == []
    # Another one when this is killed.
    holder = next(server for server in servers if str(server.data) in who[0][0])
    other = next(server for server in servers if server is not holder)
    holder.kill()
    run(other, "DELETE FROM shop.ran WHERE server = 'nobody'")
    assert wait_until(lambda: len(run(other, "SELECT DISTINCT server FROM shop.ran")) == 2, DEADLINE_S)
    # Altered and dropped from wherever.
    cluster.start(holder)
    run(holder, "ALTER EVENT shop.tick DO INSERT INTO shop.ran (server, at) VALUES ('altered', NOW())")
    assert wait_until(lambda: run(other, "SELECT COUNT(*) FROM shop.ran WHERE server = 'altered'")[0][0] >= 2, DEADLINE_S)
    run(other, *["ALTER EVENT shop.tick DISABLE"] * 5)  # What changes nothing is no failure.
    run(
        holder,
        "DROP EVENT shop.tick",
        "CREATE EVENT shop.once ON SCHEDULE AT NOW() + INTERVAL 2 SECOND DO INSERT INTO shop.ran (server) VALUES ('once')",
    )
    assert wait_until(lambda: run(other, "SELECT COUNT(*) FROM shop.ran WHERE server = 'once'") == [(1,)], DEADLINE_S)
    for server in servers:
        becomes(server, "SELECT name FROM mysql.event", [])
    assert run(one, "SELECT at, COUNT(*) FROM shop.ran WHERE at IS NOT NULL GROUP BY at HAVING COUNT(*) > 1") == []
