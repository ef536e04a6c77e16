"""How clients reach the compute node that serves at the moment, and what it may refuse them while its cluster is disturbed."""

import collections
import contextlib
import random
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pymysql
from strata_cli.server import Server
from strata_cli.waiting import wait_until

if TYPE_CHECKING:
    _Plain = pymysql.connections.Connection[Any]
else:
    _Plain = pymysql.connections.Connection

# No lease, or fenced: reads and writes are refused (K13). The log has no quorum any more: nobody knows what became of a COMMIT.
# Errors of the handler that DDL and commits wrap.
REFUSALS = {1036, 1296, 1297, 1180, 1181, 1030, 1005, 1025, 1402}
# The whole transaction was rolled back, since a part of it could not be undone: right while errors strike, and after an excused
# error in the same transaction; wrong in any other, as when a session were never to get a fresh one.
ONLY_ROLLBACK = 4060
# What a disk that is full or fails may be called besides.
DISK_ERRORS = {1114, 1021, 1296, 1815, ONLY_ROLLBACK}
ENDS = ("COMMIT", "ROLLBACK")
LOST = 2013
TURNED_AWAY = "turned away"
LOG_TIMEOUT_S = 2.0


class Clients:
    """A Connector. Thread-safe, but for `server` and `tolerant`, which the run sets while it is the only one to look."""

    def __init__(self, refusals: Collection[int] = frozenset(REFUSALS), kept_share: float = 0.0) -> None:
        """An excused error breaks the connection, but for a share of the connections, which go on with the next statement."""
        self._refusals = refusals
        self._kept_share = kept_share
        self._rng = random.Random("connections")
        self.server: Server | None = None
        self.tolerant = False  # A fault that may turn clients away has struck in this round.
        self.turned_away: collections.Counter[str] = collections.Counter()
        self._latch = threading.Lock()

    def connect(self, **options: Any) -> "pymysql.connections.Connection[Any]":
        if self.server is None:
            raise pymysql.err.OperationalError(LOST, "no compute node serves")
        defaults = {"user": "root", "unix_socket": str(self.server.socket), "charset": "utf8mb4", "ssl_disabled": True}
        with self._latch:
            kept = self._rng.random() < self._kept_share
        return _Connection(self, kept, **{**defaults, **options})

    def excuses(self, error: pymysql.MySQLError) -> bool:
        """Also a lease that was lost on a busy machine, if the server says so."""
        code = error.args[0] if error.args else 0
        if code not in self._refusals or not (self.tolerant or wait_until(self._lease_was_lost, LOG_TIMEOUT_S)):
            return False
        with self._latch:
            self.turned_away[str(error)[:80]] += 1
        return True

    def _lease_was_lost(self) -> bool:
        return self.server is not None and any("STRATA: registry lease" in line for line in self.server.log_lines())


class _Connection(_Plain):
    """A refusal that is excused breaks the connection: the client knows as little as when the server dies. Or it is marked, and
    the client goes on."""

    def __init__(self, clients: Clients, kept: bool, **options: Any) -> None:
        self._clients = clients
        self._kept = kept
        self._tainted = False  # An excused error in the transaction that is open.
        super().__init__(**options)

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        tainted, self._tainted = self._tainted, self._tainted and str(sql) not in ENDS
        try:
            return super().query(sql, unbuffered)
        except pymysql.MySQLError as error:
            if not (tainted and error.args[:1] == (ONLY_ROLLBACK,)) and not self._clients.excuses(error):
                raise
            self._tainted = str(sql) not in ENDS
            if self._kept:
                error.excused = True  # type: ignore[attr-defined]
                raise
            with contextlib.suppress(pymysql.MySQLError):
                self.close()
            raise pymysql.err.OperationalError(LOST, f"{TURNED_AWAY}: {error}") from error
