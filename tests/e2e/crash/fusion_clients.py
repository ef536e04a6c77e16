"""How clients reach several servers that write the same tables, and what these may refuse them."""

from typing import Any

import pymysql
from strata_cli.server import Server
from strata_cli.several_health import tells_of_its_lease

from .clients import DISK_ERRORS, LOST, ONLY_ROLLBACK, REFUSALS, Clients

READ_TIMEOUT_S = 180.0  # Longer than any wait for a lock.
NEVER_EXCUSED = ("should not have happened", "damaged")


class SeveralClients(Clients):
    """Each connection goes to any of them. Thread-safe, but for its attributes, which the run sets while it is the only one to
    look. `only`: all go to this one."""

    def __init__(self) -> None:
        super().__init__(REFUSALS | {ONLY_ROLLBACK})
        self.serving: list[Server] = []
        self.only: Server | None = None
        self.expects_errors = False  # Fault points have failed in this round.

    def connect(self, **options: Any) -> "pymysql.connections.Connection[Any]":
        with self._latch:
            serving = self.serving
            server = self.only or (self._rng.choice(serving) if serving else None)
        if server is None:
            raise pymysql.err.OperationalError(LOST, "no server is there")
        self.server = server
        return super().connect(**{**options, "unix_socket": str(server.socket), "read_timeout": READ_TIMEOUT_S})

    def excuses(self, error: pymysql.MySQLError) -> bool:
        """Also a lease that was lost on a busy machine, if the server says so."""
        code, text = error.args[0] if error.args else 0, str(error)
        known = code in self._refusals or (self.expects_errors and code in DISK_ERRORS)
        if not known or any(words in text for words in NEVER_EXCUSED):
            return False
        if not (self.tolerant or tells_of_its_lease(text)):
            return False
        with self._latch:
            self.turned_away[text[:80]] += 1
        return True
