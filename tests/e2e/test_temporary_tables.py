"""Temporary tables: nothing is left of them after kill -9 or a clean stop, and their sessions share nothing."""

import threading
from pathlib import Path
from typing import Any

from strata_cli.server import Server

ROWS = 2000


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


def names(server: Server) -> set[str]:
    rows = server.query("SELECT table_schema, table_name FROM information_schema.tables WHERE engine='STRATA'")
    return {f"{schema}.{table}" for schema, table in rows}


def fill(connection: Any, table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE {table} (id INT PRIMARY KEY, v LONGTEXT, k INT, KEY (k)) ENGINE=STRATA")
        cursor.execute(f"INSERT INTO {table} SELECT seq, REPEAT('x', 200), seq % 7 FROM seq_1_to_{ROWS}")


def test_a_crash_leaves_nothing_behind(server: Server) -> None:
    folder = server.datadir / "#strata" / "temporary"
    server.query("CREATE TABLE test.kept (id INT PRIMARY KEY)")
    assert files_of(folder) == [], "made before anybody needs it"
    before = names(server)
    with server.connect(database="test", autocommit=True) as connection:
        fill(connection, "t")
        assert names(server) == before
        assert files_of(folder) != []
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("DELETE FROM t WHERE k = 3")
            cursor.execute("INSERT INTO kept VALUES (1)")
            server.kill()
    server.start(server.settings())
    assert files_of(folder) == []
    assert names(server) == before
    assert server.query("SELECT COUNT(*) FROM test.kept")[0][0] in (0, "0")
    with server.connect(database="test", autocommit=True) as connection:
        fill(connection, "t")
        server.stop()
    assert files_of(folder) == []
    log = server.log.read_text(errors="replace")
    assert "collected" not in log, "temporary tables are not the database's"


def test_a_session_that_ends_takes_its_tables_along(server: Server) -> None:
    """Also one that is killed in the middle of a transaction. Everybody may use the same name at once."""
    problems: list[str] = []

    def work(number: int) -> None:
        connection = server.connect(database="test", autocommit=False)
        try:
            for _ in range(3):
                with connection.cursor() as cursor:
                    cursor.execute("CREATE TEMPORARY TABLE mine (id INT PRIMARY KEY, v INT) ENGINE=STRATA")
                    cursor.executemany("INSERT INTO mine VALUES (%s, %s)", [(i, number) for i in range(50)])
                    cursor.execute("UPDATE mine SET v = v + 100")
                    cursor.execute("SELECT COUNT(*), MIN(v), MAX(v) FROM mine")
                    if tuple(map(int, cursor.fetchall()[0])) != (50, number + 100, number + 100):
                        problems.append(f"session {number} saw somebody else's rows")
                    connection.rollback()
                    cursor.execute("SELECT COUNT(*) FROM mine")
                    if int(cursor.fetchall()[0][0]) != 0:
                        problems.append(f"session {number}: a rollback left rows")
                    cursor.execute("INSERT INTO mine VALUES (1, 1)")
                    if number % 2 == 0:
                        cursor.execute("DROP TEMPORARY TABLE mine")
                        continue
                if number % 2 == 1:  # leaves in the middle
                    connection.close()
                    connection = server.connect(database="test", autocommit=False)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert problems == []
    assert int(server.query("SHOW STATUS LIKE 'Strata_row_lock_waits'")[0][1]) == 0
