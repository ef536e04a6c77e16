"""Transfers between accounts, each with an entry in a ledger: what was acknowledged is there, nothing else is, and the sum stays.

Some are XA transactions: one whose PREPARE was acknowledged is only ever committed, by whoever finds it: it is there in the end.
"""

import random
import threading
from dataclasses import dataclass, field

import pymysql

from .errors import ANY
from .schema import ACCOUNTS, AMOUNT
from .sessions import Session, Shared, code_of, names_of

XA_SHARE = 0.15
ROLLBACK_SHARE = 0.1
LOOK_SHARE = 0.2
PAUSE_S = 0.3
NO_SUCH_XID = 1397
PREFIX = "bank-"
TOTAL = (ACCOUNTS * AMOUNT, ACCOUNTS)
SUM = "SELECT SUM(amount), COUNT(*) FROM bank.account"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@dataclass
class Ledger:
    """Of all clients. Thread-safe as sets of Python are: each number is one client's."""

    acknowledged: set[int] = field(default_factory=set)  # or prepared
    unknown: set[int] = field(default_factory=set)

    def problems(self, found: set[int]) -> list[str]:
        lost, invented = self.acknowledged - found, found - self.acknowledged - self.unknown
        said = [f"{len(lost)} acknowledged transactions are lost: {sorted(lost)[:20]}"] if lost else []
        return said + ([f"{len(invented)} are there that nobody committed: {sorted(invented)[:20]}"] if invented else [])


class Teller(threading.Thread):
    def __init__(self, shared: Shared, number: int, ledger: Ledger) -> None:
        self._home = shared.servers[number % len(shared.servers)]
        super().__init__(name=f"money-{number}@{self._home.data.name}", daemon=True)
        self._shared = shared
        self._number = number
        self._ledger = ledger
        self._rng = random.Random(f"{shared.seed} money {number}")
        self._session: Session | None = None
        self._prepared: list[int] = []  # that have to be committed
        self._at_commit: int | None = None  # whether this one is there nobody knows

    def run(self) -> None:
        while not self._shared.stopping.is_set():
            self._at_commit = None
            try:
                self._one()
            except pymysql.MySQLError as error:
                self._failed(error)
            except Exception as error:  # Whatever it is, it is a finding.
                self._shared.journal.wrong("a client failed", f"{self.name}: {type(error).__name__}: {error}", self.name)
                self._leave()
        self._leave()

    def _one(self) -> None:
        if self._session is None:
            self._session = Session(self._shared, self._home, self.name)
            self._session.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {self._rng.choice(LEVELS)}")
        self._commit_prepared(self._session)
        number = self._shared.unique()
        # With one that cannot be committed yet, the session must not come to have another one.
        is_xa = self._rng.random() < XA_SHARE and not self._prepared
        (self._xa_transfer if is_xa else self._transfer)(self._session, number)
        if self._session is not None and self._rng.random() < LOOK_SHARE:
            (seen,) = self._session.run(SUM)
            if (int(seen[0]), int(seen[1])) != TOTAL:
                self._shared.journal.wrong("the sum of the accounts is wrong", f"{self.name} sees {seen}", self.name)

    def _failed(self, error: pymysql.MySQLError) -> None:
        if self._at_commit is not None:
            self._ledger.unknown.add(self._at_commit)
        self._shared.judge(self.name, self._session, "a transfer", error, ANY)
        self._leave()  # It may have an XA transaction, or not.
        self._shared.stopping.wait(PAUSE_S)

    def _leave(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _changes(self, number: int) -> list[str]:
        giver, taker = self._rng.sample(range(ACCOUNTS), 2)
        return [
            f"UPDATE bank.account SET amount = amount - 7 WHERE id = {giver}",
            f"UPDATE bank.account SET amount = amount + 7 WHERE id = {taker}",
            f"INSERT INTO bank.ledger (id, client) VALUES ({number}, {self._number})",
        ]

    def _transfer(self, session: Session, number: int) -> None:
        for statement in ("BEGIN", *self._changes(number)):
            session.run(statement)
        if self._rng.random() < ROLLBACK_SHARE:
            session.run("ROLLBACK")
            return
        self._at_commit = number
        session.run("COMMIT")
        self._ledger.acknowledged.add(number)

    def _xa_transfer(self, session: Session, number: int) -> None:
        name = f"{PREFIX}{number}"
        for statement in (f"XA START '{name}'", *self._changes(number), f"XA END '{name}'"):
            session.run(statement)
        self._at_commit = number
        session.run(f"XA PREPARE '{name}'")
        self._ledger.acknowledged.add(number)
        self._at_commit = None
        self._prepared.append(number)
        if self._rng.random() < 0.3:
            self._leave()  # Another connection of this server has to find it.
            return
        self._commit_prepared(session)

    def _commit_prepared(self, session: Session) -> None:
        while self._prepared:
            name = f"{PREFIX}{self._prepared[0]}"
            try:
                session.run(f"XA COMMIT '{name}'")
            except pymysql.MySQLError as error:
                if code_of(error) != NO_SUCH_XID:
                    raise
                if name in names_of(session.run("XA RECOVER")):  # Its connection is about to end.
                    return
            self._prepared.pop(0)
