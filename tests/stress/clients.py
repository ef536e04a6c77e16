"""Who sends statements of the catalogue, and does now and then what one statement alone does not do."""

import random
import threading
from pathlib import Path

import pymysql

from . import actions, catalogue
from .errors import ANY
from .sessions import Session, Shared, is_lost

STATEMENTS_PER_CONNECTION = 25  # so that nobody keeps locked tables, or an open transaction, for ever
ACTION_SHARE = 0.04
ROLLBACK_SHARE = 0.6  # of what failed
PAUSE_S = 0.2  # before another try to connect


class WildClient(threading.Thread):
    def __init__(self, shared: Shared, number: int, file: Path) -> None:
        self._home = shared.servers[number % len(shared.servers)]
        super().__init__(name=f"wild-{number}@{self._home.data.name}", daemon=True)
        self._shared = shared
        self._file = str(file)
        self._rng = random.Random(f"{shared.seed} wild {number}")
        self._session: Session | None = None

    def run(self) -> None:
        while not self._shared.stopping.is_set():
            try:
                self._one_connection()
            except pymysql.MySQLError as error:
                self._shared.judge(self.name, self._session, "connecting", error, ANY)
                self._shared.stopping.wait(PAUSE_S)
            except Exception as error:  # Whatever it is, it is a finding.
                self._shared.journal.wrong("a client failed", f"{self.name}: {type(error).__name__}: {error}", self.name)
            finally:
                self._leave()

    def _leave(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _one_connection(self) -> None:
        session = self._session = Session(self._shared, self._home, self.name)
        for _ in range(STATEMENTS_PER_CONNECTION):
            if self._shared.stopping.is_set() or not self._one_kind(session):
                return

    def _one_kind(self, session: Session) -> bool:
        """False: the connection is of no use any more."""
        if self._rng.random() < ACTION_SHARE:
            return actions.draw(self._rng)(self._shared, session, self._rng)
        kind = catalogue.draw(self._rng)
        for statement in kind.statements(self._rng, self._shared.unique(), self._file):
            try:
                session.run(statement)
            except pymysql.MySQLError as error:
                self._shared.judge(self.name, session, statement, error, kind.errors)
                return not is_lost(error) and self._tidy(session)
        return True

    def _tidy(self, session: Session) -> bool:
        """As most programs do after an error."""
        if self._rng.random() > ROLLBACK_SHARE:
            return True
        for statement in ("ROLLBACK", "UNLOCK TABLES"):
            try:
                session.run(statement)
            except pymysql.MySQLError as error:
                self._shared.judge(self.name, session, statement, error, ANY)
                if is_lost(error):
                    return False
        return True
