"""One connection of a client at its isolation level, and what becomes of its statements."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pymysql
from pymysql.constants import CLIENT
from strata_cli.server import Server

from .history import Level

GONE = {0, 2002, 2003, 2006, 2013, 2014, 2055, 1053, 1927}
DEADLOCK = 1213
UNKNOWN_VARIABLE = 1193
# The statement failed, the transaction is still there: lock wait timeout, row changed since the snapshot.
FAILED = {1205, 1020}
LEVELS = {
    Level.RU: "READ UNCOMMITTED",
    Level.RC: "READ COMMITTED",
    Level.RR: "REPEATABLE READ",
    Level.SER: "SERIALIZABLE",
}
ENGINES = ("innodb", "strata")
Result = tuple[list[tuple[Any, ...]], int]
Excuse = Callable[[int, str], bool]  # an error's number and text
ANSWER_TIMEOUT_S = 60
HUNG_S = ANSWER_TIMEOUT_S - 5  # who is cut off after that got no answer at all
PAUSE_S = 0.05  # after an error that was excused


def excuse_nothing(_number: int, _text: str) -> bool:
    return False


class Gone(Exception):
    """The server is not there any more."""


class Failed(Exception):
    """The transaction is over, by the server's will."""


class Session:
    """`excuses`: errors after which the client knows as little as when the server dies. `engines`: that the server has."""

    def __init__(
        self,
        server: Server,
        database: str,
        level: Level,
        snapshot_isolation: bool,
        excuses: Excuse = excuse_nothing,
        engines: Sequence[str] = ENGINES,
    ) -> None:
        self._server, self._database, self._level = server, database, level
        self._snapshot_isolation = snapshot_isolation
        self._excuses = excuses
        self._engines = engines
        self._connection: pymysql.connections.Connection[Any] | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def connect(self) -> bool:
        try:
            self._connection = self._server.connect(
                database=self._database, autocommit=True, client_flag=CLIENT.FOUND_ROWS, read_timeout=ANSWER_TIMEOUT_S
            )
            self.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {LEVELS[self._level]}")
            for engine in self._engines:
                self._set(f"{engine}_snapshot_isolation={int(self._snapshot_isolation)}, {engine}_lock_wait_timeout=2")
        except (pymysql.MySQLError, OSError, Gone):
            self.disconnect()
        return self.connected

    def _set(self, assignment: str) -> None:
        if self.execute(f"SET SESSION {assignment}", (UNKNOWN_VARIABLE,)) is None:
            raise Gone("the engine did not start")  # who starts the server says so

    def disconnect(self) -> None:
        if self._connection is not None:
            try:
                self._connection.close()
            except (pymysql.MySQLError, OSError):
                pass
            self._connection = None

    def execute(self, sql: str, refused: Collection[int] = ()) -> Result | None:
        """Rows and how many were affected. None: one of the errors in `refused`."""
        assert self._connection is not None
        began = time.monotonic()
        try:
            with self._connection.cursor() as cursor:
                affected = cursor.execute(sql)
                return list(cursor.fetchall()), affected
        except pymysql.MySQLError as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            if isinstance(error, pymysql.err.InterfaceError) or code in GONE:
                if time.monotonic() - began > HUNG_S:
                    raise RuntimeError(f"no answer within {HUNG_S} s [{sql[:200]}]") from error
                raise Gone(str(error)) from error
            if code == DEADLOCK or code in FAILED:
                raise Failed(str(code)) from error
            if code in refused:
                return None
            if self._excuses(code, str(error)):
                time.sleep(PAUSE_S)
                raise Gone(str(error)) from error
            raise RuntimeError(f"{error} [{sql[:200]}]") from error
        except (OSError, ValueError, AttributeError) as error:  # What a half-closed socket makes of pymysql.
            raise Gone(str(error)) from error
