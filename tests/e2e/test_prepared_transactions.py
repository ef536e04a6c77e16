"""What a client has prepared (XA PREPARE) and left, another connection decides at once: what it is told has been done."""

import threading
import time

import pymysql
from strata_cli.server import Server

NO_SUCH_XID = 1397
DEADLINE_S = 30.0
ROUNDS, CLIENTS = 150, 4


def prepare_and_leave(server: Server, xid: str, row: int) -> None:
    connection = server.connect(database="test", autocommit=True)
    with connection.cursor() as cursor:
        for statement in (f"XA START '{xid}'", f"INSERT INTO t VALUES ({row})", f"XA END '{xid}'", f"XA PREPARE '{xid}'"):
            cursor.execute(statement)
    connection.close()  # The server hears of it a moment later.


def decide(connection: "pymysql.connections.Connection[pymysql.cursors.Cursor]", statement: str) -> None:
    """As soon as the server says that the connection which has prepared it has gone."""
    until = time.monotonic() + DEADLINE_S
    with connection.cursor() as cursor:
        while True:
            try:
                cursor.execute(statement)
                return
            except pymysql.MySQLError as error:
                assert error.args[0] == NO_SUCH_XID and time.monotonic() < until, error


def test_what_was_prepared_by_a_connection_that_has_just_gone_can_be_decided(server: Server) -> None:
    """XA COMMIT and XA ROLLBACK come while that connection ends: its XID is free before the engine has its transaction back."""
    server.query("CREATE TABLE test.t (a INT PRIMARY KEY) ENGINE=STRATA")
    failures: list[str] = []

    def work(number: int) -> None:
        try:
            other = server.connect(database="test", autocommit=True)
            for row in range(number * ROUNDS, (number + 1) * ROUNDS):
                prepare_and_leave(server, f"x{row}", row)
                decide(other, f"XA {'COMMIT' if row % 3 else 'ROLLBACK'} 'x{row}'")
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(CLIENTS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(ROUNDS)
    assert failures == []
    expected = {row for row in range(CLIENTS * ROUNDS) if row % 3}
    assert {row for (row,) in server.query("SELECT a FROM test.t")} == expected
    assert server.query("XA RECOVER") == []
    # Nothing is left that nobody can see: rows that were rolled back are free.
    server.query("SET STATEMENT strata_lock_wait_timeout = 1 FOR DELETE FROM test.t", autocommit=True)
    assert server.query("SELECT COUNT(*) FROM information_schema.STRATA_TRX") == [(0,)]
