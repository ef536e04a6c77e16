"""A rollback or a decided commit that fails while the server lives: nothing of it is committed, nothing decided is lost, no row
stays locked, and the client is told. By fault points, and by a disk that is full for a while."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest
from strata_cli import paths
from strata_cli.server import Server, Settings, choose_port
from strata_cli.waiting import wait_until

ROLLED_BACK = 4060  # ER_ROLLBACK_ONLY
DUPLICATE = 1062
TABLE_FULL = 1114
Rows = tuple[tuple[object, ...], ...]
Connection = pymysql.connections.Connection


def start(data: Path, fault: str | None = None, *options: str, **env: str) -> Server:
    server = Server(data)
    if fault is not None:
        env["STRATA_FAULT"] = fault
    server.start(Settings(port=choose_port(None, 23506)), env=env, extra=options)
    return server


def run(connection: "Connection[pymysql.cursors.Cursor]", sql: str) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return tuple(cursor.fetchall())


def error_of(connection: "Connection[pymysql.cursors.Cursor]", sql: str) -> tuple[int, str]:
    with pytest.raises(pymysql.err.MySQLError) as raised:
        run(connection, sql)
    return int(raised.value.args[0]), str(raised.value.args[1])


@contextmanager
def client(server: Server) -> Iterator["Connection[pymysql.cursors.Cursor]"]:
    connection = server.connect(database="test", autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


def make_table(data: Path, *options: str) -> None:
    server = start(data, None, *options)
    server.query("CREATE DATABASE test")
    server.query("CREATE TABLE t (id INT PRIMARY KEY, n INT)", database="test")
    server.query("INSERT INTO t VALUES (1, 1000), (2, 1000)", database="test", autocommit=True)
    assert server.stop()


BEFORE = [(1, 1000), (2, 1000)]


def rows(server: Server) -> list[tuple[object, ...]]:
    return server.query("SELECT * FROM t ORDER BY id", database="test")


def wait_for_no_locks(server: Server) -> None:
    """The lock wait is the deadline."""
    server.query("SELECT * FROM t FOR UPDATE", database="test", autocommit=True)
    assert rows(server) == BEFORE


def test_a_failed_rollback_to_a_savepoint_takes_the_transaction_with_it(data: Path) -> None:
    make_table(data)
    server = start(data, "rollback_half:1:error")
    with client(server) as connection:
        run(connection, "BEGIN")
        run(connection, "INSERT INTO t VALUES (3, 0)")
        run(connection, "SAVEPOINT s")
        run(connection, "UPDATE t SET n = n - 1 WHERE id = 1")
        run(connection, "UPDATE t SET n = n + 1 WHERE id = 2")
        code, message = error_of(connection, "ROLLBACK TO SAVEPOINT s")
        assert code == ROLLED_BACK and "rolled back" in message and "rollback_half" in message, message
        assert run(connection, "SELECT @@in_transaction") == ((0,),)
        assert error_of(connection, "ROLLBACK TO SAVEPOINT s")[0] == 1305  # There is none any more.
        run(connection, "COMMIT")
    wait_for_no_locks(server)
    server.kill()
    server = start(data)
    assert rows(server) == BEFORE
    assert server.stop()


def test_a_statement_that_cannot_be_undone_takes_the_transaction_with_it(data: Path) -> None:
    make_table(data)
    server = start(data, "rollback_half:2:error")  # The first one undoes the row that is there already.
    with client(server) as connection:
        run(connection, "BEGIN")
        run(connection, "UPDATE t SET n = 0 WHERE id = 1")
        code, message = error_of(connection, "INSERT INTO t VALUES (10, 1), (11, 1), (2, 1)")
        if code == DUPLICATE:  # Nothing of the row with the duplicate had to be undone.
            run(connection, "ROLLBACK")
            run(connection, "BEGIN")
            run(connection, "UPDATE t SET n = 0 WHERE id = 1")
            code, message = error_of(connection, "INSERT INTO t VALUES (10, 1), (11, 1), (2, 1)")
        assert code == ROLLED_BACK and "could not be undone" in message, (code, message)
        assert run(connection, "SELECT @@in_transaction") == ((0,),)
        run(connection, "COMMIT")
        assert run(connection, "SELECT * FROM t ORDER BY id") == tuple(BEFORE)
    wait_for_no_locks(server)
    assert server.stop()


def test_an_autocommitted_statement_that_cannot_be_undone_is_not_committed_by_the_next(data: Path) -> None:
    make_table(data)
    server = start(data, "rollback_half:1:errors=3")
    with client(server) as connection:
        assert error_of(connection, "INSERT INTO t VALUES (10, 1), (11, 1), (2, 1)")[0] == DUPLICATE
        warnings = run(connection, "SHOW WARNINGS")
        assert any("in the background" in str(warning[2]) for warning in warnings), warnings
        run(connection, "SELECT 1 FROM t WHERE id = 1")
        run(connection, "UPDATE t SET n = 1000 WHERE id = 1")
        assert run(connection, "SELECT * FROM t ORDER BY id") == tuple(BEFORE)
    wait_for_no_locks(server)
    assert server.query("SHOW STATUS LIKE 'strata_unfinished_rollbacks'") == [("Strata_unfinished_rollbacks", "0")]
    assert server.stop()


def test_a_client_that_leaves_while_its_rollback_fails_leaves_no_locks(data: Path) -> None:
    make_table(data)
    server = start(data, "rollback_half:1:errors=3")
    with client(server) as connection:
        run(connection, "BEGIN")
        run(connection, "UPDATE t SET n = 0")
    wait_for_no_locks(server)
    with client(server) as connection:
        run(connection, "ALTER TABLE t ADD COLUMN c INT")
        run(connection, "DROP TABLE t")
    assert server.stop()


def test_all_after_a_savepoint_goes_in_the_background_when_there_was_nothing_before_it(data: Path) -> None:
    make_table(data)
    server = start(data, "rollback_half:1:errors=3")
    with client(server) as connection:
        for sql in ("BEGIN", "SAVEPOINT s", "UPDATE t SET n = 0", "ROLLBACK TO SAVEPOINT s"):
            run(connection, sql)
        assert "in the background" in str(run(connection, "SHOW WARNINGS"))
        run(connection, "UPDATE t SET n = n + 1 WHERE id = 1")  # Waits for it.
        run(connection, "COMMIT")
        assert run(connection, "SELECT * FROM t ORDER BY id") == ((1, 1001), (2, 1000))
    assert server.stop()


@pytest.mark.parametrize("nth", [1, 2])
def test_what_the_binary_log_has_is_committed(data: Path, nth: int) -> None:
    """The first commit_ordered() after prepare fails, on the thread that leads the group commit."""
    make_table(data)
    binlog = ("--log-bin=bin", "--server-id=1", "--sync-binlog=1", "--binlog-format=ROW")
    server = start(data, f"commit_before_log:{nth}:error", *binlog)
    with client(server) as connection:
        for key in (11, 12, 13):
            run(connection, f"INSERT INTO t VALUES ({key}, 0)")
        assert len(run(connection, "SELECT * FROM t")) == 5
    server.kill()
    server = start(data, None, *binlog)
    assert [row[0] for row in rows(server)] == [1, 2, 11, 12, 13]
    assert server.stop()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction_whose_end_fails_stays_prepared_and_the_client_is_told(data: Path, end: str) -> None:
    """Of a connection that has left: any other one may end it."""
    make_table(data)
    points = data.parent / "fault-points"
    points.unlink(missing_ok=True)
    server = start(data, None, STRATA_FAULT_FILE=str(points))
    with client(server) as connection:
        for statement in ("XA START 'x'", "INSERT INTO t VALUES (3, 0)", "XA END 'x'", "XA PREPARE 'x'"):
            run(connection, statement)
    with client(server) as connection:
        assert wait_until(lambda: run(connection, "XA RECOVER") != (), 30)
        armed = points.with_suffix(".new")
        armed.write_text("commit_before_log:1:error\n" if end == "COMMIT" else "rollback_half:1:error\n")
        armed.rename(points)
        if end == "COMMIT":
            code, message = error_of(connection, f"XA {end} 'x'")
            assert code in (1296, 1297, 1399, 4060), (code, message)
            assert len(run(connection, "XA RECOVER")) == 1
        points.unlink()
        run(connection, f"XA {end} 'x'")
        assert run(connection, "XA RECOVER") == ()
        after = [*BEFORE, (3, 0)] if end == "COMMIT" else BEFORE
        assert wait_until(lambda: rows(server) == after, 30)
    server.kill()
    server = start(data)
    assert rows(server) == after
    assert server.stop()


def status_code(data: Path) -> tuple[int, str]:
    command = [str(paths.ROOT / "strata"), "status", "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=paths.ROOT, timeout=60)
    return done.returncode, done.stdout


def test_a_full_disk_stops_no_rollback_and_nothing_that_frees_room(data: Path) -> None:
    marker = data.parent / "full-disk-marker"
    marker.unlink(missing_ok=True)
    small = ("--strata-log-buffer-size=1M", "--strata-log-segment-size=1M", "--strata-log-checkpoint-size=64M")
    make_table(data, *small)
    server = start(data, None, *small, STRATA_FULL_DISK=str(marker))
    try:
        server.query("CREATE TABLE big (id INT PRIMARY KEY, v CHAR(40))", database="test")
        server.query("CREATE TABLE other (id INT PRIMARY KEY)", database="test")
        with client(server) as connection:
            run(connection, "INSERT INTO big SELECT seq, REPEAT('a', 40) FROM seq_1_to_20000")
            marker.touch()
            code, _ = error_of(connection, "INSERT INTO big SELECT seq, REPEAT('b', 40) FROM seq_20001_to_2000000")
            assert code == TABLE_FULL
            assert run(connection, "SELECT 1 FROM t WHERE id = 1") == ((1,),)
            assert server.query("SELECT COUNT(*) FROM big", database="test") == [(20000,)]
            code, shown = status_code(data)
            assert code == 4 and "disk is full" in shown and "to do: DELETE" in shown, shown
            run(connection, "DELETE FROM big LIMIT 10")
            run(connection, "DROP TABLE other")
            marker.unlink()
        assert wait_until(lambda: status_code(data)[0] == 0, 30), "it goes on by itself"
        wait_for_no_locks(server)
        with client(server) as connection:
            run(connection, "INSERT INTO big VALUES (5000000, 'c')")
        server.kill()
        server = start(data, None, *small)
        assert server.query("SELECT COUNT(*) FROM big", database="test") == [(19991,)]
        assert server.query("CHECK TABLE big EXTENDED", database="test")[-1][-1] == "OK"
        assert server.stop()
    finally:
        marker.unlink(missing_ok=True)
