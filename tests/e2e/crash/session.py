"""A database session that tells three outcomes apart: done, refused by the server, and server gone."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

import pymysql

LOST_CONNECTION = {0, 2002, 2003, 2006, 2013, 2014, 2055, 1053, 1927}
# The transaction was rolled back and may be tried again: deadlock, lock wait timeout, row changed since last read, table changed
# since the transaction's view was made.
RETRY = {1213, 1205, 1020, 1412}
DUPLICATE_KEY = 1062

Row = tuple[Any, ...]


class ServerGone(Exception):
    """The connection broke: what was in flight has an unknown outcome."""


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, message: str, statement: str) -> None:
        super().__init__(f"error {code}: {message} [{statement[:160]}]")
        self.code = code


class Excused(Refused):
    """An error that a fault of this run explains (clients.py). The connection goes on, and so may its transaction."""


class Connector(Protocol):
    def connect(self, **options: Any) -> "pymysql.connections.Connection[Any]": ...


class Session:
    """Not thread-safe: one per worker."""

    def __init__(self, server: Connector, database: str, *, autocommit: bool = False) -> None:
        try:
            self._connection = server.connect(database=database, autocommit=autocommit, read_timeout=60)
        except pymysql.MySQLError as error:
            raise ServerGone(str(error)) from error

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def execute(self, statement: str, arguments: Sequence[Any] | None = None) -> list[Row]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, arguments)
                return list(cursor.fetchall())
        except pymysql.MySQLError as error:
            raise _translated(error, statement) from error
        except (OSError, ValueError, AttributeError) as error:  # What a half-closed socket makes of pymysql.
            raise ServerGone(str(error)) from error

    def commit(self) -> None:
        """An excused error leaves the outcome unknown, as a lost connection does."""
        try:
            self.execute("COMMIT")
        except Excused as error:
            raise ServerGone(str(error)) from error

    def rollback(self) -> None:
        """After an excused error the server owes the rollback, and the connection a fresh transaction."""
        try:
            self.execute("ROLLBACK")
        except Excused:
            pass

    def close(self) -> None:
        try:
            self._connection.close()
        except pymysql.MySQLError:
            pass


def _translated(error: pymysql.MySQLError, statement: str) -> Exception:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if isinstance(error, pymysql.err.InterfaceError) or code in LOST_CONNECTION:
        return ServerGone(str(error))
    kind = Excused if getattr(error, "excused", False) else Refused
    return kind(code, str(error.args[1]) if len(error.args) > 1 else str(error), statement)
