"""`./strata import --from-innodb`: every row, index and foreign key is there afterwards, whatever ended the command before."""

import json
import subprocess
import threading
from typing import Any

import pymysql
import pytest
from strata_cli import paths
from strata_cli.server import Server
from strata_cli.waiting import wait_until

SHOP = (
    "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(40), boss INT, FOREIGN KEY works_for (boss) REFERENCES people (id))",
    "CREATE TABLE orders (id INT PRIMARY KEY, who INT, last_line INT, CONSTRAINT of FOREIGN KEY (who) REFERENCES people (id)"
    " ON DELETE CASCADE)",
    "CREATE TABLE order_lines (id INT AUTO_INCREMENT PRIMARY KEY, in_order INT, what VARCHAR(30), KEY (what),"
    " CONSTRAINT inside FOREIGN KEY (in_order) REFERENCES orders (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE plain (id INT PRIMARY KEY, v LONGTEXT, made INT AS (id + 1) VIRTUAL, KEY (made))",
    "CREATE TABLE words (id INT PRIMARY KEY, v TEXT, FULLTEXT (v))",
    "CREATE TABLE told (id INT PRIMARY KEY, word INT, FOREIGN KEY (word) REFERENCES words (id))",
    "CREATE TABLE split (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
    "CREATE SEQUENCE counter",
    # Bosses with higher numbers: rows come before those that they refer to.
    "INSERT INTO people SELECT seq, CONCAT('p', seq), NULL FROM seq_1_to_300",
    "UPDATE people SET boss = 301 - id WHERE id <> 300",
    "INSERT INTO orders SELECT seq, seq MOD 300 + 1, NULL FROM seq_1_to_500",
    "INSERT INTO order_lines SELECT seq, seq MOD 500 + 1, CONCAT('w', seq MOD 7) FROM seq_1_to_3000",
    "UPDATE orders SET last_line = (SELECT MAX(l.id) FROM order_lines l WHERE l.in_order = orders.id)",
    "ALTER TABLE orders ADD CONSTRAINT ends FOREIGN KEY (last_line) REFERENCES order_lines (id) ON DELETE SET NULL",
    "INSERT INTO plain (id, v) SELECT seq, REPEAT('v', seq) FROM seq_0_to_500",
    "INSERT INTO words VALUES (1, 'one')",
    "INSERT INTO told VALUES (1, 1)",
)
FAMILY = {"shop.people", "shop.orders", "shop.order_lines"}
STAY = {"shop.words": "FULLTEXT", "shop.told": "shop.words", "shop.split": "partitioned"}
KEYS = "SELECT TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS"


def run(server: Server, *statements: str) -> None:
    for sql in statements:
        server.query(sql, database="shop", autocommit=True)


@pytest.fixture
def shop(server: Server) -> Server:
    server.query("SET GLOBAL default_storage_engine = InnoDB")
    server.query("CREATE DATABASE shop")
    run(server, *SHOP)
    return server


def command(server: Server, *extra: str) -> list[str]:
    return [str(paths.ROOT / "strata"), "import", "--from-innodb", "--data", str(server.data), "--json", *extra]


def do_import(server: Server, *extra: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(command(server, *extra), capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def engines(server: Server) -> dict[str, str]:
    rows = server.query("SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'shop'")
    return {f"shop.{name}": engine for name, engine in rows}


def contents(server: Server) -> dict[str, Any]:
    names = sorted(name for name in engines(server) if name != "shop.counter")
    found: dict[str, Any] = {name: server.query(f"CHECKSUM TABLE {name} EXTENDED")[0][1] for name in names}
    found["keys"] = sorted(server.query(KEYS))
    return found


def expect_foreign_keys_to_hold(server: Server) -> None:
    with pytest.raises(pymysql.err.IntegrityError):
        run(server, "INSERT INTO order_lines (in_order) VALUES (70000)")
    with pytest.raises(pymysql.err.IntegrityError):
        run(server, "UPDATE people SET boss = 9000 WHERE id = 1")
    run(server, "DELETE FROM orders WHERE id = 77")
    assert server.query("SELECT COUNT(*) FROM shop.order_lines WHERE in_order = 77") == [(0,)]


def test_everything_that_can_is_converted_and_the_rest_has_a_reason(shop: Server) -> None:
    before = contents(shop)
    code, plan = do_import(shop, "--dry-run")
    assert code == 1 and set(plan["planned"]) == {*FAMILY, "shop.plain", "shop.counter"}
    assert set(engines(shop).values()) == {"InnoDB"}

    code, report = do_import(shop)
    assert code == 1 and set(report["converted"]) == {*FAMILY, "shop.plain", "shop.counter"}
    assert {name for name in STAY if STAY[name] in report["left"][name]} == set(report["left"]) == set(STAY)
    assert {name for name, engine in engines(shop).items() if engine == "STRATA"} == set(report["converted"])
    assert contents(shop) == before
    assert not shop.query("SHOW DATABASES LIKE 'strata_import'")
    expect_foreign_keys_to_hold(shop)
    run(shop, "DROP TABLE told, words, split")
    assert do_import(shop) == (0, {"converted": {}, "left": {}, "planned": []})


def test_killed_in_the_middle_of_a_family_it_goes_on(shop: Server) -> None:
    before = contents(shop)
    holder = shop.connect(database="shop")
    with holder.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM order_lines")  # Its metadata lock: the last of the family cannot be altered.
        process = subprocess.Popen(command(shop), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        waiting = "SELECT ID FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock'"
        assert wait_until(lambda: bool(shop.query(waiting)), 60)
        process.kill()
        process.communicate()
        for (identity,) in shop.query(waiting):
            shop.query(f"KILL {identity}")
        assert shop.query("SELECT COUNT(*) FROM strata_import.journal") == [(1,)]
        assert contents(shop)["keys"] != before["keys"]
        holder.rollback()
    code, report = do_import(shop)
    assert code == 1 and {name for name, engine in engines(shop).items() if engine == "STRATA"} >= FAMILY
    assert set(report["left"]) == set(STAY)
    assert contents(shop) == before
    expect_foreign_keys_to_hold(shop)


def test_a_family_that_fails_is_as_before(shop: Server) -> None:
    """And the tables behind it are converted nevertheless."""
    before = contents(shop)
    locked, end = threading.Event(), threading.Event()

    def hold() -> None:
        connection = shop.connect(database="shop")
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM people")
            locked.set()
            end.wait(60)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert locked.wait(30)
        code, report = do_import(shop, "--lock-wait", "1")
    finally:
        end.set()
        holder.join()
    assert code == 1 and "1205" in report["left"]["shop.orders"]
    assert {name for name, engine in engines(shop).items() if engine == "STRATA"} == {"shop.plain", "shop.counter"}
    assert contents(shop) == before


def test_what_is_asked_for_wrongly(shop: Server) -> None:
    wrong = subprocess.run(command(shop, "-D", "none"), capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode != 0 and "there is no database none" in wrong.stderr
    nowhere = subprocess.run(
        command(shop, "--defaults-file", "/nonexistent"), capture_output=True, text=True, timeout=60, check=False
    )
    assert nowhere.returncode != 0 and "there is no file" in nowhere.stderr
