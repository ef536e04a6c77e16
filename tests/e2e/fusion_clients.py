"""Clients of several servers that write the same tables: a connection, a statement that runs behind the test."""

import threading
from typing import Any

import pymysql
import pytest
from fusion_cluster import DEADLINE_S
from strata_cli.server import Server

NO_SUCH_TABLE, LOCK_WAIT_TIMEOUT, DEADLOCK, INTERRUPTED = 1146, 1205, 1213, 1317
Rows = list[tuple[Any, ...]]


class Client:
    """One connection, in autocommit unless told otherwise."""

    def __init__(self, server: Server) -> None:
        self._connection = server.connect(autocommit=True, database="test")

    def run(self, *statements: str) -> Rows:
        rows: Rows = []
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows

    def error_of(self, statement: str) -> int:
        with pytest.raises(pymysql.MySQLError) as failure:
            self.run(statement)
        return int(failure.value.args[0])

    def number(self) -> int:
        return int(self.run("SELECT CONNECTION_ID()")[0][0])

    def close(self) -> None:
        self._connection.close()


class Behind(threading.Thread):
    """A statement in a thread; the error's number, or its rows."""

    def __init__(self, client: Client, *statements: str) -> None:
        super().__init__(daemon=True)
        self._client, self._statements = client, statements
        self.error = 0
        self.rows: Rows = []
        self.start()

    def run(self) -> None:
        try:
            self.rows = self._client.run(*self._statements)
        except pymysql.MySQLError as error:
            self.error = int(error.args[0])

    def is_waiting(self) -> bool:
        self.join(1.0)
        return self.is_alive()

    def ended(self, error: int = 0) -> Rows:
        self.join(DEADLINE_S)
        assert not self.is_alive(), self._statements
        assert self.error == error, self._statements
        return self.rows


def has_database(server: Server, name: str = "test") -> bool:
    return server.query(f"SHOW DATABASES LIKE '{name}'") == [(name,)]


def drop_all(server: Server) -> None:
    connection = Client(server)
    connection.run("SET foreign_key_checks = 0", "SET lock_wait_timeout = 20")
    for table, kind in connection.run("SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'test'"):
        connection.run(f"DROP {'SEQUENCE' if kind == 'SEQUENCE' else 'TABLE'} test.`{table}`")
    connection.close()
