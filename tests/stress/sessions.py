"""Connections of clients, which the whole run knows of: who kills one says so, and who waits for too long is found."""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql
from strata_cli.server import Server

from .errors import CONNECTION_LOST, named
from .journal import Journal

Rows = list[tuple[Any, ...]]
READ_TIMEOUT_S = 240.0  # longer than any wait: what takes longer than it may is found by the watch
CONNECT_TIMEOUT_S = 20.0
# What a connection that was killed is told; with the memory node or storage away a server answers in its own way (faults.py).
KILLED_NOTES_MAX = 100_000
VIEW_INVALID = 1356  # said in place of whatever keeps the server from opening what a view needs


class Shared:
    """What all clients of a run have in common. Thread-safe. `excuses(code, text)`: a fault explains this answer."""

    def __init__(self, servers: list[Server], seed: int, journal: Journal, excuses: Callable[[int, str], bool]) -> None:
        self.servers = servers
        self.seed = seed
        self.journal = journal
        self.excuses = excuses
        self.stopping = threading.Event()
        self._unique = itertools.count(1)
        self._latch = threading.Lock()
        self._live: set[Session] = set()
        self._killed: set[tuple[str, int]] = set()

    def unique(self) -> int:
        return next(self._unique)

    def opened(self, session: "Session") -> None:
        with self._latch:
            self._live.add(session)

    def closed(self, session: "Session") -> None:
        with self._latch:
            self._live.discard(session)

    def live(self) -> "list[Session]":
        with self._latch:
            return list(self._live)

    def will_be_killed(self, session: "Session") -> None:
        """Told before it is done."""
        with self._latch:
            self._killed.add((session.server.data.name, session.number))

    def was_killed(self, session: "Session") -> bool:
        with self._latch:
            return (session.server.data.name, session.number) in self._killed

    def judge(
        self, who: str, session: "Session | None", statement: str, error: pymysql.MySQLError, allowed: frozenset[int]
    ) -> None:
        """Whether such a statement may be answered so; if not, it is a problem."""
        code, text = code_of(error), text_of(error)
        if code in allowed:
            return
        if code in CONNECTION_LOST and session is not None and self.was_killed(session):
            return
        hidden = session.hidden if session is not None else []
        for number, said in [(code, text), *hidden]:
            if self.excuses(number, said):
                self.journal.excuse(f"{number} {said[:80]}")
                return
        self.journal.wrong(f"error {named(code)}", f"{who}: {statement}\n    {text}", who)


class Session:
    """A connection, in autocommit. Not thread-safe, but for what others may ask of it: `statement` and `since`."""

    def __init__(self, shared: Shared, server: Server, who: str) -> None:
        self._shared = shared
        self.server = server
        self.who = who
        self.statement = ""
        self.since = 0.0
        self.hidden: list[tuple[int, str]] = []  # the errors in whose place the last statement's was said
        self._connection = server.connect(autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S)
        self.number = int(self._connection.thread_id())  # type: ignore[no-untyped-call]
        shared.opened(self)

    def run(self, statement: str) -> Rows:
        """Raises pymysql.MySQLError, whatever comes between."""
        began = time.monotonic()
        self.statement, self.since = statement, began
        code, text, self.hidden = 0, "", []
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
                while cursor.nextset():
                    pass
            return rows
        except pymysql.MySQLError as error:
            code, text = code_of(error), text_of(error)
            if code == VIEW_INVALID:
                self.hidden = self._errors_aside()
            raise
        except (OSError, AttributeError, ValueError) as error:  # What pymysql makes of a connection that breaks.
            code, text = 2013, f"{type(error).__name__}: {error}"
            raise pymysql.err.OperationalError(code, text) from error
        finally:
            self.statement = ""
            self._shared.journal.answered(self.who, statement, code, text, began)

    def _errors_aside(self) -> list[tuple[int, str]]:
        """The statement's errors that are not its answer: the server keeps them among its warnings."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SHOW WARNINGS")
                return [(int(row[1]), str(row[2])) for row in cursor.fetchall() if row[0] == "Error" and row[1] != VIEW_INVALID]
        except pymysql.MySQLError:
            return []

    def waits_for_s(self) -> float:
        """0: it does not."""
        return time.monotonic() - self.since if self.statement else 0.0

    def close(self) -> None:
        self._shared.closed(self)
        try:
            self._connection.close()
        except (pymysql.MySQLError, OSError):
            pass  # It was gone already.


def code_of(error: pymysql.MySQLError) -> int:
    return int(error.args[0]) if error.args and isinstance(error.args[0], int) else 0


def text_of(error: pymysql.MySQLError) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def is_lost(error: pymysql.MySQLError) -> bool:
    return code_of(error) in CONNECTION_LOST


def names_of(recovered: Rows) -> list[str]:
    """Of the rows of XA RECOVER. The server puts names into quotation marks if it was asked to, for whatever connection."""
    return [str(row[3]).split("'")[1] if "'" in str(row[3]) else str(row[3]) for row in recovered]
